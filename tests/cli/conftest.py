"""A command run in this process."""

from __future__ import annotations

import pytest

from rotoscope.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture):
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what fixtures printed
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call
