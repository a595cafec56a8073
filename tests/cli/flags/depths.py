"""`rotoscope depths`."""

from __future__ import annotations

import re

import pytest

from rotoscope.analysis import depth_curves
from tests.cli.flags.effect import (
    Effect,
    Other,
    Outcome,
    Overwrites,
    Refused,
    Table,
    Undrawn,
    World,
    Written,
    every,
    half_on_disk,
    on_device,
)  # fmt: skip

PLAIN = "--null none --no-figures --device cpu"
REPEATS = f"depths {{model}} --task repeats --length 4 --prompts 1 {PLAIN}"
BINDING = f"depths {{model}} --task binding --pairs 4 --prompts 1 {PLAIN}"
TEXT = f"depths {{model}} --task text --text {{text}} --blocks token {PLAIN}"
NULL = f"{REPEATS.replace(' --null none', '')} --null random --null-draws 1"
MUCH = "--prompts 2 --tau 1e6 --at 1 own --swaps 3 --length 5 --prefix none"
"""Flags whose effects are seen in different places: one run shows them all."""
COARSER = "--pairs 6 --granularity 2 --ending answer"
OTHERWISE = "--text {longer} --blocks sentence"
"""Flags that are seen together: without any one of them the number would be another."""


def shown(outcome: Outcome) -> tuple[int, ...]:
    """How many swaps of how many prompts of how many tokens."""
    found = re.search(r"(\d+) swaps of (\d+) prompts of (\d+) tokens", outcome.told)
    assert found
    return tuple(int(number) for number in found.groups())


def scores(outcome: Outcome) -> list[float]:
    return outcome.result.curves["positional_score"].fillna(-1).tolist()


def draws(outcome: Outcome) -> list[int]:
    return every(outcome, "null_prompts", "draw") if "null_prompts" in outcome.result.tables else []


def null_rows(outcome: Outcome) -> int:
    """Rows of the null below the own layer."""
    return int((~outcome.result.tables["null_prompts"]["own"]).sum())


def batches_of(world: World) -> None:
    """How many tokens run together cannot be seen in the numbers, which must not depend on it."""
    seen: list[int] = []
    whole = depth_curves.Swapping

    def noted(depths, swaps, taus, most, **more):
        seen.append(most)
        return whole(depths, swaps, taus, most, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depth_curves, "Swapping", noted)
        alone = world.run(f"{REPEATS} --batch-tokens 12")
    assert seen == [12]
    assert scores(alone) == pytest.approx(scores(world.run(REPEATS)), abs=1e-5)


FLAGS: Table = {
    "model": Other(REPEATS, REPEATS.replace("{model}", "{other}"), scores),
    "task": Other(TEXT, REPEATS, lambda o: o.result.run.settings["task"], "repeats"),
    "pairs": Effect(BINDING, COARSER, shown),
    "prompts": Effect(REPEATS, MUCH, lambda o: shown(o)[1], 2),
    "prefix": Effect(REPEATS, MUCH, shown),
    "granularity": Effect(BINDING, COARSER, shown),
    "ending": Effect(BINDING, COARSER, lambda o: o.result.run.settings["task_settings"]["ending"], "answer"),
    "distinct": Refused(BINDING, "--distinct", "this tokenizer tells 1 apart by their first token"),
    "asked": "tests/tasks/test_new_tasks.py::test_any_member_of_a_group_is_asked_for",
    "length": Effect(REPEATS, MUCH, shown),
    "text": Effect(TEXT, OTHERWISE, shown),
    "blocks": Effect(TEXT, OTHERWISE, lambda o: shown(o)[0]),
    "answer": Refused(TEXT, "--answer w7", "--answer means nothing here: no answer is asked for"),
    "seed": Effect(REPEATS, "--seed 1", scores),
    "at": Effect(REPEATS, MUCH, lambda o: o.result.depths, [1]),
    "swaps": Effect(REPEATS, MUCH, lambda o: shown(o)[0], 3),
    "tau": Effect(REPEATS, MUCH, lambda o: o.result.taus, [1e6]),
    "gamma": Effect(REPEATS, "--gamma 0.45", lambda o: o.result.turns["head_class"].tolist()),
    "null": Effect(REPEATS, "--null random --null-draws 1", draws, [0]),
    "null_draws": Effect(NULL, "--null-draws 2 --null-heads all", draws, [0, 1]),
    "null_heads": Effect(NULL, "--null-draws 2 --null-heads all", null_rows),
    "batch_tokens": batches_of,
    "writers": Effect(
        REPEATS, "--writers", lambda o: "nobody could be asked who writes a place" in o.told, True
    ),
    "writer_swaps": "tests/analysis/test_writers.py::test_a_run_that_was_stopped_goes_on_with_the_next_gate",
    "controls": "tests/analysis/test_writers.py::test_controls_are_other_heads_of_the_same_layers",
    "out": Written(REPEATS),
    "overwrite": Overwrites(REPEATS, "--gamma 0.2"),
    "figures": Undrawn(
        REPEATS, drawn="tests/figures/test_depths.py::test_every_figure_of_a_run_can_be_written"
    ),
    "device": on_device(REPEATS),
    "dtype": Effect(REPEATS, "--dtype bfloat16", lambda o: o.result.run.subject.dtype, "bfloat16"),
    "device_map": half_on_disk(REPEATS),
    "rope": "tests/cli/test_rope.py::test_rope",
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing",
}
