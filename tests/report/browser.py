"""A browser that is on this machine, and pages that are watched."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "args": ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def chromium() -> str | None:
    """Where a Chromium is: named by ROTOSCOPE_CHROMIUM, on the path, or among playwright's own."""
    named = os.environ.get("ROTOSCOPE_CHROMIUM")
    if named:
        return named
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found:
        return found
    own = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    return next((str(file) for file in sorted(own.glob("chromium-*/chrome-linux*/chrome"), reverse=True)), None)


class Watched:
    """A page whose requests and errors are written down."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.context.on("request", lambda request: self.requests.append(request.url))

    @property
    def outside(self) -> list[str]:
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:", "about:"))]


def until(page: Any, holds: str, seconds: float = 20) -> None:
    """Wait for an expression to hold. The page's own policy forbids playwright to wait inside of it."""
    end = time.monotonic() + seconds
    while not page.evaluate(holds):
        assert time.monotonic() < end, holds
        page.wait_for_timeout(20)
