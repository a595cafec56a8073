"""A model folder as transformers gets to see it: weights, tokenizer and settings, and nothing that runs.

A model folder may hold code, pickled weights, adapters, and settings that make transformers fetch and run code: custom
classes (`auto_map`), attention kernels, quantisers, generation functions. Nothing of this is meant to reach
transformers, so it is never given the folder. It is given a **clean room**: a temporary folder with links to the
safetensors weights and to the tokenizer's files, and with copies of the settings from which such keys are gone. What is
not on the list below is not in the room. What cannot be left out without changing the model is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rotoscope.errors import ModelError

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
ADAPTER = "adapter_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"

TOKENIZER_FILES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".codes")
"""Endings of the files that tokenizers read; none of them holds code."""
NO_TOKENIZER = (
    CONFIG,
    GENERATION,
    TOKENIZER,
    ADAPTER,
    INDEX,
    "processor_config.json",
    "preprocessor_config.json",
)

LOADS_CODE = frozenset(
    {
        "auto_map",  # classes in files of the folder, or of a repository
        "custom_pipelines",
        "custom_generate",
        "trust_remote_code",
        "attn_implementation",  # may name a kernel on the hub
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "kernel_config",
        "use_kernels",
        "fusion_config",  # replaces modules of the model
        "distributed_config",
        "transformers_weights",  # another file of weights, also a pickled one
        "fast_tokenizer_files",
        "init_inputs",  # goes to the tokenizer's class as it is
    }
)
"""Keys without which a model is the same, and that make transformers load code, kernels or other files."""
FETCHES = ("backbone", "use_timm_backbone", "use_pretrained_backbone")
"""Keys with which a model of pictures names another one as a part of it."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""All that is taken of a folder's generation settings."""
DEEPEST = 60
"""How deep settings may be nested."""
CLASS_NAMES = ("Tokenizer", "TokenizerFast", "Backend")


@contextmanager
def clean_room(folder: Path) -> Iterator[Path]:
    """A temporary folder that holds what may be read of a model folder; refused are folders that need more."""
    weights = weight_files(folder)
    config = clean_config(folder)
    with _temporary() as room:
        _write(room / CONFIG, config)
        for file in weights:
            link(file, room / file.name)
        for file in _tokenizer_files(folder):
            link(file, room / file.name)
        templates = folder / TEMPLATES
        if templates.is_dir():
            (room / TEMPLATES).mkdir()
            for file in sorted(templates.glob("*.jinja")):
                if file.is_file():
                    link(file, room / TEMPLATES / file.name)
        if (folder / TOKENIZER).is_file():
            settings = without_code(read_json(folder / TOKENIZER))
            _check_tokenizer_class(settings, folder / TOKENIZER)
            # paths of vocabulary files: transformers finds them in the room
            _write(
                room / TOKENIZER,
                {key: value for key, value in settings.items() if not key.endswith("_file")},
            )
        if (folder / GENERATION).is_file():
            settings = read_json(folder / GENERATION)
            _write(room / GENERATION, {key: settings[key] for key in TOKEN_IDS if key in settings})
        yield room


@contextmanager
def room_for_file(file: Path, name: str) -> Iterator[Path]:
    """A temporary folder that holds one file under a name of ours, and nothing of what lies beside it."""
    with _temporary() as room:
        link(file, room / name)
        yield room


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, and the index of several; anything else is refused."""
    if (folder / ADAPTER).is_file():
        raise ModelError(
            f"{folder} holds an adapter ({ADAPTER}), which changes a model by code of another library; "
            "merge it into its base model and save that (merge_and_unload in peft)"
        )
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder} is no model folder: it has no {CONFIG}")
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / INDEX, *_shards(folder)]
    others = sorted(p.name for kind in ("bin", "pt", "pth", "pkl", "ckpt") for p in folder.glob(f"*.{kind}"))
    unnamed = sorted(p.name for p in folder.glob("*.safetensors"))
    if others:
        problem = f"it has {', '.join(others[:5])}, which may run code when opened"
    elif unnamed:
        problem = f"it has {', '.join(unnamed[:5])}, and {WEIGHTS} or {INDEX} is expected"
    else:
        problem = "it has no weights"
    raise ModelError(f"{folder} has no safetensors weights ({problem}); convert it to safetensors first")


def _shards(folder: Path) -> list[Path]:
    """The files an index names: safetensors files in the same folder."""
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise ModelError(f"{folder / INDEX} is damaged: it does not say which file holds which weight")
    names = sorted(set(listed.values()))
    for name in names:
        if not name.endswith(".safetensors") or name != os.path.basename(name) or "\\" in name:
            raise ModelError(
                f"{folder / INDEX} names '{name}', which is no safetensors file of that folder and is not opened; "
                "convert all weights to safetensors"
            )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of the {len(names)} files of weights that {INDEX} names ({missing[0]}); "
            "copy them again"
        )
    return [folder / name for name in names]


def clean_config(folder: Path) -> dict[str, Any]:
    """The model's configuration without keys that load code; what the model would not be the same without is refused."""
    import transformers

    file = folder / CONFIG
    settings = read_json(file)
    own_code = "auto_map" in settings
    config = without_code(settings)
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{file} does not say what model it describes: it has no model_type")
    if kind not in transformers.CONFIG_MAPPING:
        reason = "the code that comes with it is not run" if own_code else "a newer version of it may"
        raise ModelError(f"transformers does not know models of type '{kind}' ({file}); {reason}")
    refuse_fetched(_fetched_part(config), file)
    method = _quantised(config)
    if method is not None:
        raise ModelError(
            f"{file} describes quantised weights ({method}), which need kernels of another library; give the model in "
            "bfloat16 or float32, a .gguf file of it, or the loaded model itself (in Python)"
        )
    shadowed = [key for key in config if callable(getattr(transformers.PreTrainedConfig, key, None))]
    if shadowed:
        raise ModelError(f"{file} has a key '{shadowed[0]}', which no configuration of a model has; remove it")
    _check_tokenizer_class(config, file)
    _check_dtypes(config, file)
    return config


