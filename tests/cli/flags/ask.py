"""`rotoscope ask`."""

from __future__ import annotations

import re

from tests.cli.flags.effect import (
    Effect,
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
    once,
)  # fmt: skip
from tests.server import replied, scripted

QUESTIONS = "--task letter --lengths 5 --runs 1 --questions 1 --template {template} --no-figures"
HERE = f"ask {{talker}} {QUESTIONS} --device cpu"
MUCH = "--lengths 6 7 --runs 2 --questions 3"
"""Flags whose effects are seen in different places."""
DRY = f"ask --endpoint http://localhost:1/v1 --model m {QUESTIONS} --dry-run"
ENDPOINTS = "tests/analysis/test_endpoints.py"


def cost(outcome: Outcome) -> float | None:
    found = re.search(r"at most about ([\d.]+) at these prices", " ".join(outcome.told.split()))
    return None if found is None else float(found[1])


def tokens(outcome: Outcome) -> list[int]:
    return outcome.result.answers["prompt_tokens"].tolist()


def another_model_is_looked_for(world: World) -> None:
    found = world.run(HERE.replace("{talker}", "nowhere"))
    assert found.code == 2
    assert "no model called 'nowhere'" in found.problem


@once
def server_is_asked(world: World) -> None:
    """The endpoint is asked for the model, with the body, and not at all in a dry run."""
    with scripted(lambda number, request: replied("a1")) as server:
        line = f"ask --endpoint {server.url} --model some/name {QUESTIONS}"
        dry = world.run(f"{line} --dry-run")
        assert dry.code == 0, dry.problem
        assert "nothing was sent" in dry.told
        assert not server.asked
        assert not dry.folder.exists()
        found = world.run(f"{line} --body '{{\"max_completion_tokens\": 3}}'")
        assert found.code == 0, found.problem
    assert [(one["model"], one["max_completion_tokens"]) for one in server.asked] == [("some/name", 3)]
    assert found.result.answers["answered"].tolist() == ["a1"]


FLAGS: Table = {
    "model": (another_model_is_looked_for, server_is_asked),
    "endpoint": server_is_asked,
    "task": Effect(HERE, "--task number", lambda o: every(o, "answers", "task"), ["number"]),
    "lengths": Effect(HERE, MUCH, lambda o: every(o, "answers", "length"), [6, 7]),
    "runs": Effect(HERE, MUCH, lambda o: every(o, "answers", "run"), [0, 1]),
    "questions": Effect(HERE, MUCH, lambda o: every(o, "answers", "question"), [0, 1, 2]),
    "template": Effect(HERE, "--template {wordy}", tokens),
    "seed": Effect(HERE, "--seed 1", lambda o: (tokens(o), o.result.answers["expected"].tolist())),
    "chat": Effect(HERE, "--no-chat", lambda o: tokens(o)[0]),
    "body": server_is_asked,
    "concurrency": (
        Refused(DRY, "--concurrency 0", "concurrency must be at least 1, found 0"), f"{ENDPOINTS}::test_concurrency_is_a_limit",
    ),
    "price_in": Effect(DRY, "--price-in 1000000", cost),
    "price_out": Effect(DRY, "--price-out 1000000", cost, 16.0),
    "dry_run": server_is_asked,
    "out": Written(HERE),
    "overwrite": Overwrites(HERE, "--questions 2"),
    "figures": Undrawn(HERE, drawn="tests/cli/test_ask.py::test_local_model"),
    "device": on_device(HERE),
    "dtype": Effect(HERE, "--dtype bfloat16", lambda o: o.result.run.subject.dtype, "bfloat16"),
    "device_map": half_on_disk(HERE, "{talkers}"),
    "rope": "tests/cli/test_rope.py::test_rope",
    "allow_missing": "tests/cli/test_loading.py::test_allow_missing",
}  # fmt: skip
