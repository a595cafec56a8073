"""Whether a file of weights holds the model that its configuration describes, and nothing else.

transformers fills what it does not find with random numbers and drops what it does not know, with a line in a log. A
profile of such a model is one of noise, another one each time. So both are refused, by name; whoever means it asks for it
(`allow_missing`), gets the same random numbers each time, and a warning in everything that comes out.
"""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rotoscope.errors import ModelError, NumberError
from rotoscope.models.offloading import weights
from rotoscope.shapes import Tensor

SHOWN = 4
SEED = 0


def check_complete(model: Any, report: dict[str, Any], place: str | Path, *, allow_missing: bool) -> list[str]:
    """Refuse a model whose tensors are not those of the file, or say in sentences what is wrong with it.

    `report` is what transformers gives with `output_loading_info`: tied weights and buffers that are not saved are not in
    it. Buffers that an older version saved are no fault either.
    """
    buffers = {name for name, _ in model.named_buffers()}
    missing = sorted(_names(report, "missing_keys"))
    other_shape = sorted(_names(report, "mismatched_keys"))
    unknown = sorted(name for name in _names(report, "unexpected_keys") if name not in buffers)
    unread = list(_names(report, "error_msgs"))
    problems = []
    if missing:
        total = len(model.state_dict())
        problems.append(f"of {total} tensors of the model, the file lacks {len(missing)} ({_listed(missing)})")
    if other_shape:
        problems.append(f"in another shape than the model's it has {len(other_shape)} ({_listed(other_shape)})")
    if unread:
        problems.append(f"it could not be read in {len(unread)} places ({_listed(unread)})")
    if unknown:
        problems.append(f"the file has {len(unknown)} that are no part of the model ({_listed(unknown)})")
    if not problems:
        return []
    summary = "; ".join(problems)
    if not allow_missing:
        raise ModelError(
            f"{place}: {summary}. The configuration and the weights do not belong together; get both again. "
            "In Python, rs.load(..., allow_missing=True) takes them as they are: what is missing is then random"
        )
    return [
        f"weights and configuration do not belong together: {summary}; what is missing is random (seed {SEED})"
    ]


def _names(report: dict[str, Any], key: str) -> Iterator[str]:
    """Names of tensors in a report; those of another shape come with their shapes."""
    for entry in report.get(key) or ():
        yield str(entry[0]) if isinstance(entry, tuple) else str(entry)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """What is random in here is the same each time, and nothing outside is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


# What other libraries complain of, in one sentence; the whole of it goes to a log.


LOG = "loading.log"
LONGEST = 240


def cache_folder() -> Path:
    """`ROTOSCOPE_CACHE`, or the platform's usual place for what can be made again."""
    if chosen := os.environ.get("ROTOSCOPE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "rotoscope"


def folded(problem: BaseException) -> str:
    """The first sentence of an error, after its kind; where there is more, the place it was written to."""
    text = str(problem).strip()
    first = re.split(r"\n|(?<=[.!?])\s", text, maxsplit=1)[0].strip().rstrip(".:;,")
    if len(first) > LONGEST:
        first = first[:LONGEST].rsplit(" ", 1)[0] + " ..."
    kind = type(problem).__name__
    short = f"{kind}: {first}" if first else kind
    place = _log(problem)
    return short if place is None else f"{short}; all of it is in {place}"


def _log(problem: BaseException) -> Path | None:
    """Write the whole error down, in place of the one before; nowhere, where that is not possible."""
    place = cache_folder() / LOG
    try:
        write_whole(place, "".join(traceback.format_exception(problem)))
    except OSError:
        return None
    return place


def write_whole(place: Path, text: str) -> None:
    """A text file that is there as a whole or not at all, whoever else writes it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{place.name}-", dir=place.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        os.replace(scratch, place)
    except OSError:
        Path(scratch).unlink(missing_ok=True)
        raise


# NaN and infinity stop a run where they first show, with the layer and the weights they come from.


NAMED = 3


def check_finite(numbers: Tensor, place: str, *modules: nn.Module) -> None:
    """Refuse numbers that are none; the weights of `modules`, innermost first, are looked at to say why."""
    # A sum of numbers is one, unless it grows too large; only then each is looked at.
    if not bool(numbers.sum().isfinite()) and not bool(numbers.isfinite().all()):
        raise NumberError(f"{place}: {_reason(*modules)}")


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

    def look(self, numbers: Tensor, place: str, module: nn.Module) -> None:
        """Refuse numbers that are none, now or at the end."""
        if numbers.device.type == "cpu":
            check_finite(numbers, place, module, self.model)
        elif numbers.numel():
            self.put_off(numbers, place, module)

    def put_off(self, numbers: Tensor, place: str, module: nn.Module) -> None:
        """Look at the end; until then the largest number stands for all."""
        width = torch.promote_types(numbers.dtype, torch.float32)
        largest = torch.linalg.vector_norm(numbers.detach(), torch.inf, dtype=width)
        self.open.append((largest, place, module))

    def settle(self) -> None:
        """What was put off; the first that is found is named."""
        pending, self.open = self.open, []
        if not pending:
            return
        home = pending[0][0].device
        fine = torch.stack([largest.to(home) for largest, _, _ in pending]).isfinite().tolist()
        for right, (_, place, module) in zip(fine, pending, strict=True):
            if not right:
                raise NumberError(f"{place}: {_reason(module, self.model)}")


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
