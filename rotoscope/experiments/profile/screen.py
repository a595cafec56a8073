"""A profile, or swaps at depths, on a terminal: classes, the heads with most attention at stake, and the null."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd

from rotoscope.experiments.prompt_settings import DRAWN
from rotoscope.scores.classes import CLASSES
from rotoscope.stats.statistics import Summary
from rotoscope.terminal import Grid, Lines, Screen

if TYPE_CHECKING:
    from rotoscope.experiments.depths.result import SwapDepths
    from rotoscope.experiments.profile.result import Profile

EXAMPLES = 4
"""Heads that are named of each class."""
INDENT = 2
ENOUGH_PROMPTS = 16
"""How many prompts are advised where there are fewer."""
SHOWN = {
    "share symbolic": "symbolic at their layer",
    "share positional": "positional heads",
    "carried of symbolic": "of these carried",
    "correlation": "scores correlate",
}
"""Statistics on the screen; the others stand behind --verbose."""
SCORE_OF = {"positional": "positional_score", "symbolic": "symbolic_score", "carried": "input_positional_score"}


def profile_screen(profile: Profile) -> Screen:
    """What a terminal shows of a profile."""
    statistics = [
        (f"Statistics at tau = {tau:g}", lambda tau=tau: profile.statistics(tau)) for tau in profile.taus
    ]
    tables = [(table.title, table.make) for table in profile.available_summaries()]
    return Screen(
        found=score_lines(profile),
        against=null_lines(profile.null_name, profile.statistics()),
        details=[*statistics, *tables],
    )


def score_lines(profile: Profile) -> list[str | Grid]:
    """Answers, classes and the heads with most attention at stake: what is known before any null is drawn."""
    lines: list[str | Grid] = []
    if profile.accuracy is not None:
        chance = "" if profile.chance is None else f" (chance {profile.chance:.0%})"
        right = int(profile.answers["correct"].sum())
        lines.append(f"answers {right}/{len(profile.answers)} right{chance}")
    lines += [class_line(profile.summary()), *unstable_line(profile), ""]
    lines.append("most attention at stake (layer:head, score, attention on what is swapped)")
    return [*lines, examples_grid(profile.at())]


def permuted_lines(profile: Profile) -> list[str | Grid]:
    """What swaps in the prompt itself changed: classes, and the carried heads."""
    heads = profile.at()
    lines = ["with the words of the prompt itself swapped", class_line(profile.summary())]
    return [*lines, examples_grid(heads[heads["head_class"] == "carried"])]


def depths_screen(run: SwapDepths) -> Screen:
    """What a terminal shows of swaps at depths."""
    turning = run.turning()
    carried = "heads that follow at their layer and stay in place below (positional / symbolic)"
    found: Lines = [class_line(run.summary())]
    found += [carried, Grid.of(turning)] if len(turning) else []
    return Screen(
        found=found,
        against=null_lines(run.null_name, run.statistics()),
        details=[
            *((f"Statistics at tau = {tau:g}", lambda tau=tau: run.statistics(tau)) for tau in run.taus),
            *([(carried, lambda: turning)] if len(turning) else []),
            *((table.title, table.make) for table in run.available_summaries()),
        ],
    )


def class_line(summary: Summary) -> str:
    """Heads by class."""
    counts = "   ".join(f"{number} {name}" for name, number in summary.classes.items() if number)
    return f"{summary.heads} heads   {counts or 'none with a score'}"


def unstable_line(profile: Profile) -> list[str]:
    """How many classes hang on the choice of prompts, and with how many prompts fewer would."""
    heads, settings = profile.at(), profile.run.settings
    stable = heads.get("stable", pd.Series(dtype="boolean")).astype("boolean")
    unstable = int((~stable).sum())
    if not unstable:
        return []
    more = max(ENOUGH_PROMPTS, 2 * settings["prompts"])
    advice = f": use --prompts {more}" if settings["task"] in DRAWN else ""
    return [f"{unstable} of them unstable over prompts{advice}"]


def examples_grid(heads: pd.DataFrame) -> Grid:
    """The heads of each class with the largest product of score and attention on what is swapped."""
    rows = []
    for name in CLASSES:
        column = SCORE_OF.get(name, "")
        members = heads[heads["head_class"] == name]
        if column not in heads or members.empty:
            continue
        stake = (members[column] * members["swapped_mass"]).nlargest(EXAMPLES)
        cells = [
            f"{row.layer}:{row.head} {getattr(row, column):.2f} {row.swapped_mass:.0%}"
            for row in members.loc[stake.index].itertuples()
        ]
        rows.append([name, *cells, *[""] * (EXAMPLES - len(cells))])
    return Grid(["", *[""] * EXAMPLES], rows, INDENT)


def null_lines(null_name: str | None, statistics: pd.DataFrame) -> Lines:
    """The statistics on the screen, beside where the next draw of each null would lie."""
    if null_name is None:
        return []
    nulls = {"random": "random", "gaussian": "Gaussian"} if "random_low" in statistics else {"null": null_name}
    rows = []
    for row in statistics[statistics["statistic"].isin(SHOWN)].to_dict("records"):
        number = "{:.0%}".format if row["statistic"].startswith(("share", "carried")) else "{:.2f}".format
        bands = [_band(number, row[f"{null}_low"], row[f"{null}_high"]) for null in nulls]
        p_value = "" if pd.isna(row["p_value"]) else f"{row['p_value']:.2f}"
        rows.append([SHOWN[row["statistic"]], number(row["value"]), *bands, p_value, row["verdict"] or ""])
    draws = int(statistics["null_draws"].max())
    title = f"against {draws} {'draw' if draws == 1 else 'draws'}"
    return [Grid([title, "model", *nulls.values(), "p", ""], rows)]


def _band(number: Callable[[float], str], low: float, high: float) -> str:
    return "" if pd.isna(low) or pd.isna(high) else f"{number(low)} … {number(high)}"
