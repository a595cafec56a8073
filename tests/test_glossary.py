"""Every word that a reader meets has an entry of one line in the glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.ledger.verdicts import VERDICTS
from rotoscope.scores.attention import KNOWN
from rotoscope.scores.classes import CLASSES
from rotoscope.stats import statistics, verdict
from tests.tiny_models import tiny, tokens

DOCS = Path(__file__).parents[1] / "docs"
ENTRY = re.compile(r"^### (.+)\n((?:(?!#).+\n?)*)", flags=re.MULTILINE)
ENTRIES = dict(ENTRY.findall((DOCS / "glossary.md").read_text(encoding="utf-8")))
WORDS = {word for title in ENTRIES for word in title.split(", ")}
COLUMNS = {name for body in ENTRIES.values() for name in re.findall(r"`(\w+)`", body)}


@pytest.mark.parametrize(
    "names",
    [
        CLASSES,
        (verdict.BEYOND, verdict.AS_IN, verdict.UNDECIDED, verdict.NO_VERDICT),
        VERDICTS,
        [*statistics.HEADS, *statistics.CARRIED, *statistics.PLANES],
        [name.replace("_", " ") for name in KNOWN],
        ("swap", "block", "τ", "γ", "null", "plane", "depth k", "carry depth", "hop", "purity", "discrepancy"),
    ],
    ids=["classes", "verdicts", "the ledger's verdicts", "figures", "known heads", "the papers' words"],
)
def test_every_name_has_an_entry(names: tuple[str, ...]) -> None:
    assert set(names) <= WORDS


def test_every_column_of_a_profile_has_an_entry() -> None:
    """With everything that a profile can measure; intervals have one entry for all."""
    shown = rs.tasks.from_tokens(tokens(2, 12), blocks=[(2, 4), (4, 6), (6, 8)])
    profile = rs.profile(tiny("llama"), shown, input_swaps=2, frequencies=True, examples=False)
    columns = {re.sub("_(low|high|std)$", "", name) for name in profile.heads}
    assert {"class_share", "covered_share", "input_symbolic_score", "dominant_frequency_id"} <= columns
    assert columns - {"layer", "head"} <= COLUMNS


def test_an_entry_is_a_line() -> None:
    assert len(ENTRIES) > 80
    for title, body in ENTRIES.items():
        assert len(body.strip().splitlines()) == 1, title
        assert len(body.split()) <= 32, title
        assert body.strip().endswith((".", ")")), title


def test_no_word_has_two_entries_and_links_lead_somewhere() -> None:
    words = [word for title in ENTRIES for word in title.split(", ")]
    assert len(words) == len(set(words))
    places = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in ENTRIES}
    linked = {place for body in ENTRIES.values() for place in re.findall(r"\]\(#([^)]+)\)", body)}
    assert linked
    assert linked <= places


def test_the_page_and_the_readme_name_the_glossary() -> None:
    root = DOCS.parent
    for file in ("README.md", "rotoscope/report/assets/others.js"):
        assert "docs/glossary.md" in (root / file).read_text(encoding="utf-8"), file
