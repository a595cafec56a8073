"""Models in the hands of torch, TransformerLens and nnsight: the plain model is taken out, or the line to write is said.

The last two's classes here stand for theirs by name and by where they keep the model; the real packages are not needed.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.errors import ModelError
from rotoscope.models.interventions import Gate, gated
from rotoscope.models.reader import HeadReader
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny, tokens


def named(library: str, name: str, *bases: type) -> Any:
    """A class that says it comes from a library."""
    return type(name, bases or (object,), {"__module__": f"{library}.inner.module"})


Envoy = named("nnsight", "Envoy")
LanguageModel = named("nnsight", "LanguageModel", Envoy)
TransformerBridge = named("transformer_lens", "TransformerBridge", torch.nn.Module)
HookedTransformer = named("transformer_lens", "HookedTransformer", torch.nn.Module)


def holding(kind: Any, **parts: Any) -> Any:
    made = kind()
    for name, part in parts.items():
        made.__dict__[name] = part
    return made


def unread(model: Any) -> Any:
    """As in a bridge, whose attention is its own: nothing goes through transformers' interface."""
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    return model


def subclassed(kind: Any) -> Any:
    """A user's own class on top of a library's."""
    return type("Mine", (kind,), {"__module__": "__main__"})


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (LanguageModel, "_module"),
        (LanguageModel, "_model"),
        (subclassed(LanguageModel), "_module"),
        (TransformerBridge, "original_model"),
    ],
)
def test_the_model_inside_is_read(kind: Any, key: str) -> None:
    model, words = tiny("llama"), word_tokenizer()
    held = holding(kind, **{key: model, "tokenizer": words})
    subject = rs.load(held, name="mine")
    assert (subject.model, subject.tokenizer, subject.name) == (model, words, "mine")
    assert rs.load((held, None)).tokenizer is words
    other = word_tokenizer()
    assert rs.load((held, other)).tokenizer is other
    options: Any = {"tokens": tokens(2, 12), "null": "none", "examples": False, "show_progress": False}
    assert rs.profile(held, **options).heads.equals(rs.profile(model, **options).heads)


def never(graph: Any, inputs: Any) -> Any:
    raise AssertionError("compiled code was run")


@pytest.mark.parametrize(
    "wrap",
    [
        partial(torch.compile, backend=never),
        torch.nn.DataParallel,
        lambda model: torch.compile(torch.nn.DataParallel(model), backend=never),
        lambda model: holding(LanguageModel, _module=torch.compile(model, backend=never)),
    ],
    ids=["compiled", "parallel", "both", "compiled inside nnsight"],
)
def test_what_torch_wraps_is_read_as_it_was_written(wrap: Any) -> None:
    model = tiny("llama")
    options: Any = {"tokens": tokens(2, 12), "null": "none", "examples": False, "show_progress": False}
    expected = rs.profile(model, **options)
    assert rs.load((wrap(model), None)).model is model
    assert rs.profile(wrap(model), **options).heads.equals(expected.heads)


def test_a_model_compiled_in_place_is_read_as_it_was_written() -> None:
    model, compiled = tiny("llama"), tiny("llama")
    compiled.compile(backend=never)
    prompts = rs.tasks.from_tokens(tokens(2, 12))
    options: Any = {"null": "none", "examples": False, "show_progress": False}
    assert rs.profile(compiled, prompts, **options).heads.equals(rs.profile(model, prompts, **options).heads)
    reader = HeadReader(compiled)
    with torch.no_grad(), gated(reader, Gate(heads=frozenset({(1, 2)}))):
        compiled(tokens())
    assert compiled._compiled_call_impl is not None


def test_what_is_written_anew_is_refused_with_the_line_to_write() -> None:
    about = SimpleNamespace(tokenizer_name="org/name", model_name="name")
    for held in (holding(HookedTransformer, cfg=about), (holding(HookedTransformer, cfg=about), None)):
        with pytest.raises(
            ModelError, match=r'written anew by TransformerLens.*write rs\.load\("hf:org/name"\)'
        ):
            rs.load(held)
    with pytest.raises(ModelError, match=r'write rs\.load\("hf:ORG/NAME"\)'):
        rs.load(HookedTransformer())


def test_a_model_inside_that_cannot_be_proven_is_refused_with_the_line_to_write(tmp_path) -> None:
    model = unread(tiny("llama"))
    held = holding(TransformerBridge, original_model=model, cfg=SimpleNamespace(tokenizer_name="org/name"))
    with pytest.raises(
        ModelError, match=r'cannot be read as it is \(architecture.*\); write rs\.load\("hf:org/name"\)'
    ):
        rs.load(held)
    model.name_or_path = str(tmp_path)
    with pytest.raises(ModelError, match=rf'write rs\.load\("{tmp_path}"\)'):
        rs.load(held)


def test_weights_that_are_not_there_yet() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"not in memory yet; write model\.dispatch\(\) first"):
        rs.load(holding(LanguageModel, _module=model))
    with pytest.raises(ModelError, match="without a model inside"):
        rs.load(holding(TransformerBridge))


def test_another_librarys_model_of_no_transformers_class() -> None:
    with pytest.raises(ModelError, match="a Linear in memory has no transformers configuration"):
        rs.load(holding(LanguageModel, _module=torch.nn.Linear(2, 2)))
    with pytest.raises(ModelError, match=r"a pair \(model, tokenizer\), found 1 of them"):
        rs.load(["smollm2"])
