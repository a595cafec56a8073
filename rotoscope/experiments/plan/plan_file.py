"""`plan.json`, in which a cache plan is kept: written with its kind, and read with care, wherever it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rotoscope.errors import RunError
from rotoscope.experiments.plan.cache_result import CachePlan
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.models.stream import Streaming, check_as_made
from rotoscope.models.stream import stream as stream_heads
from rotoscope.runs.files import plain, write_json, write_text
from rotoscope.runs.run import Run

PLAN = "plan.json"
KIND, CACHE = "plan", "cache"
"""A file says under the first name what its plan is about."""
EARLIER = {"format": {"rotoscope cache plan": "cache"}}
"""How files said it that were written before."""
LARGEST = 1_000_000
"""Bytes of a plan that is read; ours have a few thousand."""
MOST = 2**40
"""No plan of ours has larger numbers."""

Found = TypeVar("Found")


def write_plan_file(path: Path, content: dict[str, Any]) -> None:
    """A plan as JSON, with its kind."""
    write_json(path, {KIND: CACHE, **content})


def read_plan_file(path: str | Path, whole: Callable[[dict[str, Any]], Found]) -> Found:
    """What `whole` makes of the plan in a run folder, or in its `plan.json`; what is damaged or of another kind is refused.

    `whole` gets what the file says without its kind, and raises ValueError at what cannot be.
    """
    file = Path(path)
    try:
        file = file / PLAN if file.is_dir() else file
        if plain(file).stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
        found, content = _taken_apart(content)
        if found == CACHE:
            return whole(content)
    except FileNotFoundError as missing:
        raise RunError(f"{file} is not there: give the folder of a cache plan, or its {PLAN}") from missing
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as damage:
        own = isinstance(damage, OSError | ValueError)
        reason = str(damage) if own else f"{type(damage).__name__}: {damage}"
        raise RunError(
            f"{file} is no cache plan, or it is damaged ({reason}); make the plan again (rotoscope plan cache)"
        ) from damage
    raise RunError(f"{file} is a plan of another kind ('{found[:40]}'), and a cache plan was expected")


def _taken_apart(content: Any) -> tuple[str, dict[str, Any]]:
    """The kind of a plan, and what it says."""
    if not isinstance(content, dict):
        raise ValueError("it holds no description")
    rest = dict(content)
    kind = rest.pop(KIND, None)
    for name, known in EARLIER.items():
        said = rest.pop(name, None)
        if kind is None and isinstance(said, str):
            kind = known.get(said)
    if not isinstance(kind, str):
        raise ValueError(f"it does not say what its plan is about ('{KIND}')")
    return kind, rest


def is_number(value: Any, least: int) -> bool:
    """Whether this is a whole number that a plan can have."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


# A cache plan as files: `plan.json`, which brings it back, and patterns for other programs.
#
# - `plan.json`: fingerprint of the model, window, sinks, and the key heads that stream.
# - `full_attention_heads.tsv` and `config.json` in a folder: DuoAttention's patterns, 1 for a key head that keeps everything.
# - a mask of streaming heads [layers, key heads]: what kvpress's `DuoAttentionPress` calls `streaming_mask`.
#
# Layers are counted as everywhere here: those that attend, from 0 on. Where a model has other layers between them (convolutions,
# say), other programs count those as well; the numbers under which they know ours are kept with the plan, and patterns for them refused.


LAYERS = "layers"
DUO, PATTERN, SIZES = "duo_attention", "full_attention_heads.tsv", "config.json"
"""A folder with DuoAttention's pattern, and its files."""
SINKS, RECENT = "sink_size", "recent_size"
FIELDS = {"fingerprint": str, "window": int, "sinks": int, "streaming": list, "key_heads": list}
MOST_HEADS = 2**20
"""No model has more key heads."""


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
    name: str = ""
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
        pairs = zip(streams["layer"], streams["key_head"], strict=True)
        return cls(
            settings["fingerprint"], settings["window"], settings["sinks"], tuple((int(a), int(b)) for a, b in pairs),
            tuple(heads.groupby("layer").size().tolist()), settings["model"], _numbers(plan.run.details.get(LAYERS, [])), float(settings["keep"]),
            plan.ranking, settings["task"],
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """As `plan.json`."""
        content = {
            "model": self.name,
            "fingerprint": self.fingerprint,
            "keep": self.keep,
            "window": self.window,
            "sinks": self.sinks,
            "ranking": self.ranking,
            "ranked_on": self.ranked_on,
            "key_heads": list(self.key_heads),
            LAYERS: list(self.layers),
            "streaming": [list(pair) for pair in self.streaming],
        }
        write_plan_file(path, content)

    def heads(self, context: int | None = None) -> Streaming:
        """For a running model; with a `context` as in a prompt that is compressed once it has been read."""
        return Streaming(frozenset(self.streaming), self.window, self.sinks, context)

    def mask(self) -> np.ndarray:
        """True where a key head streams, [layers, key heads]; layers must have as many key heads as each other, and all must attend."""
        if why := self.no_mask:
            raise RunError(why)
        found = np.zeros((len(self.key_heads), self.key_heads[0]), dtype=bool)
        for layer, head in self.streaming:
            found[layer, head] = True
        return found

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
                f"the plan was made for {self.name or 'another model'} (fingerprint {self.fingerprint}), and {subject.name} has other "
                f"weights ({subject.fingerprint}); make a plan for it"
            )

    def check_heads(self, reader: HeadReader) -> None:
        """Refuse a plan that names other key heads than the model has, whatever its fingerprint says."""
        own = tuple(reader.key_head_counts)
        if self.key_heads != own:
            raise RunError(
                f"the plan is for {_counted(self.key_heads)}, and this model has {_counted(own)}: the plan has been changed; make it again "
                "(rotoscope plan cache)"
            )


