"""Every setting of a training does what it says: steps against a plain loop, dropout by its draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.trainer import Trainer

CPU = torch.device("cpu")
SMALL = TrainSettings(
    task="letter", hops=1, target=4, window=2, alphabet=4, digits=2, layers=2, width=16, positions=16, steps=6, batch=4,
    warmup=2, train_sequences=16, validation_sequences=4, test_sequences=4, learning_rate=0.01, dropout=0.0,
)  # fmt: skip


def trained(settings: TrainSettings, *stops: int) -> Trainer:
    trainer = Trainer(settings, CPU)
    for stop in stops or (settings.steps,):
        trainer.run_to(stop)
    return trainer


def by_hand(settings: TrainSettings) -> dict[str, torch.Tensor]:
    """Linear warm-up and decay, AdamW written out: moments, their correction, decay of the weights themselves."""
    trainer = Trainer(settings, CPU)
    weights = {name: weight.detach().double() for name, weight in trainer.model.weights.items()}
    first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    slow, fast = settings.betas
    for step in range(settings.steps):
        for name, weight in trainer.model.weights.items():
            weight.data.copy_(weights[name])
            weight.grad = None
        rows = trainer.order[step * settings.batch : (step + 1) * settings.batch]
        F.cross_entropy(trainer.model.logits(trainer.tokens[rows]), trainer.answers[rows]).backward()
        rise = (step + 1) / (settings.warmup + 1)
        rate = settings.learning_rate * min(rise, (settings.steps - step) / (settings.steps - settings.warmup))
        for name, weight in trainer.model.weights.items():
            slope = weight.grad.double()
            first[name] = slow * first[name] + (1 - slow) * slope
            second[name] = fast * second[name] + (1 - fast) * slope**2
            size = (second[name] / (1 - fast ** (step + 1))).sqrt() + 1e-8
            kept = weights[name] * (1 - rate * settings.weight_decay)
            weights[name] = kept - rate * first[name] / (1 - slow ** (step + 1)) / size
    return weights


@pytest.mark.parametrize(
    "changes",
    [{}, {"weight_decay": 0.5}, {"betas": (0.5, 0.9)}, {"learning_rate": 0.02}, {"warmup": 4}, {"batch": 3}],
    ids=lambda changes: next(iter(changes), "as they are"),
)
def test_steps_are_those_of_a_plain_loop(changes: dict) -> None:
    settings = replace(SMALL, **changes)
    found, expected = trained(settings).model.weights, by_hand(settings)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name].detach().double(), weight, atol=2e-4, rtol=0.0, msg=name)


def one_sequence(**changes: object) -> TrainSettings:
    """The same sequence in every step, and weights that never change: only dropout can change the loss."""
    return replace(
        SMALL,
        train_sequences=1,
        batch=1,
        steps=6,
        learning_rate=0.0,
        weight_decay=0.0,
        **{"dropout": 0.5, **changes},
    )


def test_dropout_is_drawn_anew_in_every_step_of_every_interval() -> None:
    losses = trained(one_sequence(), 1, 2, 4, 6).losses.tolist()
    assert len(set(losses)) == 6
    assert len(set(trained(one_sequence(dropout=0.0), 1, 2, 4, 6).losses.tolist())) == 1


def test_dropout_draws_are_those_of_the_seed() -> None:
    """The same weights and the same sequence: what differs is what another seed drops."""
    losses = []
    for seed in (0, 0, 1):
        trainer = Trainer(one_sequence(), CPU)
        trainer.settings = one_sequence(seed=seed)
        trainer.run_to(6)
        losses.append(trainer.losses)
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


@pytest.mark.parametrize("name", TrainSettings.presets)
def test_every_preset_uses_every_training_setting(name: str) -> None:
    """What the small preset leaves out, no quick look at it would ever see go wrong."""
    settings, paper = TrainSettings.preset(name), TrainSettings.preset("paper")
    for same in ("dropout", "betas", "weight_decay", "heads", "rotary", "nope", "checkpoints", "watch_every"):
        assert getattr(settings, same) == getattr(paper, same)
    assert settings.dropout > 0
    assert settings.weight_decay > 0
    assert all(0 < beta < 1 for beta in settings.betas)
    assert 0 < settings.warmup < settings.steps
    assert settings.hops > 1
    assert settings.layers > 1
    assert settings.steps * settings.batch > settings.train_sequences  # more than one epoch
    assert settings.validation_sequences > 0
    assert len(settings.checkpoint_steps) > 2
