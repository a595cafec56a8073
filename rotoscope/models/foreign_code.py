"""Code that somebody has put on a model, or in the place of a library's: hooks, methods, attention functions.

It is described by what it does: its byte code, the arguments and variables it is bound to, and the numbers in them.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_hooks

from rotoscope.models.checksums import checksums

LIBRARIES = frozenset(
    {"torch", "transformers", "accelerate", "peft", "rotoscope", "nnsight", "transformer_lens"}
)
"""Whose hooks belong to the way a model is held, and change nothing that it computes."""
IMPORTED = LIBRARIES | sys.stdlib_module_names
"""Whose functions a library's module holds as it was written."""
ARCHITECTURES = "transformers.models."
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
DEEPEST = 8
"""Objects inside objects of which a description says what they hold."""


def foreign_hooks(model: nn.Module) -> list[str]:
    """Hooks and replaced functions that no library of `LIBRARIES` has put there, each with its place and its code."""
    describe = Description(model)
    return [
        f"{place}: {describe.value(function)}" for place, function in _functions(model) if _is_foreign(function)
    ]


def hook_warnings(model: nn.Module) -> list[str]:
    """What to say about foreign hooks, in one sentence; empty where there are none."""
    places = list(dict.fromkeys(place for place, function in _functions(model) if _is_foreign(function)))
    if not places:
        return []
    more = f" and {len(places) - 3} more places" if len(places) > 3 else ""
    return [
        f"the model has hooks or replaced methods at {', '.join(places[:3])}{more}: what was measured is the model with them"
    ]


