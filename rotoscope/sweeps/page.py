"""The page of a sweep: its items as they are, and the classes of heads by item.

The heads themselves are too many to read: two items of a language model fill a page. An item that has ended is read once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd

from rotoscope.experiments.page_data import PageRun, Tab, table
from rotoscope.report.run_index import inside, leads_out
from rotoscope.runs.record import RunRecord
from rotoscope.scores.classes import CLASSES
from rotoscope.stats.aggregate import SCORES
from rotoscope.sweeps.result import ITEM, ITEM_COLUMN, Sweep, runs_in

WITHIN = ("queries", "tau")
"""What an item can have several of: each has classes of its own."""
PERMUTED = "input_class"
NOWHERE = ".elsewhere"
NOTE = (
    "Shares of the heads that have a class, and medians over heads; where prompts were not permuted, nobody knows which heads "
    "are carried. An item with several tasks is one row over all of them. Every head is in heads.parquet, and on its item's page."
)


def sweep_tab(page_run: PageRun) -> Tab | None:
    """The items by state, each of them, and the classes of their heads, where there are heads with classes."""
    if "items" not in page_run.tables:
        return None
    items = page_run.tables["items"]
    classes = page_run.tables.get("classes")
    if classes is None and "heads" in page_run.tables:
        classes = page_run.attempt("the classes by item", partial(classes_by_item, page_run.tables["heads"]))
    candidates: list[tuple[str, str, Callable[[], pd.DataFrame]]] = [
        ("Items by state", "", partial(_by_state, items)),
        ("The items", "", partial(items.drop, columns="folder", errors="ignore")),
    ]
    if classes is not None and len(classes):
        candidates.append(("Classes of heads by item", NOTE, partial(_placed, classes, items, page_run.run)))
    tables = []
    for title, note, make in candidates:
        rows = page_run.attempt(f"'{title}'", make)
        tables += [table(rows, title, note, most=None)] if rows is not None and len(rows) else []
    return {"tables": tables}


def classes_by_item(heads: pd.DataFrame) -> pd.DataFrame:
    """For every item, and within it for every tau and kind of queries: the share of heads of each class, and the scores' medians.

    Empty for heads without classes, as those of plans or of lengths.
    """
    if not {ITEM_COLUMN, "head_class", *SCORES} <= set(heads):
        return pd.DataFrame()
    rows = []
    by = [ITEM_COLUMN, *(name for name in WITHIN if name in heads)]
    for key, part in heads.groupby(by, sort=False, dropna=False):
        known = part["head_class"].dropna()
        shares = {name: float((known == name).mean()) if len(known) else None for name in CLASSES}
        if PERMUTED not in part or not part[PERMUTED].notna().any():
            shares["carried"] = None
        medians = {f"median_{score}": part[score].median() for score in SCORES}
        rows.append(dict(zip(by, key, strict=True)) | {"heads": len(known)} | shares | medians)
    return pd.DataFrame(rows).astype(dict.fromkeys(CLASSES, "float64"))


def items_so_far(folder: Path, run: RunRecord) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The items of a sweep that is not finished and the classes of those that have ended, as tables; and what to beware of."""
    places = run.settings.get("items")
    parts: dict[str, list[pd.DataFrame]] = {"items": [], "classes": []}
    warnings = list[str]()
    for name, place in (places if isinstance(places, dict) else {}).items():
        where = _inside(folder, str(name))
        look = _looked if (stamp := _ended(where)) else _looked.__wrapped__
        about = json.dumps({"items": {str(name): place}, "command": run.settings.get("command")})
        tables, sentences = look(folder, where, about, stamp)
        warnings += sentences
        for kind, rows in tables.items():
            parts[kind].append(rows)
    return {kind: pd.concat(rows, ignore_index=True) for kind, rows in parts.items() if rows}, warnings


@lru_cache(maxsize=20_000)
def _looked(
    folder: Path, where: Path, about: str, stamp: tuple[int, ...]
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """One item; `stamp` tells one end of it from another."""
    sweep = Sweep.gathered(folder, RunRecord(Sweep.kind, json.loads(about)), lambda name: where)
    classes = classes_by_item(sweep.heads) if "heads" in sweep.tables else pd.DataFrame()
    tables = {"items": sweep.items} | ({"classes": classes} if len(classes) else {})
    return tables, sweep.run.warnings


def _ended(item: Path) -> tuple[int, ...]:
    """When an item's note was written, and how large it is; nothing of one that has not ended."""
    try:
        about = (item / ITEM).stat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size


def _inside(folder: Path, name: str) -> Path:
    """Where an item is. Pages show strangers' folders: what a name or a link has elsewhere is not read, and looks like nothing."""
    root = folder.resolve()
    item = inside(root, root / Path(name).name)
    if item is None or item == root:
        return root / NOWHERE
    runs = [item, *runs_in(item)]
    closed = any(inside(root, place) is None or leads_out(place, root) for place in runs)
    return root / NOWHERE if closed else item


def _placed(classes: pd.DataFrame, items: pd.DataFrame, run: RunRecord) -> pd.DataFrame:
    """The classes with every item's place in the grid in front, and without what does not differ."""
    grid = run.settings.get("grid")
    axes = [axis for axis in (grid if isinstance(grid, dict) else {}) if axis in items]
    places = items[[ITEM_COLUMN, *axes]].rename(
        columns={name: f"grid_{name}" for name in axes if name in classes}
    )
    alike = [name for name in WITHIN if name in classes and classes[name].nunique(dropna=False) < 2]
    return places.merge(classes.drop(columns=alike), on=ITEM_COLUMN)


def _by_state(items: pd.DataFrame) -> pd.DataFrame:
    """How many items of a sweep are finished, failed, unfinished or waiting."""
    return items["state"].value_counts().rename_axis("state").reset_index(name="items")
