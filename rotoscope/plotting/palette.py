"""The colours of the project: figures, page, notebook and terminal take them from here.

From the Okabe-Ito palette, which stays apart under the common kinds of colour blindness.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

POSITIONAL, SYMBOLIC, CARRIED, UNIFORM = "#D55E00", "#0072B2", "#009E73", "#8A8A8A"
MIXED = "#D9C6D6"
"""Pale: a mixed head is neither, and most heads are."""
MIXED_EDGE = "#8F6C8A"
"""The same, dark enough for lines and for the edges of marks."""
AMBER, SKY, VIOLET, OLIVE, SLATE = "#E69F00", "#56B4E9", "#7A3E9D", "#8A6D00", "#56708A"
BROWN, ROSE = "#7A3E00", "#B5446E"
NULL = "#9A9A9A"
INK = "#222222"
QUERY = "#D62728"
SWAPPED, BLOCK = VIOLET, "#E6C200"
"""Attention after a swap, and the blocks that were swapped."""

CLASS_COLOURS = {
    "positional": POSITIONAL,
    "symbolic": SYMBOLIC,
    "carried": CARRIED,
    "uniform": UNIFORM,
    "mixed": MIXED,
}
LINE_COLOURS = CLASS_COLOURS | {"mixed": MIXED_EDGE}
CLASS_MARKERS = {"positional": "s", "symbolic": "o", "carried": "P", "uniform": "D", "mixed": "^"}
CLASS_SYMBOLS = {
    "positional": "square",
    "symbolic": "circle",
    "carried": "cross",
    "uniform": "diamond",
    "mixed": "triangle-up",
}
"""The same signs as matplotlib and as plotly calls them."""

SCORE_COLOURS = {"positional": POSITIONAL, "symbolic": SYMBOLIC}
"""A score has the colour of the class it makes; nothing else has the colour of a class."""
TASK_COLOURS = {"number": OLIVE, "letter": VIOLET}
EXPERIMENT_COLOURS = {"index": OLIVE, "retrieval": VIOLET, "induction": SKY, "induction, two angles": ROSE}
GATE_COLOURS = {"all": INK, **SCORE_COLOURS}
HOP_COLOURS = (ROSE, AMBER, SKY, VIOLET, "#444444")
SERIES = (AMBER, SKY, VIOLET, ROSE, OLIVE, SLATE, BROWN, INK)
"""Curves that stand for nothing that has a colour of its own."""
MEASURE_COLOURS = {
    "positional_score": POSITIONAL,
    "symbolic_score": SYMBOLIC,
    "input_positional_score": POSITIONAL,
    "input_symbolic_score": SYMBOLIC,
    "covered_share": AMBER,
    "class_share": SKY,
    "class_stability": ROSE,
    "relative_entropy": VIOLET,
    "swapped_mass": OLIVE,
    "weighted_frequency_id": SLATE,
}
KIND_COLOURS = (SLATE, OLIVE, VIOLET, AMBER, SKY, ROSE)
"""Kinds of runs in a list."""

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TERMINAL_VERDICTS: dict[str, str] = _TABLES["terminal_verdicts"]
PAGE_VERDICTS: dict[str, str] = _TABLES["page_verdicts"]
THEMES: dict[str, dict[str, str]] = _TABLES["themes"]
"""Verdicts of ledger and theory lab on the terminal and on the page; the page by day and by night."""
