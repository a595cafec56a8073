"""`rotoscope plan context`: the flags that only this decision has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.flags.effect import Effect, Outcome, Refused, Table, World, every

CONTEXT = "plan context {model} --trained 32 --to 64 --sources repeats --scaling linear --no-figures"
WORDS = "plan context {model} --trained 32 --to 64 --sources text --scaling linear --asked 8 --no-figures"


def lengths(outcome: Outcome) -> list[int]:
    return every(outcome, "losses", "length")


def losses(outcome: Outcome) -> list[float]:
    return outcome.result.losses["loss"].tolist()


def loss_that_may_be_lost(world: World) -> None:
    """What a scaling may cost at training length stands in what was optimised."""
    found: Any = world.run(f"{CONTEXT} --worse 2.5")
    assert found.code == 0, found.problem
    assert "cost at most 2.5 at 32 tokens" in found.result.recommendation.optimised
    assert "cost at most 0.05" in world.run(CONTEXT).result.recommendation.optimised
    assert "cost at most 2.5" in Path(found.folder, "plan.json").read_text()


FLAGS: Table = {
    "to": (
        Effect(CONTEXT, "--to 96", lengths, [32, 64, 96]),
        Refused(CONTEXT, "--to 32", "32 (--to) need no scaling"),
    ),
    "scaling": Effect(
        CONTEXT, "--scaling yarn ntk", lambda o: every(o, "losses", "setting"), ["as it is", "ntk", "yarn"]
    ),
    "trained": Effect(CONTEXT, "--trained 48", lengths, [48, 64]),
    "lengths": (
        Effect(CONTEXT, "--lengths 40 50", lengths, [32, 40, 50, 64]),
        Refused(CONTEXT, "--lengths 400", "up to the one that is asked for, 64"),
    ),
    "asked": Effect(WORDS, "--asked 4", losses),
    "worse": loss_that_may_be_lost,
}
