"""A sweep: a grid of settings, each item of it an ordinary run, and one table over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rotoscope.command import command
from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.lazy import attach
from rotoscope.progress import says_loading
from rotoscope.sweeps.settings import SweepSettings

if TYPE_CHECKING:
    from rotoscope.sweeps.driver import run_sweep as run_sweep
    from rotoscope.sweeps.items import Item as Item
    from rotoscope.sweeps.items import SweepFile as SweepFile
    from rotoscope.sweeps.items import items_of as items_of
    from rotoscope.sweeps.items import read_file as read_file
    from rotoscope.sweeps.result import Sweep as Sweep
    from rotoscope.sweeps.settings import SweepSettings as SweepSettings


LISTED = 8
"""Items on the screen."""


@command
def sweep(file: Path, *, settings: SweepSettings) -> int:
    """Run every item of a grid, each an ordinary run in a folder of its own, and put their heads into one table.

    Example: rotoscope sweep sweep.toml --dry-run

    The file names a command (profile, train, lengths, gate, depths, ...), a folder (out), lists of values ([grid]) and what
    all items share ([settings]). What is finished is skipped, what was killed goes on where it was. An item that fails does not
    stop the others; the exit code is then 1.

    Parameters
    ----------
    file
        The sweep's file, sweep.toml in the example.
    """
    with says_loading():
        from rotoscope.sweeps.driver import run_sweep
        from rotoscope.terminal import (
            Grid,
            Screen,
            new_console,
            say,
            show_next,
            show_place,
            show_screen,
            show_table,
        )

    console = new_console()
    result = run_sweep(file, settings)
    folder = result.folder
    assert folder is not None
    counts = result.items["state"].value_counts()
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    count = len(result.items)
    items = f"{count} item{'s' * (count > 1)} of {result.run.settings['command']}: {states}"
    rows = result.items.drop(columns=["item", "error", "folder"], errors="ignore")
    failures = [
        f"failed: {row.item}: {row.error} (see {folder / str(row.item) / 'item.log'})"
        for row in result.failed.itertuples()
    ]
    grid = Grid.of(rows, LISTED)
    caveats = [warning for warning in result.run.warnings if " are left out: " in warning]
    if settings.table is not None and "heads" not in result.tables and not settings.dry_run:
        caveats.append(f"{settings.table} is not written: no item is finished and has heads")
    show_screen(console, Screen([items, *([] if settings.dry_run else [grid])], failures), caveats)
    if settings.dry_run:
        show_table(console, rows.dropna(axis="columns", how="all"), "the items")
        say(console, f"nothing is run; the folder would be {folder}", markup=False)
        show_next(console, ["sweep", file])
        return 0
    show_place(console, folder, sorted(folder.glob("*")))
    show_next(console, ["sweep", file, "--retry-failed"] if failures else ["serve", folder])
    shard = result.items["state"][settings.part[0] - 1 :: settings.part[1]]
    return int(not (shard == "finished").all())


__getattr__, __dir__, __all__ = attach(__name__, __file__)

EXPERIMENT = Experiment(
    name="sweep",
    question="What does every item of a grid of settings give?",
    command=":sweep",
    sweepable=False,
    kinds=(
        ResultKind(
            name="sweep",
            result="result:Sweep",
            title="The sweep {name}",
            tabs={"tables": "page:sweep_tab"},
            tabled=("items", "heads", "classes"),
            so_far="page:items_so_far",
        ),
    ),
)
