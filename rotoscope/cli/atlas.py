"""`rotoscope atlas`: the heads of many models as one data set."""

from __future__ import annotations

from pathlib import Path

from rotoscope.cli.command import command
from rotoscope.progress import says_loading
from rotoscope.settings import AtlasSettings


@command
def atlas(*sources: Path, settings: AtlasSettings) -> int:
    """Put the heads of many models into one data set with a card, to be published, and joined with others'.

    Example: rotoscope atlas sweeps/first --out atlas

    What is not finished is left out, of the same model on the same prompts one run is taken, and both are said. Nothing in
    it says on whose machine, in which folder or on which texts anything was measured.

    Parameters
    ----------
    sources
        Sweeps, folders of runs, run folders, or other atlases, which are joined. Default: runs.
    """
    with says_loading():
        from rotoscope.cli.summary import show_table, show_written
        from rotoscope.cli.terminal import new_console, say, show_next
        from rotoscope.sweep.atlas import write

    found = write(*(sources or (Path("runs"),)), settings=settings)
    console = new_console()
    for sentence in found.left_out:
        say(console, sentence, markup=False)
    say(console, repr(found), markup=False)
    show_table(console, found.models, "models and tasks", settings.out / "models.csv")
    show_written(console, sorted(settings.out.iterdir()))
    show_next(console, ["report", "RUN", "--atlas", settings.out])
    return 0
