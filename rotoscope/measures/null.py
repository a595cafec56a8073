"""What a model that learned nothing would give.

- **random**: the same architecture with freshly initialised weights. Its logits are far smaller than a trained
  model's, and small logits look uniform, so they are rescaled by one factor for the whole model (or one per layer) to
  the real model's median spread of block log-means.
- **gaussian**: the real model, with the keys of the swapped tokens replaced by Gaussian noise of the same mean and
  spread per key head and dimension: what is left is the query, the rotation and the keys' shared direction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.overrides import TorchFunctionMode

from rotoscope.errors import ModelError, RotoscopeError
from rotoscope.measures.batches import Batch, Halving, Queries, batches
from rotoscope.measures.scoring import Transform
from rotoscope.models.devices import check_memory
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject
from rotoscope.models.offloading import dispatched_like, offloads, placed_by
from rotoscope.models.reader import HeadReader, Visit
from rotoscope.models.weight_check import folded
from rotoscope.scores.blocks import Blocks, block_spread
from rotoscope.tasks.prompt import Prompts

CALIBRATION_BATCHES, CALIBRATION_TOKENS = 2, 1024
"""A random model is rescaled on the prompts of two batches of 1,024 tokens, on every device: a draw must not depend on batches."""
DRAWN_ON = torch.device("cpu")
"""Where a random model is drawn that is then spread over devices, as its subject is."""
SAMPLE = 1024
"""Numbers of a weight that are looked at to see whether it was drawn anew."""
MOST_KEPT = 256_000_000
"""Bytes of layers that are kept to be scored once it is known how to rescale them; what is more is read again."""


@dataclass(frozen=True)
class Null:
    """One draw: something to read, and what to do to each layer before it is scored."""

    name: str
    draw: int
    reader: HeadReader
    transform: Transform
    factors: list[float]
    """What the logits were multiplied by: one number, or one per layer."""
    kept: dict[tuple[int, int], list[LayerReading]] = field(default_factory=dict)
    """Layers that were read already, by the first prompt and the size of their batch."""

    def read(self, batch: Batch, visit: Visit) -> None:
        """One layer of a batch after the other; what was kept is given away, not read again."""
        kept = self.kept.pop((batch.first, len(batch)), None)
        if kept is None:
            self.reader.read(batch.tokens, batch.queries, visit, size=None)
            return
        with torch.no_grad():
            for layer in kept:
                visit(layer)


def check_null(subject: Subject, name: str) -> None:
    """Refuse early, before any work, what could not be made later."""
    if name == "random":
        if _quantised(subject.model):
            raise ModelError(
                f"{subject.name} is quantised, and its class cannot be initialised with weights of that kind, so there is no "
                "random null for it; use --null gaussian or --null none"
            )
        _check_room(subject)
        _initialise(subject, seed=0, device=torch.device("meta"))


def _quantised(model: Any) -> bool:
    """Whether some weights are no plain numbers. What transformers loads from GGUF files, it has dequantised."""
    settings = getattr(model.config, "quantization_config", None)
    method = (
        settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", "")
    )
    packed = any(weight.dtype.itemsize < 2 for weight in model.parameters())
    return packed or (bool(settings) and str(getattr(method, "value", method)) != "gguf")


def _check_room(subject: Subject) -> None:
    """Raise where a random model cannot be drawn: it is drawn whole, in float32, beside its subject or, if that is spread, on the CPU."""
    spread = placed_by(subject.model) is not None
    if offloads(subject.model) and not spread:
        raise ModelError(
            f"the weights of {subject.name} are brought in for every call, by no device_map that a random model could be "
            "spread by, so there is no random null for it; load it with a device_map, or use --null gaussian or --null none"
        )
    needed = 4 * sum(weight.numel() for weight in subject.model.parameters())
    model_words = f"a random model of the size of {subject.name}"
    check_memory(
        model_words, needed, DRAWN_ON if spread else subject.device, "use --null gaussian or --null none"
    )


def null_seed(seed: int, draw: int) -> int:
    """The seed of one draw: of its own, so that no subject with a small seed is among the draws."""
    return int(np.random.SeedSequence(seed, spawn_key=(draw,)).generate_state(1)[0])


def calibration_batches(prompts: Prompts, queries: Queries, most_tokens: int) -> list[Batch]:
    """The prompts on which random models are rescaled, in the batches in which they are scored: those are read once."""
    last = batches(prompts, queries, CALIBRATION_TOKENS)[:CALIBRATION_BATCHES][-1]
    end = last.first + len(last)
    scored = batches(prompts, queries, most_tokens)
    return [batch[: end - batch.first] for batch in scored if batch.first < end]


def make_nulls(
    subject: Subject,
    reader: HeadReader,
    name: str,
    draws: Iterable[int],
    real: pd.DataFrame,
    calibration: list[Batch],
    *,
    seed: int = 0,
    halving: Halving | None = None,
    failed: list[str] | None = None,
) -> Iterator[Null]:
    """Draws of a null by their numbers, one after the other. `real` holds the real model's scores per prompt, `calibration`
    the batches on which logits are compared with it.

    Random models share one model in memory, whose weights are drawn anew for the next: be done with a draw before taking another.
    A draw that fails is left out, and `failed` grows by the reason.
    """
    models = RandomModels(subject, reader)
    for draw in draws:
        own = null_seed(seed, draw)
        if name == "gaussian":
            yield Null(name, draw, reader, _noisy(own), [1.0])
        elif name == "random":
            try:
                null = _random(draw, models.reader(own), real, calibration, halving or Halving())
            except (RotoscopeError, RuntimeError) as problem:
                if failed is None:
                    raise
                failed.append(folded(problem))
                continue
            yield null
            del null  # a random model goes before another is made


def _random(
    draw: int, reader: HeadReader, real: pd.DataFrame, calibration: list[Batch], halving: Halving
) -> Null:
    """A random model, its logits rescaled."""
    kept: dict[tuple[int, int], list[LayerReading]] = {}
    free = MOST_KEPT

    def look(batch: Batch) -> tuple[list[torch.Tensor], Blocks]:
        nonlocal free
        logits: list[torch.Tensor] = []
        layers: list[LayerReading] = []
        left = free

        def visit(layer: LayerReading) -> None:
            nonlocal left
            logits.append(layer.at(-1).real(capped=False))
            left -= layer.keys.nbytes + layer.query.nbytes
            if left >= 0:
                layers.append(replace(layer, residual=None))

        reader.read(batch.tokens, batch.queries, visit, size=None)
        free = left
        if len(layers) == reader.layers:
            kept[batch.first, len(batch)] = layers
        return logits, batch.blocks_for(batch.queries[-1])

    read = [logits for batch in calibration for logits in halving.each(batch, batch.length, look)]
    factor = _calibrate(read, real)
    return Null("random", draw, reader, _rescaled(factor), [factor], kept)


class RandomModels:
    """Random models of the subject's class and configuration, one at a time.

    Where transformers draws all weights again in place, one model is made and drawn anew for each seed, and its reading stays as
    it is; the others are made anew. The numbers are drawn on the CPU, whatever device the weights are on.
    """

    def __init__(self, subject: Subject, like: HeadReader) -> None:
        self.subject, self.like = subject, like
        self._kept: HeadReader | None = None

    def reader(self, seed: int) -> HeadReader:
        """A reader of the model with the weights of a seed: of the subject's class, whose reading was proven already."""
        if self._kept is not None:
            draw_weights(self._kept.model, seed)
            return self._kept
        model, in_place = _initialise(self.subject, seed, self.subject.device)
        reader = HeadReader(model, like=self.like)
        if in_place and placed_by(model) is None:
            self._kept = reader
        return reader


