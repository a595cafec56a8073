"""Results in, matplotlib figure out: the papers' figures."""

from collections.abc import Callable, Iterator
from typing import Any

from rotoscope.errors import RotoscopeError

try:
    from matplotlib.figure import Figure
except ImportError as _missing:
    raise RotoscopeError("figures need: pip install 'rotoscope[figures]'") from _missing

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
from rotoscope.experiments.depths.result import SwapDepths
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
from rotoscope.experiments.profile.result import Profile
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
from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.experiments.train.figures import plane_over_training as plane_over_training
from rotoscope.experiments.train.figures import purity_over_training as purity_over_training
from rotoscope.experiments.train.figures import scores_over_training as scores_over_training
from rotoscope.experiments.train.figures import separation_over_training as separation_over_training
from rotoscope.experiments.train.figures import training_accuracy as training_accuracy
from rotoscope.experiments.train.figures import waiting as waiting
from rotoscope.experiments.train.restrictions import restricted_accuracy as restricted_accuracy
from rotoscope.plotting.palette import CLASS_COLOURS as CLASS_COLOURS
from rotoscope.plotting.style import save as save

save_figure = save
"""As it was called before."""
PLACES = 24  # answers from which it makes sense to ask where the fact stood


def all_figures(profile: Profile) -> Iterator[tuple[str, Figure]]:
    """Every figure that a profile has the data for, with the name of its file."""
    yield from _named(profile, plane, layer_map, depth)
    if "input_prompts" in profile.tables:
        yield from _named(profile, depth_ends)
    if len(profile.answers) >= PLACES and len(profile.by_position()) > 2:
        yield from _named(profile, by_position)
    if profile.has_examples:
        tables = {swap_traces: profile.traces, vectors: profile.vectors}  # none where no head sees a swap
        yield from _named(profile, *(draw for draw, table in tables.items() if len(table)))
    if "prompt_frequencies" in profile.tables:
        known = set(profile.frequencies[["layer", "head"]].itertuples(index=False, name=None))
        heads = {name: head for name, head in example_heads(profile).items() if head in known}
        heads = heads or {"first": min(known)}
        yield from _named(profile, frequency_summary)
        for draw_heads in (frequency_profiles, frequency_norms, head_paths):
            yield draw_heads.__name__, draw_heads(profile, heads)
        yield from _named(profile, frequency_grid)


def depth_figures(run: SwapDepths) -> Iterator[tuple[str, Figure]]:
    """Every figure of swaps at depths; at the heads' own layers alone there is nothing to draw against depth."""
    if run.depths:
        yield from _named(run, depth_map, depth_curves)
    if 0 in run.depths:
        yield from _named(run, depth_ends)
    if len(run.writers_summary()):
        yield from _named(run, writer_graph)


def training_figures(run: Dynamics) -> Iterator[tuple[str, Figure]]:
    """Every figure of a model in training."""
    yield from _named(run, plane_over_training)
    if len(run.steps) > 1:
        yield from _named(run, scores_over_training, purity_over_training, separation_over_training)
    if run.accuracy is not None and run.accuracy["step"].nunique() > 1:
        yield from _named(run, training_accuracy)
    if run.has_hops and (run.learned().notna().any() or run.pure_from()["first_pure"].notna().any()):
        yield from _named(run, waiting)


def _named(run: Any, *figures: Callable[[Any], Figure]) -> Iterator[tuple[str, Figure]]:
    for draw in figures:
        yield draw.__name__, draw(run)


def example_heads(profile: Profile) -> dict[str, tuple[int, int]]:
    """The heads that stand as examples in the profile."""
    if not profile.has_examples:
        return {}
    rows = profile.traces.drop_duplicates("example")
    return {row.example: (int(row.layer), int(row.head)) for row in rows.itertuples()}
