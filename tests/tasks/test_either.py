"""The task that can be solved either way: in training order the asked letter says the place, shuffled only itself."""

from __future__ import annotations

import pytest
import torch

from rotoscope.errors import TaskError
from rotoscope.tasks.multihop import pointed_at, solve
from rotoscope.tasks.multihop_frames import either


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("front", [0, 5])
def test_every_sequence_has_one_answer(shuffled: bool, front: int) -> None:
    made = either(300, target=4, alphabet=3, digits=2, front=front, shuffled=shuffled, seed=7)
    assert all(
        solve("either", one.tokens) == one for one in made
    )  # the solver raises where there is a second match
    assert torch.equal(pointed_at(made)[:, -1], made.path[:, 1])
    groups = made.tokens[:, front:-1] // (3 * 2)  # whose place's letters stand where
    in_order = groups == torch.arange(4)
    assert bool(in_order.all()) == (not shuffled)
    assert torch.equal(groups.sort(1).values, torch.arange(4).expand(300, 4))
    if shuffled:
        assert in_order.double().mean() == pytest.approx(1 / 4, abs=0.06)
    said = [solve("either", one.tokens).answer for one in made]
    picked = [[token[-1] for token in one.tokens[:-1]].count(one.answer) / (front + 4) for one in made]
    assert {"1", "2"} == set(said)
    assert made.prompts().chance == pytest.approx(sum(picked) / 300)


def test_answers_and_their_places_are_balanced() -> None:
    made = either(4 * 3 * 2 * 5, target=4, alphabet=3, digits=2)
    places, counts = made.path[:, 1].unique(return_counts=True)
    assert places.tolist() == [0, 1, 2, 3]
    assert counts.unique().tolist() == [30]
    assert made.answer.unique(return_counts=True)[1].unique().tolist() == [60]


def test_rows_do_not_depend_on_how_many_are_made() -> None:
    assert torch.equal(either(20, seed=3).tokens[12:], either(8, seed=3, first=12).tokens)


def test_sizes_that_make_no_task_are_refused() -> None:
    with pytest.raises(TaskError, match="has 1 hop and a window of 0, found 2 and 0"):
        either(8, hops=2)
    with pytest.raises(TaskError, match="a target of 60 with 16 letters a place makes 960 letters"):
        either(8, target=60)
    with pytest.raises(TaskError, match="'b' at the end has 0 earlier matches instead of one"):
        solve("either", ["a1", "c2", "b"])
