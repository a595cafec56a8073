"""How well a language model answers one-hop questions, by length."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.tasks.onehop import Question, Status

KEYS = ("task", "length", "run", "question")


def answer_row(
    run: int,
    question: Question,
    answered: str,
    status: Status,
    *,
    ranked: str | None = None,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    retries: int = 0,
) -> dict[str, Any]:
    """One question as it stands in the table. `ranked` is the most likely candidate, where that is known."""
    return {
        "task": question.task,
        "length": question.length,
        "run": run,
        "question": question.number,
        "expected": question.answer,
        "candidates": len(question.candidates),
        "answered": answered,
        "status": status,
        "correct": status == "answered" and answered == question.answer,
        "ranked": ranked,
        "ranked_correct": None if ranked is None else ranked == question.answer,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "retries": retries,
    }


def question_key(run: int, question: Question) -> tuple[Any, ...]:
    """What tells a question of a run from all others: the columns of `KEYS`."""
    return question.task, question.length, run, question.number


def answered_keys(rows: Iterable[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """The keys of the questions that have an answer."""
    return {tuple(row[key] for key in KEYS) for row in rows}


def answers_table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows in the order of their questions, whatever order they came in."""
    table = pd.DataFrame(rows)
    numbers = {"prompt_tokens": "Int64", "completion_tokens": "Int64", "ranked_correct": "boolean"}
    table = table.astype({**numbers, "ranked": "string"})
    return table.sort_values(list(KEYS), ignore_index=True)


def wilson(right: int, count: int) -> tuple[float, float]:
    """A 95 % interval for a share, by Wilson's formula."""
    if not count:
        return math.nan, math.nan
    z, share = 1.959964, right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


# P2's Table 3, and its rule for taking a model into it.

MODELS = ("GPT 5.4", "GPT 5.5", "Sonnet 3.7")
# Accuracy by length, number then letter task for each model.
PRINTED_3 = {
    12: (0.98, 0.96, 0.55, 0.87, 0.40, 0.92),
    16: (0.87, 0.98, 0.56, 0.95, 0.34, 0.89),
    24: (0.73, 1.00, 0.42, 0.96, 0.22, 0.88),
    32: (0.45, 0.99, 0.23, 0.96, 0.15, 0.88),
    48: (0.17, 0.99, 0.21, 0.77, 0.11, 0.80),
    64: (0.14, 0.98, 0.12, 0.84, 0.08, 0.87),
    80: (0.10, 0.96, 0.10, 0.75, 0.06, 0.89),
    100: (0.08, 0.85, 0.07, 0.66, 0.06, 0.86),
    200: (0.08, 0.52, 0.06, 0.55, 0.05, 0.77),
    300: (0.06, 0.40, 0.04, 0.50, 0.05, 0.80),
}
TABLE_3 = pd.DataFrame(
    [
        {"task": task, "length": length, **dict(zip(MODELS, row[first::2], strict=True))}
        for first, task in enumerate(("number", "letter"))
        for length, row in PRINTED_3.items()
    ]
)
"""P2, Table 3: accuracy of three models by task and length."""
SCREENED_LENGTH, SCREENED_ACCURACY = 16, 0.85


class OneHopRun(SavedRun):
    """One-hop questions put to a language model. `answers` has one row per question.

    Two ways of scoring: "free" is the model's own answer, which has to be the expected one and nothing else;
    "restricted" is the most likely of the candidates, for models that we run ourselves. On the letter task a
    model that only repeats the letter it is asked about is right under restricted scoring, because one
    candidate begins with it: look at "free" there, where the digit has to be found too.
    """

    kind = "onehop"

    answers = Table("One row per question: what was expected, what was answered, and whether that is right.")

    def accuracy(self) -> pd.DataFrame:
        """One row per (task, scoring, length): mean and standard deviation over runs, 95 % interval, chance.

        The interval is Wilson's over all questions. Questions that were too long for the model are counted
        apart.
        """
        rows = []
        ways = {"free": "correct", "restricted": "ranked_correct"}
        for (task, length), answers in self.answers.groupby(["task", "length"]):
            fits = answers[answers["status"] != "too long"]
            for scoring, column in ways.items():
                known = fits.dropna(subset=[column]).astype({column: float})
                if scoring == "restricted" and known.empty:
                    continue
                runs = known.groupby("run")[column].mean()
                low, high = wilson(int(known[column].sum()), len(known))
                rows.append(
                    {
                        "task": task,
                        "scoring": scoring,
                        "length": length,
                        "mean": runs.mean(),
                        "std": runs.std(),
                        "low": low,
                        "high": high,
                        "chance": (1 / known["candidates"]).mean(),
                        "single_answers": (fits["status"] == "answered").mean(),
                        "runs": len(runs),
                        "questions": len(known),
                        "too_long": len(answers) - len(fits),
                    }
                )
        return pd.DataFrame(rows).sort_values(["task", "scoring", "length"], ignore_index=True)

    def summaries(self) -> list[SummaryTable]:
        """Accuracy by length."""
        title = "Accuracy by length; free: the model's own answer, restricted: the likeliest candidate"
        beside = "Beside P2's Table 3"
        return [
            SummaryTable(title, self.accuracy, ("answers",)),
            SummaryTable(beside, lambda: beside_table_3(self), ("answers",)),
        ]

    def sentences(self) -> list[str]:
        """Whether P2 would take the model into its Table 3."""
        rule = screening(self)
        if rule["selected"] is None:
            return [f"P2's screening rule: not decided, because {rule['reason']}"]
        accuracy = f"{rule['accuracy']:.2f} [{rule['low']:.2f}, {rule['high']:.2f}]"
        verdict = "selected" if rule["selected"] else "not selected"
        sentence = (
            f"P2's screening rule: {verdict}. Letter task at length 16: {accuracy}, and the rule asks for 0.85."
        )
        return [f"{sentence} {rule['single_answers']:.0%} of the answers are single words."]

    def statuses(self) -> pd.DataFrame:
        """How many answers were single words, several words, malformed, or not given because of the length."""
        counts = self.answers.groupby(["task", "length"])["status"].value_counts()
        return counts.unstack(fill_value=0).reset_index().rename_axis(columns=None)

    def __repr__(self) -> str:
        lengths = np.unique(self.answers["length"]).tolist()
        return f"OneHopRun({self.name!r}: {len(self.answers)} questions, lengths {lengths})"


def beside_table_3(run: OneHopRun) -> pd.DataFrame:
    """Our accuracy beside P2's Table 3; empty where P2 has no figure for a length."""
    ours = run.accuracy()[["task", "scoring", "length", "mean", "std"]]
    return ours.merge(TABLE_3, on=["task", "length"], how="left")


def screening(run: OneHopRun) -> dict[str, Any]:
    """P2's rule for taking a model into Table 3: at least 85 % on the letter task at length 16.

    The answer must be one word and no chain of thought (an answer of several words is never right here).
    """
    table = run.accuracy()
    case = {"task": "letter", "length": SCREENED_LENGTH, "scoring": "free"}
    cell = table[(table[list(case)] == pd.Series(case)).all(axis=1)]
    if cell.empty or not cell["questions"].iloc[0]:
        return {"selected": None, "reason": f"the letter task was not asked at length {SCREENED_LENGTH}"}
    row = cell.iloc[0]
    return {
        "selected": bool(row["mean"] >= SCREENED_ACCURACY),
        "accuracy": float(row["mean"]),
        "low": float(row["low"]),
        "high": float(row["high"]),
        "single_answers": float(row["single_answers"]),
        "questions": int(row["questions"]),
    }