def _numbers(layers: Any) -> tuple[int, ...]:
    if not isinstance(layers, list) or not all(is_number(one, 0) for one in layers):
        raise RunError("layers are no numbers of layers; make the plan again")
    return tuple(layers)


def _counted(key_heads: tuple[int, ...]) -> str:
    each = sorted(set(key_heads))
    return f"{len(key_heads)} layers of {' or '.join(map(str, each[:4]))} key heads"


def layer_numbers(reader: HeadReader) -> tuple[int, ...]:
    """The numbers under which transformers, and programs that build on it, know the layers that were read."""
    return tuple(int(getattr(site.module, "layer_idx", site.layer)) for site in reader.sites)


def write_exports(run: Run[CachePlan], layers: Sequence[int] = ()) -> None:
    """Beside the tables of a run: its plan, and DuoAttention's pattern where other programs can take the plan.

    `layers` are the numbers under which they know the layers of the model (`layer_numbers`); the run keeps them.
    """
    run.record.details[LAYERS] = list(layers)
    plan = StreamingPlan.of(run.result)
    run.beside(PLAN, plan.write)
    if not plan.no_mask:
        run.beside(DUO, partial(save_duo_attention, plan))


def load_cache(source: str | Path | CachePlan) -> StreamingPlan:
    """A plan from its run folder, its `plan.json` or the run itself; what is damaged or no plan is refused."""
    return StreamingPlan.of(source) if isinstance(source, CachePlan) else read_plan_file(source, _whole)


def _whole(found: dict[str, Any]) -> StreamingPlan:
    """The plan, if nothing of it is missing and it could be one."""
    for name, kind in FIELDS.items():
        if not isinstance(found.get(name), kind) or isinstance(found.get(name), bool):
            raise ValueError(f"{name} is missing or of another kind")
    counts = found["key_heads"]
    if not counts or not all(is_number(one, 1) for one in counts) or sum(counts) > MOST_HEADS:
        raise ValueError("key_heads are no numbers of heads")
    if not is_number(found["window"], 1) or not is_number(found["sinks"], 0):
        raise ValueError(f"a window of {found['window']} and {found['sinks']} first tokens")
    pairs = found["streaming"]
    whole = all(
        isinstance(one, list) and len(one) == 2 and all(is_number(part, 0) for part in one) for one in pairs
    )
    if not whole or not all(layer < len(counts) and head < counts[layer] for layer, head in pairs):
        raise ValueError("streaming names key heads that are not there")
    if len({tuple(one) for one in pairs}) < len(pairs):
        raise ValueError("streaming names a key head twice")
    layers = list(_numbers(found.get(LAYERS, [])))
    if layers and (len(layers) != len(counts) or layers != sorted(set(layers))):
        raise ValueError("layers are not as many as key_heads, each once and in order")
    keep = found.get("keep")
    return StreamingPlan(
        found["fingerprint"], found["window"], found["sinks"], tuple((a, b) for a, b in pairs), tuple(counts),
        str(found.get("model", "")), tuple(layers), float(keep) if isinstance(keep, int | float) else None,
        str(found.get("ranking", "")), str(found.get("ranked_on", "")),
    )  # fmt: skip


def stream(subject: Any, plan: str | Path | CachePlan | StreamingPlan, *, context: int | None = None) -> Any:
    """Let a model's heads stream as planned, from now on, also in `generate`; what comes back undoes it when called.

    `subject` is what `rs.load` returns or takes; a plan for another model is refused, and so is a model whose heads stream already.
    With a `context`, so many tokens are first read with everything in sight, as when a long prompt is compressed once.
    """
    subject = load(subject)
    found = plan if isinstance(plan, StreamingPlan) else load_cache(plan)
    found.check(subject)
    check_as_made(subject.model, "its heads can stream")
    reader = HeadReader(subject.model)
    found.check_heads(reader)
    return stream_heads(reader, found.heads(context))


def save_duo_attention(plan: str | Path | CachePlan | StreamingPlan, folder: str | Path) -> Path:
    """DuoAttention's pattern of a plan: `full_attention_heads.tsv` and `config.json` in a folder, which is returned.

    A folder with a `config.json` of something else, a model's say, is refused.
    """
    found = plan if isinstance(plan, StreamingPlan) else load_cache(plan)
    place = Path(folder)
    rows = ["\t".join("0.0" if streams else "1.0" for streams in row) for row in found.mask()]
    _check_free(place / SIZES)
    write_text(place / PATTERN, "\n".join(rows) + "\n")
    write_json(place / SIZES, {SINKS: found.sinks, RECENT: found.window})
    return place


def _check_free(file: Path) -> None:
    """Refuse to replace a config.json that is not that of a pattern."""
    if not file.exists() and not file.is_symlink():
        return
    try:
        said = json.loads(plain(file).read_text(encoding="utf-8"))
        of_a_pattern = isinstance(said, dict) and {SINKS, RECENT} <= said.keys()
    except (OSError, ValueError, RecursionError):
        of_a_pattern = False
    if not of_a_pattern:
        raise RunError(
            f"{file} is not the one of a DuoAttention pattern, and it would be replaced: choose another folder"
        )
