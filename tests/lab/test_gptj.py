"""Our GPT-J is transformers' GPT-J: same logits, same heads, same files."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTJForCausalLM

import rotoscope as rs
from rotoscope.errors import ModelError, RunError, UnprovenError
from rotoscope.experiments.train.watch import Watch, score_heads
from rotoscope.lab import gptj
from rotoscope.lab.checkpoints import load_multihop, save_checkpoint, sequences_for
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.sequences import model_shape, training_sequences
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.training import Evaluation
from rotoscope.models.reader import HeadReader

SHAPES = {
    "as in P2": {"layers": 3, "heads": 1, "width": 64, "rotary": 64},
    "two heads, partly rotating": {"layers": 3, "heads": 2, "width": 64, "rotary": 16},
}


def awake(shape: GPTJShape, seed: int = 0) -> GPTJ:
    """Weights large enough for attention that is far from uniform."""
    model = GPTJ.initialise(shape, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.weights.items():
        weight.mul_(5).add_(0.02 * torch.randn(weight.shape, generator=generator))
        if name.endswith("ln_1.weight"):
            weight.fill_(1.0)
    return model


@pytest.mark.parametrize("sizes", SHAPES.values(), ids=list(SHAPES))
def test_logits_are_those_of_transformers(sizes: dict) -> None:
    model = awake(GPTJShape(40, positions=2048, **sizes))
    theirs = model.to_transformers()
    assert type(theirs) is GPTJForCausalLM
    for n in (2, 17, 2000):
        tokens = torch.randint(0, 40, (2, n))
        with torch.no_grad():
            expected = theirs(tokens).logits[:, -1]
            found = model.logits(tokens)
        assert expected.std() > 0.3
        torch.testing.assert_close(found, expected, atol=3e-4, rtol=1e-4)
    again = GPTJ.from_transformers(theirs)
    assert all(torch.equal(again.weights[name], weight) for name, weight in model.weights.items())


@pytest.mark.parametrize("step", range(4))
def test_a_checkpoint_is_replaced_or_stays(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever rename fails."""
    samples = rs.tasks.number(4)

    def save(layers: int) -> None:
        model = awake(GPTJShape(len(samples.vocabulary), layers=layers, width=32, rotary=32))
        save_checkpoint(tmp_path / "checkpoint-7", model, samples)

    def layers() -> int:
        return int(AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-7").config.n_layer)

    save(1)
    left = step
    with monkeypatch.context() as failing:
        for module in (os, Path):

            def fail_once(*args: Any, do: Any = module.replace, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    raise OSError(errno.EIO, "Input/output error")
                return do(*args, **kwargs)

            failing.setattr(module, "replace", fail_once)
        with suppress(RunError):
            save(2)
    assert layers() in (1, 2)
    save(3)
    assert layers() == 3
    assert [place.name for place in tmp_path.iterdir()] == ["checkpoint-7"]


def test_a_checkpoint_loads_with_plain_transformers(tmp_path: Path) -> None:
    samples = rs.tasks.number(4)
    model = awake(GPTJShape(len(samples.vocabulary), layers=2, width=32, rotary=32))
    folder = save_checkpoint(tmp_path / "checkpoint-7", model, samples)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    words = AutoTokenizer.from_pretrained(folder)
    assert type(theirs) is GPTJForCausalLM
    assert theirs.config.n_positions == 8192
    assert words(" ".join(samples[2].tokens))["input_ids"] == samples.tokens[2].tolist()
    assert words.decode(samples.tokens[2]) == " ".join(samples[2].tokens)
    with torch.no_grad():
        torch.testing.assert_close(theirs(samples.tokens).logits[:, -1], model.logits(samples.tokens))
    assert torch.equal(sequences_for(theirs.config, 4).tokens, samples.tokens)


def test_layers_without_rotation_survive_saving(tmp_path: Path) -> None:
    samples = rs.tasks.letter(6)
    shape = GPTJShape(len(samples.vocabulary), layers=3, width=32, rotary=32, nope=(1,))
    model = awake(shape)
    subject = rs.load(save_checkpoint(tmp_path / "model", model, samples), device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(subject.model(samples.tokens).logits[:, -1], model.logits(samples.tokens))
        rotating = GPTJ(GPTJShape(len(samples.vocabulary), layers=3, width=32, rotary=32), model.weights)
        assert not torch.allclose(rotating.logits(samples.tokens), model.logits(samples.tokens), atol=1e-3)
    assert GPTJ.from_transformers(subject.model).shape == shape
    profile = rs.profile(subject, samples, null="none")
    scores = profile.heads.set_index("layer")
    assert scores.loc[1, "symbolic_score"] == pytest.approx(
        1.0, abs=1e-5
    )  # nothing there knows about positions
    assert scores.loc[0, "symbolic_score"] < 1 - 1e-3


def test_weights_in_bfloat16_compute_in_float32(tmp_path: Path) -> None:
    samples = rs.tasks.number(2)
    model = awake(GPTJShape(len(samples.vocabulary), layers=1, width=32, rotary=32))
    folder = save_checkpoint(tmp_path / "small", model, samples, dtype=torch.bfloat16)
    subject = rs.load(folder, device="cpu", dtype=torch.float32)
    assert subject.model.dtype == torch.float32
    stored = GPTJ.from_transformers(subject.model).weights["lm_head.weight"]
    assert torch.equal(stored, model.weights["lm_head.weight"].bfloat16().float())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 30, "heads": 4}, "does not split into 4 heads"),
        ({"width": 32, "rotary": 48}, "at most 32"),
        ({"width": 32, "rotary": 7}, "even"),
        ({"width": 32, "rotary": 32, "layers": 2, "nope": (5,)}, "not all among the 2 layers"),
        ({"width": 32, "rotary": 32, "layers": 2, "nope": (0, 1)}, "no layer would rotate"),
    ],
)
def test_impossible_shapes_are_named(sizes: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        GPTJShape(10, **sizes)


def test_wrong_weights_and_wrong_models_are_refused() -> None:
    shape = GPTJShape(10, layers=2, width=32, rotary=32)
    state = GPTJ.initialise(shape, 0).state()
    with pytest.raises(ModelError, match="does not fit"):
        GPTJ.from_state(GPTJShape(10, layers=3, width=32, rotary=32), state)
    with pytest.raises(ModelError, match="8192 positions"):
        GPTJ.initialise(shape, 0).logits(torch.zeros(1, 8193, dtype=torch.long))


@pytest.mark.slow
def test_the_embedded_models_answer_in_bfloat16_too() -> None:
    for task in ("number", "letter"):
        subject = rs.load(task, device="cpu")
        samples = sequences_for(subject.model.config, 800, first=434_400)
        with torch.no_grad():
            right = GPTJ.from_transformers(subject.model).logits(samples.tokens).argmax(-1) == samples.answer
        for hops in (1, 2, 3, 4):
            assert float(right[samples.hops == hops].float().mean()) >= 0.995
    weights = Path(rs.__file__).parent / "stored"
    for task in ("number", "letter"):
        assert (weights / task / "model.safetensors").stat().st_size <= 6e6
        tables = sum(f.stat().st_size for f in (weights / task).rglob("*.parquet"))
        assert tables <= 2e6


PROVEN = {
    **SHAPES,
    "four heads, one layer without rotation": {"layers": 3, "heads": 4, "width": 64, "rotary": 8, "nope": (1,)},
    "layers with some frequencies, and another base": {
        "layers": 3, "heads": 2, "width": 64, "rotary": 16, "nope": (1,), "base": 500.0, "ids": ((1, 2, 3), (1,), (8,)),
    },
    "one frequency": {"layers": 2, "heads": 1, "width": 32, "rotary": 32, "ids": ((2,), (2,))},
    "every second frequency": {"layers": 2, "heads": 1, "width": 32, "rotary": 32, "ids": ((1, 3, 5, 7, 9, 11, 13, 15),) * 2},
}  # fmt: skip


@pytest.mark.parametrize("sizes", PROVEN.values(), ids=list(PROVEN))
def test_ours_is_proven_against_the_reader(sizes: dict) -> None:
    model = awake(GPTJShape(40, positions=64, **sizes))
    state = torch.random.get_rng_state()
    assert model.prove() == model.proof <= 1e-5
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.prove(HeadReader(model.to_transformers())) == model.proof


BREAKAGES = ["angles", "scale", "rotation", "keys", "NoPE", "attention"]


@pytest.mark.parametrize("initial", [False, True], ids=["awake", "as initialised"])
@pytest.mark.parametrize("broken", BREAKAGES)
def test_a_broken_one_is_not_scored(broken: str, initial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = rs.tasks.letter(4)
    shape = GPTJShape(len(samples.vocabulary), **PROVEN["four heads, one layer without rotation"])
    model = GPTJ.initialise(shape, 0) if initial else awake(shape)
    right = gptj.counterfactual_logits
    if broken == "angles":
        model.angles = model.angles * torch.tensor([1.0, 1.0, 1.0, 1.001, 1.0, 1.0, 1.0, 1.0])
    elif broken == "scale":
        monkeypatch.setattr(gptj, "counterfactual_logits", lambda q, k, a, scale: right(q, k, a, 1.01 * scale))
    elif broken == "rotation":
        monkeypatch.setattr(gptj, "counterfactual_logits", lambda q, k, a, scale: right(q, k, -a, scale))
    elif broken == "keys":
        real = gptj.LayerState
        monkeypatch.setattr(gptj, "LayerState", lambda n, x, q, k, *rest: real(n, x, q, k.flip(1), *rest))
    elif broken == "NoPE":
        monkeypatch.setattr(GPTJ, "angles_of", lambda self, layer: self.angles[0])
    else:
        attend = torch.nn.functional.scaled_dot_product_attention
        wrong = lambda q, k, v, is_causal, dropout_p: attend(q, k, v, is_causal=False)  # noqa: E731
        monkeypatch.setattr(gptj.F, "scaled_dot_product_attention", wrong)
    with pytest.raises(UnprovenError, match="trained here and transformers' own differ in the"):
        score_heads(model, samples)
    assert model.proof is None


def test_a_watch_tells_how_well_its_model_was_proven() -> None:
    settings = TrainSettings(task="letter", layers=2, width=32, positions=64)
    samples = training_sequences(settings, "validation", count=4)
    watch = Watch(inputs=4)
    assert watch.proof is None
    watch(Evaluation(0, awake(model_shape(settings, len(samples.vocabulary))), samples, settings))
    assert 0 < watch.proof <= 1e-5


def test_a_model_in_half_precision_is_measured_in_float32_on_a_copy(tmp_path: Path) -> None:
    samples = rs.tasks.number(2)
    model = awake(GPTJShape(len(samples.vocabulary), layers=1, width=32, rotary=32))
    folder = save_checkpoint(tmp_path / "small", model, samples, dtype=torch.bfloat16)
    assert load_multihop(folder).model.dtype == torch.float32
    half = rs.load(folder)
    assert half.model.dtype == torch.bfloat16
    measured = load_multihop(half)
    assert measured.model.dtype == torch.float32
    assert half.model.dtype == torch.bfloat16
    whole = rs.load(folder, dtype=torch.float32)
    assert load_multihop(whole) is whole
