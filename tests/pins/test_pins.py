"""Nothing that is pinned has changed, and a change would be noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.pins import compare
from tests.pins.cases import CASES, ROOT, Case
from tests.pins.checking import check
from tests.pins.compare import Table, Tolerance

FRAME = pd.DataFrame(
    {
        "layer": [0, 0, 1],
        "head": [0, 1, 0],
        "score": [0.5, float("nan"), 0.25],
        "head_class": ["mixed", None, "positional"],
        "found": ["0.29 [0.1, 0.4] of 160", "none", "off by 4e-16"],
    }
)


def compared(frame: pd.DataFrame) -> list[str]:
    """What is said of a table where `FRAME` is pinned."""
    keys, values, sentences = ("layer", "head"), ("score", "head_class"), ("found",)
    golden = {"heads": Table(FRAME, keys, values, sentences).columns()}
    return compare.differences(golden, {"heads": Table(frame, keys, values, sentences)}, Tolerance(1e-4, 0.0))


def changed(column: str, row: int, value: object) -> pd.DataFrame:
    frame = FRAME.astype({column: object})
    frame.loc[row, column] = value
    return frame


def test_the_same_table_is_equal_in_any_order() -> None:
    assert compared(FRAME) == []
    assert compared(FRAME.iloc[::-1]) == []
    assert compared(changed("score", 0, 0.50009)) == []


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (changed("score", 2, 0.26), "heads.score: 1 of 3 rows differ, most at layer=1 head=0: 0.25 pinned, 0.26 now (difference 0.01)"),
        (changed("score", 0, float("nan")), "most at layer=0 head=0: 0.5 pinned, nan now"),
        (changed("score", 1, 0.1), "most at layer=0 head=1: nan pinned, 0.1 now"),
        (changed("head_class", 0, "uniform"), "heads.head_class: 1 of 3 rows differ, most at layer=0 head=0: 'mixed' pinned, 'uniform' now"),
        (FRAME.rename(columns={"score": "symbolic"}), "heads: column 'score' is missing; the table has layer, head, symbolic"),
        (FRAME.iloc[:2], "heads: 1 of 3 rows are missing, such as layer=1 head=0"),
        (pd.concat([FRAME, FRAME.iloc[:1].assign(layer=7)]), "heads: 1 rows are new, such as layer=7 head=0"),
        (pd.concat([FRAME, FRAME.iloc[:1]]), "heads: several rows have one key (layer, head)"),
        (changed("found", 0, "0.31 [0.1, 0.4] of 160"), "heads.found: 1 of 3 rows differ"),
        (changed("found", 0, "0.29 [0.1, 0.4] of 161"), "heads.found: 1 of 3 rows differ"),
        (changed("found", 1, "1 head"), "heads.found: 1 of 3 rows differ"),
    ],
)  # fmt: skip
def test_a_change_is_named(frame: pd.DataFrame, sentence: str) -> None:
    (found,) = compared(frame)
    assert sentence in found


@pytest.mark.parametrize("said", ["a share of 0.29 (0.1 to 0.4) among 160", "0.30 [0.1, 0.4] of 160"])
def test_words_and_the_last_printed_digit_may_change(said: str) -> None:
    assert compared(changed("found", 0, said)) == []
    assert compared(changed("found", 2, "off by 9e-16")) == []


def test_tables_that_come_or_go_are_named() -> None:
    table = Table(FRAME, ("layer", "head"), ("score",))
    golden = {"heads": table.columns()}
    assert compare.differences(golden, {}, Tolerance()) == ["table 'heads' is missing"]
    assert compare.differences({}, {"heads": table}, Tolerance()) == [
        "table 'heads' is new: pin it with --write"
    ]


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "GOLDEN", tmp_path)
    tables = {"heads": Table(FRAME, ("layer", "head"), ("score", "head_class"))}
    compare.write("case", tables)
    assert compare.differences(compare.read("case"), tables, Tolerance(0.0, 0.0)) == []
    with pytest.raises(KeyError, match="no column entropy"):
        compare.write("case", {"heads": Table(FRAME, ("layer",), ("entropy",))})


def test_every_case_is_pinned() -> None:
    assert {file.stem for file in compare.GOLDEN.glob("*.json")} == set(CASES)
    assert sum(file.stat().st_size for file in compare.GOLDEN.iterdir()) < 1_500_000


def test_a_changed_number_of_a_case_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, on the quickest case."""
    pinned = compare.golden_file("tensors").read_text(encoding="utf-8")
    monkeypatch.setattr(compare, "GOLDEN", tmp_path)
    assert check("tensors", rewrite=True).word == "written"
    assert compare.golden_file("tensors").read_text(encoding="utf-8") == pinned
    assert check("tensors", rewrite=False).word == "equal"
    golden = compare.read("tensors")
    golden["exclusion"]["value"][3] += 1e-3
    compare.golden_file("tensors").write_text(json.dumps(golden), encoding="utf-8")
    outcome = check("tensors", rewrite=False)
    assert outcome.word == "differs"
    assert outcome.sentences[0].startswith("exclusion.value: 1 of 18 rows differ")


def test_a_case_that_breaks_is_said_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Path) -> compare.Tables:
        raise ValueError("no such column")

    monkeypatch.setitem(CASES, "tensors", Case(breaks))
    outcome = check("tensors", rewrite=False)
    assert outcome.word == "failed"
    assert outcome.sentences[-1] == "ValueError: no such column"


@pytest.mark.slow
def test_nothing_that_is_pinned_has_changed() -> None:
    """In processes of their own, as `make pins` does it: without the tests' checks of shapes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pins"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
