"""P2: discrepancy and accuracy on longer inputs, of trained models and of frontier models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.papers.claim import NOT_RUN, Finding, claims, judged
from rotoscope.papers.tables import screening
from rotoscope.papers.workshop import LONG, Workshop

DECAY = {"decays": "decay", "stays": "stay", "undecided": "undecided"}
PRICE = (
    "needs an endpoint and its price: rotoscope ask --endpoint URL --model NAME --dry-run says what it would "
    "cost; then give the run with --one-hop"
)


def _decay(workshop: Workshop, task: str, kind: str) -> pd.Series:
    return workshop.lengths.decay().set_index(["task", "head_class"]).loc[(task, kind)]


def _decay_text(row: pd.Series) -> str:
    counts = ", ".join(f"{row[name]:.0f} {verb}" for name, verb in DECAY.items())
    return f"{counts}; median exponent {row['median_exponent']:.2f}"


def positional_decay(workshop: Workshop) -> Finding:
    found = _decay(workshop, "number", "positional")
    return Finding(_decay_text(found), judged(found["as_said"] == 1.0, in_part=found["as_said"] >= 0.5))


def symbolic_stays(workshop: Workshop) -> Finding:
    found = {task: _decay(workshop, task, "symbolic") for task in ("letter", "number")}
    value = "; ".join(f"{task} models: {_decay_text(row)}" for task, row in found.items())
    shares = [row["as_said"] for row in found.values()]
    return Finding(value, judged(min(shares) == 1.0, in_part=max(shares) == 1.0))


def _at_length(workshop: Workshop, length: int) -> pd.DataFrame:
    curve = workshop.lengths.curve()
    return curve[(curve["length"] == length) & curve["model"].str.endswith(f"-{LONG}")]


def letter_generalises(workshop: Workshop) -> Finding:
    curve = workshop.letter_lengths.curve()
    at = sorted(curve.loc[curve["length"] == 850, "accuracy"])
    value = f"{', '.join(f'{x:.2f}' for x in at)} at 850 tokens by seed, median {np.median(at):.2f}"
    if workshop.cost == "cpu":
        own = workshop.own_lengths("letter").curve().set_index("length").loc[850]
        interval = f"[{own['low']:.2f}, {own['high']:.2f}]"
        value += f"; the embedded model, measured by this run: {own['accuracy']:.2f} {interval}"
    return Finding(value, judged(min(at) >= 0.9, in_part=float(np.median(at)) >= 0.8))


def number_does_not(workshop: Workshop) -> Finding:
    trained, longer = (
        _at_length(workshop, n).query("task == 'number'").sort_values("accuracy")["accuracy"] for n in (17, 100)
    )
    seeds = ", ".join(f"{x:.2f}" for x in longer)
    value = f"{seeds} at 100 tokens by seed (at 17 at least {trained.min():.2f})"
    return Finding(value, judged(bool((longer <= 0.5).all() and (trained >= 0.95).all())))


def letter_beats_number(workshop: Workshop) -> Finding:
    medians = {n: _at_length(workshop, n).groupby("task")["accuracy"].median() for n in (100, 850)}
    value = "; ".join(
        f"{n} tokens: letter {m['letter']:.2f}, number {m['number']:.2f}" for n, m in medians.items()
    )
    return Finding(value, judged(all(m["number"] <= m["letter"] / 3 for m in medians.values())))


def table_3(as_claimed: Callable[[pd.DataFrame], bool], workshop: Workshop) -> Finding:
    """Judged on finished runs of one-hop questions, where there are some: accuracy [length, task] of each."""
    taken = [run for run in workshop.one_hop if screening(run)["selected"]]
    if not taken:
        why = "none of the given runs meets P2's rule for taking a model in" if workshop.one_hop else PRICE
        return Finding("", NOT_RUN, note=why)
    texts, found = [], []
    for run in taken:
        accuracy = run.accuracy().query("scoring == 'free'")
        free = accuracy.pivot(index="length", columns="task", values="mean").dropna()
        first, last = free.index[0], free.index[-1]
        ends = ", ".join(
            f"{task} {free.loc[first, task]:.2f} at {first}, {free.loc[last, task]:.2f} at {last}"
            for task in free
        )
        texts.append(f"{run.name}: {ends}")
        found.append(as_claimed(free))
    return Finding("; ".join(texts), judged(all(found), in_part=any(found)))


def number_is_lost(free: pd.DataFrame) -> bool:
    return bool(free["number"].iloc[-1] <= free["number"].iloc[0] / 4)


def letter_is_kept(free: pd.DataFrame) -> bool:
    return bool(free["letter"].iloc[-1] >= 3 * free["number"].iloc[-1])


CLAIMS = claims(
    {
        "p2-discrepancy-positional": positional_decay,
        "p2-discrepancy-symbolic": symbolic_stays,
        "p2-length-letter": letter_generalises,
        "p2-length-number": number_does_not,
        "p2-length-order": letter_beats_number,
        "p2-table-3-number": partial(table_3, number_is_lost),
        "p2-table-3-letter": partial(table_3, letter_is_kept),
    }
)
