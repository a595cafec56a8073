"""Plans as files, for this program and others, and models that run by them.

- `plan.json`: a cache plan: fingerprint of the model, window, sinks, and the key heads that stream.
- `full_attention_heads.tsv` and `config.json` in a folder: DuoAttention's patterns, 1 for a key head that keeps everything.
- a mask of streaming heads [layers, key heads]: what kvpress's `DuoAttentionPress` calls `streaming_mask`.
- `rotation.safetensors`: the ranks of the planes of every key head.

Layers are counted as everywhere here: those that attend, from 0 on. Where a model has other layers between them (convolutions,
say), other programs count those as well; the numbers under which they know ours are kept with the plan, and patterns for them refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.plan.result import CachePlan, RotationPlan
from rotoscope.models.interventions import check_as_made
from rotoscope.models.loading import Subject, load
from rotoscope.models.partial_rope import Which, stop_for_good
from rotoscope.models.reader import HeadReader
from rotoscope.models.streaming import Streaming
from rotoscope.models.streaming import stream as stream_heads
from rotoscope.runs.files import plain, replace_file, write_json, write_text
from rotoscope.runs.run import Run
from rotoscope.shapes import Int, Tensor

PLAN_FILE, KIND, CACHE = "plan.json", "plan", "cache"
"""A file says under its kind what its plan is about."""
LARGEST = 1_000_000
"""Bytes of a plan that is read; ours have a few thousand."""
MOST, MOST_HEADS = 2**40, 2**20
"""No plan has larger numbers, and no model more key heads."""
DUO, PATTERN, SIZES = "duo_attention", "full_attention_heads.tsv", "config.json"
"""A folder with DuoAttention's pattern, and its files."""
SINKS, RECENT = "sink_size", "recent_size"
REQUIRED = {"fingerprint": str, "window": int, "sinks": int, "streaming": list, "key_heads": list}


@dataclass(frozen=True)
class StreamingPlan:
    """A cache plan as it is used: for which model, which key heads stream, and what they keep."""

    fingerprint: str
    window: int
    sinks: int
    streaming: tuple[tuple[int, int], ...]
    """Layer and key head."""
    key_heads: tuple[int, ...]
    """How many every layer has."""
    model: str = ""
    layers: tuple[int, ...] = ()
    """The numbers under which other programs know these layers; where none are kept, they are the same."""
    keep: float | None = None
    """The share of key heads that was to keep everything."""
    ranking: str = ""
    ranked_on: str = ""

    @classmethod
    def of(cls, plan: CachePlan) -> StreamingPlan:
        """The plan of a run."""
        heads, settings = plan.heads, plan.run.settings
        streams = heads[heads["streams"]]
        return cls(
            fingerprint=settings["fingerprint"],
            window=settings["window"],
            sinks=settings["sinks"],
            streaming=tuple(zip(streams["layer"].tolist(), streams["key_head"].tolist(), strict=True)),
            key_heads=tuple(heads.groupby("layer").size().tolist()),
            model=settings["model"],
            layers=layer_tuple(plan.run.details.get("layers", [])),
            keep=plan.keep,
            ranking=plan.ranking,
            ranked_on=settings["task"],
        )

    @classmethod
    def parse(cls, content: dict[str, Any]) -> StreamingPlan:
        """A plan from what its file says; ValueError where something is missing or could not be."""
        for name, kind in REQUIRED.items():
            if not isinstance(content.get(name), kind) or isinstance(content.get(name), bool):
                raise ValueError(f"{name} is missing or of another kind")
        counts, pairs = content["key_heads"], content["streaming"]
        if not counts or not all(is_number(count, 1) for count in counts) or sum(counts) > MOST_HEADS:
            raise ValueError("key_heads are no numbers of heads")
        if not is_number(content["window"], 1) or not is_number(content["sinks"], 0):
            raise ValueError(f"a window of {content['window']} and {content['sinks']} first tokens")
        if not all(_is_pair(pair) and pair[0] < len(counts) and pair[1] < counts[pair[0]] for pair in pairs):
            raise ValueError("streaming names key heads that are not there")
        if len({tuple(pair) for pair in pairs}) < len(pairs):
            raise ValueError("streaming names a key head twice")
        layers, keep = layer_tuple(content.get("layers", [])), content.get("keep")
        if layers and (len(layers) != len(counts) or list(layers) != sorted(set(layers))):
            raise ValueError("layers are not as many as key_heads, each once and in order")
        values: dict[str, Any] = {name: content[name] for name in ("fingerprint", "window", "sinks")}
        values |= {name: str(content.get(name, "")) for name in ("model", "ranking", "ranked_on")}
        values |= {"streaming": tuple(map(tuple, pairs)), "key_heads": tuple(counts), "layers": layers}
        return cls(**values, keep=float(keep) if isinstance(keep, int | float) else None)

    def write(self, path: Path) -> None:
        """As `plan.json`."""
        write_json(path, {KIND: CACHE, **asdict(self)})

    def heads(self, context: int | None = None) -> Streaming:
        """For a running model; with a `context` as in a prompt that is compressed once it has been read."""
        return Streaming(frozenset(self.streaming), self.window, self.sinks, context)

    def mask(self) -> np.ndarray:
        """True where a key head streams, [layers, key heads]; layers must have as many key heads as each other, and all must attend."""
        if self.no_mask:
            raise RunError(self.no_mask)
        mask = np.zeros((len(self.key_heads), self.key_heads[0]), dtype=bool)
        for layer, head in self.streaming:
            mask[layer, head] = True
        return mask

    @property
    def no_mask(self) -> str:
        """Why other programs cannot take the plan; empty where they can."""
        if len(set(self.key_heads)) != 1:
            return "the layers of this model differ in their number of key heads, and a mask is a rectangle"
        if self.layers not in ((), tuple(range(len(self.key_heads)))):
            numbers = ", ".join(map(str, self.layers))
            return (
                f"of the layers of this model only some attend ({numbers}), and programs that count all of them would take the plan of "
                "one layer for another: let it stream here (rs.plan.stream)"
            )
        return ""

    def check(self, subject: Subject) -> None:
        """Refuse another model than the one the plan was made for."""
        if subject.fingerprint != self.fingerprint:
            raise RunError(
                f"the plan was made for {self.model or 'another model'} (fingerprint {self.fingerprint}), and {subject.name} has other "
                f"weights ({subject.fingerprint}); make a plan for it"
            )

    def check_heads(self, reader: HeadReader) -> None:
        """Refuse a plan that names other key heads than the model has, whatever its fingerprint says."""
        counts = tuple(reader.key_head_counts)
        if self.key_heads != counts:
            raise RunError(
                f"the plan is for {_counted(self.key_heads)}, and this model has {_counted(counts)}: the plan has been changed; make it "
                "again (rotoscope plan cache)"
            )


