"""Training that favours a kind: the penalty is what it says, each model has its own, and without it nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.lab import stacked_layer as layer
from rotoscope.lab.gptj import GPTJShape, LayerState, head_logits
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.trainer import Penalties, Trainer
from tests.lab.test_gptj import awake
from tests.lab.test_stack import CPU, SMALL, trained

LESS: dict[str, Any] = SMALL | {"nope": (), "favour_layers": "1", "strength": 0.5}
KINDS = ["none", "symbolic", "positional"]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in trainer.model.weights.items()}


def equal(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


@pytest.mark.parametrize("favour", ["symbolic", "positional"])
def test_the_penalty_is_the_mean_over_layers_heads_and_inputs(favour: Any) -> None:
    settings = TrainSettings(
        task="letter", favour=favour, **LESS | {"layers": 4, "favour_layers": "0,2-3", "nope": (1,)}
    )
    model = awake(GPTJShape(30, layers=4, heads=2, width=16, rotary=4, nope=(1,), positions=16))
    tokens = torch.randint(0, 30, (5, 7), generator=torch.Generator().manual_seed(0))
    penalties, states = Penalties([settings], CPU), list[LayerState]()
    model.logits(tokens, visit=states.append)
    model.logits(tokens, visit=penalties.visit)
    (found,) = penalties.after(torch.tensor([0]))
    each = [
        rs.exclusion(head_logits([states[layer]], 6)[0, row, head, :6, :6]).penalty(favour)
        for layer in (0, 2, 3)
        for row in range(5)
        for head in range(2)
    ]
    torch.testing.assert_close(found, 0.5 * torch.stack(each).mean(), rtol=1e-5, atol=0.0)


def test_each_model_of_a_stack_favours_what_it_would_have_favoured_alone() -> None:
    each = TrainSettings.several("paper", ["number", "letter"], 1, favour=KINDS, dropout=0.1, **LESS)
    assert [one.name for one in each[:3]] == ["number-0", "number-symbolic-0", "number-positional-0"]
    stack = trained(each)
    for settings, found in zip(each, stack.states(), strict=True):
        for name, value in trained(settings).states()[0].items():
            torch.testing.assert_close(found[name], value, atol=5e-6, rtol=0.0, msg=name)
    plain, *favoured = stack.model.each[:3]
    for model in favoured:
        differ = (
            model.weights["transformer.h.0.attn.qkv.weight"] - plain.weights["transformer.h.0.attn.qkv.weight"]
        ).abs()
        assert differ.max() > 1e-3


def test_nothing_changes_where_the_penalty_weighs_nothing_or_has_not_begun() -> None:
    """Bit for bit: what the penalty looks at disturbs nothing."""
    plain = trained(TrainSettings(task="letter", **SMALL | {"nope": ()}))
    assert plain.penalties is None
    for changes in ({"strength": 0.0}, {"favour_from": 20}):
        assert equal(trained(TrainSettings(task="letter", favour="symbolic", **LESS | changes)), plain)
    ended = trained(TrainSettings(task="letter", favour="symbolic", **LESS | {"favour_until": 1}))
    steady = trained(TrainSettings(task="letter", favour="symbolic", **LESS))
    assert not equal(ended, plain)
    assert not equal(ended, steady)
    assert not equal(steady, plain)


@pytest.mark.parametrize("favour", ["symbolic", "positional"])
def test_heads_become_what_is_favoured(favour: Any) -> None:
    def cost(kind: Any) -> float:
        own = SMALL | {"nope": ()} if kind == "none" else LESS | {"strength": 1.0}
        trainer = Trainer(TrainSettings(task="letter", favour=kind, **own), CPU)
        trainer.run_to(40)
        states: list[LayerState] = []
        with torch.no_grad():
            trainer.model.logits(trainer.tokens, visit=states.append)
        return float(rs.exclusion(head_logits(states[1:], 6)[..., :-1, :-1]).penalty(favour).mean())

    assert cost(favour) < 0.7 * cost("none")


def test_a_favoured_training_goes_on_where_it_was() -> None:
    settings = TrainSettings(task="letter", favour="positional", favour_until=15, **LESS)
    whole, first, second = (Trainer(settings, CPU) for _ in range(3))
    for stop in (10, 20):
        whole.run_to(stop)
    first.run_to(10)
    second.restore(first.states())
    second.run_to(20)
    assert equal(whole, second)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("how", ["by its formula", pytest.param("by the compiler", marks=pytest.mark.slow)])
def test_compiled_layers_show_their_queries_and_keys(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainSettings(task="letter", favour="symbolic", **LESS)
    expected, found = Trainer(settings, CPU), Trainer(settings, CPU)
    compile = torch.compile
    by_compiler = lambda part, **_: compile(part, backend="aot_eager", fullgraph=True)  # noqa: E731
    monkeypatch.setattr(torch, "compile", by_compiler if how == "by the compiler" else lambda part, **_: part)
    found.block = layer.compiled_block()
    for trainer in (expected, found):
        trainer.run_to(3)
    for name, value in weights(expected).items():
        torch.testing.assert_close(weights(found)[name], value, atol=1e-5, rtol=0.0, msg=name)
    assert not equal(found, Trainer(settings, CPU))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_the_captured_step_has_the_penalty(compiled: bool) -> None:
    """Products are in TF32 there, so that weights differ; what is learned does not."""
    sizes = {name: value for name, value in LESS.items() if name != "letters"}
    each = TrainSettings.several("paper", ["letter"], 1, favour=KINDS, **sizes | {"dropout": 0.0})
    device = torch.device("cuda")
    stack, there = Trainer(each, device, compiled=compiled), Trainer(each, CPU)
    for trainer in (stack, there):
        trainer.run_to(20)
    assert stack.warnings == []
    torch.testing.assert_close(stack.losses[:, :20].cpu(), there.losses[:, :20], atol=2e-2, rtol=0.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"favour": "neither"}, "unknown favour 'neither'; choose none, symbolic or positional"),
        ({"strength": 0.1}, "--strength means something with --favour symbolic or positional only"),
        (
            {"favour": "symbolic", "favour_layers": "3-x"},
            "'3-x' are no layers; give such as 4-11 or 0,2,4-6, or all",
        ),
        (
            {"favour": "symbolic", "favour_layers": "11-12"},
            "layer 12 cannot be favoured: it is beyond the last, 11",
        ),
        (
            {"favour": "symbolic", "favour_layers": [3], "nope": [3]},
            "layer 3 cannot be favoured: it does not rotate",
        ),
        ({"favour": "symbolic", "favour_layers": "9-4"}, "no layer would be favoured"),
        ({"favour": "symbolic", "favour_from": 9, "favour_until": 9}, "the penalty must begin before it ends"),
        ({"favour": "symbolic", "strength": -1.0}, "strength must be at least 0"),
        ({"task": "either", "hops": 2}, "the either task has 1 hop and a window of 0"),
    ],
)
def test_what_cannot_be_favoured_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RotoscopeError, match=problem.replace("(", r"\(")):
        rs.lab.train(changes.pop("task", "number"), "paper", **changes)


def test_several_kinds_and_what_is_stored() -> None:
    with pytest.raises(
        RotoscopeError, match="each kind to favour must be given once, found symbolic, symbolic"
    ):
        TrainSettings.several("mini", ["number"], 1, favour=["symbolic", "symbolic"])
    with pytest.raises(RotoscopeError, match="so it is trained by itself"):
        TrainSettings.several("mini", ["number", "either"], 1)
    plain, favoured = TrainSettings.several(
        "mini", ["either"], 1, favour=["none", "positional"], favour_layers=range(1, 3)
    )
    assert (plain.hops, plain.window, favoured.favoured) == (1, 0, (1, 2))
    assert not any("favour" in name for name in plain.stored())  # runs of versions without it are the same runs
    assert TrainSettings.read(favoured.stored()) == favoured


def test_a_stack_leaves_a_run_for_each_kind(tmp_path: Path) -> None:
    others = ("letters", "hops", "window")
    sizes = {name: value for name, value in SMALL.items() if name not in others} | {
        "nope": (),
        "steps": 4,
        "watch_every": 4,
    }
    made = rs.lab.train(
        "either", "paper", favour=["none", "symbolic"], out=tmp_path, show_progress=False, **sizes
    )
    assert sorted(place.name for place in tmp_path.iterdir() if place.is_dir()) == [
        "either-0",
        "either-symbolic-0",
    ]
    assert [run.run.settings.get("favour") for run in made] == [None, "symbolic"]
    assert made[0].test["hops"].tolist() == [1]
