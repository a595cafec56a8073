"""Results in, matplotlib figure out: the papers' figures."""

from collections.abc import Iterator

from rotoscope.errors import RotoscopeError

try:
    from matplotlib.figure import Figure
except ImportError as _missing:
    raise RotoscopeError("figures need: pip install 'rotoscope[figures]'") from _missing

from rotoscope.figures.by_depth import by_position, depth
from rotoscope.figures.canonical import (
    canonical_accuracy,
    canonical_positions,
    canonical_scores,
    canonical_steps,
    canonical_vectors,
)
from rotoscope.figures.dynamics import (
    plane_over_training,
    purity_over_training,
    scores_over_training,
    training_accuracy,
    waiting,
)
from rotoscope.figures.examples import swap_traces, vectors
from rotoscope.figures.frequency import (
    frequency_grid,
    frequency_norms,
    frequency_profiles,
    frequency_summary,
    head_paths,
)
from rotoscope.figures.gating import gate_bands
from rotoscope.figures.geometry import dominant_planes, frequency_use
from rotoscope.figures.lengths import length_accuracy, length_attention, length_discrepancy, length_prediction
from rotoscope.figures.maps import layer_map
from rotoscope.figures.onehop import one_hop_accuracy
from rotoscope.figures.plane_of_heads import plane
from rotoscope.figures.roles import answer_arrival, decodable_flow, information_flow, role_attention
from rotoscope.figures.style import save_figure
from rotoscope.figures.theory import (
    construction_vectors,
    discrepancies,
    hop_path,
    permuted_logits,
    target_weights,
)
from rotoscope.palette import CLASS_COLOURS
from rotoscope.results.dynamics import Dynamics
from rotoscope.results.profile import Profile

__all__ = [
    "CLASS_COLOURS",
    "all_figures",
    "answer_arrival",
    "by_position",
    "canonical_accuracy",
    "canonical_positions",
    "canonical_scores",
    "canonical_steps",
    "canonical_vectors",
    "construction_vectors",
    "decodable_flow",
    "depth",
    "discrepancies",
    "dominant_planes",
    "frequency_grid",
    "frequency_norms",
    "frequency_profiles",
    "frequency_summary",
    "frequency_use",
    "gate_bands",
    "head_paths",
    "hop_path",
    "information_flow",
    "layer_map",
    "length_accuracy",
    "length_attention",
    "length_discrepancy",
    "length_prediction",
    "one_hop_accuracy",
    "permuted_logits",
    "plane",
    "plane_over_training",
    "purity_over_training",
    "role_attention",
    "save_figure",
    "scores_over_training",
    "swap_traces",
    "target_weights",
    "training_accuracy",
    "training_figures",
    "vectors",
    "waiting",
]

PLACES = 24  # answers from which it makes sense to ask where the fact stood


def all_figures(profile: Profile) -> Iterator[tuple[str, Figure]]:
    """Every figure that a profile has the data for, with the name of its file."""
    yield "plane", plane(profile)
    yield "layer_map", layer_map(profile)
    yield "depth", depth(profile)
    if len(profile.answers) >= PLACES and len(profile.by_position()) > 2:
        yield "by_position", by_position(profile)
    if "traces" in profile.tables:
        yield "swap_traces", swap_traces(profile)
    if "vectors" in profile.tables:
        yield "vectors", vectors(profile)
    if "prompt_frequencies" in profile.tables:
        known = set(profile.frequencies[["layer", "head"]].itertuples(index=False, name=None))
        heads = {name: head for name, head in example_heads(profile).items() if head in known}
        heads = heads or {"first": min(known)}
        yield "frequency_summary", frequency_summary(profile)
        yield "frequency_profiles", frequency_profiles(profile, heads)
        yield "frequency_norms", frequency_norms(profile, heads)
        yield "head_paths", head_paths(profile, heads)
        yield "frequency_grid", frequency_grid(profile)


def training_figures(run: Dynamics) -> Iterator[tuple[str, Figure]]:
    """Every figure of a model in training."""
    yield "plane_over_training", plane_over_training(run)
    yield "scores_over_training", scores_over_training(run)
    if len(run.steps) > 1:
        yield "purity_over_training", purity_over_training(run)
    if run.accuracy is not None:
        yield "training_accuracy", training_accuracy(run)
        yield "waiting", waiting(run)


def example_heads(profile: Profile) -> dict[str, tuple[int, int]]:
    """The heads that stand as examples in the profile."""
    if "traces" not in profile.tables:
        return {}
    rows = profile.traces.drop_duplicates("example")
    return {row.example: (int(row.layer), int(row.head)) for row in rows.itertuples()}
