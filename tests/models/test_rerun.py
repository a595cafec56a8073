"""Running the end of a prompt again: as the whole changed prompt would run, and the model left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rotoscope.errors import NumberError, UnprovenError
from rotoscope.models import rerun
from rotoscope.models.interventions import Gate, gated
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.scores.attention import attention_weights
from tests.constructed import first_for_last
from tests.tiny_models import EACH, tiny, tokens

SOME = ["llama", "gemma2", "gpt_oss", "gptj", "deepseek_v3", "cohere2"]
N, FIRST = 20, 7


def ends(name: str) -> tuple[Reruns, torch.Tensor, torch.Tensor]:
    """A model, a prompt, and three other ends of it."""
    runs = Reruns(HeadReader(tiny(name)), enters=True)
    return runs, tokens(1), torch.cat((tokens(1)[:, :FIRST].expand(3, -1), tokens(3, seed=5)[:, FIRST:]), dim=1)


@pytest.mark.parametrize("name", EACH)
def test_beginnings_are_kept_for_every_architecture(name: str) -> None:
    runs = Reruns(HeadReader(tiny(name)))
    assert runs.keeps
    assert runs.proof <= 1e-6


@pytest.mark.parametrize("name", SOME)
def test_another_end_attends_as_the_whole_prompt_does(name: str) -> None:
    runs, prompt, changed = ends(name)
    expected: dict[int, torch.Tensor] = {}
    runs.reader.read(
        changed, (N - 1,), lambda layer: expected.update({layer.layer: layer.at(0).real().softmax(-1)})
    )
    found: dict[int, torch.Tensor] = {}
    runs.again(runs.begin(prompt), FIRST, changed[:, FIRST:], found.__setitem__)
    assert list(found) == list(expected) == list(range(runs.reader.layers))
    for layer, logits in found.items():
        assert torch.allclose(attention_weights(logits), expected[layer], atol=2e-6)
    assert not any(torch.allclose(w[0], w[1], atol=1e-3) for w in expected.values())  # ends that tell


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_no_mask_of_all_pairs_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing but what comes later is hidden: whole prompts run without a mask, ends under one of a few rows at a time."""
    runs, prompt, changed = ends(name)
    kept = runs.begin(prompt)
    assert [mask for _, _, mask in kept.inputs.values()] == [None] * runs.reader.layers
    whole: list[torch.Tensor] = []
    runs.again(kept, FIRST, changed[:, FIRST:], lambda _, logits: whole.append(logits))
    monkeypatch.setattr(rerun, "SMALLEST", 3)
    monkeypatch.setattr(rerun, "ROOM", 0)
    rows: list[int] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def counted(query: torch.Tensor, *what: Any, **how: Any) -> torch.Tensor:
        rows.append(query.shape[2])
        return plain(query, *what, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    few: list[torch.Tensor] = []
    runs.again(kept, FIRST, changed[:, FIRST:], lambda _, logits: few.append(logits))
    assert rows == [3, 3, 3, 3, 1] * (runs.reader.layers - 1)  # of the last layer, logits alone
    assert len(few) == len(whole) == runs.reader.layers
    for one, other in zip(few, whole, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_other_states_go_through_the_rest_of_the_model(name: str) -> None:
    runs, prompt, changed = ends(name)
    assert runs.depths is not None
    states = runs.depths.states(changed)[1]
    expected: dict[int, torch.Tensor] = {}
    runs.depths.enter(
        prompt,
        1,
        states,
        queries=(N - 1,),
        visit=lambda layer: expected.update({layer.layer: layer.at(0).real().softmax(-1)}),
    )
    found: dict[int, torch.Tensor] = {}
    runs.enter(runs.begin(prompt), 1, FIRST, states[:, FIRST:], found.__setitem__)
    assert list(found) == list(range(1, runs.reader.layers))
    for layer, logits in found.items():
        # the first layer to run sees the prompt's own beginning; so does the reader, whose states are the same there
        assert torch.allclose(attention_weights(logits), expected[layer], atol=2e-6)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_model_whose_beginning_cannot_be_kept_is_run_whole(name: str) -> None:
    runs, prompt, changed = ends(name)
    kept = runs.begin(prompt)
    assert kept.states is not None
    states = kept.states[1].expand(3, -1, -1).flip(-1)[:, FIRST:]
    short: list[torch.Tensor] = []
    whole: list[torch.Tensor] = []
    for found, keeps in ((short, True), (whole, False)):
        runs.keeps = keeps
        runs.again(kept, FIRST, changed[:, FIRST:], lambda _, logits, found=found: found.append(logits))
        runs.enter(kept, 1, FIRST, states, lambda _, logits, found=found: found.append(logits))
    assert len(short) == len(whole) == 5
    for one, other in zip(short, whole, strict=True):
        assert torch.allclose(attention_weights(one), attention_weights(other), atol=2e-6)


def test_a_model_that_ignores_positions_given_to_it_is_run_whole() -> None:
    """What a beginning is kept for is proven on the model at hand."""
    model = tiny("llama")
    rotary = model.model.rotary_emb
    forward = rotary.forward

    def counting(x: torch.Tensor, position_ids: torch.Tensor) -> object:
        return forward(x, torch.arange(position_ids.shape[1])[None].expand_as(position_ids))

    rotary.forward = counting
    runs = Reruns(HeadReader(model))
    assert not runs.keeps
    found: list[torch.Tensor] = []
    changed = torch.cat((tokens(1)[:, :FIRST], tokens(1, seed=5)[:, FIRST:]), dim=1)
    runs.again(runs.begin(tokens(1)), FIRST, changed[:, FIRST:], lambda _, logits: found.append(logits))
    expected: list[torch.Tensor] = []
    runs.reader.read(changed, (N - 1,), lambda layer: expected.append(layer.at(0).real()))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, expected, strict=True))


