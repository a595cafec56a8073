"""Plans: what was decided, what every ranking loses at every budget, and whether the plan is better than a random choice.

Choices are compared on the same prompts, since what a prompt costs every choice alike says nothing about a choice. Where the model
itself does no better than guessing, nothing is called better or worse.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from rotoscope.experiments.plan.settings import RANDOM
from rotoscope.runs.result import SavedRun, Table
from rotoscope.stats.intervals import INTERVAL, mean_interval
from rotoscope.stats.verdict import BEYOND, LEVEL, NO_VERDICT, UNDECIDED, Figure, Verdict, holm, verdicts

PLAN, ANY = "plan", "any"
"""The ranking that the plan takes at each budget; where nothing or everything is kept, all rankings are the same."""
LOSES_LESS, LOSES_MORE = "the plan loses less", "the plan loses more"
if TYPE_CHECKING:
    from rotoscope.terminal import Screen

MEASURES = {"loss": np.inf, "accuracy": 1.0}
"""What is measured on every prompt, and the most that it can be."""
AT_CHANCE = "the model itself does no better than guessing there"
FEW_PROMPTS = 4


class Plan(SavedRun, ABC):
    """A decision about a model, with what was measured beside random choices and other rankings."""

    budget_column: ClassVar[str]
    budget_words: ClassVar[str]
    unit_table: ClassVar[str]
    unit_words: ClassVar[tuple[str, str]]
    """What is kept or dropped, and what it does where it is kept."""
    ranked_within: ClassVar[list[str]] = []
    compared_by: ClassVar[list[str]] = ["layer"]

    points = Table("One row per (ranking, draw, budget, purpose, source, prompt): loss and accuracy.")
    scores = Table(
        "One row per (ranking, draw, unit): the number that ranks it, and its place (0 is kept first)."
    )

    @property
    @abstractmethod
    def budget(self) -> float:
        """How much was to be kept."""

    def screen(self) -> Screen:
        """What a terminal shows: what was decided, and the losses beside other choices."""
        from rotoscope.terminal import Grid, Screen

        tables = self.overview()
        details = [(title, lambda table=table: table) for title, table in tables]
        title, first = tables[0]
        return Screen(found=self.sentences(), against=[title, Grid.of(first)], details=details)

    @abstractmethod
    def kept_units(self) -> pd.Series:
        """Whether the plan keeps a unit, by its columns."""

    @abstractmethod
    def decision(self) -> str:
        """What was decided, in words."""

    @property
    def sources(self) -> list[str]:
        """What losses were measured on."""
        return list(self.run.settings["sources"])

    @property
    def budgets(self) -> list[float]:
        """All budgets that were measured."""
        return sorted(self.points[self.budget_column].unique().tolist())

    @cached_property
    def chosen(self) -> dict[float, str]:
        """At every budget, the ranking that lost least on the prompts that are for choosing only."""
        rows = self.points[self.points["purpose"] == "choosing"]
        by_source = rows.groupby([self.budget_column, "ranking", "source"], sort=False)["loss"].mean()
        means = by_source.groupby(level=[0, 1], sort=False).mean().reset_index()
        best = means.loc[means.groupby(self.budget_column)["loss"].idxmin()]
        return dict(zip(best[self.budget_column].tolist(), best["ranking"].tolist(), strict=True))

    @property
    def ranking(self) -> str:
        """The ranking of the plan itself."""
        return self.chosen.get(self.budget, ANY)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """Losses on prompts that chose nothing, the plan's own rows among them."""
        rows = self.points[self.points["purpose"] == "judging"]
        budget, ranking = rows[self.budget_column], rows["ranking"]
        parts = [rows[(budget == at) & (ranking == name)] for at, name in self.chosen.items()]
        parts.append(rows[ranking == ANY])
        return pd.concat([rows, *(part.assign(ranking=PLAN) for part in parts)], ignore_index=True)

    @cached_property
    def frontier(self) -> pd.DataFrame:
        """Loss and accuracy by ranking, budget and source: 95 % intervals over prompts, of random choices the spread of the draws."""
        table = summarised(self.judged, ["ranking", self.budget_column, "source"])
        order = ["source", "ranking", self.budget_column]
        return table.sort_values(order, kind="stable", ignore_index=True)

    @cached_property
    def guessed(self) -> dict[str, float]:
        """Sources on which the unchanged model does no better than guessing, and what it loses there."""
        rows = self.judged[self.judged["ranking"] == ANY]
        rows = rows[rows[self.budget_column] == rows[self.budget_column].max()]
        by_source = rows.groupby("source", sort=False)["loss"]
        return {str(source): float(losses.mean()) for source, losses in by_source if self._guesses(losses)}

    @property
    def chance(self) -> float | None:
        """The loss of guessing among all tokens; none where the run does not say how many there are."""
        vocabulary = self.run.settings.get("vocabulary")
        return None if vocabulary is None else math.log(int(vocabulary))

    def _guesses(self, losses: pd.Series) -> bool:
        """Whether losses are not below those of guessing, beyond noise; of one prompt, whether its loss is not."""
        if self.chance is None or losses.empty:
            return False
        _, high = interval_of(losses - self.chance)
        return not (float(losses.mean() - self.chance) if math.isnan(high) else high) < 0

    @cached_property
    def against_random(self) -> pd.DataFrame:
        """Is the plan more than a random choice? One row per budget and source, by the rule for nulls over all of them."""
        choices = []
        for (budget, source), rows in self._by_budget():
            losses = rows[rows["ranking"] == PLAN].set_index("prompt")["loss"]
            draws = rows[rows["ranking"] == RANDOM].pivot(index="prompt", columns="draw", values="loss")
            labels = {self.budget_column: budget, "source": source, "ranking": self.chosen[budget]}
            choices.append(Choice(labels, losses, draws, source in self.guessed))
        return against_random(choices, [self.budget_column, "source", "ranking"])

    @cached_property
    def against_others(self) -> pd.DataFrame:
        """The plan beside every other ranking on the same prompts: the difference in loss, below 0 where the plan loses less.

        Judged by a paired t-test with Holm's correction over all rows; random choices stand in `against_random`.
        """
        rows = []
        for (budget, source), losses in self._by_budget():
            wide = losses[losses["ranking"] != RANDOM].pivot(index="prompt", columns="ranking", values="loss")
            for name in wide.columns.drop(PLAN):
                difference = wide[PLAN] - wide[name]
                low, high = interval_of(difference)
                row = {self.budget_column: budget, "source": source, "ranking": name}
                row |= {"difference": difference.mean(), "low": low, "high": high}
                rows.append(row | {"p_value": paired_p_value(difference.to_numpy(dtype=float))})
        columns = [self.budget_column, "source", "ranking", "difference", "low", "high", "p_value"]
        table = pd.DataFrame(rows, columns=columns)
        same = (table["ranking"] == table[self.budget_column].map(self.chosen)).to_numpy(dtype=bool)
        guessed = table["source"].isin(list(self.guessed)).to_numpy(dtype=bool)
        tested = ~same & ~guessed
        table.loc[guessed, "p_value"] = np.nan
        table.loc[tested, "p_value"] = holm(table.loc[tested, "p_value"].to_numpy(dtype=float))
        sure = tested & (table["p_value"] < LEVEL).to_numpy(dtype=bool)
        words = np.where(table["difference"] < 0, LOSES_LESS, LOSES_MORE)
        words = np.where(sure, words, np.where(guessed, NO_VERDICT, "not told apart"))
        return table.assign(verdict=np.where(same, "the plan's own", words))

    def _by_budget(self) -> Iterator[tuple[tuple[float, str], pd.DataFrame]]:
        """The judged rows of every budget at which there was a choice, by source."""
        for (budget, source), rows in self.judged.groupby([self.budget_column, "source"], sort=True):
            if budget in self.chosen:
                yield (budget, source), rows

    @property
    def random_draws(self) -> int:
        """How many random choices were measured."""
        return int(self.points.loc[self.points["ranking"] == RANDOM, "draw"].nunique())

    def table(self, source: str, measure: str = "loss") -> pd.DataFrame:
        """One source: a row for every ranking, a column for every budget."""
        rows = self.frontier[self.frontier["source"] == source]
        wide = rows.pivot(index="ranking", columns=self.budget_column, values=measure)
        ends = wide.loc[ANY] if ANY in wide.index else pd.Series(dtype=float)
        wide = wide.drop(index=ANY, errors="ignore").fillna(ends)
        at_budget = wide.get(self.budget, wide.iloc[:, 0])
        best = at_budget.sort_values(kind="stable", ascending=measure == "loss").index
        order = [PLAN, *(name for name in best if name != PLAN)] if PLAN in wide.index else list(best)
        return wide.loc[order].rename(columns=self.column_name).rename_axis(columns=None).reset_index()

    @staticmethod
    def column_name(budget: float) -> str:
        """A budget as the head of a column."""
        return f"{budget:g}"

    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        """The tables that one reads first, each with its title."""
        prompts = self.run.settings["prompts"]
        title = f"loss on {{}} by the {self.budget_words}, mean of {prompts} prompts"
        tables = [(title.format(source), self.table(source)) for source in self.sources]
        if self.random_draws and len(self.against_random):
            columns = [self.budget_column, "source", "ranking", "loss", "null_value", "null_low", "null_high", "p_value", "verdict"]  # fmt: skip
            beside = self.against_random[columns].rename(columns=lambda name: name.replace("null", "random"))
            title = f"the plan beside {self.random_draws} random choices on the same prompts, corrected for all rows"
            tables.append((title, beside))
        worse = self.against_others[self.against_others["verdict"] == LOSES_MORE]
        if len(worse):
            tables.append(("where another ranking loses less than the plan's, beyond noise", worse))
        return tables

    def sentences(self) -> list[str]:
        """What was decided, by what, and whether a random choice would have done as well."""
        rows = self.against_random[self.against_random[self.budget_column] == self.budget]
        rows = rows[~rows["source"].isin(list(self.guessed))]
        return [
            f"{self.decision()}, {self._reason()}.",
            *self.consequences(),
            *map(self._beside_random, rows.to_dict("records")),
            *self._about_guessed(),
        ]

    def consequences(self) -> list[str]:
        """What follows from the decision alone."""
        return []

    def _reason(self) -> str:
        """What the choice rests on, where there was one."""
        if self.ranking == ANY:
            return "so there was nothing to choose"
        names = [name for name in self.run.settings["rankings"] if name != RANDOM]
        if len(names) == 1:
            return f"chosen by {self.ranking}, the only ranking that was asked for"
        tasks = self.ranked_on
        reason = (
            f"chosen by {self.ranking}: it loses least on {', '.join(tasks)} among {len(names)} rankings, on prompts that the "
            "tables do not show"
        )
        return (
            f"{reason}; where the model only guesses, that means nothing"
            if {*tasks} & {*self.guessed}
            else reason
        )

    @property
    def ranked_on(self) -> list[str]:
        """Sources of the prompts that rankings were made and chosen on."""
        return self.sources

    @staticmethod
    def _beside_random(row: Mapping[str, Any]) -> str:
        """What a source says of the plan beside random choices."""
        loss = f"On {row['source']} the plan loses {row['loss']:.2f}"
        if not row["null_draws"]:
            return f"{loss}; random choices were not measured."
        if row["verdict"] in (NO_VERDICT, UNDECIDED):
            return f"{loss}, random choices {row['null_value']:.2f}: {row['verdict']}, {row['reason']}."
        word = "better than" if row["effect"] < 0 else "worse than"
        word = word if row["verdict"] == BEYOND else "as good as"
        return f"{loss}: {word} random choices ({row['null_value']:.2f})."

    def _about_guessed(self) -> list[str]:
        return [
            f"On {source} the model as it is loses {loss:.2f}, no better than guessing ({self.chance:.2f}): nothing is said to be "
            "better or worse there."
            for source, loss in self.guessed.items()
        ]

    def caveats(self) -> list[str]:
        caveats, prompts = [], int(self.run.settings["prompts"])
        if self.ranking != ANY:
            caveats.append(self._ranked_caveat())
        if prompts < FEW_PROMPTS:
            caveats.append(f"{prompts} prompts of each source say little about how sure the differences are")
        return caveats

    def _ranked_caveat(self) -> str:
        return f"ranked on {', '.join(self.ranked_on)}: another task may need others"


