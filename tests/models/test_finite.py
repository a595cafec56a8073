"""NaN and infinity stop a run wherever they are, and the message says where."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.errors import NumberError
from rotoscope.models.reader import HeadReader
from rotoscope.models.weight_check import Watch
from rotoscope.settings import check_tau
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny, tokens

NAN, INFINITY = float("nan"), float("inf")
LAST = 2


def damaged(name: str, value: float, architecture: str = "llama") -> Any:
    """A model in which one number of one weight is none: the last, which touches the fewest others."""
    model = tiny(architecture)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[-1] = value
    return model


def profile(model: Any) -> rs.Profile:
    return rs.profile(model, tokens=tokens(1, 12), null="none", examples=False, show_progress=False)


NAMED = [
    (f"model.layers.{LAST}.mlp.down_proj.weight", f"layer {LAST}: .* mlp.down_proj.weight holds"),
    (f"model.layers.{LAST}.mlp.up_proj.weight", f"layer {LAST}: .* mlp.up_proj.weight holds"),
    (f"model.layers.{LAST}.self_attn.v_proj.weight", f"layer {LAST}: .* self_attn.v_proj.weight holds"),
    (f"model.layers.{LAST}.self_attn.o_proj.weight", f"layer {LAST}: .* self_attn.o_proj.weight holds"),
    (
        f"model.layers.{LAST}.post_attention_layernorm.weight",
        f"layer {LAST}: .* post_attention_layernorm.weight",
    ),
    ("model.layers.0.mlp.gate_proj.weight", "layer 0: .* mlp.gate_proj.weight holds"),
    ("model.layers.1.self_attn.k_proj.weight", "layer 1: .* self_attn.k_proj.weight holds"),
    ("model.norm.weight", "next-token logits: model.norm.weight holds"),
    ("lm_head.weight", "next-token logits: lm_head.weight holds"),
]
"""Weights, and what is said of one that holds no number."""


@pytest.mark.parametrize("value", [NAN, INFINITY])
@pytest.mark.parametrize(("name", "where"), NAMED)
def test_a_number_that_is_none_stops_a_profile(name: str, where: str, value: float) -> None:
    with pytest.raises(NumberError, match=where):
        profile(damaged(name, value))


@pytest.mark.parametrize("value", [NAN, pytest.param(INFINITY, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [*dict(tiny("llama").named_parameters()), *dict(tiny("llama").named_buffers())]
)
@pytest.mark.parametrize(
    "late", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["at once", "put off"]
)
def test_every_weight_is_named(name: str, value: float, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one outside the layer in which the damage shows first: the embedding, the rotation's frequencies."""
    if late:
        monkeypatch.setattr(Watch, "look", Watch.put_off)
    model = tiny("llama")
    with torch.no_grad():
        (dict(model.named_parameters()) | dict(model.named_buffers()))[name].fill_(value)
    layer = re.match(r"model\.layers\.(\d+)\.(.*)", name)
    told = f"layer {layer[1]}: .*: {layer[2]} holds" if layer else f": {name} holds"
    with pytest.raises(NumberError, match=told):
        profile(model)
    with pytest.raises(NumberError, match=f"{'.'.join(name.split('.')[-2:])} holds"):
        HeadReader(model, prove=False)


def test_a_router_that_chooses_by_no_number() -> None:
    """Its choices are numbers all the same, so nothing shows in the states."""
    model = tiny("deepseek_v3")
    with torch.no_grad():
        model.get_buffer("model.layers.1.mlp.gate.e_score_correction_bias").fill_(NAN)
    with pytest.raises(NumberError, match="buffers: model.layers.1.mlp.gate.e_score_correction_bias holds"):
        profile(model)


def test_gptj_too() -> None:
    """Another block, which returns more than its states."""
    name = f"transformer.h.{LAST}.mlp.fc_out.weight"
    with pytest.raises(NumberError, match=f"layer {LAST}: .* mlp.fc_out.weight holds"):
        profile(damaged(name, NAN, "gptj"))


@pytest.mark.parametrize(("name", "where"), [NAMED[0], NAMED[5], NAMED[6]])
@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
def test_checks_that_are_put_off(name: str, where: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where no layer waits: at the end of the pass the first layer is named, not those it spoiled."""
    monkeypatch.setattr(Watch, "look", Watch.put_off)
    with pytest.raises(NumberError, match=where):
        HeadReader(damaged(name, value))


def test_what_was_put_off_is_looked_at_once() -> None:
    module = torch.nn.Linear(2, 2)
    watch = Watch(module)
    watch.put_off(torch.tensor([1.0, -2.0]), "first", module)
    watch.put_off(torch.tensor([1e300], dtype=torch.float64), "second", module)
    watch.settle()
    for what in ("third", "fourth"):
        watch.put_off(torch.tensor([1.0, NAN], dtype=torch.bfloat16), what, module)
    with pytest.raises(NumberError, match="third: all weights are numbers"):
        watch.settle()
    watch.settle()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "put off"])
def test_a_position_that_nothing_is_asked_of(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding of one token, which stands after the query: its own column is the only one that is touched."""
    if late:
        monkeypatch.setattr(Watch, "look", Watch.put_off)
    model = tiny("llama")
    shown = tokens(1, 12)
    shown[0, -1] = 127
    with torch.no_grad():
        model.model.embed_tokens.weight[127] = NAN
    reader = HeadReader(model)
    with pytest.raises(NumberError, match="layer 0"):
        reader.read(shown, keep=(3,))
    assert reader.read(tokens(1, 12) % 120, keep=(3,)).isfinite().all()


def test_numbers_that_grow_too_large_are_told_from_damaged_weights() -> None:
    model = tiny("llama").half()
    with torch.no_grad():
        model.model.layers[LAST].mlp.down_proj.weight.fill_(6e4)
    with pytest.raises(
        NumberError, match=f"layer {LAST}: .*all weights are numbers.*load the model in float32"
    ):
        profile(model)


def test_gates_and_questions_stop_too() -> None:
    subject = rs.load((damaged("lm_head.weight", NAN), word_tokenizer()), name="damaged")
    plan = rs.tasks.OneHopPlan(tasks=("letter",), lengths=(12,), runs=1, questions=1)
    with pytest.raises(NumberError, match="next-token logits: lm_head.weight holds"):
        rs.experiments.one_hop_local(subject, plan, chat=False, show_progress=False)
    prompts = rs.tasks.repeats(subject, length=6, count=1)
    with pytest.raises(NumberError, match="next-token logits: lm_head.weight holds"):
        rs.gate(subject, prompts, silence=True, heads=[(0, 0)], scores=False, show_progress=False)


def test_a_sound_model_passes() -> None:
    assert profile(tiny("llama")).heads["positional_score"].notna().all()


@pytest.mark.parametrize("tau", [1e-46, 1e-31, [1e-4, 1e-40]])
def test_tau_that_float32_cannot_hold(tau: Any) -> None:
    with pytest.raises(rs.errors.RotoscopeError, match="tau must be at least 1e-30"):
        check_tau(tau)
    with pytest.raises(rs.errors.RotoscopeError, match="tau must be at least 1e-30"):
        rs.swap_scores(torch.zeros(4, 4), tau=tau)


def test_the_smallest_tau_picks_the_largest_difference() -> None:
    """One swap alone counts, and what comes out is its cosine, not zero."""
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    least, small = (rs.swap_scores(logits, tau=tau) for tau in (1e-30, 1e-9))
    assert float(least.effective_swaps) == pytest.approx(1.0)
    assert float(least.positional) == pytest.approx(float(small.positional), abs=1e-6)
    assert float(least.positional) > 0
