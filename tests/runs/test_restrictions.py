"""What may be said of models with restricted heads, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.train.restrictions import Restrictions, restrictions
from rotoscope.lab.checkpoints import Training
from rotoscope.lab.settings import TrainSettings
from rotoscope.runs.record import RunRecord

TASKS = ("number", "letter")


def training(task: str, angles: str, seed: int, accuracy: Sequence[float], **changes: Any) -> Training:
    """A finished training with these accuracies by hops, and two heads: one positional, one symbolic."""
    watched = changes.pop("watched", True)
    settings = TrainSettings.preset("mini", task=task, angles=angles, seed=seed, **changes).stored()
    rows = [{"hops": k + 1, "accuracy": found, "inputs": 100} for k, found in enumerate(accuracy)]
    score = {"step": 600, "queries": "last", "tau": 1e-4, "swapped_mass": 1.0}
    heads = [
        {**score, "layer": 0, "head": 0, "positional_score": 1.0, "symbolic_score": 0.0},
        {**score, "layer": 1, "head": 0, "positional_score": 0.02, "symbolic_score": 0.98},
    ]
    tables = {"test": pd.DataFrame(rows), "metrics": pd.DataFrame(rows).assign(step=600)}
    return Training(
        RunRecord("training", settings), tables | ({"scores": pd.DataFrame(heads)} if watched else {})
    )


def restricted(tasks: Sequence[str] = TASKS, watched: bool = True) -> Restrictions:
    """Number fails at two hops with slow angles, letter with some fast ones."""
    found = {"all": (1.0, 0.99), "fast": (1.0, 0.97), "slow": (0.6, 0.2), "1-4": (0.99, 0.3)}
    other = {"slow": (1.0, 1.0)}
    return restrictions(
        [
            training(task, angles, seed, [a - 0.01 * seed for a in both], watched=watched)
            for task in tasks
            for angles, both in (found if task == "number" else found | other).items()
            for seed in range(3)
        ]
    )


def outcomes(found: Restrictions) -> dict[tuple[str, str, int], str]:
    rows = found.by_hops()
    return dict(
        zip(zip(rows["task"], rows["restriction"], rows["hops"], strict=True), rows["outcome"], strict=True)
    )


def test_what_fails_what_is_learned_and_what_lies_between() -> None:
    found = restricted()
    told = outcomes(found)
    assert told["number", "slow", 1] == "in between"
    assert told["number", "slow", 2] == told["letter", "1-4", 2] == "fails"
    assert told["number", "all", 1] == told["letter", "slow", 2] == "learned"
    first, *rest = found.sentences()
    assert first.startswith("number is learned with the angles fast (at least 0.95 in 3 seeds")
    assert rest[0].startswith(
        "number fails with the angles slow at 2 hops (at most 0.20 in 3 seeds, unrestricted 0.98, "
    )
    assert "chance 0.1" in rest[0]
    table = found.table().set_index(["task", "restriction"])
    assert table.loc[("number", "slow"), "hops_2"] == pytest.approx(0.19)
    assert table.loc[("number", "slow"), "hops_2_spread"] == pytest.approx(0.01)
    assert table.loc[("number", "slow"), ["positional_heads", "symbolic_heads"]].tolist() == [1.0, 1.0]
    assert table.loc[("number", "slow"), "positional_score"] == pytest.approx(0.51)


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (lambda runs: [run for run in runs if run.run.settings["seed"] == 0], "one seed"),
        (lambda runs: [run for run in runs if "angles" in run.run.settings], "nothing unrestricted"),
        (
            lambda runs: [run for run in runs if "angles" in run.run.settings] + runs[:1],
            "one unrestricted seed",
        ),
    ],
)
def test_nothing_is_claimed_on_too_little(spoiled: Any, why: str) -> None:
    runs = [training("number", a, s, [x]) for a, x in (("all", 1.0), ("slow", 0.1)) for s in range(3)]
    assert outcomes(restrictions(runs))["number", "slow", 1] == "fails"
    found = restrictions(spoiled(runs))
    assert outcomes(found)["number", "slow", 1] == "no claim", why
    assert found.sentences() == []


@pytest.mark.parametrize("accuracy", [1.0, 0.1])
def test_models_that_are_the_same_say_that_nothing_fails(accuracy: float) -> None:
    """Also where none of them has learned anything: that is not the restriction's doing."""
    runs = [training("letter", a, s, [accuracy] * 2) for a in ("all", "fast", "slow") for s in range(3)]
    found = restrictions(runs)
    assert "fails" not in set(outcomes(found).values())
    assert not any("fails" in sentence for sentence in found.sentences())


def test_one_seed_that_does_better_is_enough_to_claim_no_failure() -> None:
    runs = [training("number", "all", s, [1.0]) for s in range(3)]
    runs += [training("number", "slow", s, [0.6 if s == 2 else 0.1]) for s in range(3)]
    assert outcomes(restrictions(runs))["number", "slow", 1] == "in between"


def test_a_base_and_nope_layers_are_restrictions_too() -> None:
    runs = [training("number", "all", 0, [1.0]), training("number", "fast", 0, [1.0], base=500.0, nope=(0, 2))]
    assert restrictions(runs).table()["restriction"].tolist() == ["all", "fast, base 500, NoPE in 0 2"]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no training was given"),
        ([("all", 0, {}), ("all", 0, {})], "the training of number, all, 0 was given twice"),
        ([("all", 0, {}), ("fast", 0, {"steps": 700})], "the same steps, found 600 and 700"),
        ([("all", 0, {}), ("fast", 0, {"favour": "symbolic"})], "the same favour, found None and symbolic"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs: list[Any], message: str) -> None:
    made = [training("number", angles, seed, [1.0], **changes) for angles, seed, changes in runs]
    with pytest.raises(RotoscopeError, match=message):
        rs.experiments.restrictions(made)


def test_trainings_of_other_lengths_are_not_compared() -> None:
    trainings = [training("number", "all", 0, [1.0], steps=2), training("number", "slow", 0, [1.0], steps=3)]
    with pytest.raises(RotoscopeError, match="must have the same steps, found 2 and 3"):
        restrictions(trainings)
