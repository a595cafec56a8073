"""Questions put to a subject."""

from rotoscope.analysis.dynamics import Watch, dynamics
from rotoscope.analysis.gating import gate, gate_sweep
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.theory import theory as run_theory

__all__ = ["Watch", "dynamics", "gate", "gate_sweep", "profile", "run_theory"]
