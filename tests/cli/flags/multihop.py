"""`rotoscope dynamics` and `rotoscope lengths`, on models that were trained for a moment."""

from __future__ import annotations

from pathlib import Path

import rotoscope as rs
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
    on_device,
    with_flags,
)  # fmt: skip

SCORED = "dynamics {trained} --queries last --inputs 4 --no-roles --no-figures --device cpu"
WATCHED = "dynamics {trained} --no-roles --no-figures --device cpu"
SPOKEN = "dynamics {steps} --task repeats --inputs 1 --no-roles --no-figures --device cpu"
WITH_ROLES = with_flags(SCORED, "--roles")
LENGTHS = "lengths {trained} --lengths 7 10 --inputs 4 --no-figures --device cpu"
ELSEWHERE = "tests/cli/test_ask.py::test_multihop_models_from_the_command_line"
MUCH = "--lengths 8 9 --inputs 5 --no-heads"


def scores(outcome: Outcome) -> list[float]:
    return outcome.result.scores["positional_score"].tolist()


def measured(name: str):
    """The numbers of a table that is written beside the scores."""

    def look(outcome: Outcome) -> list[str]:
        tables = rs.open(outcome.folder / name).tables
        return [tables[table].to_json() for table in sorted(tables)]

    return look


def roles_are_found(outcome: Outcome) -> bool:
    return (outcome.folder / "roles" / "run.json").is_file() and (outcome.folder / "geometry").is_dir()


def a_sequence_of_ones_own_is_what_is_drawn(world: World) -> None:
    drawn = WITH_ROLES.replace(" --no-figures", "")
    refused = world.run(f"{drawn} --sequence 'a1 zz'")
    assert (refused.code, refused.problem.count("\n")) == (2, 1)
    assert "zz" in refused.problem
    assert not (refused.folder / "roles").exists()
    undrawn = world.run(f"{SCORED} --sequence 'a1 b2'")
    assert undrawn.code == 2
    assert "--sequence says what is drawn" in undrawn.problem


DYNAMICS: Table = {
    "source": Other(SPOKEN, SCORED, lambda o: every(o, "scores", "step"), [0, 3]),
    "task": (
        Effect(SPOKEN, "--task binding", scores),
        Refused(SCORED, "--task number", "not on the number task"),
    ),
    "queries": Effect(SCORED, "--queries path", lambda o: every(o, "scores", "queries"), ["path"]),
    "inputs": (
        Effect(SCORED, "--inputs 5", lambda o: every(o, "scores", "inputs"), [5]),
        Effect(WATCHED, "--inputs 5", lambda o: every(o, "scores", "inputs"), [5]),
    ),
    "roles": Effect(SCORED, "--roles", roles_are_found, expected=True),
    "sequence": (a_sequence_of_ones_own_is_what_is_drawn, "tests/analysis/test_roles.py::test_one_input_of_ones_own"),
    "seed": (
        Effect(SPOKEN, "--seed 1", scores),
        Effect(WITH_ROLES, "--seed 1", measured("roles")),
        Effect(WITH_ROLES, "--seed 1", measured("geometry")),
    ),
    "revisions": (
        Refused(SCORED, "--revisions step*", "revisions are branches and tags of a model on the hub"),
        "tests/cli/test_revisions.py::test_branches_of_a_model_on_the_hub",
    ),
    "most": (
        Effect(SCORED, "--most 1", lambda o: every(o, "scores", "step"), [3]),
        Effect(WATCHED, "--most 1", lambda o: every(o, "scores", "step"), [3]),
        "tests/cli/test_revisions.py::test_branches_of_a_model_on_the_hub",
    ),
    "out": Written(SCORED),
    "overwrite": Overwrites(SCORED, "--inputs 5"),
    "figures": Undrawn(SCORED, drawn="tests/cli/test_cli.py::test_train_then_dynamics_from_the_command_line"),
    "device": on_device(SCORED),
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing_along_training",
}  # fmt: skip


def asked(outcome: Outcome) -> int:
    """Inputs of the first length."""
    rows = outcome.result.accuracy
    return int(rows[rows["length"] == rows["length"].min()]["inputs"].sum())


def predicted(outcome: Outcome) -> list[str]:
    """What depends on the sequences: positions and gaps of the heads."""
    return outcome.result.tables["heads"].round(6).to_json()


FOLLOWED: Table = {
    "source": ELSEWHERE,
    "lengths": Effect(LENGTHS, MUCH, lambda o: every(o, "accuracy", "length"), [8, 9]),
    "inputs": Effect(LENGTHS, MUCH, asked, 5),
    "heads": Effect(LENGTHS, MUCH, lambda o: "heads" in o.result.tables, expected=False),
    "seed": Effect(LENGTHS, "--seed 1", predicted),
    "out": Written(LENGTHS),
    "overwrite": Overwrites(LENGTHS, "--lengths 7 --no-heads"),
    "figures": Undrawn(LENGTHS, drawn=ELSEWHERE),
    "device": on_device(LENGTHS),
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing_along_training",
}


def trained(world: World, name: str, line: str) -> None:
    """A training run under a name of its own."""
    found = world.run(line)
    assert found.code == 0, found.problem
    Path(world.place / name).symlink_to(found.folder)