def fresh_model(kind: type, config: Any, seed: int, device: torch.device | None = None) -> Any:
    """A model of a class with the weights it would begin training with."""
    with _random_numbers(seed), torch.device(device or "cpu"):
        return kind(config).eval()


def draw_weights(model: Any, seed: int) -> None:
    """Draw all weights of a transformers model anew, in place, as where it was made."""
    for part in (*model.modules(), *model.parameters(), *model.buffers()):
        vars(part).pop("_is_hf_initialized", None)
    with _random_numbers(seed):
        model.initialize_weights()


@contextmanager
def _random_numbers(seed: int) -> Iterator[None]:
    """Random numbers from a seed, for tensors on any device the same."""
    with torch.random.fork_rng(devices=[]), _DrawnOnCpu():
        torch.manual_seed(seed)
        yield


class _DrawnOnCpu(TorchFunctionMode):
    """Numbers for tensors on other devices come from the generator of the CPU, too."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = args[0] if args else None
        if (
            function in (torch.Tensor.normal_, torch.Tensor.uniform_)
            and isinstance(target, torch.Tensor)
            and target.device.type not in ("cpu", "meta")
        ):
            return target.copy_(function(torch.empty_like(target, device="cpu"), *args[1:], **(kwargs or {})))
        return function(*args, **(kwargs or {}))


def _initialise(subject: Subject, seed: int, device: torch.device) -> tuple[Any, bool]:
    """A random model of the subject's class and configuration, where the subject is; and whether it can be drawn in place."""
    kind, spread = type(subject.model), placed_by(subject.model) is not None and device.type != "meta"
    place = DRAWN_ON if spread else device

    def make() -> Any:
        return fresh_model(kind, subject.model.config, seed, place).to(subject.model.dtype)

    try:
        model = make()
        in_place = device.type != "meta" and _drawn_in_place(model, seed)
        if not in_place and device.type != "meta":
            del model
            model = make()
        return dispatched_like(model, subject.model) if spread else model, in_place
    except Exception as problem:
        raise ModelError(
            f"{kind.__name__} cannot be initialised from its configuration ({type(problem).__name__}: {problem}), "
            "so there is no random null for it; use --null gaussian or --null none"
        ) from problem


