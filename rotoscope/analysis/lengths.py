"""How far a multi-hop model carries: accuracy on longer inputs, what its heads do there, and what could be foretold.

**Longer inputs**: the target window is extended in front of the sequence, so path and distances stay what they were and only
the number of tokens to be ignored grows.

**Heads**: at every position of the path, the head's largest logit minus the next (discrepancy), the logit of the right token
minus its best competitor (gap), and the attention on the right token. What that attention lacks, -log p, is split in two: what
the best competitor alone would cost, log(1 + e^-gap), and the rest, which many weak competitors cost (dispersion).

**Prediction**, from the model at training length alone: queries and keys are taken there; a key of the target window is set,
by rotation, at every distance that longer inputs would have, and the attention it would draw is summed. An input is foretold to
fail at the first length at which the front tokens would draw more than half of the attention of some head the answer needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.dynamics import score_heads
from rotoscope.analysis.roles import HELD_OUT, blocked
from rotoscope.errors import ModelError, TaskError
from rotoscope.lab.checkpoints import own_task, sequences_for
from rotoscope.lab.gptj import GPTJ, LayerState, as_real
from rotoscope.maths.discrepancy import discrepancy
from rotoscope.maths.purity import purity_classes
from rotoscope.progress import Progress, progress
from rotoscope.reading import Subject, find_checkpoints, load
from rotoscope.results.lengths import Lengths
from rotoscope.results.onehop import wilson
from rotoscope.results.roles import ARRIVED
from rotoscope.results.run import Run
from rotoscope.settings import LengthsSettings
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.multihop import MultiHops

__all__ = ["LENGTHS", "lengths", "predict", "stored_lengths"]

LENGTHS = (17, 25, 50, 100, 200, 350, 850, 2000, 5000)
TOKENS = {"cpu": 120_000, "cuda": 4_000_000}
"""Tokens spent on each length: fewer inputs at the long end."""
FEWEST = 24
HEAD_LENGTHS = 850
"""Heads are looked at up to this length."""
HEAD_INPUTS = 48


def lengths(
    source: str | Path | Subject | Mapping[str, Any] | Sequence[str | Path],
    settings: LengthsSettings | None = None,
    *,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Lengths:
    """Accuracy, heads and prediction by length, for one multi-hop model or several.

    `source` is "number" or "letter", a model or checkpoint folder, a training run (all its checkpoints are taken), a list
    of those, or a mapping from names to them. `settings`, or fields of `LengthsSettings` given as keywords, say which
    lengths and how many inputs.
    """
    wanted = LengthsSettings.make(settings, **changes)
    models = _models(source, device)
    for name, subject in models.items():
        if own_task(subject) is None:
            raise ModelError(
                f"{name} is no multi-hop model; language models are asked one-hop questions instead (rotoscope ask)"
            )
    first = next(iter(models.values()))
    chosen = wanted.lengths or tuple(_fitting(models))
    for name, subject in models.items():
        shortest = sequences_for(subject.model.config, 1).length
        longest = int(subject.model.config.n_positions)
        if chosen[0] < shortest or chosen[-1] > longest:
            raise TaskError(
                f"lengths of {name} must lie between {shortest} and its {longest} positions, found {list(chosen)}"
            )
    described = {
        "models": {name: subject.fingerprint for name, subject in models.items()},
        **wanted.stored(),
        "lengths": list(chosen),
        "tokens": tokens_on(first.device),
    }
    run = Run(Lengths, described, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    with progress("lengths", len(models) * sum(chosen), show_progress) as bar:
        for name, subject in models.items():
            _Measured(run, name, subject, list(chosen), wanted).measure(bar)
    return run.finish(device=first.device.type)


def tokens_on(device: torch.device) -> int:
    return TOKENS.get(device.type, TOKENS["cpu"])


def _fitting(models: dict[str, Subject]) -> list[int]:
    """The longest of the models' lengths in training, and the usual lengths between it and their positions."""
    shortest = max(sequences_for(subject.model.config, 1).length for subject in models.values())
    longest = min(int(subject.model.config.n_positions) for subject in models.values())
    return [shortest, *(n for n in LENGTHS if shortest < n <= longest)]


def stored_lengths() -> Lengths:
    """The measurements of eight models that come with rotoscope: two tasks, three seeds, and a shorter training."""
    return Lengths.open(Path(__file__).parents[1] / "models" / "lengths")


def _models(source: Any, device: str | None) -> dict[str, Subject]:
    if isinstance(source, Mapping):
        return {str(name): load(one, device=device, dtype=torch.float32) for name, one in source.items()}
    if isinstance(source, (list, tuple)):
        return {str(one): load(one, device=device, dtype=torch.float32) for one in source}
    if isinstance(source, Subject):
        return {source.name: source}
    place = Path(str(source))
    if place.is_dir() and not (place / "config.json").is_file():
        found = find_checkpoints(place)
        trained = {step: one for step, one in found.items() if step > 0}
        return {
            f"{place.name} step {s}": load(one, device=device, dtype=torch.float32)
            for s, one in trained.items()
        }
    return {str(source): load(source, device=device, dtype=torch.float32)}


