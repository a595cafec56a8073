"""Stopped planes: against the model under other tables, against attention written by hand, with caches and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from rotoscope.errors import UnprovenError
from rotoscope.models.partial_rope import mixed, stop_for_good, stopped
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import RotaryTableSite
from tests.tiny_models import tiny, tokens

SOME = ("llama", "llama yarn", "qwen3", "gemma2", "gemma3", "phi", "gpt_neox", "cohere", "smollm3", "deepseek_v3", "llama4",
        "gptj", "codegen", "gpt_oss")  # fmt: skip


def answers(model: Any, **how: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens(), **({"use_cache": False} | how)).logits


def all_planes(reader: HeadReader) -> dict[tuple[int, int], frozenset[int]]:
    return {
        (layer, head): frozenset(range(1, layout.planes + 1))
        for layer, layout in enumerate(reader.layouts)
        for head in range(reader.key_head_counts[layer])
    }


def some_planes(reader: HeadReader, seed: int = 0) -> dict[tuple[int, int], frozenset[int]]:
    dice = torch.Generator().manual_seed(seed)
    return {
        key: frozenset(k for k in planes if bool(torch.rand((), generator=dice) < 0.5))
        for key, planes in all_planes(reader).items()
    }


def without_rotation(model: Any, reader: HeadReader) -> torch.Tensor:
    """The model's own answers with the identity for its tables."""

    def still(module: Any, args: Any, kwargs: Any) -> Any:
        own = kwargs["position_embeddings"]
        if isinstance(own, torch.Tensor):
            return args, kwargs | {"position_embeddings": torch.ones_like(own)}
        return args, kwargs | {"position_embeddings": (torch.ones_like(own[0]), torch.zeros_like(own[1]))}

    undo = []
    for site in reader.sites:
        if isinstance(site, RotaryTableSite):
            table = site.module.embed_positions
            half = table.shape[1] // 2
            site.module.embed_positions = torch.cat(
                (torch.zeros_like(table[:, :half]), torch.ones_like(table[:, half:])), 1
            )
            undo.append((site.module, table))
        else:
            undo.append((site.module.register_forward_pre_hook(still, with_kwargs=True), None))
    found = answers(model)
    for thing, table in undo:
        if table is None:
            thing.remove()
        else:
            thing.embed_positions = table
    return found


@pytest.mark.parametrize("name", SOME)
def test_all_planes_stopped_is_the_model_without_rotation(name: str) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    plain = answers(model)
    expected = without_rotation(model, reader)
    scale = float(expected.abs().max())
    known = {*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping}
    with stopped(reader, all_planes(reader)):
        found = answers(model)
        if name == "deepseek_v3":
            with pytest.raises(UnprovenError, match=r"caches 16 numbers a token that are not its keys \(24\)"):
                answers(model, use_cache=True)
        else:
            assert float((answers(model, use_cache=True) - expected).abs().max()) <= 1e-4 * scale
    assert float((found - expected).abs().max()) <= 1e-4 * scale
    assert float((plain - expected).abs().max()) > 1e-2 * scale
    with stopped(reader, {}):
        assert torch.equal(answers(model), plain)
    assert torch.equal(answers(model), plain)
    assert known == {*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping}
    assert not any("_attn" in vars(module) for module in model.modules())


