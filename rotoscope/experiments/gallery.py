"""Every figure a run has the data for, with the name of its file."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from rotoscope.experiments import figures as draw
from rotoscope.experiments.ask.result import OneHopRun
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.plan.result import CachePlan, RotationPlan
from rotoscope.experiments.profile.across_tasks import Agreement
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.steering import Steering
from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.experiments.train.restrictions import Restrictions
from rotoscope.lab.result import Training
from rotoscope.runs.result import SavedRun


def figures_of(run: SavedRun, printed: pd.DataFrame | None = None) -> Iterator[tuple[str, Figure]]:
    """The figures of a run of any kind; none where there is nothing to draw.

    `printed` is a paper's table of accuracies to show beside answers to one-hop questions.
    """
    if isinstance(run, Profile):
        yield from draw.all_figures(run)
    elif isinstance(run, SwapDepths):
        yield from draw.depth_figures(run)
    elif isinstance(run, Training):
        yield from draw.training_figures(Dynamics.of_training(run))
    elif isinstance(run, Dynamics):
        yield from draw.training_figures(run)
    elif isinstance(run, Canonical):
        yield "accuracy", draw.canonical_accuracy(run)
        yield "steps", draw.canonical_steps(run)
        yield "positions", draw.canonical_positions(run)
        yield "scores", draw.canonical_scores(run)
        if len(run.vectors):
            yield "vectors", draw.canonical_vectors(run)
    elif isinstance(run, Lengths):
        yield "length_accuracy", draw.length_accuracy(run)
        if "heads" in run.tables:
            yield "length_discrepancy", draw.length_discrepancy(run)
            yield "length_attention", draw.length_attention(run)
        yield "length_prediction", draw.length_prediction(run)
    elif isinstance(run, OneHopRun):
        yield "one_hop_accuracy", draw.one_hop_accuracy(run, printed)
    elif isinstance(run, Agreement):
        yield "task_agreement", draw.task_agreement(run)
    elif isinstance(run, Restrictions):
        yield "restricted_accuracy", draw.restricted_accuracy(run)
    elif isinstance(run, Steering):
        yield "steered_accuracy", draw.steered_accuracy(run)
    elif isinstance(run, CachePlan):
        yield "cache_frontier", draw.plan_frontier(run)
        yield "cache_map", draw.cache_map(run)
    elif isinstance(run, Gating) and run.sweep:
        yield "gate_bands", draw.gate_bands(run)
    elif isinstance(run, RotationPlan):
        yield "rotation_frontier", draw.plan_frontier(run)
        yield "rotation_map", draw.rotation_map(run)
