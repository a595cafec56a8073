"""Which step a name means, and which of many checkpoints are looked at."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rotoscope.errors import ModelError
from rotoscope.models.hub import (
    Checkpoint,
    find_checkpoints,
    in_order,
    log_spaced,
    named_step,
    named_steps,
)

PYTHIA = [0, *(2**k for k in range(10)), *range(1000, 144_000, 1000)]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500), ("step-0", 0), ("global_step500", 500), ("global_step-7", 7), ("step_12", 12),
        ("step143000", 143_000), ("step1000-tokens4B", 1000), ("step651581-tokens2732B", 651_581),
        ("stage1-step150-tokens1B", 150), ("stage2-ingredient3-step11000-tokens23B", 11_000), ("step-125000", 125_000),
        ("stage1-step-40000", 40_000), ("step5-tokens0.5B", 5),
        ("main", None), ("lc-4k-to-32k-step-4000", None), ("stage1", None), ("step", None), ("mystep5", None),
        ("step5-final", None), ("checkpoint-last", None), ("", None),
    ],
)  # fmt: skip
def test_the_step_that_a_name_means(name: str, step: int | None) -> None:
    assert named_step(name) == step


def test_stages_that_count_on_and_stages_that_begin_again() -> None:
    going_on = ["stage1-step-40000", "stage1-step-80000", "stage2-step-120000", "main"]
    assert named_steps(going_on) == ({name: int(name.rsplit("-")[-1]) for name in going_on[:3]}, [])
    again = ["stage2-step5-tokens1B", "stage1-step100-tokens9B", "stage1-step50-tokens4B", "stage3-step7"]
    steps, said = named_steps(again)
    assert steps == {
        "stage1-step50-tokens4B": 50,
        "stage1-step100-tokens9B": 100,
        "stage2-step5-tokens1B": 105,
        "stage3-step7": 112,
    }
    assert said[0].startswith("the steps of stage 2 begin again at 5: they count on from 100")
    assert len(said) == 2


def test_two_of_one_step_are_refused() -> None:
    names = ["stage2-ingredient1-step10", "stage2-ingredient2-step10", "stage2-ingredient1-step5"]
    found = [Checkpoint(step, name, name) for name, step in named_steps(names)[0].items()]
    with pytest.raises(
        ModelError, match="stage2-ingredient1-step10 and stage2-ingredient2-step10 of org/x are both"
    ):
        in_order(found, "org/x")
    assert [one.step for one in in_order(found[::2], "org/x")] == [5, 10]


def test_folders_go_through_the_same_names(tmp_path: Path) -> None:
    for name in ("stage1-step-10", "stage2-step-4", "step20-tokens1B", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    (tmp_path / "step-99").mkdir()
    found = find_checkpoints(tmp_path)
    assert [(step, place.name) for step, place in found.items()] == [
        (20, "step20-tokens1B"), (30, "stage1-step-10"), (34, "stage2-step-4"),
    ]  # fmt: skip


def chosen(steps: list[int], most: int | None) -> list[int]:
    return [one.step for one in log_spaced([Checkpoint(step, "", "") for step in steps], most)]


def test_log_spaced() -> None:
    assert chosen(PYTHIA, None) == PYTHIA
    assert chosen(PYTHIA, 999) == PYTHIA
    assert chosen(PYTHIA, 1) == [143_000]
    assert chosen(PYTHIA, 2) == [0, 143_000]
    twelve = chosen(PYTHIA, 12)
    assert len(twelve) == 12
    assert (twelve[0], twelve[-1]) == (0, 143_000)
    ratios = [(b + 1) / (a + 1) for a, b in itertools.pairwise(twelve)]
    assert max(ratios) < 9  # twelve even ones would be 3 apart
    for most in range(1, 12):  # what was fetched for fewer is used for more
        assert set(chosen(PYTHIA, most)) < set(chosen(PYTHIA, most + 1))
