"""The turnover layer: below it heads that look symbolic stay in the permuted prompt, from it on they follow the fact.

Among the heads that are pure symbolic at their own layer, a head follows where its symbolic score is the larger one with the
prompt permuted. Every layer t is tried as a border: heads below should stay, heads from it on should follow, and the rest are
errors. The turnover layer is the border with the fewest errors, and its strength is Goodman and Kruskal's lambda,

    strength = 1 - errors / (errors of the best guess that knows no layer),

0 where the layer says nothing about which heads follow, 1 where it says all.
"""

from __future__ import annotations

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

LEAST_HEADS = 4
"""With fewer heads on either side of the border there is no turnover layer."""
SHUFFLES = 2000
LEVEL = 0.05
FOUND, NOT_FOUND, UNDECIDED = "turnover", "no turnover", "undecided"


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


def border(layers: np.ndarray, follows: np.ndarray) -> Border:
    """The turnover layer of heads in these layers, of which it is known whether they follow."""
    guess = min(int(follows.sum()), int((~follows).sum()))
    if guess == 0:
        return NO_BORDER
    tried = np.unique(layers)[1:]
    below = layers[None, :] < tried[:, None]
    errors = (below & follows).sum(1) + (~below & ~follows).sum(1)
    errors = np.where(np.minimum(below.sum(1), (~below).sum(1)) >= LEAST_HEADS, errors, len(layers))
    if not len(tried) or errors.min() >= guess:
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

    `nulls` has the same rows for every (null_name, draw). There is a turnover where the strength is above that of shuffled labels
    and of every kind of null, each with an exact p of at most .05. `layers` is the number of layers of the model.
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
    for end, quantile in zip(("low", "high"), INTERVAL, strict=True):
        result[f"layer_{end}"] = float(np.quantile(borders, quantile)) if len(borders) else np.nan
        result[f"strength_{end}"] = float(np.quantile(strengths, quantile))
    p_values = {"shuffled": _exact_p(best.strength, shuffled_strengths(at, follows))}
    for name, draws in _null_strengths(nulls, gamma).items():
        p_values[name] = _exact_p(best.strength, draws)
        result[f"{name}_draws"] = len(draws)
        result[f"{name}_strength"] = float(draws.mean())
        result[f"{name}_highest"] = float(draws.max())
    result |= {f"p_{name}": p for name, p in p_values.items()}
    return result | {"verdict": _verdict(best.strength, p_values)}


def _null_strengths(nulls: pd.DataFrame | None, gamma: float) -> dict[str, np.ndarray]:
    """The strength in every draw of each null; 0 in a draw without symbolic heads."""
    if nulls is None or not len(nulls):
        return {}
    strengths: dict[str, list[float]] = {}
    for (name, _), rows in nulls.groupby(["null_name", "draw"]):
        heads = symbolic_heads_in_prompt(rows, gamma)
        strength = border(heads["layer"].to_numpy(), heads["follows"].to_numpy(dtype=bool)).strength
        strengths.setdefault(str(name), []).append(strength)
    return {name: np.array(values) for name, values in strengths.items()}


def _exact_p(value: float, draws: np.ndarray) -> float:
    """The Monte-Carlo p of a value among exchangeable draws."""
    return float((1 + (draws >= value - 1e-12).sum()) / (1 + len(draws)))


def _verdict(strength: float, p_values: dict[str, float]) -> str:
    if strength > 0 and max(p_values.values()) <= LEVEL and {"random", "gaussian"} <= set(p_values):
        return FOUND
    if strength == 0 or max(p_values["shuffled"], *p_values.values()) > 2 * LEVEL:
        return NOT_FOUND
    return UNDECIDED


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
        verdict = _holds((rows["verdict"] == FOUND).tolist())
        if verdict == "does not hold" and (rows["verdict"] == UNDECIDED).any():
            verdict = UNDECIDED
        return "a turnover layer exists", value, verdict

    def _carry(self) -> list[tuple[str, str, str]]:
        """Silenced heads cost more than each of at least 19 random sets; heads that stay must cost no more than one of them."""
        table = self.tables.get("causes", pd.DataFrame(columns=["size", "silenced", "draw", "loss"]))
        results = []
        for silenced, claim, costly in (
            ("followers from it on", "heads that follow the fact carry the answer", True),
            ("symbolic heads that stay below", "symbolic heads that stay do not carry it", False),
        ):
            values, verdicts = [], []
            rows = table[(table["silenced"] == silenced) & table["size"].isin(self.answered)]
            for size, part in rows.groupby("size"):
                loss, controls = part.loc[part["draw"] < 0, "loss"].item(), part.loc[part["draw"] >= 0, "loss"]
                values.append(
                    f"{size} facts: loss {loss:.2f}, random {controls.min():.2f} to {controls.max():.2f}"
                )
                verdicts.append(len(controls) >= 19 and bool((loss > controls).all()) == costly)
            results.append((claim, "; ".join(values), _holds(verdicts)))
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
        return claim, value, "holds" if more.mean() > 0.5 else "does not hold"

    def caveats(self) -> list[str]:
        """What a reader must know first."""
        answers = self.tasks[self.tasks["task"] == "binding"]
        failed = answers[answers["accuracy"] < 0.5]
        if not len(failed):
            return []
        sizes = ", ".join(f"{row.size}: {row.accuracy:.2f}" for row in failed.itertuples())
        return [f"the model answers less than half of these lists (facts: accuracy): {sizes}"]


def _holds(verdicts: list[bool]) -> str:
    """What a claim's verdicts at several list lengths come to."""
    if not verdicts:
        return "not asked"
    return "holds" if all(verdicts) else "holds in part" if any(verdicts) else "does not hold"


def _paired_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean scores with every block moved together with the block before it, where enough prompts say so."""
    names = [f"paired_{score}" for score in SCORES]
    if names[0] not in rows:
        return rows[HEAD].drop_duplicates().assign(**dict.fromkeys(names, np.nan))
    known = rows.dropna(subset=["paired_covered_share"])
    counted = covered_rows(known, "paired_covered_share", HEAD, rows["prompt"].nunique())
    return known[counted].groupby(HEAD)[names].mean().reset_index()
