"""One training step after the other: a model or several as one, their optimiser, and the order of their data.

Several models are trained as one stack: one step moves them all, and none notices the others. Each has its own weights,
sequences and order. With the dropout 0, and on a CPU with any, each becomes what it would have become alone, up to
rounding. On a GPU all draw what they drop from one stream of random numbers: there a model's draws depend on which
others are in the stack.

The same code runs on a CPU and on a GPU; there the whole step, from picking the batch to the optimiser, is captured once
as a CUDA graph and replayed, in long trainings with the layers compiled before.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pandas as pd
import torch
from torch.nn import functional as F

from rotoscope.lab.gptj import GPTJ, LayerState, head_logits
from rotoscope.lab.sequences import model_shape, training_sequences
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.stacked_layer import Drawing, at_once, block, compiled_block
from rotoscope.scores.exclusion_principle import exclusion_of
from rotoscope.shapes import Float, Int, Tensor
from rotoscope.tasks.multihop_frames import MultiHops

AT_ONCE = 4096
LONG = 5_000
"""Steps from which on compiling takes less time than it saves."""
NO_COMPILER = (RuntimeError, ImportError, OSError, subprocess.SubprocessError)
"""What is raised where there is no compiler, or none that can do it."""


class Trainer:
    """A model, or several whose settings differ in task, angles, favoured kind and seed: one step after the other for all."""

    def __init__(
        self,
        settings: TrainSettings | Sequence[TrainSettings],
        device: torch.device,
        *,
        compiled: bool | None = None,
    ) -> None:
        settings_list = [settings] if isinstance(settings, TrainSettings) else list(settings)
        self.each, self.settings, self.device = settings_list, settings_list[0], device
        keys = [(model_settings.task, model_settings.seed) for model_settings in settings_list]
        data = {
            key: training_sequences(model_settings, "train", device)
            for key, model_settings in dict(zip(keys, settings_list, strict=True)).items()
        }
        models = [
            GPTJ.initialise(model_shape(model_settings, len(data[key].vocabulary)), model_settings.seed, device)
            for key, model_settings in zip(keys, settings_list, strict=True)
        ]
        self.model = models[0] if len(models) == 1 else GPTJ.stack(models)
        self.rate = torch.tensor(0.0, device=device)
        graphed = device.type == "cuda"
        weights = self.model.weights.values()
        self.optimiser = torch.optim.AdamW(
            [weight.requires_grad_() for weight in weights],
            lr=self.rate,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
            fused=True,
            capturable=graphed,
        )
        for weight in weights:
            moments = {key: torch.zeros_like(weight.detach()) for key in ("exp_avg", "exp_avg_sq")}
            self.optimiser.state[weight] = {"step": torch.zeros((), device=device), **moments}
        self.tokens = torch.cat([part.tokens for part in data.values()])
        self.answers = torch.cat([part.answer for part in data.values()])
        models_axis = () if len(settings_list) == 1 else (len(settings_list),)
        first = {key: k * self.settings.train_sequences for k, key in enumerate(data)}
        orders = [
            _order(model_settings) + first[key] for key, model_settings in zip(keys, settings_list, strict=True)
        ]
        self.order = torch.stack(orders).view(*models_axis, -1).to(device)
        self.losses = torch.zeros(*models_axis, self.settings.steps, device=device)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.within = torch.arange(self.settings.batch, device=device)
        self.step = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.tables: dict[int, Tensor] = {}
        """The rotation tables that the graph reads: held here, since the model forgets them when it is shown another length."""
        self.compiled = graphed and self.settings.steps >= LONG if compiled is None else compiled
        """Whether layers are compiled; only a step that is captured can be."""
        self.block: Callable[..., Tensor] = block
        self.drawing: Drawing = at_once
        self.penalties = Penalties.of(settings_list, device)
        self.warnings: list[str] = []

    def run_to(self, step: int) -> None:
        """Train up to a step. Dropout is seeded anew here, so that a resumed run draws the same."""
        if self.device.type == "cuda" and self.graph is None:
            with _seeded(0, self.device):  # what the recording draws must not shift what the steps draw
                self._capture()
        if self.device.type == "cpu" and len(self.each) > 1 and self.settings.dropout:
            self.drawing = _OwnDraws(
                [model_settings.seed * 1_000_003 + self.step for model_settings in self.each]
            )
        with _seeded(self.settings.seed * 1_000_003 + self.step, self.device):
            for _ in range(self.step, step):
                if self.graph is not None:
                    self.graph.replay()
                else:
                    self._train_step()
        self.step = step

    def _train_step(self) -> None:
        """One step, from the batch to the new weights; everything it needs to know is in tensors."""
        settings, now, penalties = self.settings, self.counter, self.penalties
        self.optimiser.zero_grad(set_to_none=True)
        rows = self.order[..., now * settings.batch + self.within]
        logits = self.model.logits(
            self.tokens[rows],
            dropout=settings.dropout,
            drawing=self.drawing,
            visit=None if penalties is None else penalties.visit,
            block=self.block,
        )
        answers = self.answers[rows].view(-1, settings.batch)
        losses = torch.stack(
            [
                F.cross_entropy(predicted[:, : model.shape.vocabulary], answer)
                for model, predicted, answer in zip(
                    self.model.each, logits.view(len(answers), settings.batch, -1), answers, strict=True
                )
            ]
        )
        (losses + penalties.after(now) if penalties else losses).sum().backward()  # type: ignore[no-untyped-call]
        rise = (now + 1) / (settings.warmup + 1)
        fall = (settings.steps - now) / max(settings.steps - settings.warmup, 1)
        self.rate.copy_(settings.learning_rate * torch.minimum(rise, fall)[0])
        self.optimiser.step()
        self.losses.index_copy_(-1, now, losses.detach().view(*self.losses.shape[:-1], 1))
        now += 1

    def _capture(self) -> None:
        """Record one step as a CUDA graph. The steps that warm it up are undone."""
        before = [{name: value.clone() for name, value in state.items()} for state in self.states()]
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            aside = torch.cuda.Stream(self.device)
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                if self.compiled:
                    self._compile()
                for _ in range(3):
                    self._train_step()
                self.optimiser.zero_grad(set_to_none=True)
            torch.cuda.current_stream(self.device).wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._train_step()
        finally:
            torch.set_float32_matmul_precision(precision)
        self.restore(before)
        self.graph, self.tables = graph, dict(self.model._turns)

    def _compile(self) -> None:
        """Compile the formula of a layer and take a step with it; where that fails, it stays as it is and a warning says why."""
        try:
            self.block = compiled_block()
            self._train_step()
        except NO_COMPILER as problem:
            self.block = block
            reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
            self.warnings.append(f"layers could not be compiled ({reason}), so that training took longer")

    def states(self) -> list[dict[str, Tensor]]:
        """Everything each model needs to go on, alone or with others: weights, moments, losses so far.

        These are the tensors that are trained, not copies.
        """
        several = len(self.each) > 1
        states = []
        for k, model in enumerate(self.model.each):
            state = {"losses": self.losses[k] if several else self.losses, "counter": self.counter}
            for name, weight in model.weights.items():
                state[f"weight.{name}"] = weight.detach()
                for key, moment in self.optimiser.state[self.model.weights[name]].items():
                    value = moment[k, : len(weight)] if several and key != "step" else moment
                    state[f"adamw.{key}.{name}"] = value
            states.append(state)
        return states

    @torch.no_grad()
    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Go back to a state of every model, in place: a captured graph keeps working on the same memory."""
        for state, stored in zip(self.states(), states, strict=True):
            for name, value in state.items():
                value.copy_(stored[name])
        self.step = int(self.counter)

    @torch.no_grad()
    def accuracy(self, model: GPTJ, samples: MultiHops) -> pd.DataFrame:
        """Right answers of one of the models, by number of hops."""
        right = torch.cat(
            [
                model.logits(samples.tokens[k : k + AT_ONCE]).argmax(-1) == samples.answer[k : k + AT_ONCE]
                for k in range(0, len(samples), AT_ONCE)
            ]
        )
        rows = []
        for hops in samples.settings["hops"]:
            chosen = samples.hops == hops
            share = float(right[chosen].float().mean())
            rows.append({"hops": hops, "accuracy": share, "inputs": int(chosen.sum())})
        return pd.DataFrame(rows)


