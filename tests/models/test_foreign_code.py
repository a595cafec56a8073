"""Hooks and replaced functions: every one is noticed, told from others by what it holds, and warned about."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import nn

import rotoscope as rs
from rotoscope.models.foreign_code import Description, function_code, hook_warnings, instructions
from rotoscope.models.identity import model_identity
from tests.tiny_models import ARCHITECTURES, tiny, tokens, typical_first

Model = Any


@pytest.fixture
def model() -> Model:
    return tiny("llama")


def test_a_hook_is_told_from_another_and_warned_about(model: Model) -> None:
    def scale(by: float, module: Any, args: Any, output: Any) -> Any:
        return output

    marks = set()
    for hook in (partial(scale, 2.0), partial(scale, 3.0), lambda *_: None):
        handle = model.model.layers[1].register_forward_hook(hook)
        marks.add(model_identity(model))
        assert "model.layers.1" in hook_warnings(model)[0]
        handle.remove()
    assert len(marks) == 3
    assert hook_warnings(model) == []


def test_a_profile_says_that_the_model_has_hooks(model: Model) -> None:
    model.model.layers[1].register_forward_hook(lambda *_: None)
    result = rs.profile(model, tokens=tokens(2, 10), null="none", show_progress=False)
    assert any("hooks or replaced methods at model.layers.1" in line for line in result.run.warnings)


def replaced_in_library(model: Model, patch: pytest.MonkeyPatch, place: str) -> None:
    module = sys.modules[type(model).__module__]

    def mine(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    if place == "attention":
        patch.setitem(module.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", mine)
    elif place == "method":
        patch.setattr(module.LlamaAttention, "forward", wraps(module.LlamaAttention.forward)(mine))
    else:
        patch.setattr(module, "apply_rotary_pos_emb", mine)


@pytest.mark.parametrize("place", ["attention", "method", "function"])
def test_what_is_replaced_in_a_library_is_noticed(
    model: Model, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model_identity(model)
    assert hook_warnings(model) == []
    replaced_in_library(model, monkeypatch, place)
    assert model_identity(model) != before
    assert hook_warnings(model)


@pytest.mark.parametrize("name", typical_first([*ARCHITECTURES]))
def test_a_plain_model_has_nothing_foreign(name: str) -> None:
    assert hook_warnings(tiny(name)) == []


class Steering:
    """A hook with state of its own."""

    def __init__(self, strength: float, direction: Any) -> None:
        self.strength, self.direction = strength, direction

    def __call__(self, module: Any, args: Any, output: Any) -> Any:
        return output

    def add(self, module: Any, args: Any, output: Any) -> Any:
        return output


STRENGTH = 1.0


def scaled_by_global(module: Any, args: Any, output: Any) -> Any:
    return output * STRENGTH


def closing_over(value: Any) -> Callable[..., Any]:
    def hook(module: Any, args: Any, output: Any, *, by: float = 1.0) -> Any:
        return output, value, by

    return hook


LONG = torch.zeros(5000)
OTHER = LONG.clone().index_fill_(0, torch.tensor(2500), 1.0)
"""Too long for all of its numbers to be printed."""
HOOKS: dict[str, list[Callable[[], Any]]] = {
    "a tensor": [lambda: closing_over(LONG), lambda: closing_over(OTHER)],
    "an array": [lambda: closing_over(LONG.numpy()), lambda: closing_over(OTHER.numpy())],
    "a tensor in a list": [lambda: closing_over([{"x": LONG}]), lambda: closing_over([{"x": OTHER}])],
    "an object": [lambda: closing_over(Steering(1.0, None)), lambda: closing_over(Steering(2.0, None))],
    "a callable's number": [lambda: Steering(1.0, LONG), lambda: Steering(2.0, LONG)],
    "a callable's tensor": [lambda: Steering(1.0, LONG), lambda: Steering(1.0, OTHER)],
    "a bound method's number": [lambda: Steering(1.0, LONG).add, lambda: Steering(2.0, LONG).add],
    "a partial": [lambda: partial(closing_over(1), by=2.0), lambda: partial(closing_over(1), by=3.0)],
    "a module": [lambda: closing_over(nn.Linear(2, 2)), lambda: closing_over(nn.Linear(2, 2))],
}


@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS)
def test_hooks_are_told_apart_by_what_they_hold(model: Model, hooks: list[Callable[[], Any]]) -> None:
    marks = []
    for make in hooks:
        hook = make()
        same = copy.deepcopy(hook)
        for each in (hook, same):
            handle = model.model.layers[1].register_forward_hook(each)
            marks.append(model_identity(model))
            handle.remove()
    assert marks[0] == marks[1] != marks[2] == marks[3]


def test_defaults_of_keywords_and_global_numbers_belong_to_a_hook(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = closing_over(model)
    model.model.layers[1].register_forward_hook(hook)
    before = model_identity(model)
    hook.__kwdefaults__ = {"by": 2.0}
    assert model_identity(model) != before
    model.model.layers[1].register_forward_hook(scaled_by_global)
    before = model_identity(model)
    monkeypatch.setattr(sys.modules[__name__], "STRENGTH", 2.0)
    assert model_identity(model) != before


def test_a_description_of_code_is_the_same_in_every_process() -> None:
    """Neither addresses nor the order of sets come in."""

    def chosen(x: Any, kept: Any = object()) -> Any:  # noqa: B008
        return kept if x in {"b", "d", "a", "c", "f", "e"} else None

    text = Description(nn.Module()).value(chosen)
    assert " at 0x" not in text
    order = [instructions(chosen.__code__).index(f"'{letter}'") for letter in "abcdef"]
    assert order == sorted(order)
    assert function_code(closing_over(1)) != function_code(closing_over(2))