def test_what_is_noted_must_be_what_was_read() -> None:
    model = tiny("llama")
    reader = HeadReader(model)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.mul_(1.5)
    Reruns(reader)  # the reader reads the model as it is now
    with pytest.raises(UnprovenError, match="is not what was read"):
        Reruns(first_for_last(reader))


def test_runs_end_where_nothing_more_is_asked_for() -> None:
    runs, prompt, changed = ends("llama")
    runs.last = 1
    seen: list[int] = []
    runs.again(runs.begin(prompt), FIRST, changed[:, FIRST:], lambda layer, _: seen.append(layer))
    assert seen == [0, 1]


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_a_gate_stays_closed(name: str) -> None:
    """Under a gate the beginning is the gated model's, too."""
    runs, prompt, changed = ends(name)
    found: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    with gated(runs.reader, Gate(heads=frozenset({(0, 0), (0, 1)}))):
        runs.again(runs.begin(prompt), FIRST, changed[:, FIRST:], lambda _, logits: found.append(logits))
        runs.reader.read(changed, (N - 1,), lambda layer: expected.append(layer.at(0).real()))
    plain: list[torch.Tensor] = []
    runs.again(runs.begin(prompt), FIRST, changed[:, FIRST:], lambda _, logits: plain.append(logits))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, expected, strict=True))
    assert not torch.allclose(found[1], plain[1], atol=1e-2)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    runs, prompt, changed = ends(name)
    model = runs.reader.model
    before = model.config._attn_implementation

    def explode(layer: int, logits: torch.Tensor) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        runs.again(runs.begin(prompt), FIRST, changed[:, FIRST:], explode)
    assert model.config._attn_implementation == before
    assert not any("forward" in vars(module) or "_attn" in vars(module) for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_numbers_that_are_none_are_named() -> None:
    runs, prompt, changed = ends("llama")
    kept = runs.begin(prompt)
    with torch.no_grad():
        runs.reader.model.model.layers[1].self_attn.k_proj.weight[0, 0] = torch.nan
    with pytest.raises(NumberError, match="layer 1: NaN or infinity"):
        runs.again(kept, FIRST, changed[:, FIRST:], lambda *_: None)
