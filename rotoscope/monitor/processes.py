"""Several processes that train one model: the first looks and writes, and all keep in step."""

from __future__ import annotations

import torch
from torch import distributed


def is_first() -> bool:
    """Whether this process is the one that looks; the only one, where there is one."""
    return not _several() or distributed.get_rank() == 0


def from_first(*numbers: int, device: torch.device) -> list[int]:
    """The first process's numbers, in every process; all of them must ask."""
    if not _several():
        return list(numbers)
    where = device if distributed.get_backend() == "nccl" else torch.device("cpu")
    told = torch.tensor(numbers, dtype=torch.int64, device=where)
    distributed.broadcast(told, src=0)
    return [int(number) for number in told.tolist()]


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
