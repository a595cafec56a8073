"""The turnover layer: below it heads that look symbolic stay in the permuted prompt, from it on they follow the fact.

Among the heads that are pure symbolic at their own layer, a head follows where its symbolic score is the larger one with the
prompt permuted. Every layer t is tried as a border: heads below should stay, heads from it on should follow, and the rest are
errors. The turnover layer is the border with the fewest errors, and its strength is Goodman and Kruskal's lambda,

    strength = 1 - errors / (errors of the best guess that knows no layer),

0 where the layer says nothing about which heads follow, 1 where it says all. Where no layer has enough of these heads on both
sides, as in most random models, the strength is undefined: such a draw of a null is counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.runs.result import SavedRun, Table
from rotoscope.scores.classes import CLASSES, GAMMA, purity_codes
from rotoscope.shapes import Float
from rotoscope.stats.aggregate import HEAD, INPUT_SCORES, SCORES, covered_rows, resampled, resamples
from rotoscope.stats.intervals import INTERVAL
from rotoscope.stats.verdict import (
    AS_IN,
    BEYOND,
    ENOUGH_DRAWS,
    LEAST_EFFECT,
    NO_VERDICT,
    UNDECIDED,
    Figure,
    Verdict,
    verdicts,
)

LEAST_HEADS = 4
"""With fewer heads on either side of the border there is no turnover layer."""
SHUFFLES = 2000
FOUND, NOT_FOUND = "turnover", "no turnover"
HOLDS, FAILS = "holds", "does not hold"


@dataclass(frozen=True)
class Border:
    """The layer that divides heads that stay from heads that follow with the fewest errors."""

    layer: float
    """The first layer with heads on the side that follows; NaN where no border beats a guess."""
    last_below: float
    """The last layer with heads on the side that stays."""
    strength: float
    stay: int
    """Heads on the side that should stay, whether they do or not."""
    follow: int


NO_BORDER = Border(np.nan, np.nan, 0.0, 0, 0)
UNDEFINED = Border(np.nan, np.nan, np.nan, 0, 0)
"""No layer has enough heads on both sides."""


def border(layers: np.ndarray, follows: np.ndarray) -> Border:
    """The turnover layer of heads in these layers, of which it is known whether they follow."""
    guess = min(int(follows.sum()), int((~follows).sum()))
    tried = np.unique(layers)[1:]
    below = layers[None, :] < tried[:, None]
    enough = np.minimum(below.sum(1), (~below).sum(1)) >= LEAST_HEADS
    if not enough.any():
        return UNDEFINED
    errors = np.where(enough, (below & follows).sum(1) + (~below & ~follows).sum(1), len(layers))
    if errors.min() >= guess:
        return NO_BORDER
    best = int(errors.argmin())
    side = below[best]
    strength = 1 - float(errors[best]) / guess
    return Border(float(tried[best]), float(layers[side].max()), strength, int(side.sum()), int((~side).sum()))


def shuffled_strengths(
    layers: np.ndarray, follows: np.ndarray, count: int = SHUFFLES, seed: int = 0
) -> Float[np.ndarray, "count"]:
    """The strength where the same heads follow, dealt to the layers at random."""
    random = np.random.default_rng(seed)
    return np.array([border(layers, random.permutation(follows)).strength for _ in range(count)])


def symbolic_heads_in_prompt(rows: pd.DataFrame, gamma: float = GAMMA) -> pd.DataFrame:
    """Heads pure symbolic at their layer with a verdict in the prompt: layer, head, mean scores and whether each follows.

    `rows` has one row per (prompt, layer, head) with scores at the own layer, `input_` scores and `covered_share`.
    """
    rows = _covered(rows)
    heads = rows.groupby(HEAD)[[*SCORES, *INPUT_SCORES]].mean().reset_index()
    pure = purity_codes(heads[SCORES[0]], heads[SCORES[1]], gamma) == CLASSES.index("symbolic")
    heads = heads[pure & heads[INPUT_SCORES[0]].notna()].reset_index(drop=True)
    return heads.assign(follows=heads[INPUT_SCORES[1]] > heads[INPUT_SCORES[0]])


def _covered(rows: pd.DataFrame) -> pd.DataFrame:
    counted = covered_rows(rows, "covered_share", HEAD, rows["prompt"].nunique())
    return rows.assign(**{score: rows[score].where(counted) for score in INPUT_SCORES})


def resampled_borders(rows: pd.DataFrame, gamma: float = GAMMA, replicates: int = 1000) -> list[Border]:
    """The border of every resample of the prompts: which heads are pure symbolic and which follow is decided anew."""
    rows = _covered(rows)
    wide = {score: rows.pivot(index="prompt", columns=HEAD, values=score) for score in (*SCORES, *INPUT_SCORES)}
    layers = wide[SCORES[0]].columns.get_level_values("layer").to_numpy()
    times = resamples(len(wide[SCORES[0]]), replicates)
    drawn = {score: resampled(table.to_numpy(dtype=float), times) for score, table in wide.items()}
    pure = purity_codes(drawn[SCORES[0]], drawn[SCORES[1]], gamma) == CLASSES.index("symbolic")
    known = pure & ~np.isnan(drawn[INPUT_SCORES[0]])
    follows = drawn[INPUT_SCORES[1]] > drawn[INPUT_SCORES[0]]
    return [border(layers[chosen], moved[chosen]) for chosen, moved in zip(known, follows, strict=True)]


def turnover(
    rows: pd.DataFrame, nulls: pd.DataFrame | None = None, gamma: float = GAMMA, layers: int = 0
) -> dict[str, Any]:
    """The turnover layer of a model's heads, its interval over prompts, what nulls give, and the verdict.

    `nulls` has the same rows for every (null_name, draw). There is a *turnover* where the strength is beyond that of shuffled
    labels and of both kinds of null, by the rule of `rotoscope.stats.verdict`; a null whose every draw has too few symbolic
    heads has no turnover to be compared with. There is *no turnover* where the strength is as in a null or below it, or itself
    below 0.1 in 95 % of the resamples of the prompts. `layers` is the number of layers of the model.
    """
    heads = symbolic_heads_in_prompt(rows, gamma)
    at, follows = heads["layer"].to_numpy(), heads["follows"].to_numpy(dtype=bool, copy=True)
    best = border(at, follows)
    result: dict[str, Any] = {
        "symbolic_heads": len(heads),
        "follow": int(follows.sum()),
        "turnover_layer": best.layer,
        "last_below": best.last_below,
        "relative_depth": best.layer / layers if layers else np.nan,
        "strength": best.strength,
        "prompts": rows["prompt"].nunique(),
    }
    again = resampled_borders(rows, gamma)
    borders = np.array(
        [resampled_border.layer for resampled_border in again if not np.isnan(resampled_border.layer)]
    )
    strengths = np.array([resampled_border.strength for resampled_border in again])
    result["resamples_with_border"] = len(borders) / len(again)
    known = strengths[~np.isnan(strengths)]
    for end, quantile in zip(("low", "high"), INTERVAL, strict=True):
        result[f"layer_{end}"] = float(np.quantile(borders, quantile)) if len(borders) else np.nan
        result[f"strength_{end}"] = float(np.quantile(known, quantile)) if len(known) else np.nan
    error = float(known.std(ddof=1)) if len(known) > 1 else np.nan
    judged = {}
    draws = {"shuffled": shuffled_strengths(at, follows), **_null_strengths(nulls, gamma)}
    for name, values in draws.items():
        defined = values[~np.isnan(values)]
        [judged[name]] = verdicts([Figure(best.strength, error, defined.tolist())])
        result[f"p_{name}"] = judged[name].p_value
        if name != "shuffled":
            result[f"{name}_draws"] = len(values)
            result[f"{name}_undefined"] = len(values) - len(defined)
            result[f"{name}_strength"] = float(defined.mean()) if len(defined) else np.nan
            result[f"{name}_highest"] = float(defined.max(initial=-np.inf)) if len(defined) else np.nan
    verdict, reason = _verdict(result, judged)
    return result | {"verdict": verdict, "reason": reason}


def _null_strengths(nulls: pd.DataFrame | None, gamma: float) -> dict[str, np.ndarray]:
    """The strength in every draw of each null; NaN in a draw with too few symbolic heads."""
    if nulls is None or not len(nulls):
        return {}
    strengths: dict[str, list[float]] = {}
    for (name, _), rows in nulls.groupby(["null_name", "draw"]):
        heads = symbolic_heads_in_prompt(rows, gamma)
        strength = border(heads["layer"].to_numpy(), heads["follows"].to_numpy(dtype=bool)).strength
        strengths.setdefault(str(name), []).append(strength)
    return {name: np.array(values) for name, values in strengths.items()}


def _verdict(result: dict[str, Any], judged: dict[str, Verdict]) -> tuple[str, str]:
    """The verdict on a turnover, and the reason where it is undecided or none."""
    strength = result["strength"]
    if np.isnan(strength):
        return NO_VERDICT, f"no layer has {LEAST_HEADS} symbolic heads on either side"
    if result["strength_high"] < 2 * LEAST_EFFECT:
        return NOT_FOUND, ""
    answers = {name: _above(strength, verdict) for name, verdict in judged.items()}
    empty = [
        name for name in judged if name != "shuffled" and result[f"{name}_undefined"] == result[f"{name}_draws"]
    ]
    if any(answers[name] is False for name in answers if name not in empty):
        return NOT_FOUND, ""
    reasons = [f"{name} null: not measured" for name in ("random", "gaussian") if name not in judged]
    for name, verdict in judged.items():
        if name in empty:
            count = result[f"{name}_draws"]
            if count < ENOUGH_DRAWS or name == "gaussian":
                reasons.append(f"{name} null: none of {count} draws has enough symbolic heads")
        elif answers[name] is None:
            reasons.append(f"{name} null: {verdict.reason}")
    return (UNDECIDED, "; ".join(reasons)) if reasons else (FOUND, "")


def _above(value: float, verdict: Verdict) -> bool | None:
    """Whether a figure is beyond its null on the upper side; None where that is undecided."""
    if verdict.verdict == BEYOND:
        return value > verdict.null_value
    return False if verdict.verdict == AS_IN else None


class TurnoverStudy(SavedRun):
    """What one model's heads follow at several list lengths, where that turns, and what silencing them does."""

    kind = "turnover"

    tasks = Table(
        "One row per (task, size): accuracy, log-likelihood of the answer, and the figures over heads."
    )
    verdicts = Table(
        "One row per (task, size, null, statistic): value, interval, null and verdict.", optional=True
    )
    heads = Table("One row per (task, size, layer, head): scores at the own layer and class.")
    permuted = Table("One row per (size, prompt, layer, head): scores with the prompt permuted, and paired.")
    null_permuted = Table("The same of the pure symbolic heads of every draw of a null.", optional=True)
    curves = Table("One row per (layer, head, depth): mean scores of the pure symbolic heads.", optional=True)
    causes = Table("One row per (size, silenced, draw): accuracy and loss of the answer.", optional=True)
    writers = Table("One row per carried head and set of silenced positional heads.", optional=True)
    frequencies = Table("One row per (layer, head, frequency_id) of the pure symbolic heads.", optional=True)

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return self.run.subject.layers if self.run.subject is not None else 0

    @property
    def sizes(self) -> list[int]:
        """The list lengths at which the prompt was permuted."""
        return sorted(int(size) for size in self.permuted["size"].unique())

    @cached_property
    def turnovers(self) -> pd.DataFrame:
        """One row per list length: the turnover layer with interval, nulls and verdict."""
        return pd.DataFrame([{"size": size} | self._turnover(size) for size in self.sizes])

    def _turnover(self, size: int) -> dict[str, Any]:
        rows = self.permuted[self.permuted["size"] == size]
        null = self.tables.get("null_permuted")
        null = None if null is None else null[null["size"] == size]
        return turnover(rows, null if null is not None and len(null) else None, layers=self.layers)

    def by_layer(self, size: int) -> pd.DataFrame:
        """One row per layer: how many heads are pure symbolic there, how many of these follow, and what the rest stay with."""
        rows = self.permuted[self.permuted["size"] == size]
        heads = symbolic_heads_in_prompt(rows).merge(_paired_means(rows), on=HEAD, how="left")
        heads["place"] = ~heads["follows"] & (heads["paired_positional_score"] > heads["paired_symbolic_score"])
        heads["context"] = ~heads["follows"] & (
            heads["paired_positional_score"] < heads["paired_symbolic_score"]
        )
        groups = heads.groupby("layer")
        table = groups[["follows", "place", "context"]].sum().astype(int)
        means = groups[INPUT_SCORES].mean()
        return groups.size().rename("heads").to_frame().join(table).join(means).reset_index()

    @property
    def answered(self) -> list[int]:
        """The list lengths at which the model answers at least half."""
        rows = self.tasks[(self.tasks["task"] == "binding") & (self.tasks["accuracy"] >= 0.5)]
        return sorted(int(size) for size in rows["size"])

    def claims(self) -> pd.DataFrame:
        """One row per claim about this model, judged by rules that were fixed before a second size was measured."""
        rows = [self._exists(), *self._carry(), self._slow_planes()]
        return pd.DataFrame(rows, columns=["claim", "value", "verdict"])

    def _exists(self) -> tuple[str, str, str]:
        """Holds where every list length that the model answers and that was permuted has the verdict."""
        rows = self.turnovers[self.turnovers["size"].isin(self.answered)]
        value = "; ".join(
            f"{row.size} facts: layer {row.turnover_layer:.0f}, strength {row.strength:.2f}, {row.verdict}"
            for row in rows.itertuples()
        )
        answers = {FOUND: True, NOT_FOUND: False}
        return "a turnover layer exists", value, _holds([answers.get(verdict) for verdict in rows["verdict"]])

    def _carry(self) -> list[tuple[str, str, str]]:
        """Silenced heads cost more than random sets of as many; heads that stay must cost as much as these, or less."""
        table = self.tables.get("causes", pd.DataFrame(columns=["size", "silenced", "draw", "loss"]))
        results = []
        for silenced, claim, costly in (
            ("followers from it on", "heads that follow the fact carry the answer", True),
            ("symbolic heads that stay below", "symbolic heads that stay do not carry it", False),
        ):
            values, figures = [], []
            rows = table[(table["silenced"] == silenced) & table["size"].isin(self.answered)]
            for size, part in rows.groupby("size"):
                [own], controls = part[part["draw"] < 0].to_dict("records"), part.loc[part["draw"] >= 0, "loss"]
                values.append(
                    f"{size} facts: loss {own['loss']:.2f}, random {controls.min():.2f} to {controls.max():.2f}"
                )
                figures.append(Figure(own["loss"], own["loss_error"], controls.tolist()))
            above = [
                _above(figure.value, verdict)
                for figure, verdict in zip(figures, verdicts(figures), strict=True)
            ]
            answers = [answer if answer is None else answer == costly for answer in above]
            results.append((claim, "; ".join(values), _holds(answers)))
        return results

    def _slow_planes(self) -> tuple[str, str, str]:
        """Of heads that follow: pure symbolic planes are a larger share of the slowest quarter than of the faster half, in most."""
        claim = "slow planes of heads that follow are symbolic, fast ones are not"
        planes = self.tables.get("frequencies", pd.DataFrame())
        if not len(planes) or not planes["follows"].any():
            return claim, "", "not asked"
        planes = planes[planes["follows"] & (planes["frequency_id"] > 0)]
        pure = purity_codes(planes[SCORES[0]], planes[SCORES[1]]) == CLASSES.index("symbolic")
        place = planes["frequency_id"] / planes.groupby(HEAD)["frequency_id"].transform("max")
        keys = [planes[name] for name in HEAD]
        share = {
            name: pd.Series(pure, index=planes.index).where(inside).astype(float).groupby(keys).mean()
            for name, inside in (("slow", place > 0.75), ("fast", place <= 0.5))
        }
        more = share["slow"] > share["fast"]
        value = f"{int(more.sum())} of {len(more)} heads; slowest quarter {share['slow'].mean():.2f}, faster half {share['fast'].mean():.2f}"
        return claim, value, HOLDS if more.mean() > 0.5 else FAILS

    def caveats(self) -> list[str]:
        """What a reader must know first."""
        answers = self.tasks[self.tasks["task"] == "binding"]
        failed = answers[answers["accuracy"] < 0.5]
        if not len(failed):
            return []
        sizes = ", ".join(f"{row.size}: {row.accuracy:.2f}" for row in failed.itertuples())
        return [f"the model answers less than half of these lists (facts: accuracy): {sizes}"]


def _holds(answers: Sequence[bool | None]) -> str:
    """What the answers at several list lengths come to; None is undecided."""
    if not answers:
        return "not asked"
    if all(answers):
        return HOLDS
    return "holds in part" if any(answers) else UNDECIDED if None in answers else FAILS


def _paired_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean scores with every block moved together with the block before it, where enough prompts say so."""
    names = [f"paired_{score}" for score in SCORES]
    if names[0] not in rows:
        return rows[HEAD].drop_duplicates().assign(**dict.fromkeys(names, np.nan))
    known = rows.dropna(subset=["paired_covered_share"])
    counted = covered_rows(known, "paired_covered_share", HEAD, rows["prompt"].nunique())
    return known[counted].groupby(HEAD)[names].mean().reset_index()
