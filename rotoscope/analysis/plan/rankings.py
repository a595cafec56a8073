"""Rankings of key heads: who needs all keys most. Each gives every key head a number; the larger, the more it needs them.

One decision is made per key head, and a key head takes the largest number of its query heads.

- `symbolic_mass`: the papers' symbolic score times the attention on what is swapped; `symbolic`: the score alone.
- `far_task`, `far_text`: attention on what a streaming head would forget, on the task and on text.
- `known`: induction or copying, whichever is more (`rotoscope.analysis.known`).
- `prompt`: symbolic_mass where the prompt itself is permuted (k = 0).
- `on_the_fly`: how far the mean query looks over mean keys at every distance; the quick choice that kvpress offers for models
  without a trained DuoAttention pattern (the area under the cumulated attention from the first key on). On text, or on the task
  where text is not among the sources.
- `gradient`: what streaming adds to the loss, of all heads at once (`rotoscope.analysis.plan.gradients`).
- `combined`: symbolic score times far attention, on the task.
- `far_rounds`, `gradient_rounds`: heads are replaced in rounds, and those that are left are asked again after each.
- `random`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
import torch

from rotoscope.analysis.batches import batches
from rotoscope.analysis.known import scores_of_heads, usual_prompts
from rotoscope.analysis.plan.gradients import path_gradients
from rotoscope.analysis.profiling import profile
from rotoscope.maths.rotation import relative_phases, turn
from rotoscope.reading import HeadReader, LayerHeads, Subject
from rotoscope.reading.streaming import KeyHead, Streaming, streaming
from rotoscope.settings import CacheSettings, ProfileSettings
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.prompts import Prompts

ROUNDS = (0.75, 0.5, 0.25, 0.1)
"""Shares of key heads that still keep everything after each round of replacement."""
DISTANCES = 500
"""How far the mean query looks."""
MOST_TOKENS = 1024
"""That are looked at together."""

TEXT, FAR_TEXT, ON_THE_FLY = "text", "far_text", "on_the_fly"
"""A source, and the rankings that are made on it."""

Scores = list[Float[Tensor, "key_heads"]]
"""For every layer."""


@dataclass(frozen=True)
class Ranked:
    """One ranking: all key heads, who needs everything most first, with the number that says so."""

    heads: tuple[KeyHead, ...]
    numbers: dict[KeyHead, float]

    def streaming(self, kept: int) -> frozenset[KeyHead]:
        """Who streams when so many keep everything."""
        return frozenset(self.heads[kept:])

    def table(self, ranking: str, draw: int) -> pd.DataFrame:
        rows = [
            {"ranking": ranking, "draw": draw, "layer": layer, "key_head": head, "place": place, "number": self.numbers[layer, head]}
            for place, (layer, head) in enumerate(self.heads)
        ]  # fmt: skip
        return pd.DataFrame(rows)

    @classmethod
    def read(cls, rows: pd.DataFrame) -> Ranked:
        """Back from its table."""
        rows = rows.sort_values("place")
        heads = tuple(
            (int(layer), int(head)) for layer, head in zip(rows["layer"], rows["key_head"], strict=True)
        )
        return cls(heads, dict(zip(heads, (float(one) for one in rows["number"]), strict=True)))


class Rankings:
    """Makes rankings of a model's key heads from prompts that it is not judged by."""

    def __init__(
        self,
        subject: Subject,
        reader: HeadReader,
        settings: CacheSettings,
        shown: dict[str, Prompts],
    ) -> None:
        self.subject, self.reader, self.settings, self.shown = subject, reader, settings, shown
        self.task = shown[settings.task]

    @property
    def key_heads(self) -> list[int]:
        """How many every layer has."""
        return self.reader.key_head_counts

    @property
    def everyone(self) -> list[KeyHead]:
        return [(layer, head) for layer, count in enumerate(self.key_heads) for head in range(count)]

    def make(self, name: str, draw: int = 0) -> Ranked:
        """A ranking by its name."""
        if name == "random":
            dice = random.Random(f"{self.settings.seed} {draw}")
            return self._ranked([torch.tensor([dice.random() for _ in range(n)]) for n in self.key_heads])
        if name.endswith("_rounds"):
            return self._in_rounds(self._far if name == "far_rounds" else self._gradients)
        made: dict[str, Callable[[], Scores]] = {
            "symbolic_mass": lambda: self._of_heads(
                self._profile["symbolic_score"] * self._profile["swapped_mass"]
            ),
            "symbolic": lambda: self._of_heads(self._profile["symbolic_score"]),
            "prompt": self._prompt,
            "far_task": lambda: self._far(()),
            FAR_TEXT: lambda: self._far((), self.shown[TEXT]),
            "known": self._known,
            ON_THE_FLY: self._on_the_fly,
            "gradient": lambda: self._gradients(()),
            "combined": lambda: self._of_heads(self._profile["symbolic_score"] * self._far_of_heads),
        }
        return self._ranked(made[name]())

    def _ranked(self, scores: Scores) -> Ranked:
        numbers = {(layer, head): float(scores[layer][head]) for layer, head in self.everyone}
        return Ranked(tuple(sorted(numbers, key=lambda one: -numbers[one])), numbers)

    def _in_rounds(self, ask: Callable[[Collection[KeyHead]], Scores]) -> Ranked:
        """Those who need everything least begin to stream; then those who are left are asked again."""
        streams: list[KeyHead] = []
        numbers: dict[KeyHead, float] = {}
        for share in (*ROUNDS, 0.0):
            found = self._ranked(ask(streams))
            left = [one for one in reversed(found.heads) if one not in set(streams)]
            going = left[: len(left) - round(share * len(self.everyone))]
            streams += going
            numbers |= {one: found.numbers[one] for one in going}
        return Ranked(tuple(reversed(streams)), numbers)

    def _of_heads(self, numbers: pd.Series) -> Scores:
        """The largest number of every key head's query heads; one that is missing counts nothing."""
        return [
            torch.tensor(some.fillna(0.0).to_numpy(dtype=float))
            .unflatten(0, (self.key_heads[layer], -1))
            .amax(1)
            for layer, some in numbers.groupby(level="layer", sort=True)
        ]

    @cached_property
    def _profile(self) -> pd.DataFrame:
        """The papers' scores on the task."""
        swaps = self.settings.input_swaps if "prompt" in self.settings.rankings else 0
        plain = ProfileSettings(null="none", examples=False, input_swaps=swaps)
        found = profile(self.subject, self.task, plain, show_progress=False)
        return found.at().set_index(["layer", "head"]).sort_index()

    def _prompt(self) -> Scores:
        return self._of_heads(self._profile["input_symbolic_score"] * self._profile["swapped_mass"])

    @cached_property
    def _far_of_heads(self) -> pd.Series:
        found = self._far_attention((), self.task)
        rows = {(layer, head): float(one) for layer, some in enumerate(found) for head, one in enumerate(some)}
        return pd.Series(rows).rename_axis(["layer", "head"])

    def _far(self, streams: Collection[KeyHead], prompts: Prompts | None = None) -> Scores:
        if not streams and prompts is None:
            return self._of_heads(self._far_of_heads)
        found = self._far_attention(streams, self.task if prompts is None else prompts)
        return [one.unflatten(0, (self.key_heads[layer], -1)).amax(1) for layer, one in enumerate(found)]

    def _far_attention(self, streams: Collection[KeyHead], prompts: Prompts) -> list[Float[Tensor, "heads"]]:
        """The mean share of attention, over the positions that are asked, on what would be forgotten."""
        plan = Streaming(frozenset(streams), self.settings.window, self.settings.sinks)
        total: dict[int, Tensor] = {}

        def visit(layer: LayerHeads) -> None:
            for rows in _parts(layer):
                part = layer.part(rows)
                far = plan.far(part.positions, layer.keys.shape[2], layer.keys.device)
                share = (part.attention() * far).sum((0, 2, 3)).double().cpu()
                total[layer.layer] = total.get(layer.layer, 0.0) + share

        with streaming(self.reader, plan):
            for batch in batches(prompts, "task", MOST_TOKENS):
                self.reader.read(batch.tokens, batch.queries, visit)
        asked = sum(len(prompt.queries) for prompt in prompts)
        return [total[layer] / asked for layer in sorted(total)]

    def _gradients(self, streams: Collection[KeyHead]) -> Scores:
        """Where nobody streams yet, rankings by gradients begin alike: that is asked once."""
        return self._all_gradients if not streams else self._gradients_without(streams)

    @cached_property
    def _all_gradients(self) -> Scores:
        return self._gradients_without(())

    def _gradients_without(self, streams: Collection[KeyHead]) -> Scores:
        plan = Streaming(frozenset(self.everyone), self.settings.window, self.settings.sinks)
        return path_gradients(self.subject, self.reader, self.task, plan, self.key_heads, streams=streams)

    def _known(self) -> Scores:
        shown = usual_prompts(self.subject, self.settings.seed)[:1]
        found = scores_of_heads(self.reader, shown, self.subject.tokenizer)
        found = found.set_index(["layer", "head"]).sort_index()
        return self._of_heads(found[["induction", "copying"]].max(axis=1))

    def _on_the_fly(self) -> Scores:
        """The area under the cumulated attention of the mean query over mean keys, on text where there is some."""
        prompts = self.shown.get(TEXT, self.task)
        queries: dict[int, Tensor] = {}
        keys: dict[int, Tensor] = {}
        layers: dict[int, LayerHeads] = {}

        def visit(layer: LayerHeads) -> None:
            at = layer.layer
            queries[at] = queries.get(at, 0.0) + layer.query.double().mean(3).sum(0)  # [key_heads, group, d]
            keys[at] = keys.get(at, 0.0) + layer.keys.double().mean(2).sum(0)
            layers[at] = replace(layer, query=layer.query[:0], keys=layer.keys[:0], residual=None)

        for batch in batches(prompts, "task", MOST_TOKENS):
            self.reader.read(batch.tokens, tuple(range(batch.length)), visit)
        return [
            cumulated_attention(queries[at] / len(prompts), keys[at] / len(prompts), layers[at]).mean(-1).cpu()
            for at in sorted(layers)
        ]


