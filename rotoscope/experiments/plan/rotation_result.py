"""Which planes of every key head go on rotating, and what other choices of as many planes would lose."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from rotoscope.experiments.plan.result import Chosen, Plan, against_random, interval_of, summarised
from rotoscope.runs.result import Table
from rotoscope.stats.verdict import BEYOND, NO_VERDICT

RANDOM, ALL, NONE = "random", "all rotate", "none rotates"
EFFECT = "effect"
"""The ranking by what stopping a plane would cost; the others are baselines."""
KEYS = ["ranking", "planes", "source"]


class RotationPlan(Plan):
    """A plan of planes. Frequency ids count from 1, the fastest; layers and key heads from 0."""

    kind = "rotation-plan"

    plan = Table(
        "One row per (layer, key head, frequency id): its angle, its rank (0 is kept first), whether it rotates."
    )
    scores = Table(
        "One row per (layer, key head, frequency id): what every ranking goes by, the larger the earlier kept."
    )
    selection = Table(
        "One row per (ranking, source, prompt) at the number asked for: losses the ranking was chosen by."
    )
    frontier = Table(
        "One row per (ranking, draw, planes, source, prompt): loss and accuracy with so many planes rotating."
    )

    @property
    def planes(self) -> int:
        """How many planes of a key head rotate."""
        return int(self.run.settings["planes"])

    @property
    def total(self) -> int:
        """How many planes a head has, in the layers with the most."""
        return int(self.plan["frequency_id"].max())

    @property
    def sources(self) -> list[str]:
        """What losses were measured on."""
        return list(dict.fromkeys(self.frontier["source"]))

    @cached_property
    def chosen(self) -> str:
        """The ranking that the plan follows: the one that lost least on the prompts of the selection, random ones aside."""
        means = self.selected_by()
        named = means[means["ranking"] != RANDOM]
        return str((named if len(named) else means)["ranking"].iloc[0])

    def selected_by(self) -> pd.DataFrame:
        """Mean loss of every ranking over sources, on the prompts of the selection, the least first."""
        rows = self.selection.groupby(["ranking", "source"], sort=False)["loss"].mean().unstack("source")
        return rows.mean(axis=1).rename("loss").sort_values(kind="stable").reset_index()

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per ranking, number of planes and source: mean loss and accuracy with 95 % intervals over prompts.

        Random draws are averaged per prompt.
        """
        return summarised(self.frontier, KEYS)

    def curve(self, ranking: str) -> pd.DataFrame:
        """The summary of one ranking from none to all of the planes."""
        rows = self.summary
        return rows[rows["ranking"].isin((ranking, ALL, NONE))].sort_values(["source", "planes"])

    def at(self, planes: int) -> pd.DataFrame:
        """Loss of every ranking at a number of planes, a column per source, those that lose least on the whole first."""
        rows = self.summary[(self.summary["planes"] == planes) | self.summary["ranking"].isin((ALL, NONE))]
        wide = pd.DataFrame({"ranking": list(dict.fromkeys(rows["ranking"]))})
        for source in self.sources:
            own = rows[rows["source"] == source].set_index("ranking").reindex(wide["ranking"])
            for name in ("", "_low", "_high"):
                wide[f"{source}{name}"] = own[f"loss{name}"].to_numpy()
            wide[f"{source}_accuracy"] = own["accuracy"].to_numpy()
        order = wide[self.sources].mean(axis=1).sort_values(kind="stable").index
        return wide.loc[order].reset_index(drop=True)

    @property
    def nothing_to_choose(self) -> bool:
        """Whether no plane rotates, or all do: every ranking is the same then."""
        return self.planes in (0, self.total)

    @cached_property
    def lost(self) -> dict[str, float]:
        """Sources on which the model with all its planes rotating does no better than guessing, and what it loses there."""
        return self.at_chance(self.frontier[self.frontier["ranking"] == ALL])

    @cached_property
    def beside_random(self) -> pd.DataFrame:
        """Every ranking beside random ones, at the number of planes asked for: one row per ranking and source.

        `effect` is the mean over prompts of its loss minus that of the random rankings, and the verdict that of
        `rotoscope.stats.verdicts`, all rows together.
        """
        choices = []
        for source in self.sources:
            wide = self._wide(source)
            random = wide.filter(regex=f"^{RANDOM} ")
            for ranking in dict.fromkeys(self.selection["ranking"]):
                if ranking != RANDOM and not random.empty:
                    about = {"ranking": ranking, "source": source}
                    choices.append(Chosen(about, wide[f"{ranking} -1"], random, source in self.lost))
        return against_random(choices, ["ranking", "source"])

    def beside(self, ranking: str, other: str) -> pd.DataFrame:
        """What one ranking loses more than another at the number of planes asked for, by source, over the same prompts."""
        rows = []
        for source in self.sources:
            wide = self._wide(source)
            one, two = (wide.filter(regex=f"^{name} -?[0-9]+$").mean(axis=1) for name in (ranking, other))
            apart = one - two
            low, high = interval_of(apart)
            rows.append({"source": source, "difference": apart.mean(), "low": low, "high": high})
        return pd.DataFrame(rows)

    def _wide(self, source: str) -> pd.DataFrame:
        """Losses at the number of planes asked for: a row per prompt, a column per ranking and draw."""
        rows = self.frontier[(self.frontier["planes"] == self.planes) & (self.frontier["source"] == source)]
        names = rows["ranking"] + " " + rows["draw"].astype(str)
        return rows.assign(name=names).pivot(index="prompt", columns="name", values="loss")

    def sentences(self) -> list[str]:
        """What was decided, by what, and where a simpler choice would have done as well."""
        means = self.selected_by().set_index("ranking")["loss"]
        chosen = self.chosen
        decided = f"{self.planes} of {self.total} planes of every key head go on rotating"
        if self.nothing_to_choose:
            return [f"{decided}, so there was nothing to choose.", *self.about_chance(self.lost)]
        why = f"it lost least on prompts that are not those below (mean loss {means[chosen]:.2f} over {', '.join(self.sources)})"
        if len(means) == 1:
            why = "no other ranking was asked for"
        said = [f"{decided}, ranked by {chosen}: {why}."]
        if len(self.lost) < len(self.sources):
            said += [self._against_baselines(), *self._against_random()]
        return said + self.about_chance(self.lost)

    def _against_baselines(self) -> str:
        names = self.selected_by()["ranking"].tolist()
        others = [name for name in names if name not in (EFFECT, RANDOM)]
        if EFFECT not in names or not others:
            return f"{EFFECT} was not compared with a baseline."
        table = self.beside(EFFECT, others[0])
        table = table[~table["source"].isin(list(self.lost))]
        words = [
            f"{row.difference:+.2f} [{row.low:+.2f}, {row.high:+.2f}] on {row.source}"
            for row in table.itertuples()
        ]
        worse = table.loc[table["low"] > 0, "source"].tolist()
        better = table.loc[table["high"] < 0, "source"].tolist()
        verdict = (
            f"it loses less on {' and '.join(better)}"
            if better
            else "it loses less on nothing, beyond what prompts differ by"
        )
        verdict += f", and more on {' and '.join(worse)}" if worse else ""
        used = (
            ""
            if self.chosen == EFFECT
            else f" The plan uses the baseline {self.chosen}: {EFFECT} lost no less where it was chosen."
        )
        return f"{EFFECT} beside the best baseline, {others[0]}: {', '.join(words)}; {verdict}.{used}"

    def _against_random(self) -> list[str]:
        table = self.beside_random
        if table.empty or self.chosen == RANDOM:
            return []
        own = table[(table["ranking"] == self.chosen) & ~table["source"].isin(list(self.lost))]
        unsaid = own.loc[own["verdict"] == NO_VERDICT, "reason"].tolist()
        if len(unsaid) == len(own):
            return [f"Nothing is said of {self.chosen} beside random planes ({unsaid[0]})."]
        sure = own["verdict"] == BEYOND
        better, worse = (
            own.loc[sure & side, "source"].tolist() for side in (own["effect"] < 0, own["effect"] > 0)
        )
        rest = own.loc[~sure, "source"].tolist()
        said = [f"{self.chosen} is better than random planes on {' and '.join(better)}."] if better else []
        if worse:
            said.append(f"On {' and '.join(worse)} {self.chosen} is worse than random planes.")
        if rest:
            said.append(
                f"On {' and '.join(rest)} {self.chosen} is not better than random planes, as far as these prompts tell."
            )
        return said

    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        """Loss at the number of planes asked for, then at all numbers."""
        numbers = sorted({int(p) for p in self.frontier["planes"]} - {0, self.total, self.planes})
        titles = [(p, f"loss with {p} of {self.total} planes rotating") for p in [self.planes, *numbers]]
        made = [(f"{title}, 95 % intervals over prompts", self.at(p)) for p, title in titles]
        order = [
            "ranking",
            "source",
            "loss",
            "effect",
            "low",
            "high",
            "null_value",
            "null_low",
            "null_high",
            "p_value",
            "verdict",
        ]
        if len(self.beside_random):
            beside = self.beside_random[order].rename(columns=lambda name: name.replace("null", "random"))
            made.append(("loss beside random planes (less is better)", beside))
        return made

    def kept(self) -> pd.DataFrame:
        """How many key heads of a layer keep every frequency id: one row per layer, one column per id."""
        rows = self.plan.pivot_table(index="layer", columns="frequency_id", values="rotates", aggfunc="sum")
        return rows.astype(float)

    def caveats(self) -> list[str]:
        """Whether there were few prompts."""
        prompts = int(self.frontier.groupby("source")["prompt"].nunique().min())
        few = f"{prompts} prompts of each source: differences that are small beside the intervals say nothing"
        return [few] if prompts < 8 else []

    def __repr__(self) -> str:
        by = "" if self.nothing_to_choose else f" by {self.chosen}"
        return f"RotationPlan({self.name!r}: {self.planes} of {self.total} planes{by})"
