"""The planes of a plan as a file for other programs, and a model that goes on with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.plan.rotation_result import RotationPlan
from rotoscope.models.loading import Subject, load
from rotoscope.models.partial_rope import Which, stop_for_good
from rotoscope.models.reader import HeadReader
from rotoscope.runs.files import plain, replace_file
from rotoscope.shapes import Int, Tensor

PLANES_FILE = "rotation.safetensors"
RANK = "rank"
NAMES = ("fingerprint", "planes", "ranking", "model")


@dataclass(frozen=True)
class RotatingPlanes:
    """Ranks of the planes of every key head, and how many of them rotate."""

    rank: Int[Tensor, "layers key_heads planes"]
    """0 is kept first; -1 where a layer has no such plane or key head."""
    planes: int
    ranking: str
    fingerprint: str
    model: str

    def stopped(self, planes: int | None = None) -> Which:
        """Frequency ids that are stopped, by (layer, key head), where so many rotate; by default as many as were planned."""
        keep = self.planes if planes is None else planes
        found: dict[tuple[int, int], set[int]] = {}
        for layer, head, plane in (self.rank >= keep).nonzero().tolist():
            found.setdefault((layer, head), set()).add(plane + 1)
        return {key: frozenset(ids) for key, ids in found.items()}

    def save(self, path: str | Path) -> Path:
        """Write the ranks as safetensors, with everything that is needed to use them."""
        from safetensors.torch import save_file

        about = {name: str(getattr(self, name)) for name in NAMES}
        file = Path(path)
        replace_file(file, lambda scratch: save_file({RANK: self.rank}, scratch, metadata=about))
        return file

    @classmethod
    def of(cls, plan: RotationPlan) -> RotatingPlanes:
        """The planes of a plan."""
        rows = plan.plan
        sizes = [int(rows[name].max()) + 1 for name in ("layer", "key_head")] + [
            int(rows["frequency_id"].max())
        ]
        rank = np.full(sizes, -1, dtype=np.int32)
        rank[rows["layer"], rows["key_head"], rows["frequency_id"] - 1] = rows["rank"]
        about = plan.run.settings
        return cls(
            torch.from_numpy(rank), plan.planes, plan.chosen, str(about["fingerprint"]), str(about["model"])
        )


def load_rotation(path: str | Path) -> RotatingPlanes:
    """Read `rotation.safetensors`, or the one of a run folder; what is damaged or something else is refused."""
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    file = file / PLANES_FILE if file.is_dir() else file
    try:
        with safe_open(plain(file), "pt") as opened:
            about = opened.metadata() or {}
            rank = opened.get_tensor(RANK)
        planes = int(about["planes"])
    except (OSError, SafetensorError, KeyError, ValueError) as problem:
        raise RunError(f"{file} is no plan of planes, or damaged ({problem}); make the plan again") from problem
    missing = [name for name in NAMES if name not in about]
    if (
        missing
        or rank.ndim != 3
        or rank.dtype not in (torch.int32, torch.int64)
        or not _ranks(rank)
        or not 0 <= planes <= rank.shape[-1]
    ):
        raise RunError(
            f"{file} is no plan of planes: it should hold ranks [layers, key heads, planes], each key head's from 0 on, and say of how "
            f"many planes, found {list(rank.shape)} of {rank.dtype} and planes = {planes}"
        )
    return RotatingPlanes(rank, planes, about["ranking"], about["fingerprint"], about["model"])


def _ranks(rank: Tensor) -> bool:
    """Whether every key head has the ranks from 0 on, each once; -1 stands for no plane."""
    expected = torch.arange(rank.shape[-1]).expand(rank.shape)
    count = (rank >= 0).sum(-1, keepdim=True)
    sorted_ranks = torch.where(rank < 0, rank.shape[-1], rank).sort(dim=-1).values
    return bool((rank >= -1).all()) and bool(((sorted_ranks == expected) | (expected >= count)).all())


def stop_planes(
    model: Any,
    plan: RotationPlan | RotatingPlanes | str | Path,
    *,
    planes: int | None = None,
    uptrained: bool = False,
) -> Any:
    """The same model, attending from now on with the planes stopped that the plan does not keep.

    `model` is what `rs.load` returns or takes; one whose heads stream is refused. `plan` is a plan, what `load_rotation` returns, or a
    path to either; `planes` another number of planes than was planned. The model can be trained, generates with its cache, and saves
    its weights as always; the plan is not among them. Load the weights, and call this again with `uptrained=True`: then the plan's
    model need not be this one, as long as it has as many layers, key heads and planes.
    """
    found = load(model).model
    if isinstance(plan, str | Path):
        plan = load_rotation(plan)
    chosen = RotatingPlanes.of(plan) if isinstance(plan, RotationPlan) else plan
    reader = HeadReader(found)
    own = (reader.layers, max(reader.key_head_counts), max(layout.planes for layout in reader.layouts))
    if tuple(chosen.rank.shape) != own:
        raise RotoscopeError(
            f"the plan is for {_sizes(tuple(chosen.rank.shape))} ({chosen.model}), and this model has {_sizes(own)}: make a plan for it"
        )
    if not uptrained and Subject(found, None, "model").fingerprint != chosen.fingerprint:
        raise RotoscopeError(
            f"the plan was made for another model ({chosen.model}, {chosen.fingerprint}): make one for this model, or say that this is "
            "that one after more training (uptrained=True)"
        )
    if planes is not None and not 0 <= planes <= own[2]:
        raise RotoscopeError(f"planes is {planes}, and a head of this model has {own[2]}")
    stop_for_good(reader, chosen.stopped(planes))
    return found


def _sizes(sizes: tuple[int, ...]) -> str:
    return "{} layers of {} key heads with {} planes".format(*sizes)
