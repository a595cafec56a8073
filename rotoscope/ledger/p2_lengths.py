"""P2: discrepancy and accuracy on longer inputs, of trained models and of frontier models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.ask.result import MODELS, SCREENED_ACCURACY, SCREENED_LENGTH, TABLE_3, screening
from rotoscope.experiments.lengths.result import Lengths, crossing, longest_trained
from rotoscope.ledger.claim import BesideModels, Look, as_constructed, claims
from rotoscope.ledger.claim_runs import LONG, ClaimRuns, Runs
from rotoscope.ledger.verdicts import NOT_RUN, Finding, Outcome, judged

TASKS = ("letter", "number")
DECAY = {"decays": "decay", "stays": "stay", "undecided": "undecided"}
DECAYS, THEORY = 0.2, 2.0
"""Powers of 1/n: hardly any decay below the first, and that of the construction's worst input."""
SAID = 850
"""Tokens up to which P2's letter model keeps more than nine in ten."""
PRICE = (
    "needs an endpoint and its price: rotoscope ask --endpoint URL --model NAME --dry-run says what it would "
    "cost; then give the run with --one-hop"
)


def _counts(runs: Runs, task: str, kind: str) -> pd.Series | None:
    """How many heads of a class decay with length or stay, by their mean over inputs; None where there is no such head."""
    classes = runs.lengths().classes
    if not ((classes["task"] == task) & (classes["head_class"] == kind)).any():
        return None
    return runs.lengths().decay(DECAYS).set_index(["task", "head_class"]).loc[(task, kind)]


def _counts_text(row: pd.Series | None) -> str:
    if row is None:
        return "none"
    counts = ", ".join(f"{row[name]:.0f} {verb}" for name, verb in DECAY.items())
    return f"{counts}; median exponent {row['median_exponent']:.2f}"