class CachePlan(Plan):
    """A cache plan: which key heads stream, and loss and accuracy of every way to choose them."""

    kind = "cache-plan"
    budget_column = "kept_share"
    budget_words = "share of key heads that keep everything"
    unit_table, unit_words = "heads", ("key heads", "keep everything")
    compared_by: ClassVar = ["layer", "key_head"]

    heads = Table(
        "One row per key head: whether it streams under the plan, and its place in the ranking that was taken."
    )

    @property
    def keep(self) -> float:
        """The share of key heads that keep everything."""
        return float(self.run.settings["keep"])

    budget = keep

    @property
    def ranked_on(self) -> list[str]:
        return [str(self.run.settings["task"])]

    @staticmethod
    def column_name(budget: float) -> str:
        """As many digits as keep any two shares apart."""
        return f"{100 * budget:.10g} %"

    def kept_units(self) -> pd.Series:
        return ~self.heads.set_index(["layer", "key_head"])["streams"].astype(bool)

    def memory_share(self, tokens: int) -> float:
        """The share of the key-value cache that is left at so many tokens."""
        settings = self.run.settings
        streamed = min(1.0, (settings["sinks"] + settings["window"]) / tokens)
        full = 1 - float(self.heads["streams"].mean())
        return full + (1 - full) * streamed

    def decision(self) -> str:
        settings, streams, count = self.run.settings, int(self.heads["streams"].sum()), len(self.heads)
        return (
            f"{count - streams} of {count} key heads keep everything, {streams} stream (the first {settings['sinks']} tokens and "
            f"the last {settings['window']})"
        )

    def consequences(self) -> list[str]:
        shares = ", ".join(f"{self.memory_share(n):.0%} at {n:,} tokens" for n in (2048, 8192, 32768))
        return [f"Key-value cache left: {shares}."]

    def _ranked_caveat(self) -> str:
        settings = self.run.settings
        return f"ranked on {settings['task']} with a window of {settings['window']} tokens: another task or window may need other heads"

    def __repr__(self) -> str:
        return f"CachePlan({self.name!r}: {int((~self.heads['streams']).sum())} of {len(self.heads)} key heads keep everything)"


