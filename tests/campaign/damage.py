"""What can happen to a file: bits flip, ends are lost, another file stands in its place, somebody edits it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

HOSTILE = (
    "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "$(touch mark)", "`touch mark`", "{{7*7}}",
    "${title}", "%s%n", "../../canary.txt", "\x00", "\ud800", "\u2028", "[/red][bold]", "a" * 5000, "", "nan", "🦩",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"),
    [], {}, [[]], [None], {"": None}, *HOSTILE,
)  # fmt: skip
DEEP = 3000


def damaged_bytes(draw: Random, content: bytes, others: list[bytes] | None = None) -> bytes:
    """Other bytes in place of these."""
    kind = draw.choice(
        ("flip", "flip", "flip", "flips", "cut", "zero", "double", "insert", "swap", "empty", "text")
    )
    at = draw.randrange(len(content)) if content else 0
    changed = bytearray(content)
    if kind in ("flip", "flips") and content:
        for _ in range(1 if kind == "flip" else draw.randrange(2, 40)):
            changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "zero":
        end = min(len(changed), at + draw.randrange(1, 200))
        changed[at:end] = bytes(end - at)
    elif kind == "double":
        changed[at:at] = changed[at : at + draw.randrange(1, 200)]
    elif kind == "insert":
        changed[at:at] = draw.randbytes(draw.randrange(1, 20))
    elif kind == "swap" and others:
        return draw.choice(others)
    elif kind == "text":
        return draw.choice(
            (b"null", b"[]", b"{}", b"\xff\xfe", b"PAR1PAR1", b"0" * 10000, b"-", b'{"a":' * DEEP)
        )
    elif kind == "empty":
        return b""
    return bytes(changed)


def damaged_json(draw: Random, content: Any) -> Any:
    """A description with one to three places changed."""
    whole = [json.loads(json.dumps(content))]
    for _ in range(draw.randrange(1, 4)):
        places = list(_places(whole))
        holder, key = draw.choice(places)
        value = holder[key]
        kind = draw.choice(("odd", "odd", "odd", "remove", "rename", "nudge", "deep", "swap"))
        if kind == "remove" and holder is not whole:
            del holder[key]
        elif kind == "rename" and isinstance(holder, dict):
            holder[draw.choice((*HOSTILE, "checksum", "kind", "tables", "settings"))] = holder.pop(key)
        elif kind == "nudge" and isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = value + draw.choice((1, -1, 1e-6, 0.1))
        elif kind == "deep":
            holder[key] = _nested(draw.choice((50, DEEP // 10)))
        elif kind == "swap":
            other, there = draw.choice(places)
            holder[key], other[there] = json.loads(json.dumps(other[there])), json.loads(json.dumps(value))
        else:
            holder[key] = copy.deepcopy(draw.choice(ODD))  # the next case must not find it changed
    return whole[0]


def _nested(depth: int) -> Any:
    inner: Any = 0
    for _ in range(depth):
        inner = [inner]
    return inner


def _places(holder: Any) -> Any:
    """Every key of every object, every place of every list, also within others."""
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(value, dict | list):
            yield from _places(value)


def replace_by_another_kind(draw: Random, file: Path, others: list[Path]) -> str:
    """Something that is no plain file in the place of one, or nothing at all; says what."""
    kind = draw.choice(
        ("nothing", "folder", "full folder", "pipe", "loop", "link to nothing", "link to another", "socket")
    )
    remove(file)
    if kind == "folder":
        file.mkdir()
    elif kind == "full folder":
        file.mkdir()
        (file / "inner.parquet").write_bytes(b"PAR1")
    elif kind in ("pipe", "socket"):
        os.mkfifo(file)
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "link to nothing":
        file.symlink_to("nowhere")
    elif kind == "link to another" and others:
        file.symlink_to(draw.choice(others))
    return kind


def remove(path: Path) -> None:
    """Whatever is there."""
    if path.is_dir() and not path.is_symlink():
        subprocess.run(["rm", "-rf", "--", path], check=True)  # folders may be deeper than Python calls itself
    else:
        path.unlink(missing_ok=True)
