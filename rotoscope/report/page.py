"""The page: one HTML file with everything in it, which asks nobody for anything."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from rotoscope import __version__
from rotoscope.errors import RotoscopeError, RunError, pip_install
from rotoscope.experiments.compare import settings_that_differ
from rotoscope.experiments.page_data import PAGE, PageRun, Tab, clean, table
from rotoscope.experiments.registry import result_class
from rotoscope.lazy import resolve
from rotoscope.plotting import palette
from rotoscope.report.run_index import is_recent, so_far
from rotoscope.runs.files import read_table, replace_file
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


STYLE = "page.css"
SCRIPTS = (
    "base.js",
    "plots.js",
    "overview.js",
    "shown.js",
    "pins.js",
    "card.js",
    "depths.js",
    "writers.js",
    "training.js",
    "others.js",
    "compare.js",
    "main.js",
)
EMPTY = ""
"""Plotly makes an empty style element, to which it adds rules one by one, and clears style attributes: the
policy allows just that."""
WAITING = "This page draws itself with JavaScript, which is inside the file."
PALETTE = {
    "classes": palette.CLASS_COLOURS,
    "symbols": palette.CLASS_SYMBOLS,
    "series": palette.SERIES,
    "measures": palette.MEASURE_COLOURS,
    "verdicts": palette.PAGE_VERDICTS,
    "query": palette.QUERY,
    "swapped": palette.SWAPPED,
    "block": palette.BLOCK,
}
"""What the script draws with."""


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


def render_page(payloads: Sequence[dict[str, Any]], *, live: str | None = None, home: str | None = None) -> str:
    """A page about one run, or about two side by side.

    `live` is an address of the same server that gives a fresh list of payloads as JSON; the page asks it every
    two seconds. Without it the page makes no request at all and works from a file. `home` is where the list of runs is.
    """
    style, script, plotly = page_style(), page_script(), plotly_script()
    policy = _policy([plotly, script], [style, EMPTY], live)
    title = " and ".join(str(payload.get("title", "A run")) for payload in payloads) or "No run"
    content = {"runs": list(payloads), "live": live, "home": home, "version": __version__, "palette": PALETTE}
    return Template(asset("page.html")).substitute(
        policy=policy,
        title=html.escape(title),
        style=style,
        spared="\n".join(spared(plotly)),
        waiting=WAITING,
        content=embedded_json(content),
        plotly=plotly,
        script=script,
    )


def spared(plotly: str) -> list[str]:
    """Plotly brings a style sheet for maps, which we do not draw, unless an element of its name is there."""
    names = sorted(set(re.findall(r'document\.getElementById\("([0-9a-f]{64})"\)', plotly)))
    return [f'<template id="{name}"></template>' for name in names]


def embedded_json(content: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # A surrogate without its partner has no place in UTF-8.
    text = text.encode("utf-8", "replace").decode("utf-8")
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _policy(scripts: list[str], styles: list[str], live: str | None) -> str:
    """Only what is in the file may run, named by its hash; only the server itself may be asked, if any."""
    rules = [
        "default-src 'none'",
        f"script-src {hashes(scripts)}",
        f"style-src {hashes(styles)}",
        f"style-src-attr 'unsafe-hashes' {hashes([EMPTY])}",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if live is not None:
        rules.append("connect-src 'self'")
    return "; ".join(rules)


def hashes(texts: list[str]) -> str:
    """Texts as a policy names them; what has no place in UTF-8 is counted as it is sent."""
    sent = (text.encode("utf-8", "replace") for text in texts)
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in sent)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


@cache
def asset(name: str) -> str:
    """A style sheet or script of ours."""
    return resources.files("rotoscope.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def page_style() -> str:
    """The colours as variables, for day and for night, and our style sheet."""
    light, dark = palette.THEMES["light"], palette.THEMES["dark"]
    return "\n".join(
        [
            _variables(":root", "light", {**palette.CLASS_COLOURS, **light}),
            "@media (prefers-color-scheme: dark) {",
            _variables(':root:not([data-theme="light"])', "dark", dark),
            "}",
            _variables(':root[data-theme="dark"]', "dark", dark),
            asset(STYLE),
        ]
    )


def _variables(selector: str, scheme: str, colours: dict[str, str]) -> str:
    lines = "".join(f" --{name}: {colour};" for name, colour in colours.items())
    return f"{selector} {{ color-scheme: {scheme};{lines} }}"


@cache
def page_script() -> str:
    """Our files as one strict script of its own scope, without the lines that are comments."""
    body = re.sub(r"(?m)^ *(//.*|/\*\*.*\*/)\n", "", "\n".join(asset(name) for name in SCRIPTS))
    return f'(function () {{\n"use strict";\n{body}\n}})();'


@cache
def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as missing:
        raise RotoscopeError(f"the page needs plotly: {pip_install('report')}") from missing
    # Line ends as a browser sees them, so that the hash fits; and nothing that ends the element early.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")
