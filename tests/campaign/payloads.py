"""Pages about runs whose names, prompts and notes are hostile: the page is still one page, and text stays text."""

from __future__ import annotations

import copy
import json
import os
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

from rotoscope.report.page import plotly_script
from tests.campaign.damage import HOSTILE
from tests.campaign.kinds import made
from tests.campaign.runner import Case, Part

MARKUP = (
    *HOSTILE, "<!--", "-->", "]]>", "</SCRIPT >", "<script", "&lt;", "&#x27;", "'", '"', "\\", "\\u003c/script>", "$content", "$$", "${",
    "javascript:alert(1)", "<svg/onload=alert(1)>", "</title><script>alert(1)</script>", "\u2029", "\ufeff", "\r\n", "\x7f", "‮gpj",
    "<style>*{display:none}</style>", "<base href=//evil>", "<meta http-equiv=refresh content=0>", "</textarea>", "{{constructor}}",
)  # fmt: skip
IN_A_BROWSER = 500
"""One case in so many is opened in a real browser."""


def prepare(place: Path, stock: Path) -> Case:
    return _Pages(place, stock)


class _Pages:
    def __init__(self, place: Path, stock: Path) -> None:
        from rotoscope.report.page import run_payload

        self.place = place
        self.payloads = {name: run_payload(stock / name) for name in made(stock)}
        self._plain = {name: _read(self._page([one])) for name, one in self.payloads.items()}

    @staticmethod
    def _page(payloads: list[dict[str, Any]]) -> str:
        from rotoscope.report.page import render_page

        return render_page(payloads)

    def __call__(self, number: int, draw: Random) -> str | None:
        name = draw.choice(sorted(self.payloads))
        changed = copy.deepcopy(self.payloads[name])
        texts = list(_texts({**changed, "tabs": changed["tabs"].get("tables", {})}))
        texts += [(changed, key) for key in ("name", "title")]
        for holder, key in draw.sample(texts, min(len(texts), draw.randrange(1, 8))):
            holder[key] = "".join(draw.choice(MARKUP) for _ in range(draw.randrange(1, 4)))
        page = self._page([changed])
        found, plain = _read(page), self._plain[name]
        if found.tags != plain.tags:
            return f"{name}: the page has other elements"
        told = json.loads(found.content)["runs"][0]
        if told != json.loads(json.dumps(changed).encode().decode("utf-8", "replace")) and not _alone(changed):
            return f"{name}: the content is not what was given"
        if (
            changed["title"]
            and not _alone(changed)
            and " ".join(found.title.split())
            != " ".join(f"{_shown(str(changed['title']))} · rotoscope".split())
        ):
            return f"{name}: the title is {found.title[:100]!a}"
        if number % IN_A_BROWSER == 0:
            return self._in_a_browser(page)
        return None

    def _in_a_browser(self, page: str) -> str | None:
        from tests.report.browser import SETTINGS, Watched, chromium

        where = chromium()
        if where is None:
            return None
        from playwright.sync_api import sync_playwright

        file = self.place / "page.html"
        file.write_text(page, encoding="utf-8", errors="replace")
        home = {"HOME": str(self.place), "XDG_CONFIG_HOME": str(self.place), "TMPDIR": str(self.place)}
        settings = {"args": [*SETTINGS["args"], "--disable-dev-shm-usage", "--disable-crash-reporter"]}
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=where, env={**os.environ, **home}, **settings)
            watched = Watched(browser.new_page())
            said: list[str] = []
            watched.page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
            watched.page.goto(file.as_uri())
            watched.page.wait_for_selector(".tabs [aria-selected=true]")
            browser.close()
        if said or watched.outside or watched.errors:
            return f"in a browser: {said} {watched.outside} {watched.errors}"[:500]
        return None


class _read(HTMLParser):
    """The elements of a page, its title, and what it shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.title = self.content = ""
        self._within = ""
        self.feed(page.replace(plotly_script(), "").replace("\x00", "\ufffd"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._within = "content" if dict(attrs).get("type") == "application/json" else tag

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "title":
            self.title += data
        elif self._within == "content":
            self.content += data


def _texts(holder: Any) -> Any:
    """Every text of a payload that comes from a run, by where it stands."""
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        if isinstance(value, str) and key != "kind":
            yield holder, key
        elif isinstance(value, dict | list):
            yield from _texts(value)


def _alone(payload: Any) -> bool:
    """Whether there is half of a surrogate pair in it, which has no place in UTF-8 and is shown as a question mark."""
    return "\\ud800" in json.dumps(payload)


def _shown(title: str) -> str:
    return title.replace("\x00", "\ufffd")


PART = Part("payloads", prepare, share=0.03, limit_s=60)
