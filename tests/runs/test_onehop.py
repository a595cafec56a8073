from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import binomtest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.experiments.ask.result import (
    TABLE_3,
    OneHopRun,
    answer_row,
    answers_table,
    beside_table_3,
    screening,
    wilson,
)
from rotoscope.runs.record import RunRecord
from rotoscope.runs.run import Journal
from rotoscope.tasks.onehop import OneHopPlan

PLAN = OneHopPlan(lengths=(16, 12), runs=2, questions=4)


def made(wrong: set[tuple[str, int, int, int]] = frozenset(), long: int = 99) -> OneHopRun:
    """A model that knows every answer, but for the given questions and for lengths beyond its context."""
    rows = []
    for run, question in PLAN:
        key = (question.task, question.length, run, question.number)
        answer = "?" if key in wrong else question.answer
        too_long = question.length > long
        rows.append(
            answer_row(run, question, "" if too_long else answer, "too long" if too_long else "answered")
        )
    return OneHopRun(RunRecord(settings={"model": "knows"}), {"answers": answers_table(reversed(rows))})


def cell(run: OneHopRun, task: str, length: int) -> pd.Series:
    found = run.accuracy()
    return found[(found["task"] == task) & (found["length"] == length)].iloc[0]


@pytest.mark.parametrize(("right", "count"), [(0, 20), (20, 20), (7, 50), (1, 1)])
def test_wilson(right: int, count: int) -> None:
    known = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right, count) == pytest.approx((known.low, known.high), abs=1e-6)
    assert all(math.isnan(end) for end in wilson(0, 0))


def test_accuracy_over_runs() -> None:
    run = made({("number", 12, 0, 1), ("number", 12, 0, 2)})
    row = cell(run, "number", 12)
    assert (row["mean"], row["runs"], row["questions"]) == (0.75, 2, 8)
    assert row["std"] == pytest.approx(pd.Series([0.5, 1.0]).std())
    assert (row["low"], row["high"]) == wilson(6, 8)
    sizes = [len(q.candidates) for _, q in PLAN if (q.task, q.length) == ("number", 12)]
    assert row["chance"] == pytest.approx(sum(1 / size for size in sizes) / 8)
    assert cell(run, "letter", 12)["mean"] == 1
    assert set(run.accuracy()["scoring"]) == {"free"}


def test_several_words_are_wrong_and_counted() -> None:
    run, question = next(iter(PLAN))
    assert not answer_row(run, question, f"it is {question.answer}", "not single")["correct"]
    assert answer_row(run, question, question.answer, "answered")["correct"]


@pytest.mark.parametrize("status", ["not single", "malformed", "too long"])
def test_only_an_answer_can_be_right(status: str) -> None:
    """The right word does not help where it was not the answer."""
    run, question = next(iter(PLAN))
    assert answer_row(run, question, question.answer, "answered")["correct"]
    assert not answer_row(run, question, question.answer, status)["correct"]
    assert not answer_row(run, question, "?", "answered")["correct"]


def test_too_long_is_counted_apart() -> None:
    run = made(long=12)
    assert (cell(run, "letter", 16)["questions"], cell(run, "letter", 16)["too_long"]) == (0, 8)
    assert math.isnan(cell(run, "letter", 16)["mean"])
    assert screening(run)["selected"] is None
    counts = run.statuses().set_index(["task", "length"])
    assert counts.loc[("letter", 16), "too long"] == 8
    assert counts.loc[("letter", 12), "answered"] == 8


def test_screening_rule() -> None:
    assert screening(made())["selected"] is True
    one = screening(made({("letter", 16, 0, 0)}))
    assert (one["selected"], one["accuracy"], one["questions"]) == (True, 0.875, 8)
    two = screening(made({("letter", 16, 0, 0), ("letter", 16, 1, 3)}))
    assert (two["selected"], two["accuracy"]) == (False, 0.75)
    other_task = {("number", 16, run, k) for run in range(2) for k in range(4)}
    assert screening(made(other_task))["selected"] is True


def test_beside_the_paper() -> None:
    table = beside_table_3(made()).set_index(["task", "length"])
    assert table.loc[("number", 12), ["GPT 5.4", "GPT 5.5", "Sonnet 3.7"]].tolist() == [0.98, 0.55, 0.40]
    assert table.loc[("letter", 16), ["GPT 5.4", "GPT 5.5", "Sonnet 3.7"]].tolist() == [0.98, 0.95, 0.89]
    assert len(TABLE_3) == 20


def test_saved_and_opened(tmp_path: Path) -> None:
    run = made({("number", 12, 0, 1)})
    run.save(tmp_path / "run")
    opened = rs.open(tmp_path / "run")
    pd.testing.assert_frame_equal(opened.accuracy(), run.accuracy())
    assert repr(opened) == "OneHopRun('knows': 32 questions, lengths [12, 16])"


def test_journal_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    Journal(path).append({"k": 1})
    with path.open("a") as file:
        file.write('{"k": 2, "half')
    again = Journal(path)
    assert again.rows == [{"k": 1}]
    again.append({"k": 2})
    assert [json.loads(line)["k"] for line in path.read_text().splitlines()] == [1, 2]
    path.write_text(path.read_text().replace('"k": 2', '"k": 3'))
    with pytest.raises(RunError, match=r"line 2 .*not what was written"):
        Journal(path)
    path.write_text('{"k": 1}\n{oops}\n{"k": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        Journal(path)


def test_journal_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    journal = Journal(path)
    journal.append({"k": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rotoscope.runs.run.os.fsync", full)
        with pytest.raises(RunError, match="the disk is full"):
            journal.append({"k": 2})
    assert Journal(path).rows == [{"k": 1}]
    assert len(journal) == 1
