"""What came out of a profile, in two or three sentences: the headline of its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rotoscope.stats.verdict import AS_IN, BEYOND, UNDECIDED

JUDGED = {
    "share symbolic": "the share of symbolic heads",
    "share positional": "the share of positional heads",
    "carried of symbolic": "the share of symbolic heads that are carried",
    "correlation": "the correlation of the two scores",
}
"""The figures whose verdicts the headline names."""
NULLS = {"random": "random models", "gaussian": "Gaussian keys"}
NO_NULL = "No null was run: a model that learned nothing may give the same."


def headline(heads: pd.DataFrame, noun: str) -> str:
    """How many heads do what, of a head table at one tau."""
    classes = heads["head_class"].value_counts()
    count = {
        name: int(classes.get(name, 0)) for name in ("positional", "symbolic", "carried", "uniform", "mixed")
    }
    follow = count["symbolic"] + count["carried"]
    here = "" if "input_class" in heads and follow == _followed(heads) else " at their layer"
    parts = [
        (count["positional"], _verb(count["positional"], "stays put", "stay put")),
        (
            follow,
            _verb(follow, f"follows the {noun}", f"follow the {noun}")
            + here.replace("their", "its" if follow == 1 else "their"),
        ),
        (count["uniform"], _verb(count["uniform"], "looks at everything", "look at everything")),
        (count["mixed"], _verb(count["mixed"], "does neither clearly", "do neither clearly")),
    ]
    return f"Of {len(heads)} heads, {_listed([f'{number} {words}' for number, words in parts if number])}."


def in_the_prompt(heads: pd.DataFrame) -> str:
    """What the heads that follow at their layer do with the prompt permuted; nothing where that was not measured."""
    follow = heads[heads["head_class"].isin(["symbolic", "carried"])]
    if "input_class" not in heads or follow.empty:
        return ""
    followed, untested = _followed(heads), int(follow["input_class"].isna().sum())
    carried = int((follow["head_class"] == "carried").sum())
    parts = [
        f"{followed} still {_verb(followed, 'follows', 'follow')}",
        f"{carried} {_verb(carried, 'stays', 'stay')} (carried)" if carried else "",
        f"{rest} {_verb(rest, 'does', 'do')} neither clearly"
        if (rest := len(follow) - followed - untested - carried)
        else "",
        f"{untested} {_verb(untested, 'was', 'were')} not tested enough" if untested else "",
    ]
    return f"With the prompt permuted, {_listed([part for part in parts if part])}."


def against_nulls(statistics: Sequence[dict[str, Any]], null_name: str | None) -> str:
    """Which figures lie beyond the null, and which are undecided."""
    if null_name is None:
        return NO_NULL
    rows = [row for row in statistics if row["statistic"] in JUDGED]
    both = any("gaussian_verdict" in row and "random_verdict" in row for row in rows)
    null = "both nulls" if both else NULLS.get(null_name, null_name)
    sentences = []
    for verdict, words in (
        (BEYOND, f"Beyond {null}"),
        (UNDECIDED, f"Undecided against {null}"),
        (AS_IN, f"As in {null}"),
    ):
        names = [JUDGED[row["statistic"]] for row in rows if row.get("verdict") == verdict]
        if names:
            sentences.append(f"{words}: {_listed(names)}.")
    return " ".join(sentences)


def _followed(heads: pd.DataFrame) -> int:
    return int(((heads["head_class"] == "symbolic") & (heads["input_class"] == "symbolic")).sum())


def _verb(number: int, one: str, many: str) -> str:
    return one if number == 1 else many


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
