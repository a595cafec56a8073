"""Temperatures of the swap weights."""

from __future__ import annotations

from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.settings.bounds import amount

SMALLEST_TAU, LARGEST_TAU = 1e-30, 1e30
"""Far from any difference of two attention weights in float32, and well within what float32 can hold (1e-38 to 1e38)."""
TAU = amount(
    SMALLEST_TAU, LARGEST_TAU, "swap weights are computed in float32, where it would be zero or infinite"
)


def check_tau(tau: Any) -> tuple[float, ...]:
    """One or several temperatures of the swap weights, each positive."""
    taus = (_number(tau),) if one_tau(tau) else tuple(_number(t) for t in tau)
    if not taus or not all(0 < t < float("inf") for t in taus):
        raise RotoscopeError(
            f"tau must be positive and finite, found {tau}: it divides |D_a - D_b| in the swap weights"
        )
    if min(taus) < SMALLEST_TAU:
        raise RotoscopeError(
            f"tau must be at least {SMALLEST_TAU:g}, found {min(taus):g}: in float32 it would be zero, and no swap would "
            "have a weight"
        )
    TAU.check("tau", taus)
    return taus


def each_tau(tau: Any) -> tuple[float, ...]:
    """The temperatures to score heads at, each once, in the order given."""
    return tuple(dict.fromkeys(check_tau(tau)))


def _number(tau: object) -> float:
    """A temperature as a number, from whatever holds one."""
    try:
        if not isinstance(tau, bool):
            return float(tau)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise RotoscopeError(f"tau must be a number, found {tau}")


def one_tau(tau: object) -> bool:
    """One temperature rather than a list, tuple, array or tensor of them."""
    return not hasattr(tau, "__len__") or getattr(tau, "ndim", 1) == 0
