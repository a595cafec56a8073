"""`rotoscope bundle`: runs as a folder of pages for any web space."""

from __future__ import annotations

from pathlib import Path

from rotoscope.cli.command import command
from rotoscope.progress import says_loading
from rotoscope.settings import BundleSettings


@command
def bundle(*runs: Path, settings: BundleSettings) -> int:
    """Write runs as a folder of pages that any web space can serve: the list, a page for each, any two compared.

    Example: rotoscope bundle runs --out site

    Parameters
    ----------
    runs
        Run folders, or folders of runs, up to three folders deep. Default: runs.
    """
    with says_loading():
        from rotoscope.cli.terminal import new_console, say, show_next
        from rotoscope.report.bundle import write_bundle

    place = write_bundle(*(runs or (Path("runs"),)), settings=settings)
    console = new_console()
    pages = len(list(place.glob("run-*.html")))
    say(console, f"wrote {place}: {pages} run{'' if pages == 1 else 's'}", markup=False)
    say(
        console,
        f"put the folder on any web space, or open {place / 'index.html'} in a browser",
        markup=False,
    )
    show_next(console, ["serve", *(runs or ["runs"])[:1]])
    return 0
