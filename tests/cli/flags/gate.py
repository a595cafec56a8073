"""`rotoscope gate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from tests.cli.flags.profile import REPEATS as PROFILE

ONE = "gate {model} --task repeats --length 6 --prompts 2 --keep 1-2 --heads 0:1 --controls 0 --no-scores --no-figures"
SWEEP = "gate {model} --task repeats --length 6 --prompts 2 --bands 1 --groups all --controls 0 --no-figures"
WORDS = "--keep 1-2 --heads 0:1 --controls 0 --no-figures"
BINDING = f"gate {{model}} --task binding --pairs 4 --prompts 2 {WORDS}"
TEXT = f"gate {{model}} --task text --text {{text}} --answer w7 --blocks token {WORDS}"


LONGER = "--prompts 3 --length 8 --prefix none"
COARSER = "--pairs 6 --granularity 2 --ending answer"
OTHERWISE = "--text {longer} --blocks sentence"


def losses(outcome: Outcome, source: str = "task") -> list[float]:
    rows = outcome.result.conditions
    return rows[rows["source"] == source]["loss"].tolist()


def gated(outcome: Outcome) -> list[tuple[str, str, int, int]]:
    """What was done to how many heads, and to which random ones instead."""
    rows = outcome.result.conditions.drop_duplicates(["condition", "head_group", "draw"])
    found = zip(rows["condition"], rows["head_group"], rows["gated_heads"], rows["draw"], strict=True)
    return [
        (name, group, int(heads), int(draw)) for name, group, heads, draw in found if name != "nothing gated"
    ]


def conditions(outcome: Outcome) -> list[str]:
    return every(outcome, "conditions", "condition")


def made(name: str) -> Callable[[Outcome], Any]:
    """A size of the prompts, as they were made."""
    return lambda outcome: outcome.result.run.settings["task_settings"][name]


def prompts(outcome: Outcome) -> int:
    rows = outcome.result.conditions
    return int(rows[rows["source"] == "task"]["prompt"].nunique())


def classes_of_a_profile(world: World) -> None:
    """Heads of a class are those that the profile calls so: other prompts, other heads."""
    known = world.run(f"{PROFILE} --gamma 0.45")
    profile = known.result.heads
    name = profile["head_class"].mode()[0]
    heads = int((profile["head_class"] == name).sum())
    silence = ONE.replace("--keep 1-2", "--silence").replace("0:1", str(name))
    found = world.run(f"{silence} --classes {known.folder}")
    assert found.code == 0, found.problem
    assert gated(found) == [(f"silence {name}", name, heads, -1)]
    without = world.run(silence)
    assert without.code == 2 or gated(without) != gated(found)


def heads_of_a_class(world: World) -> None:
    """All heads of a class are silenced beside five random groups, and what is lost is judged."""
    known = world.run(f"{PROFILE} --gamma 0.45")
    name, heads = next(iter(known.result.heads["head_class"].value_counts().items()))
    line = "gate {model} --task repeats --length 6 --prompts 2 --no-scores --no-figures"
    found = world.run(f"{line} --heads-of-class {name} --classes {known.folder}")
    assert found.code == 0, found.problem
    assert gated(found) == [(f"silence {name}", name, int(heads), draw) for draw in range(-1, 5)]
    assert "beside random heads of the same layers" in found.told
    told = " ".join(found.told.split())
    assert all(verdict in told for verdict in found.result.effects["verdict"])


def controls_are_drawn_with_the_seed(world: World) -> None:
    """The seed draws the prompts, and the heads that stand beside a group."""
    first, second = (
        world.run(f"{ONE.replace('--controls 0', '--controls 1')} --seed {seed}") for seed in (0, 2)
    )
    heads = [found.result.run.settings["conditions"][1][-1] for found in (first, second)]
    assert heads[0] != heads[1]
    assert losses(first) != losses(second)


FLAGS: Table = {
    "model": Other(ONE, ONE.replace("{model}", "{other}"), losses),
    "task": Other(TEXT, ONE, prompts, 2),
    "pairs": Effect(BINDING, COARSER, made("pairs"), 6),
    "prompts": Effect(ONE, LONGER, prompts, 3),
    "prefix": Effect(ONE, LONGER, made("prefix"), "none"),
    "granularity": Effect(BINDING, COARSER, made("granularity"), 2),
    "distinct": Refused(BINDING, "--distinct", "this tokenizer tells 1 apart by their first token"),
    "ending": Effect(BINDING, COARSER, made("ending"), "answer"),
    "asked": "tests/tasks/test_new_tasks.py::test_any_member_of_a_group_is_asked_for",
    "length": Effect(ONE, LONGER, made("length"), 8),
    "text": Effect(TEXT, OTHERWISE, losses),
    "blocks": Effect(TEXT, OTHERWISE, made("blocks"), "sentence"),
    "answer": Effect(TEXT, "--answer w8", losses),
    "seed": controls_are_drawn_with_the_seed,
    "keep": Effect(ONE, "--keep 1-3", gated, [("keep 1-3", "listed", 1, -1)]),
    "remove": Other(ONE, ONE.replace("keep", "remove"), conditions, ["nothing gated", "remove 1-2"]),
    "silence": Other(ONE, ONE.replace("keep 1-2", "silence"), conditions, ["nothing gated", "silence listed"]),
    "heads": Effect(ONE, "--heads 0:1,1:2", gated, [("keep 1-2", "listed", 2, -1)]),
    "heads_of_class": heads_of_a_class,
    "bands": Effect(
        SWEEP,
        "--bands 2",
        conditions,
        ["keep 1-4", "keep 5-8", "nothing gated", "remove 1-4", "remove 5-8", "remove all"],
    ),
    "groups": Effect(SWEEP, "--groups mixed", lambda o: every(o, "conditions", "head_group"), ["all", "mixed"]),
    "controls": Effect(ONE, "--controls 2", lambda o: every(o, "conditions", "draw"), [-1, 0, 1]),
    "scores": Effect(ONE, "--scores", lambda o: "gated_heads" in o.result.tables, expected=True),
    "classes": classes_of_a_profile,
    "out": Written(ONE),
    "overwrite": Overwrites(ONE, "--keep 1-3"),
    "figures": Undrawn(ONE, drawn="tests/cli/test_cli.py::test_gate"),
    "device": on_device(ONE),
    "dtype": Effect(ONE, "--dtype bfloat16", lambda o: o.result.run.subject.dtype, "bfloat16"),
    "device_map": half_on_disk(ONE),
    "rope": "tests/cli/test_rope.py::test_rope",
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing",
}
