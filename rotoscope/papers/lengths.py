"""P2: discrepancy and accuracy on longer inputs, of trained models and of frontier models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.papers.claim import NOT_RUN, Claim, Finding, judged
from rotoscope.papers.tables import screening
from rotoscope.papers.workshop import LONG, Workshop

__all__ = ["CLAIMS"]


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
    """Judged on finished runs of one-hop questions, where the user has some: accuracy [length, task] of
    each."""
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


CLAIMS = [
    Claim(
        id="p2-discrepancy-positional",
        paper="p2",
        where="section 3.4",
        statement="the discrepancy of positional heads decays with length",
        paper_value="like 1/n^2 in theory",
        rule="every positional head: 95 % interval of the exponent below -.2",
        needs="lengths",
        compute=positional_decay,
    ),
    Claim(
        id="p2-discrepancy-symbolic",
        paper="p2",
        where="section 3.4",
        statement="the discrepancy of symbolic heads stays",
        paper_value="constant in theory",
        rule=(
            "every symbolic head: 95 % interval of the exponent above -.2; with a difference if those of "
            "one task"
        ),
        needs="lengths",
        compute=symbolic_stays,
    ),
    Claim(
        id="p2-length-letter",
        paper="p2",
        where="Fig. 5B",
        statement="the letter model generalises to 850 tokens",
        paper_value="more than 90 % at 850",
        rule="every seed at least .9; with a difference if the median is at least .8",
        needs="lengths",
        compute=letter_generalises,
    ),
    Claim(
        id="p2-length-number",
        paper="p2",
        where="Fig. 5B",
        statement="the number model barely generalises",
        paper_value="fails soon",
        rule="at most .5 at 100 tokens, though .95 at the 17 of training, every seed",
        needs="lengths",
        compute=number_does_not,
    ),
    Claim(
        id="p2-length-order",
        paper="p2",
        where="Fig. 5B",
        statement="symbolic mechanisms generalise further than positional ones",
        paper_value="shown",
        rule="number at most a third of letter at 100 and at 850 tokens, medians of three seeds",
        needs="lengths",
        compute=letter_beats_number,
    ),
    Claim(
        id="p2-table-3-number",
        paper="p2",
        where="Table 3",
        statement="frontier models lose the number task with length",
        paper_value="GPT 5.4: .98 at 12, .06 at 300",
        rule=(
            "of every model that P2's rule takes in (.85 on letters at length 16): at the longest length at "
            "most a quarter of the accuracy at the shortest"
        ),
        needs="onehop",
        compute=partial(table_3, number_is_lost),
    ),
    Claim(
        id="p2-table-3-letter",
        paper="p2",
        where="Table 3",
        statement="frontier models keep the letter task longer",
        paper_value="GPT 5.4: .96 at 12, .40 at 300",
        rule=(
            "of every model that P2's rule takes in (.85 on letters at length 16): at the longest length at "
            "least three times the number task's accuracy"
        ),
        needs="onehop",
        compute=partial(table_3, letter_is_kept),
    ),
]
