"""Which key heads keep all their keys and values: what every ranking costs at every share, and the plan that came of it."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property

import numpy as np
import pandas as pd

from rotoscope.results.plan import Plan, summarised
from rotoscope.results.table import Table
from rotoscope.results.verdict import BEYOND, LEVEL, Figure, holm, verdicts

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
    def against_random(self) -> pd.DataFrame:
        """Is the plan more than a random choice? One row per share and source, by the rule for nulls."""
        rows, figures = [], []
        for (share, source), some in self.judged.groupby(AT, sort=True):
            if share not in self.chosen:
                continue
            own = some[some["ranking"] == PLAN]["loss"].to_numpy(dtype=float)
            drawn = some[some["ranking"] == RANDOM].groupby("draw")["loss"].mean()
            error = own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan
            rows.append(
                {"kept_share": share, "source": source, "ranking": self.chosen[share], "loss": own.mean()}
            )
            figures.append(Figure(float(own.mean()), float(error), drawn.tolist(), in_score_units=False))
        beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
        return pd.concat([pd.DataFrame(rows), beside], axis=1)

    @cached_property
    def against_others(self) -> pd.DataFrame:
        """The plan beside every other ranking on the same prompts: the difference in loss, below 0 where the plan loses less.

        Told apart by a paired t-test with Holm's correction over all rows.
        """
        from scipy.special import stdtr

        rows = []
        for (share, source), some in self.judged.groupby(AT, sort=True):
            if share not in self.chosen:
                continue
            wide = some.groupby(["prompt", "ranking"])["loss"].mean().unstack()
            for name in wide.columns.drop(PLAN):
                apart = (wide[PLAN] - wide[name]).to_numpy(dtype=float)
                error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.nan
                p = 1.0 if error == 0 else 2 * float(stdtr(len(apart) - 1, -abs(apart.mean()) / error))
                same = name == self.chosen[share]
                rows.append({"kept_share": share, "source": source, "ranking": name, "difference": apart.mean(), "p_value": p, "same": same})  # fmt: skip
        found = pd.DataFrame(rows)
        others = ~found["same"].to_numpy(dtype=bool)
        found.loc[others, "p_value"] = holm(found.loc[others, "p_value"].to_numpy(dtype=float))
        sure = others & (found["p_value"] < LEVEL).to_numpy()
        words = np.where(found["difference"] < 0, "the plan loses less", "the plan loses more")
        found["verdict"] = np.where(found["same"], "the plan's own", np.where(sure, words, "not told apart"))
        return found.drop(columns="same")

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
        return (
            wide.loc[order].rename(columns=lambda share: f"{share:.0%}").rename_axis(columns=None).reset_index()
        )

    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        prompts = self.run.settings["prompts"]
        found = []
        for source in self.run.settings["sources"]:
            title = (
                f"loss on {source} by the share of key heads that keep everything, mean of {prompts} prompts"
            )
            found.append((title, self.table(source)))
        shown = ["kept_share", "source", "ranking", "loss", "null_value", "null_low", "null_high", "verdict"]
        beside = self.against_random[shown].rename(columns=lambda name: name.replace("null", "random"))
        found.append(("the plan beside random choices, corrected for all rows", beside))
        worse = self.against_others[self.against_others["verdict"] == "the plan loses more"]
        if len(worse):
            found.append(("where another ranking loses less than the plan's, beyond noise", worse))
        return found

    def sentences(self) -> list[str]:
        settings, heads = self.run.settings, self.heads
        streams, count = int(heads["streams"].sum()), len(heads)
        decided = (
            f"{count - streams} of {count} key heads keep everything, {streams} stream (the first {settings['sinks']} tokens and "
            f"the last {settings['window']}), chosen by {self.ranking}: it loses least on {settings['task']} among "
            f"{len(settings['rankings'])} rankings, on prompts that the tables do not show"
        )
        said = [decided]
        said.append(
            "key-value cache left: "
            + ", ".join(f"{self.memory_share(n):.0%} at {n:,} tokens" for n in (2048, 8192, 32768))
        )
        at = self.against_random[self.against_random["kept_share"] == self.keep]
        for row in at.to_dict("records"):
            word = (
                "better than"
                if row["verdict"] == BEYOND and row["loss"] < row["null_value"]
                else "not told apart from"
            )
            if row["verdict"] == BEYOND and row["loss"] > row["null_value"]:
                word = "worse than"
            said.append(
                f"on {row['source']}: loss {row['loss']:.2f}, {word} random choices ({row['null_value']:.2f})"
            )
        return said

    def caveats(self) -> list[str]:
        settings, found = self.run.settings, []
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
