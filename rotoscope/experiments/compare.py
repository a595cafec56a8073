"""Two runs over the same heads: which of them differ by more than prompts do by themselves?

For every head and either score, d is the second run's mean minus the first's, and e its standard error: that of the differences
where both runs were shown the same prompts (they are **paired**), else that of two samples. If the runs did not differ, it would not
matter which input (of a pair, which of the two) belongs to which run. So the inputs are dealt out again at random, many times, and
|d| / (e + 0.05) of all heads and both scores gives p-values by the step-down max-T of `rotoscope.stats.verdict`: at 5 %, one comparison
in twenty finds anything where there is nothing. (Scores pile up at 0 and 1, where Student's t with few prompts finds far more.)

As everywhere there are three answers. A head *differs* when p <= 0.05 and a score by at least 0.05; it is *alike* when both scores
have |d| + t e < 0.10, t being Student's 95 % quantile; otherwise it is undecided.

Some heads change class by chance. How many, the same deals tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.page_data import PageRun, Tab, column
from rotoscope.experiments.profile.result import Profile
from rotoscope.runs.folder import flat
from rotoscope.runs.record import RunRecord
from rotoscope.scores.classes import CLASSES
from rotoscope.stats.aggregate import CLASSED_BY, HEAD, SCORES, codes_of, resampled
from rotoscope.stats.intervals import INTERVAL
from rotoscope.stats.verdict import LEAST_EFFECT, LEVEL, step_down

DEALS = 500
"""How often inputs are dealt out; the first deal is what was measured."""
AT_ONCE = 2_000_000
"""How many dealt scores are held in memory together."""

Wide = dict[str, np.ndarray]
"""Every score by its column [inputs, heads]."""


@dataclass(frozen=True)
class Sample:
    """Scores of a run's heads at one tau: a table per score, one row per input, one column per (layer, head)."""

    scores: dict[str, pd.DataFrame]
    gamma: float
    prompts_hash: str | None
    """Which prompts the inputs are; None where the run does not say."""

    @classmethod
    def of(cls, run: Profile | SwapDepths, tau: float) -> Sample:
        rows = run.scored[run.scored["tau"] == tau]
        names = [name for name in CLASSED_BY if name in rows]
        by = "input_id" if "input_id" in rows else "prompt"
        means = rows.astype(dict.fromkeys(names, "float64")).groupby([by, *HEAD])[names].mean()
        known = run.run.settings.get("prompts_hash")
        return cls({name: means[name].unstack(HEAD) for name in names}, run.gamma, known and str(known))


@dataclass(frozen=True)
class Comparison:
    """What two runs say of the heads they share."""

    heads: pd.DataFrame
    """One row per (layer, head): both scores and the class in the first and in the second run (`first_...`, `second_...`; the class
    by what both runs measured), `p_value`, and whether the head `differs` or is `alike`; undecided where it is neither."""
    paired: bool
    inputs: tuple[int, int]
    alone: int
    """Heads of one run only."""
    changed: int
    """How many heads changed class."""
    chance_low: float
    chance_high: float
    """How many change class between runs that do not differ: where 95 % of the deals lie."""
    chance_p_value: float
    """In which share of the deals no fewer do."""

    @property
    def can_tell(self) -> bool:
        """Whether there are so many ways to deal the inputs out that a p-value can be below 5 %."""
        ways = 2 ** self.inputs[0] if self.paired else math.comb(sum(self.inputs), self.inputs[0])
        alike = 2 if self.inputs[0] == self.inputs[1] else 1
        return alike / ways < LEVEL

    def words(self) -> list[str]:
        """The comparison in sentences, which are the same the other way round."""
        heads, differ, alike = len(self.heads), int(self.heads["differs"].sum()), int(self.heads["alike"].sum())
        alone = [f"{self.alone} heads are in one of the runs only."] if self.alone else []
        if not heads:
            return ["The runs have no head in common.", *alone]
        changed = f"{self.changed} of {heads} heads changed class"
        if min(self.inputs) == 0:
            return ["No prompt is finished in both runs: nothing can be compared.", *alone]
        if min(self.inputs) < 2:
            return [f"{changed}. One prompt says nothing about the next: no difference is tested.", *alone]
        more = "more than chance" if self.chance_p_value <= LEVEL else "not shown to be more than chance"
        how = (
            f"paired over {self.inputs[0]} prompts"
            if self.paired
            else f"the prompts are not the same, so they are not paired: {min(self.inputs)} and {max(self.inputs)}"
        )
        if not self.can_tell:
            how += "; too few to tell any difference from chance"
        usual = (
            f"By chance alone {self.chance_low:.0f} to {self.chance_high:.0f} heads would (95 % of the time)."
        )
        differs = f"{differ} of {heads} heads differ in a score by at least {LEAST_EFFECT:g} and by more than prompts do by themselves"
        return [
            f"{changed}, {more} (p = {self.chance_p_value:.2g}). {usual}",
            f"{differs} ({how}; at {LEVEL:.0%} over all heads together).",
            f"alike, within {2 * LEAST_EFFECT:.1f} in both scores: {alike}; undecided: {heads - differ - alike}.",
            *alone,
        ]


