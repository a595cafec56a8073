"""The cache plan: which key heads keep all their keys and values, and which may stream.

Rankings, each a number for every key head, the larger the more it needs all keys:

- `far_task`: attention on what a streaming head would forget, on the task; a key head takes the largest number of its query heads.
- `gradient`: what streaming adds to the loss, of all heads at once (`planner.path_gradients`), as DuoAttention's trained gates.
- `gradient_rounds`: the same in rounds: heads begin to stream, and those that are left are ranked again.
- `random`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import TaskError
from rotoscope.experiments.plan.plan_files import layer_numbers, write_exports
from rotoscope.experiments.plan.planner import (
    Forgotten,
    Planner,
    PromptSizes,
    SourcePrompts,
    path_gradients,
    path_points,
    plan_settings,
    source_prompts,
)
from rotoscope.experiments.plan.result import CachePlan
from rotoscope.experiments.plan.settings import CacheSettings
from rotoscope.measures.batches import batches
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.models.streaming import KeyHead, Streaming, mixed, streaming
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.shapes import Float, Tensor

PATH_POINTS = 3
"""At which the path from keeping everything to streaming is looked at."""
ROUNDS = (0.75, 0.5, 0.25, 0.1, 0.0)
"""Shares of key heads that still keep everything after each round of replacement."""


def cache(
    subject: Any,
    settings: CacheSettings | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> CachePlan:
    """Which key heads need the whole key-value cache: a plan, and what it costs beside other ways to choose.

    What is kept and how heads are ranked is said by `settings`, or by fields of `CacheSettings` given as keywords, such as
    `keep=0.25`, `window=256`, `sinks=4`. With `out`, the run goes on where it was killed, and `plan.json` and the files for other
    programs lie in it.
    """
    settings = CacheSettings.make(settings, **changes)
    subject = load(subject)
    samples = cache_prompts(subject, replace(settings, prompts=1))
    check_window(samples, settings)
    prompts = cache_prompts(subject, settings)
    described = plan_settings(subject, settings, prompts)
    described["task_settings"] = {source: items.settings for source, items in samples.items()}
    run = Run(CachePlan, described, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    reader = subject.reader(identity=subject.fingerprint)
    reader.check_predicts("a plan is judged by what the model says next")
    return CachePlanner(run, subject, reader, settings, prompts).plan(show_progress)


def cache_prompts(subject: Subject, settings: CacheSettings) -> SourcePrompts:
    """Prompts that are twice as long as the window."""
    length = max(128, 2 * settings.window)
    sizes = PromptSizes(length=length, pairs=8, passage=length)
    return source_prompts(subject, settings, sizes, Forgotten(settings.window, settings.sinks))


def check_window(prompts: SourcePrompts, settings: CacheSettings) -> None:
    """Refuse prompts of which no head would forget anything; lines are looked up where they are forgotten, as they are made."""
    window, sinks = settings.window, settings.sinks
    if "repeats" in prompts:
        back = prompts["repeats"].settings["length"] - 1
        queries = prompts["repeats"][0].queries
        forgotten = Forgotten(window, sinks)
        visible = sum(not forgotten.hides(query, query - back) for query in queries)
        if visible > len(queries) / 2:
            raise TaskError(
                f"{visible} of {len(queries)} tokens that repeats ask for, {back} tokens back, stand among the last {window} or the "
                f"first {sinks}, so no head would forget them: use longer prompts (--length), a smaller --window or --sinks, or "
                "other --sources"
            )
    if "text" in prompts:
        shortest = min(len(prompt.tokens) for prompt in prompts["text"])
        if window + sinks >= shortest:
            raise TaskError(
                f"a window of {window} tokens and {sinks} first ones hold all of a prompt of {shortest} (text), so no head "
                "would forget anything: use longer stretches (passage=), a smaller --window, or other --sources"
            )


class CachePlanner(Planner[CachePlan]):
    """A unit is a key head; dropped, it streams."""

    unit_columns: ClassVar = ["layer", "key_head"]

    @property
    def ranked_on(self) -> list[str]:
        return [self.settings.task]

    def all_units(self) -> pd.DataFrame:
        heads = [
            (layer, head) for layer, count in enumerate(self.reader.key_head_counts) for head in range(count)
        ]
        return pd.DataFrame(heads, columns=self.unit_columns)

    @property
    def budgets(self) -> dict[int, dict[str, float]]:
        """Of shares that keep as many heads one is measured, the share that was asked for if it is among them."""
        count = len(self.units)
        shares = {round(share * count): share for share in sorted(self.settings.frontier)}
        shares |= {0: 0.0, count: 1.0, round(self.settings.keep * count): self.settings.keep}
        return {kept: {"kept_share": share, "kept_heads": kept} for kept, share in sorted(shares.items())}

    def without(self, dropped: pd.DataFrame) -> AbstractContextManager[Any]:
        return streaming(self.reader, self._streaming(key_heads(dropped)))

    def _streaming(self, heads: Collection[KeyHead]) -> Streaming:
        return Streaming(frozenset(heads), self.settings.window, self.settings.sinks)

    def decide(self, ranked: pd.DataFrame) -> Tables:
        streams = ranked["place"] >= round(self.settings.keep * len(self.units))
        return {"heads": ranked[self.unit_columns].assign(streams=streams, place=ranked["place"])}

    def export(self) -> None:
        write_exports(self.run, layer_numbers(self.reader))

    def rank(self, name: str) -> pd.DataFrame:
        if name == "gradient_rounds":
            return self.rank_in_rounds(self._gradients)
        return self.placed(self._far_attention() if name == "far_task" else self._gradients(()))

    def rank_in_rounds(self, score: Callable[[Collection[KeyHead]], np.ndarray]) -> pd.DataFrame:
        """Heads with the least numbers begin to stream; then those that are left are ranked again."""
        ranked = self.units.assign(number=np.nan, place=-1)
        for share in ROUNDS:
            streams = ranked["place"] >= 0
            latest = self.placed(score(key_heads(ranked[streams])))
            left = latest[~streams].sort_values("place")
            left = left.assign(place=range(len(left)))
            leaving = left.index[left["place"] >= round(share * len(ranked))]
            ranked.loc[leaving, ["number", "place"]] = left.loc[leaving, ["number", "place"]]
        return ranked.astype({"place": int})

    def _gradients(self, streams: Collection[KeyHead]) -> np.ndarray:
        """What streaming adds to the loss where some heads stream already."""
        return self._first_gradients if not streams else self._gradients_beside(streams)

    @cached_property
    def _first_gradients(self) -> np.ndarray:
        return self._gradients_beside(())

    def _gradients_beside(self, streams: Collection[KeyHead]) -> np.ndarray:
        path = head_path(self.reader, path_points(PATH_POINTS), streams)
        plan = self._streaming(key_heads(self.units))
        gradients = path_gradients(
            self.subject, self.reader, self.ranking_prompts, path,
            lambda mixes: mixed(self.reader, plan, dict(enumerate(mixes))), self.gradient_tokens,
        )  # fmt: skip
        return torch.cat(gradients).numpy()

    def _far_attention(self) -> np.ndarray:
        """The mean share of attention, over the positions that are asked, on what would be forgotten."""
        plan, reader = self._streaming(()), self.reader
        [prompts] = self.ranking_prompts.values()
        total: dict[int, Float[Tensor, "heads"]] = {}

        def visit(layer: LayerReading) -> None:
            for rows in query_parts(layer):
                part = layer.part(rows)
                far = plan.far(part.positions, layer.keys.shape[2], layer.keys.device)
                share = (part.attention() * far).sum((0, 2, 3)).double().cpu()
                total[layer.layer] = total.get(layer.layer, 0.0) + share

        for batch in batches(prompts, "task", self.tokens_at_once):
            reader.read(batch.tokens, batch.queries, visit)
        queries = sum(len(prompt.queries) for prompt in prompts)
        grouped = [
            total[layer].unflatten(0, (count, -1)).amax(1) for layer, count in enumerate(reader.key_head_counts)
        ]
        return (torch.cat(grouped) / queries).numpy()


def key_heads(rows: pd.DataFrame) -> list[KeyHead]:
    """(layer, key head) of rows."""
    return list(zip(rows["layer"].tolist(), rows["key_head"].tolist(), strict=True))


def head_path(reader: HeadReader, points: list[float], streams: Collection[KeyHead] = ()) -> list[list[Tensor]]:
    """All key heads alike, from keeping everything to streaming; heads that stream already stay at 0."""
    path = [[torch.full((count,), share) for count in reader.key_head_counts] for share in points]
    for point in path:
        for layer, head in streams:
            point[layer][head] = 0.0
    return path


def query_parts(layer: LayerReading, most: int = 2**24) -> Iterator[slice]:
    """Query positions that fit memory together."""
    batch, key_head_count, group = layer.query.shape[:3]
    rows = max(1, most // (batch * key_head_count * group * layer.keys.shape[2]))
    for start in range(0, len(layer.positions), rows):
        yield slice(start, start + rows)
