"""Readings that were proven before: what a reader learned of a model, kept in the user's cache.

An entry is found again by the model's identity, by the code that computes and reads it, and by the kind of device. A model
whose classes are not transformers' own is proven each time, and so is a small one, which takes no longer than looking it up.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import transformers

from rotoscope.models.foreign_code import instructions
from rotoscope.models.layer import Layout
from rotoscope.models.weight_check import cache_folder, write_whole

SMALL = 10_000_000
"""Models with fewer parameters are not remembered."""
READERS = ("models", "scores")
"""Folders of the code that reads and proves."""


@dataclass(frozen=True)
class Reading:
    """What a reader has learned of a model; a list has an entry for every attention module."""

    modules: list[str]
    """Names of the attention modules in the model."""
    from_table: bool
    """Whether rotation comes from a table of the module's own, as in GPT-J."""
    layouts: list[Layout]
    head_counts: list[int]
    key_head_counts: list[int]
    dead_planes: list[tuple[int, ...]]
    """Frequency ids that add nothing to any logit."""
    direct: bool
    """Whether queries and keys come out of the forward pass itself; else modules are called again."""
    both_ways: bool
    """Whether a position attends to later ones too."""
    proof: list[float]
    """The largest difference of an attention weight in the proof; empty where nothing was proven."""


_readings: dict[str, str] = {}
"""Those of this process, in case the cache cannot be written."""


def recall(model: Any, identity: str) -> Reading | None:
    """The reading of a model that was proven before; None where it was not."""
    key = _key(model, identity)
    if key is None:
        return None
    text = _readings.get(key)
    with suppress(OSError, ValueError, TypeError, KeyError):
        return _from_json(text if text is not None else _place(key).read_text(encoding="utf-8"))
    return None


def remember(model: Any, identity: str, reading: Reading) -> None:
    """Keep the reading of a model that has just been proven."""
    key = _key(model, identity)
    if key is None:
        return
    _readings[key] = _to_json(reading)
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_whole(_place(key), _readings[key])


def _place(key: str) -> Path:
    return cache_folder() / "proofs" / f"{key}.json"


def _key(model: Any, identity: str) -> str | None:
    """What an entry is found by; None for models that are not remembered."""
    if sum(weight.numel() for weight in model.parameters()) < SMALL:
        return None
    homes = sorted({type(module).__module__ for module in model.modules()})
    if any(home.partition(".")[0] not in ("torch", "transformers") for home in homes):
        return None
    device = next(model.parameters()).device.type
    parts = [identity, device, model.config._attn_implementation, torch.__version__, transformers.__version__]
    digest = hashlib.sha256(json.dumps([*parts, own_code(READERS)]).encode())
    for home in homes:
        if home.startswith("transformers"):
            for line in _code_of(home):
                digest.update(line.encode())
    return digest.hexdigest()[:32]


@cache
def own_code(folders: tuple[str, ...]) -> str:
    """A checksum of the code in some of rotoscope's folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _code_of(home: str) -> Iterator[str]:
    """The functions and methods of a Python module as they are now: somebody may have replaced them."""
    for name, value in sorted(vars(sys.modules[home]).items()):
        members = (
            vars(value).items() if isinstance(value, type) and value.__module__ == home else [(name, value)]
        )
        for member, function in members:
            function = inspect.unwrap(function) if isinstance(function, FunctionType) else function
            if isinstance(function, FunctionType):
                yield f"{name}.{member} {instructions(function.__code__)}"


def _to_json(reading: Reading) -> str:
    content: dict[str, Any] = {key: value for key, value in vars(reading).items() if key != "layouts"}
    different = list({id(layout): layout for layout in reading.layouts}.values())
    content["layouts"] = [
        {name: tensor.tolist() for name, tensor in vars(layout).items()} for layout in different
    ]
    content["layout_of"] = [
        next(k for k, known in enumerate(different) if known is layout) for layout in reading.layouts
    ]
    return json.dumps(content)


def _from_json(text: str) -> Reading:
    content = json.loads(text)
    different = [
        Layout(
            torch.tensor(layout["order"], dtype=torch.long),
            torch.tensor(layout["columns"], dtype=torch.long),
            torch.tensor(layout["angles"], dtype=torch.float64),
        )
        for layout in content["layouts"]
    ]
    content["layouts"] = [different[k] for k in content.pop("layout_of")]
    content["dead_planes"] = [tuple(ids) for ids in content["dead_planes"]]
    return Reading(**content)