def compare(first: Sample, second: Sample, seed: int = 0) -> Comparison:
    """The second run against the first, head by head."""
    places = [sample.scores[SCORES[0]].columns for sample in (first, second)]
    shared = places[0].intersection(places[1]).sort_values()
    names = [name for name in first.scores if name in second.scores]
    tables = [{name: sample.scores[name][shared] for name in names} for sample in (first, second)]
    paired = first.prompts_hash is not None and first.prompts_hash == second.prompts_hash
    if paired:  # of a run that is going on, those inputs that are finished
        both = tables[0][SCORES[0]].index.intersection(tables[1][SCORES[0]].index)
        tables = [{name: table.loc[both] for name, table in one.items()} for one in tables]
    wide = [{name: table.to_numpy(dtype=float) for name, table in one.items()} for one in tables]
    together = {name: np.concatenate([one[name] for one in wide]) for name in names}
    inputs = (len(wide[0][SCORES[0]]), len(wide[1][SCORES[0]]))
    heads = pd.DataFrame(shared.to_list(), columns=HEAD)
    sizes: list[np.ndarray] = []
    changed: list[np.ndarray] = []
    deals = _deals(*inputs, paired, np.random.default_rng(seed))
    for part in np.array_split(deals, max(1, DEALS * len(heads) // AT_ONCE)):
        sizes.append(np.concatenate([_sizes(together[score], part, paired) for score in SCORES], axis=1))
        codes = [
            codes_of({name: resampled(scores, deal) for name, scores in together.items()}, sample.gamma)
            for deal, sample in ((part, first), (1 - part, second))
        ]
        if len(sizes) == 1:
            classes = [one[0] for one in codes]
        changed.append(((codes[0] >= 0) & (codes[1] >= 0) & (codes[0] != codes[1])).sum(-1))
    p_values = step_down(np.concatenate(sizes)).reshape(len(SCORES), -1)
    for which, one, code in zip(("first", "second"), wide, classes, strict=True):
        for score in SCORES:
            heads[f"{which}_{score}"] = resampled(one[score], np.ones((1, len(one[score]))))[0]
        heads[f"{which}_class"] = [CLASSES[k] if k >= 0 else None for k in code]
    apart = np.stack([np.abs(heads[f"second_{score}"] - heads[f"first_{score}"]) for score in SCORES])
    tested = min(inputs) > 1
    heads["p_value"] = p_values.min(0) if tested else np.nan
    heads["differs"] = ((p_values <= LEVEL) & (apart >= LEAST_EFFECT)).any(0) & tested
    alike = np.stack([_alike(together[score], deals[:1], paired) for score in SCORES]).all(0) & tested
    heads["alike"] = alike & ~heads["differs"]
    counts = np.concatenate(changed)
    low, high = np.quantile(counts, INTERVAL)
    return Comparison(
        heads=heads,
        paired=paired,
        inputs=inputs,
        alone=len(places[0]) + len(places[1]) - 2 * len(shared),
        changed=int(counts[0]),
        chance_low=float(low),
        chance_high=float(high),
        chance_p_value=float((counts >= counts[0]).mean()),
    )


def _deals(first: int, second: int, paired: bool, dice: np.random.Generator) -> np.ndarray:
    """Which of both runs' inputs, one run after the other, are the first run's, in every deal [deals, inputs]."""
    measured = np.repeat([1.0, 0.0], [first, second])
    deals = np.tile(measured, (DEALS, 1))
    if paired:
        turned = dice.integers(0, 2, size=(DEALS - 1, first))
        deals[1:] = np.abs(deals[1:] - np.concatenate([turned, turned], axis=1))
    else:
        deals[1:] = dice.permuted(deals[1:], axis=1)
    return deals


def _sizes(scores: np.ndarray, deals: np.ndarray, paired: bool) -> np.ndarray:
    """|d| / (e + 0.05) of every head in every deal [deals, heads]; 0 where a head has no score in either run."""
    mean, error = _differences(scores, deals, paired)
    return np.nan_to_num(np.abs(mean) / (error + LEAST_EFFECT))


def _alike(scores: np.ndarray, measured: np.ndarray, paired: bool) -> np.ndarray:
    """Which heads differ by less than 0.10 for certain, in the one deal that was measured [heads]."""
    from scipy.special import stdtrit

    ((mean,), (error,)) = _differences(scores, measured, paired)
    samples = len(scores) // 2 if paired else int(min(measured.sum(), (1 - measured).sum()))
    return np.asarray(np.abs(mean) + stdtrit(samples - 1, 1 - LEVEL) * error < 2 * LEAST_EFFECT)


def _differences(scores: np.ndarray, deals: np.ndarray, paired: bool) -> tuple[np.ndarray, np.ndarray]:
    """The second run's mean minus the first's, and its standard error, of every head in every deal [deals, heads]."""
    if paired:
        half = len(scores) // 2
        return _moments(scores[half:] - scores[:half], 2 * deals[:, :half] - 1)
    (a, first), (b, second) = (_moments(scores, deal) for deal in (deals, 1 - deals))
    return b - a, np.sqrt(first**2 + second**2)


def _moments(values: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of values [inputs, heads] taken so many times (or turned, at -1) in every deal, and its standard error."""
    known = ~np.isnan(values)
    filled, count = np.where(known, values, 0.0), np.abs(times) @ known
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = times @ filled / count
        variance = np.maximum(np.abs(times) @ filled**2 - count * mean**2, 0.0) / (count - 1)
        return mean, np.sqrt(variance / count)


def settings_that_differ(first: RunRecord, second: RunRecord) -> list[tuple[str, Any, Any]]:
    """The kind, the model and every setting that is not the same, with both values; prompts are compared elsewhere."""
    old, new = (flat({"kind": run.kind, "model": run.name, **run.settings}) for run in (first, second))
    names = [key for key in {**old, **new} if old.get(key) != new.get(key) and not key.endswith("_hash")]
    return [(key, old.get(key), new.get(key)) for key in names]


@dataclass(frozen=True)
class HeadScores:
    """The scores of a run's heads by tau, for the page of two runs side by side."""

    samples: dict[float, Sample]
    model: object
    """Fingerprint or name."""

    @classmethod
    def of(cls, page_run: PageRun) -> HeadScores | None:
        """None for a run without scores per prompt."""
        if "prompts" not in page_run.tables:
            return None
        run: Profile | SwapDepths = page_run.opened()
        taus = dict.fromkeys(float(tau) for tau in run.scored["tau"])
        samples = {tau: Sample.of(run, tau) for tau in taus}
        return cls(samples, page_run.run.settings.get("fingerprint") or page_run.run.name)

    def beside(self, other: HeadScores) -> Tab:
        """The comparison of all heads at every tau of both."""
        at = []
        for tau, other_tau in taus_of_both(self.samples, other.samples):
            compared = compare(self.samples[tau], other.samples[other_tau])
            tested = {name: column(compared.heads[name]) for name in ("p_value", "differs")}
            at.append({**sides(compared.heads, tau, other_tau), "words": compared.words(), **tested})
        words = ["The models are not the same: heads are matched by layer and number alone."]
        return {"at": at, "words": words if self.model != other.model else []}


def taus_of_both(first: dict[float, Any], second: dict[float, Any]) -> list[tuple[float, float]]:
    """The taus of both; where there is none, the first of each."""
    taus = [(tau, tau) for tau in first if tau in second]
    return taus or [(next(iter(first)), next(iter(second)))]


def sides(heads: pd.DataFrame, tau: float, other_tau: float) -> Tab:
    """Both scores and the class of every head in the first and in the second run, as the page stores them."""
    tab: Tab = {
        side: {score: column(heads[f"{side}_{score}"]) for score in SCORES}
        | {"class": [CLASSES.index(name) if isinstance(name, str) else -1 for name in heads[f"{side}_class"]]}
        | {"tau": value}
        for side, value in (("first", tau), ("second", other_tau))
    }
    return {**tab, "layer": column(heads["layer"]), "head": column(heads["head"])}