@dataclass(frozen=True)
class _Measured:
    """One model, all lengths."""

    run: Run[Lengths]
    name: str
    subject: Subject
    lengths: list[int]
    settings: LengthsSettings

    def measure(self, bar: Progress) -> None:
        model = GPTJ.from_transformers(self.subject.model)
        for n in self.lengths:
            self._piece("accuracy", lambda n=n: self._accuracy(model, n), n)  # type: ignore[misc]
            if self.settings.heads and n <= HEAD_LENGTHS:
                self._piece("heads", lambda n=n: self._heads(model, n), n)  # type: ignore[misc]
            bar.advance(n)
        self._piece("classes", lambda: head_classes(model, self._sequences(200, 0)))
        inputs = self.settings.inputs
        self._piece("predicted", lambda: predict(model, self._sequences(inputs, 0), self.lengths[-1]))

    def _piece(self, table: str, make: Callable[[], pd.DataFrame], length: int = 0) -> None:
        """A table of this model, or what it has at one length."""
        about = {"model": self.name, "task": self._sequences(1, 0).task}
        key = f"{self.subject.fingerprint}-{table}-{length:06d}"
        self.run.piece(key, lambda: {table: make().assign(**about)})

    def _sequences(self, count: int, front: int) -> MultiHops:
        made = sequences_for(
            self.subject.model.config, count, seed=self.settings.seed, first=HELD_OUT, front=front
        )
        return made.to(self.subject.device)

    def _longer(self, n: int, most: int) -> MultiHops:
        kinds = len(self._sequences(1, 0).settings["hops"])
        count = max(FEWEST, min(most, tokens_on(self.subject.device) // n))
        return self._sequences(count - count % kinds, n - self._sequences(1, 0).length)

    @torch.no_grad()
    def _accuracy(self, model: GPTJ, n: int) -> pd.DataFrame:
        samples = self._longer(n, self.settings.inputs)
        at_once = max(1, 20_000 // n)
        right = torch.cat(
            [
                model.logits(samples.tokens[k : k + at_once]).argmax(-1) == samples.answer[k : k + at_once]
                for k in range(0, len(samples), at_once)
            ]
        )
        rows = []
        for hops in samples.settings["hops"]:
            of = samples.hops == hops
            count, correct = int(of.sum()), int(right[of].sum())
            low, high = wilson(correct, count)
            rows.append(
                {
                    "length": n,
                    "hops": hops,
                    "accuracy": correct / count,
                    "low": low,
                    "high": high,
                    "inputs": count,
                }
            )
        return pd.DataFrame(rows)

    @torch.no_grad()
    def _heads(self, model: GPTJ, n: int) -> pd.DataFrame:
        """One row per layer, head, input and pointing position of the path."""
        samples = self._longer(n, HEAD_INPUTS)
        parts = []
        for k in range(0, len(samples), 4):
            parts.append(_gaps(model, samples[k : k + 4]).assign(length=n))
        return pd.concat(parts, ignore_index=True)


def _gaps(model: GPTJ, samples: MultiHops) -> pd.DataFrame:
    """Discrepancy, gap, attention on the token pointed at and its two losses, for every layer and pointing position."""
    states: list[LayerState] = []
    model.logits(samples.tokens, visit=states.append)
    places = torch.arange(samples.length, device=samples.tokens.device)
    rows = []
    for state in states:
        turns = state.turns(samples.length)
        for step in range(samples.path.shape[1] - 1):
            asks = (samples.hops > step).nonzero()[:, 0]
            here, there = samples.path[asks, step], samples.path[asks, step + 1]
            query = as_real(state.query[asks, :, here] * turns[here][:, None])
            keys = as_real(state.key[asks] * turns)  # [asks, heads, n, d]
            logits = (keys @ query[..., None])[..., 0] / query.shape[-1] ** 0.5
            seen = places[None] <= here[:, None]
            logits = logits.masked_fill(~seen[:, None], -torch.inf)
            right = logits.gather(-1, there[:, None, None].expand(-1, logits.shape[1], 1))
            others = logits.scatter(-1, there[:, None, None].expand(-1, logits.shape[1], 1), -torch.inf)
            gap = right[..., 0] - others.amax(-1)
            lacking = logits.logsumexp(-1) - right[..., 0]  # -log of the attention on the right token
            alone = torch.nn.functional.softplus(-gap)
            values = torch.stack((discrepancy(logits), gap, (-lacking).exp(), alone, lacking - alone), dim=-1)
            for head in range(values.shape[1]):
                table = pd.DataFrame(values[:, head].cpu().numpy(), columns=list(HEAD_MEASURES))
                rows.append(
                    table.assign(
                        layer=state.layer, head=head, path_index=step, hops=samples.hops[asks].cpu().numpy()
                    )
                )
    return pd.concat(rows, ignore_index=True)


HEAD_MEASURES = ("discrepancy", "gap", "attention", "gap_loss", "dispersion_loss")


@torch.no_grad()
def head_classes(model: GPTJ, samples: MultiHops) -> pd.DataFrame:
    """What each head is at training length, and the angle of the plane it uses most."""
    table = score_heads(model, samples)[["layer", "head", "positional_score", "symbolic_score"]]
    kinds = purity_classes(table["positional_score"], table["symbolic_score"])
    angles: list[float] = []

    def visit(state: LayerState) -> None:
        turns = state.turns(samples.length)
        query = (state.query[:, :, -1] * turns[-1])[:, :, None]
        logits = (query * (state.key * turns).conj()).real  # [inputs, heads, n, planes]
        angles.extend(state.angles[logits.amax(2).mean(0).argmax(-1)].tolist())

    model.logits(samples.tokens, visit=visit)
    return table.assign(head_class=kinds, dominant_angle=angles)


@torch.no_grad()
def predict(model: GPTJ, samples: MultiHops, longest: int) -> pd.DataFrame:
    """The length at which each input is foretold to fail, from queries and keys at training length.

    Needed are, at every position of the path, the layers before which the answer has not arrived there (found by
    blocking, as in `roles`). `fails_at` is infinite where nothing up to `longest` draws half of the attention.
    """
    states: list[LayerState] = []
    model.logits(samples.tokens, visit=states.append)
    extra = longest - samples.length
    rows = []
    for hops in samples.settings["hops"]:
        of = (samples.hops == hops).nonzero()[:, 0]
        fails_at = torch.full((len(of),), torch.inf, dtype=torch.float64, device=of.device)
        where = torch.full((len(of),), -1, device=of.device)
        for step in range(hops):
            fails = [
                layer for layer, right in enumerate(blocked(model, samples[of[:64]], step)) if right < ARRIVED
            ]
            for layer in range(min(max(fails) + 1, len(states)) if fails else 0):
                share = _front_share(states[layer], samples, of, step, extra)
                over = share > 0.5  # [inputs, extra tokens]
                first = torch.where(over.any(1), over.long().argmax(1) + 1 + samples.length, torch.inf).double()
                where = torch.where(first < fails_at, layer, where)
                fails_at = torch.minimum(fails_at, first)
        rows.append(
            pd.DataFrame({"hops": hops, "fails_at": fails_at.cpu().numpy(), "layer": where.cpu().numpy()})
        )
    return pd.concat(rows, ignore_index=True)


def _front_share(
    state: LayerState, samples: MultiHops, of: Tensor, step: int, extra: int
) -> Float[Tensor, "inputs extra"]:
    """The share of attention that 1, 2, ... front tokens would draw from the path's position `step`; the worst head.

    Front tokens lie on no path. Each stands for the mean over the target window's own keys but the answer's, set at its
    distance by rotation.
    """
    window, here = samples.settings["target"], samples.path[of, step]
    answer = samples.path[of].gather(1, samples.hops[of, None])[:, 0]
    others = torch.arange(window, device=of.device)[None] != answer[:, None]  # [inputs, window]
    query = state.query[of, :, here]  # [inputs, heads, planes]
    scale = (2 * query.shape[-1]) ** -0.5
    product = (query[:, :, None] * state.key[of, :, :window].conj()) * scale
    parts = torch.cat((product.real, -product.imag), dim=-1).double()
    front = []
    for k in range(len(of)):
        distance = (
            here[k] + 1 + torch.arange(extra, device=here.device)
        )  # the nearest stands right before the sequence
        phases = distance.double()[:, None] * state.angles.double()
        logits = (
            parts[k][:, others[k]] @ torch.cat((phases.cos(), phases.sin()), dim=-1).T
        )  # [heads, window - 1, extra]
        front.append(logits.logsumexp(1) - math.log(max(window - 1, 1)))
    turns = state.turns(samples.length)
    inside = as_real(state.key[of] * turns) @ as_real(query * turns[here][:, None])[..., None]
    seen = torch.arange(samples.length, device=here.device)[None] <= here[:, None]
    base = (scale * inside[..., 0]).masked_fill(~seen[:, None], -torch.inf).logsumexp(-1).double()
    drawn = torch.logcumsumexp(torch.stack(front), dim=-1)  # [inputs, heads, extra]
    return torch.sigmoid(drawn - base[..., None]).amax(1)
