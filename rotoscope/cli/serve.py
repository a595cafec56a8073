"""`rotoscope serve`: the runs of a folder in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

from rotoscope.cli.command import command
from rotoscope.progress import says_loading


@command
def serve(
    folder: Path = Path("runs"),
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
) -> int:
    """Show every run under a folder in a browser, those that are going on as they grow. Nothing is changed.

    Example: rotoscope serve runs

    Parameters
    ----------
    folder
        Where the runs are, up to three folders deep.
    port
        Default: 8765, or any free one where that is taken. 0: any free one.
    host
        Address to listen on. Any but 127.0.0.1 and localhost can be reached from other machines.
    """
    with says_loading():
        from rotoscope.report.server import serve as serve_runs

    try:
        serve_runs(folder, host, port, say=_print)
    except KeyboardInterrupt:
        _print("stopped")
    return 0


def _print(sentence: str) -> None:
    """At once, also into a pipe."""
    from rotoscope.cli.terminal import new_console, say

    say(new_console(), sentence, markup=False)
    sys.stdout.flush()
