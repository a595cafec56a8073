"""Questions put to a subject."""

from rotoscope.analysis.canonical import canonical_experiments
from rotoscope.analysis.dynamics import Watch, measure_dynamics
from rotoscope.analysis.endpoints import one_hop_endpoint
from rotoscope.analysis.gating import gate
from rotoscope.analysis.geometry import find_geometry
from rotoscope.analysis.lengths import measure_lengths
from rotoscope.analysis.onehop import one_hop_local
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.roles import find_roles, trace
from rotoscope.analysis.theory import run_theory

__all__ = [
    "Watch",
    "canonical_experiments",
    "find_geometry",
    "find_roles",
    "gate",
    "measure_dynamics",
    "measure_lengths",
    "one_hop_endpoint",
    "one_hop_local",
    "profile",
    "run_theory",
    "trace",
]