def worst_exponents(run: Lengths, task: str, kind: str) -> np.ndarray:
    """Of every head of a class, the power of the length with which its worst input's discrepancy changes.

    Theory's -2 is about the worst input. A discrepancy of 0 has no logarithm: such a head counts as steepest.
    """
    chosen = longest_trained(run.classes)
    chosen = chosen[(chosen["task"] == task) & (chosen["head_class"] == kind)]
    rows = run.heads.merge(chosen[["model", "layer", "head"]], on=["model", "layer", "head"])
    worst = rows.groupby(["model", "layer", "head", "length"])["discrepancy"].min().unstack("length")
    x = np.log(worst.columns.to_numpy(dtype=float))
    with np.errstate(divide="ignore"):
        logs = np.log(worst.to_numpy(dtype=float))
    slopes = logs @ (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    return np.where(np.isfinite(slopes), slopes, -np.inf)


def positional_decay(runs: Runs) -> Outcome:
    """By the worst input of every length, which is what theory's power is about."""
    counts = _counts(runs, "number", "positional")
    if counts is None:
        return Outcome("no positional head", False)
    powers = worst_exponents(runs.lengths(), "number", "positional")
    steep = int((powers <= -THEORY + DECAYS).sum())
    finite = powers[np.isfinite(powers)]
    middle = f"{np.median(finite):.2f}" if len(finite) else "none"
    value = f"worst input: median exponent {middle}, {steep} of {len(powers)} heads at -1.8 or steeper; means: {_counts_text(counts)}"
    return Outcome(value, steep == len(powers), bool((powers < -DECAYS).all()))


def symbolic_stays(runs: Runs) -> Outcome:
    counts = {task: _counts(runs, task, "symbolic") for task in TASKS}
    value = "; ".join(f"{task} models: {_counts_text(row)}" for task, row in counts.items())
    stays = [row is not None and row["as_said"] == 1.0 for row in counts.values()]
    return Outcome(value, all(stays), any(stays))


def _falls(runs: Runs, level: float) -> dict[str, list[float]]:
    """By task, the length at which each seed's accuracy falls below a level, of the models trained longest."""
    curve = runs.lengths().curve()
    curve = curve[curve["model"].str.endswith(f"-{LONG}")].sort_values("length")
    falls: dict[str, list[float]] = {task: [] for task in TASKS}
    for (task, _), rows in curve.groupby(["task", "model"]):
        lengths, accuracy = (rows[name].to_numpy(dtype=float) for name in ("length", "accuracy"))
        falls[task].append(crossing(lengths, accuracy, level) if accuracy[0] >= level else 0.0)
    return falls


def _at(runs: Runs, task: str, length: int) -> list[float]:
    curve = runs.lengths().curve()
    rows = curve[(curve["length"] == length) & (curve["task"] == task)]
    return sorted(rows.loc[rows["model"].str.endswith(f"-{LONG}"), "accuracy"])


def _listed(values: list[float], form: str = "{:.2f}") -> str:
    return ", ".join(form.format(x) for x in values)


def letter_generalises(runs: Runs) -> Outcome:
    at, falls = _at(runs, "letter", SAID), sorted(_falls(runs, 0.9)["letter"])
    value = (
        f"{_listed(at)} at {SAID} tokens by seed, median {np.median(at):.3f}; below nine in ten from "
        f"{_listed(falls, '{:.0f}')} tokens on"
    )
    return Outcome(value, min(at) > 0.9, min(falls) >= SAID / 2)


def number_does_not(runs: Runs) -> Outcome:
    trained, longer = _at(runs, "number", 17), _at(runs, "number", 100)
    value = f"{_listed(longer)} at 100 tokens by seed (at 17 at least {min(trained):.2f})"
    return Outcome(value, max(longer) <= 0.5 and min(trained) >= 0.95)


def letter_beats_number(runs: Runs) -> Outcome:
    falls = _falls(runs, 0.5)
    value = "; ".join(f"{task} {_listed(sorted(lengths), '{:.0f}')}" for task, lengths in falls.items())
    learned = all(min(_at(runs, task, 17)) >= 0.95 for task in TASKS)
    shortest, longest = min(falls["letter"]), max(falls["number"])
    return Outcome(
        f"below half from (tokens, by seed) {value}",
        learned and shortest >= 2 * longest,
        learned and shortest > longest,
    )


def selection(runs: Runs) -> Outcome:
    """P2's rule for taking a model into Table 3, put to the table itself."""
    row = TABLE_3[(TABLE_3["task"] == "letter") & (TABLE_3["length"] == SCREENED_LENGTH)].iloc[0]
    value = ", ".join(f"{model} {row[model]:.2f}" for model in MODELS)
    return Outcome(
        f"letters at length {SCREENED_LENGTH}: {value}", all(row[m] >= SCREENED_ACCURACY for m in MODELS)
    )


def table_3(holds: Callable[[pd.DataFrame], bool], runs: ClaimRuns) -> Finding:
    """Judged on finished runs of one-hop questions: accuracy [length, task] of each model that P2's rule takes in."""
    selected = [run for run in runs.one_hop if screening(run)["selected"]]
    if not selected:
        reason = "none of these runs meets P2's rule for taking a model in" if runs.one_hop else PRICE
        return Finding("", NOT_RUN, note=reason)
    texts, met = [], []
    for run in selected:
        accuracy = run.accuracy().query("scoring == 'free'")
        free = accuracy.pivot(index="length", columns="task", values="mean").dropna()
        first, last = free.index[0], free.index[-1]
        ends = ", ".join(
            f"{task} {free.loc[first, task]:.2f} at {first}, {free.loc[last, task]:.2f} at {last}"
            for task in free
        )
        texts.append(f"{run.name}: {ends}")
        met.append(holds(free))
    return Finding("; ".join(texts), judged(all(met), in_part=any(met)))


def number_is_lost(free: pd.DataFrame) -> bool:
    return bool(free["number"].iloc[-1] <= free["number"].iloc[0] / 4)


def letter_is_kept(free: pd.DataFrame) -> bool:
    return bool(free["letter"].iloc[-1] >= 3 * free["number"].iloc[-1])


LOOKS: dict[str, Look] = {
    "p2-discrepancy-positional": positional_decay,
    "p2-discrepancy-symbolic": symbolic_stays,
    "p2-length-letter": letter_generalises,
    "p2-length-number": number_does_not,
    "p2-length-order": letter_beats_number,
}
CLAIMS = claims(
    {
        **{name: BesideModels(look, twins=True) for name, look in LOOKS.items()},
        "p2-table-3-selection": as_constructed(selection),
        "p2-table-3-number": partial(table_3, number_is_lost),
        "p2-table-3-letter": partial(table_3, letter_is_kept),
    }
)