def _functions(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Everything that could be foreign, with its place: hooks, methods of single modules, functions of their libraries."""
    for hooks in (torch_hooks._global_forward_hooks, torch_hooks._global_forward_pre_hooks):
        yield from (("every module", hook) for hook in hooks.values())
    for name, module in model.named_modules():
        place = name or "the model"
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            yield place, hook
        for key, value in vars(module).items():
            if key == "forward" or isinstance(value, FunctionType | MethodType | partial):
                yield place, value
    yield from _library_functions(model)
    yield from _attention_functions(model)


def _library_functions(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """What stands in a library's files: methods of the model's classes, and functions beside those of an architecture."""
    kinds = {type(module) for module in model.modules()}
    classes = {
        base for kind in kinds for base in kind.__mro__ if "forward" in vars(base) and is_library_class(base)
    }
    for kind in sorted(classes, key=lambda kind: (kind.__module__, kind.__qualname__)):
        yield from ((f"{kind.__module__}.{kind.__qualname__}", method) for method in _methods(kind))
    for home in sorted({kind.__module__ for kind in classes if kind.__module__.startswith(ARCHITECTURES)}):
        for name, value in vars(sys.modules[home]).items():
            if isinstance(value, FunctionType) and _is_foreign(value, IMPORTED):
                yield f"{home}.{name}", value


def _attention_functions(model: nn.Module) -> Iterator[tuple[str, Any]]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    configs = (getattr(module, "config", None) for module in model.modules())
    names = {str(getattr(config, "_attn_implementation", "")) for config in configs if config is not None}
    for name in sorted(names & set(ALL_ATTENTION_FUNCTIONS)):
        yield f"the attention function {name}", ALL_ATTENTION_FUNCTIONS[name]


def is_library_class(kind: type) -> bool:
    return _top(kind.__module__) in LIBRARIES


def class_code(kind: type) -> str:
    """What the methods of a class do that no library has written."""
    parts = [
        f"{method.__name__} {instructions(method.__code__)}"
        for base in kind.__mro__
        if _top(base.__module__) not in IMPORTED
        for method in _methods(base)
    ]
    return " ".join(parts)


def _methods(kind: type) -> list[FunctionType]:
    plain = (getattr(value, "__func__", value) for value in vars(kind).values())
    return [value for value in plain if isinstance(value, FunctionType)]


def _is_foreign(function: Any, libraries: frozenset[str] = LIBRARIES) -> bool:
    """Whether a function, or one that it wraps, was written in none of these libraries."""
    return any(_top(_home(part)) not in libraries for part in _layers(function))


def _layers(function: Any) -> Iterator[Any]:
    """A function and those it wraps, as far as they say so."""
    known: set[int] = set()
    while function is not None and id(function) not in known:
        known.add(id(function))
        if isinstance(function, partial):
            inside = getattr(function, "__wrapped__", None)
            if inside is not None:
                yield from _layers(inside)
            function = function.func
        else:
            function = getattr(function, "__func__", function)
            yield function
            function = getattr(function, "__wrapped__", None)


def _home(function: Any) -> str:
    """The module in which a function was written, whatever `functools.wraps` made it say."""
    if isinstance(function, FunctionType):
        return str(function.__globals__.get("__name__", ""))
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _top(module: str) -> str:
    return module.partition(".")[0]


class Description:
    """Texts that say what values hold, the same in every process; parts of `model` are named only."""

    def __init__(self, model: nn.Module) -> None:
        self._of_model = {id(module): name for name, module in model.named_modules()}
        self._of_model |= {id(tensor): name for name, tensor in model.named_parameters()}

    def value(self, value: Any, inside: tuple[int, ...] = ()) -> str:
        """`inside` are the ids of the values that this one is a part of."""
        if id(value) in self._of_model:
            return f"<{self._of_model[id(value)]}>"
        if id(value) in inside or len(inside) > DEEPEST:
            return f"<{type(value).__name__}>"
        inside = (*inside, id(value))
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, np.ndarray):
            return f"array {value.shape} {value.dtype} {_digest(value.tobytes())}"
        if isinstance(value, Mapping):
            return str([(str(key), self.value(part, inside)) for key, part in value.items()])
        if isinstance(value, list | tuple):
            return str([self.value(part, inside) for part in value])
        if isinstance(value, set | frozenset):
            return str(sorted(self.value(part, inside) for part in value))
        if isinstance(value, partial):
            return str([self.value(part, inside) for part in (value.func, value.args, value.keywords)])
        if isinstance(value, MethodType):
            return str([self.value(part, inside) for part in (value.__func__, value.__self__)])
        if isinstance(value, FunctionType):
            return self._function(value, inside)
        if isinstance(value, nn.Module):
            parts = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            return f"{type(value).__qualname__} {class_code(type(value))} {self.value(parts, inside)}"
        if isinstance(value, type | ModuleType):
            return value.__name__
        if not is_library_class(type(value)) and hasattr(value, "__dict__"):
            kind = type(value)
            return f"{kind.__qualname__} {class_code(kind)} {self.value(vars(value), inside)}"
        return ADDRESS.sub("", repr(value))

    def _function(self, function: FunctionType, inside: tuple[int, ...]) -> str:
        if not _is_foreign(function, IMPORTED):
            return function.__qualname__
        names = [name for name in _global_names(function.__code__) if name in function.__globals__]
        parts = {
            "closed over": [_content(cell) for cell in function.__closure__ or ()],
            "defaults": [function.__defaults__, function.__kwdefaults__],
            "global": {name: function.__globals__[name] for name in names},
            "wraps": getattr(function, "__wrapped__", None),
        }
        return f"{function.__qualname__} {instructions(function.__code__)} {self.value(parts, inside)}"


def _tensor(tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        return f"tensor {tuple(tensor.shape)} {tensor.dtype}"
    sums = checksums(tensor).cpu().numpy().tobytes()
    return f"tensor {tuple(tensor.shape)} {tensor.dtype} {_digest(sums)}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _global_names(code: CodeType) -> list[str]:
    """Names of global variables that a function or one inside it reads."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (_global_names(value) for value in code.co_consts if isinstance(value, CodeType))
    return sorted(names.union(*inner))


def instructions(code: CodeType) -> str:
    """What a function does: its byte code with names and constants, those of functions inside it as well."""
    constants = " ".join(map(_constant, code.co_consts))
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return instructions(value)
    # The order of a set differs between processes.
    return " ".join(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def function_code(function: Callable[..., Any]) -> str:
    """A short checksum of what a function does, with everything it is bound to."""
    return _digest(Description(nn.Module()).value(function).encode())
