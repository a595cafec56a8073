"""The headline of a profile's page."""

from __future__ import annotations

import pandas as pd

from rotoscope.experiments.profile.headline import NO_NULL, against_nulls, headline, in_the_prompt


def _heads(within: list[str | None] | None = None) -> pd.DataFrame:
    classes = ["positional", "positional", "symbolic", "symbolic", "carried", "mixed"]
    heads = pd.DataFrame({"head_class": classes})
    return heads if within is None else heads.assign(input_class=within)


def test_heads_are_counted_in_words() -> None:
    assert headline(_heads(), "word") == (
        "Of 6 heads, 2 stay put, 3 follow the word at their layer and 1 does neither clearly."
    )
    assert in_the_prompt(_heads()) == ""
    permuted = _heads([None, None, "symbolic", None, "positional", None])
    assert in_the_prompt(permuted) == (
        "With the prompt permuted, 1 still follows, 1 stays (carried) and 1 was not tested enough."
    )
    assert in_the_prompt(_heads([None, None, "mixed", "mixed", "positional", None])) == (
        "With the prompt permuted, 0 still follow, 1 stays (carried) and 2 do neither clearly."
    )


def test_verdicts_are_those_of_the_figures() -> None:
    rows = [
        {"statistic": "share symbolic", "verdict": "beyond the null"},
        {"statistic": "share positional", "verdict": "undecided"},
        {"statistic": "correlation", "verdict": "as in the null"},
        {"statistic": "early positional", "verdict": "beyond the null"},
    ]
    assert against_nulls(rows, "gaussian") == (
        "Beyond Gaussian keys: the share of symbolic heads. Undecided against Gaussian keys: the share of positional heads. "
        "As in Gaussian keys: the correlation of the two scores."
    )
    assert against_nulls([], None) == NO_NULL
    both = [
        {"statistic": "share symbolic", "verdict": "undecided", "random_verdict": "", "gaussian_verdict": ""}
    ]
    assert against_nulls(both, "random") == "Undecided against both nulls: the share of symbolic heads."
