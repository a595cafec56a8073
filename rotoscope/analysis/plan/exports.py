"""A cache plan as files: `plan.json`, which brings it back, and patterns for other programs.

- `plan.json`: fingerprint of the model, window, sinks, and the key heads that stream.
- `full_attention_heads.tsv` and `config.json` in a folder: DuoAttention's patterns, 1 for a key head that keeps everything.
- a mask of streaming heads [layers, key heads]: what kvpress's `DuoAttentionPress` calls `streaming_mask`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rotoscope.errors import RunError
from rotoscope.reading import Subject, load
from rotoscope.reading.streaming import Streaming
from rotoscope.reading.streaming import stream as stream_heads
from rotoscope.results.cache_plan import CachePlan
from rotoscope.results.files import write_json, write_text

FORMAT = "rotoscope cache plan"
FIELDS = {"fingerprint": str, "window": int, "sinks": int, "streaming": list, "key_heads": list}
MOST = 2**40
"""No plan of ours has larger numbers."""


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

    def heads(self, context: int | None = None) -> Streaming:
        """For a running model; with a `context` as in a prompt that is compressed once it has been read."""
        return Streaming(frozenset(self.streaming), self.window, self.sinks, context)

    def mask(self) -> np.ndarray:
        """True where a key head streams, [layers, key heads]; layers must have as many key heads as each other."""
        if len(set(self.key_heads)) != 1:
            raise RunError(
                "the layers of this model differ in their number of key heads, and a mask is a rectangle"
            )
        found = np.zeros((len(self.key_heads), self.key_heads[0]), dtype=bool)
        for layer, head in self.streaming:
            found[layer, head] = True
        return found

    def check(self, subject: Subject) -> None:
        """Refuse another model than the one the plan was made for."""
        if subject.fingerprint != self.fingerprint:
            raise RunError(
                f"the plan was made for {self.name or 'another model'} (fingerprint {self.fingerprint}), and {subject.name} has other "
                f"weights ({subject.fingerprint}); make a plan for it"
            )


def write_plan(plan: CachePlan, file: Path) -> None:
    """The plan of a run as `plan.json`."""
    heads, settings = plan.heads, plan.run.settings
    streams = heads[heads["streams"]]
    content = {
        "format": FORMAT,
        "model": settings["model"],
        "fingerprint": settings["fingerprint"],
        "keep": settings["keep"],
        "window": settings["window"],
        "sinks": settings["sinks"],
        "ranking": plan.ranking,
        "ranked_on": settings["task"],
        "key_heads": heads.groupby("layer").size().tolist(),
        "streaming": [[int(a), int(b)] for a, b in zip(streams["layer"], streams["key_head"], strict=True)],
    }
    write_json(file, content)


def load_cache(source: str | Path | CachePlan) -> StreamingPlan:
    """A plan from its run folder, its `plan.json` or the run itself; what is damaged or no plan is refused."""
    if isinstance(source, CachePlan):
        streams, settings = source.heads[source.heads["streams"]], source.run.settings
        pairs = zip(streams["layer"].astype(int), streams["key_head"].astype(int), strict=True)
        return StreamingPlan(
            settings["fingerprint"], settings["window"], settings["sinks"], tuple((int(a), int(b)) for a, b in pairs),
            tuple(source.heads.groupby("layer").size().tolist()), settings["model"],
        )  # fmt: skip
    file = Path(source) / "plan.json" if Path(source).is_dir() else Path(source)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise RunError(
            f"{file} cannot be read as a cache plan ({problem}); rotoscope plan cache makes one"
        ) from problem
    return _checked(found, file)


def _checked(found: Any, file: Path) -> StreamingPlan:
    """The plan, if it is whole and could be one."""

    def refuse(why: str) -> RunError:
        return RunError(f"{file} is no whole cache plan ({why}); make it again with rotoscope plan cache")

    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise refuse(f"its format is not '{FORMAT}'")
    for name, kind in FIELDS.items():
        if not isinstance(found.get(name), kind) or isinstance(found.get(name), bool):
            raise refuse(f"{name} is missing or of another kind")
    counts = found["key_heads"]
    if not counts or not all(_number(one, 1) for one in counts):
        raise refuse("key_heads are no numbers of heads")
    if not _number(found["window"], 1) or not _number(found["sinks"], 0):
        raise refuse(f"a window of {found['window']} and {found['sinks']} first tokens")
    pairs = found["streaming"]
    whole = all(
        isinstance(one, list) and len(one) == 2 and all(_number(part, 0) for part in one) for one in pairs
    )
    if not whole or not all(layer < len(counts) and head < counts[layer] for layer, head in pairs):
        raise refuse("streaming names key heads that are not there")
    if len({tuple(one) for one in pairs}) < len(pairs):
        raise refuse("streaming names a key head twice")
    return StreamingPlan(
        found["fingerprint"], found["window"], found["sinks"], tuple((a, b) for a, b in pairs), tuple(counts),
        str(found.get("model", "")),
    )  # fmt: skip


def _number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


def stream(subject: Any, plan: str | Path | CachePlan | StreamingPlan, *, context: int | None = None) -> Any:
    """Let a model's heads stream as planned, from now on, also in `generate`; what comes back undoes it when called.

    `subject` is what `rs.load` returns or takes; a plan for another model is refused. With a `context`, so many tokens are
    first read with everything in sight, as when a long prompt is compressed once.
    """
    subject = load(subject)
    found = plan if isinstance(plan, StreamingPlan) else load_cache(plan)
    found.check(subject)
    return stream_heads(subject.model, found.heads(context))


def save_duo_attention(plan: str | Path | CachePlan | StreamingPlan, folder: str | Path) -> Path:
    """DuoAttention's pattern of a plan: `full_attention_heads.tsv` and `config.json` in a folder, which is returned."""
    found = plan if isinstance(plan, StreamingPlan) else load_cache(plan)
    place = Path(folder)
    rows = ["\t".join("0.0" if streams else "1.0" for streams in row) for row in found.mask()]
    write_text(place / "full_attention_heads.tsv", "\n".join(rows) + "\n")
    write_json(place / "config.json", {"sink_size": found.sinks, "recent_size": found.window})
    return place
