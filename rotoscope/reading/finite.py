"""NaN and infinity stop a run where they first show, with the layer and the weights they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from rotoscope.errors import NumberError
from rotoscope.reading.offloaded import weights
from rotoscope.shapes import Tensor

NAMED = 3


def check_finite(numbers: Tensor, what: str, *modules: nn.Module) -> None:
    """Refuse numbers that are none; the weights of `modules`, innermost first, are looked at to say why."""
    # A sum of numbers is one, unless it grows too large; only then each is looked at.
    if not bool(numbers.sum().isfinite()) and not bool(numbers.isfinite().all()):
        raise NumberError(f"{what}: {_reason(*modules)}")


def check_buffers(model: nn.Module) -> None:
    """Refuse a model with NaN or infinity in its buffers: those of a router choose experts without ever showing in the states."""
    names = [
        name
        for name, buffer in model.named_buffers()
        # Minus infinity is how a mask hides positions.
        if buffer.is_floating_point() and not buffer.is_meta and not bool((buffer < torch.inf).all())
    ]
    if names:
        raise NumberError(f"NaN or infinity in the model's buffers: {_blame(names)}")


def check_logits(logits: Tensor, model: nn.Module) -> Tensor:
    """The model's own next-token logits, which no score is made of, but every accuracy and likelihood."""
    check_finite(logits, "NaN or infinity in the model's next-token logits", model)
    return logits


class Watch:
    """Checks of one pass: on a CPU at once, on another device all together at its end, so that nothing waits for it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.open: list[tuple[Tensor, str, nn.Module]] = []

    def look(self, numbers: Tensor, what: str, module: nn.Module) -> None:
        """Refuse numbers that are none, now or at the end."""
        if numbers.device.type == "cpu":
            check_finite(numbers, what, module, self.model)
        elif numbers.numel():
            self.put_off(numbers, what, module)

    def put_off(self, numbers: Tensor, what: str, module: nn.Module) -> None:
        """Look at the end; until then the largest number stands for all."""
        width = torch.promote_types(numbers.dtype, torch.float32)
        largest = torch.linalg.vector_norm(numbers.detach(), torch.inf, dtype=width)
        self.open.append((largest, what, module))

    def settle(self) -> None:
        """What was put off; the first that is found is named."""
        seen, self.open = self.open, []
        if not seen:
            return
        home = seen[0][0].device
        fine = torch.stack([largest.to(home) for largest, _, _ in seen]).isfinite().tolist()
        for right, (_, what, module) in zip(fine, seen, strict=True):
            if not right:
                raise NumberError(f"{what}: {_reason(module, self.model)}")


@contextmanager
def watched(blocks: Sequence[nn.Module], watch: Watch) -> Iterator[None]:
    """Let no block of a model hand on anything that is no number, at any position."""

    def look(layer: int, module: Any, args: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if isinstance(states, Tensor):
            watch.look(states, f"layer {layer}: NaN or infinity in the states it hands on", module)

    with ExitStack() as stack:
        for layer, block in enumerate(blocks):
            stack.callback(block.register_forward_hook(partial(look, layer)).remove)
        yield


def _reason(*modules: nn.Module) -> str:
    """The weights that are no numbers, by name, or what else it may be."""
    for module in modules:
        if names := _damaged(module):
            return _blame(names)
    return "all weights are numbers, so one of them grew too large; load the model in float32"


def _blame(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"{shown} {'holds' if len(names) == 1 else 'hold'} such numbers; the weights are damaged, get them again"


@torch.no_grad()
def _damaged(module: nn.Module) -> list[str]:
    """The names of the weights of a module that hold NaN or infinity."""
    return [name for name, weight in weights(module) if not bool(weight.isfinite().all())]
