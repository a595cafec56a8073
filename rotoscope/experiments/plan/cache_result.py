"""Which key heads keep all their keys and values: what every ranking costs at every share, and the plan that came of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.experiments.plan.result import Chosen, Plan, against_random, summarised
from rotoscope.runs.result import Table
from rotoscope.stats.verdict import BEYOND, LEVEL, NO_VERDICT, holm

PLAN, RANDOM, NOTHING = "plan", "random", "any"
"""The ranking that the plan takes at each share; random ones; where nobody or everybody streams, all are the same."""
AT = ["kept_share", "source"]


class CachePlan(Plan):
    """A cache plan: which key heads stream, and loss and accuracy of every way to choose them."""

    kind = "cache-plan"

    scores = Table(
        "One row per (ranking, draw, layer, key head): the number that ranks it, and its place (0 keeps longest)."
    )
    points = Table("One row per (ranking, draw, share kept, purpose, source, prompt): loss and accuracy.")
    heads = Table(
        "One row per key head: whether it streams under the plan, and its place in the ranking that was taken."
    )

    @property
    def keep(self) -> float:
        """The share of key heads that keep everything."""
        return float(self.run.settings["keep"])

    @property
    def shares(self) -> list[float]:
        """All shares that were looked at."""
        return sorted(self.points["kept_share"].unique().tolist())

    @cached_property
    def chosen(self) -> dict[float, str]:
        """At every share, the ranking that lost least on the task's prompts that are for choosing only."""
        rows = self.points[self.points["purpose"] == "choosing"]
        means = rows.groupby(["kept_share", "ranking"], sort=False)["loss"].mean().reset_index()
        best = means.loc[means.groupby("kept_share")["loss"].idxmin()]
        return dict(zip(best["kept_share"].tolist(), best["ranking"].tolist(), strict=True))

    @property
    def ranking(self) -> str:
        """The ranking of the plan itself."""
        return self.chosen.get(self.keep, NOTHING)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """What was measured on prompts that chose nothing, the plan's own rows among them."""
        rows = self.points[self.points["purpose"] == "judging"]
        taken = [
            rows[(rows["kept_share"] == at) & (rows["ranking"] == name)] for at, name in self.chosen.items()
        ]
        ends = rows[rows["ranking"] == NOTHING]
        return pd.concat([rows, *(part.assign(ranking=PLAN) for part in [*taken, ends])], ignore_index=True)

    @cached_property
    def frontier(self) -> pd.DataFrame:
        """Loss and accuracy by ranking, share and source, with 95 % intervals over prompts; draws are averaged."""
        found = summarised(self.judged, ["ranking", *AT])
        return found.sort_values(["source", "ranking", "kept_share"], kind="stable", ignore_index=True)

    @cached_property
    def lost(self) -> dict[str, float]:
        """Sources on which the model with all its keys and values does no better than guessing, and what it loses there."""
        rows = self.judged
        return self.at_chance(rows[(rows["ranking"] == NOTHING) & (rows["kept_share"] == 1)])

    @cached_property
    def against_random(self) -> pd.DataFrame:
        """Is the plan more than a random choice? One row per share and source, by the rule for nulls."""
        choices = []
        for (share, source), some in self._chosen_at():
            own = some[some["ranking"] == PLAN].set_index("prompt")["loss"]
            drawn = some[some["ranking"] == RANDOM].pivot(index="prompt", columns="draw", values="loss")
            about = {"kept_share": share, "source": source, "ranking": self.chosen[share]}
            choices.append(Chosen(about, own, drawn, source in self.lost))
        return against_random(choices, [*AT, "ranking"])

    @cached_property
    def against_others(self) -> pd.DataFrame:
        """The plan beside every other ranking on the same prompts: the difference in loss, below 0 where the plan loses less.

        Told apart by a paired t-test with Holm's correction over all rows. Random choices are not among them: the draws differ,
        which prompts alone do not tell, and `against_random` does.
        """
        from scipy.special import stdtr

        rows = []
        for (share, source), some in self._chosen_at():
            wide = some[some["ranking"] != RANDOM].pivot(index="prompt", columns="ranking", values="loss")
            for name in wide.columns.drop(PLAN):
                apart = (wide[PLAN] - wide[name]).to_numpy(dtype=float)
                error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.nan
                p = 1.0 if error == 0 else 2 * float(stdtr(len(apart) - 1, -abs(apart.mean()) / error))
                rows.append({"kept_share": share, "source": source, "ranking": name, "difference": apart.mean(), "p_value": p})  # fmt: skip
        found = pd.DataFrame(rows, columns=[*AT, "ranking", "difference", "p_value"])
        same = (found["ranking"] == found["kept_share"].map(self.chosen)).to_numpy(dtype=bool)
        lost = found["source"].isin(list(self.lost)).to_numpy(dtype=bool)
        told = ~same & ~lost
        found.loc[lost, "p_value"] = np.nan
        found.loc[told, "p_value"] = holm(found.loc[told, "p_value"].to_numpy(dtype=float))
        sure = told & (found["p_value"] < LEVEL).to_numpy(dtype=bool)
        words = np.where(found["difference"] < 0, "the plan loses less", "the plan loses more")
        words = np.where(sure, words, np.where(lost, NO_VERDICT, "not told apart"))
        return found.assign(verdict=np.where(same, "the plan's own", words))

    def _chosen_at(self) -> Iterator[tuple[tuple[float, str], pd.DataFrame]]:
        """What was measured at every share at which there was something to choose, by source."""
        for (share, source), some in self.judged.groupby(AT, sort=True):
            if share in self.chosen:
                yield (share, source), some

    def memory_share(self, tokens: int) -> float:
        """The share of the key-value cache that is left at so many tokens."""
        settings = self.run.settings
        streamed = min(1.0, (settings["sinks"] + settings["window"]) / tokens)
        kept = 1 - float(self.heads["streams"].mean())
        return kept + (1 - kept) * streamed

    def table(self, source: str, measure: str = "loss") -> pd.DataFrame:
        """One source: a row for every ranking, a column for every share kept."""
        some = self.frontier[self.frontier["source"] == source]
        wide = some.pivot(index="ranking", columns="kept_share", values=measure)
        ends = wide.loc[NOTHING] if NOTHING in wide.index else pd.Series(dtype=float)
        wide = wide.drop(index=NOTHING, errors="ignore").fillna(ends)
        best = (
            wide.get(self.keep, wide.iloc[:, 0]).sort_values(kind="stable", ascending=measure == "loss").index
        )
        order = [PLAN, *(name for name in best if name != PLAN)] if PLAN in wide.index else list(best)
        return wide.loc[order].rename(columns=_percent).rename_axis(columns=None).reset_index()

    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        prompts = self.run.settings["prompts"]
        found = []
        for source in self.run.settings["sources"]:
            title = (
                f"loss on {source} by the share of key heads that keep everything, mean of {prompts} prompts"
            )
            found.append((title, self.table(source)))
        if self.drawn and len(self.against_random):
            shown = [
                "kept_share",
                "source",
                "ranking",
                "loss",
                "null_value",
                "null_low",
                "null_high",
                "verdict",
            ]
            beside = self.against_random[shown].rename(columns=lambda name: name.replace("null", "random"))
            found.append(("the plan beside random choices, corrected for all rows", beside))
        worse = self.against_others[self.against_others["verdict"] == "the plan loses more"]
        if len(worse):
            found.append(("where another ranking loses less than the plan's, beyond noise", worse))
        return found

    @property
    def drawn(self) -> bool:
        """Whether random choices were measured."""
        return bool((self.points["ranking"] == RANDOM).any())

    def sentences(self) -> list[str]:
        settings, heads = self.run.settings, self.heads
        streams, count = int(heads["streams"].sum()), len(heads)
        decided = (
            f"{count - streams} of {count} key heads keep everything, {streams} stream (the first {settings['sinks']} tokens and "
            f"the last {settings['window']})"
        )
        said = [f"{decided}, {self._why(streams, count)}"]
        said.append(
            "key-value cache left: "
            + ", ".join(f"{self.memory_share(n):.0%} at {n:,} tokens" for n in (2048, 8192, 32768))
        )
        at = self.against_random[self.against_random["kept_share"] == self.keep]
        said += [self._beside_random(row) for row in at.to_dict("records") if row["source"] not in self.lost]
        return said + self.about_chance(self.lost)

    def _why(self, streams: int, count: int) -> str:
        """What the choice rests on, where there was one."""
        if streams in (0, count):
            return "so there was nothing to choose"
        task = self.run.settings["task"]
        names = [name for name in self.run.settings["rankings"] if name != RANDOM]
        if len(names) == 1:
            return f"chosen by {self.ranking}, the only ranking that was asked for"
        least = f"chosen by {self.ranking}: it loses least on {task} among {len(names)} rankings, on prompts that the tables do not show"
        return f"{least}; where the model only guesses, that means nothing" if task in self.lost else least

    @staticmethod
    def _beside_random(row: dict[str, Any]) -> str:
        """What a source says of the plan beside random choices."""
        loss = f"on {row['source']}: loss {row['loss']:.2f}"
        if not row["null_draws"]:
            return f"{loss}; random choices were not measured"
        if row["verdict"] == NO_VERDICT:
            return f"{loss}, random choices {row['null_value']:.2f}: {row['reason']}"
        word = "better than" if row["effect"] < 0 else "worse than"
        word = word if row["verdict"] == BEYOND else "not told apart from"
        return f"{loss}, {word} random choices ({row['null_value']:.2f})"

    def caveats(self) -> list[str]:
        settings, found = self.run.settings, []
        if self.ranking != NOTHING:
            found.append(
                f"ranked on {settings['task']} with a window of {settings['window']} tokens: another task or window may need other heads"
            )
        if settings["prompts"] < 4:
            found.append(
                f"{settings['prompts']} prompts of each source say little about how sure the differences are"
            )
        return found

    def __repr__(self) -> str:
        return f"CachePlan({self.name!r}: {int((~self.heads['streams']).sum())} of {len(self.heads)} key heads keep everything)"


def _percent(share: float) -> str:
    """A share as the head of a column: as many digits as keep any two apart."""
    return f"{100 * share:.10g} %"
