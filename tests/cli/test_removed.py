"""A removed command or flag is answered with what to use instead."""

from __future__ import annotations

import pytest

from rotoscope.cli import commands, main, removed

LINES = [
    *((command, answer) for command, answer in removed.COMMANDS.items()),
    *((f"{flag} 1", answer) for flag, answer in removed.FLAGS.items()),
]


@pytest.mark.parametrize(("line", "answer"), LINES, ids=[line for line, _ in LINES])
def test_the_answer_names_what_to_use(line: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    complaint = capsys.readouterr().err
    assert ended.value.code == 2
    assert complaint.count("\n") == 1
    assert answer in complaint


def test_only_what_is_gone_is_listed() -> None:
    assert not removed.COMMANDS.keys() & commands().keys()