class RotationPlan(Plan):
    """A plan of planes. Frequency ids count from 1, the fastest; layers and key heads from 0."""

    kind = "rotation-plan"
    budget_column = "planes"
    budget_words = "planes of a key head that rotate"
    unit_table, unit_words = "plan", ("planes", "rotate")
    ranked_within: ClassVar = ["layer", "key_head"]

    plan = Table(
        "One row per (layer, key head, frequency id): its angle, its rank (0 is kept first), whether it rotates."
    )

    @property
    def planes(self) -> int:
        """How many planes of a key head rotate."""
        return int(self.run.settings["planes"])

    budget = planes

    @property
    def total(self) -> int:
        """How many planes a head has, in the layers with the most."""
        return int(self.plan["frequency_id"].max())

    def kept_units(self) -> pd.Series:
        return self.plan.set_index(["layer", "key_head", "frequency_id"])["rotates"]

    def heads_per_plane(self) -> pd.DataFrame:
        """How many key heads of a layer keep every frequency id: one row per layer, one column per id."""
        rows = self.plan.pivot_table(index="layer", columns="frequency_id", values="rotates", aggfunc="sum")
        return rows.astype(float)

    def decision(self) -> str:
        return f"{self.planes} of {self.total} planes of every key head go on rotating"

    def _ranked_caveat(self) -> str:
        return f"ranked on {', '.join(self.ranked_on)}: other tasks, or longer prompts, may need other planes"

    def __repr__(self) -> str:
        by = "" if self.ranking == ANY else f" by {self.ranking}"
        return f"RotationPlan({self.name!r}: {self.planes} of {self.total} planes{by})"


