"""`rotoscope sweep`: a grid of runs, here or on a cluster."""

from __future__ import annotations

from pathlib import Path

from rotoscope.command import command
from rotoscope.progress import says_loading
from rotoscope.sweeps.settings import SweepSettings


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
        from rotoscope.experiments.show import show_table, show_written
        from rotoscope.sweeps.driver import run_sweep
        from rotoscope.terminal import new_console, say, show_next

    console = new_console()
    found = run_sweep(file, settings)
    folder = found.folder
    assert folder is not None
    counts = found.items["state"].value_counts()
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    items = (
        f"{len(found.items)} item{'s' * (len(found.items) > 1)} of {found.run.settings['command']}: {states}"
    )
    shown = found.items.drop(columns=["item", "error"])
    if settings.dry_run:
        say(console, f"{items}; nothing is run, and the folder would be {folder}", markup=False)
        show_table(console, shown, "the items", Path(f"{file.stem}-items.csv"))
        show_next(console, ["sweep", file])
        return 0
    say(console, items, markup=False)
    show_table(console, shown, "the items", folder / "items.csv")
    for row in found.failed.itertuples():
        say(
            console,
            f"failed: {row.item}: {row.error} (see {folder / str(row.item) / 'item.log'})",
            markup=False,
        )
    for warning in [one for one in found.run.warnings if " are left out: " in one]:
        say(console, warning, markup=False)
    written = sorted(file for kind in ("json", "parquet", "csv") for file in folder.glob(f"*.{kind}"))
    if settings.table is not None and "heads" in found.tables:
        written += [settings.table, settings.table.with_suffix(".json")]
    elif settings.table is not None:
        say(console, f"{settings.table} is not written: no item is finished and has heads", markup=False)
    show_written(console, written)
    again: list[list[object]] = [["sweep", file, "--retry-failed"]] if len(found.failed) else []
    show_next(console, *again, ["serve", folder])
    part = found.items["state"][settings.part[0] - 1 :: settings.part[1]]
    return int(not (part == "finished").all())
