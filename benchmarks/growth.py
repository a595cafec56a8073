"""How the scoring part grows: tokens, blocks, planes and layers, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.llama import BLOCK, Shape, forward, free, make_batch, make_model, measure, score
from benchmarks.measure import Report
from rotoscope.errors import RotoscopeError
from rotoscope.models.reader import HeadReader


@dataclass(frozen=True)
class Growth:
    """Sizes of one thing while the rest stays; the exponents of what they cost."""

    what: str
    held: str
    sizes: tuple[int, ...]


GROWTHS = (
    Growth("tokens", f"blocks of {BLOCK} tokens, as many as fit", (1024, 2048, 4096, 8192)),
    Growth("blocks", "4,096 tokens, cut into so many", (64, 128, 256, 512)),
    Growth("planes", "of a head; 2,048 tokens", (16, 32, 64, 128)),
    Growth("layers", "2,048 tokens", (2, 4, 8, 16)),
)


def grow(
    growths: Sequence[Growth], shape: Shape, device: torch.device, tokens: int = 2048
) -> list[dict[str, Any]]:
    """How the scoring part grows with one size at a time: slopes in logarithms, and what each size took."""
    report = Report(
        f"growth of the scoring part ({shape.name} shape)", "of", "held", "sizes", "heads", "frequencies"
    )
    found: list[dict[str, Any]] = []
    for growth in growths:
        found.append(asdict(growth))
        try:
            parts = zip(
                *(_sized(growth.what, size, shape, device, tokens) for size in growth.sizes), strict=True
            )
        except Exception as problem:
            found[-1]["error"] = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
            words = ["failed", found[-1]["error"]]
        else:
            words = []
            for work, seconds in zip(("heads", "frequencies"), parts, strict=True):
                slope = exponent(growth.sizes, seconds)
                found[-1] |= {f"{work}_s": seconds, f"{work}exponent": slope}
                words.append("?" if slope is None else f"^{slope:.2f}")
        report.row(growth.what, growth.held, ", ".join(map(str, growth.sizes)), *words)
        free(device)
    report.show()
    return found


def _sized(what: str, size: int, shape: Shape, device: torch.device, tokens: int) -> tuple[float, float]:
    """Seconds that scoring heads adds to a forward pass, and frequencies to that, at one size."""
    n, blocks = (size if what == "tokens" else tokens), None
    if what == "blocks":
        n, blocks = 2 * tokens, size
    elif what == "planes":
        shape = replace(shape, head_dim=2 * size)
    elif what == "layers":
        shape = replace(shape, layers=size)
    model = make_model(shape, device)
    reader, batch = HeadReader(model), make_batch(shape.vocabulary, 1, n, blocks)
    works = [partial(score, reader, batch, planes=planes) for planes in (False, True)]
    found = measure([partial(forward, model, batch.tokens.to(device)), *works], device, most=2.0)
    plain, heads, both = (one.seconds for one in found)
    if plain is None or heads is None or both is None:
        raise RotoscopeError(f"{size} {what}: {next(one.error for one in found if one.error is not None)}")
    return heads - plain, both - heads


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """The slope in logarithms; None where a difference of two times was lost in noise, or there is one."""
    if min(seconds) <= 0 or len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