class _OwnDraws:
    """Draws of several models on a CPU, each from a stream of its own: what one drops does not depend on the others."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.streams = [torch.Generator().manual_seed(seed).get_state() for seed in seeds]

    def __call__(self, work: Callable[..., Tensor], *parts: Tensor) -> Tensor:
        outputs = []
        for k, model_parts in enumerate(zip(*parts, strict=True)):
            torch.set_rng_state(self.streams[k])
            outputs.append(work(*model_parts))
            self.streams[k] = torch.get_rng_state()
        return torch.stack(outputs)


def _order(settings: TrainSettings) -> Tensor:
    """Which training sequence comes when: every epoch in an order of its own."""
    needed, rows, epoch_orders = settings.steps * settings.batch, settings.train_sequences, []
    for epoch in range(math.ceil(needed / rows)):
        generator = torch.Generator().manual_seed(settings.seed * 7_919 + epoch)
        epoch_orders.append(torch.randperm(rows, generator=generator))
    return torch.cat(epoch_orders)[:needed]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside, those of the caller untouched."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


class Penalties:
    """For each of the models that are trained as one, its strength times the mean penalty of its favoured layers' heads.

    The query is the last token, where the task is asked. Layers are shown to `visit` in the forward pass of the step itself.
    """

    def __init__(self, settings: Sequence[TrainSettings], device: torch.device) -> None:
        first = next(model for model in settings if model.favour != "none")
        self.layers, self.begin, self.end = set(first.favoured), *first.favoured_steps
        strengths = [
            [model.strength * (model.favour == kind) for model in settings]
            for kind in ("symbolic", "positional")
        ]
        self.symbolic, self.positional = torch.tensor(strengths, device=device)
        self.states: list[LayerState] = []

    @classmethod
    def of(cls, settings: Sequence[TrainSettings], device: torch.device) -> Penalties | None:
        """None where no model favours a kind: nothing is then computed."""
        return cls(settings, device) if any(model.favour != "none" for model in settings) else None

    def visit(self, state: LayerState) -> None:
        """Keep a layer of the step that is computed, if it is one of those that are favoured."""
        if state.layer in self.layers:
            self.states.append(state)

    def after(self, now: Int[Tensor, "1"]) -> Float[Tensor, "models"]:
        """What to add to every model's loss at a step; what was kept of it is let go."""
        states, self.states = self.states, []
        logits = head_logits(states, states[0].query.shape[-2] - 1)[
            ..., :-1, :-1
        ]  # the query's own key is no visible key
        logit_exclusion = exclusion_of(logits)
        means = [logit_exclusion.penalty(kind).mean((0, -2, -1)) for kind in ("symbolic", "positional")]
        active = (now >= self.begin) & (now < self.end)
        return active * (self.symbolic * means[0] + self.positional * means[1])
