"""What it takes to tell which model this is: a checksum of every bit of its weights, in seconds and in forward passes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import rotoscope as rs
from benchmarks.gpu import EIGHT
from benchmarks.llama import forward, make_batch, make_model
from benchmarks.measure import Report, best_of
from rotoscope.models.identity import model_identity

MOST_CPU_S, MOST_GPU_S = 0.5, 0.3
PROMPTS, TOKENS = 8, 512


def main() -> None:
    report = Report(
        "identity of a model", "model", "numbers", "seconds", f"forward passes of {PROMPTS} x {TOKENS}"
    )
    smollm2 = rs.load("smollm2", device="cpu").model
    _row(report, "SmolLM2-135M, CPU", smollm2, MOST_CPU_S)
    if torch.cuda.is_available():
        _row(report, "8B shape, GPU", make_model(EIGHT, torch.device("cuda")), MOST_GPU_S)
    report.show()


def _row(report: Report, name: str, model: Any, most_seconds: float) -> None:
    device = next(model.parameters()).device
    tokens = make_batch(model.config.vocab_size, PROMPTS, TOKENS).tokens.to(device)

    def run_forward() -> None:
        forward(model, tokens)
        if device.type == "cuda":
            torch.cuda.synchronize()

    seconds, passes = best_of(3, partial(model_identity, model), run_forward)
    numbers = sum(weight.numel() for weight in model.parameters())
    report.row(
        name, f"{numbers / 1e9:.3f} billion", f"{seconds:.2f}", f"{seconds / passes:.2f}",
        target=f"<= {most_seconds} s", met=seconds <= most_seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
