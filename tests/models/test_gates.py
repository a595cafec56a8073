"""Gates within gates: state belongs to the context that opened it."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from rotoscope.models.interventions import Gate, gated
from rotoscope.models.reader import HeadReader
from tests.tiny_models import tiny, tokens

PLANES = Gate({(layer, head): frozenset({1, 2}) for layer in range(3) for head in range(4)})
HEADS = Gate(heads=frozenset({(0, 1), (2, 3)}))
BOTH = Gate(PLANES.planes, HEADS.heads)


def answers(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens(), use_cache=False).logits


def known() -> set[str]:
    return {*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping}


@pytest.mark.parametrize(
    "names", [("llama", "qwen3"), ("llama", "gptj"), ("gptj", "codegen"), ("gptj", "llama")]
)
def test_gates_on_two_models(names: tuple[str, str]) -> None:
    models = [tiny(name, seed=k) for k, name in enumerate(names)]
    readers = [HeadReader(model) for model in models]
    plain = [answers(model) for model in models]
    alone = []
    for model, reader in zip(models, readers, strict=True):
        with gated(reader, PLANES):
            alone.append(answers(model))
    before = known(), [model.config._attn_implementation for model in models]
    with gated(readers[0], PLANES):
        with pytest.raises(RuntimeError, match="inside"), gated(readers[1], PLANES):  # noqa: PT012
            assert torch.equal(answers(models[0]), alone[0])
            assert torch.equal(answers(models[1]), alone[1])
            raise RuntimeError("inside")
        assert torch.equal(answers(models[0]), alone[0])  # the outer gate is still closed
        assert torch.equal(answers(models[1]), plain[1])
    for model, expected, gate in zip(models, plain, alone, strict=True):
        assert torch.equal(answers(model), expected)
        assert not torch.allclose(expected, gate, atol=1e-3)
        assert not any("_attn" in vars(module) for module in model.modules())
    assert before == (known(), [model.config._attn_implementation for model in models])


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_two_gates_on_one_model(name: str) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    plain, before = answers(model), known()
    with gated(reader, BOTH):
        expected = answers(model)
    with gated(reader, PLANES):
        outer = answers(model)
        with gated(reader, HEADS):
            assert torch.equal(answers(model), expected)
        assert torch.equal(answers(model), outer)
        assert not torch.equal(outer, expected)
    assert torch.equal(answers(model), plain)
    assert known() == before


def test_a_reader_made_inside_another_models_gate() -> None:
    one, other = tiny("llama"), tiny("llama", seed=1)
    with gated(HeadReader(one), PLANES):
        inside = answers(one)
        assert max(HeadReader(other).proof) <= 1e-5
        assert torch.equal(answers(one), inside)
