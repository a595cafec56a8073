"""Logits as they are given: of which precision and shape, and without anything that is no logit.

A logit is a number, or -inf where a position is hidden. NaN and +inf are neither, and a score made of them could look
like any other, so they are refused with their place.
"""

from __future__ import annotations

from typing import Any

import torch

from rotoscope.errors import NumberError, RotoscopeError
from rotoscope.shapes import Bool, Float, Tensor


def at_least_float32(logits: Tensor) -> Tensor:
    """Exponentials and swap weights want float32 or better, whatever a model computes in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def logit_matrix(logits: Any) -> Float[Tensor, "... n n"]:
    """A counterfactual logit matrix, tensor or array, in float32 or better; one that is not square is refused."""
    found = torch.as_tensor(logits)
    if found.ndim < 2 or found.shape[-1] != found.shape[-2]:
        shape = " x ".join(str(size) for size in found.shape) or "a single number"
        raise RotoscopeError(
            f"a counterfactual logit matrix has one row per position and one column per content, as many rows as "
            f"columns; found {shape}"
        )
    return at_least_float32(found)


def no_logit(values: Tensor) -> Bool[Tensor, "..."]:
    """Where something stands that is no logit: NaN or +inf."""
    return values.isnan() | (values == torch.inf)


def check_logits(values: Tensor, *, hidden: bool = True) -> None:
    """Refuse NaN and +inf, and -inf too where nothing may be `hidden`, naming the first place."""
    wrong = no_logit(values) if hidden else ~values.isfinite()
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        raise NumberError(
            f"logits{place} is {float(values[tuple(place)])}: a logit is a number"
            f"{', or -inf where a position is hidden' if hidden else '; leave hidden positions out'}"
        )
