"""P2: discrepancy and accuracy on longer inputs, of trained models and of frontier models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from rotoscope.papers.claim import NOT_RUN, Claim, Finding, judged
from rotoscope.papers.workshop import LONG, Workshop

__all__ = ["CLAIMS"]


def _decay(workshop: Workshop, task: str, kind: str) -> pd.Series:
    return workshop.lengths.decay().set_index(["task", "head_class"]).loc[(task, kind)]


def _decay_said(row: pd.Series) -> str:
    counts = ", ".join(f"{row[name]:.0f} {said}" for name, said in DECAY.items())
    return f"{counts}; median exponent {row['median_exponent']:.2f}"


DECAY = {"decays": "decay", "stays": "stay", "undecided": "undecided"}


def positional_decay(workshop: Workshop) -> Finding:
    found = _decay(workshop, "number", "positional")
    verdict = judged(found["as_said"] == 1.0, in_part=found["as_said"] >= 0.5)
    return Finding(_decay_said(found), verdict, rests_on=workshop.lengths_where)


def symbolic_stays(workshop: Workshop) -> Finding:
    found = {task: _decay(workshop, task, "symbolic") for task in ("letter", "number")}
    value = "; ".join(f"{task} models: {_decay_said(row)}" for task, row in found.items())
    as_said = [row["as_said"] for row in found.values()]
    verdict = judged(min(as_said) == 1.0, in_part=max(as_said) == 1.0)
    return Finding(value, verdict, rests_on=workshop.lengths_where)


def _at_length(workshop: Workshop, length: int) -> pd.DataFrame:
    curve = workshop.lengths.curve()
    return curve[(curve["length"] == length) & curve["model"].str.endswith(f"-{LONG}")]


def letter_carries(workshop: Workshop) -> Finding:
    curve = workshop.letter_lengths.curve()
    at = sorted(curve.loc[curve["length"] == 850, "accuracy"])
    value = f"{', '.join(f'{x:.2f}' for x in at)} at 850 tokens by seed, median {np.median(at):.2f}"
    if workshop.cost == "cpu":
        own = workshop.own_lengths("letter").curve().set_index("length").loc[850]
        value += f"; the embedded model, measured by this run: {own['accuracy']:.2f} [{own['low']:.2f}, {own['high']:.2f}]"
    verdict = judged(min(at) >= 0.9, in_part=float(np.median(at)) >= 0.8)
    return Finding(value, verdict, rests_on=workshop.lengths_where)


def number_does_not(workshop: Workshop) -> Finding:
    trained, longer = (
        _at_length(workshop, n).query("task == 'number'").sort_values("accuracy")["accuracy"] for n in (17, 100)
    )
    value = (
        f"{', '.join(f'{x:.2f}' for x in longer)} at 100 tokens by seed (at 17 at least {trained.min():.2f})"
    )
    verdict = judged(bool((longer <= 0.5).all() and (trained >= 0.95).all()))
    return Finding(value, verdict, rests_on=workshop.lengths_where)


def letter_beats_number(workshop: Workshop) -> Finding:
    medians = {n: _at_length(workshop, n).groupby("task")["accuracy"].median() for n in (100, 850)}
    value = "; ".join(
        f"{n} tokens: letter {m['letter']:.2f}, number {m['number']:.2f}" for n, m in medians.items()
    )
    further = all(m["number"] <= m["letter"] / 3 for m in medians.values())
    return Finding(value, judged(further), rests_on=workshop.lengths_where)


def _table_3(workshop: Workshop, as_said: Callable[[pd.DataFrame], bool]) -> Finding:
    """Judged on finished runs of one-hop questions, where the user has some: accuracy [length, task] of every model."""
    taken = [run for run in workshop.one_hop if run.screening()["selected"]]
    if not taken:
        why = "none of the given runs meets P2's rule for taking a model in" if workshop.one_hop else PRICE
        return Finding("", NOT_RUN, note=why)
    said, found = [], []
    for run in taken:
        accuracy = run.accuracy()
        free = (
            accuracy[accuracy["scoring"] == "free"]
            .pivot(index="length", columns="task", values="mean")
            .dropna()
        )
        first, last = free.index[0], free.index[-1]
        said.append(
            f"{run.name}: "
            + ", ".join(
                f"{task} {free.loc[first, task]:.2f} at {first}, {free.loc[last, task]:.2f} at {last}"
                for task in free
            )
        )
        found.append(as_said(free))
    rests = "finished runs of one-hop questions (--one-hop)"
    return Finding("; ".join(said), judged(all(found), in_part=any(found)), rests_on=rests)


PRICE = "needs an endpoint and its price: rotoscope lengths --endpoint URL --model NAME --dry-run says what it would cost; then give the run with --one-hop"


def table_3_number(workshop: Workshop) -> Finding:
    return _table_3(workshop, lambda free: bool(free["number"].iloc[-1] <= free["number"].iloc[0] / 4))


def table_3_letter(workshop: Workshop) -> Finding:
    return _table_3(workshop, lambda free: bool(free["letter"].iloc[-1] >= 3 * free["number"].iloc[-1]))


CLAIMS = [
    Claim("p2-discrepancy-positional", "p2", "section 3.4", "the discrepancy of positional heads decays with length", "like 1/n^2 in theory", "every positional head: 95 % interval of the exponent below -.2", positional_decay, "gpu"),
    Claim("p2-discrepancy-symbolic", "p2", "section 3.4", "the discrepancy of symbolic heads stays", "constant in theory", "every symbolic head: 95 % interval of the exponent above -.2; with a difference if those of one task", symbolic_stays, "gpu"),
    Claim("p2-length-letter", "p2", "Fig. 5B", "the letter model carries to 850 tokens", "more than 90 % at 850", "every seed at least .9; with a difference if the median is at least .8", letter_carries, "gpu"),
    Claim("p2-length-number", "p2", "Fig. 5B", "the number model barely generalises", "fails soon", "at most .5 at 100 tokens, though .95 at the 17 of training, every seed", number_does_not, "gpu"),
    Claim("p2-length-order", "p2", "Fig. 5B", "symbolic mechanisms carry further than positional ones", "shown", "number at most a third of letter at 100 and at 850 tokens, medians of three seeds", letter_beats_number, "gpu"),
    Claim("p2-table-3-number", "p2", "Table 3", "frontier models lose the number task with length", "GPT 5.4: .98 at 12, .06 at 300", "of every model that P2's rule takes in (.85 on letters at length 16): at the longest length at most a quarter of the accuracy at the shortest", table_3_number, "endpoint"),
    Claim("p2-table-3-letter", "p2", "Table 3", "frontier models keep the letter task longer", "GPT 5.4: .96 at 12, .40 at 300", "of every model that P2's rule takes in (.85 on letters at length 16): at the longest length at least three times the number task's accuracy", table_3_letter, "endpoint"),
]  # fmt: skip
