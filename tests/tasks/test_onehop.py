from __future__ import annotations

import re

import pytest

from rotoscope.errors import TaskError
from rotoscope.tasks.onehop import LENGTHS, OneHopPlan, default_template, one_hop, read_answer


def solved(task: str, sequence: list[str], query: str) -> str:
    """The answer by another road than the one questions are made by."""
    if task == "number":
        return list(reversed(sequence))[int(query) - 1]
    matches = [item for item in sequence if item.startswith(query)]
    assert len(matches) == 1
    return matches[0]


@pytest.mark.parametrize("task", ["number", "letter"])
@pytest.mark.parametrize("length", [1, 12, 300])
def test_answers_are_right_and_among_the_candidates(task: str, length: int) -> None:
    for question in one_hop(task, length, 30):
        assert len(question.sequence) == length
        assert question.answer == solved(task, list(question.sequence), question.query)
        assert question.answer in question.candidates
        assert sorted(set(question.candidates)) == sorted(set(question.sequence))
        assert question.text.count(" ".join(question.sequence)) >= 1
        assert question.messages == [{"role": "user", "content": question.text}]


@pytest.mark.parametrize("task", ["number", "letter"])
def test_worked_examples_are_right(task: str) -> None:
    found = re.findall(r"Sequence: (.+)\n(?:Number|Letter): (.+)\nAnswer: (.+)", default_template(task))
    assert len(found) == 3
    for sequence, query, answer in found:
        assert answer == solved(task, sequence.split(), query)


@pytest.mark.parametrize("task", ["number", "letter"])
def test_questions_depend_on_seed_and_number_alone(task: str) -> None:
    many = one_hop(task, 24, 20, seed=3)
    assert one_hop(task, 24, 5, seed=3) == many[:5]
    assert one_hop(task, 24, 20, seed=4) != many
    assert len({question.sequence for question in many}) == 20


def test_every_place_is_asked_for() -> None:
    asked = [int(question.query) for question in one_hop("number", 12, 400)]
    assert set(asked) == set(range(1, 13))
    places = [q.sequence.index(q.answer) for q in one_hop("letter", 12, 400)]
    assert set(places) == set(range(12))
    repeats = one_hop("letter", 64, 20)
    assert all(len({item[0] for item in q.sequence}) < 27 and len(q.candidates) < 64 for q in repeats)


def test_own_template() -> None:
    mine = "{style} In [{sequence}], {query} back:"
    question = one_hop("number", 12, 1, template=mine)[0]
    assert question.text == f"{{style}} In [{' '.join(question.sequence)}], {question.query} back:"
    with pytest.raises(TaskError, match=r"no \{query\}"):
        one_hop("number", 12, 1, template="{sequence}")
    with pytest.raises(TaskError, match=r"no \{sequence\} and no \{query\}"):
        OneHopPlan(tasks=("letter",), template="nothing")
    with pytest.raises(TaskError, match="belongs to one task"):
        OneHopPlan(template=mine)


@pytest.mark.parametrize(
    ("text", "answer", "status"),
    [
        ("k3", "k3", "answered"),
        (' "K3". \n', "k3", "answered"),
        ("`k3.`", "k3", "answered"),
        ("“k”", "k", "answered"),
        ("The answer is k3", "the answer is k3", "not single"),
        ("k3\nbecause", "k3\nbecause", "not single"),
        ("", "", "malformed"),
        (" . ", "", "malformed"),
        (None, "", "malformed"),
    ],
)
def test_reading_an_answer(text: str | None, answer: str, status: str) -> None:
    assert read_answer(text) == (answer, status)


def test_plan() -> None:
    plan = OneHopPlan(lengths=(12, 16), runs=2, questions=3, seed=5)
    asked = list(plan)
    assert len(asked) == len(plan) == 24
    keys = {(q.task, q.length, run, q.number) for run, q in asked}
    assert len(keys) == 24
    second = [q for run, q in asked if run == 1 and q.task == "letter" and q.length == 16]
    assert tuple(second) == one_hop("letter", 16, 3, seed=6)
    assert OneHopPlan().lengths == LENGTHS


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": ("words",)},
        {"tasks": ()},
        {"lengths": ()},
        {"lengths": (0,)},
        {"lengths": (12, 12)},
        {"runs": 0},
        {"questions": 0},
    ],
)
def test_wrong_plans(wrong: dict) -> None:
    with pytest.raises(TaskError):
        OneHopPlan(**wrong)
