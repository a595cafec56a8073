"""The worked story says what its commands print."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

import rotoscope as rs
from tests.story import PAGE, PICTURES, ROOT, blocks, tell

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def alike(shown: str, said: str) -> bool:
    """The same words and the same numbers, up to one unit of the last digit shown."""
    ours, theirs = (NUMBER.sub("#", text).split() for text in (shown, said))
    pairs = list(zip(NUMBER.findall(shown), NUMBER.findall(said), strict=False))
    return ours == theirs and all(abs(float(a) - float(b)) < 1.5 * 10.0 ** -_digits(a) for a, b in pairs)


def _digits(number: str) -> int:
    return len(number.partition(".")[2])


def test_other_numbers_and_other_words_are_noticed() -> None:
    shown = "a head   0.98 carried 7"
    assert alike(shown, "a head 0.97 carried 7")
    assert not alike(shown, "a head 0.95 carried 7")
    assert not alike(shown, "a head 0.98 symbolic 7")
    assert not alike(shown, "a head 0.98 carried 7 8")


def test_every_question_of_the_story_has_an_answer() -> None:
    """Python that prints is followed by what it prints, and opens only runs that a command makes."""
    page = PAGE.read_text(encoding="utf-8")
    found = blocks(page)
    made = set(re.findall(r"--out (\S+)", page))
    for (language, block), (after, text) in itertools.pairwise(found):
        if language == "python":
            ast.parse(block)
            assert ("print(" in block) == (after == "text" and bool(text.strip())), block
            opened = re.findall(r'rs\.open\(f?"([^"{]+?)/?["{]', block)
            assert set(opened) <= made
    assert {name for name in PICTURES if f"images/{name}" in page} == set(PICTURES)
    assert all((ROOT / "docs" / "images" / name).is_file() for name in PICTURES)


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
def test_the_story_is_what_its_commands_print(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    told = list(tell(page, tmp_path))
    assert len(told) >= 10
    for shown, said in told:
        assert alike(shown, said), f"{shown}\nis now\n{said}"
    assert (tmp_path / PICTURES["story_plane.png"]).stat().st_size > 10_000
    assert rs.open(tmp_path / "runs" / "story").run.settings["task"] == "recall"
