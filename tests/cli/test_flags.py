"""Every flag of every command changes what it should, and none is without such a test."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from rotoscope import settings
from rotoscope.cli import COMMANDS
from rotoscope.cli.command import flags
from tests.cli.flags import (
    ask,
    canonical,
    depths,
    gate,
    multihop,
    others,
    plan,
    profile,
    sweep,
    train,
)
from tests.cli.flags.effect import Table, World
from tests.papers.test_ledger import asked

TABLES: dict[str, Table] = {
    "profile": profile.FLAGS,
    "depths": depths.FLAGS,
    "gate": gate.FLAGS,
    "plan": plan.FLAGS,
    "theory": others.THEORY,
    "canonical": canonical.FLAGS,
    "train": train.TRAIN,
    "dynamics": multihop.DYNAMICS,
    "lengths": multihop.FOLLOWED,
    "ask": ask.FLAGS,
    "sweep": sweep.FLAGS,
    "reproduce": others.REPRODUCE,
    "report": others.REPORT,
    "serve": others.SERVE,
    "doctor": others.DOCTOR,
}
EVERY = [(command, flag) for command, table in TABLES.items() for flag in table]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("flags"))
    multihop.trained(made, "trained", train.LETTER)
    asked(made.place / "answers", {12: 0.9, 16: 0.8, 300: 0.1}, {12: 0.9, 16: 0.9, 300: 0.5})
    return made


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not told where to write must not write here."""
    monkeypatch.chdir(tmp_path)


def named(test: str) -> None:
    """A test elsewhere must be there."""
    file, function = test.split("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    assert callable(getattr(module, function))


@pytest.mark.parametrize(("command", "flag"), EVERY, ids=[f"{command} {flag}" for command, flag in EVERY])
def test_a_flag_changes_what_it_should(command: str, flag: str, world: World) -> None:
    checks = TABLES[command][flag]
    for check in checks if isinstance(checks, tuple) else (checks,):
        for test in (check, getattr(check, "drawn", None)):
            if isinstance(test, str):
                named(test)
        if not isinstance(check, str):
            getattr(check, "check", check)(world)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_tried(command: str) -> None:
    assert sorted(TABLES[command]) == sorted(flags(COMMANDS[command]))


@pytest.mark.parametrize("kind", [kind for kind in vars(settings).values() if inspect.isclass(kind)])
def test_every_setting_is_a_flag_or_said_to_be_for_python(kind: type) -> None:
    """So that a setting which no command offers cannot go untried."""
    offered = {flag for run in COMMANDS.values() for flag in flags(run)}
    assert issubclass(kind, settings.Settings)
    assert set(kind.names()) - set(kind.python_only) <= offered
    assert set(kind.python_only) <= set(kind.names())


MEANINGLESS = {
    f"{train.NUMBER} --alphabet 3": "--alphabet means something for letter and either only, not for number",
    f"{train.LETTER} --letters 5": "--letters means something for number only, not for letter",
    f"{profile.REPEATS} --pairs 3": "--pairs means something for binding and groups and lookup only, not for repeats",
    f"{gate.ONE} --bands 2": "--bands means something for a sweep only, not for one gate",
    f"{gate.SWEEP} --heads 0:1": "--heads means something for one gate only, not for a sweep",
    f"{ask.HERE} --dry-run": "--dry-run means something for an endpoint only",
}


@pytest.mark.parametrize(
    "line", MEANINGLESS, ids=lambda line: " ".join([line.split()[0], line.split("--")[-1]])
)
def test_a_flag_that_means_nothing_is_refused(line: str, world: World) -> None:
    found = world.run(line)
    assert (found.code, found.problem.count("\n")) == (2, 1)
    assert MEANINGLESS[line] in found.problem
    assert not found.folder.exists()
