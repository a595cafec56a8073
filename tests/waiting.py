"""Waiting for something to happen, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG_S = 120.0


def wait_until(holds: Callable[[], object], longest: float = LONG_S) -> None:
    """Look again and again until a condition holds; only what never comes ends in an error."""
    until = time.monotonic() + longest
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("what was waited for did not come")
        time.sleep(0.01)
