"""Questions put to a subject."""

from rotoscope.analysis import plan as plan
from rotoscope.analysis.across_tasks import agreement as agreement
from rotoscope.analysis.across_tasks import profile_tasks as profile_tasks
from rotoscope.analysis.canonical import canonical_experiments as canonical_experiments
from rotoscope.analysis.depth_curves import depths as depths
from rotoscope.analysis.dynamics import measure_dynamics as measure_dynamics
from rotoscope.analysis.endpoints import one_hop_endpoint as one_hop_endpoint
from rotoscope.analysis.gating import gate as gate
from rotoscope.analysis.geometry import find_geometry as find_geometry
from rotoscope.analysis.known import known_heads as known_heads
from rotoscope.analysis.lengths import measure_lengths as measure_lengths
from rotoscope.analysis.onehop import one_hop_local as one_hop_local
from rotoscope.analysis.profiling import profile as profile
from rotoscope.analysis.restriction import restrictions as restrictions
from rotoscope.analysis.roles import find_roles as find_roles
from rotoscope.analysis.roles import trace as trace
from rotoscope.analysis.steering import measure_steering as measure_steering
from rotoscope.analysis.theory import run_theory as run_theory
from rotoscope.analysis.watching import Watch as Watch
