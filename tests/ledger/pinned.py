"""Rows of the ledger against those that were pinned, number by number.

Between the numbers the words must be the same. Whole numbers are counts, steps and layers: they must be equal. A
number with decimals may be off by one in its last place, which is what another machine's rounding does. A power of
ten below 1e-6 is what is left over from rounding: it may be up to ten times as large. Where a row states its own
tolerance, that holds for all its numbers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

__all__ = ["EXPECTED", "differences"]

EXPECTED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("expected.json").read_text(encoding="utf-8")
)
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:e[+-]?\d+)?(?![\w])")
RESIDUE = 1e-6


def differences(row: pd.Series, pinned: dict[str, Any]) -> list[str]:
    """What of a row is not as it was pinned."""
    found = [] if row["verdict"] == pinned["verdict"] else [f"{row['verdict']}, not {pinned['verdict']}"]
    for column in ("our_value", "null_value"):
        ours, theirs = str(row[column]), str(pinned.get(column, ""))
        if NUMBER.sub("#", ours) != NUMBER.sub("#", theirs):
            found.append(f"'{ours}', not '{theirs}'")
            continue
        pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True)
        found += [f"{a}, not {b}" for a, b in pairs if not _close(a, b, pinned.get("tolerance"))]
    return found


def _close(ours: str, theirs: str, tolerance: float | None) -> bool:
    a, b = (float(text.replace(",", "")) for text in (ours, theirs))
    if tolerance is None and 0 < abs(b) < RESIDUE:
        return abs(a) <= 10 * abs(b)
    decimals = len(theirs.partition(".")[2])
    allowed = tolerance if tolerance is not None else 10.0**-decimals if decimals else 0.0
    return abs(a - b) <= allowed * 1.001
