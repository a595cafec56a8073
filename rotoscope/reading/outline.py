"""A model without its weights: enough to say what work on it would take, in a second and next to no memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from rotoscope.errors import ModelError
from rotoscope.reading.checkpoints import find_checkpoints
from rotoscope.reading.clean_room import clean_room, part_made_elsewhere, refuse_fetched
from rotoscope.reading.complaints import folded
from rotoscope.reading.devices import pick_device
from rotoscope.reading.gguf import converted
from rotoscope.reading.hub import fetched, hub_name
from rotoscope.reading.loading import (
    EMBEDDED,
    _floating,
    _quiet,
    embedded_file,
    load,
    model_class,
    own_model,
)
from rotoscope.reading.subject import Subject


@dataclass(frozen=True, repr=False)
class Outline(Subject):
    """A subject whose weights are nowhere; `device` is where they would be."""

    place: torch.device = torch.device("cpu")  # noqa: RUF009 - it is a value, and none of it can change

    @property
    def device(self) -> torch.device:
        """Where the model would be loaded."""
        return self.place


def outline(source: str, *, device: str | torch.device | None = None, dtype: str | None = None) -> Outline:
    """What `load` would load, without its weights: its configuration, the shapes of its weights, and its tokenizer.

    Of a model on the hub, weights are not fetched. A GGUF file is converted, as it would be anyway.
    """
    from transformers import AutoConfig, AutoTokenizer

    folder, called = _folder(source)
    own = own_model(str(source)) is not None
    place, asked = pick_device(device), _floating(dtype)
    try:
        with _quiet(), clean_room(folder) as room:
            config = AutoConfig.from_pretrained(room, trust_remote_code=False)
            refuse_fetched(part_made_elsewhere(config), called)
            numbers = asked or (torch.float32 if own else config.dtype) or torch.float32
            with torch.device("meta"):
                model = model_class(config, called).from_config(config, trust_remote_code=False).to(numbers)
            tokenizer = AutoTokenizer.from_pretrained(room, trust_remote_code=False)
    except ModelError:
        raise
    except Exception as problem:
        raise ModelError(f"the model {called} cannot be looked at ({folded(problem)})") from problem
    return Outline(
        model, tokenizer, called, {"kind": "embedded"} if own or source in EMBEDDED else {}, place=place
    )


def _folder(source: str) -> tuple[Path, str]:
    """Where a model's configuration and tokenizer are, and what it is called."""
    text = str(source)
    if text in EMBEDDED:
        return converted(embedded_file(text))[0], text
    own = own_model(text)
    if own is not None:
        return own, text
    path = Path(os.path.expanduser(text))
    if path.suffix == ".gguf" and os.path.isfile(path):
        return converted(path)[0], path.stem
    if os.path.isdir(path):
        if not (path / "config.json").is_file() and any(path.glob("*/config.json")):
            path = list(find_checkpoints(path).values())[-1]
        return path, text
    online = hub_name(text)
    if online is not None:
        return fetched(online, weights=False), online
    load(text)  # which says what is wrong with it
    raise ModelError(f"no model called '{text}'")
