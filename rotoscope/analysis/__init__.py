"""Questions put to a subject."""

from rotoscope.analysis.dynamics import Watch
from rotoscope.analysis.endpoints import one_hop_endpoint
from rotoscope.analysis.gating import gate
from rotoscope.analysis.geometry import geometry as find_geometry
from rotoscope.analysis.onehop import one_hop_local
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.roles import roles as find_roles
from rotoscope.analysis.roles import trace
from rotoscope.analysis.theory import theory as run_theory

__all__ = [
    "Watch",
    "find_geometry",
    "find_roles",
    "gate",
    "one_hop_endpoint",
    "one_hop_local",
    "profile",
    "run_theory",
    "trace",
]
