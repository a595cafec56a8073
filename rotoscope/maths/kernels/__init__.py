"""The formulas of `maths`, fused for a GPU: what a swap needs is formed in registers, and no logit reaches memory.

Each kernel stands beside a plain form in torch that computes the same, its twin in the tests and the way on a CPU.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch

OLDEST = (8, 0)
"""The compute capability from which on the kernels are known to compile."""


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
