"""The page: one HTML file with everything in it, which asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from rotoscope import __version__
from rotoscope.errors import RotoscopeError, pip_install
from rotoscope.experiments.page_data import PAGE
from rotoscope.plotting import palette
from rotoscope.report.payload import payloads_of, side_of
from rotoscope.runs.files import replace_file
from rotoscope.runs.result import SavedRun

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
