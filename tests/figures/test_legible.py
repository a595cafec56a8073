"""Every figure fits a column or a page of a paper, with nothing cut, too small or on top of something else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

import rotoscope as rs
from rotoscope.experiments import figures as draw
from rotoscope.experiments.ask.result import TABLE_3
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.profile.across_tasks import COMPONENTS, Agreement
from rotoscope.experiments.roles.result import TABLE_1, Roles
from rotoscope.plotting.palette import MIXED
from rotoscope.runs.record import RunRecord
from rotoscope.tasks.multihop import letter, number
from tests.figures.conftest import MODELS
from tests.figures.legible import faults
from tests.monitored import monitored
from tests.plans import cache_plan, rotation_plan
from tests.runs.test_onehop import made
from tests.runs.test_restrictions import restricted
from tests.runs.test_steering import made_up as steered
from tests.swap_depths import as_profile, swap_depths

Runs = Callable[[str], Any]
HEADS = {"this one": (1, 2), "that one": (0, 3)}


def _agreement() -> Agreement:
    tasks = ("binding", "lookup", "recall", "repeats")
    pairs = [(one, other) for k, one in enumerate(tasks) for other in tasks[k + 1 :]]
    shares = {"share": 0.6, "null_low": 0.4, "null_high": 0.5}
    components = [
        {"score": score, "component": name, "share": 0.2}
        for score in ("positional_score", "symbolic_score")
        for name in COMPONENTS
    ]
    tables = {
        "pairs": pd.DataFrame(pairs, columns=["task", "other_task"]).assign(**shares),
        "components": pd.DataFrame(components),
        "tasks": pd.DataFrame({"task": tasks, "prompts": 16}),
    }
    return Agreement(RunRecord(settings={"model": "a-model-with-a-long-name"}), tables)


def _answered(profile: rs.Profile) -> rs.Profile:
    asked = pd.Series(range(24), dtype=float)
    columns = {"asked_block": asked, "log_likelihood": -asked, "asked_attention": asked / 100}
    answers = pd.DataFrame({"correct": (asked < 6).astype(float), **columns})
    return rs.Profile(profile.run, {**profile.tables, "answers": answers})


def _with_tokens(profile: rs.Profile) -> rs.Profile:
    """The same traces over a prompt that has words, and four times as long: too long for all of them to be written."""
    rows = profile.traces
    longer = pd.concat([rows.assign(position=rows["position"] + 14 * k) for k in range(6)])
    words = [" Joel", " likes", "<|im_start|>", "\n", " €$", " 颜色"]
    longer["token"] = [words[k % len(words)] for k in longer["position"]]
    return rs.Profile(profile.run, {**profile.tables, "traces": longer})


def _without_tokens(profile: rs.Profile) -> rs.Profile:
    return rs.Profile(profile.run, {**profile.tables, "traces": profile.traces.drop(columns="token")})


FIGURES: dict[str, Callable[[Runs], Figure]] = {
    "plan_frontier": lambda run: draw.plan_frontier(cache_plan()),
    "cache_map": lambda run: draw.cache_map(cache_plan()),
    "plan_frontier of planes": lambda run: draw.plan_frontier(rotation_plan()),
    "rotation_map": lambda run: draw.rotation_map(rotation_plan()),
    "plane": lambda run: draw.plane(run("full")),
    "plane with carried heads": lambda run: draw.plane(as_profile(permuted=True)),
    "layer_map": lambda run: draw.layer_map(run("full")),
    "depth": lambda run: draw.depth(run("full")),
    "by_position": lambda run: draw.by_position(_answered(run("found"))),
    "swap_traces": lambda run: draw.swap_traces(_with_tokens(run("full"))),
    "vectors": lambda run: draw.vectors(run("full")),
    "frequency_summary": lambda run: draw.frequency_summary(run("full")),
    "frequency_profiles": lambda run: draw.frequency_profiles(run("full"), HEADS),
    "frequency_norms": lambda run: draw.frequency_norms(run("full"), HEADS),
    "head_paths": lambda run: draw.head_paths(run("full"), HEADS),
    "frequency_grid": lambda run: draw.frequency_grid(run("full")),
    "depth_map": lambda run: draw.depth_map(swap_depths(null="all")),
    "depth_curves": lambda run: draw.depth_curves(swap_depths(null="all")),
    "depth_ends": lambda run: draw.depth_ends(swap_depths(null="all")),
    "depth_ends by layer": lambda run: draw.depth_ends(swap_depths(one_head=True, null="all")),
    "writer_graph": lambda run: draw.writer_graph(swap_depths(writers=True)),
    "training_accuracy": lambda run: draw.training_accuracy(run("number")),
    "plane_over_training": lambda run: draw.plane_over_training(run("number")),
    "plane_over_training at one step": lambda run: draw.plane_over_training(run("number"), steps=[1100]),
    "scores_over_training": lambda run: draw.scores_over_training(run("number")),
    "purity_over_training": lambda run: draw.purity_over_training(run("number")),
    "separation_over_training": lambda run: draw.separation_over_training(run("number")),
    "separation_over_training of a monitor": lambda run: draw.separation_over_training(
        monitored([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], draws=19)
    ),
    "training_accuracy without hops": lambda run: draw.training_accuracy(monitored([0, 300, 600])),
    "waiting": lambda run: draw.waiting(run("number")),
    "role_attention": lambda run: draw.role_attention(run("roles")),
    "answer_arrival": lambda run: draw.answer_arrival(run("roles")),
    "decodable_flow": lambda run: draw.decodable_flow(run("roles")),
    "information_flow": lambda run: draw.information_flow(run("flow")),
    "frequency_use": lambda run: draw.frequency_use(run("shape"), printed=TABLE_1),
    "dominant_planes": lambda run: draw.dominant_planes(run("shape"), layers=[3]),
    "length_accuracy": lambda run: draw.length_accuracy(run("lengths")),
    "length_discrepancy": lambda run: draw.length_discrepancy(run("lengths")),
    "length_attention": lambda run: draw.length_attention(run("lengths")),
    "length_prediction": lambda run: draw.length_prediction(run("lengths")),
    "canonical_accuracy": lambda run: draw.canonical_accuracy(Canonical.open(MODELS / "canonical")),
    "canonical_steps": lambda run: draw.canonical_steps(Canonical.open(MODELS / "canonical")),
    "canonical_positions": lambda run: draw.canonical_positions(Canonical.open(MODELS / "canonical")),
    "canonical_scores": lambda run: draw.canonical_scores(Canonical.open(MODELS / "canonical")),
    "canonical_vectors": lambda run: draw.canonical_vectors(Canonical.open(MODELS / "canonical")),
    "gate_bands": lambda run: draw.gate_bands(run("gating")),
    "restricted_accuracy": lambda run: draw.restricted_accuracy(restricted()),
    "restricted_accuracy of one task": lambda run: draw.restricted_accuracy(
        restricted(["number"], watched=False)
    ),
    "steered_accuracy": lambda run: draw.steered_accuracy(steered()),
    "steered_accuracy of one task": lambda run: draw.steered_accuracy(steered(tasks=("letter",))),
    "one_hop_accuracy": lambda run: draw.one_hop_accuracy(made(), printed=TABLE_3),
    "task_agreement": lambda run: draw.task_agreement(_agreement()),
    "hop_path": lambda run: draw.hop_path(number(hops=3, count=1)[0], letter(hops=3, count=1)[0]),
    "construction_vectors": lambda run: draw.construction_vectors(),
    "discrepancies": lambda run: draw.discrepancies(longest=20),
    "target_weights": lambda run: draw.target_weights(keys=8),
    "permuted_logits": lambda run: draw.permuted_logits(),
}
LARGE: dict[str, Callable[[Runs], Figure]] = {
    "depth_map": lambda run: draw.depth_map(rs.open(MODELS / "language" / "depths")),
    "depth_curves": lambda run: draw.depth_curves(rs.open(MODELS / "language" / "depths")),
    "depth_ends": lambda run: draw.depth_ends(rs.open(MODELS / "language" / "depths")),
    "gate_bands": lambda run: draw.gate_bands(Gating.open(MODELS / "language" / "gating")),
    "swap_traces without tokens": lambda run: draw.swap_traces(_without_tokens(run("full"))),
    "scores_over_training of many heads": lambda run: draw.scores_over_training(monitored([0, 300, 600], 9, 3)),
    "purity_over_training of many heads": lambda run: draw.purity_over_training(
        monitored([0, 300, 600], 30, 9, accuracy=False)
    ),
    "training_accuracy of two": lambda run: draw.training_accuracy(run("number"), rs.dynamics("letter")),
    "waiting of two": lambda run: draw.waiting(run("number"), rs.dynamics("letter")),
    "role_attention of two": lambda run: draw.role_attention(
        Roles.open(MODELS / "number" / "roles"), run("roles")
    ),
}
"""Whole models and figures of two runs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_paper_could_take_it_of_whole_models(name: str, request: pytest.FixtureRequest) -> None:
    assert faults(LARGE[name](request.getfixturevalue)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_paper_could_take_it(name: str, request: pytest.FixtureRequest) -> None:
    assert faults(FIGURES[name](request.getfixturevalue)) == []


def test_no_figure_is_left_out() -> None:
    public = {
        name
        for name, draws in inspect.getmembers(draw, inspect.isfunction)
        if inspect.signature(draws).return_annotation in (Figure, "Figure")
    }
    assert public == {name.split(" ")[0] for name in FIGURES}


def test_what_is_wrong_is_found() -> None:
    """The check itself: each of these would be sent back."""
    figure = Figure(figsize=(7.5, 2), layout="none")
    good, empty = figure.subplots(1, 2)
    empty.set_ylabel("layer")
    empty.invert_yaxis()
    good.plot([0, 1], color=MIXED)
    good.set_xticks([0.5, 0.51], ["fifty", "fifty-one"])
    good.annotate("outside", (0.5, 0.5), (-3, 0.5), annotation_clip=False, fontsize=5)
    figure.legend(handles=good.lines, labels=["a legend that is far too long for this " * 6])
    found = "\n".join(faults(figure))
    for words in (
        "7.50 in wide",
        "'outside' is 5.0 pt",
        "'outside' is cut",
        "'a legend that is far too long",
        "'fifty' lies on 'fifty-one'",
        "panel 1 is empty",
        "panel 0 has a line in the pale colour of mixed heads",
        "panel 1 has layer 0 above",
    ):
        assert words in found
