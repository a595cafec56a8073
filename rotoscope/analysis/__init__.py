"""Questions put to a subject."""

from rotoscope.analysis.gating import gate, gate_sweep
from rotoscope.analysis.profiling import profile

__all__ = ["gate", "gate_sweep", "profile"]
