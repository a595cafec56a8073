"""Where to compute."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import ModelError, TooLargeError
from rotoscope.settings import MAPS


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, or a GPU where there is one; one that is not there is refused in a sentence."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"device '{device}' cannot be used: {reason}") from problem
    return chosen


@dataclass
class Placement:
    """Where the weights of a model go when it is loaded: to one device, or by a map to several, to the CPU and to disk."""

    device: torch.device
    spread: str | dict[str, Any] | None = None
    folder: Path | None = None
    """What must be written anew to be read from disk goes here; None: to a temporary one."""
    temporary: str | None = None
    """That temporary folder, which goes with the model."""

    @classmethod
    def of(
        cls,
        device: str | torch.device | None,
        spread: str | Path | dict[str, Any] | None,
        folder: str | Path | None,
    ) -> Placement:
        """Check what was asked for before anything is loaded."""
        if spread is None:
            if folder is not None:
                raise ModelError(
                    "an offload folder means something together with a device_map only; give one, too"
                )
            return cls(pick_device(device))
        if device is not None:
            raise ModelError(
                f"device '{device}' and a device_map were given, and both say where the model goes; give one of them"
            )
        if find_spec("accelerate") is None:
            raise ModelError("a device_map needs accelerate: pip install accelerate")
        return cls(pick_device(), _device_map(spread), None if folder is None else Path(folder))

    @contextmanager
    def options(self) -> Iterator[dict[str, Any]]:
        """What `from_pretrained` is to be told; a temporary folder goes again where loading fails."""
        if self.spread is None:
            yield {}
            return
        if self.folder is None:
            self.temporary = tempfile.mkdtemp(prefix="rotoscope-offload-")
        try:
            yield {"device_map": self.spread, "offload_folder": self.temporary or str(self.folder)}
        except BaseException:
            if self.temporary is not None:
                shutil.rmtree(self.temporary, ignore_errors=True)
            raise

    def hold(self, model: Any) -> None:
        """Let a temporary folder go when the model does."""
        if self.temporary is not None:
            weakref.finalize(model, shutil.rmtree, self.temporary, ignore_errors=True)


def _device_map(spread: str | Path | dict[str, Any]) -> str | dict[str, Any]:
    """A map by its name, from a file, or as it is; its devices must be there."""
    if isinstance(spread, str) and spread in MAPS:
        return spread
    if not isinstance(spread, dict):
        if not os.path.isfile(spread):
            raise ModelError(
                f"device_map '{spread}' is none of {', '.join(MAPS)} and no file; give one of them, or a JSON file with a "
                "dictionary from modules to devices, cpu and disk"
            )
        try:
            spread = json.loads(Path(spread).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise ModelError(f"the device_map in {spread} cannot be read as JSON ({problem})") from problem
    if not isinstance(spread, dict) or not spread:
        raise ModelError(
            "a device_map is a dictionary from modules to devices, cpu and disk, and this one is empty or none"
        )
    for module, place in spread.items():
        known = isinstance(place, str | int | torch.device) and not isinstance(place, bool)
        if not known or str(place).split(":")[0] == "meta":  # where nothing is
            raise ModelError(
                f"the device_map puts '{module}' on {place!r}, which is no device; give a number or a name such as cuda:1, cpu or disk"
            )
    for place in set(spread.values()) - {"disk"}:
        pick_device(f"cuda:{place}" if isinstance(place, int) else place)
    return spread


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device, or None where the system does not say.

    On a CPU that is what the kernel would give to a new program, or what is left of the limit this program runs under (a
    container, a batch job), whichever is less.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    known = [free for free in (_available(), _left_of_limit()) if free is not None]
    return min(known, default=None)


def free_disk(folder: str | Path) -> int:
    """Bytes that are free on the disk of a folder, which need not be there yet."""
    place = Path(folder).absolute()
    return shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.is_dir())).free


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return int(kilobytes) * 1024


CONTROL_GROUPS = {
    Path("/sys/fs/cgroup"): ("memory.max", "memory.current", "inactive_file"),
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Where the limit and the use of a control group are found, in the second and in the first version of them."""


def _left_of_limit() -> int | None:
    """What is left of a control group's limit; pages of files that it may drop count as free."""
    for group, (limit, used, cached) in CONTROL_GROUPS.items():
        try:
            most, now = (int((group / name).read_text(encoding="ascii")) for name in (limit, used))
            lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
            return max(0, most - now + int(dict(line.split() for line in lines).get(cached, 0)))
        except (OSError, ValueError):
            continue
    return None


# Torch's threads, of which a small model needs one, and a user's threads, of which one at a time may run a model.


_LOCKS: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_LOCK_OF_LOCKS = threading.Lock()


@contextmanager
def one_thread(enabled: bool = True) -> Iterator[None]:
    """Compute with one thread inside: for small matrices on a CPU it is faster than several, and far faster where cores are shared."""
    before = torch.get_num_threads()
    if enabled:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def alone(model: Any) -> Iterator[None]:
    """Refuse a model that another thread is reading: hooks and attention functions of one reading would show in the other."""
    with _LOCK_OF_LOCKS:
        lock = _LOCKS.setdefault(model, threading.RLock())
    if not lock.acquire(blocking=False):
        raise ModelError(
            "this model is being read by another thread; let the threads take turns, or give each a copy of the model "
            "(copy.deepcopy)"
        )
    try:
        yield
    finally:
        lock.release()


# Refuse what cannot fit, from exact byte counts.
#
# Counted are tensors and tables that the work must hold, of a single prompt where prompts run in batches: a batch that does not
# fit is halved, a single prompt cannot be.


CPU = torch.device("cpu")


def check_memory(purpose: str, needed: int, device: torch.device, instead: str) -> None:
    """Raise TooLargeError where a device has fewer free bytes than are needed."""
    free = free_memory(device)
    if free is not None and needed > free:
        raise TooLargeError(
            f"{purpose} needs {size_text(needed)} of memory, and {size_text(free)} are free on {device.type}: {instead}"
        )


def check_disk(purpose: str, needed: int, folder: str | Path | None, instead: str) -> None:
    """Raise TooLargeError where a run folder and its disk have room for fewer bytes than are to be written.

    What the folder holds already is part of that, or is replaced.
    """
    if folder is None:
        return
    held = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    free = free_disk(folder) + held
    if needed > free:
        raise TooLargeError(
            f"{purpose} needs {size_text(needed)} of disk space, and {size_text(free)} are free for {folder}: {instead}"
        )


def check_tables(purpose: str, needed: int, folder: str | Path | None, instead: str) -> None:
    """Raise TooLargeError for tables that fit neither the memory they are put together in nor the disk of their run folder."""
    check_memory(purpose, needed, CPU, instead)
    check_disk(purpose, needed, folder, instead)


def logit_bytes(model: Any, positions: int) -> int:
    """Bytes of the next-token logits at so many positions of a prompt, as the model computes them."""
    return positions * int(model.config.get_text_config().vocab_size) * int(model.dtype.itemsize)


def size_text(size: int) -> str:
    """A number of bytes in the largest unit of which there is at least one."""
    for unit, bytes_in_unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_in_unit:
            return f"{size / bytes_in_unit:,.1f} {unit}"
    return f"{size} bytes"
