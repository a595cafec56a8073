"""The list of runs as a page: in the server its rows refresh themselves; boxes to tick two and compare them.

Everything that comes from a folder is escaped here, once; the script puts in place what was written here.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from rotoscope.errors import RotoscopeError
from rotoscope.plotting.palette import KIND_COLOURS
from rotoscope.report.run_index import Found

COLUMNS = ("Run", "Kind", "Model", "Task", "Accuracy", "Heads by class", "State")
NOTHING = "No runs yet. To make one: rotoscope profile smollm2 --out runs/first"


@dataclass(frozen=True)
class Links:
    """Where the parts of a run are."""

    value: str
    """What the compare page calls it."""
    page: str
    picture: str


def runs_page(title: str, head: str, body: str, note: str, compare: str, scripts: str, *, live: bool) -> str:
    """The page around the rows; `head` and `scripts` bring style and script, in the page or beside it."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">{head}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{shown(title)} · rotoscope</title></head><body>
<form id="compare" action="{escape(compare)}"{" data-live" if live else ""}>
<header class="top"><h1>Runs in {shown(title)}</h1><span class="what" id="note" role="status">{escape(note)}</span>
<button id="go" disabled>Tick two to compare</button>
<button type="button" id="theme" aria-label="Switch between light and dark">◐</button></header>
<main class="panel"><table class="runs"><thead><tr><th scope="col"><span class="unseen">Compare</span></th><th></th>
{"".join(f'<th scope="col">{name}</th>' for name in COLUMNS)}</tr></thead>
<tbody id="rows" data-version="{version_of(body)}">{body}</tbody></table>
<p class="hint" id="nothing"{" hidden" if body else ""}>{NOTHING}</p></main></form>
{scripts}</body></html>
"""


def version_of(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "replace")).hexdigest()[:16]


def rows(runs: Iterable[tuple[Found, Links | None]]) -> str:
    """Every run with where it is; one that has no page cannot be opened or compared."""
    return "".join(_row(run, links) for run, links in runs)


def _row(run: Found, links: Links | None) -> str:
    name, tick, image = shown(run.name), "", badge(run.kind)
    if links is not None:
        tick = f'<input type="checkbox" value="{escape(links.value)}" aria-label="compare {name}"><b></b>'
        name = f'<a href="{escape(links.page)}">{name}</a>'
        if run.picture:
            image = f'<img src="{escape(links.picture)}" alt="" loading="lazy">'
    cells = (
        name,
        shown(run.kind),
        shown(run.model),
        shown(run.task),
        _accuracy(run),
        _classes(run),
        _state(run),
    )
    named = "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in zip(COLUMNS, cells, strict=True))
    return f'<tr><td class="tick">{tick}</td><td class="picture">{image}</td>{named}</tr>\n'


def _accuracy(run: Found) -> str:
    if run.accuracy is None:
        return ""
    chance = "" if run.chance is None else f' <span class="hint">chance {run.chance:.0%}</span>'
    return f"{run.accuracy:.0%}{chance}".replace("%", " %")


def _classes(run: Found) -> str:
    """A bar with a part for every class, and the same in words."""
    whole, parts, before = sum(run.classes.values()), [], 0.0
    if not whole:
        return ""
    for name, count in run.classes.items():
        width = 100 * count / whole
        parts.append(f'<rect class="{name}" x="{before:.2f}" width="{width:.2f}" height="10"/>')
        before += width
    words = " · ".join(
        f'<span class="class-{name}">{count} {name}</span>' for name, count in run.classes.items()
    )
    return (
        f'<svg class="classes" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
        f'<span class="counts">{words}</span>'
    )


def _state(run: Found) -> str:
    how_far = f" <span>{shown(run.progress)}</span>" if run.progress else ""
    bar = "" if run.share is None else f'<progress max="1" value="{run.share:.3f}"></progress>'
    problem = f'<div class="problem">{shown(run.problem)}</div>' if run.problem else ""
    return (
        f'<span class="state {run.state}">{run.state}</span>{how_far}{bar}{problem}'
        f'<time class="when">{escape(run.written)} UTC</time>'
    )


def badge(kind: str) -> str:
    """A small drawing in place of a figure: the kind of the run in its own colour."""
    colour = KIND_COLOURS[hashlib.sha256(kind.encode("utf-8", "replace")).digest()[0] % len(KIND_COLOURS)]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 104 66" role="img" aria-hidden="true">'
        f'<rect x="1" y="1" width="102" height="64" rx="6" fill="{colour}" fill-opacity=".15" '
        f'stroke="{colour}"/>'
        f'<text x="52" y="38" text-anchor="middle" font-size="14" font-family="sans-serif" fill="currentColor">'
        f"{shown(kind[:12])}</text></svg>"
    )


def shown(text: str) -> str:
    """Text as text: escaped, and without what cannot be sent."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


# Where the server listens, and the names it answers to.


LOCAL = ("127.0.0.1", "localhost")
PORT = 8765


def listening(host: str, port: int | None) -> socket.socket:
    """A socket bound before anything is promised."""
    if port is not None and not 0 <= port <= 65535:
        raise RotoscopeError(f"a port is a number from 0 to 65535, found {port}")
    if not host:
        raise RotoscopeError("the host is empty; give a name or an address")
    try:
        return _bound(host, PORT if port is None else port)
    except (OSError, UnicodeError) as taken:
        if port is None:
            return listening(host, 0)
        why = getattr(taken, "strerror", None) or taken
        raise RotoscopeError(
            f"cannot listen on {host} port {port} ({why}); choose another --port or --host"
        ) from taken


def _bound(host: str, port: int) -> socket.socket:
    choices = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(choices, key=lambda choice: choice[0] != socket.AF_INET)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def trusted(host: str) -> list[str]:
    """The names we answer to: local ones, the one asked for, and this machine's own where that is every address."""
    address = _address(host)
    names = [*LOCAL, f"[{host}]" if address is not None and address.version == 6 else host]
    if address is not None and address.is_unspecified:
        names += [socket.gethostname(), socket.getfqdn()]
        with contextlib.suppress(OSError):
            own = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
            names += [str(found[4][0]) for found in own]
    return list(dict.fromkeys(names))


def named(host: str) -> str:
    """The host as it stands in an address a browser can open."""
    address = _address(host)
    if address is None:
        return host
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if address.version == 6 else host
