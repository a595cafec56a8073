"""Small trainings to be monitored: a Llama of three layers, random tokens, the standard Trainer or a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
import transformers as tf

from tests.tiny_models import GROUPED

STEPS = 6
TOKENS = torch.randint(3, 128, (3, 12), generator=torch.Generator().manual_seed(1))
"""What is monitored with."""


def fresh(**changes: Any) -> Any:
    """A model with dropout: random numbers that are drawn elsewhere would show in its weights."""
    torch.manual_seed(0)
    return tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED | {"attention_dropout": 0.1} | changes))


def data(count: int = 32) -> list[dict[str, torch.Tensor]]:
    rows = torch.randint(3, 128, (count, 16), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder: Path, model: Any, *callbacks: Any, **changes: Any) -> tf.Trainer:
    """transformers' own, on a CPU."""
    usual = {
        "max_steps": STEPS,
        "logging_steps": 100,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    arguments = tf.TrainingArguments(
        str(folder / "trained"), per_device_train_batch_size=4, use_cpu=True, seed=1, **usual | changes
    )
    return tf.Trainer(model, arguments, train_dataset=data(), callbacks=list(callbacks))


def loop(model: Any, monitor: Any = None, steps: int = STEPS, first: int = 0, **how: Any) -> Any:
    """A loop of one's own."""
    rows = torch.stack([row["input_ids"] for row in data()])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for step in range(first, steps):
        if monitor is not None and step == first:
            monitor.step(model, step)
        torch.manual_seed(step)
        batch = rows[torch.randint(len(rows), (4,))]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how.get("autocast", False)):
            model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if monitor is not None:
            monitor.step(model, step + 1)
    return model


def prompt_tuned(model: Any) -> Any:
    """A model with virtual tokens before every prompt."""
    about = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    return peft.get_peft_model(model, about)


class FullyShardedDataParallel(torch.nn.Module):
    """By its name what spreads weights over processes."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module


sharded = FullyShardedDataParallel


def weights(model: Any) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def equal(one: Any, other: Any) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
