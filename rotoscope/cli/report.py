"""`rotoscope report`: one page about one run, or about two side by side."""

from __future__ import annotations

from pathlib import Path

from rotoscope.errors import RotoscopeError
from rotoscope.progress import progress_bar, says_loading


def report(
    run: Path,
    other: Path | None = None,
    *,
    out: Path | None = None,
    overwrite: bool = False,
) -> int:
    """Write a run as one HTML page that works offline; of two, the heads are compared.

    Example: rotoscope report runs/demo

    Parameters
    ----------
    run
        Run folder, of any kind and in any state: what is missing is said on the page.
    other
        A second run to stand beside the first.
    out
        The file. Default: RUN/report.html, which is replaced where it is there already.
    overwrite
        Replace the file that --out names.
    """
    with says_loading():
        from rich.markup import escape

        from rotoscope.cli.summary import show_written
        from rotoscope.cli.terminal import new_console, say, show_next
        from rotoscope.report import PAGE, write_page
        from rotoscope.report.side_by_side import payloads_of, side_of

    file = out or run / "report.html"
    if out is not None:
        check_file_out(out, overwrite=overwrite)
    folders = [folder for folder in (run, other) if folder is not None]
    with progress_bar("reading the run", None):
        payloads = payloads_of([side_of(folder, PAGE // len(folders)) for folder in folders])
    for payload in payloads:
        if payload["kind"] == "unknown" and not payload["tabs"]:
            raise RotoscopeError(payload["problems"][0])
    write_page(file, payloads)
    console = new_console()
    for payload in payloads:
        for problem in (*payload["running"], *payload["problems"]):
            say(console, f"[yellow]{escape(payload['name'])}:[/] {escape(problem)}")
    show_written(console, [file])
    say(console, f"open it in any browser, no server needed: {file.resolve().as_uri()}", markup=False)
    show_next(console, ["serve", run.parent])
    return 0


def check_file_out(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file that nobody said may be replaced."""
    if out.exists() and not overwrite:
        raise RotoscopeError(f"{out} is there already; choose another --out, or --overwrite to replace it")
