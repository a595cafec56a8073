"""The formulas of `maths`, fused for a GPU: what a swap needs is formed in registers, and no logit reaches memory.

Each kernel stands beside a plain form in torch that computes the same, its twin in the tests and the way on a CPU.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

OLDEST = (8, 0)
"""The compute capability from which on the kernels are known to compile."""


def on(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which kernels are started on a device: Triton takes the current one, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def fused(device: torch.device) -> bool:
    """Whether the fused kernels run on a device. Where a GPU lacks what they need, that is said once."""
    if device.type != "cuda":
        return False
    capability = torch.cuda.get_device_capability(device)
    if find_spec("triton") is None:
        reason = "Triton is not installed"
    elif capability < OLDEST:
        reason = (
            f"its compute capability is {capability[0]}.{capability[1]}, and they need {OLDEST[0]}.{OLDEST[1]}"
        )
    else:
        return True
    warnings.warn(
        f"no fused kernels on {torch.cuda.get_device_name(device)}: {reason}; scores come from the slower plain form",
        stacklevel=2,
    )
    return False
