"""A profile: the scores of every head of one model on one set of prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from rotoscope.errors import RotoscopeError, pip_install
from rotoscope.experiments.known_heads import known_overview, known_table
from rotoscope.experiments.profile.examples import telling_heads, traces_of, vectors_of
from rotoscope.experiments.profile.notebook import HEIGHT, MOST_MB, notebook_frame, notebook_html
from rotoscope.experiments.profile.screen import caveats, next_steps, profile_screen
from rotoscope.experiments.selection import head_pairs
from rotoscope.runs.result import NextStep, ScoredRun, SummaryTable, Table, Tables
from rotoscope.scores.classes import CLASSES
from rotoscope.settings import count, either, held
from rotoscope.stats.aggregate import (
    HEAD,
    INDEX,
    LEAST_MASS,
    MEASURES,
    frequency_table,
    frequency_use,
    head_table,
    unpermuted,
    with_permuted,
)
from rotoscope.stats.statistics import Summary, by_position, statistics, summarise

if TYPE_CHECKING:
    from rotoscope.terminal import Screen


COUNT = count(1_000_000, "no model has so many heads", least=0)


class ExampleTable(Table):
    """A table about the first prompt, made when it is needed."""

    def __get__(self, run: Any, owner: type) -> Any:
        if run is not None:
            run.page_tables()
            if run.no_examples and self.name not in run.tables:
                raise RotoscopeError(run.no_examples)
        return super().__get__(run, owner)


class Profile(ScoredRun):
    """Scores of all heads, per prompt and per head.

    Layers and heads are counted from 0, as in transformers. `run` is the content of `run.json`.
    """

    kind = "profile"
    derived = frozenset({"heads", "frequencies", "nulls"})

    shown_prompt = ExampleTable("The first prompt, one row per token.", made_with="examples=True")
    attention = ExampleTable(str(ScoredRun.attention.__doc__), made_with="examples=True")
    attention_prompt_permuted = Table(
        "Every head on the first prompt after a swap carried out in the prompt itself: the blocks, and attention by position.",
        made_with="input_swaps and examples=True",
    )
    prompts = Table("One row per (prompt, layer, head, tau).")
    sinks = Table("Positions that draw attention whatever they say; empty if there are none.", optional=True)
    input_prompts = Table(
        "The same prompts with their own words permuted: one row per (prompt, layer, head, tau).",
        made_with="input_swaps",
    )
    paired_prompts = Table(
        "Of heads that stay there, every block moved together with the block before it: one row per (prompt, layer, head, tau).",
        optional=True,
    )
    answers = Table("What the model itself answered; empty if the task expects nothing.", optional=True)
    known_heads = Table(
        "Previous-token, induction and other known scores: one row per (layer, head).", made_with="known=True"
    )
    null_known_heads = Table("The same of every draw of the null; empty if there was none.", optional=True)
    _planes = Table("Every plane on every prompt.", name="prompt_frequencies", made_with="frequencies=True")

    @cached_property
    def scored(self) -> pd.DataFrame:
        """`prompts`, with the scores of the permuted prompt beside them where they were measured."""
        return with_permuted(self.prompts, self.tables.get("input_prompts"), self.tables.get("paired_prompts"))

    @cached_property
    def heads(self) -> pd.DataFrame:
        """One row per (layer, head, tau): means over prompts, spread, intervals, class and what it rests on."""
        heads = head_table(self.scored, self.gamma, self.least_mass)
        if "prompt_frequencies" in self.tables:
            heads = heads.merge(frequency_use(self.frequencies), on=INDEX, how="left")
        return heads

    @cached_property
    def traces(self) -> pd.DataFrame:
        """Attention before and after the heaviest swap of the example heads: one row per (example, position)."""
        return self._of_examples("traces", traces_of)

    @cached_property
    def vectors(self) -> pd.DataFrame:
        """Query and keys of the example heads in the plane whose logits vary most."""
        return self._of_examples("vectors", vectors_of)

    def _of_examples(self, name: str, make: Callable[..., pd.DataFrame]) -> pd.DataFrame:
        if name in self.page_tables():  # of the ledger's stored runs
            return self.tables[name]
        return make(self.shown_prompt, self.attention, telling_heads(self.at()))

    @property
    def has_examples(self) -> bool:
        """Whether there are traces and vectors to show."""
        return bool({"traces", "attention"} & set(self.page_tables()))

    later_examples: Callable[[], Tables] | None = None
    """Makes the examples of a profile in memory, when a page or figure needs them."""
    no_examples = ""
    """Why they could not be made."""

    def page_tables(self) -> Tables:
        """All tables, with the attention on the first prompt."""
        make, self.later_examples = self.later_examples, None
        if make is not None:
            try:
                self.tables |= make()
            except RotoscopeError as problem:
                self.no_examples = str(problem)
                self.run.warnings.append(self.no_examples)
        return self.tables

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"later_examples": None}  # which holds the model

    @cached_property
    def frequencies(self) -> pd.DataFrame:
        """One row per (layer, head, tau, frequency_id); id 1 is the fastest, id 0 what does not rotate."""
        return frequency_table(self._planes)

    @cached_property
    def nulls(self) -> pd.DataFrame:
        """The first null's heads: one row per (null_name, draw, layer, head, tau); empty if no null was run."""
        return self._by_draw(
            self._first_null(self._null_scored), lambda table: head_table(table, self.gamma, self.least_mass)
        )

    @cached_property
    def _null_scored(self) -> pd.DataFrame | None:
        """The same for the null, of whose heads only those that are pure symbolic at their layer were permuted."""
        rows = self.tables.get("null_prompts")
        if rows is None or "input_prompts" not in self.tables or self.null_name == "gaussian":  # never permuted
            return rows
        measured = self.tables.get("null_input_prompts")
        if measured is None:
            return unpermuted(rows)
        return with_permuted(rows, measured)

    @cached_property
    def null_frequencies(self) -> pd.DataFrame:
        """The first null's planes: one row per (null_name, draw, layer, head, tau, frequency_id)."""
        return self._by_draw(self._first_null(self.tables.get("null_prompt_frequencies")), frequency_table)

    def _first_null(self, rows: pd.DataFrame | None) -> pd.DataFrame | None:
        """Of the scores of several nulls those that figures show: of random models where there are any."""
        return None if rows is None else rows[rows["null_name"] == self.null_name]

    def _by_draw(
        self, scored: pd.DataFrame | None, table: Callable[[pd.DataFrame], pd.DataFrame]
    ) -> pd.DataFrame:
        if scored is None:
            return pd.DataFrame()
        parts = []
        for (null, draw), rows in scored.groupby(["null_name", "draw"], sort=True):
            part = table(rows)
            part.insert(0, "draw", draw)
            part.insert(0, "null_name", null)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    @property
    def null_name(self) -> str | None:
        """Which null stands beside the scores; of two the random one, beside Gaussian keys in `statistics` only."""
        return str(self.tables["null_prompts"]["null_name"].max()) if "null_prompts" in self.tables else None

    @property
    def queries(self) -> pd.DataFrame:
        """One row per (prompt, query_position, layer, head, tau), when there was more than one query."""
        if "queries" not in self.tables:
            raise RotoscopeError("this profile has one query per prompt; its rows are in .prompts")
        return self.tables["queries"]

    @property
    def accuracy(self) -> float | None:
        """The model's own accuracy on the prompts it was profiled on."""
        return float(self.answers["correct"].mean()) if len(self.answers) else None

    @property
    def chance(self) -> float | None:
        """The accuracy of picking one of the answers in a prompt at random; None where the task does not say."""
        chance = self.run.settings.get("chance")
        return None if chance is None else float(chance)

    def nulls_at(self, tau: float | None = None) -> pd.DataFrame:
        """The null's heads at one tau (default: the first)."""
        return self.nulls[self.nulls["tau"] == self.tau_or_first(tau)]

    @property
    def least_mass(self) -> float:
        """With less attention than this on what is swapped, a head is marked: little at stake."""
        return float(self.run.settings.get("least_mass", LEAST_MASS))

    def at(self, tau: float | None = None) -> pd.DataFrame:
        """The head table at one tau (default: the first)."""
        value = self.tau_or_first(tau)
        if value not in self.taus:
            raise RotoscopeError(f"this profile has tau = {self.taus}, not {value}")
        return self.heads[self.heads["tau"] == value].reset_index(drop=True)

    def top(self, kind: str = "symbolic", count: int = 5, tau: float | None = None) -> pd.DataFrame:
        """The heads of a class with the largest product of their score and their attention on what is swapped."""
        if kind not in CLASSES:
            raise RotoscopeError(f"'{kind}' is no class of heads: choose {either(CLASSES)}")
        COUNT.check("count", held("count", int, count))
        heads = self.at(tau)
        members = heads[heads["head_class"] == kind]
        score = {"positional": "positional_score", "mixed": None, "uniform": None}.get(kind, "symbolic_score")
        stake = members["swapped_mass"] * (1.0 if score is None else members[score])
        return members.loc[stake.nlargest(count).index].reset_index(drop=True)

    def head(self, layer: Any, head: int | None = None, tau: float | None = None) -> pd.Series:
        """Everything about one head, by its layer and number, both counted from 0, or by its name as in "18:6"."""
        [(layer, head)] = head_pairs([layer if head is None else (layer, head)])
        heads = self.at(tau)
        rows = heads[(heads["layer"] == layer) & (heads["head"] == head)]
        if rows.empty:
            last = heads[HEAD].max()
            raise RotoscopeError(
                f"there is no head {layer}:{head}: layers go from 0 to {last['layer']}, heads from 0 to {last['head']}"
            )
        row: pd.Series = rows.iloc[0]
        return row.rename(f"{layer}:{head}")

    def __getitem__(self, name: Any) -> pd.Series:
        """A head by its name: "18:6", "L18H6", "18.6" or (18, 6)."""
        return self.head(name)

    def show(self, height: int = HEIGHT, *, most_mb: float | None = MOST_MB) -> Any:
        """The whole page inside a notebook, in a frame of its own that works offline; one that is larger is refused."""
        return notebook_frame(self, height, most_mb)

    def statistics(self, tau: float | None = None) -> pd.DataFrame:
        """The summary figures with 95 % intervals over prompts, what the null gives, and a verdict on each.

        The verdict (`rotoscope.stats.verdicts`) is `beyond the null`, `as in the null`, `undecided` or `no verdict`;
        `reason` says what keeps it undecided. `p_value` is corrected for all figures of the table, `visible_effect` is the
        smallest difference that would be beyond the null, and `null_low`, `null_high` are where 95 % of further draws would
        lie. Beside two nulls these are of the one that the figure is least beyond (`null_name`), and `random_value`,
        `gaussian_verdict` and so on of each. `little_at_stake` is the part of a class's share that hardly looks at what is swapped.
        """
        tables = self.tables | {"prompts": self.scored}
        if self._null_scored is not None:
            tables["null_prompts"] = self._null_scored
        return statistics(tables, self.tau_or_first(tau), self.gamma, self.least_mass)

    def known_table(self, tau: float | None = None) -> pd.DataFrame:
        """Heads of every known kind by class, beside what shuffling the classes within layers gives, with a verdict each.

        A head is of a kind when its score is at least 0.3 (copying: 0.1) and larger than any head's of the null.
        """
        return known_table(self.at(tau), self.known_heads, self.null_known_heads)

    def known_overview(self, tau: float | None = None) -> pd.DataFrame:
        """The same with one row per kind, and its strongest heads: expected counts in brackets, * beyond the null."""
        return known_overview(self.at(tau), self.known_heads, self.null_known_heads)

    def by_position(self, bins: int = 8) -> pd.DataFrame:
        """Accuracy and likelihood of the answer, and the attention it gets, by where the asked fact stands."""
        return by_position(self.answers, bins)

    def caveats(self) -> list[str]:
        """What a reader must know before trusting the scores."""
        return caveats(self)

    def screen(self) -> Screen:
        """What a terminal shows."""
        return profile_screen(self)

    def summaries(self) -> list[SummaryTable]:
        """Heads of known kinds, and the model's answers."""
        known = "Heads of known kinds by class, in brackets what shuffled classes give, * beyond that"
        answers = "The model's answers by where the asked fact stands"
        return [
            SummaryTable(known, self.known_overview, ("known_heads",)),
            SummaryTable(answers, self.by_position, ("answers",)),
        ]

    def next_steps(self) -> list[NextStep]:
        """The first few questions that the profile leaves open."""
        return next_steps(self) if "prompts" in self.tables else []

    def stored_tables(self) -> dict[str, pd.DataFrame]:
        """What a run folder holds: the tables per prompt, and those made from them, for other tools to read."""
        derived = {"heads": self.heads}
        if "prompt_frequencies" in self.tables:
            derived["frequencies"] = self.frequencies
        if "null_prompts" in self.tables:
            derived["nulls"] = self.nulls
        return {**self.page_tables(), **derived}

    def summary(self, tau: float | None = None) -> Summary:
        """Correlation of the two scores, medians by depth, class counts and how many of them have little at stake."""
        return summarise(self.at(tau), self.least_mass)

    def to_xarray(self) -> Any:
        """The per-prompt scores as a labelled array: dimensions prompt, layer, head, tau."""
        try:
            import xarray
        except ImportError as missing:
            raise RotoscopeError(f"to_xarray needs: {pip_install('xarray')}") from missing
        present = [name for name in MEASURES if name in self.prompts]
        cube = self.prompts.set_index(["prompt", *INDEX])[present]
        return xarray.Dataset.from_dataframe(cube).assign_attrs(model=self.name)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page."""
        return notebook_html(self)

    def __repr__(self) -> str:
        summary = self.summary()
        prompts = self.prompts["prompt"].nunique()
        return (
            f"Profile({self.name!r}: {summary.heads} heads, {prompts} prompts, tau={self.taus[0]:g}: "
            f"{', '.join(summary.counted.values())}; {summary.stake_words})"
            + (
                ""
                if self.null_name
                else "; no null: rs.profile(..., null='random') compares with random models"
            )
        )
