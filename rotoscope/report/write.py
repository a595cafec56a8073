"""The report: one page about one run or two, or a site about many, to read in a browser, to send and to keep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.report.attention import PAGE
from rotoscope.report.compare import payloads_of, side_of
from rotoscope.report.page import render_page
from rotoscope.report.payload import run_payload
from rotoscope.report.site import write_site
from rotoscope.runs.files import replace_file
from rotoscope.runs.result import SavedRun

__all__ = ["PAGE", "render_page", "run_payload", "write_page", "write_report", "write_site"]


def write_report(path: str | Path, *runs: str | Path | SavedRun) -> Path:
    """Write the page of one run, or of two with a comparison; returns the file."""
    if not 1 <= len(runs) <= 2:
        raise RotoscopeError(f"a report is about one run or two, not {len(runs)}")
    return write_page(path, payloads_of([side_of(run, PAGE // len(runs)) for run in runs]))


def write_page(path: str | Path, payloads: Sequence[dict[str, Any]]) -> Path:
    """Write the page of payloads that are there already."""
    file = Path(path)
    if file.is_dir():
        raise RotoscopeError(f"{file} is a folder; name a file, such as {file / 'report.html'}")
    page = render_page(payloads)
    replace_file(file, lambda scratch: scratch.write_text(page, encoding="utf-8", newline="\n"))
    return file
