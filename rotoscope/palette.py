"""The colours of the project: figures, page, notebook and terminal take them from here.

From the Okabe-Ito palette, which stays apart under the common kinds of colour blindness.
"""

from __future__ import annotations

POSITIONAL, SYMBOLIC, UNIFORM, MIXED = "#D55E00", "#0072B2", "#8A8A8A", "#CC79A7"
GREEN, AMBER, SKY, VIOLET, OLIVE, SLATE = "#009E73", "#E69F00", "#56B4E9", "#7A3E9D", "#8A6D00", "#56708A"
BROWN = "#7A3E00"
NULL = "#9A9A9A"
INK = "#222222"
QUERY = "#D62728"
SWAPPED, BLOCK = GREEN, "#E6C200"
"""Attention after a swap, and the blocks that were swapped."""

CLASS_COLOURS = {"positional": POSITIONAL, "symbolic": SYMBOLIC, "uniform": UNIFORM, "mixed": MIXED}
CLASS_MARKERS = {"positional": "s", "symbolic": "o", "uniform": "D", "mixed": "^"}
CLASS_SYMBOLS = {"positional": "square", "symbolic": "circle", "uniform": "diamond", "mixed": "triangle-up"}
"""The same signs as matplotlib and as plotly calls them."""

TASK_COLOURS = {"number": POSITIONAL, "letter": SYMBOLIC}
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
    "class_share": SKY,
    "class_stability": GREEN,
    "relative_entropy": VIOLET,
    "swapped_mass": OLIVE,
    "weighted_frequency_id": SLATE,
}
KIND_COLOURS = (SYMBOLIC, POSITIONAL, GREEN, MIXED, SKY, OLIVE)
"""Kinds of runs in a list."""
STATE_COLOURS = {"going": GREEN, "damaged": POSITIONAL}

TERMINAL_VERDICTS = {
    "reproduced": "green",
    "reproduced with a difference": "cyan",
    "not reproduced": "red",
    "false as printed": "magenta",
    "holds": "green",
    "holds as corrected": "yellow",
}
"""Verdicts of the ledger and of the theory lab, as the terminal calls its colours."""

PAGE_VERDICTS = {
    "reproduced": "symbolic",
    "reproduced with a difference": "mixed",
    "not reproduced": "positional",
    "not run here": "positional",
    "false as printed": "positional",
    "holds": "symbolic",
    "holds as corrected": "mixed",
}
"""The same verdicts on the page, which has a readable text colour for every class."""

THEMES = {
    "light": {
        "paper": "#ffffff",
        "sheet": "#f6f7f9",
        "ink": "#1b1f24",
        "soft": "#57606a",
        "line": "#d5dae0",
        "grid": "#e6e9ed",
        "focus": "#7a3e9d",
        "warn": "#fff4d6",
        "warn-ink": "#5c4300",
        "bad": "#fde3e0",
        "bad-ink": "#7a1410",
        "null": "#b4bac2",
        "positional-text": "#a84800",
        "symbolic-text": "#00609a",
        "uniform-text": "#5d5d5d",
        "mixed-text": "#a0447a",
    },
    "dark": {
        "paper": "#14171b",
        "sheet": "#1c2026",
        "ink": "#e8eaed",
        "soft": "#a3acb8",
        "line": "#39414b",
        "grid": "#2a3038",
        "focus": "#cda2e8",
        "warn": "#3b3113",
        "warn-ink": "#ffe3a0",
        "bad": "#461d1a",
        "bad-ink": "#ffc9c4",
        "null": "#565e69",
        "positional-text": "#ff9a4d",
        "symbolic-text": "#5fb7ee",
        "uniform-text": "#b5b5b5",
        "mixed-text": "#e7a3cb",
    },
}
"""What the page is drawn with, by day and by night; class names ending in -text are dark enough to read."""
