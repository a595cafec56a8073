"""Several models trained as one: each is what it would have been alone, and leaves a run like any other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.lab import training
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.stacked_layer import block
from rotoscope.lab.trainer import Trainer
from tests.lab.test_gptj import awake

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "hops": 1, "target": 4, "window": 2, "alphabet": 4, "digits": 2, "letters": 5, "layers": 2, "heads": 2, "rotary": 4,
    "nope": (1,), "width": 16, "positions": 16, "steps": 40, "batch": 4, "warmup": 2, "train_sequences": 16,
    "validation_sequences": 8, "test_sequences": 8, "learning_rate": 0.01, "watch_every": 10, "checkpoints": 2,
}  # fmt: skip
BOTH = ["number", "letter"]


def trained(settings: Any) -> Trainer:
    trainer = Trainer(settings, CPU)
    for stop in (5, 20):
        trainer.run_to(stop)
    return trainer


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_each_model_is_what_it_would_have_been_alone(dropout: float) -> None:
    """Two tasks, whose vocabularies differ, with two seeds: weights, moments and losses after 20 steps."""
    each = TrainSettings.several("paper", BOTH, 2, **SMALL, dropout=dropout)
    stack = trained(each)
    for settings, found in zip(each, stack.states(), strict=True):
        alone = trained(settings).states()[0]
        assert alone.keys() == found.keys()
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value, atol=5e-6, rtol=0.0, msg=name)
    first, second, *_ = stack.model.each
    for name, weight in stack.model.weights.items():
        own = first.weights[name]
        assert (own - second.weights[name]).abs().max() > 1e-3, f"{name} is the same with every seed"
        assert weight[0, len(own) :].count_nonzero() == 0  # words that fill up the shorter vocabulary
    assert len(first.weights["lm_head.bias"]) < stack.model.shape.vocabulary


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler looks at all of a tensor
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch's compiler imports
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_each_model_learns_what_it_would_have_learned_alone(compiled: bool) -> None:
    """Products are in TF32 there, so that weights differ; what is learned does not."""
    each = TrainSettings.several("paper", BOTH, 2, **SMALL, dropout=0.0)
    device = torch.device("cuda")
    stack = Trainer(each, device, compiled=compiled)
    stack.run_to(20)
    assert stack.warnings == []
    for k, settings in enumerate(each):
        alone = Trainer(settings, device, compiled=compiled)
        alone.run_to(20)
        torch.testing.assert_close(stack.losses[k, :20], alone.losses[:20], atol=2e-2, rtol=0.0)


def test_a_stack_says_what_its_models_say() -> None:
    shape = GPTJShape(30, layers=3, heads=2, width=32, rotary=8, nope=(1,), positions=32)
    models = [awake(shape, 0), awake(replace(shape, vocabulary=20), 1), awake(shape, 2)]
    tokens = torch.randint(0, 20, (3, 5, 11), generator=torch.Generator().manual_seed(0))
    found = GPTJ.stack(models).logits(tokens)
    for model, own, said in zip(models, tokens, found, strict=True):
        torch.testing.assert_close(said[:, : model.shape.vocabulary], model.logits(own), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("how", ["by its formula", pytest.param("by the compiler", marks=pytest.mark.slow)])
def test_a_layer_that_is_compiled_is_the_same_layer(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = awake(GPTJShape(30, layers=2, heads=2, width=32, rotary=8, nope=(1,), positions=32))
    tokens = torch.randint(0, 30, (5, 11), generator=torch.Generator().manual_seed(0))
    expected = model.logits(tokens)
    layer = torch.compile(block, backend="aot_eager", fullgraph=True) if how == "by the compiler" else block
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(model.logits(tokens, block=layer), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_without_a_compiler_layers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    trainer = Trainer(TrainSettings(task="letter", **SMALL), CPU)
    trainer._compile()
    assert trainer.block is block
    (warning,) = trainer.warnings
    assert warning.startswith("layers could not be compiled (")
    trainer.restore(Trainer(trainer.settings, CPU).states())
    trainer.run_to(5)
    expected = Trainer(trainer.settings, CPU)
    expected.run_to(5)
    assert torch.equal(trainer.losses, expected.losses)


class Stop(Exception):
    """Ends a run in the middle."""


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint-40" / "model.safetensors")


def test_killed_among_its_models_it_goes_on_from_where_all_were_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when the number model had been saved at step 30, and the letter model at step 20."""
    how: dict[str, Any] = {"device": "cpu", **SMALL}
    whole = rs.lab.train(BOTH, "paper", out=tmp_path / "whole", **how)
    save = training._save
    monkeypatch.setattr(training, "SAVING", math.inf)  # a state at every evaluation

    def saving(one: Any, point: int, state: Any) -> None:
        if point >= 30 and one.settings.task == "letter":
            raise Stop
        save(one, point, state)

    monkeypatch.setattr(training, "_save", saving)
    with pytest.raises(Stop):
        rs.lab.train(BOTH, "paper", out=tmp_path / "killed", **how)
    monkeypatch.setattr(training, "_save", save)
    states = [
        sorted(file.stem for file in tmp_path.glob(f"killed/{task}-0/pieces/*/step-*.safetensors"))
        for task in BOTH
    ]
    assert [found[-1] for found in states] == ["step-00000030", "step-00000020"]
    resumed = rs.lab.train(BOTH, "paper", out=tmp_path / "killed", **how)
    for one, other in zip(whole, resumed, strict=True):
        assert other.run.details["resumed_at"] == 20
        assert other.run.warnings == one.run.warnings
        pd.testing.assert_frame_equal(other.metrics, one.metrics)
        weights = last_weights(other.folder)
        assert all(torch.equal(weights[name], value) for name, value in last_weights(one.folder).items())
        lines = (other.folder / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == len(set(lines)) == 5


def test_its_folders_are_runs_like_any_other(tmp_path: Path) -> None:
    how: dict[str, Any] = {"device": "cpu", "on_evaluate": rs.experiments.Watch(4), **SMALL, "steps": 10}
    runs = rs.lab.train(BOTH, "paper", seeds=2, seed=3, out=tmp_path / "runs", **how)
    assert [run.folder.name for run in runs] == ["number-3", "number-4", "letter-3", "letter-4"]
    del how["letters"]  # meant for the other task
    alone = rs.lab.train("letter", "paper", seed=4, out=tmp_path / "alone", **how)
    found = rs.open(tmp_path / "runs" / "letter-4")
    assert found.run.settings == alone.run.settings
    assert found.run.details["trained_as_one"] == 4
    assert 0 < found.run.proof.largest_difference < 1e-5
    pd.testing.assert_frame_equal(rs.dynamics(found).at(), rs.dynamics(alone).at(), atol=1e-4, rtol=0.0)
    assert rs.load(found.folder, device="cpu").model.config.vocab_size == alone.model.shape.vocabulary
    written = (found.folder / "run.json").read_text()
    rs.lab.train("letter", "paper", seed=4, out=found.folder, **how)
    assert (found.folder / "run.json").read_text() == written


def test_only_what_is_not_finished_is_trained(tmp_path: Path) -> None:
    how: dict[str, Any] = {"device": "cpu", "out": tmp_path / "runs", **SMALL, "steps": 2}
    (first, _) = rs.lab.train(BOTH, "paper", **how)
    written = (first.folder / "run.json").read_text()
    found = rs.lab.train(BOTH, "paper", seeds=2, **how)
    assert [(run.task, run.run.settings["seed"]) for run in found] == [
        ("number", 0),
        ("number", 1),
        ("letter", 0),
        ("letter", 1),
    ]
    assert (first.folder / "run.json").read_text() == written
    assert [run.run.details["trained_as_one"] for run in found] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (["number", "number"], {}, "each task must be given once, found number, number"),
        ([], {}, "each task must be given once, found none"),
        ("number", {"seeds": 0}, "seeds must be at least 1, found 0"),
        ("number", {"seeds": 2, "seed": 2**32 - 1}, "seed must be at most"),
        (["letter"], {"letters": 9}, "letters means something for number only, not for letter"),
        (["number", "words"], {}, "unknown task 'words'"),
    ],
)
def test_what_cannot_be_trained_as_one_is_refused(
    tmp_path: Path, task: Any, changes: dict, message: str
) -> None:
    with pytest.raises(RotoscopeError, match=message):
        rs.lab.train(task, "mini", out=tmp_path / "runs", device="cpu", **changes)
    assert not (tmp_path / "runs").exists()


def test_a_run_is_no_place_for_several(tmp_path: Path) -> None:
    rs.lab.train("number", "paper", out=tmp_path, device="cpu", **SMALL | {"steps": 1})
    with pytest.raises(RunError, match="several models need a folder for their runs"):
        rs.lab.train(BOTH, "paper", out=tmp_path, device="cpu", **SMALL | {"steps": 1})
