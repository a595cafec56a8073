"""Questions put to a subject."""

from rotoscope.analysis.dynamics import Watch, dynamics
from rotoscope.analysis.endpoints import one_hop_endpoint
from rotoscope.analysis.gating import gate, gate_sweep
from rotoscope.analysis.onehop import one_hop_local
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.theory import theory as run_theory

__all__ = [
    "Watch",
    "dynamics",
    "gate",
    "gate_sweep",
    "one_hop_endpoint",
    "one_hop_local",
    "profile",
    "run_theory",
]