def by_hand(model: Any, shown: torch.Tensor, which: dict[tuple[int, int], frozenset[int]]) -> torch.Tensor:
    """A llama's answers with planes stopped, its attention written out: one head, one query and one key at a time in planes."""
    config, states = model.config, model.model.embed_tokens(shown)
    heads, key_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    n, half = shown.shape[1], d // 2
    angles = 10000.0 ** (-torch.arange(half).double() * 2 / d)
    position = torch.arange(n).double()
    for number, layer in enumerate(model.model.layers):
        own, attention = layer.input_layernorm(states), layer.self_attn
        query = attention.q_proj(own).view(len(shown), n, heads, d).double()
        key = attention.k_proj(own).view(len(shown), n, key_heads, d).double()
        value = attention.v_proj(own).view(len(shown), n, key_heads, d).double()
        written = torch.zeros(len(shown), n, heads, d, dtype=torch.float64)
        for head in range(heads):
            shared = head // (heads // key_heads)
            logits = torch.zeros(len(shown), n, n, dtype=torch.float64)
            for plane in range(half):
                still = plane + 1 in which.get((number, shared), ())
                turn = torch.exp(1j * position * (0.0 if still else angles[plane]))
                q = torch.complex(query[:, :, head, plane], query[:, :, head, plane + half]) * turn
                k = torch.complex(key[:, :, shared, plane], key[:, :, shared, plane + half]) * turn
                logits += (q[:, :, None] * k[:, None, :].conj()).real
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
            weights = (logits * d**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
            written[:, :, head] = weights @ value[:, :, shared]
        states = states + attention.o_proj(written.flatten(2).float())
        states = states + layer.mlp(layer.post_attention_layernorm(states))
    found: torch.Tensor = model.lm_head(model.model.norm(states))
    return found


@torch.no_grad()
def test_some_planes_of_some_heads_as_by_hand() -> None:
    model = tiny("llama")
    reader, shown = HeadReader(model), tokens()
    which = some_planes(reader)
    assert len(set(which.values())) > 3
    for chosen in ({}, which):
        expected = by_hand(model, shown, chosen)
        with stopped(reader, chosen):
            assert float((answers(model) - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["llama", "gptj", "phi", "gemma2", "gpt_oss"])
def test_stopped_for_good_as_in_the_context(name: str) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    which = some_planes(reader)
    with stopped(reader, which):
        expected = answers(model)
        continued = model.generate(tokens(), max_new_tokens=6, do_sample=False, use_cache=False, pad_token_id=0)
    plain = model.generate(tokens(), max_new_tokens=6, do_sample=False, pad_token_id=0)
    stop_for_good(reader, which)
    assert float((answers(model) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert torch.equal(model.generate(tokens(), max_new_tokens=6, do_sample=False, pad_token_id=0), continued)
    assert not torch.equal(plain, continued)
    twin = copy.deepcopy(model)
    assert torch.equal(answers(twin), answers(model))
    with pytest.raises(UnprovenError, match="have been stopped"):
        HeadReader(model)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_padding_on_the_left_is_not_a_position(name: str) -> None:
    """Every input has positions of its own: what is turned back is what was turned."""
    model = tiny(name)
    stop_for_good(reader := HeadReader(model), some_planes(reader))
    shown = tokens(1)
    alone = model.generate(shown, max_new_tokens=5, do_sample=False, pad_token_id=0)
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), shown), dim=1)
    both = torch.cat((padded, tokens(1, 24, seed=1)))
    seen = (both != 0).long()
    together = model.generate(both, attention_mask=seen, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(together[0, 4:], alone[0])


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_what_is_stopped_can_be_trained(name: str) -> None:
    model = tiny(name, sharp=1.0)
    stop_for_good(reader := HeadReader(model), some_planes(reader))
    optimiser, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(8):
        loss = model(tokens(), labels=tokens()).loss
        optimiser.zero_grad()
        loss.backward()
        attention = reader.sites[0].module
        assert float(attention.q_proj.weight.grad.abs().sum()) > 0
        assert float(attention.k_proj.weight.grad.abs().sum()) > 0
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("name", ["llama", "phi", "gptj", "gemma2", "deepseek_v3"])
def test_a_mix_at_its_ends(name: str) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    which = some_planes(reader)
    with stopped(reader, which):
        expected = answers(model)
    alphas = []
    for layer, layout in enumerate(reader.layouts):
        alpha = torch.ones(reader.key_head_counts[layer], layout.planes)
        for head in range(len(alpha)):
            for plane in which[layer, head]:
                alpha[head, plane - 1] = 0.0
        alphas.append(alpha)
    with mixed(reader, alphas):
        found = answers(model)
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())
