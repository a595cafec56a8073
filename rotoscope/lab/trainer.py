"""One training step after the other: a model, its optimiser, and the order of its data.

The same code runs on a CPU and on a GPU; there the whole step, from picking the batch to the optimiser, is captured once
as a CUDA graph and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
import torch
from torch.nn import functional as F

from rotoscope.lab.gptj import GPTJ
from rotoscope.lab.sequences import model_shape, training_sequences
from rotoscope.settings import TrainSettings
from rotoscope.shapes import Tensor
from rotoscope.tasks.multihop import MultiHops

AT_ONCE = 4096


class Trainer:
    """A model, its optimiser and the order of its data: one step after the other."""

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.data = training_sequences(settings, "train", device)
        self.model = GPTJ.initialise(model_shape(settings, len(self.data.vocabulary)), settings.seed, device)
        for weight in self.model.weights.values():
            weight.requires_grad_(True)
        self.rate = torch.tensor(0.0, device=device)
        graphed = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.model.weights.values(),
            lr=self.rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=graphed,
        )
        self.order = _order(settings).to(device)
        self.losses = torch.zeros(settings.steps, device=device)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.within = torch.arange(settings.batch, device=device)
        self.step = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def run_to(self, step: int) -> None:
        """Train up to a step. Dropout is seeded anew here, so that a resumed run draws the same."""
        if self.device.type == "cuda" and self.graph is None:
            with _seeded(0, self.device):  # what the recording draws must not shift what the steps draw
                self._capture()
        with _seeded(self.settings.seed * 1_000_003 + self.step, self.device):
            for _ in range(self.step, step):
                if self.graph is not None:
                    self.graph.replay()
                else:
                    self.optimiser.zero_grad(set_to_none=True)
                    self._one()
        self.step = step

    def _one(self) -> None:
        """One step, from the batch to the new weights; everything it needs to know is in tensors."""
        settings, now = self.settings, self.counter
        rows = self.order[now * settings.batch + self.within]
        logits = self.model.logits(self.data.tokens[rows], dropout=settings.dropout)
        loss = F.cross_entropy(logits, self.data.answer[rows])
        loss.backward()
        rise = (now + 1) / (settings.warmup + 1)
        fall = (settings.steps - now) / max(settings.steps - settings.warmup, 1)
        self.rate.copy_(settings.learning_rate * torch.minimum(rise, fall)[0])
        self.optimiser.step()
        self.losses.index_copy_(0, now, loss.detach()[None])
        now += 1

    def _capture(self) -> None:
        """Record one step as a CUDA graph. The steps that warm it up are undone."""
        before = {name: value.clone() for name, value in self.state().items()}
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            aside = torch.cuda.Stream(self.device)
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self.optimiser.zero_grad(set_to_none=True)
                    self._one()
            torch.cuda.current_stream(self.device).wait_stream(aside)
            self.optimiser.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._one()
        finally:
            torch.set_float32_matmul_precision(precision)
        self.restore(before)
        self.graph = graph

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on: weights, moments, losses so far."""
        state = {"losses": self.losses, "counter": self.counter}
        for name, weight in self.model.weights.items():
            state[f"weight.{name}"] = weight.detach()
            for key in ("step", "exp_avg", "exp_avg_sq"):
                moment = self.optimiser.state[weight].get(key)
                state[f"adamw.{key}.{name}"] = (
                    torch.zeros_like(weight if key != "step" else torch.zeros(())) if moment is None else moment
                ).detach()
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a state, in place: a captured graph keeps working on the same memory."""
        self.losses.copy_(state["losses"])
        self.counter.copy_(state["counter"])
        for name, weight in self.model.weights.items():
            weight.data.copy_(state[f"weight.{name}"])
            moments = self.optimiser.state[weight]
            for key in ("step", "exp_avg", "exp_avg_sq"):
                stored = state[f"adamw.{key}.{name}"]
                if key in moments:
                    moments[key].copy_(stored)
                else:
                    moments[key] = stored.to(self.device, copy=True)
        self.step = int(self.counter)

    @torch.no_grad()
    def accuracy(self, samples: MultiHops) -> pd.DataFrame:
        """Right answers by number of hops."""
        right = torch.cat(
            [
                self.model.logits(samples.tokens[k : k + AT_ONCE]).argmax(-1) == samples.answer[k : k + AT_ONCE]
                for k in range(0, len(samples), AT_ONCE)
            ]
        )
        rows = []
        for hops in range(1, self.settings.hops + 1):
            chosen = samples.hops == hops
            share = float(right[chosen].float().mean())
            rows.append({"hops": hops, "accuracy": share, "inputs": int(chosen.sum())})
        return pd.DataFrame(rows)


def _order(settings: TrainSettings) -> Tensor:
    """Which training sequence comes when: every epoch in an order of its own."""
    needed, rows, made = settings.steps * settings.batch, settings.train_sequences, []
    for epoch in range(math.ceil(needed / rows)):
        generator = torch.Generator().manual_seed(settings.seed * 7_919 + epoch)
        made.append(torch.randperm(rows, generator=generator))
    return torch.cat(made)[:needed]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside, those of the caller untouched."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
