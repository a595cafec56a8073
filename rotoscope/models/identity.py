"""Which model this is: a checksum of everything that its forward pass computes with.

Every bit of every parameter and buffer counts, and so do the configuration, the rotary tables and hooks that somebody else has
put on the model. Where the weights are does not: a model has one identity on every device, spread over several, on disk, and
inside `torch.compile`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_hooks

from rotoscope.models.offloading import buffers, weights
from rotoscope.shapes import Int, Tensor

DIGITS = 16
COLUMNS = 2**16
"""Words that are summed into one number."""
WORDS_AT_ONCE = {"cpu": 2**18, "cuda": 2**25}
"""Words whose products are in memory together; on a CPU they stay in its cache."""
WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32}
SAME_TABLE = 1e-6
"""Relative difference below which a rotary table is the configured one: devices round powers differently."""
LIBRARIES = frozenset(
    {"torch", "transformers", "accelerate", "peft", "rotoscope", "nnsight", "transformer_lens"}
)
"""Whose hooks belong to the way a model is held, and change nothing that it computes."""
OWN_ATTENTION = "rotoscope"
"""How the names of attention functions begin that rotoscope has put into a model for good."""
NOT_COMPUTED_WITH = frozenset(
    {"use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "name_or_path", "distributed_config"}
)
"""Settings of a configuration, besides those that all have, that no forward pass looks at."""


def model_identity(model: Any) -> str:
    """The same for two models that compute the same from all tokens, as far as their weights and settings can tell."""
    digest = hashlib.sha256(weights_identity(model).encode())
    digest.update(type(model).__name__.encode())
    digest.update(json.dumps(_computed_with(model.config.to_dict()), sort_keys=True, default=str).encode())
    for line in (*_rotary_scales(model), *foreign_hooks(model)):
        digest.update(line.encode())
    attention = str(getattr(model.config, "_attn_implementation", ""))
    if attention.startswith(OWN_ATTENTION):  # heads that stream, or planes that were stopped
        digest.update(attention.encode())
    return digest.hexdigest()[:DIGITS]


def weights_identity(model: nn.Module) -> str:
    """A checksum of all bits of all parameters and buffers, with their names, shapes and types."""
    digest, sums = hashlib.sha256(), list[Tensor]()
    for name, tensor in _tensors(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
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
    rules = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    described = [
        rules,
        getattr(tokenizer, "chat_template", None),
        getattr(tokenizer, "special_tokens_map", None),
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:DIGITS]


def foreign_hooks(model: nn.Module) -> list[str]:
    """Hooks and replaced methods on a model that no library of `LIBRARIES` has put there, each with its place and its code."""
    everywhere = (torch_hooks._global_forward_hooks, torch_hooks._global_forward_pre_hooks)
    placed_hooks = [("every module", hook) for hooks in everywhere for hook in hooks.values()]
    for name, module in model.named_modules():
        place = name or "the model"
        placed_hooks += [
            (place, hook) for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        ]
        if "forward" in vars(module):
            placed_hooks.append((place, vars(module)["forward"]))
    return [f"{place}: {_code_of(hook)}" for place, hook in placed_hooks if _library(hook) not in LIBRARIES]


def hook_warnings(model: nn.Module) -> list[str]:
    """What to say about foreign hooks, in one sentence; empty where there are none."""
    places = list(dict.fromkeys(hook.partition(": ")[0] for hook in foreign_hooks(model)))
    if not places:
        return []
    more = f" and {len(places) - 3} more places" if len(places) > 3 else ""
    return [
        f"the model has hooks or replaced methods at {', '.join(places[:3])}{more}: what was measured is the model with them"
    ]


def checksums(tensor: Tensor) -> Int[Tensor, "rows"]:
    """Sums of a tensor's bits, as words times fixed odd numbers modulo 2^64: any change of one word changes its sum.

    The words are 32 bits where a tensor's size allows it. A row is `COLUMNS` words; the last one may be shorter.
    """
    width = tensor.dtype.itemsize
    size = next(size for size in (4, 2, 1) if tensor.numel() * width % size == 0)
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.storage_offset() * width % size:
        flat = flat.clone()
    words = flat.view(WORD[size]) if flat.dtype != torch.bool else flat.view(torch.int8)
    factors = _factors().to(words.device)
    sums: list[Tensor] = []
    full = len(words) // COLUMNS * COLUMNS
    step = WORDS_AT_ONCE.get(words.device.type, WORDS_AT_ONCE["cpu"])
    for start in range(0, full, step):
        rows = words[start : min(start + step, full)].view(-1, COLUMNS)
        sums.append((rows * factors).sum(1))
    rest = words[full:]
    sums.append((rest * factors[: len(rest)]).sum(0, keepdim=True))
    return torch.cat(sums)


@cache
def _factors() -> Int[Tensor, "columns"]:
    """Odd 64-bit numbers that look random and are the same everywhere and for ever."""
    raw = np.random.PCG64(20_251_114).random_raw(COLUMNS) | np.uint64(1)
    return torch.from_numpy(raw.view(np.int64).copy())


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
    for name, module in model.named_modules():
        if "RotaryEmbedding" not in type(module).__name__ or not hasattr(module, "config"):
            continue
        with torch.device("cpu"):
            configured = dict(type(module)(config=module.config).named_buffers())
        for key, table in module.named_buffers(recurse=False):
            original = getattr(module, key.replace("inv_freq", "original_inv_freq"), table)
            own = original if _grows(module) and isinstance(original, Tensor) else table
            expected = configured.get(key)
            tables[f"{name}.{key}" if name else key] = _rounded_like(own, expected)
    return tables


def _rounded_like(own: Tensor, expected: Tensor | None) -> Tensor:
    """The expected table where the two differ by no more than rounding, else the table itself."""
    if expected is None or expected.shape != own.shape or expected.dtype != own.dtype:
        return own
    return expected if torch.allclose(own.cpu(), expected, rtol=SAME_TABLE, atol=0) else own


def _rotary_scales(model: nn.Module) -> list[str]:
    """What rotary modules multiply their tables by, which is no buffer."""
    return [
        f"{name}.{key}={float(value):.6g}"
        for name, module in model.named_modules()
        for key, value in sorted(vars(module).items())
        if key.endswith("attention_scaling") and isinstance(value, int | float)
    ]


def _grows(module: nn.Module) -> bool:
    """Whether transformers makes a rotary table anew for long inputs."""
    kinds = getattr(module, "rope_type", "")
    return any(
        "dynamic" in str(kind) or kind == "longrope"
        for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])
    )


def _computed_with(described: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what every configuration has and no model computes with; parts of it alike."""
    from transformers import PretrainedConfig

    left_out = NOT_COMPUTED_WITH | PretrainedConfig().to_dict().keys()
    return {
        key: _computed_with(value) if isinstance(value, dict) else value
        for key, value in described.items()
        if key not in left_out and not key.startswith("_")
    }


def _plain_function(hook: Any) -> Any:
    while isinstance(hook, partial):
        hook = hook.func
    return inspect.unwrap(hook) if callable(hook) else hook


def _library(hook: Any) -> str:
    function = _plain_function(hook)
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]


def _code_of(hook: Callable[..., Any]) -> str:
    """What a hook does, as far as that can be told: its code and what it has closed over, else its name and address."""
    function = getattr(_plain_function(hook), "__func__", _plain_function(hook))
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(hook)
    around = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    arguments = [hook.args, hook.keywords] if isinstance(hook, partial) else []
    return f"{function.__qualname__} {instructions(code)} {around!r} {function.__defaults__!r} {arguments!r}"


def instructions(code: CodeType) -> str:
    """What a function does: its byte code with names and constants, those of functions inside it as well."""
    constants = [
        instructions(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
