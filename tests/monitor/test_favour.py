"""A loss term that favours a kind in anybody's training: what it is, its gradients, and where it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import ModelError, RotoscopeError
from rotoscope.models.layer import LayerReading
from rotoscope.models.reader import HeadReader
from rotoscope.monitor.steering_penalty import Favour
from tests.monitor.trained import data, fresh, trainer
from tests.tiny_models import tiny, tokens


def favoured(favour: Favour, model: Any, batch: torch.Tensor, **more: Any) -> torch.Tensor:
    with favour:
        model(input_ids=batch, **more)
    return favour.penalty


def by_hand(model: Any, batch: torch.Tensor, kind: Any, layers: list[int], query: int) -> torch.Tensor:
    """The mean over layers, heads and rows, from the whole counterfactual matrix."""
    read: list[LayerReading] = []
    HeadReader(model).read(batch, (query,), read.append)
    found = []
    for layer in layers:
        heads = read[layer].at(0)
        seen = [p for p in range(query) if bool(heads.visible[p])]
        found.append(rs.exclusion(heads.logits()[:, :, seen][..., seen]).penalty(kind))
    return torch.stack(found).mean()


@pytest.mark.parametrize("name", ["llama", "qwen2", "gptj", "gemma2"])
def test_the_penalty_is_that_of_the_heads_that_are_read(name: str) -> None:
    model, batch = tiny(name), tokens(2, 12)
    for kind, layers, queries in (("symbolic", [0, 2], None), ("positional", [1], (8,))):
        found = favoured(Favour(model, kind, layers=layers, strength=0.5, queries=queries), model, batch)
        expected = 0.5 * by_hand(model, batch, kind, layers, 11 if queries is None else 8)
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gptj"])
@pytest.mark.parametrize("kind", ["symbolic", "positional"])
def test_gradients_are_those_of_finite_differences(name: str, kind: Any) -> None:
    """Along a random direction of all weights; parts of these models compute in float32 even in double precision."""
    model, batch = tiny(name, num_hidden_layers=2, n_layer=2).double(), tokens(2, 7)
    favour = Favour(model, kind, strength=1.0)
    favoured(favour, model, batch).backward()
    dice = torch.Generator().manual_seed(1)
    weights = list(model.parameters())
    ways = [torch.randn(weight.shape, generator=dice, dtype=torch.float64) for weight in weights]
    slope = sum(float((w.grad * way).sum()) for w, way in zip(weights, ways, strict=True) if w.grad is not None)
    size = sum(float(weight.grad.square().sum()) for weight in weights if weight.grad is not None) ** 0.5
    sides: list[float] = []
    with torch.no_grad():
        for move in (1e-4, -2e-4):
            for weight, way in zip(weights, ways, strict=True):
                weight.add_(way, alpha=move)
            sides.append(float(favoured(favour, model, batch)))
    assert size > 0.1
    assert (sides[0] - sides[1]) / 2e-4 == pytest.approx(slope, abs=1e-3 * size)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_the_training_itself_is_what_it_was(how: str) -> None:
    """What the model says inside, its gradients without the penalty, and how it attends afterwards."""
    batch, said = tokens(2, 9), []
    for watched in (False, True):
        model = tiny("llama")
        model.set_attn_implementation(how)
        favour = Favour(model, "symbolic")
        if watched:
            with favour:
                out = model(input_ids=batch, labels=batch)
        else:
            out = model(input_ids=batch, labels=batch)
        out.loss.backward()
        assert model.config._attn_implementation == how
        assert not any(module._forward_pre_hooks for module in model.modules())
        said.append([out.logits, *(weight.grad for weight in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*said, strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_padding_is_no_token(side: str, how: str) -> None:
    model = tiny("llama")
    model.set_attn_implementation(how)
    favour = Favour(model, "positional", strength=1.0)
    rows = [tokens(1, 9, seed=1), tokens(1, 6, seed=2)]
    alone = torch.stack([favoured(favour, model, row) for row in rows]).mean()
    pad = torch.zeros(1, 3, dtype=torch.long)
    parts = (pad, rows[1]) if side == "left" else (rows[1], pad)
    batch, mask = torch.cat((rows[0], torch.cat(parts, 1))), torch.ones(2, 9, dtype=torch.long)
    mask[1, slice(0, 3) if side == "left" else slice(6, 9)] = 0
    torch.testing.assert_close(favoured(favour, model, batch, attention_mask=mask), alone, rtol=1e-4, atol=1e-6)
    with pytest.raises(RotoscopeError, match="are padding in some rows"):
        favoured(
            Favour(model, "symbolic", queries=[8 if side == "right" else 2]), model, batch, attention_mask=mask
        )


def test_adapters_are_favoured_and_nothing_else_moves() -> None:
    inside = fresh(attention_dropout=0.0)
    model = peft.get_peft_model(inside, peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"]))
    favoured(Favour(model, "symbolic", layers=[1]), model, tokens(2, 9)).backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert moved
    assert all("lora_" in name for name in moved)
    assert any("layers.1" in name for name in moved)
    assert not any("layers.2" in name for name in moved)


def test_rows_that_are_padded_alike_are_asked_at_their_last_token() -> None:
    model, batch = tiny("llama", sharp=3.0), tokens(2, 9)
    favour, pad = Favour(model, "symbolic", strength=1.0), (0, 3)
    mask = torch.nn.functional.pad(torch.ones_like(batch), pad)
    padded = favoured(favour, model, torch.nn.functional.pad(batch, pad), attention_mask=mask)
    torch.testing.assert_close(padded, favoured(favour, model, batch), rtol=1e-4, atol=1e-6)
    with pytest.raises(RotoscopeError, match="are padding in some rows"):
        favoured(
            Favour(model, "symbolic", queries=[10]),
            model,
            torch.nn.functional.pad(batch, pad),
            attention_mask=mask,
        )


class Favouring(tf.Trainer):
    """The few lines that the documentation shows."""

    favour: Favour

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **more)
        with self.favour:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        loss = loss + self.favour.penalty / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss


def test_in_transformers_own_trainer(tmp_path: Path) -> None:
    """Heads end closer to what is favoured, with accumulated gradients as well."""
    costs = {}
    for kind in ("symbolic", "positional"):
        model = tiny("llama", sharp=3.0)
        usual = trainer(tmp_path, model, learning_rate=0.01, gradient_accumulation_steps=2)
        training = Favouring(model, usual.args, train_dataset=data())
        training.favour = Favour(model, kind, strength=1.0)
        training.train()
        with torch.no_grad():
            model.eval()
            costs[kind] = float(favoured(Favour(model, "symbolic", strength=1.0), model, tokens(4, 16)))
    assert costs["symbolic"] < 0.6 * costs["positional"]


def test_what_cannot_be_favoured_is_refused() -> None:
    model, batch = tiny("llama"), tokens(2, 9)
    with pytest.raises(RotoscopeError, match="no forward pass was overheard"):
        _ = Favour(model, "symbolic").penalty
    with pytest.raises(RotoscopeError, match="unknown kind 'none' to favour"):
        Favour(model, "none")  # type: ignore[arg-type]
    with pytest.raises(RotoscopeError, match=r"layers must be among 0 to 2, found \[2, 3\]"):
        Favour(model, "symbolic", layers=(2, 3))
    with pytest.raises(RotoscopeError, match=r"at least two tokens before them to compare, found \[1\]"):
        Favour(model, "symbolic", queries=(1,))
    with pytest.raises(RotoscopeError, match="must be one of the 9 tokens"):
        favoured(Favour(model, "symbolic", queries=(9,)), model, batch)
    favour = Favour(model, "symbolic")
    model.train()
    model.gradient_checkpointing_enable()
    with pytest.raises(ModelError, match="gradient checkpointing"), favour:
        pass
