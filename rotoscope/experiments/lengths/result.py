"""How far models generalise: accuracy by length, what their heads do there, and what was predicted."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.experiments.ask.result import OneHopRun, wilson
from rotoscope.experiments.page_data import PageRun, Tab, clean, curve
from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.stats.aggregate import little_at_stake
from rotoscope.stats.intervals import INTERVAL

LEVELS = (0.9, 0.5)
DRAWS = 400
FEWEST_TRAININGS = 3
"""Other trainings needed to say how far a prediction may be off."""


def crossing(lengths: np.ndarray, accuracy: np.ndarray, level: float) -> float:
    """The length at which accuracy first falls below a level, interpolated in logarithms; or infinite."""
    below = np.flatnonzero(accuracy < level)
    if not len(below):
        return math.inf
    k = int(below[0])
    if k == 0:
        return float(lengths[0])
    share = (accuracy[k - 1] - level) / (accuracy[k - 1] - accuracy[k])
    return float(np.exp(np.log(lengths[k - 1]) + share * (np.log(lengths[k]) - np.log(lengths[k - 1]))))


def accuracy_row(right: int, inputs: int) -> dict[str, float]:
    """A share of right answers with its 95 % interval, as it stands in tables."""
    low, high = wilson(right, inputs)
    return {"accuracy": right / inputs, "low": low, "high": high, "inputs": inputs}


class Lengths(SavedRun):
    """Accuracy by (model, length, hops); heads by (model, layer, length); predictions per input."""

    kind = "lengths"

    accuracy = Table("One row per (model, length, hops), with a 95 % interval.")
    heads = Table("One row per (model, length, layer, head, input, place on the path).")
    classes = Table(
        "By (model, layer, head): scores and class at training length (gamma = .1), angle of the plane "
        "used most, and which training the model comes from."
    )
    predicted = Table("For inputs of training length, the length at which each is predicted to fail.")

    def curve(self) -> pd.DataFrame:
        """Accuracy over all hop counts by (model, task, length), with a 95 % interval."""
        rows = []
        for (model, task, length), hops in self.accuracy.groupby(["model", "task", "length"], sort=False):
            right = round(float((hops["accuracy"] * hops["inputs"]).sum()))
            about = {"model": model, "task": task, "length": length}
            rows.append(about | accuracy_row(right, int(hops["inputs"].sum())))
        return pd.DataFrame(rows)

    def gaps(self) -> pd.DataFrame:
        """By (model, task, layer, head, length): discrepancy (mean, quantiles), gap, attention, both losses."""
        groups = self.heads.groupby(["model", "task", "layer", "head", "length"], sort=False)
        means = groups[["discrepancy", "gap", "attention", "gap_loss", "dispersion_loss"]].mean()
        return means.join(_spread(groups)).assign(queries=groups.size()).reset_index()

    def discrepancies(self) -> pd.DataFrame:
        """Discrepancy by (task, class at training length, length) over heads and queries: mean, worst, quantiles."""
        kinds = self.classes[["model", "layer", "head", "head_class"]]
        by = ["task", "head_class", "length"]
        groups = self.heads.merge(kinds, on=["model", "layer", "head"]).groupby(by)
        mean = groups["discrepancy"].mean().rename("mean")
        return mean.to_frame().join(_spread(groups)).assign(queries=groups.size()).reset_index()

    def exponents(self, seed: int = 0) -> pd.DataFrame:
        """Per head, the power of the length with which its mean discrepancy and gap to the right token change.

        Least squares in logarithms over lengths; the interval resamples the inputs of every length, each with all
        its queries; a single input has none. A gap that is not positive on average has no logarithm: its exponent
        is missing.
        """
        dice = np.random.default_rng(seed)
        rows = []
        keys = ["model", "task", "layer", "head"]
        for key, queries in self.heads.groupby(keys, sort=False):
            row = dict(zip(keys, key, strict=True))
            for name in ("discrepancy", "gap"):
                values = [
                    (n, g.groupby("input_id")[name].agg(["sum", "size"]).to_numpy(dtype=float))
                    for n, g in queries.groupby("length")
                ]
                means = np.array([v[:, 0].sum() / v[:, 1].sum() for _, v in values])
                drawn = np.stack([_resampled(v, dice) for _, v in values], axis=1)
                x = np.log([n for n, _ in values])
                row[f"{name}_exponent"] = _slopes(x, means[None])[0]
                slopes = _slopes(x, drawn)
                enough = np.isfinite(slopes).mean() > 0.5
                ends = np.nanquantile(slopes, INTERVAL) if enough else (np.nan, np.nan)
                row[f"{name}_low"], row[f"{name}_high"] = ends
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def _usual_exponents(self) -> pd.DataFrame:
        return self.exponents()

    def decay(self, limit: float = 0.2) -> pd.DataFrame:
        """The verdict on "decays for positional heads, stays for symbolic ones", computed from the exponents.

        A head's discrepancy decays if the interval of its exponent lies below -limit, and stays if it lies
        above; by class at training length, how many do which, and how many of them have little at stake there
        (missing where it was not measured). Several checkpoints of one training, or trainings from one seed, are
        no independent heads: the one trained longest counts.
        """
        table = self._usual_exponents.merge(
            longest_trained(self.classes), on=["model", "task", "layer", "head"]
        )
        decays, stays = table["discrepancy_high"] < -limit, table["discrepancy_low"] > -limit
        table["found"] = np.select([decays, stays], ["decays", "stays"], "undecided")
        counts = table.groupby(["task", "head_class"])["found"].value_counts().unstack(fill_value=0)
        counts = counts.reindex(columns=["decays", "stays", "undecided"], fill_value=0)
        mean = table.groupby(["task", "head_class"])["discrepancy_exponent"].median().rename("median_exponent")
        table["little_at_stake"] = little_at_stake(table)
        little = table.groupby(["task", "head_class"])["little_at_stake"].sum(min_count=1)
        table_of_classes = counts.join(mean).join(little).reset_index().rename_axis(columns=None)
        expected = table_of_classes["head_class"].map({"positional": "decays", "symbolic": "stays"})
        share = [
            row[e] / (row["decays"] + row["stays"] + row["undecided"]) if isinstance(e, str) else np.nan
            for (_, row), e in zip(table_of_classes.iterrows(), expected, strict=True)
        ]
        return table_of_classes.assign(as_said=share)

    def predictions(self, seed: int = 0, known: Lengths | None = None) -> pd.DataFrame:
        """Predicted against measured lengths at which accuracy falls below 90 % and 50 %, with intervals.

        Of the prediction itself: inputs resampled (`inputs_low`, `inputs_high`). Of the length to expect: the prediction
        after the errors it made for other trainings, those in `known` or in this run, with their spread (`expected_low`,
        `expected_high`; missing with fewer than three). Of the measurement: the two curves of its 95 % interval.
        `log2_error` is how many doublings the prediction is off.
        """
        rows = self._errors(seed)
        others = rows if known is None else pd.concat((rows, known._errors(seed)))
        ends = [_expected(row, others) for _, row in rows.iterrows()]
        rows["expected_low"], rows["expected_high"] = zip(*ends, strict=True) if ends else ((), ())
        return rows.drop(columns=["training", "trained_steps"])

    def summaries(self) -> list[SummaryTable]:
        """Accuracy by length, where it falls, and what the heads do there."""
        predicted = "Predicted and measured lengths at which accuracy falls below a level"
        exponents = "Per head, the power of the length with which its discrepancy and its gap change"
        quantiles = "Discrepancy by class at training length: mean, worst query, 10 %, 50 %, 90 % of them"
        return [
            SummaryTable("Accuracy by length, all hop counts together", self._curve_by_model, ("accuracy",)),
            SummaryTable(predicted, self.predictions, ("predicted",)),
            SummaryTable("Does the discrepancy of a head decay with length?", self.decay, ("heads",)),
            SummaryTable(exponents, self.exponents, ("heads",)),
            SummaryTable(quantiles, self.discrepancies, ("heads",)),
        ]

    def _curve_by_model(self) -> pd.DataFrame:
        """The curve with a column per model."""
        wide = self.curve().pivot(index="length", columns="model", values="accuracy")
        return wide.reset_index().rename_axis(columns=None)

    def _errors(self, seed: int) -> pd.DataFrame:
        """Predictions with what they are off, and the training that every model comes from."""
        dice = np.random.default_rng(seed)
        curves = self.curve()
        rows = []
        for (model, task), inputs in self.predicted.groupby(["model", "task"], sort=False):
            curve = curves[curves["model"] == model].sort_values("length")
            n = curve["length"].to_numpy(dtype=float)
            fails = inputs["fails_at"].to_numpy()
            for level in LEVELS:
                draws = [_falls(dice.choice(fails, len(fails)), level) for _ in range(DRAWS)]
                predicted = _falls(fails, level)
                measured = crossing(n, curve["accuracy"].to_numpy(), level)
                known = math.isfinite(predicted) and math.isfinite(measured)
                rows.append(
                    {
                        "model": model,
                        "task": task,
                        "level": level,
                        "predicted": predicted,
                        "inputs_low": float(np.quantile(draws, INTERVAL[0], method="nearest")),
                        "inputs_high": float(np.quantile(draws, INTERVAL[1], method="nearest")),
                        "measured": measured,
                        "measured_low": crossing(n, curve["low"].to_numpy(), level),
                        "measured_high": crossing(n, curve["high"].to_numpy(), level),
                        "log2_error": math.log2(predicted / measured) if known else math.nan,
                    }
                )
        about = ["training", "trained_steps"]
        origin = self.classes.reindex(columns=["model", *about]).drop_duplicates("model").set_index("model")
        return pd.DataFrame(rows).join(origin, on="model")

    def __repr__(self) -> str:
        ends = self.predictions().query("level == 0.5")
        lengths = ", ".join(f"{row.model}: {row.measured:.0f}" for row in ends.itertuples())
        return f"Lengths(accuracy falls below 50 % at {lengths})"


def _spread(groups: Any) -> pd.DataFrame:
    """The worst discrepancy of every group and its 10 %, 50 % and 90 % quantiles."""
    spread: pd.DataFrame = groups["discrepancy"].quantile([0.0, 0.1, 0.5, 0.9]).unstack()
    return spread.set_axis(["worst", "low", "median", "high"], axis=1)


def _expected(row: pd.Series, others: pd.DataFrame) -> tuple[float, float]:
    """Where the measured length should lie with 95 %, from how far predictions for other trainings were off.

    One of each training counts, that of most steps; a prediction interval of Student's t in doublings.
    """
    others = others[(others["level"] == row["level"]) & others["log2_error"].notna()]
    others = others.dropna(subset="training")
    others = others[(others["task"] != row["task"]) | (others["training"] != row["training"])]
    errors = others.sort_values("trained_steps").groupby(["task", "training"])["log2_error"].last()
    n = len(errors)
    if n < FEWEST_TRAININGS or not math.isfinite(row["predicted"]):
        return math.nan, math.nan
    from scipy.special import stdtrit  # t quantiles; not needed to ask a command for help

    reach = stdtrit(n - 1, INTERVAL[1]) * errors.std() * math.sqrt(1 + 1 / n)
    middle = math.log2(row["predicted"]) - errors.mean()
    return 2 ** (middle - reach), 2 ** (middle + reach)


def longest_trained(classes: pd.DataFrame) -> pd.DataFrame:
    """Of every training the heads of the model trained longest; runs that do not say have one model of each."""
    if "training" not in classes:
        return classes
    most = classes.groupby(["task", "training"], dropna=False)["trained_steps"].transform("max")
    return classes[classes["training"].isna() | (classes["trained_steps"] == most)]


def _resampled(inputs: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Means over the queries of resampled inputs, given by sum and number of their queries."""
    if len(inputs) < 2:
        return np.full(DRAWS, np.nan)
    drawn = inputs[dice.integers(len(inputs), size=(DRAWS, len(inputs)))].sum(1)
    means: np.ndarray = drawn[:, 0] / drawn[:, 1]
    return means


