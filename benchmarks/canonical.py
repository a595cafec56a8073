"""The grid of toy heads trained as one batch, against a loop over its models, on one CPU thread."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from benchmarks.measure import Report
from rotoscope.lab.toy import ToyHeads, ToySettings

STEPS = 50


def train(settings: ToySettings) -> tuple[ToyHeads, float]:
    heads = ToyHeads(settings)
    optimiser = heads.optimiser()
    began = time.perf_counter()
    for step in range(STEPS):
        heads.step(optimiser, step)
    return heads, time.perf_counter() - began


def main() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    report = Report(
        f"63 toy heads (21 angles x 3 seeds), {STEPS} steps on one CPU thread: one batched model against a loop",
        "task", "batched", "loop", "ratio", "largest parameter difference",
    )  # fmt: skip
    for task in ("index", "retrieval"):
        settings = ToySettings(task, tuple((10 ** (-k / 4),) for k in range(21)))
        train(replace(settings, angles=settings.angles[:1]))  # warm up
        together, batched = train(settings)
        loop = difference = 0.0
        for k, planes in enumerate(settings.angles):
            for seed in range(settings.seeds):
                alone, spent = train(_one(settings, planes, seed))
                loop += spent
                for name, value in together.parameters.items():
                    mine = value.detach()[:, k * settings.seeds + seed]
                    difference = max(
                        difference, float((mine - alone.parameters[name].detach()[:, -1]).abs().max())
                    )
        ratio = loop / batched
        report.row(task, f"{batched:.2f} s", f"{loop:.2f} s", f"{ratio:.0f}x", f"{difference:.1e}",
                   target=">= 12x, <= 1e-5", met=ratio >= 12 and difference <= 1e-5)  # fmt: skip
    report.show()
    torch.set_num_threads(before)


def _one(settings: ToySettings, planes: tuple[float, ...], seed: int) -> ToySettings:
    return replace(settings, angles=(planes,), seeds=1, first=seed)
