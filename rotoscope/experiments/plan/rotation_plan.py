"""The rotation plan: which planes of every key head must rotate.

Planes that do not rotate are stopped, for the key and for all query heads of its group: they go on existing, without a position
(p-RoPE). Rankings, within a key head, the larger the number the earlier a plane is kept:

- `effect`: what stopping the plane would cost, of all planes at once (`planner.path_gradients`).
- `norm`: its logits are large (2-norm); a key head takes the largest value of its group.
- `fastest`: it is fast.
- `random`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import NoRotaryError, RotoscopeError
from rotoscope.experiments.plan.plan_files import PLANES_FILE, RotatingPlanes
from rotoscope.experiments.plan.planner import (
    Planner,
    PromptSizes,
    path_gradients,
    path_points,
    plan_settings,
    source_prompts,
)
from rotoscope.experiments.plan.result import RotationPlan
from rotoscope.experiments.plan.settings import RotationSettings
from rotoscope.measures.batches import batches
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.loading import load
from rotoscope.models.partial_rope import Which, check_turns_back, mixed, stopped
from rotoscope.models.reader import HeadReader
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.shapes import Float, Tensor

PROMPT_SIZES = PromptSizes(length=32, pairs=8, passage=128)
TAU = 1e-4


def rotation(
    subject: Any,
    settings: RotationSettings | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> RotationPlan:
    """Choose the planes of every key head that go on rotating, and judge the choice beside others of as many planes.

    What is decided is said by `settings`, or by fields of `RotationSettings` given as keywords, such as `planes=8`,
    `rankings=("effect", "norm", "random")` or `sources=("text",)`. With `out` the folder holds `rotation.safetensors` as well:
    ranks that `rs.plan.load_rotation` reads and `rs.plan.stop_planes` applies.
    """
    settings = RotationSettings.make(settings, **changes)
    subject = load(subject)
    prompts = source_prompts(subject, settings, PROMPT_SIZES)
    reader = subject.reader(identity=subject.fingerprint)
    check_planes(reader, subject.name, settings.planes)
    described = plan_settings(subject, settings, prompts)
    run = Run(RotationPlan, described, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    return RotationPlanner(run, subject, reader, settings, prompts).plan(show_progress)


def check_planes(reader: HeadReader, name: str, planes: int) -> None:
    """Refuse a model whose planes cannot be stopped, or that has fewer of them."""
    reader.check_predicts("a plan is judged by what the model answers")
    check_turns_back(reader)
    total = plane_count(reader)
    if not total:
        raise NoRotaryError(f"no layer of {name} rotates: there are no planes to choose from")
    if planes > total:
        raise RotoscopeError(
            f"planes is {planes}, and a head of {name} has {total}: ask for at most {total} (--planes)"
        )


def plane_count(reader: HeadReader) -> int:
    """Planes of a head, in the layers with the most."""
    return max(layout.planes for layout in reader.layouts)


class RotationPlanner(Planner[RotationPlan]):
    """A unit is a plane of a key head; dropped, it is stopped."""

    unit_columns: ClassVar = ["layer", "key_head", "frequency_id"]
    within: ClassVar = ["layer", "key_head"]

    def all_units(self) -> pd.DataFrame:
        reader = self.reader
        rows = [
            (layer, head, k + 1, angle)
            for layer, layout in enumerate(reader.layouts)
            for head in range(reader.key_head_counts[layer])
            for k, angle in enumerate(layout.angles.tolist())
        ]
        return pd.DataFrame(rows, columns=[*self.unit_columns, "angle"])

    @property
    def budgets(self) -> dict[int, dict[str, float]]:
        total, settings = plane_count(self.reader), self.settings
        counts = {0, total, settings.planes, *(count for count in settings.budgets if count < total)}
        return {count: {"planes": count} for count in sorted(counts)}

    def without(self, dropped: pd.DataFrame) -> AbstractContextManager[Any]:
        return stopped(self.reader, stopped_planes(dropped))

    def decide(self, ranked: pd.DataFrame) -> Tables:
        plan = self.units.merge(ranked[[*self.unit_columns, "place"]], validate="1:1")
        plan = plan.rename(columns={"place": "rank"})
        return {"plan": plan.assign(rotates=plan["rank"] < self.settings.planes)}

    def export(self) -> None:
        self.run.beside(PLANES_FILE, RotatingPlanes.of(self.run.result).save)

    def rank(self, name: str) -> pd.DataFrame:
        if name == "fastest":
            return self.placed(-self.units["frequency_id"].to_numpy(dtype=float))
        return self.placed(self._norms() if name == "norm" else self._effects())

    def _effects(self) -> np.ndarray:
        """What stopping a plane costs, along the path on which all planes stop together."""
        path = plane_path(self.reader, path_points(self.settings.path_points))
        gradients = path_gradients(
            self.subject,
            self.reader,
            self.ranking_prompts,
            path,
            partial(mixed, self.reader),
            self.gradient_tokens,
        )
        return torch.cat([part.flatten() for part in gradients]).numpy()

    def _norms(self) -> np.ndarray:
        """Logit norms of the planes at the last query of every prompt, each source counting alike."""
        score = lambda part: score_batch(self.reader, part, Scoring((TAU,), True), self.subject.tokenizer)  # noqa: E731
        tables = [
            self.halving.over(batch, score)["prompt_frequencies"].assign(source=source)
            for source, prompts in self.ranking_prompts.items()
            for batch in batches(prompts, "last", self.tokens_at_once)
        ]
        rows = pd.concat(tables, ignore_index=True)
        rows = rows[rows["frequency_id"] > 0]
        group_sizes = np.array(self.reader.head_counts) // np.array(self.reader.key_head_counts)
        rows["key_head"] = rows["head"] // group_sizes[rows["layer"].to_numpy()]
        by_source = rows.groupby(["source", "head", *self.unit_columns])["logit_norm"].mean()
        norms = by_source.groupby(["head", *self.unit_columns]).mean().groupby(self.unit_columns).max()
        return norms.reindex(pd.MultiIndex.from_frame(self.units[self.unit_columns])).to_numpy(dtype=float)


def plane_path(reader: HeadReader, points: list[float]) -> list[list[Float[Tensor, "key_heads planes"]]]:
    """All planes alike, from rotating to stopped."""
    sizes = [
        (count, layout.planes) for count, layout in zip(reader.key_head_counts, reader.layouts, strict=True)
    ]
    return [[torch.full(size, share) for size in sizes] for share in points]


def stopped_planes(dropped: pd.DataFrame) -> Which:
    """Frequency ids by (layer, key head)."""
    return {
        (int(layer), int(head)): frozenset(rows["frequency_id"].tolist())
        for (layer, head), rows in dropped.groupby(["layer", "key_head"])
    }
