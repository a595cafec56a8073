"""P2: discrepancy and accuracy on longer inputs, of trained models and of frontier models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.lengths.result import crossing
from rotoscope.experiments.paper_tables import MODELS, SCREENED_ACCURACY, SCREENED_LENGTH, TABLE_3, screening
from rotoscope.ledger.claim import Look, beside_untrained, by_itself, claims
from rotoscope.ledger.claim_runs import LONG, Workshop
from rotoscope.ledger.verdicts import NOT_RUN, Finding, Found, judged

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


def _decay(workshop: Workshop, task: str, kind: str, limit: float = DECAYS) -> pd.Series | None:
    classes = workshop.lengths.classes
    if not ((classes["task"] == task) & (classes["head_class"] == kind)).any():
        return None
    return workshop.decay(limit).set_index(["task", "head_class"]).loc[(task, kind)]


def _decay_text(row: pd.Series | None) -> str:
    if row is None:
        return "none"
    counts = ", ".join(f"{row[name]:.0f} {verb}" for name, verb in DECAY.items())
    return f"{counts}; median exponent {row['median_exponent']:.2f}"


def positional_decay(workshop: Workshop) -> Found:
    found, steep = (_decay(workshop, "number", "positional", limit) for limit in (DECAYS, THEORY))
    if found is None or steep is None:
        return Found("no positional head", False)
    value = f"{_decay_text(found)}; {steep['stays']:.0f} more slowly than 1/n^2"
    decay = bool(found["as_said"] == 1.0)
    return Found(value, decay and steep["stays"] == 0, decay)


def symbolic_stays(workshop: Workshop) -> Found:
    found = {task: _decay(workshop, task, "symbolic") for task in TASKS}
    value = "; ".join(f"{task} models: {_decay_text(row)}" for task, row in found.items())
    stays = [row is not None and row["as_said"] == 1.0 for row in found.values()]
    return Found(value, all(stays), any(stays))


def _falls(workshop: Workshop, level: float) -> dict[str, list[float]]:
    """By task, the length at which each seed's accuracy falls below a level, of the models trained longest."""
    curve = workshop.lengths.curve()
    curve = curve[curve["model"].str.endswith(f"-{LONG}")].sort_values("length")
    found: dict[str, list[float]] = {task: [] for task in TASKS}
    for (task, _), rows in curve.groupby(["task", "model"]):
        lengths, accuracy = (rows[name].to_numpy(dtype=float) for name in ("length", "accuracy"))
        found[task].append(crossing(lengths, accuracy, level) if accuracy[0] >= level else 0.0)
    return found


def _at(workshop: Workshop, task: str, length: int) -> list[float]:
    curve = workshop.lengths.curve()
    rows = curve[(curve["length"] == length) & (curve["task"] == task)]
    return sorted(rows.loc[rows["model"].str.endswith(f"-{LONG}"), "accuracy"])


def _listed(values: list[float], form: str = "{:.2f}") -> str:
    return ", ".join(form.format(x) for x in values)


def letter_generalises(workshop: Workshop) -> Found:
    at, falls = _at(workshop, "letter", SAID), sorted(_falls(workshop, 0.9)["letter"])
    value = (
        f"{_listed(at)} at {SAID} tokens by seed, median {np.median(at):.3f}; below nine in ten from "
        f"{_listed(falls, '{:.0f}')} tokens on"
    )
    return Found(value, min(at) > 0.9, min(falls) >= SAID / 2)


def number_does_not(workshop: Workshop) -> Found:
    trained, longer = _at(workshop, "number", 17), _at(workshop, "number", 100)
    value = f"{_listed(longer)} at 100 tokens by seed (at 17 at least {min(trained):.2f})"
    return Found(value, max(longer) <= 0.5 and min(trained) >= 0.95)


def letter_beats_number(workshop: Workshop) -> Found:
    falls = _falls(workshop, 0.5)
    value = "; ".join(f"{task} {_listed(sorted(found), '{:.0f}')}" for task, found in falls.items())
    learned = all(min(_at(workshop, task, 17)) >= 0.95 for task in TASKS)
    shortest, longest = min(falls["letter"]), max(falls["number"])
    return Found(
        f"below half from (tokens, by seed) {value}",
        learned and shortest >= 2 * longest,
        learned and shortest > longest,
    )


def selection(workshop: Workshop) -> Found:
    """P2's rule for taking a model into Table 3, put to the table itself."""
    row = TABLE_3[(TABLE_3["task"] == "letter") & (TABLE_3["length"] == SCREENED_LENGTH)].iloc[0]
    value = ", ".join(f"{model} {row[model]:.2f}" for model in MODELS)
    return Found(
        f"letters at length {SCREENED_LENGTH}: {value}", all(row[m] >= SCREENED_ACCURACY for m in MODELS)
    )


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


LOOKS: dict[str, Look] = {
    "p2-discrepancy-positional": positional_decay,
    "p2-discrepancy-symbolic": symbolic_stays,
    "p2-length-letter": letter_generalises,
    "p2-length-number": number_does_not,
    "p2-length-order": letter_beats_number,
}
FRONTIER = claims(
    {
        "p2-table-3-selection": by_itself(selection),
        "p2-table-3-number": partial(table_3, number_is_lost),
        "p2-table-3-letter": partial(table_3, letter_is_kept),
    },
    learned=False,
)
CLAIMS = [*claims({name: beside_untrained(look) for name, look in LOOKS.items()}, learned=True), *FRONTIER]
