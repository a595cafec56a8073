"""Where to compute."""

from __future__ import annotations

from pathlib import Path

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


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return int(found) * 1024


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
