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

REFRESH_MS = 3000

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #777; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 66rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
p { color: var(--soft); margin: .3rem 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { border-bottom: 1px solid var(--line); padding: .45rem .6rem; vertical-align: middle; }
td { overflow-wrap: anywhere; }
.picture { width: 112px; }
.picture img, .picture svg { display: block; width: 104px; height: 66px; object-fit: contain; }
.picture img { background: #fff; }
.when { white-space: nowrap; font-variant-numeric: tabular-nums; }
.state { white-space: nowrap; }
.problem { color: var(--soft); font-size: .85em; }
.bar { display: flex; gap: .8rem; align-items: center; margin: 0 0 .8rem; }
""" + "".join(f".{state} {{ color: {hue}; font-weight: 600; }}\n" for state, hue in STATE_COLOURS.items())

SCRIPT = """
const form = document.getElementById('compare');
const body = document.getElementById('rows');
const note = document.getElementById('note');
let version = body.dataset.version;
const boxes = () => [...form.querySelectorAll('input[type=checkbox]')];
function mind() {
  const ticked = boxes().filter(box => box.checked);
  boxes().forEach(box => { box.disabled = ticked.length >= 2 && !box.checked; box.removeAttribute('name'); });
  ticked.slice(0, 2).forEach((box, k) => { box.name = 'ab'[k]; });
  document.getElementById('go').disabled = ticked.length !== 2;
}
async function refresh() {
  try {
    const answer = await fetch('/runs');
    if (!answer.ok) throw new Error(answer.status);
    const fresh = await answer.json();
    note.textContent = fresh.note;
    if (fresh.version === version) return;
    const kept = new Set(boxes().filter(box => box.checked).map(box => box.value));
    body.innerHTML = fresh.rows;
    boxes().forEach(box => { box.checked = kept.has(box.value); });
    version = fresh.version;
    mind();
  } catch {
    note.textContent = 'The server does not answer; what is shown may be out of date.';
  }
}
const address = new URL(location.href);
if (address.searchParams.has('token')) {
  address.searchParams.delete('token');
  history.replaceState(null, '', address);
}
form.addEventListener('change', mind);
window.addEventListener('pageshow', mind);
setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
"""


def runs_page(root: Path, runs: Sequence[Found], note: str, nonce: str) -> str:
    body = rows(runs)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{shown(root.name)} · rotoscope</title><style nonce="{nonce}">{STYLE}</style></head><body>
<h1>Runs in {shown(str(root))}</h1><p id="note" role="status">{escape(note)}</p>
<form id="compare" action="/compare">
<div class="bar"><button id="go" disabled>Compare the two ticked</button></div>
<table><thead><tr><th><span>Pick</span></th><th></th><th>Run</th><th>Kind</th><th>State</th>
<th>Written (UTC)</th><th>Subject and task</th></tr></thead>
<tbody id="rows" data-version="{version_of(body)}">{body}</tbody></table></form>
<script nonce="{nonce}">{SCRIPT.replace("REFRESH_MS", str(REFRESH_MS))}</script></body></html>
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
    colour = {"going on": "going", "damaged": "damaged"}.get(run.state, "")
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
