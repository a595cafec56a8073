"""What the monitor adds to a training of 135M weights: 8 prompts of 512 tokens every 500 steps, in steps of the same run.

python3 -m benchmarks.monitor
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

import rotoscope as rs
from benchmarks.floor import wait
from benchmarks.llama import Shape, make_model
from benchmarks.measure import Report

SMALL = Shape("135m", 30, 576, 9, 3, 64, 1536, vocabulary=49_152, positions=8192)
"""SmolLM2's."""
PROMPTS, TOKENS, EVERY, BAR = 8, 512, 500, 0.01
BATCH = {"cpu": 1, "cuda": 8}
"""Sequences of a training step: few, so that the monitor looks dear."""
STEPS = {"cpu": 3, "cuda": 30}


def main(shape: Shape = SMALL, device: torch.device | None = None) -> float:
    """The share of the time that is added, the trained weights being the same."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(shape, device).float().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(3, shape.vocabulary, (PROMPTS, min(TOKENS, shape.positions)))
    monitor = rs.HeadMonitor(tokens, every=[0])
    monitor.step(model, 0)  # proves the reading, once in a training
    batch = tokens[: BATCH[device.type]].to(device)
    _train(model, optimiser, batch)  # the first step makes the optimiser's memory
    steps, looks = [], []
    for _ in range(STEPS[device.type]):
        wait(device)
        began = time.perf_counter()
        _train(model, optimiser, batch)
        wait(device)
        steps.append(time.perf_counter() - began)
    for look in range(1, 4):
        began = time.perf_counter()
        monitor.step(model, look, now=True)
        looks.append(time.perf_counter() - began)
    step_s, look_s = median(steps), median(looks)
    share = look_s / (EVERY * step_s)
    title = (
        f"the monitor: {PROMPTS} prompts of {TOKENS} tokens every {EVERY} steps, {shape.name} on {device.type}"
    )
    report = Report(title, "sequences a step", "step", "look", "looks a step", "adds")
    report.row(
        str(len(batch)), f"{step_s:.3f} s", f"{look_s:.2f} s", f"{look_s / step_s:.2f}", f"{share:.3%}",
        target=f"< {BAR:.0%}", met=share < BAR,
    )  # fmt: skip
    report.show()
    return share


def _train(model: Any, optimiser: Any, batch: torch.Tensor) -> None:
    """A step in mixed precision, as trainings are; on a CPU in float32."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=batch.device.type == "cuda"):
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()


if __name__ == "__main__":
    main()