def _slopes(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least-squares slopes of the logarithm of each row against x; NaN where a value has no logarithm."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.where((values > 0).all(1, keepdims=True), np.log(values), np.nan)
    centred = x - x.mean()
    slopes: np.ndarray = logs @ centred / (centred @ centred) if len(x) > 1 else np.full(len(values), np.nan)
    return slopes


def _falls(fails_at: np.ndarray, level: float) -> float:
    """The length at which so many inputs have failed that the rest is less than the level."""
    ordered = np.sort(fails_at)
    return float(ordered[min(len(ordered) - 1, int(np.floor((1 - level) * len(ordered))))])


def lengths_tab(page_run: PageRun) -> Tab:
    """Accuracy by length for every model, what the heads do there, and what was predicted."""
    run = Lengths(page_run.run, page_run.tables)
    curves = []
    for (model, task), rows in run.curve().groupby(["model", "task"], sort=False):
        curves.append({"name": clean(model), "group": clean(task), **curve(rows, "length", "accuracy")})
    tables = page_run.summary_tables(run.summaries()[1:])
    return {"curves": curves, "x": "length (tokens)", "tables": tables}


def one_hop_tab(page_run: PageRun) -> Tab:
    """Accuracy by length for every task and way of scoring."""
    run = OneHopRun(page_run.run, page_run.tables)
    curves = []
    for (task, scoring), rows in run.accuracy().groupby(["task", "scoring"], sort=False):
        curves.append({"name": f"{task}, {scoring}", "group": clean(task), **curve(rows, "length", "mean")})
    tables = page_run.summary_tables(run.summaries()[:1])
    return {"curves": curves, "x": "length (facts)", "tables": tables}
