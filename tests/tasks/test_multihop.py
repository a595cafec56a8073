"""The multi-hop sequences: one path, balance, and rows that depend on nothing but the seed and their number."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rotoscope as rs
from rotoscope.errors import TaskError
from rotoscope.tasks.multihop import MULTIHOP, SOLVERS, pointed_at, solve
from rotoscope.tasks.prompt import Dice

BOTH = pytest.mark.parametrize("task", ["number", "letter"])


@BOTH
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    hops=st.integers(1, 5),
    target=st.integers(1, 10),
    spare=st.integers(0, 6),
    front=st.integers(0, 30),
)
def test_every_sequence_has_exactly_its_path(
    task: str, seed: int, hops: int, target: int, spare: int, front: int
) -> None:
    window = max(hops - 1, 0) + spare
    made = MULTIHOP[task](3 * hops, hops=hops, target=target, window=window, front=front, seed=seed)
    for k, one in enumerate(made):
        assert SOLVERS[task](one.tokens) == one.path  # the solver raises where there is a second match
        assert one.tokens[one.path[-1]] == one.answer
        assert one.hops == k % hops + 1 == len(one.path) - 1
        assert len(one.tokens) == front + target + window + 1
        assert front <= one.path[-1] < front + target
        assert all(front + target <= p for p in one.path[:-1])


@BOTH
def test_token_strings_are_those_of_the_papers(task: str) -> None:
    made = MULTIHOP[task](1)
    words = made.vocabulary
    if task == "number":
        assert words[:2] == ("a", "b")
        assert words[25:28] == ("z", "aa", "ab")
        assert words[119:137] == ("dp", *(str(t) for t in range(1, 17)), "<pad>")
    else:
        assert words[:9] == ("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "b1")
        assert words[64:67] == ("aa", "ab", "ac")
        assert len(words) == 129


@BOTH
def test_hops_answers_and_positions_are_balanced(task: str) -> None:
    values = 120 if task == "number" else 64
    made = MULTIHOP[task](4 * values * 8)
    for hops in (1, 2, 3, 4):
        rows = made.hops == hops
        pairs = made.answer[rows] * 8 + made.path[rows, hops]
        assert torch.equal(pairs.bincount(minlength=values * 8), torch.ones(values * 8, dtype=torch.long))


@BOTH
def test_a_small_part_is_balanced_too(task: str) -> None:
    part = MULTIHOP[task](2400, first=432_000)
    for hops in (1, 2, 3, 4):
        rows = part.hops == hops
        for counts in (part.answer[rows].bincount(), part.path[rows, hops].bincount()):
            assert int(counts.max() - counts.min()) <= 1


@BOTH
@pytest.mark.parametrize("count", [4, 24, 60, 100, 402, 5000])
def test_balanced_rows_come_from_all_over_a_cycle(task: str, count: int) -> None:
    values = 120 if task == "number" else 64
    made = MULTIHOP[task](count, first=2_000_000, balanced=True)
    assert len({tuple(row) for row in made.tokens.tolist()}) == len(made) == count
    for hops in (1, 2, 3, 4):
        rows = made.hops == hops
        assert abs(int(rows.sum()) - count / 4) < 1
        for counts in (
            made.answer[rows].bincount(minlength=values),
            made.path[rows, hops].bincount(minlength=8),
        ):
            assert int(counts.max() - counts.min()) <= 1
        tenths = (made.answer[rows] * 8 // values).bincount(minlength=8)  # letters of the letter task
        assert int(tenths.max() - tenths.min()) <= 2
    assert MULTIHOP[task](count, first=2_000_000, balanced=True, front=9).answer.equal(made.answer)
    assert not MULTIHOP[task](count, first=2_000_000).answer.equal(made.answer)


def test_balanced_rows_are_rows_of_the_series() -> None:
    series = MULTIHOP["number"](2000, letters=3, target=2, window=3, first=100)
    known = {tuple(row) for row in series.tokens.tolist()}
    made = MULTIHOP["number"](30, letters=3, target=2, window=3, first=100, balanced=True)
    assert {tuple(row) for row in made.tokens.tolist()} <= known


@BOTH
def test_rows_do_not_depend_on_how_many_are_made(task: str) -> None:
    whole = MULTIHOP[task](400, seed=5)
    for first, count in ((0, 1), (7, 30), (399, 1)):
        part = MULTIHOP[task](count, seed=5, first=first)
        assert torch.equal(part.tokens, whole.tokens[first : first + count])
        assert torch.equal(part.path, whole.path[first : first + count])
    assert not torch.equal(MULTIHOP[task](400, seed=6).tokens, whole.tokens)
    assert len({tuple(row) for row in whole.tokens.tolist()}) == 400


@BOTH
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_makes_the_same_sequences(task: str) -> None:
    here, on_gpu = MULTIHOP[task](1000, seed=3), MULTIHOP[task](1000, seed=3, device="cuda")
    assert torch.equal(here.tokens, on_gpu.tokens.cpu())


def test_dice_are_uniform_and_independent() -> None:
    dice = Dice(0, torch.arange(100_000))
    first, second = dice.below(10, 2).T
    for counts in ((first * 10 + second).bincount(minlength=100),):
        assert abs(float((counts / 1000 - 1).abs().max())) < 0.15
    again = Dice(0, torch.arange(100_000))
    assert torch.equal(again.below(10, 2)[:, 0], first)
    assert not torch.equal(again.below(10, 2)[:, 0], first)  # the next stream


@BOTH
def test_pointers_agree_with_a_plain_search(task: str) -> None:
    made = MULTIHOP[task](200)
    points = pointed_at(made)
    for k, one in enumerate(made):
        for here, target in itertools.pairwise(one.path):
            assert int(points[k, here]) == target
        for p, token in enumerate(one.tokens):
            if task == "number":
                expected = p - int(token) if token.isdigit() else p
                expected = expected if expected >= 0 else -1
            elif token[1:].isdigit():
                expected = p
            else:
                found = [q for q in range(p) if one.tokens[q][0] == token[1]]
                expected = found[0] if len(found) == 1 else -1
            assert int(points[k, p]) == expected


def test_marks_of_the_path() -> None:
    made = rs.tasks.letter(100)
    for k, one in enumerate(made):
        assert made.on_path[k].nonzero()[:, 0].tolist() == sorted(one.path[:-1])


def test_prompts_can_be_profiled_as_they_are() -> None:
    made = rs.tasks.number(5)
    prompts = made.prompts()
    assert [p.tokens for p in prompts] == [tuple(row) for row in made.tokens.tolist()]
    assert prompts[3].answers == (int(made.answer[3]),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rs.tasks.number(10, hops=4, window=2), "window of at least 3"),
        (lambda: rs.tasks.letter(10, alphabet=4), "found 4 letters"),
        (lambda: rs.tasks.letter(10, alphabet=30), "at most 26"),
        (lambda: rs.tasks.number(10, letters=0), "letters must lie"),
        (lambda: rs.tasks.number(0), "at least 1"),
        (lambda: rs.tasks.number(10, hops=(2, 2)), "different positive numbers"),
        (lambda: rs.tasks.number(10, hops=0), "positive number"),
        (lambda: rs.tasks.letter(10, digits=0), "digits"),
    ],
)
def test_impossible_sizes_are_named(make, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make()


def test_a_sequence_of_ones_own() -> None:
    assert solve("number", ["a", "b", "1", "2"]).answer == "b"
    assert solve("letter", ["a1", "b2", "ca", "dc"]).path == (3, 2, 0)
