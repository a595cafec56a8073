"""The colours of the project: figures, page, notebook and terminal take them from here.

From the Okabe-Ito palette, which stays apart under the common kinds of colour blindness.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

POSITIONAL, SYMBOLIC, UNIFORM, MIXED = "#D55E00", "#0072B2", "#8A8A8A", "#CC79A7"
CARRIED = "#009E73"
GREEN, AMBER, SKY, VIOLET, OLIVE, SLATE = "#009E73", "#E69F00", "#56B4E9", "#7A3E9D", "#8A6D00", "#56708A"
BROWN = "#7A3E00"
NULL = "#9A9A9A"
INK = "#222222"
QUERY = "#D62728"
SWAPPED, BLOCK = GREEN, "#E6C200"
"""Attention after a swap, and the blocks that were swapped."""

CLASS_COLOURS = {
    "positional": POSITIONAL,
    "symbolic": SYMBOLIC,
    "carried": CARRIED,
    "uniform": UNIFORM,
    "mixed": MIXED,
}
CLASS_MARKERS = {"positional": "s", "symbolic": "o", "carried": "P", "uniform": "D", "mixed": "^"}
CLASS_SYMBOLS = {
    "positional": "square",
    "symbolic": "circle",
    "carried": "cross",
    "uniform": "diamond",
    "mixed": "triangle-up",
}
"""The same signs as matplotlib and as plotly calls them."""

TASK_COLOURS = {"number": POSITIONAL, "letter": SYMBOLIC}
SCORE_COLOURS = {"positional": POSITIONAL, "symbolic": SYMBOLIC}
EXPERIMENT_COLOURS = {
    "index": POSITIONAL,
    "retrieval": SYMBOLIC,
    "induction": MIXED,
    "induction, two angles": GREEN,
}
GATE_COLOURS = {"all": INK, "positional": POSITIONAL, "symbolic": SYMBOLIC}
HOP_COLOURS = (GREEN, AMBER, SKY, VIOLET, "#444444")
SERIES = (GREEN, AMBER, SKY, VIOLET, POSITIONAL, SYMBOLIC, MIXED, UNIFORM)
"""Curves that stand for nothing that has a colour of its own."""
MEASURE_COLOURS = {
    "positional_score": POSITIONAL,
    "symbolic_score": SYMBOLIC,
    "input_positional_score": POSITIONAL,
    "input_symbolic_score": SYMBOLIC,
    "covered_share": AMBER,
    "class_share": SKY,
    "class_stability": GREEN,
    "relative_entropy": VIOLET,
    "swapped_mass": OLIVE,
    "weighted_frequency_id": SLATE,
}
KIND_COLOURS = (SYMBOLIC, POSITIONAL, GREEN, MIXED, SKY, OLIVE)
"""Kinds of runs in a list."""
STATE_COLOURS = {"going": GREEN, "damaged": POSITIONAL}

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TERMINAL_VERDICTS: dict[str, str] = _TABLES["terminal_verdicts"]
PAGE_VERDICTS: dict[str, str] = _TABLES["page_verdicts"]
THEMES: dict[str, dict[str, str]] = _TABLES["themes"]
"""Verdicts of ledger and theory lab on the terminal and on the page; the page by day and by night."""