def without_code(settings: Any) -> Any:
    """Settings without the keys that load code, also those further down."""
    if isinstance(settings, dict):
        return {key: without_code(value) for key, value in settings.items() if key not in LOADS_CODE}
    return [without_code(value) for value in settings] if isinstance(settings, list) else settings


def refuse_fetched(part: str | None, file: Path | str) -> None:
    """Nothing is loaded of which a part would come from elsewhere."""
    if part is not None:
        raise ModelError(
            f"{file} has a part that is not in the folder: {part}, which another library would make or fetch; save the "
            "text model alone (its language_model) and give that folder"
        )


def part_made_elsewhere(config: Any) -> str | None:
    """The same of a configuration as transformers has understood it: it fills in what a folder does not say."""
    from transformers import AutoModel

    class_name = str(AutoModel._model_mapping._model_mapping.get(config.model_type, ""))
    if "Timm" in class_name:
        return str(config.model_type)
    parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
    inner = (part_made_elsewhere(part) for part in parts if hasattr(part, "model_type"))
    return _fetched_part(config.to_dict()) or next(filter(None, inner), None)


def _fetched_part(settings: Any) -> str | None:
    """The first part of a model, also further down, that transformers would get from timm or from the hub."""
    if isinstance(settings, list):
        return next(filter(None, map(_fetched_part, settings)), None)
    if not isinstance(settings, dict):
        return None
    if str(settings.get("model_type", "")).startswith("timm"):
        return str(settings["model_type"])
    if ":" in str(settings.get("architecture", "")):  # timm's names of models elsewhere: "hf-hub:org/name"
        return f"architecture {settings['architecture']!a}"
    for key in FETCHES:
        if settings.get(key):
            return f"{key} {settings[key]!a}"
    return next(filter(None, (_fetched_part(value) for value in settings.values())), None)


def _quantised(settings: Any) -> str | None:
    """How the weights are quantised, by the first `quantization_config` found."""
    if not isinstance(settings, dict):
        return None
    for key in ("quantization_config", "compression_config"):
        method = settings.get(key)
        if method:
            return str(method.get("quant_method", key)) if isinstance(method, dict) else key
    return next(filter(None, (_quantised(value) for value in settings.values())), None)


def _check_tokenizer_class(settings: dict[str, Any], file: Path) -> None:
    """transformers takes any of its classes for a tokenizer, also one that loads models."""
    import transformers

    name = settings.get("tokenizer_class")
    if name is None:
        return
    kind = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else file
    real = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedTokenizerBase)
    if kind is not None and not real and not str(name).endswith(CLASS_NAMES):
        raise ModelError(f"{file} names '{name}' as the class of the tokenizer, which is no tokenizer")


def _check_dtypes(settings: Any, file: Path) -> None:
    """A dtype is looked up among everything that torch has: it must be one of its floating-point types."""
    import torch

    if not isinstance(settings, dict):
        return
    for key in ("dtype", "torch_dtype"):
        name = settings.get(key)
        kind = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else None
        real = isinstance(kind, torch.dtype) and kind.is_floating_point
        if isinstance(name, str) and name != "auto" and not real:
            raise ModelError(f"{file} has {key} '{name}', which is no floating-point type of torch")
    for value in settings.values():
        _check_dtypes(value, file)


def _tokenizer_files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.iterdir()):
        if file.name.endswith(TOKENIZER_FILES) and file.name not in NO_TOKENIZER and file.is_file():
            yield file


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is refused."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelError(f"{file} cannot be read as JSON ({problem}); copy it again") from problem
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no settings: a JSON object is expected")
    inner: list[Any] = [content]
    for _ in range(DEEPEST):
        inner = [
            v
            for part in inner
            for v in (part.values() if isinstance(part, dict) else part)
            if isinstance(v, dict | list)
        ]
    if inner:
        raise ModelError(
            f"{file} has settings within settings more than {DEEPEST} deep, which no model has; copy it again"
        )
    return content


def link(file: Path, place: Path) -> None:
    """A file under another name, without copying it where the system allows that."""
    target = file.resolve()
    for way in (os.symlink, os.link, shutil.copyfile):
        try:
            way(target, place)
        except OSError:
            if way is shutil.copyfile:
                raise
        else:
            return


def _write(file: Path, settings: dict[str, Any]) -> None:
    file.write_text(json.dumps(settings), encoding="utf-8")


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rotoscope-", ignore_cleanup_errors=True) as place:
        yield Path(place)
