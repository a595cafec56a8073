"""Refuse what cannot fit, from exact byte counts.

Counted are tensors and tables that the work must hold, of a single prompt where prompts run in batches: a batch that does not
fit is halved, a single prompt cannot be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import TooLargeError
from rotoscope.reading.devices import free_disk, free_memory

CPU = torch.device("cpu")


def check_memory(what: str, needed: int, device: torch.device, instead: str) -> None:
    """Raise TooLargeError where a device has fewer free bytes than are needed."""
    free = free_memory(device)
    if free is not None and needed > free:
        raise TooLargeError(
            f"{what} needs {size_text(needed)} of memory, and {size_text(free)} are free on {device.type}: {instead}"
        )


def check_disk(what: str, needed: int, folder: str | Path | None, instead: str) -> None:
    """Raise TooLargeError where a run folder and its disk have room for fewer bytes than are to be written.

    What the folder holds already is part of that, or is replaced.
    """
    if folder is None:
        return
    held = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    free = free_disk(folder) + held
    if needed > free:
        raise TooLargeError(
            f"{what} needs {size_text(needed)} of disk space, and {size_text(free)} are free for {folder}: {instead}"
        )


def check_tables(what: str, needed: int, folder: str | Path | None, instead: str) -> None:
    """Raise TooLargeError for tables that fit neither the memory they are put together in nor the disk of their run folder."""
    check_memory(what, needed, CPU, instead)
    check_disk(what, needed, folder, instead)


def logit_bytes(model: Any, positions: int) -> int:
    """Bytes of the next-token logits at so many positions of a prompt, as the model computes them."""
    return positions * int(model.config.get_text_config().vocab_size) * int(model.dtype.itemsize)


def size_text(size: int) -> str:
    """A number of bytes in the largest unit of which there is at least one."""
    for unit, bytes_in_unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_in_unit:
            return f"{size / bytes_in_unit:,.1f} {unit}"
    return f"{size} bytes"
