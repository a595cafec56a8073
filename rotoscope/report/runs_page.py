"""The list of runs as a page: rows that refresh themselves, boxes to tick two and compare them.

Everything that comes from a folder is escaped here, once; the script puts in place what the server wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from rotoscope.palette import KIND_COLOURS, STATE_COLOURS
from rotoscope.report.found import Found
from rotoscope.report.page import asset

REFRESH_MS = 3000


def runs_page(root: Path, runs: Sequence[Found], note: str, nonce: str) -> str:
    body = rows(runs)
    states = "".join(
        f".{state} {{ color: {hue}; font-weight: 600; }}\n" for state, hue in STATE_COLOURS.items()
    )
    style, script = asset("runs.css") + states, asset("runs.js").replace("REFRESH_MS", str(REFRESH_MS))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{shown(root.name)} · rotoscope</title><style nonce="{nonce}">
{style}</style></head><body>
<h1>Runs in {shown(str(root))}</h1><p id="note" role="status">{escape(note)}</p>
<form id="compare" action="/compare">
<div class="bar"><button id="go" disabled>Compare the two ticked</button></div>
<table><thead><tr><th><span>Pick</span></th><th></th><th>Run</th><th>Kind</th><th>State</th>
<th>Written (UTC)</th><th>Subject and task</th></tr></thead>
<tbody id="rows" data-version="{version_of(body)}">{body}</tbody></table></form>
<script nonce="{nonce}">
{script}</script></body></html>
"""


def version_of(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "replace")).hexdigest()[:16]


def rows(runs: Sequence[Found]) -> str:
    return "".join(_row(run) for run in runs)


def _row(run: Found) -> str:
    name, kind = shown(run.name), shown(run.kind)
    if shown(run.path) == escape(run.path):
        link = quote(run.path)
        tick = f'<input type="checkbox" value="{escape(run.path)}" aria-label="compare {name}">'
        name = f'<a href="/run/{link}">{name}</a>'
        image = f'<img src="/thumb/{link}" alt="" loading="lazy">' if run.picture else badge(run.kind)
    else:  # a name that is no text cannot be asked for
        tick, image = "", badge(run.kind)
    colour = {"going on": "running", "damaged": "damaged"}.get(run.state, "")
    problem = f'<div class="problem">{shown(run.problem)}</div>' if run.problem else ""
    return (
        f'<tr><td>{tick}</td><td class="picture">{image}</td><td>{name}</td><td>{kind}</td>'
        f'<td><span class="state {colour}">{escape(run.state)}</span>{problem}</td>'
        f'<td class="when">{escape(run.written)}</td><td>{shown(run.about)}</td></tr>\n'
    )


def badge(kind: str) -> str:
    """A small drawing in place of a figure: the kind of the run in its own colour."""
    colour = KIND_COLOURS[hashlib.sha256(kind.encode("utf-8", "replace")).digest()[0] % len(KIND_COLOURS)]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 104 66" role="img" aria-hidden="true">'
        f'<rect x="1" y="1" width="102" height="64" rx="6" fill="{colour}" fill-opacity=".15" '
        f'stroke="{colour}"/>'
        f'<text x="52" y="38" text-anchor="middle" font-size="14" font-family="sans-serif" fill="{colour}">'
        f"{shown(kind[:12])}</text></svg>"
    )


def shown(text: str) -> str:
    """Text as text: escaped, and without what cannot be sent."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))
