"""Swaps at several depths: what every head follows, by where the blocks changed places."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from rotoscope.experiments.depths.writers import (
    NOBODY,
    ONE,
    READER,
    edges_of,
    empty_writers,
    summarise_writers,
    too_few_sets,
    writers_in_words,
)
from rotoscope.experiments.page_data import PageRun, Tab, column, packed, table
from rotoscope.experiments.profile.screen import NO_NULL, ONE_PROMPT, asked_again, at_their_layer, depths_screen
from rotoscope.runs.result import NextStep, ScoredRun, SummaryTable, Table
from rotoscope.scores.classes import purity_classes
from rotoscope.stats.aggregate import (
    COVERED_PROMPTS,
    ENDS,
    INDEX,
    SCORES,
    covered_rows,
    head_table,
    permuted_rows,
    score_interval,
    unpermuted,
    with_permuted,
)
from rotoscope.stats.intervals import one_row_per_input
from rotoscope.stats.statistics import Summary, class_words, statistics, summarise
from rotoscope.stats.verdict import ENOUGH_DRAWS

if TYPE_CHECKING:
    from rotoscope.terminal import Screen


AT = [*INDEX, "own", "depth"]


class SwapDepths(ScoredRun):
    """Scores of all heads with blocks exchanged at the input of some layers.

    Depth k = 0 is the permuted prompt; a head's own layer is where the papers swap, and those rows are exact. In between lies
    where a place was written into the states.
    """

    kind = "depths"
    derived = frozenset({"heads", "turns"})

    prompts = Table("One row per (prompt, layer, head, tau, depth); `own` marks the papers' swaps.")
    null_prompts = Table("The same of every draw of the null.", optional=True)
    paired_prompts = Table(
        "Heads that stay in the permuted prompt, every block moved together with the block before it: one row per (prompt, layer, "
        "head, tau).",
        optional=True,
    )
    writers = Table(
        "One row per (carried head, silenced heads, prompt): its scores with the prompt permuted, at the first tau. `draw` is -1 "
        "for positional heads, and counts the random ones beside them.",
        optional=True,
    )

    @property
    def depths(self) -> list[int]:
        """The depths at which swaps were run."""
        rows = self.prompts
        return sorted(int(depth) for depth in rows.loc[~rows["own"], "depth"].unique())

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per (layer, head, tau, own, depth): means over prompts with intervals, and the class there.

        Only prompts count whose swaps hold at least half of the head's weight; `covered_share` is what they hold on all prompts.
        """
        rows = one_row_per_input(self.prompts, AT)
        numbers = [*SCORES, "covered_share", "swapped_mass"]
        counted = covered_rows(rows, "covered_share", AT, rows["prompt"].nunique())
        rows[SCORES] = rows[SCORES].where(counted)
        table = rows.groupby(AT, sort=True)[numbers].mean()
        table["prompts"] = rows.groupby(AT, sort=True)["positional_score"].count()
        table = table.reset_index()
        for score in SCORES:
            table[f"{score}_low"], table[f"{score}_high"] = score_interval(rows, score, AT)
        table["depth_class"] = purity_classes(table["positional_score"], table["symbolic_score"], self.gamma)
        return table

    @cached_property
    def heads(self) -> pd.DataFrame:
        """The curves with `depth` as it was asked for: a number, or "own" for the head's own layer."""
        table = self.curves
        depth = table["depth"].astype(object).where(~table["own"], "own")
        return table.assign(depth=depth).drop(columns="own")

    @cached_property
    def scored(self) -> pd.DataFrame:
        """Per prompt the scores at the own layer, with those of the permuted prompt beside them where k = 0 was run."""
        return _both_ends(self.prompts, paired=self.tables.get("paired_prompts"))

    @cached_property
    def null_scored(self) -> pd.DataFrame:
        """The same of every draw of the null."""
        return _both_ends(self.null_prompts, permuted=0 in self.depths)

    @cached_property
    def turns(self) -> pd.DataFrame:
        """One row per (layer, head, tau): class, scores at the own layer and of the permuted prompt, and the carry depth.

        `stays_at` is the largest depth below the own layer that was run and at which the head stays more than it follows; missing
        for heads that stay at their own layer or are uniform, and for those that follow at every depth. It is the `carry_depth`
        where the head follows at the next depth; without a run there, the carry depth was not located.
        """
        table = head_table(self.scored, self.gamma)
        known = self.curves[self.curves["positional_score"].notna()]
        stays = ~known["own"] & (known["positional_score"] > known["symbolic_score"])
        deepest = known[stays].groupby(INDEX)["depth"].max().rename("stays_at")
        table = table.merge(deepest, on=INDEX, how="left")
        follows = (table["symbolic_score"] >= table["positional_score"]) & (table["head_class"] != "uniform")
        table["stays_at"] = table["stays_at"].where(follows).astype("Int64")
        measured = pd.MultiIndex.from_frame(known[[*INDEX, "depth"]])
        above = pd.MultiIndex.from_frame(table[INDEX].assign(depth=table["stays_at"].fillna(-2) + 1))
        table["carry_depth"] = table["stays_at"].where(above.isin(measured))
        return table

    @property
    def null_name(self) -> str | None:
        """Which null stands beside the scores."""
        return "random" if len(self.null_prompts) else None

    def brackets(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of every carried head whose carry depth is not located: the deepest depth at which it stays, and the next that was run."""
        heads = self.at()
        heads = heads[
            (heads["head_class"] == "carried") & heads["stays_at"].notna() & heads["carry_depth"].isna()
        ]
        curves = self.curves[(self.curves["tau"] == self.taus[0]) & self.curves["positional_score"].notna()]
        measured = curves.groupby(["layer", "head"])["depth"].agg(list)
        low = {(int(row.layer), int(row.head)): int(row.stays_at) for row in heads.itertuples()}
        return {head: (at, min(depth for depth in measured[head] if depth > at)) for head, at in low.items()}

    def turning(self, tau: float | None = None) -> pd.DataFrame:
        """Heads that follow at their own layer and stay in place at a depth below, written layer:head, with both scores by
        depth; those that stay deepest first, carried heads before others."""
        heads = self.at(tau)
        heads = heads[heads["stays_at"].notna()]
        heads = heads.assign(carried=heads["head_class"] == "carried")
        heads = heads.sort_values(
            ["carried", "stays_at", "layer", "head"], ascending=[False, False, True, True]
        )
        curves = self.curves[self.curves["tau"] == self.tau_or_first(tau)].set_index(["layer", "head"])
        rows = []
        for head in heads.to_dict("records"):
            key = head["layer"], head["head"]
            row = {
                "head": f"{key[0]}:{key[1]}",
                "class": class_words(head["head_class"], head.get("input_class")),
            }
            row["follows"] = head["carried_by"] or ""
            row["carry depth"] = "not located" if pd.isna(head["carry_depth"]) else str(head["carry_depth"])
            for point in curves.loc[[key]].to_dict("records"):
                name = "own" if point["own"] else f"k = {point['depth']}"
                row[name] = f"{point['positional_score']:.2f} / {point['symbolic_score']:.2f}"
            rows.append(row)
        order = ["head", "class", "follows", "carry depth", *(f"k = {depth}" for depth in self.depths), "own"]
        table = pd.DataFrame(rows)
        return table[[name for name in order if name in table]]

    def layers(self, tau: float | None = None) -> pd.DataFrame:
        """One row per (layer, own, depth): mean scores over heads and prompts; of the null, where all its heads were run."""
        tau = self.tau_or_first(tau)
        keys = ["layer", "own", "depth"]
        means = self.prompts[self.prompts["tau"] == tau].groupby(keys)[SCORES].mean()
        null = self.null_prompts
        if len(null):
            groups = null[null["tau"] == tau].groupby(keys)
            heads = groups[["draw", "head"]].apply(lambda rows: len(rows.drop_duplicates()))
            complete = heads == null["draw"].nunique() * null.groupby("layer")["head"].nunique().reindex(
                heads.index, level="layer"
            )
            means = means.join(groups[SCORES].mean()[complete].add_prefix("null_"))
        return means.reset_index()

    def at(self, tau: float | None = None) -> pd.DataFrame:
        """`turns` at one tau (default: the first)."""
        chosen_tau = self.tau_or_first(tau)
        return self.turns[self.turns["tau"] == chosen_tau].reset_index(drop=True)

    def by_leaning(self, tau: float | None = None) -> pd.DataFrame:
        """`at`, with the heads of a layer in the order in which they stay in place over all depths, the first most."""
        heads = self.at(tau)
        curves = self.curves
        leaning = curves["positional_score"] - curves["symbolic_score"]
        leaning = leaning.groupby([curves[name] for name in INDEX]).mean()
        order = heads.join(leaning.rename("leaning"), on=INDEX)
        order = order.sort_values(["layer", "leaning"], ascending=[True, False], kind="stable")
        return order.drop(columns="leaning").reset_index(drop=True)

    def summary(self, tau: float | None = None) -> Summary:
        """Class counts and medians by depth of the layer."""
        return summarise(self.at(tau))

    def statistics(self, tau: float | None = None) -> pd.DataFrame:
        """The figures of a profile, carried heads among them, with intervals, null and verdicts."""
        tables = {"prompts": self.scored}
        if len(self.null_prompts):
            tables["null_prompts"] = self.null_scored
        return statistics(tables, self.tau_or_first(tau), self.gamma)

    def screen(self) -> Screen:
        """What a terminal shows."""
        return depths_screen(self)

    def next_steps(self) -> list[NextStep]:
        """Who wrote the place that carried heads follow, where nobody asked."""
        carried = (self.turns["head_class"] == "carried").any() and not len(self.writers)
        command = asked_again(self.run, "depths", "--writers") if carried else None
        return [NextStep("Which heads write the place that carried heads follow?", command)] if command else []

    def summaries(self) -> list[SummaryTable]:
        """Means over layers; the heads that turn and their writers stand in tabs of their own."""
        return [SummaryTable("Means over the heads of a layer by depth", self.layers, ("prompts",))]

    def writers_summary(self) -> pd.DataFrame:
        """What silencing positional heads does to the place every asked head reads, beside random heads of the same layers.

        One row per (reader, condition): one head alone, those of a layer, or all below the depth at which the reader turns.
        `effect` is the mean of what the reader's positional score loses and its symbolic score gains with the prompt permuted:
        0 where nothing changes, one half where it no longer tells the two slots apart, 1 where it follows what was moved. The
        verdict is that of `rotoscope.stats.verdicts`, over all readers and conditions together.
        """
        return self._writers

    @cached_property
    def _writers(self) -> pd.DataFrame:
        return summarise_writers(self.writers if len(self.writers) else empty_writers())

    def writer_graph(self) -> pd.DataFrame:
        """Edges from a writer to a reader: silencing that one head takes more of the place than its controls do."""
        return edges_of(self._writers)

    def stored_tables(self) -> dict[str, pd.DataFrame]:
        """What a run folder holds: scores per prompt, and the curves and turns made from them."""
        return {**self.tables, "heads": self.curves, "turns": self.turns}

    def caveats(self) -> list[str]:
        """What a reader must know before trusting the numbers."""
        sentences = []
        if not len(self.null_prompts):
            sentences.append(NO_NULL)
        if self.prompts["prompt"].nunique() == 1:
            sentences.append(ONE_PROMPT)
        sentences += at_their_layer(self.at(), "--at 0")
        table = self.curves
        thin = table[~table["own"] & (table["tau"] == self.taus[0]) & table["positional_score"].isna()]
        few = len(thin[["layer", "head"]].drop_duplicates())
        if few:
            heads = "1 head has" if few == 1 else f"{few} heads have"
            sentences.append(
                f"{heads} no verdict at some depths: the swaps that were run hold half of their weight on fewer than "
                f"{COVERED_PROMPTS} prompts; run more swaps (--swaps)"
            )
        if "writers" in self.tables and not len(self.writers):
            sentences.append(NOBODY)
        few_heads = too_few_sets(self._writers) if len(self.writers) else []
        if few_heads:
            layers = f"layer{'s' * (len(few_heads) > 1)} {', '.join(map(str, few_heads))}"
            sentences.append(
                f"no single head of {layers} can be shown to write a place: that takes {ENOUGH_DRAWS} other heads to silence in its "
                "stead, and there are fewer"
            )
        return sentences

    def __repr__(self) -> str:
        counts = ", ".join(self.summary().counted.values())
        return f"SwapDepths({self.name!r}: depths {', '.join(map(str, self.depths))} and own; {counts})"


def _both_ends(
    rows: pd.DataFrame, *, permuted: bool = False, paired: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Scores at the own layer, and of the permuted prompt beside them; heads that were not `permuted` have none."""
    own = rows[rows["own"]].drop(columns=["own", "depth", "covered_share"])
    first = permuted_rows(rows)
    if len(first):
        return with_permuted(own, first, paired)
    return unpermuted(own) if permuted else own


def depths_tab(page_run: PageRun) -> Tab | None:
    """Both scores of every head at every depth, with intervals, and the heads that turn."""
    run = SwapDepths(page_run.run, page_run.tables)
    depths = run.depths
    if not depths:
        return None
    tab: Tab = {"depths": depths, "at": []}
    for tau in run.taus:
        heads = run.by_leaning(tau)[["layer", "head"]]
        curves = run.curves[~run.curves["own"] & (run.curves["tau"] == tau)]
        wide = curves.pivot(index=["layer", "head"], columns="depth")
        wide = wide.reindex(pd.MultiIndex.from_frame(heads))
        tab_at_tau: Tab = {name: column(heads[name]) for name in heads}
        for name in (*SCORES, *ENDS, "covered_share"):
            tab_at_tau[name] = packed(wide[name].reindex(columns=depths).to_numpy(dtype=float).ravel(), 16)
        title = "Heads that follow at their own layer and stay in place below it"
        note = "Positional and symbolic score by the layer at which words are swapped."
        named = {f"k = {depth}": f"layer {depth}" if depth else "in the prompt" for depth in depths}
        turning = run.turning(tau).rename(columns=named | {"own": "own layer"})
        tab["at"].append(tab_at_tau | {"turning": table(turning, title, note, most=None)})
    return tab


def writers_tab(page_run: PageRun) -> Tab | None:
    """Every positional head that was silenced and every carried head that was asked, with the effect between them."""
    run = SwapDepths(page_run.run, page_run.tables)
    if "writers" not in page_run.tables:
        return None
    summary = run.writers_summary()
    if not len(summary):
        return {"nobody": NOBODY}
    words = writers_in_words(summary)
    single, edges = summary[summary["condition"] == ONE], run.writer_graph()
    names = {"writer": ["layer", "head"], "reader": READER}
    pairs = {
        name: [f"{layer}:{head}" for layer, head in single[keys].to_numpy()] for name, keys in names.items()
    }
    edge_keys = set(map(tuple, edges[[*READER, "layer", "head"]].to_numpy()))
    beyond = [tuple(row) in edge_keys for row in single[[*READER, "layer", "head"]].to_numpy()]
    title = "What carried heads lose of their place without positional heads below them"
    note = (
        "Effect: what the positional score loses and the symbolic score gains with the prompt permuted, in the mean; 1: the head "
        "follows what was moved. Controls: as many other heads of the same layers, drawn at random."
    )
    return {
        **pairs,
        "effect": column(single["effect"]),
        "beyond": beyond,
        "readers": list(dict.fromkeys(words["reader"])),
        "table": table(words, title, note, most=None),
    }
