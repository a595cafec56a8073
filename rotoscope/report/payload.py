"""One run as the page needs it, and two runs side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.experiments.compare import settings_that_differ
from rotoscope.experiments.page_data import PAGE, PageRun, Tab, clean, table
from rotoscope.experiments.registry import result_class
from rotoscope.lazy import resolve
from rotoscope.report.run_index import is_recent, so_far
from rotoscope.runs.files import read_table
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun, Table
from rotoscope.runs.run import unfinished_tables

LONGEST = 120
"""Signs of a setting that are shown; the tab on how it was measured has them all."""

TABLE_TITLES = {
    "answers": "The model's answers",
    "sinks": "Positions that draw attention",
    "paired_prompts": "Heads that stay, each block moved together with the one before it",
    "null_factors": "By how much the null's logits were scaled",
    "conditions": "Loss and accuracy by condition",
    "gated_heads": "Heads before and under the gate",
    "flow": "What can be read where",
}
"""Titles of stored tables whose names say too little."""


def page_run(source: str | Path | SavedRun, room: int = PAGE) -> PageRun:
    """Read a run folder, finished or being written, or take a run that is in memory."""
    if isinstance(source, SavedRun):
        record = dataclasses.replace(source.run, kind=source.kind, complete=True)
        return PageRun(record.name, record, dict(source.page_tables()), room=room)
    folder = Path(source)
    record = RunRecord.read(folder)
    if result_class(record.kind) is None:
        raise RunError(
            f"{folder} holds a run of kind '{record.kind}', which this version of rotoscope does not know"
        )
    run = PageRun(folder.resolve().name or str(folder), record, room=room)
    if record.complete:
        for name in record.tables:
            file = f"{Path(name).name}.parquet"
            run.tables[name] = read_table(folder / file, record.files.get(file))
        return run
    _read_so_far(run, folder)
    return page_run(source, room) if RunRecord.read(folder).complete else run  # finished meanwhile


def _read_so_far(run: PageRun, folder: Path) -> None:
    """Read the finished pieces of a run, and how far it is."""
    reached = so_far(folder, run.run.settings)
    if is_recent(folder):
        run.running.append(reached)
    else:
        run.problems.append(f"the run is not finished; this is what there is so far: {reached}")
    run.tables = run.attempt("what is finished", lambda: unfinished_tables(folder, run.run)) or {}
    if run.declaration.so_far:
        read = resolve(run.declaration.so_far)
        tables, run.run.warnings = run.attempt("the items", lambda: read(folder, run.run)) or ({}, [])
        run.tables |= tables


def run_payload(source: str | Path | SavedRun, room: int = PAGE) -> dict[str, Any]:
    """The content of one run, ready for JSON, in so many letters.

    Takes a run folder, also of a run that is being written, or a run in memory. `problems` says what cannot be shown.
    """
    return payload_of(page_run(source, room))


def payload_of(run: PageRun) -> dict[str, Any]:
    """The content of the page of a run."""
    record = run.run
    tabs: dict[str, Any] = {
        name: run.attempt(f"the tab '{name}'", partial(resolve(path), run))
        for name, path in run.declaration.tabs.items()
    }
    tabs["tables"] = _tables_tab(run, tabs)
    overview = tabs.get("overview") or {}
    return {
        "name": run.name,
        "kind": run.kind,
        "title": _title(run),
        "complete": run.complete,
        "settings": clean(record.settings, 12),
        "versions": clean(record.versions),
        "warnings": overview.pop("warnings", [str(warning) for warning in record.warnings]),
        "timings": clean(record.timings, 2),
        "written": clean(record.written or None),
        "head_next": overview.pop("next", []),
        "next": _next(run),
        "subject": _subject(record),
        "proof": _proof(record),
        "tabs": {name: tab for name, tab in tabs.items() if tab},
        "problems": list(dict.fromkeys(run.problems)),
        "running": run.running,
    }


def _tables_tab(run: PageRun, tabs: dict[str, Any]) -> Tab | None:
    """Summaries first, then the tables as they are stored, where no other tab shows them."""
    tab_titles = {part["title"] for tab in tabs.values() if tab for part in tab.get("tables", [])}
    tables: list[Tab] = list((tabs.get("tables") or {}).get("tables", []))
    summaries = run.attempt("the summaries", lambda: run.opened().summaries()) or []
    tables += run.summary_tables(summaries, tab_titles)
    for name, stored in run.tables.items():
        if name not in run.declaration.tabled and len(stored):
            title = TABLE_TITLES.get(name, name.replace("_", " ").capitalize())
            listed = run.attempt(f"the table '{name}'", partial(table, stored, title, _rows_of(run, name)))
            tables += [listed] if listed else []
    return {"tables": tables} if tables else None


def _rows_of(run: PageRun, name: str) -> str:
    """What the rows of a stored table are, as its class says it."""
    attribute = getattr(resolve(run.declaration.result), name, None)
    return str(attribute.__doc__) if isinstance(attribute, Table) else ""


def _next(run: PageRun) -> list[dict[str, Any]]:
    """What to run next, where the run is whole."""
    steps = run.attempt("what to run next", lambda: run.opened().next_steps()) if run.complete else []
    return [step._asdict() for step in steps or []]


def _subject(record: RunRecord) -> dict[str, Any]:
    """What is short enough to read."""
    fields = {} if record.subject is None else dataclasses.asdict(record.subject)
    short: dict[str, Any] = clean({k: v for k, v in fields.items() if v and not isinstance(v, (list, dict))})
    return short


def _proof(record: RunRecord) -> dict[str, Any]:
    """The self-check in words; nothing where there was none."""
    if record.proof is None or not record.proof.layers:
        return {}
    rows = {
        "layers rebuilt after a permutation": record.proof.layers,
        "largest difference of an attention weight": record.proof.largest_difference,
        "queries and keys were read": record.proof.way,
    }
    return {name: value for name, value in clean(rows, 2).items() if value is not None}


def _title(run: PageRun) -> str:
    task = run.run.settings.get("task") or "unknown"
    name = run.run.name if run.run.name != run.kind else run.name
    return run.declaration.title.format(name=name, task=task)


# Two runs beside each other.


@dataclass(frozen=True)
class Side:
    """A run as its page needs it, and as another run needs it for a comparison."""

    payload: dict[str, Any]
    run: RunRecord
    has_heads: bool
    compared: Any = None
    """An instance of the class that its kind declares for comparisons."""


def side_of(source: str | Path | SavedRun, room: int = PAGE) -> Side:
    """A run folder, or a run in memory, in so many letters."""
    run = page_run(source, room)
    payload = payload_of(run)
    return Side(payload, run.run, "overview" in payload["tabs"], _compared(run))


def _compared(run: PageRun) -> Any:
    if not run.declaration.comparison:
        return None
    try:
        return resolve(run.declaration.comparison).of(run)
    except Exception:  # a stranger's tables, or those of a run being written; the page says what is missing
        return None


def payloads_of(runs: Sequence[Side]) -> list[dict[str, Any]]:
    """What the page of one run, or of two, is made from: the second holds the comparison with the first."""
    payloads = [side.payload for side in runs]
    if len(runs) == 2:
        payloads[1] = payloads[1] | {"comparison": comparison(*runs)}
    return payloads


def comparison(first: Side, second: Side) -> dict[str, Any]:
    """The settings that differ, and what the runs' kind compares. Read the other way round by exchanging first and second."""
    differ = [
        (name, *(None if value is None else str(clean(value))[:LONGEST] for value in values))
        for name, *values in settings_that_differ(first.run, second.run)
    ]
    compared: dict[str, Any] = {"settings": differ, "at": [], "words": []}
    if first.compared is not None and type(first.compared) is type(second.compared):
        try:
            return compared | first.compared.beside(second.compared)
        except Exception:  # as above
            pass
    both = first.has_heads and second.has_heads
    why = "One of the runs has no scores per prompt" if both else "Not both runs have heads"
    return compared | {"words": [f"{why}, so only their settings are compared."]}
