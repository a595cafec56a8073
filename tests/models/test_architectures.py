"""The reader on every architecture: right where it proves itself, and refused where it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import NoRotaryError, NumberError, TaskError, UnprovenError
from rotoscope.models import chunks as passes
from rotoscope.models import layer as layer_of_heads
from rotoscope.models.layer import LayerReading, Layout, Planes, Rotation
from rotoscope.models.reader import HeadReader
from rotoscope.scores import counterfactual as factors
from rotoscope.scores.attention import attention_weights
from rotoscope.scores.counterfactual import turn
from tests.tiny_models import ARCHITECTURES, EACH, GROUPED, from_config, tiny, tokens

LAYERS = {"cohere2": 5, "smollm3": 5, "llama4": 4}
PLANES = {"phi": 4, "gpt_neox": 2, "stablelm": 2, "glm4": 4, "deepseek_v3": 4, "gptj": 4, "codegen": 4}
UNROTATED_LAYERS = {"cohere2": [3], "smollm3": [3], "llama4": [3]}
NOT_GROUPED = {"phi", "gpt_neox", "deepseek_v3", "gptj", "codegen"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rebuilds_attention_after_a_permutation(name: str) -> None:
    reader = HeadReader(tiny(name))
    assert reader.layers == LAYERS.get(name, 3) == len(reader.proof)
    assert max(reader.proof) <= 1e-5
    assert reader.direct  # so its planes can be stopped as well
    for layer, layout in enumerate(reader.layouts):
        expected = 0 if layer in UNROTATED_LAYERS.get(name, []) else PLANES.get(name, 8)
        assert layout.planes == expected


@pytest.mark.parametrize("name", EACH)
def test_both_ways_read_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of the forward pass, and by calling each module again where turning back does not give what it should."""
    model, found = tiny(name), []
    for way in ("out of the forward pass", "by calling each module again"):
        if way.endswith("again"):
            monkeypatch.setattr(Rotation, "back", lambda self, vectors, rows=None: 1.01 * vectors)
        reader = HeadReader(model)
        assert reader.way == way
        assert max(reader.proof) <= 1e-5
        layers: list[LayerReading] = []
        reader.read(tokens(), (9, 19), layers.append)
        found.append(layers)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.visible, other.visible)
        assert one.hides == other.hides
        for name in ("query", "keys", "residual_norm"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("mutation", ["rotation sign", "key-head grouping", "plane layout"])
def test_a_broken_reader_does_not_pass(name: str, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutation == "key-head grouping" and name in NOT_GROUPED:
        mutation = "rotation sign"  # one query head per key head: no grouping to get wrong
    if mutation == "rotation sign":
        for place in (factors, layer_of_heads):
            monkeypatch.setattr(place, "turn", lambda pairs, cos, sin: turn(pairs, cos, -sin))
    elif mutation == "key-head grouping":
        right_heads = HeadReader._heads

        def regrouped(self: HeadReader, *args: object, **options: object) -> LayerReading:
            found = right_heads(self, *args, **options)
            key_heads, group = found.query.shape[1:3]
            query = found.query.flatten(1, 2).unflatten(1, (group, key_heads)).transpose(1, 2)
            return replace(found, query=query)

        monkeypatch.setattr(HeadReader, "_heads", regrouped)
    else:
        right_layout = Planes.layout

        def shuffled(self: Planes) -> Layout:
            layout = right_layout(self)
            rolled = torch.cat((layout.order[: 2 * layout.planes].roll(1), layout.order[2 * layout.planes :]))
            return replace(layout, order=rolled)

        monkeypatch.setattr(Planes, "layout", shuffled)
    with pytest.raises(UnprovenError, match="differs from what was read"):
        HeadReader(tiny(name))


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral", "cohere2", "gpt_oss", "llama4"])
@pytest.mark.parametrize("mistake", ["no window", "one more", "one less"])
def test_a_misread_window_does_not_pass(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model attends under the mask it made itself, so a reader that sees other keys is found out."""
    right = passes.visible_under

    def misread(mask: object, rows: torch.Tensor, n: int, **how: bool) -> torch.Tensor:
        seen = right(mask, rows, n, **how)
        causal = torch.arange(seen.shape[1])[None, :] <= rows[:, None]
        if mistake == "no window":
            return causal
        further = torch.cat((seen[:, 1:], seen[:, -1:]), dim=1)  # the window's start one position earlier
        later = torch.cat((torch.zeros_like(seen[:, :1]), seen[:, :-1]), dim=1)
        later |= torch.eye(seen.shape[1], dtype=torch.bool)[rows]
        return (seen | further) & causal if mistake == "one more" else seen & later

    monkeypatch.setattr(passes, "visible_under", misread)
    with pytest.raises(UnprovenError, match="differs from what was read"):
        HeadReader(tiny(name))


def test_layers_of_one_arrangement_keep_their_own_angles() -> None:
    """Gemma 3 turns its local layers by another base than its global ones."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    layouts = HeadReader(tiny("gemma3", layer_types=kinds)).layouts
    assert layouts[0] is layouts[2]
    for layout, base in zip(layouts, (1e4, 1e6, 1e4), strict=True):
        expected = base ** -(torch.arange(layout.planes, dtype=torch.float64) / layout.planes)
        torch.testing.assert_close(layout.angles, expected, rtol=1e-5, atol=0.0)


def without_dimensions(
    name: str, dead: dict[int, tuple[tuple[int, ...], tuple[int, ...]]], **changes: Any
) -> Any:
    """A model of heads with 16 dimensions whose norms set some of the query's and of the key's to 0, layer by layer."""
    model = tiny(name, **changes)
    with torch.no_grad():
        for layer, dimensions in dead.items():
            attention = model.model.layers[layer].self_attn
            for norm, zero in zip((attention.q_norm, attention.k_norm), dimensions, strict=True):
                norm.weight[list(zero)] = -1.0 if name == "gemma3" else 0.0
    return model


@pytest.mark.parametrize("name", ["gemma3", "qwen3"])
def test_planes_without_queries_or_keys_are_inferred_and_named(name: str) -> None:
    """Plane k is dimensions k and k + 8. Half a plane is known by its other half, a whole one by another layer."""
    kinds = ["sliding_attention", "full_attention"] * 2 if name == "gemma3" else ["full_attention"] * 4
    dead = {
        0: ((1, 9, 4), (1, 9, 4)),  # plane 2 altogether, the real half of plane 5
        1: ((0, 10), (0, 10)),  # two halves
        2: ((3, 11, 14), (5, 13, 6)),  # a query without plane 4, a key without plane 6, halves of plane 7
        3: ((2, 10), (2, 10)),  # in layer 1, its neighbour with the same table, half of plane 3
    }
    changes: dict[str, Any] = {"num_hidden_layers": 4, "layer_types": kinds}
    model = without_dimensions(name, dead, **changes)
    reader, whole = HeadReader(model), HeadReader(tiny(name, **changes))
    assert max(reader.proof) <= 1e-5
    for layout, expected in zip(reader.layouts, whole.layouts, strict=True):
        assert layout.same(expected)
    assert reader.dead_planes == [(2,), (), (4, 6), (3,)]
    assert whole.warnings == []
    assert (
        rs.profile(model, tokens=tokens(1, 10), null="none", examples=False)
        .run.warnings[0]
        .endswith("Their frequency ids, layer by layer, are 0: 2; 2: 4, 6; 3: 3")
    )


def test_a_plane_that_no_layer_shows_is_refused() -> None:
    """Layer 1 is the only one that turns by its table."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    model = without_dimensions("gemma3", {1: ((2, 10), (2, 10))}, layer_types=kinds)
    with pytest.raises(
        UnprovenError, match="layer 1: dimensions 2, 10 of Gemma3Attention are 0 in every query"
    ):
        HeadReader(model)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gptj", "phi"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_type(name: str, dtype: torch.dtype) -> None:
    reader = HeadReader(tiny(name).to(dtype))
    assert len(reader.proof) == 3
    assert max(reader.proof) <= 1e-5
    seen = []
    reader.read(tokens(), (19,), lambda layer: seen.extend((layer.keys.dtype, layer.residual_norm.dtype)))
    assert set(seen) == {torch.float64 if dtype == torch.float64 else torch.float32}


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "gptj"])
def test_model_is_left_as_it_was(name: str) -> None:
    model = tiny(name).train()
    implementation = model.config._attn_implementation
    state = {key: value.clone() for key, value in model.state_dict().items()}
    reader = HeadReader(model)
    reader.read(tokens(), (19,), lambda layer: None)

    def explode(layer: LayerReading) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        reader.read(tokens(), (19,), explode)
    assert model.training
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_modules_are_told_and_keep_their_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some modules do something when they are told to train or not; one here stays frozen whatever the model does."""
    model = tiny("llama").train()
    frozen, told = model.model.layers[1].eval(), []
    norm, plain = model.model.norm, torch.nn.Module.train
    monkeypatch.setattr(type(norm), "train", lambda self, mode=True: told.append(mode) or plain(self, mode))
    HeadReader(model, prove=False).read(tokens(), (19,), lambda layer: None)
    assert {False, True} <= set(told)
    assert not any(module.training for module in frozen.modules())
    assert model.training
    assert norm.training


def test_own_logits_are_those_of_a_plain_forward() -> None:
    model = tiny("qwen3")
    reader = HeadReader(model)
    ours = reader.read(tokens(), (19,), lambda layer: None, keep=(4, 19))
    with torch.no_grad():
        assert torch.equal(ours, model(tokens(), use_cache=False).logits[:, [4, 19]])


def test_angles_are_the_models_own() -> None:
    model = tiny("llama-3 scaling")
    found = HeadReader(model).layouts[0].angles
    assert torch.allclose(found.float(), model.model.rotary_emb.inv_freq, rtol=1e-5)
    assert (found.diff() < 0).all()  # id 1 is the fastest


def test_real_logits_reproduce_attention_at_any_query() -> None:
    """Two prompts at once, queries in the middle, a sliding window, and sinks."""
    model = tiny("gpt_oss")
    found = {}
    reader = HeadReader(model)
    reader.read(tokens(), (5, 13, 19), lambda layer: found.update({layer.layer: layer}))
    with torch.no_grad():
        own = model(tokens(), use_cache=False, output_attentions=True).attentions
    assert len(own) == 3
    for layer, weights in enumerate(own):
        for index, position in enumerate((5, 13, 19)):
            query = found[layer].at(index)
            ours = attention_weights(query.real(), query.sinks)
            assert torch.allclose(ours, weights[:, :, position, : position + 1], atol=1e-5)
        assert torch.allclose(found[layer].attention(), weights[:, :, (5, 13, 19)], atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "phi", "gptj", "deepseek_v3", "smollm3"])
def test_attention_of_all_positions_at_once(name: str) -> None:
    """Soft-caps, windows, partial rotation, other key widths, layers without rotation."""
    model = tiny(name)
    model.set_attn_implementation("eager")
    found: list[torch.Tensor] = []
    HeadReader(model).read(tokens(), tuple(range(20)), lambda layer: found.append(layer.attention()))
    with torch.no_grad():
        own = model(tokens(), use_cache=False, output_attentions=True).attentions
    for ours, weights in zip(found, own, strict=True):
        assert torch.allclose(ours, weights, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        tf.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
        tf.OPTConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64),
    ],
    ids=["gpt2", "opt"],
)
def test_without_rotary_positions(config: object) -> None:
    with pytest.raises(NoRotaryError, match="no rotary positions.*symbolic by construction"):
        HeadReader(from_config(config))


@pytest.mark.parametrize(
    "config",
    [
        tf.BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=4),
        tf.HunYuanDenseV1Config(**GROUPED, head_dim=16),  # norms its keys after rotating them
    ],
    ids=["bloom", "hunyuan"],
)
def test_what_cannot_be_proven_is_refused(config: object) -> None:
    with pytest.raises(UnprovenError):
        HeadReader(from_config(config))


def test_nan_is_named_with_its_layer() -> None:
    model = tiny("llama")
    reader = HeadReader(model)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 3] = torch.nan
    with pytest.raises(NumberError, match="layer 1"):
        reader.read(tokens(), (19,), lambda layer: None)


def test_context_length_is_kept() -> None:
    with pytest.raises(TaskError, match=r"600 tokens.*context of 512"):
        HeadReader(tiny("llama")).read(tokens(n=600), (599,), lambda layer: None)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_model_of_few_positions_is_proven_on_as_many(name: str) -> None:
    """GPT-J has a table of its positions, and nothing beyond its end."""
    few = {"n_positions": 10} if name == "gptj" else {"max_position_embeddings": 10}
    reader = HeadReader(tiny(name, **few))
    assert reader.positions == reader.proof_tokens.shape[1] == 10
    assert max(reader.proof) < 1e-4