def is_number(value: Any, least: int) -> bool:
    """Whether this is a whole number that a plan can have."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(is_number(part, 0) for part in value)


def layer_tuple(layers: Any) -> tuple[int, ...]:
    """Numbers of layers; what is none is refused."""
    if not isinstance(layers, list) or not all(is_number(layer, 0) for layer in layers):
        raise RunError("layers are no numbers of layers; make the plan again")
    return tuple(layers)


def _counted(key_heads: tuple[int, ...]) -> str:
    sizes = sorted(set(key_heads))[:4]
    return f"{len(key_heads)} layers of {' or '.join(map(str, sizes))} key heads"


def layer_numbers(reader: HeadReader) -> tuple[int, ...]:
    """The numbers under which transformers, and programs that build on it, know the layers that were read."""
    return tuple(int(getattr(site.module, "layer_idx", site.layer)) for site in reader.sites)


def write_exports(run: Run[CachePlan], layers: Sequence[int] = ()) -> None:
    """Beside the tables of a run: its plan, and DuoAttention's pattern where other programs can take the plan.

    `layers` are the numbers under which they know the layers of the model (`layer_numbers`); the run keeps them.
    """
    run.record.details["layers"] = list(layers)
    plan = StreamingPlan.of(run.result)
    run.beside(PLAN_FILE, plan.write)
    if not plan.no_mask:
        run.beside(DUO, partial(save_duo_attention, plan))


def load_cache(source: str | Path | CachePlan | StreamingPlan) -> StreamingPlan:
    """A plan from its run folder, its `plan.json` or the run itself; what is damaged or no plan is refused."""
    if isinstance(source, StreamingPlan):
        return source
    if isinstance(source, CachePlan):
        return StreamingPlan.of(source)
    file = Path(source)
    try:
        file = file / PLAN_FILE if file.is_dir() else file
        if plain(file).stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
        kind = content.get(KIND) if isinstance(content, dict) else None
        if not isinstance(kind, str):
            raise ValueError(f"it does not say what its plan is about ('{KIND}')")
        if kind == CACHE:
            return StreamingPlan.parse(content)
    except FileNotFoundError as missing:
        raise RunError(f"{file} is not there: give the folder of a cache plan, or its {PLAN_FILE}") from missing
    except (OSError, ValueError, RecursionError) as damage:
        raise RunError(
            f"{file} is no cache plan, or it is damaged ({damage}); make the plan again (rotoscope plan cache)"
        ) from damage
    raise RunError(f"{file} is a plan of another kind ('{kind[:40]}'), and a cache plan was expected")


def stream(subject: Any, plan: str | Path | CachePlan | StreamingPlan, *, context: int | None = None) -> Any:
    """Let a model's heads stream as planned, from now on, also in `generate`; what comes back undoes it when called.

    `subject` is what `rs.load` returns or takes; a plan for another model is refused, and so is a model whose heads stream already.
    With a `context`, so many tokens are first read with everything in sight, as when a long prompt is compressed once.
    """
    subject, streaming = load(subject), load_cache(plan)
    streaming.check(subject)
    check_as_made(subject.model, "its heads can stream")
    reader = subject.reader()
    streaming.check_heads(reader)
    return stream_heads(reader, streaming.heads(context))


def save_duo_attention(plan: str | Path | CachePlan | StreamingPlan, folder: str | Path) -> Path:
    """DuoAttention's pattern of a plan: `full_attention_heads.tsv` and `config.json` in a folder, which is returned.

    A folder with a `config.json` of something else, a model's say, is refused.
    """
    streaming, target = load_cache(plan), Path(folder)
    rows = ["\t".join("0.0" if streams else "1.0" for streams in row) for row in streaming.mask()]
    _check_free(target / SIZES)
    write_text(target / PATTERN, "\n".join(rows) + "\n")
    write_json(target / SIZES, {SINKS: streaming.sinks, RECENT: streaming.window})
    return target


def _check_free(file: Path) -> None:
    """Refuse to replace a config.json that is not that of a pattern."""
    if not file.exists() and not file.is_symlink():
        return
    try:
        content = json.loads(plain(file).read_text(encoding="utf-8"))
        of_a_pattern = isinstance(content, dict) and {SINKS, RECENT} <= content.keys()
    except (OSError, ValueError, RecursionError):
        of_a_pattern = False
    if not of_a_pattern:
        raise RunError(
            f"{file} is not the one of a DuoAttention pattern, and it would be replaced: choose another folder"
        )


# The planes of a rotation plan.


PLANES_FILE, RANK = "rotation.safetensors", "rank"
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
        least = self.planes if planes is None else planes
        stopped: dict[tuple[int, int], set[int]] = {}
        for layer, head, plane in (self.rank >= least).nonzero().tolist():
            stopped.setdefault((layer, head), set()).add(plane + 1)
        return {key: frozenset(ids) for key, ids in stopped.items()}

    def save(self, path: str | Path) -> Path:
        """Write the ranks as safetensors, with everything that is needed to use them."""
        from safetensors.torch import save_file

        metadata = {name: str(getattr(self, name)) for name in NAMES}
        file = Path(path)
        replace_file(file, lambda scratch: save_file({RANK: self.rank}, scratch, metadata=metadata))
        return file

    @classmethod
    def of(cls, plan: RotationPlan) -> RotatingPlanes:
        """The planes of a plan."""
        rows, settings = plan.plan, plan.run.settings
        sizes = [int(rows[name].max()) + 1 for name in ("layer", "key_head")]
        rank = np.full([*sizes, plan.total], -1, dtype=np.int32)
        rank[rows["layer"], rows["key_head"], rows["frequency_id"] - 1] = rows["rank"]
        names = str(settings["fingerprint"]), str(settings["model"])
        return cls(torch.from_numpy(rank), plan.planes, plan.ranking, *names)


def load_rotation(path: str | Path) -> RotatingPlanes:
    """Read `rotation.safetensors`, or the one of a run folder; what is damaged or something else is refused."""
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    file = file / PLANES_FILE if file.is_dir() else file
    try:
        with safe_open(plain(file), "pt") as opened:
            metadata = opened.metadata() or {}
            rank = opened.get_tensor(RANK)
        planes, ranking, fingerprint, model = (
            metadata[name] for name in ("planes", "ranking", "fingerprint", "model")
        )
        result = RotatingPlanes(rank, int(planes), ranking, fingerprint, model)
    except (OSError, SafetensorError, KeyError, ValueError) as problem:
        raise RunError(f"{file} is no plan of planes, or damaged ({problem}); make the plan again") from problem
    if (
        rank.ndim != 3
        or rank.dtype not in (torch.int32, torch.int64)
        or not _are_ranks(rank)
        or not 0 <= result.planes <= rank.shape[-1]
    ):
        raise RunError(
            f"{file} is no plan of planes: it should hold ranks [layers, key heads, planes], each key head's from 0 on, and say of how "
            f"many planes, found {list(rank.shape)} of {rank.dtype} and planes = {planes}"
        )
    return result


def _are_ranks(rank: Tensor) -> bool:
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
    model = load(model).model
    if isinstance(plan, str | Path):
        plan = load_rotation(plan)
    rotating = RotatingPlanes.of(plan) if isinstance(plan, RotationPlan) else plan
    reader = HeadReader(model)
    sizes = (reader.layers, max(reader.key_head_counts), max(layout.planes for layout in reader.layouts))
    if tuple(rotating.rank.shape) != sizes:
        words = "{} layers of {} key heads with {} planes"
        raise RotoscopeError(
            f"the plan is for {words.format(*rotating.rank.shape)} ({rotating.model}), and this model has {words.format(*sizes)}: make a "
            "plan for it"
        )
    if not uptrained and Subject(model, None, "model").fingerprint != rotating.fingerprint:
        raise RotoscopeError(
            f"the plan was made for another model ({rotating.model}, {rotating.fingerprint}): make one for this model, or say that this "
            "is that one after more training (uptrained=True)"
        )
    if planes is not None and not 0 <= planes <= sizes[2]:
        raise RotoscopeError(f"planes is {planes}, and a head of this model has {sizes[2]}")
    stop_for_good(reader, rotating.stopped(planes))
    return model
