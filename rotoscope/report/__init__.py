"""The report: one page about one run or two, to read in a browser, to send and to keep."""

from functools import partial
from pathlib import Path

from rotoscope.errors import RotoscopeError
from rotoscope.report.page import render_page
from rotoscope.report.payload import run_payload
from rotoscope.results.folder import replace_file
from rotoscope.results.saved import SavedRun

__all__ = ["render_page", "run_payload", "write_report"]


def write_report(path: str | Path, *runs: str | Path | SavedRun) -> Path:
    """Write the page of one run, or of two with a comparison; returns the file."""
    if not 1 <= len(runs) <= 2:
        raise RotoscopeError(f"a report is about one run or two, not {len(runs)}")
    page = render_page([run_payload(run) for run in runs])
    file = Path(path)
    if file.is_dir():
        raise RotoscopeError(f"{file} is a folder; name the file the report goes to, such as {file / 'report.html'}")
    replace_file(file, partial(Path.write_text, data=page, encoding="utf-8", newline="\n"))
    return file
