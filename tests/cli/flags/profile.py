"""`rotoscope profile`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from rotoscope.analysis import profiling
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
    half_on_disk,
    on_device,
)  # fmt: skip

PLAIN = "--null none --no-examples --no-figures --device cpu"
REPEATS = f"profile {{model}} --task repeats --length 6 --prompts 2 {PLAIN}"
BINDING = f"profile {{model}} --task binding --pairs 4 --prompts 2 --tau 1e6 {PLAIN}"
TEXT = f"profile {{model}} --task text --text {{text}} --blocks token --tau 1e6 {PLAIN}"
NULL = f"{REPEATS.replace(' --null none', '')} --null random"
MUCH = "--prompts 3 --tau 1e6 --queries 8,10 --frequencies --heads 1:2,0:3 --examples --input-swaps 4 --known"
"""Flags whose effects are seen in different places: one run shows them all."""
LONGER = "--length 8 --prefix none"
COARSER = "--pairs 6 --granularity 2 --ending answer"
OTHERWISE = "--text {longer} --blocks sentence --answer w7"
"""Flags that are seen together: without any one of them the number would be another."""
DRAWS = "--null-draws 2"


def shown(outcome: Outcome) -> tuple[int, ...]:
    """How many prompts of how many tokens."""
    found = re.search(r"(\d+) prompts of up to (\d+) tokens", outcome.told)
    assert found
    return tuple(int(number) for number in found.groups())


def scores(outcome: Outcome) -> list[float]:
    return outcome.result.heads["positional_score"].fillna(-1).tolist()


def swaps(outcome: Outcome) -> float:
    """How many swaps decide the scores of the head that the most decide."""
    return round(float(outcome.result.heads["effective_swaps"].max()), 3)


def draws_differ(outcome: Outcome) -> list[int]:
    """The numbers of the null's draws, which give scores of their own."""
    null = outcome.result.tables["null_prompts"].groupby("draw")["positional_score"].mean()
    assert null.is_unique
    return null.index.tolist()


def prompts_by_themselves(world: World) -> None:
    """How many prompts run together cannot be seen in the numbers, which must not depend on it."""
    seen: list[int] = []
    whole = profiling.score_batch

    def counted(reader, batch, *rest):
        seen.append(len(batch.prompts))
        return whole(reader, batch, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "score_batch", counted)
        alone = world.run(f"{REPEATS} --batch-tokens 12")
    assert seen == [1, 1]  # both at once without
    assert scores(alone) == pytest.approx(scores(world.run(REPEATS)), abs=1e-6)


def heads_with_planes(outcome: Outcome) -> list[tuple[int, int]]:
    rows = outcome.result.tables.get("prompt_frequencies")
    return [] if rows is None else sorted(set(zip(rows["layer"].tolist(), rows["head"].tolist(), strict=True)))


def has(table: str) -> Callable[[Outcome], bool]:
    return lambda outcome: table in outcome.result.tables


def asked_at(outcome: Outcome) -> list[int]:
    rows = outcome.result.tables.get("queries")
    return [] if rows is None else sorted(set(rows["query_position"].tolist()))


FLAGS: Table = {
    "model": Other(REPEATS, REPEATS.replace("{model}", "{other}"), scores),
    "task": (
        Other(TEXT, REPEATS, lambda o: (o.result.run.settings["task"], shown(o)), ("repeats", (2, 12))),
        "tests/cli/test_several_tasks.py::test_several_tasks",
    ),
    "pairs": Effect(BINDING, COARSER, swaps, 3.0),
    "prompts": Effect(REPEATS, MUCH, shown, (3, 12)),
    "prefix": Effect(REPEATS, LONGER, shown, (2, 15)),
    "granularity": Effect(BINDING, COARSER, swaps, 3.0),
    "distinct": Refused(BINDING, "--distinct", "this tokenizer tells 1 apart by their first token"),
    "ending": Effect(BINDING, COARSER, lambda o: o.result.run.settings["task_settings"]["ending"], "answer"),
    "asked": "tests/tasks/test_new_tasks.py::test_any_member_of_a_group_is_asked_for",
    "length": Effect(REPEATS, LONGER, shown, (2, 15)),
    "text": Effect(TEXT, OTHERWISE, shown, (1, 17)),
    "blocks": (
        Effect(TEXT, OTHERWISE, swaps, 6.0),
        Effect(REPEATS, "--blocks first --tau 1e6", swaps, 15.0),
    ),
    "answer": Effect(TEXT, OTHERWISE, has("answers"), expected=True),
    "seed": Effect(REPEATS, "--seed 1", scores),
    "tau": Effect(REPEATS, MUCH, lambda o: (o.result.taus, swaps(o)), ([1e6], 28.5)),
    "gamma": Effect(REPEATS, "--gamma 0.45", lambda o: o.result.heads["head_class"].tolist()),
    "queries": Effect(REPEATS, MUCH, asked_at, [8, 10]),
    "frequencies": Effect(REPEATS, MUCH, has("prompt_frequencies"), expected=True),
    "heads": Effect(REPEATS, MUCH, heads_with_planes, [(0, 3), (1, 2)]),
    "null": Effect(NULL, "--null gaussian", lambda o: o.result.null_name, "gaussian"),
    "null_draws": Effect(NULL, DRAWS, draws_differ, [0, 1]),
    "examples": Effect(REPEATS, MUCH, has("attention"), expected=True),
    "input_swaps": Effect(REPEATS, MUCH, has("input_prompts"), expected=True),
    "known": Effect(REPEATS, MUCH, lambda o: (has("known_heads")(o), "of known kinds" in o.told), (True, True)),
    "batch_tokens": prompts_by_themselves,
    "out": Written(REPEATS),
    "overwrite": Overwrites(REPEATS, "--gamma 0.2"),
    "figures": Undrawn(REPEATS, drawn="tests/cli/test_cli.py::test_profile_writes_what_it_says"),
    "device": on_device(REPEATS),
    "dtype": Effect(REPEATS, "--dtype bfloat16", lambda o: o.result.run.subject.dtype, "bfloat16"),
    "device_map": half_on_disk(REPEATS),
    "rope": "tests/cli/test_rope.py::test_rope",
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing",
}
