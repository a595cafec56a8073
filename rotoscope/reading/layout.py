"""Which dimensions of a head form a rotation plane, found by turning them.

Architectures lay their planes out differently (half-split, interleaved, part of the head only, not at all).
Instead of knowing each, we ask the module. Under the identity rotation it shows its un-rotated queries and
keys; under a quarter turn every plane's pair (re, im) becomes (-im, re), and what does not rotate stays. A
third call turns every column of the rotation table by an angle of its own, which tells whose column drives
which plane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rotoscope.errors import UnprovenError
from rotoscope.reading.sites import Call, Projected, Site
from rotoscope.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class Layout:
    """How a head's dimensions are arranged: planes first, from the fastest to the slowest, then the rest."""

    order: Int[Tensor, "d"]
    """Dimensions as (re, im) of plane 1, of plane 2, ..., then those that never rotate."""
    columns: Int[Tensor, "planes"]
    """The column of the rotation table that drives each plane."""
    angles: Float[Tensor, "planes"]
    """How far each plane turns per position."""

    @property
    def planes(self) -> int:
        return len(self.columns)

    def same(self, other: Layout) -> bool:
        """Whether another is the same: such layers can share what is made of it."""
        names = ("order", "columns", "angles")
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in names)

    @property
    def remainder(self) -> int:
        """How many dimensions never rotate."""
        return len(self.order) - 2 * self.planes


def find_layout(site: Site, call: Call) -> Layout:
    cos, sin = site.rotation(call)
    still = _rows(site.project_unrotated(call))
    quarter = _rows(site.project(call, torch.zeros_like(cos), torch.ones_like(sin)))
    real, imaginary, rest = _pair_up(still, quarter, site)
    if not real:
        empty = torch.empty(0, dtype=torch.long)
        return Layout(torch.tensor(rest), empty, torch.empty(0, dtype=torch.float64))

    marks = _marks(cos)
    marked = _rows(
        site.project(call, marks.cos().to(cos.dtype).expand_as(cos), marks.sin().to(sin.dtype).expand_as(sin))
    )
    before = torch.complex(still[:, real], still[:, imaginary])
    after = torch.complex(marked[:, real], marked[:, imaginary])
    found = (after * before.conj()).sum(0).angle()  # [planes]
    columns = (found[:, None] - marks[None, :].to(found)).abs().argmin(1)

    wide_cos, wide_sin = cos.double().cpu(), sin.double().cpu()
    turn_per_position = torch.atan2(
        wide_sin[1] * wide_cos[0] - wide_cos[1] * wide_sin[0],
        wide_cos[1] * wide_cos[0] + wide_sin[1] * wide_sin[0],
    )
    angles = turn_per_position[columns.cpu()]
    fastest_first = angles.abs().argsort(descending=True, stable=True)
    pairs = [(real[k], imaginary[k]) for k in fastest_first.tolist()]
    order = torch.tensor([d for pair in pairs for d in pair] + rest)
    return Layout(order, columns.cpu()[fastest_first], angles[fastest_first])


def _rows(projected: Projected) -> Float[Tensor, "rows d"]:
    """All queries and keys of a call as rows, in float64 on the CPU."""
    parts = [part.flatten(0, 2).double().cpu() for part in (projected.query, projected.key)]
    return torch.cat(parts)


def _pair_up(still: Tensor, quarter: Tensor, site: Site) -> tuple[list[int], list[int], list[int]]:
    """Real and imaginary dimension of every plane, and the dimensions that did not move."""
    norm = still.norm(dim=0).clamp(min=1e-30)
    likeness = (quarter.T @ still) / (quarter.norm(dim=0).clamp(min=1e-30)[:, None] * norm[None, :])
    partner = likeness.abs().argmax(1)
    sign = likeness.gather(1, partner[:, None])[:, 0]
    real, imaginary, rest = [], [], []
    for d, other in enumerate(partner.tolist()):
        if other == d:
            rest.append(d)
        elif sign[d] < 0:  # the real part becomes minus the imaginary part
            real.append(d)
            imaginary.append(other)
    together = sorted(real + imaginary + rest)
    if together != list(range(still.shape[1])) or bool((sign.abs() < 0.999).any()):
        raise UnprovenError(
            f"layer {site.layer}: the dimensions of {type(site.module).__name__} do not fall into rotation "
            "planes under a quarter turn"
        )
    return real, imaginary, rest


def _marks(cos: Tensor) -> Float[Tensor, "columns"]:
    """An angle for every column, equal where the model's own table repeats a column (both halves of a plane)."""
    width = cos.shape[-1]
    half = width // 2
    spread = torch.linspace(-0.9 * math.pi, 0.9 * math.pi, width, dtype=torch.float64, device=cos.device)
    if width % 2 == 0 and torch.equal(cos[:, :half], cos[:, half:]):
        return torch.cat((spread[::2], spread[::2]))
    if width % 2 == 0 and torch.equal(cos[:, ::2], cos[:, 1::2]):
        return spread[::2].repeat_interleave(2)
    return spread
