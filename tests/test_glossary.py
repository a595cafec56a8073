"""Every word that a reader meets has an entry of two sentences in the glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rotoscope.ledger.verdicts import VERDICTS
from rotoscope.scores.attention import KNOWN
from rotoscope.scores.classes import CLASSES
from rotoscope.stats import statistics, verdict

DOCS = Path(__file__).parents[1] / "docs"
ENTRY = re.compile(r"^### (.+)\n((?:(?!#).+\n?)*)", flags=re.MULTILINE)
ENTRIES = dict(ENTRY.findall((DOCS / "glossary.md").read_text(encoding="utf-8")))
WORDS = {word for title in ENTRIES for word in title.split(", ")}
COLUMNS = {name for body in ENTRIES.values() for name in re.findall(r"`(\w+)`", body)}


def named_columns() -> set[str]:
    """The columns of `profile.heads` that tables of the documentation explain, variants written out."""
    pages = [DOCS.parent / "README.md", DOCS / "reading.md"]
    tables = [
        page.read_text(encoding="utf-8").split("| column | meaning |")[1].split("\n\n")[0] for page in pages
    ]
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


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


def test_every_column_that_is_explained_has_an_entry() -> None:
    columns = named_columns()
    assert {"class_share", "…_low", "covered_share", "centred_…"} <= columns
    for name in columns:
        fits = re.compile(name.replace("…", r"\w*") + "$")
        assert any(fits.match(known) for known in COLUMNS), name


def test_an_entry_is_two_sentences() -> None:
    assert len(ENTRIES) > 80
    for title, body in ENTRIES.items():
        assert len(re.findall(r"[.?!]\)?(?=\s|$)", body)) == 2, title


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
