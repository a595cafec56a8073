"""What a processor can do at best, measured: exponentials and float32 multiply-adds a second.

Scoring is bound by these. Every pair of blocks needs the exponential of each of its offsets, both ways; whole heads need in
addition a product as long as the head is wide. The floor of some work is their number over the rate that was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # then there is no rate, and no share of the floor
    triton = None

PROGRAMS, WIDTH, ROUNDS = 8192, 1024, 1024
SIDE = {"cpu": 256, "cuda": 8192}
"""The side of the square matrices that are multiplied."""

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _exponentials(out, rounds: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
        """Exponentials of what is in registers, again and again: x = 2^-x stays within 0 and 1."""
        at = tl.program_id(0) * width + tl.arange(0, width)
        x = at.to(tl.float32) / (at + 1)
        for _ in range(rounds):
            x = tl.exp2(-x)
        tl.store(out + at, x)


def exponentials_per_second(device: torch.device) -> float | None:
    """From a kernel that does nothing else; None where there is no Triton or no GPU."""
    if triton is None or device.type != "cuda":
        return None
    out = torch.empty(PROGRAMS * WIDTH, device=device)
    spent = _best(lambda: _exponentials[(PROGRAMS,)](out, ROUNDS, WIDTH), device)
    return out.numel() * ROUNDS / spent


def multiply_adds_per_second(device: torch.device) -> float:
    """From a product of float32 matrices, which torch takes without TF32 unless it is told to."""
    side = SIDE.get(device.type, SIDE["cpu"])
    left, right = (torch.rand(side, side, device=device) for _ in range(2))
    return side**3 / _best(lambda: left @ right, device)


def _best(function: Callable[[], object], device: torch.device) -> float:
    """Seconds of the best of three, after a warm-up."""
    times = []
    for _ in range(4):
        wait(device)
        began = time.perf_counter()
        function()
        wait(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