def cumulated_attention(
    query: Float[Tensor, "key_heads group d"],
    key: Float[Tensor, "key_heads d"],
    layer: LayerHeads,
    n: int = DISTANCES,
) -> Float[Tensor, "key_heads group"]:
    """The same query at the last of n positions and the same key at each: the mean of the attention up to every position.

    1 where all attention is on the first position, 1/n where it is on the query's own.
    """
    planes = layer.layout.planes
    phases = relative_phases(layer.layout.angles, n, n - 1).to(query.device)
    turning, still = query.split((2 * planes, layer.layout.remainder), dim=-1)
    # What a query sees of a key that is some way back: the query turned on by as much.
    turned = turn(turning[..., None, :].unflatten(-1, (-1, 2)), phases.cos(), phases.sin()).flatten(-2)
    logits = (turned * key[:, None, None, : 2 * planes]).sum(-1) + (still * key[:, None, 2 * planes :]).sum(-1)[
        ..., None
    ]
    attention = layer.capped(layer.scaling * logits).softmax(-1)
    return attention.cumsum(-1).mean(-1)


def _parts(layer: LayerHeads, most: int = 2**24) -> Iterator[slice]:
    """Query positions that fit memory together."""
    batch, key_heads, group = layer.query.shape[:3]
    rows = max(1, most // (batch * key_heads * group * layer.keys.shape[2]))
    for start in range(0, len(layer.positions), rows):
        yield slice(start, start + rows)