def interval_of(values: pd.Series) -> tuple[float, float]:
    """Both ends of the 95 % interval of a mean over prompts; differences know no bounds."""
    [low], [high] = mean_interval(values.to_numpy(dtype=float)[:, None])
    return float(low), float(high)


def paired_p_value(difference: np.ndarray) -> float:
    """The p-value of a paired t-test; NaN for one prompt."""
    from scipy.special import stdtr

    n = len(difference)
    error = difference.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
    if error == 0:
        return float(difference.mean() == 0)
    return 2 * float(stdtr(n - 1, -abs(difference.mean()) / error))


def summarised(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Loss and accuracy of each group with a range: the 95 % interval over prompts, or where there are draws, 95 % of the draws."""
    table = []
    for key, group in rows.groupby(keys, sort=False, dropna=False):
        row = dict(zip(keys, key, strict=True))
        for measure, most in MEASURES.items():
            draws = group.groupby("draw")[measure].mean().to_numpy(dtype=float)
            if len(draws) > 1:
                low, high = np.quantile(draws, INTERVAL)
            else:
                [low], [high] = mean_interval(group[[measure]].to_numpy(dtype=float), (0.0, most))
            row |= {measure: draws.mean(), f"{measure}_low": low, f"{measure}_high": high}
        table.append(row | {"prompts": group["prompt"].nunique(), "draws": len(draws)})
    return pd.DataFrame(table)


@dataclass(frozen=True)
class Choice:
    """A choice beside random ones, on the same prompts."""

    labels: dict[str, Any]
    """What the choice is, column by column."""
    losses: pd.Series
    """By prompt."""
    draws: pd.DataFrame
    """By prompt and, column by column, draw; of some of the prompts or all."""
    at_chance: bool = False

    @property
    def paired(self) -> pd.Series:
        """The losses on the prompts of the draws."""
        return self.losses.reindex(self.draws.index) if len(self.draws.columns) else self.losses


def against_random(choices: Sequence[Choice], columns: Sequence[str]) -> pd.DataFrame:
    """Is a choice more than a random one? One row for each, by the rule for nulls (`rotoscope.stats.verdict`) over all of them.

    `effect` is the mean over prompts of its loss minus the mean of the random draws on the same prompt, and the error that the
    rule takes is that of this difference: what a prompt costs every choice alike is in neither. The null's columns are losses.
    """
    rows, figures = [], []
    for choice in choices:
        losses, draws = choice.paired, choice.draws.mean().tolist()
        # Without a draw there is no difference: what the choice loses is shown all the same.
        difference = losses - choice.draws.mean(axis=1) if draws else losses * np.nan
        low, high = interval_of(difference)
        loss = float(losses.mean())
        rows.append(
            choice.labels | {"loss": loss, "effect": float(difference.mean()), "low": low, "high": high}
        )
        error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
        figures.append(Figure(np.nan if choice.at_chance else loss, error, draws))
    names = [field.name for field in fields(Verdict)]
    beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)], columns=names)
    table = pd.DataFrame(rows, columns=[*columns, "loss", "effect", "low", "high"])
    table = pd.concat([table, beside], axis=1)
    at_chance = [choice.at_chance for choice in choices]
    table.loc[at_chance, ["verdict", "reason"]] = NO_VERDICT, AT_CHANCE
    return table
