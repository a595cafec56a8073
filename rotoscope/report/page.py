"""One self-contained page for one or two runs: a stand-in, replaced by the report."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

__all__ = ["render_page"]


def render_page(payloads: Sequence[dict[str, Any]], *, live: str | None = None) -> str:
    titles = "".join(f"<h1>{html.escape(str(payload['title']))}</h1>" for payload in payloads)
    data = json.dumps(list(payloads)).replace("<", "\\u003c")
    poll = f"setInterval(() => fetch({json.dumps(live)}), 2000)" if live else ""
    return (
        f'<!doctype html><meta charset="utf-8"><title>rotoscope</title>{titles}'
        f'<script type="application/json" id="data">{data}</script><script>{poll}</script>'
    )
