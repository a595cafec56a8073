"""Progress: a bar for people, a line now and then for logs, silence where it is asked for."""

from __future__ import annotations

import sys

import pytest

from rotoscope.progress import EVERY_S, FIRST_S, progress_bar


def worked(seconds: list[float], total: float, show: bool | None = None) -> None:
    """Work that advances by one when the clock shows each of these times; it begins at 0."""
    times = iter([0.0, *seconds])
    with progress_bar("profiling", total, show, clock=lambda: next(times)) as bar:
        for _ in seconds:
            bar.advance()


def test_long_work_says_where_it_stands(capsys: pytest.CaptureFixture) -> None:
    worked([FIRST_S, FIRST_S + 1, FIRST_S + EVERY_S, 60, 61], 5)
    assert capsys.readouterr().err.splitlines() == [
        "profiling: 1/5 (20%), 0:00:40 left",
        "profiling: 3/5 (60%), 0:00:27 left",
        "profiling: 5/5 (100%), 0:00:00 left",
    ]


def test_short_work_says_nothing(capsys: pytest.CaptureFixture) -> None:
    worked([1, 2, FIRST_S - 1], 3)
    assert capsys.readouterr().err == ""


def test_silence_is_silent(capsys: pytest.CaptureFixture) -> None:
    worked([100, 200, 300], 3, show=False)
    assert capsys.readouterr() == ("", "")


def test_a_bar_where_a_person_is_looking(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    worked([100], 1)
    assert " left" not in capsys.readouterr().err
    worked([100], 1, show=True)
    assert "profiling" in capsys.readouterr().err
