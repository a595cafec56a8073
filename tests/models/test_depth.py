"""Entering models at a depth: stepped-over blocks, chosen states and masks, and models left as they were."""

from __future__ import annotations

import pytest
import torch

from rotoscope.errors import TaskError, UnprovenError
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Depths
from tests.tiny_models import EACH, tiny, tokens

SOME = ["llama", "gemma2", "gpt_oss", "gptj", "deepseek_v3"]


@pytest.mark.parametrize("name", EACH)
def test_every_architecture_can_be_entered_everywhere(name: str) -> None:
    depths = Depths(HeadReader(tiny(name)))
    assert len(depths.proof) == depths.reader.layers + 1
    assert max(depths.proof) <= 1e-6


@pytest.mark.parametrize("name", SOME)
def test_states_are_the_models_own(name: str) -> None:
    model = tiny(name)
    depths = Depths(HeadReader(model))
    states = depths.states(tokens())
    with torch.no_grad():
        own = model(tokens(), use_cache=False, output_hidden_states=True).hidden_states
    assert len(states) == len(own) == 4
    for ours, theirs in zip(states[:-1], own[:-1], strict=True):  # the last of theirs is normed
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", SOME)
def test_chosen_states_go_through_the_rest_of_the_model(name: str) -> None:
    """States of another input, entered at a layer: from there on everything is as on that input."""
    model = tiny(name)
    reader = HeadReader(model)
    depths = Depths(reader)
    here, other = tokens(2, seed=0), tokens(2, seed=1)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    expected: list[torch.Tensor] = []
    logits = reader.read(other, (19,), lambda layer: expected.append(layer.attention()), keep=(3, 19))
    seen: list[tuple[int, torch.Tensor]] = []
    found = depths.enter(
        here,
        2,
        depths.states(other)[2],
        queries=(19,),
        visit=lambda layer: seen.append((layer.layer, layer.attention())),
        keep=(3, 19),
    )
    assert torch.allclose(found, logits, atol=1e-5)
    assert [layer for layer, _ in seen] == [2]  # what was stepped over did not run
    assert torch.allclose(seen[0][1], expected[2], atol=1e-6)
    assert not torch.allclose(found, reader.read(here, keep=(3, 19)), atol=1e-3)
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_one_prompt_serves_many_states() -> None:
    depths = Depths(HeadReader(tiny("llama")))
    states = depths.states(tokens(5))[1]
    alone = torch.cat([depths.enter(tokens(1, seed=9), 1, one[None]) for one in states])
    assert torch.allclose(depths.enter(tokens(1, seed=9), 1, states), alone, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_keys_are_hidden_only_where_it_was_asked(name: str) -> None:
    """What a position does not see may be anything; what the model's own mask hides stays hidden."""
    depths = Depths(HeadReader(tiny(name)))
    states = depths.states(tokens())[2]
    changed = states.clone()
    changed[:, :17] = changed[:, :17].flip(1)
    changed[1, 17] = changed[1, 3]
    visible = torch.ones(2, 20, 20, dtype=torch.bool)
    visible[:, 19, :17] = False
    visible[1, 19, 17] = False
    written: list[torch.Tensor] = []
    handle = depths.reader.sites[2].module.register_forward_hook(lambda m, a, o: written.append(o[0]))
    for entering, hidden in (
        (states, {2: visible}),
        (changed, {2: visible}),
        (states, {}),
        (states, {1: ~visible}),
    ):
        depths.enter(tokens(), 2, entering, visible=hidden)
    handle.remove()
    alone, too, plain, elsewhere = written
    assert torch.allclose(alone[:, 19], too[:, 19], atol=1e-5)
    assert torch.allclose(alone[:, :19], plain[:, :19], atol=1e-5)
    assert not torch.allclose(alone[:, 19], plain[:, 19], atol=1e-3)
    assert torch.equal(elsewhere, plain)  # a layer that does not run hides nothing


def test_what_a_reader_sees_of_hidden_keys() -> None:
    depths = Depths(HeadReader(tiny("gemma2")))
    visible = torch.ones(2, 20, 20, dtype=torch.bool)
    visible[:, 19, 15] = False
    shown: dict[int, torch.Tensor] = {}
    options = {"queries": (19,), "visit": lambda layer: shown.update({layer.layer: layer.visible[0]})}
    depths.enter(tokens(), 1, depths.states(tokens())[1], visible={1: visible, 2: visible}, **options)
    assert shown[1].nonzero()[:, 0].tolist() == [k for k in range(20) if k != 15]
    assert shown[2].nonzero()[:, 0].tolist() == [k for k in range(12, 20) if k != 15]  # its window
    visible[1, 19, 14] = False
    with pytest.raises(TaskError, match="all inputs see the same keys"):
        depths.enter(tokens(), 1, depths.states(tokens())[1], visible={1: visible}, **options)


def test_a_model_that_hands_on_more_than_its_states_is_refused() -> None:
    model = tiny("llama")
    reader = HeadReader(model)
    first, last = model.model.layers[0], model.model.layers[-1]
    first.register_forward_hook(lambda m, args, out: setattr(last, "remembered", out))
    last.register_forward_hook(
        lambda m, args, out: out + m.remembered.flip(1) if "forward" not in vars(m) else out
    )
    with pytest.raises(UnprovenError, match="cannot be entered at a depth"):
        Depths(reader)


def test_an_exception_inside_leaves_the_model_as_it_was() -> None:
    model = tiny("gptj")
    depths = Depths(HeadReader(model))

    def explode(layer: object) -> None:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        depths.enter(tokens(), 1, depths.states(tokens())[1], queries=(19,), visit=explode)
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
