"""Which model this is: a checksum of everything that its forward pass computes with.

Every bit of every parameter and buffer counts, and so do the configuration, the rotary tables and hooks that somebody else has
put on the model. Where the weights are does not: a model has one identity on every device, spread over several, on disk, and
inside `torch.compile`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rotoscope.models.checksums import checksums
from rotoscope.models.foreign_code import class_code, foreign_hooks, is_library_class
from rotoscope.models.offloading import buffers, weights
from rotoscope.shapes import Tensor

DIGITS = 16
SAME_TABLE = 1e-6
"""Relative difference below which a rotary table is the configured one: devices round powers differently."""
OWN_ATTENTION = "rotoscope"
"""How the names of attention functions begin that rotoscope has put into a model for good."""
NOT_COMPUTED_WITH = frozenset(
    {"use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "name_or_path", "distributed_config"}
)
"""Settings of a configuration, besides those that all have, that no forward pass looks at."""
UNUSED_ATTRIBUTES = frozenset(
    {
        "training", "gradient_checkpointing", "name_or_path", "loss_type", "kernel_config", "padding_idx", "inplace",
        "hf_device_map", "all_tied_weights_keys",
    }
)  # fmt: skip
"""Attributes of modules that say how a model is held or trained, not what it computes."""
ADAPTERS = ("_disable_adapters", "_active_adapter")
"""Private attributes of PEFT's layers that say what is added to a weight."""
COMPILED = "_orig_mod"
"""Where `torch.compile` keeps the module that it has compiled."""


def model_identity(model: Any) -> str:
    """The same for two models that compute the same from all tokens, as far as their weights and settings can tell."""
    digest = hashlib.sha256(weights_identity(model).encode())
    digest.update(type(model).__name__.encode())
    digest.update(json.dumps(_computed_with(model.config.to_dict()), sort_keys=True, default=str).encode())
    for line in (*_modules(model), *foreign_hooks(model)):
        digest.update(line.encode())
    attention = str(getattr(model.config, "_attn_implementation", ""))
    if attention.startswith(OWN_ATTENTION):  # heads that stream, or planes that were stopped
        digest.update(attention.encode())
    return digest.hexdigest()[:DIGITS]


