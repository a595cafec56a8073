"""The report: one page about one run or two, or a site about many, to read in a browser, to send and to keep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rotoscope.command import command
from rotoscope.errors import RotoscopeError
from rotoscope.lazy import attach
from rotoscope.progress import progress_bar, says_loading

if TYPE_CHECKING:
    from rotoscope.experiments.page_data import PAGE as PAGE
    from rotoscope.report.page import render_page as render_page
    from rotoscope.report.page import run_payload as run_payload
    from rotoscope.report.page import write_page as write_page
    from rotoscope.report.page import write_report as write_report
    from rotoscope.report.site import write_site as write_site


def report(
    *runs: Path,
    out: Path | None = None,
    site: Path | None = None,
    overwrite: bool = False,
) -> int:
    """Write a run as one HTML page that works offline; of two, the heads are compared; of many, a folder of pages.

    Example: rotoscope report runs/demo

    Parameters
    ----------
    runs
        A run folder, of any kind, or two; of a run that is being written, what there is so far. With --site: run folders, or
        folders of runs, up to three folders deep.
    out
        The file. Default: RUN/report.html, which is replaced where it is there already.
    site
        Write a folder that any web space can serve: the list of runs, a page for each, any two compared.
    overwrite
        Replace the file that --out names, or the site. What is no site, or holds anything else, is never replaced.
    """
    if site is not None:
        if out is not None:
            raise RotoscopeError("--out is for one page, and --site writes a folder: leave it out")
        return _site(runs or (Path("runs"),), site, overwrite)
    if not 1 <= len(runs) <= 2:
        raise RotoscopeError(
            f"a page is about one run or two, not {len(runs)}; --site DIR writes a page for each run"
        )
    with says_loading():
        from rich.markup import escape

        from rotoscope.experiments.page_data import PAGE
        from rotoscope.report.page import payloads_of, side_of, write_page
        from rotoscope.terminal import new_console, say, show_next

    file = out or runs[0] / "report.html"
    if out is not None:
        check_file_out(out, overwrite=overwrite)
    with progress_bar("reading the run", None):
        payloads = payloads_of([side_of(run, PAGE // len(runs)) for run in runs])
    write_page(file, payloads)
    console = new_console()
    for payload in payloads:
        for problem in (*payload["running"], *payload["problems"]):
            say(console, f"[yellow]{escape(payload['name'])}:[/] {escape(problem)}")
    say(console, f"{file}: open it in any browser, no server needed", markup=False)
    show_next(console, ["serve", runs[0].parent])
    return 0


def _site(runs: tuple[Path, ...], site: Path, overwrite: bool) -> int:
    with says_loading():
        from rotoscope.report.site import write_site
        from rotoscope.terminal import new_console, say, show_next

    write_site(*runs, site=site, overwrite=overwrite)
    console = new_console()
    pages = len(list(site.glob("run-*.html")))
    say(console, f"wrote {site}: {pages} run{'' if pages == 1 else 's'}", markup=False)
    say(console, f"put the folder on any web space, or open {site / 'index.html'} in a browser", markup=False)
    show_next(console, ["serve", runs[0]])
    return 0


def check_file_out(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file that nobody said may be replaced."""
    if out.exists() and not overwrite:
        raise RotoscopeError(f"{out} is there already; choose another --out, or --overwrite to replace it")


# `rotoscope serve`: the runs of a folder in a browser.


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
    from rotoscope.terminal import new_console, say

    say(new_console(), sentence, markup=False)
    sys.stdout.flush()


__getattr__, __dir__, __all__ = attach(__name__, __file__)
