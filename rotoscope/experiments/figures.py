"""Results in, matplotlib figure out: the papers' figures."""

from rotoscope.errors import RotoscopeError, pip_install

try:
    import matplotlib as matplotlib
except ImportError as _missing:
    raise RotoscopeError(f"figures need: {pip_install('figures')}") from _missing

from rotoscope.experiments.ask.figures import one_hop_accuracy as one_hop_accuracy
from rotoscope.experiments.canonical.figures import canonical_accuracy as canonical_accuracy
from rotoscope.experiments.canonical.figures import canonical_positions as canonical_positions
from rotoscope.experiments.canonical.figures import canonical_scores as canonical_scores
from rotoscope.experiments.canonical.figures import canonical_steps as canonical_steps
from rotoscope.experiments.canonical.figures import canonical_vectors as canonical_vectors
from rotoscope.experiments.depths.figures import depth_curves as depth_curves
from rotoscope.experiments.depths.figures import depth_ends as depth_ends
from rotoscope.experiments.depths.figures import depth_map as depth_map
from rotoscope.experiments.depths.figures import writer_graph as writer_graph
from rotoscope.experiments.gate.figures import gate_bands as gate_bands
from rotoscope.experiments.lengths.figures import length_accuracy as length_accuracy
from rotoscope.experiments.lengths.figures import length_attention as length_attention
from rotoscope.experiments.lengths.figures import length_discrepancy as length_discrepancy
from rotoscope.experiments.lengths.figures import length_prediction as length_prediction
from rotoscope.experiments.plan.figures import cache_map as cache_map
from rotoscope.experiments.plan.figures import plan_frontier as plan_frontier
from rotoscope.experiments.plan.figures import rotation_map as rotation_map
from rotoscope.experiments.profile.across_tasks import task_agreement as task_agreement
from rotoscope.experiments.profile.figures import by_position as by_position
from rotoscope.experiments.profile.figures import depth as depth
from rotoscope.experiments.profile.figures import layer_map as layer_map
from rotoscope.experiments.profile.figures import swap_traces as swap_traces
from rotoscope.experiments.profile.figures import vectors as vectors
from rotoscope.experiments.profile.frequency_figures import frequency_grid as frequency_grid
from rotoscope.experiments.profile.frequency_figures import frequency_norms as frequency_norms
from rotoscope.experiments.profile.frequency_figures import frequency_profiles as frequency_profiles
from rotoscope.experiments.profile.frequency_figures import frequency_summary as frequency_summary
from rotoscope.experiments.profile.frequency_figures import head_paths as head_paths
from rotoscope.experiments.profile.plane import plane as plane
from rotoscope.experiments.registry import figures_of as figures_of
from rotoscope.experiments.roles.figures import answer_arrival as answer_arrival
from rotoscope.experiments.roles.figures import decodable_flow as decodable_flow
from rotoscope.experiments.roles.figures import dominant_planes as dominant_planes
from rotoscope.experiments.roles.figures import frequency_use as frequency_use
from rotoscope.experiments.roles.figures import information_flow as information_flow
from rotoscope.experiments.roles.figures import role_attention as role_attention
from rotoscope.experiments.steering import steered_accuracy as steered_accuracy
from rotoscope.experiments.theory.figures import construction_vectors as construction_vectors
from rotoscope.experiments.theory.figures import discrepancies as discrepancies
from rotoscope.experiments.theory.figures import hop_path as hop_path
from rotoscope.experiments.theory.figures import permuted_logits as permuted_logits
from rotoscope.experiments.theory.figures import target_weights as target_weights
from rotoscope.experiments.train.figures import plane_over_training as plane_over_training
from rotoscope.experiments.train.figures import purity_over_training as purity_over_training
from rotoscope.experiments.train.figures import scores_over_training as scores_over_training
from rotoscope.experiments.train.figures import separation_over_training as separation_over_training
from rotoscope.experiments.train.figures import training_accuracy as training_accuracy
from rotoscope.experiments.train.figures import waiting as waiting
from rotoscope.experiments.train.restrictions import restricted_accuracy as restricted_accuracy
from rotoscope.plotting.palette import CLASS_COLOURS as CLASS_COLOURS
from rotoscope.plotting.style import save as save
