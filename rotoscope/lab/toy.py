"""Toy heads of one or two angles, a whole grid of them trained as one batched model.

One attention-only layer, one head, RoPE restricted to chosen angles. Inputs are one-hot rows projected to the plane(s):
an (entity, attribute) pair is one token whose key is the sum of two rows. The output is the attention-weighted attribute
times a learned gain; there is no residual. All models of the grid (angles x seeds) see the same data and have weights of
their own, so that one step trains them all and none of them notices the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rotoscope.errors import TaskError
from rotoscope.lab.toy_settings import ToyTraining
from rotoscope.scores.counterfactual import counterfactual_logits
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.canonical import CanonicalSamples, canonical, check_sizes


@dataclass(frozen=True)
class ToySettings(ToyTraining):
    """One grid: a task, the angles of every model, and how they are trained."""

    task: str
    angles: tuple[tuple[float, ...], ...]
    """One entry per model: the angles of its planes, one or two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.task, self.keys, self.symbols, self.entities, self.repeats)
        if not self.angles or any(not planes for planes in self.angles):
            raise TaskError("the list of angles is empty; give at least one angle, 0 for NoPE")
        if any(angle < 0 for planes in self.angles for angle in planes):
            raise TaskError(f"angles must not be negative, found {min(a for p in self.angles for a in p):g}")
        if len({len(planes) for planes in self.angles}) > 1:
            raise TaskError("all models of one grid must have the same number of planes")

    @property
    def models(self) -> int:
        return len(self.angles) * self.seeds

    @property
    def width(self) -> int:
        """One-hot rows: symbols and position names (Index), or entities, attributes and questions."""
        return self.symbols + self.keys if self.task == "index" else 2 * self.entities + self.symbols

    @property
    def state_bytes(self) -> int:
        """The weights of all models and both moments of their optimiser, in float32."""
        planes = len(self.angles[0])
        rows = 4 * planes * (self.width if self.embedding is None else self.embedding)
        weights = rows + 1 + (0 if self.embedding is None else self.width * self.embedding)
        return 3 * 4 * self.models * weights

    @property
    def training_bytes(self) -> int:
        """The same beside one batch: its one-hot rows, and their real and imaginary parts in every plane of every model."""
        numbers = self.width + 2 * self.models * len(self.angles[0])
        return self.state_bytes + 4 * self.batch * (self.keys + 1) * numbers

    def rate(self, step: int) -> float:
        """Learning rate: linear warm-up, then a cosine down to the floor."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        wave = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * done)).item())
        return self.lr * (self.floor + (1 - self.floor) * wave)

    def samples(self, count: int, seed: int, device: torch.device | str) -> CanonicalSamples:
        return canonical(
            self.task, count, seed + 1_000_000_007 * self.seed, keys=self.keys, symbols=self.symbols, entities=self.entities,
            repeats=self.repeats, device=device,
        )  # fmt: skip


class ToyHeads:
    """The grid: models are ordered by angle, then by seed."""

    def __init__(self, settings: ToySettings, device: torch.device | str = "cpu") -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.planes = len(settings.angles[0])
        per_seed = [self._initial(settings.first + k) for k in range(settings.seeds)]
        # [rows, models, ...]: every angle begins a seed with the same weights
        self.parameters = {
            name: torch.stack([part[name] for part in per_seed] * len(settings.angles), dim=1)
            .to(self.device)
            .requires_grad_()
            for name in per_seed[0]
        }
        repeated = [planes for planes in settings.angles for _ in range(settings.seeds)]
        angles = torch.tensor(repeated, dtype=torch.float64)  # [models, planes]
        distance = settings.keys + 1 - torch.arange(1, settings.keys + 2, dtype=torch.float64)
        phase = distance[:, None, None] * angles  # [keys + 1, models, planes]
        self.angles = angles
        self.cos, self.sin = phase.cos().float().to(self.device), phase.sin().float().to(self.device)

    def _initial(self, seed: int) -> dict[str, Tensor]:
        settings = self.settings
        generator = torch.Generator().manual_seed(1000 + seed + 1_000_003 * settings.seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        gain = torch.full((1,), settings.gain)
        if settings.embedding is None:
            return {
                "key": draw(settings.width, self.planes, 2),
                "query": draw(settings.width, self.planes, 2),
                "gain": gain,
            }
        wide = settings.embedding
        return {
            "embedding": draw(settings.width, wide),
            "to_key": draw(wide, self.planes, 2) / wide**0.5,
            "to_query": draw(wide, self.planes, 2) / wide**0.5,
            "gain": gain,
        }

    def tables(self) -> tuple[Float[Tensor, "width models planes 2"], Float[Tensor, "width models planes 2"]]:
        """Key and query of every one-hot row in every model."""
        p = self.parameters
        if "key" in p:
            return p["key"], p["query"]
        key, query = (
            torch.einsum("vmd,dmpk->vmpk", p["embedding"], p[name]) for name in ("to_key", "to_query")
        )
        return key, query

    def logits(self, samples: CanonicalSamples) -> Float[Tensor, "models samples positions"]:
        """Attention logits of the question over all keys and itself."""
        return self._logits(samples).permute(2, 0, 1)

    def attention(self, samples: CanonicalSamples) -> Float[Tensor, "models samples positions"]:
        return self._logits(samples).softmax(1).permute(2, 0, 1)

    def answers(self, samples: CanonicalSamples) -> Float[Tensor, "models samples symbols"]:
        """Scores of all symbols: attention on each, times the gain."""
        return self._answers(samples).transpose(0, 1)

    def _logits(self, samples: CanonicalSamples) -> Float[Tensor, "samples positions models"]:
        """The same with the models last, which keeps every elementwise step contiguous."""
        key_table, query_table = self.tables()
        rows, question = self._rows(samples)
        key_real, key_imaginary = self._project(rows, key_table)  # [samples, keys + 1, models, planes]
        real, imaginary = (part[:, None] for part in self._project(question, query_table))
        seen_real, seen_imaginary = (
            real * self.cos - imaginary * self.sin,
            imaginary * self.cos + real * self.sin,
        )
        return torch.addcmul(key_real * seen_real, key_imaginary, seen_imaginary).sum(-1)

    def _answers(self, samples: CanonicalSamples) -> Float[Tensor, "samples models symbols"]:
        weights = self._logits(samples).softmax(1)[:, :-1]  # the question carries no attribute
        values = torch.nn.functional.one_hot(samples.attributes, self.settings.symbols).float()
        return weights.mT @ values * self.parameters["gain"][0, :, None]

    def _rows(self, samples: CanonicalSamples) -> tuple[Tensor, Tensor]:
        """One-hot rows of the keys and the question together, and of the question alone."""
        settings = self.settings

        def hot(ids: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(ids, settings.width).float()

        if settings.task == "index":
            pairs, question = hot(samples.attributes), hot(samples.asked + settings.symbols)
        else:
            pairs = hot(samples.entities) + hot(samples.attributes + settings.entities)
            question = hot(samples.asked + settings.entities + settings.symbols)
        return torch.cat((pairs, question[:, None]), dim=1), question

    def _project(self, rows: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts [..., models, planes] of every row in every model: one matrix product for all."""
        projected = rows.flatten(0, -2) @ table.movedim(-1, 1).flatten(1)
        parts = projected.unflatten(-1, (2, *table.shape[1:3])).unflatten(0, rows.shape[:-1])
        real, imaginary = parts.unbind(-3)
        return real, imaginary

    def optimiser(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.parameters.values(), lr=self.settings.lr, betas=(0.9, 0.98))

    def step(self, optimiser: torch.optim.Adam, number: int) -> Tensor:
        """One training step of every model on the same fresh batch; returns the loss of each."""
        samples = self.settings.samples(self.settings.batch, seed=10_000 + number, device=self.device)
        scores = self._answers(samples)
        answers = samples.answer[:, None].expand(-1, self.settings.models)
        losses = torch.nn.functional.cross_entropy(scores.flatten(0, 1), answers.flatten(), reduction="none")
        per_model = losses.view(-1, self.settings.models).mean(0)
        for group in optimiser.param_groups:
            group["lr"] = self.settings.rate(number)
        optimiser.zero_grad(set_to_none=True)
        per_model.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return per_model.detach()

    def counterfactual(self, samples: CanonicalSamples, model: int) -> Float[Tensor, "samples n n"]:
        """Counterfactual logits of one model: what the swap scores are made of."""
        key_table, query_table = self.tables()
        rows, question = self._rows(samples)
        keys = torch.einsum("snv,vpk->snpk", rows, key_table[:, model])
        query = torch.einsum("sv,vpk->spk", question, query_table[:, model])
        return counterfactual_logits(query, keys, self.angles[model].to(keys.device))

    def state(self, optimiser: torch.optim.Adam) -> dict[str, Tensor]:
        """Everything a later start needs, as plain tensors."""
        state = {
            f"parameter.{name}": value.detach().cpu().contiguous() for name, value in self.parameters.items()
        }
        for name, value in self.parameters.items():
            for key, moment in optimiser.state.get(value, {}).items():
                state[f"adam.{key}.{name}"] = torch.as_tensor(moment).cpu().contiguous()
        return state

    def restore(self, state: dict[str, Tensor], optimiser: torch.optim.Adam) -> None:
        for name, value in self.parameters.items():
            value.data.copy_(state[f"parameter.{name}"])
            moments: dict[str, Any] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                stored = state[f"adam.{key}.{name}"]
                moments[key] = stored.clone() if key == "step" else stored.to(self.device).clone()
            optimiser.state[value] = moments
