"""Loading a subject: a short name, a hub id, a local folder, a GGUF file, or a model in memory."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.models.devices import Placement, free_memory, pick_device
from rotoscope.models.gguf import converted
from rotoscope.models.hub import AT, CERTAIN, fetched, find_checkpoints, hub_name, no_such_path
from rotoscope.models.offloading import accelerate_hushed, check_whole, moved_files, offloads, placed_by
from rotoscope.models.rope import Rope, check_rotary, read_rope, rope_words, set_angles, set_rope
from rotoscope.models.sanitize import clean_room, part_made_elsewhere, refuse_fetched, weight_files
from rotoscope.models.subject import Subject as Subject
from rotoscope.models.subject import model_pair, plain_model
from rotoscope.models.weight_check import check_complete, folded, same_random_numbers
from rotoscope.models.zoo import NAMES, ZOO, own_model, zoo_file

MOST_LAYERS = 1000
"""More layers than this are believed only where the weights have as many tensors."""

Device = str | torch.device | None
DType = torch.dtype | str | None
DeviceMap = str | Path | dict[str, Any] | None


def load(
    source: Any,
    *,
    device: Device = None,
    dtype: DType = None,
    name: str | None = None,
    revision: str | None = None,
    allow_missing: bool = False,
    device_map: DeviceMap = None,
    offload_folder: str | Path | None = None,
    rope: Rope = None,
) -> Subject:
    """Load the model to study.

    `source` is a short name ("smollm2", "qwen2.5-coder-0.5b", "number"; `rotoscope doctor` lists all), a local folder
    (of a training run: its last checkpoint), a `.gguf` file, a hub id ("org/model", or "hf:org/model" where a folder
    `org` is here, too; this one goes to the network), or what is already in memory: a model, a `(model, tokenizer)` pair or a `Subject` (also in the place of the model of a pair); of
    nnsight's models, TransformerLens' bridges, and what `torch.compile` and data parallelism wrap, the model inside is
    taken. Only safetensors weights are read, and no code that comes with a model is run. `revision` is a branch, tag or
    commit of a hub id; "org/model@revision" says the same.

    `device` defaults to a GPU where there is one, `dtype` to the one the weights are stored in (float32 for
    "number" and "letter"). A model in memory stays as it is, on the device and in the precision it has, unless you name
    others: then it is moved or converted in place, as `model.to` does it, and everyone who holds it sees that. A
    `Subject` is never changed itself; where anything is asked for, a new one comes back.

    `device_map` spreads a model that is loaded over devices, as accelerate does it: "auto", "balanced", "balanced_low_0" or
    "sequential" (what fits no GPU goes to the CPU, then to disk), or a dictionary from modules to devices, "cpu" and "disk",
    or a JSON file with one. It is read layer by layer where the weights are. What goes to disk is read from the model's own
    files; what has to be written anew goes to `offload_folder`, by default a temporary one that goes with the model.

    `rope` reads the same weights with other rotary settings, as transformers does where they stand in config.json as
    `rope_parameters`: {"rope_type": "yarn", "factor": 4.0}, or as text, in JSON or "rope_type=yarn,factor=4.0". What it does not
    name stays as it is; max_position_embeddings may be named as well. A model in memory is not changed: load it from its folder.

    Weights that are not those the configuration asks for are refused. With `allow_missing` they are loaded; what is
    missing is random, and everything made with the model says so.
    """
    width, rotary = _floating(dtype), read_rope(rope)
    if revision is not None:
        source = _with_revision(source, revision)
    if not isinstance(source, (str, Path)):
        _check_in_memory(device_map, rotary)
        return _from_memory(source, device, width, name)
    placement = Placement.of(device, device_map, offload_folder)
    files = locate(str(source))
    folder, warnings = files.path, list[str]()
    if folder.suffix == ".gguf":
        with _quiet():
            folder, warnings = converted(folder, allow_missing=allow_missing)
    called = files.called or str(folder)
    model, tokenizer, missing = _read_folder(
        folder, called, placement, width or files.dtype, allow_missing, rotary
    )
    title = name or (f"{files.title} ({rope_words(rotary)})" if rotary else files.title)
    # The place is a cache path for embedded models: what identifies them is their name and fingerprint.
    about: dict[str, Any] = {"kind": files.kind}
    if files.kind != "embedded":
        about["place"] = called
    if rotary:
        about["rope"] = rotary
    return Subject(model, tokenizer, title, about, warnings=(*warnings, *missing))


@dataclass(frozen=True)
class ModelFiles:
    """Where the files of a model are."""

    path: Path
    """A model folder or a GGUF file."""
    title: str
    """The name of the subject, unless another is given."""
    kind: str
    """Embedded, zoo, gguf, folder or hub."""
    called: str = ""
    """What messages and records call it; empty: the path of its folder."""
    dtype: torch.dtype | None = None
    """The precision it is loaded in, unless another is given; None: the one of its weights."""


def locate(text: str) -> ModelFiles:
    """The files that a text names; a model of the hub is fetched."""
    for finder in (_named_model, _gguf_file, _local_folder, _hub_model):
        files = finder(text)
        if files is not None:
            return files
    nowhere = no_such_path(text)
    if nowhere is not None:
        raise ModelError(nowhere)
    names = sorted(NAMES)
    close = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ModelError(f"no model called '{text}': {hint}give one of {names}, a folder, a .gguf file or a hub id")


def _named_model(text: str) -> ModelFiles | None:
    own = own_model(text)
    if own is not None:
        return ModelFiles(own, text, "embedded", dtype=torch.float32)
    if text not in ZOO:
        return None
    file = zoo_file(text)
    if ZOO[text].package:
        return ModelFiles(file, file.name.split(".")[0], "embedded")
    return ModelFiles(file if file.suffix == ".gguf" else file.parent, text, "zoo", text)


def _gguf_file(text: str) -> ModelFiles | None:
    path = Path(os.path.expanduser(text))
    if path.suffix != ".gguf" or text.startswith(CERTAIN):
        return None
    if not os.path.isfile(path):
        raise ModelError(f"no such file: {path}")
    return ModelFiles(path, path.stem, "gguf")


def _local_folder(text: str) -> ModelFiles | None:
    """A model folder; of a training run its last checkpoint."""
    path = Path(os.path.expanduser(text))
    if os.path.isdir(path):
        if not (path / "config.json").is_file() and any(path.glob("*/config.json")):
            path = list(find_checkpoints(path).values())[-1]
        return ModelFiles(path, path.resolve().name, "folder")
    if os.path.exists(path):
        raise ModelError(f"{path} is a file of a kind rotoscope does not load; give a folder or a .gguf file")
    return None


def _hub_model(text: str) -> ModelFiles | None:
    name = hub_name(text)
    return None if name is None else ModelFiles(fetched(name), name, "hub", name)


def _with_revision(source: Any, revision: str) -> str:
    if not isinstance(source, str) or hub_name(source) is None or AT in source:
        raise ModelError(
            f"revision '{revision}' means something for the name of a model on the hub only: org/name, or {CERTAIN}org/name "
            "where a folder org is here"
        )
    return f"{source}{AT}{revision}"


def _check_in_memory(device_map: DeviceMap, rotary: dict[str, Any]) -> None:
    """Refuse what can only be said of a model that is loaded from files."""
    if device_map is not None:
        raise ModelError(
            "a device_map says where the weights of a model go when it is loaded, and this one is in memory; give its folder or "
            "its name, or load it that way yourself"
        )
    if rotary:
        raise ModelError(
            "rope says with which rotary settings a model is loaded, and this one is in memory, where it stays as it is; give its "
            "folder or its name"
        )


def _from_memory(source: Any, device: Device, dtype: torch.dtype | None, name: str | None) -> Subject:
    """A subject, a model, or a model with its tokenizer, moved and converted where a device or dtype is named."""
    if isinstance(source, Subject):
        if device is None and dtype is None and name is None:
            return source
        _move(source.model, device, dtype)
        return replace(source, name=name or source.name)
    holder, tokenizer = model_pair(source) if isinstance(source, tuple | list) else (source, None)
    if isinstance(holder, Subject | str | Path):
        return replace(load(holder, device=device, dtype=dtype, name=name), tokenizer=tokenizer)
    model = plain_model(holder)
    if model is not holder and tokenizer is None:
        tokenizer = getattr(holder, "tokenizer", None)
    if not hasattr(getattr(model, "config", None), "model_type"):
        raise ModelError(
            f"a {type(model).__name__} in memory has no transformers configuration; rotoscope reads transformers "
            "models: give one, or a (model, tokenizer) pair"
        )
    check_whole(model)
    _move(model, device, dtype)
    title = name or getattr(model, "name_or_path", "") or model.config.model_type
    return Subject(model, tokenizer, title, {"kind": "memory"})


def _floating(dtype: DType) -> torch.dtype | None:
    """The floating-point type that was asked for; None for the one the weights have."""
    if dtype in (None, "auto"):
        return None
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise ModelError(
            f"dtype '{dtype}' is no floating-point type of torch; give float32, bfloat16 or float16"
        )
    return kind


def _move(model: Any, device: Device, dtype: torch.dtype | None) -> None:
    """Move and convert a model in memory where that was asked for."""
    if (device is not None or dtype is not None) and (placed_by(model) is not None or offloads(model)):
        raise ModelError(
            "a model that is spread over devices can be neither moved nor converted as a whole; load it again with the device, "
            "the dtype or the device_map that you want"
        )
    if device is not None:
        model.to(pick_device(device))
    if dtype is not None:
        model.to(dtype)


def _read_folder(
    folder: Path,
    called: str,
    placement: Placement,
    dtype: torch.dtype | None,
    allow_missing: bool,
    rotary: dict[str, Any],
) -> tuple[Any, Any, list[str]]:
    """The model and the tokenizer in a folder, and sentences about weights that are missing."""
    with _quiet(), clean_room(folder) as room:
        try:
            model, report = _read_model(room, folder, called, placement, dtype, rotary)
        except ModelError:
            raise
        except Exception as problem:
            advice = "a file may be missing or truncated: compare sizes with the original and copy it again"
            if placement.spread:
                advice = "the device_map may not suit the model: try device_map auto, or none"
            raise ModelError(
                f"the model in {called} cannot be loaded ({folded(problem)}); {advice}"
            ) from problem
        missing = check_complete(model, report, called, allow_missing=allow_missing)
        tokenizer = _read_tokenizer(room, called)
    model.name_or_path = model.config.name_or_path = tokenizer.name_or_path = called
    try:
        model = (model if placement.spread else model.to(placement.device)).eval()
    except RuntimeError as problem:
        raise ModelError(
            f"the model cannot be put on device '{placement.device}': {folded(problem)}"
        ) from problem
    return model, tokenizer, missing


def _read_model(
    room: Path,
    folder: Path,
    called: str,
    placement: Placement,
    dtype: torch.dtype | None,
    rotary: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """The model in a clean room, and what transformers says about its tensors."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(room, trust_remote_code=False)
    refuse_fetched(part_made_elsewhere(config), called)
    if rotary:
        set_rope(config, rotary)
    auto = model_class(config, called)
    files = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    _check_size(auto, config, files, called, None if placement.spread else placement.device, dtype)
    with same_random_numbers(), placement.options() as options:
        model, report = auto.from_pretrained(
            room,
            config=config,
            dtype=dtype or "auto",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
        placement.hold(model)
    moved_files(model, room, folder.resolve())
    set_angles(model)
    if rotary:
        check_rotary(model)
    return model, report


def _read_tokenizer(room: Path, called: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    try:
        tokenizer = AutoTokenizer.from_pretrained(room, trust_remote_code=False)
        if len(tokenizer) < 2:
            raise ValueError("it has no words")
    except Exception as problem:
        raise ModelError(
            f"{called} holds a model but no tokenizer that transformers can load ({folded(problem)}); save one beside "
            "it (a Trainer does, given processing_class=tokenizer), or give the model in memory"
        ) from problem
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ModelError(f"{called} names a {type(tokenizer).__name__} as its tokenizer, which is none")
    return tokenizer


def model_class(config: Any, called: str) -> Any:
    """The Auto class that loads a configuration's model.

    One that says the next token, where the configuration names none: of text, of text and pictures, of masked text. What it
    names (`architectures`) is taken where it is one of these, or such a model without its head. Models that are neither
    are not loaded: some of them fetch parts from elsewhere.
    """
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM

    heads = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM)
    known = [candidate for candidate in heads if type(config) in candidate._model_mapping]
    if not known:
        raise ModelError(
            f"{called} holds a model of type '{config.model_type}', for which transformers has no class that reads text; "
            "rotoscope reads language models, encoders of text and the text part of models of pictures and text"
        )
    named = config.architectures[0] if config.architectures else None
    return next(
        (candidate for candidate in (*known, AutoModel) if named in _class_names(candidate, config)), known[0]
    )


def _class_names(auto: Any, config: Any) -> list[str]:
    """The classes that an Auto class would take for a configuration."""
    classes = auto._model_mapping.get(type(config), ())
    return [kind.__name__ for kind in (classes if isinstance(classes, (tuple, list)) else (classes,))]


def _check_size(
    auto: Any,
    config: Any,
    files: list[Path],
    called: str,
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> None:
    """Refuse a model that cannot fit, before anything of it is in memory: its size is known from its configuration. A spread
    model has no device that it must fit."""
    from safetensors import safe_open

    tensors = 0
    for file in files:
        with safe_open(file, framework="pt") as opened:
            tensors += len(opened.keys())
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > max(tensors, MOST_LAYERS):
        raise ModelError(
            f"the configuration in {called} says {layers} layers, and its weights are {tensors} tensors"
        )
    if device is None:
        return
    with torch.device("meta"):
        empty = auto.from_config(config, trust_remote_code=False)
    width = (dtype or config.dtype or torch.float32).itemsize
    needed = sum(weight.numel() for weight in empty.parameters()) * width
    free = free_memory(device)
    if free is not None and needed > free:
        raise ModelError(
            f"the weights of {called} take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free on "
            f"{device.type}; use a smaller model, dtype bfloat16 or a device with more"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own progress bars and chatter, and accelerate's, make room for ours."""
    from transformers.utils import logging as chatter

    logger = logging.getLogger("transformers")
    level, bars = logger.level, chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        with accelerate_hushed():
            yield
    finally:
        logger.setLevel(level)
        if bars:
            chatter.enable_progress_bar()
