"""Less of everything, for tests that put claims to tiny models."""

from __future__ import annotations

import pytest

from rotoscope.ledger import language_runs as language
from rotoscope.ledger import p1_models as models


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few facts and few prompts for language models."""
    monkeypatch.setattr(language, "PROMPTS", dict.fromkeys(language.PROMPTS, 3))
    pairs = dict.fromkeys(language.PAIRS, 8)
    settings = {"chat-32": (None, 6, 3), "chat-256": (None, 10, 3), "start-32": ("start", 6, 3)}
    for module in (language, models):
        monkeypatch.setattr(module, "PAIRS", pairs)
        monkeypatch.setattr(module, "DEPTH", settings)
    monkeypatch.setattr(language, "PLACES", {"pairs": 4, "count": 12})
    monkeypatch.setattr(language, "REPEATS", {"length": 8, "count": 3})
    monkeypatch.setattr(language, "SWAPPED", {"pairs": 6, "count": 3})