def weights_identity(model: nn.Module) -> str:
    """A checksum of all bits of all parameters and buffers, with their names, shapes and types."""
    digest, sums = hashlib.sha256(), list[Tensor]()
    for name, tensor in _tensors(model):
        digest.update(f"{_plain_name(name)} {tuple(tensor.shape)} {tensor.dtype};".encode())
        sums.append(checksums(tensor))
    by_device: dict[torch.device, list[Tensor]] = {}
    for part in sums:
        by_device.setdefault(part.device, []).append(part)
    # One transfer for each device: waiting for every tensor would take longer than reading it.
    fetched = {
        device: iter(torch.cat(parts).cpu().split([len(part) for part in parts]))
        for device, parts in by_device.items()
    }
    for part in sums:
        digest.update(next(fetched[part.device]).numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


def tokenizer_identity(tokenizer: Any) -> str:
    """A checksum of a tokenizer's vocabulary, rules and chat template; empty where there is no tokenizer."""
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    else:  # in front stand padding and truncation, which every call may change
        rules = backend.to_str().partition('"added_tokens"')[2]
    special = getattr(tokenizer, "special_tokens_map", None) or {}
    described = [
        rules,
        getattr(tokenizer, "chat_template", None),
        {name: token for name, token in special.items() if name != "pad_token"},
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:DIGITS]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from weights(model)
    tables = _rotary_tables(model)
    for name, buffer in buffers(model):
        yield name, tables.get(name, buffer)


def _rotary_tables(model: nn.Module) -> dict[str, Tensor]:
    """Rotary tables by the name of their buffer, as the configuration makes them, where the model's own are the same.

    A table made on a GPU differs from one made on a CPU in its last bits, and one that grows with the input (dynamic scaling)
    holds what the last input needed. Neither makes it another model.
    """
    tables: dict[str, Tensor] = {}
    every: dict[str, Any] = {"remove_duplicate": False}
    for name, module in model.named_modules(**every):
        if not _is_rotary(module):
            continue
        with torch.device("cpu"):
            configured = dict(type(module)(config=module.config).named_buffers(**every))
        for key, table in module.named_buffers(recurse=False, **every):
            expected = configured.get(key)
            if expected is not None and any(_same(table, other) for other in (expected, *_grown(module, key))):
                table = expected
            tables[f"{name}.{key}" if name else key] = table
    return tables


def _is_rotary(module: nn.Module) -> bool:
    return "RotaryEmbedding" in type(module).__name__ and hasattr(module, "config")


def _same(own: Tensor, expected: Tensor) -> bool:
    """Whether two tables differ by no more than rounding."""
    alike = expected.shape == own.shape and expected.dtype == own.dtype
    return alike and torch.allclose(own.cpu(), expected.cpu(), rtol=SAME_TABLE, atol=0)


def _grown(module: Any, key: str) -> list[Tensor]:
    """What transformers puts in the place of a rotary table for long inputs, if anything."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if "original_" in key or not key.endswith("inv_freq"):
        return []
    layer_type = key.removesuffix("inv_freq").removesuffix("long_").removesuffix("_") or None
    kind = getattr(module, "rope_type", "")
    kind = kind.get(layer_type, "") if isinstance(kind, dict) else kind
    rope = module.config.rope_parameters
    if kind == "longrope":
        length = (rope[layer_type] if layer_type else rope)["original_max_position_embeddings"] + 1
    elif "dynamic" in kind:
        cached = f"{layer_type}_max_seq_len_cached" if layer_type else "max_seq_len_cached"
        length = int(getattr(module, cached, module.max_seq_len_cached))
    else:
        return []
    options = {"layer_type": layer_type} if layer_type else {}
    return [ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=length, **options)[0]]


def _modules(model: nn.Module) -> Iterator[str]:
    """Every module with its class and with the plain values and tensors that stand in its attributes."""
    for name, module in model.named_modules():
        if hasattr(module, COMPILED):
            continue
        kind = type(module)
        own_code = "" if is_library_class(kind) else class_code(kind)
        yield f"{_plain_name(name)} {kind.__name__} {own_code}"
        for key, value in sorted(_attributes(module)):
            yield f"{key}={value}"


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != COMPILED)


def _attributes(module: nn.Module) -> Iterator[tuple[str, str]]:
    values = {key: getattr(module, key) for key in ADAPTERS if hasattr(module, key)}
    values |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    for key, value in values.items():
        if key in UNUSED_ATTRIBUTES or _drops(key) or (isinstance(module, nn.Dropout) and key == "p"):
            continue
        if _is_rotary(module) and (key.endswith("max_seq_len_cached") or _is_grown(value, module, key)):
            continue
        if isinstance(value, Tensor):
            yield key, f"{value.dtype} {tuple(value.shape)} {checksums(value).tolist()}"
        elif _is_plain(value):
            yield key, _text(value)


def _is_grown(value: Any, module: nn.Module, key: str) -> bool:
    return isinstance(value, Tensor) and any(_same(value, table) for table in _grown(module, key))


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def _text(value: Any) -> str:
    """Plain values, dictionaries in the order of their keys."""
    if isinstance(value, Mapping):
        return str(sorted((repr(key), _text(part)) for key, part in value.items()))
    if isinstance(value, list | tuple):
        return str([_text(part) for part in value])
    return repr(value)


def _drops(setting: str) -> bool:
    """Whether this is a share of numbers that are dropped, which happens in training only."""
    return "dropout" in setting or setting.endswith("pdrop")


def _computed_with(described: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what every configuration has and no model computes with; parts of it alike."""
    from transformers import PretrainedConfig

    left_out = NOT_COMPUTED_WITH | PretrainedConfig().to_dict().keys()
    return {
        key: _computed_with(value) if isinstance(value, dict) else value
        for key, value in described.items()
        if key not in left_out and not key.startswith("_") and not _drops(key)
    }
