"""What streaming costs, of all key heads at once, by gradients.

Let every key head write a mix of what it writes with all keys (1) and when it streams (0). Along the path on which all mixes go
from 1 to 0 together, what one head adds to the loss is the integral of minus the derivative by its own mix. The sum over the heads is what
streaming all of them costs, exactly (up to the few points at which the path is looked at): no head is judged where its
neighbours are all still there, as a single derivative at 1 would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch

from rotoscope.experiments.plan.settings import CacheSettings
from rotoscope.measures.batches import batches
from rotoscope.measures.losses import answer_logits
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.models.stream import KeyHead, Streaming, mixed
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.prompt import Prompts

POINTS = 3
"""At which the path is looked at: in the middle of as many equal parts."""
GRADIENT_TOKENS = 512
"""That run through the model together."""


def path_points(count: int = POINTS) -> list[float]:
    """The middles of equal parts of a path from 1 to 0."""
    return [1 - (k + 0.5) / count for k in range(count)]


def path_gradients(
    subject: Subject,
    reader: HeadReader,
    prompts: Prompts,
    plan: Streaming,
    key_heads: Sequence[int],
    *,
    streams: Collection[KeyHead] = (),
    points: Sequence[float] | None = None,
    most_tokens: int = GRADIENT_TOKENS,
) -> list[Float[Tensor, "key_heads"]]:
    """For every layer, what each key head adds to the mean loss when all that do not stream yet begin to.

    `streams` are heads that stream already: they stay at 0, and get what their mix would change there.
    """
    at = path_points() if points is None else points
    total = [torch.zeros(count, dtype=torch.float64) for count in key_heads]
    work = batches(prompts, "task", most_tokens)
    answers = sum(len(batch) for batch in work)
    with mixes_alone(reader):
        for point in at:
            mix = {
                layer: torch.full((count,), point, device=reader.device)
                for layer, count in enumerate(key_heads)
            }
            for layer, head in streams:
                mix[layer][head] = 0.0
            for one in mix.values():
                one.requires_grad_(True)
            for batch in work:
                with mixed(reader, plan, mix):
                    logits = answer_logits(subject, batch)
                    expected = torch.tensor([prompt.answers for prompt in batch.prompts], device=logits.device)
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten())
                    (loss * (len(batch) / answers)).backward()
            for layer, one in mix.items():
                if one.grad is not None:
                    total[layer] -= one.grad.double().cpu() / len(at)
    return total


@contextmanager
def mixes_alone(reader: HeadReader) -> Iterator[None]:
    """Gradients of nothing but what a model's heads or planes are mixed by, without dropout; the model is left as it was."""
    weights = [weight for weight in reader.model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with reader.ready(), torch.enable_grad():
            yield
    finally:
        for weight in weights:
            if (
                not weight.is_inference()
            ):  # weights that a device map brings in for one call are dropped after it
                weight.requires_grad_(True)


# Rankings of key heads: which need all keys most. Each gives every key head a number; the larger, the more it needs them.
#
# - `far_task`: attention on what a streaming head would forget, on the task. A key head takes the largest number of its query heads.
# - `gradient`: what streaming adds to the loss, of all heads at once (`rotoscope.experiments.plan.rankings`).
# - `gradient_rounds`: the same in rounds: heads are replaced, and those that are left are asked again.
# - `random`.


ROUNDS = (0.75, 0.5, 0.25, 0.1)
"""Shares of key heads that still keep everything after each round of replacement."""
MOST_TOKENS = 1024
"""That are looked at together."""

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

    def __init__(self, subject: Subject, reader: HeadReader, settings: CacheSettings, prompts: Prompts) -> None:
        self.subject, self.reader, self.settings, self.prompts = subject, reader, settings, prompts

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
        if name == "gradient_rounds":
            return self._in_rounds(self._gradients)
        return self._ranked(self._far_attention() if name == "far_task" else self._gradients(()))

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

    def _far_attention(self) -> Scores:
        """The mean share of attention, over the positions that are asked, on what would be forgotten."""
        plan = Streaming(frozenset(), self.settings.window, self.settings.sinks)
        total: dict[int, Tensor] = {}

        def visit(layer: LayerReading) -> None:
            for rows in _parts(layer):
                part = layer.part(rows)
                far = plan.far(part.positions, layer.keys.shape[2], layer.keys.device)
                share = (part.attention() * far).sum((0, 2, 3)).double().cpu()
                total[layer.layer] = total.get(layer.layer, 0.0) + share

        for batch in batches(self.prompts, "task", MOST_TOKENS):
            self.reader.read(batch.tokens, batch.queries, visit)
        asked = sum(len(prompt.queries) for prompt in self.prompts)
        return [
            (total[layer] / asked).unflatten(0, (self.key_heads[layer], -1)).amax(1) for layer in sorted(total)
        ]

    def _gradients(self, streams: Collection[KeyHead]) -> Scores:
        """Where nobody streams yet, rankings by gradients begin alike: that is asked once."""
        return self._all_gradients if not streams else self._gradients_without(streams)

    @cached_property
    def _all_gradients(self) -> Scores:
        return self._gradients_without(())

    def _gradients_without(self, streams: Collection[KeyHead]) -> Scores:
        plan = Streaming(frozenset(self.everyone), self.settings.window, self.settings.sinks)
        return path_gradients(self.subject, self.reader, self.prompts, plan, self.key_heads, streams=streams)


def _parts(layer: LayerReading, most: int = 2**24) -> Iterator[slice]:
    """Query positions that fit memory together."""
    batch, key_heads, group = layer.query.shape[:3]
    rows = max(1, most // (batch * key_heads * group * layer.keys.shape[2]))
    for start in range(0, len(layer.positions), rows):
        yield slice(start, start + rows)
