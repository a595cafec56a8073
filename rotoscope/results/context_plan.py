"""What scalings of the angles do to a model at training length and beyond, and which of them is recommended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from rotoscope.results.plan import Plan, interval_of, summarised
from rotoscope.results.table import Table

AS_IT_IS = "as it is"
CONTROL = "as it is, other prompts"
"""The model as it is on prompts of another seed: what changes there changes by chance."""
COPYING = ("on_followed", "on_previous")
"""What copying repeated tokens needs: attention on what followed in the first copy, and in other heads on the token before."""
COPIES = 0.3
"""Attention there, at training length, from which on a head counts as one of either kind."""
COPIED = 0.1
"""Accuracy on repeated tokens, at training length, from which on a model counts as one that copies."""
HOLDS = 0.1
"""The part of a head's discrepancy that a plane must add to hold its gap."""
HALF = 0.5
"""Less than this part of what there was at training length counts as broken."""
HEAD = ["layer", "head"]


@dataclass(frozen=True)
class Recommendation:
    """A setting, or none, and why."""

    setting: str | None
    why: str
    optimised: str
    """What was compared."""


class ContextPlan(Plan):
    """Loss, heads and planes of one model under several scalings of its angles, by length."""

    kind = "context-plan"

    losses = Table(
        "One row per (setting, source, length, prompt): mean loss and accuracy of what is asked there."
    )
    positions = Table(
        "The loss on text by place: one row per (setting, length of the input, position, prompt); the tokens before the position.",
        optional=True,
    )
    heads = Table(
        "One row per (setting, length, layer, head): scores and class on repeated tokens, attention on what followed in the "
        "first copy and on the token before, discrepancy.",
        optional=True,
    )
    planes = Table(
        "One row per (setting, length, layer, head, frequency_id): what the plane adds to the head's discrepancy (`gap`), in the mean "
        "and in the prompt where it adds least.",
        optional=True,
    )
    predicted = Table(
        "One row per (setting, length, layer, head): the same attention, predicted from the model as it is at training length.",
        optional=True,
    )

    @property
    def trained(self) -> int:
        """Tokens that the model was trained on."""
        return int(self.run.settings["trained"])

    @property
    def to(self) -> int:
        """Tokens that it is to read."""
        return int(self.run.settings["to"])

    @property
    def lengths(self) -> list[int]:
        """The training length and all longer ones that were measured."""
        return [int(n) for n in self.run.settings["lengths"]]

    @property
    def settings(self) -> list[str]:
        """The model as it is, and every scaling, in the order they were given."""
        return [AS_IT_IS, *self.run.settings["scaling"]]

    @property
    def rope(self) -> dict[str, dict[str, Any]]:
        """For every scaling what a config.json says: `rope_parameters` and `max_position_embeddings`."""
        found: dict[str, dict[str, Any]] = self.run.settings["rope"]
        return found

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per setting, source and length: mean loss and accuracy with 95 % intervals over prompts."""
        return summarised(self.losses, ["setting", "source", "length"])

    @cached_property
    def recommendation(self) -> Recommendation:
        """The setting with the lowest loss at the length asked for, where it is lower than that of all others beyond noise.

        Out of the question are settings that cost more loss at training length than was allowed. Differences are taken prompt by
        prompt. Nothing is recommended of a model that knows no more than chance at training length, no setting that knows no more
        at the length asked for, and none of which the prompts do not tell that it costs so little.
        """
        source = "text" if "text" in set(self.losses["source"]) else "repeats"
        allowed = float(self.run.settings["worse"])
        optimised = f"loss on {source} at {self.to:,} tokens, among settings that cost at most {allowed:g} at {self.trained:,} tokens"

        def none(why: str) -> Recommendation:
            return Recommendation(None, why, optimised)

        mine = self.losses[self.losses["source"] == source]
        short, long = (
            mine[mine["length"] == n].pivot(index="prompt", columns="setting", values="loss")[self.settings]
            for n in (self.trained, self.to)
        )
        many = f"{len(long)} prompts"
        if len(long) < 2:
            return none("one prompt says nothing about noise: take more (--prompts)")
        if self.guesses(short[AS_IT_IS]):
            return none(
                f"at its training length the model does no better than chance (a loss of {self.chance:.2f}) beyond noise, so nothing "
                "that it loses means anything"
            )
        costs = {name: short[name] - short[AS_IT_IS] for name in self.settings}
        dear = [name for name, cost in costs.items() if cost.mean() > allowed]
        left = [name for name in self.settings if name not in dear]
        if len(left) == 1:
            return none(
                f"every scaling costs more than {allowed:g} at training length, so nothing was left to compare"
            )
        best = str(long[left].mean().idxmin())
        if self.guesses(long[best]):
            return none(
                f"at {self.to:,} tokens {best} does best, and no better than chance (a loss of {self.chance:.2f}) beyond noise"
            )
        tied = [name for name in left if name != best and not interval_of(long[best] - long[name])[1] < 0]
        if tied:
            worse = [name for name in left if name not in (best, *tied)]
            told = f"; they do better than {_and(worse)} beyond noise" if worse else ""
            return none(f"{_and([best, *tied])} cannot be told apart with {many}{told}")
        if interval_of(costs[best])[1] > allowed:
            return none(
                f"{best} does best, and {many} do not tell whether it costs more than {allowed:g} at training length: take more "
                "(--prompts), or allow more (--worse)"
            )
        out = f"; {_and(dear)} cost more at training length" if dear else ""
        unsure = [name for name in dear if not interval_of(costs[name])[0] > allowed]
        out += f" ({_and(unsure)} in the mean, within noise)" if unsure else ""
        return Recommendation(best, f"lower than all others beyond noise over {many}{out}", optimised)

    @cached_property
    def copying(self) -> dict[str, list[tuple[int, int]]]:
        """Heads that copying needs, in the model as it is at training length, by what they look at."""
        at = self._heads_at(AS_IT_IS, self.trained)
        return {kind: [(int(a), int(b)) for a, b in at.index[at[kind] >= COPIES]] for kind in COPYING}

    @property
    def copies(self) -> bool:
        """Whether the model as it is copies repeated tokens at training length: it has heads of both kinds, and says what followed."""
        own = self.losses[(self.losses["setting"] == AS_IT_IS) & (self.losses["source"] == "repeats")]
        right = own.loc[own["length"] == self.trained, "accuracy"].mean()
        return bool(right >= COPIED) and all(self.copying.values())

    @cached_property
    def foretold(self) -> dict[str, list[tuple[int, int]]]:
        """Those of the heads that copying needs whose attention was predicted: none of layers that see a window only."""
        if self.predicted.empty:
            return {kind: [] for kind in COPYING}
        known = set(self.predicted[HEAD].itertuples(index=False, name=None))
        return {kind: [head for head in some if head in known] for kind, some in self.copying.items()}

    @cached_property
    def breaking(self) -> pd.DataFrame:
        """Predicted and measured by setting and length, for repeated tokens.

        `on_followed` and `on_previous` are the attention on what followed in the first copy and on the token before, in the mean
        over the heads that look there at training length and of which it was predicted; `predicted_...` what was predicted of it,
        and `accuracy` what the model says. Where either of the two is predicted to be under half of what it was, copying is
        `predicted_broken`; where the accuracy is under half of the model's own at training length, it is `measured_broken`. Where
        nothing was predicted, since every layer sees a window only, it is all heads that look there, and what was measured.
        """
        accuracy = self.summary[self.summary["source"] == "repeats"].set_index(["setting", "length"])[
            "accuracy"
        ]
        some = self.copying if self.predicted.empty else self.foretold
        guesses = None if self.predicted.empty else self.predicted.set_index(["setting", "length", *HEAD])
        usual = _copied(self._heads_at(AS_IT_IS, self.trained), some)
        rows = []
        for setting in self.settings:
            for n in self.lengths:
                row: dict[str, Any] = {"setting": setting, "length": n}
                right = accuracy.loc[setting, n]
                broken = {"measured_broken": bool(right < HALF * accuracy.loc[AS_IT_IS, self.trained])}
                if guesses is not None:
                    guess = _copied(guesses.sort_index().loc[setting, n], some)
                    row |= {f"predicted_{kind}": value for kind, value in guess.items()}
                    under = any(guess[kind] < HALF * usual[kind] for kind in COPYING)
                    broken = {"predicted_broken": under, **broken}
                rows.append(row | _copied(self._heads_at(setting, n), some) | {"accuracy": right, **broken})
        return pd.DataFrame(rows)

    @cached_property
    def breaking_lengths(self) -> pd.DataFrame:
        """One row per setting: the first length at which it is broken, as predicted and as measured; none is infinite.

        Missing where the model as it is does not copy at its training length: there is nothing to break. Without a prediction of
        either kind of head that copying needs there is none of the length.
        """
        known = {"predicted": self.copies and all(self.foretold.values()), "measured": self.copies}
        if self.predicted.empty:
            del known["predicted"]
        rows = []
        for setting, group in self.breaking.groupby("setting", sort=False):
            found = {
                name: min(group.loc[group[f"{name}_broken"], "length"], default=math.inf) if told else math.nan
                for name, told in known.items()
            }
            rows.append({"setting": setting, **found})
        return pd.DataFrame(rows)

    @cached_property
    def changes(self) -> pd.DataFrame:
        """Heads whose class is another one than in the model as it is at training length, by setting, length and both classes.

        `heads` names them, layer:head. On prompts of another seed (`CONTROL`) classes change by chance alone.
        """
        before = self._heads_at(AS_IT_IS, self.trained)["head_class"].rename("before")
        rows = []
        for (setting, n), group in self.heads.groupby(["setting", "length"], sort=False):
            both = group.set_index(HEAD)[["head_class"]].join(before).dropna()
            moved = both[both["head_class"] != both["before"]]
            for (was, now), some in moved.groupby(["before", "head_class"]):
                named = " ".join(f"{layer}:{head}" for layer, head in some.index)
                about = {"setting": setting, "length": n, "before": was, "after": now}
                rows.append(about | {"changed": len(some), "heads": named})
        columns = ["setting", "length", "before", "after", "changed", "heads"]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def lost_gaps(self) -> pd.DataFrame:
        """Planes that lose their gap, by setting and length.

        A plane holds the gap of its head where, in the model as it is at training length, it sets the most attended key above the
        second in every prompt and adds at least a tenth of the head's discrepancy; it has lost it where, in the mean over prompts,
        it no longer sets the one above the other.
        """
        rows = []
        for (setting, n), group in self.planes.groupby(["setting", "length"], sort=False):
            now = group.set_index([*HEAD, "frequency_id"])["gap"].reindex(self.holding)
            lost = int((now <= 0).sum())
            heads = len({key[:2] for key, gap in now.items() if gap <= 0})
            rows.append({"setting": setting, "length": n, "holding": len(now), "lost": lost, "in_heads": heads})
        return pd.DataFrame(rows)

    @cached_property
    def holding(self) -> pd.MultiIndex:
        """The planes (layer, head, frequency_id) that hold the gap of their head in the model as it is."""
        own = self._of(self.planes, AS_IT_IS, self.trained).set_index(HEAD)
        least = HOLDS * self._heads_at(AS_IT_IS, self.trained)["discrepancy"].reindex(own.index)
        held = own[(own["least_gap"] > 0) & (own["gap"] >= least)]
        return pd.MultiIndex.from_frame(held.reset_index()[[*HEAD, "frequency_id"]])

    def sentences(self) -> list[str]:
        """What was decided, and by what."""
        found = self.recommendation
        if found.setting is None:
            said = [f"No recommendation: {found.why}. Compared was the {found.optimised}."]
        elif found.setting == AS_IT_IS:
            said = [f"Recommended: leave the angles as they are ({found.optimised}: {found.why})."]
        else:
            said = [f"Recommended: {found.setting} ({found.optimised}: {found.why})."]
        if "heads" in self.tables:
            chance = self.changes.loc[self.changes["setting"] == CONTROL, "changed"].sum()
            said.append(
                f"On other prompts of the same length {chance} heads have another class, by chance: fewer changes than that mean nothing."
            )
            said.append(self._about_breaking())
        return said

    def _about_breaking(self) -> str:
        """How good the prediction was, where there was anything to predict."""
        if not self.copies:
            heads = _counted(self.copying)
            return (
                f"No breaking length: the model does not copy repeated tokens at its training length ({heads})."
            )
        left_out = {
            head for kind, some in self.copying.items() for head in set(some) - set(self.foretold[kind])
        }
        if not all(self.foretold.values()):
            return (
                f"No breaking length is predicted: of the heads that copying needs ({_counted(self.copying)}), {len(left_out)} are in "
                "layers that see a window only."
            )
        right = self.breaking_lengths["predicted"] == self.breaking_lengths["measured"]
        without = f" ({len(left_out)} more are in layers that see a window only)" if left_out else ""
        return (
            f"The predicted breaking length is the measured one for {int(right.sum())} of {len(right)} settings, predicted from "
            f"{_counted(self.foretold)}{without}."
        )

    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        """The tables that one reads first, each with its title."""
        tables = []
        for source in dict.fromkeys(self.losses["source"]):
            rows = self.summary[self.summary["source"] == source]
            for measure in ("loss", "accuracy") if source == "repeats" else ("loss",):
                tables.append((f"{measure} on {source} by length [95 % intervals]", _by_length(rows, measure)))
        if "heads" in self.tables:
            tables.append(
                ("heads and planes, beside the model as it is at training length", self.heads_by_length)
            )
            told = "measured; nothing was predicted" if self.predicted.empty else "predicted and measured"
            tables.append((f"where repeated tokens break, {told}", self.breaking_lengths))
        return tables

    @cached_property
    def heads_by_length(self) -> pd.DataFrame:
        """One row per setting and length: heads of another class, planes without their gap, attention of heads that copy."""
        changed = self.changes.groupby(["setting", "length"])["changed"].sum()
        table = self.lost_gaps.set_index(["setting", "length"])[["lost", "holding"]]
        table.insert(0, "classes_changed", changed.reindex(table.index, fill_value=0))
        both = [name for kind in COPYING for name in (f"predicted_{kind}", kind)]
        beside = self.breaking.set_index(["setting", "length"]).filter(both)
        return table.join(beside).reset_index()

    def _heads_at(self, setting: str, n: int) -> pd.DataFrame:
        return self._of(self.heads, setting, n).set_index(HEAD)

    @staticmethod
    def _of(table: pd.DataFrame, setting: str, n: int) -> pd.DataFrame:
        return table[(table["setting"] == setting) & (table["length"] == n)]

    def __repr__(self) -> str:
        return (
            f"ContextPlan({self.name!r}: {self.trained:,} to {self.to:,} tokens, {len(self.settings)} settings)"
        )


def _copied(heads: pd.DataFrame, which: dict[str, list[tuple[int, int]]]) -> dict[str, float]:
    """Of each kind of head that copying needs, the mean attention where it looks."""
    return {kind: float(heads[kind].reindex(some).mean()) for kind, some in which.items()}


def _counted(heads: dict[str, list[tuple[int, int]]]) -> str:
    """How many heads there are of each kind."""
    words = ("that look at what followed", "that look at the token before")
    return _and([f"{len(some)} heads {kind}" for kind, some in zip(words, heads.values(), strict=True)])


def _by_length(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Settings down, lengths across."""

    def shown(row: pd.Series) -> str:
        return f"{row[measure]:.3f} [{row[f'{measure}_low']:.2f}, {row[f'{measure}_high']:.2f}]"

    words = rows.assign(shown=rows.apply(shown, axis=1), length=rows["length"].map("{:,} tokens".format))
    table = words.pivot(index="setting", columns="length", values="shown")
    return table.loc[list(dict.fromkeys(words["setting"])), list(dict.fromkeys(words["length"]))].reset_index()


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