def _drawn_in_place(model: Any, seed: int) -> bool:
    """Draw a fresh model anew, and whether every weight came out as another sample of what it was."""
    if not hasattr(model, "initialize_weights"):
        return False
    before = [_sample(weight) for weight in model.parameters()]
    draw_weights(model, seed + 1)
    other = [_sample(weight) for weight in model.parameters()]
    draw_weights(model, seed)
    return all(itertools.starmap(_alike, zip(before, other, strict=True)))


def _sample(weight: torch.Tensor) -> torch.Tensor:
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].to("cpu", torch.float32, copy=True)


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two samples may come from one distribution: other numbers of the same spread, or the same constant."""
    if first.numel() < 2 or not float(first.std()):
        return torch.equal(first, second)
    enough = first.numel() >= SAMPLE // 4
    return not torch.equal(first, second) and (
        not enough or bool(torch.isclose(first.std(), second.std(), rtol=0.25))
    )


def _calibrate(read: list[tuple[list[torch.Tensor], Blocks]], real: pd.DataFrame) -> float:
    """The factor at which the fresh model's median spread of block log-means equals the real one's.

    `read` holds every layer's logits [batch, heads, n] of some batches, and their blocks.
    """
    target = float(real["block_spread"].median())
    logits = [(torch.cat(layers, 1), blocks) for layers, blocks in read]

    def spread(factor: float) -> float:
        spreads = [block_spread(tensor * factor, blocks).flatten() for tensor, blocks in logits]
        return float(torch.cat(spreads).median())

    low, high = -4.0, 8.0  # in powers of e
    for _ in range(40):
        middle = (low + high) / 2
        if spread(float(np.exp(middle))) < target:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _rescaled(factor: float) -> Transform:
    def transform(layer: LayerReading, batch: Batch) -> LayerReading:
        return replace(layer, scaling=layer.scaling * factor)

    return transform


def _noisy(seed: int) -> Transform:
    def transform(layer: LayerReading, batch: Batch) -> LayerReading:
        positions = torch.tensor(batch.blocks_for(batch.queries[-1]).positions, device=layer.keys.device)
        swapped = layer.keys[:, :, positions]
        generator = torch.Generator()
        noise = torch.empty(swapped.shape)
        for k, prompt_noise in enumerate(noise):  # a prompt has its own noise, in whichever batch it is
            generator.manual_seed((seed * 1009 + layer.layer) * 100_003 + batch.first + k)
            prompt_noise.normal_(generator=generator)
        mean, spread = swapped.mean(2, keepdim=True), swapped.std(2, keepdim=True)
        keys = layer.keys.clone()
        keys[:, :, positions] = mean + spread * noise.to(swapped)
        return replace(layer, keys=keys)

    return transform
