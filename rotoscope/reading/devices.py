"""Where to compute."""

from __future__ import annotations

import torch

from rotoscope.errors import ModelError


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, or a GPU where there is one; one that is not there is refused in a sentence."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"device '{device}' cannot be used: {reason}") from problem
    return found
