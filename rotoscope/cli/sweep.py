"""`rotoscope sweep`: a grid of runs, here or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rotoscope.cli.command import command
from rotoscope.progress import says_loading
from rotoscope.settings import SweepSettings


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
        from rotoscope.cli.summary import show_table, show_written
        from rotoscope.cli.terminal import new_console, say, show_next
        from rotoscope.sweep import run_sweep

    console = new_console()
    found = run_sweep(file, settings)
    folder = found.folder
    assert folder is not None
    if settings.dry_run:
        return _show_items(console, found, file, folder)
    counts = found.items["state"].value_counts()
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    say(
        console,
        f"{len(found.items)} item{'s' * (len(found.items) > 1)} of {found.run.settings['command']}: {states}",
        markup=False,
    )
    shown = [name for name in found.items if name not in ("item", "error")]
    show_table(console, found.items[shown], "the items", folder / "items.csv")
    for row in found.failed.itertuples():
        say(
            console,
            f"failed: {row.item}: {row.error} (see {folder / str(row.item) / 'item.log'})",
            markup=False,
        )
    for warning in [one for one in found.run.warnings if " are left out: " in one]:
        say(console, warning, markup=False)
    show_written(
        console, sorted(file for kind in ("json", "parquet", "csv") for file in folder.glob(f"*.{kind}"))
    )
    again: list[list[object]] = [["sweep", file, "--retry-failed"]] if len(found.failed) else []
    show_next(console, *again, ["serve", folder])
    mine = found.items["state"][settings.part[0] - 1 :: settings.part[1]]
    return int(not (mine == "finished").all())


def _show_items(console: Any, found: Any, file: Path, folder: Path) -> int:
    """The items of a dry run."""
    from rotoscope.cli.summary import show_table
    from rotoscope.cli.terminal import show_next

    items, left = found.items, found.items[found.items["state"] != "finished"]
    shown = items.drop(columns=["item", "seconds"]).rename(columns={"error": "remark"})
    title = f"{len(items)} items, {len(left)} of them to be run into {folder}"
    show_table(console, shown, title, Path(f"{file.stem}-items.csv"))
    show_next(console, ["sweep", file])
    return 0
