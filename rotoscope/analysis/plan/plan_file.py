"""`plan.json`, in which a cache plan is kept: written with its kind, and read with care, wherever it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rotoscope.errors import RunError
from rotoscope.results.files import plain, write_json

PLAN = "plan.json"
KIND, CACHE = "plan", "cache"
"""A file says under the first name what its plan is about."""
EARLIER = {"format": {"rotoscope cache plan": "cache"}}
"""How files said it that were written before."""
LARGEST = 1_000_000
"""Bytes of a plan that is read; ours have a few thousand."""
MOST = 2**40
"""No plan of ours has larger numbers."""

Found = TypeVar("Found")


def write_plan_file(path: Path, content: dict[str, Any]) -> None:
    """A plan as JSON, with its kind."""
    write_json(path, {KIND: CACHE, **content})


def read_plan_file(path: str | Path, whole: Callable[[dict[str, Any]], Found]) -> Found:
    """What `whole` makes of the plan in a run folder, or in its `plan.json`; what is damaged or of another kind is refused.

    `whole` gets what the file says without its kind, and raises ValueError at what cannot be.
    """
    file = Path(path)
    try:
        file = file / PLAN if file.is_dir() else file
        if plain(file).stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
        found, content = _taken_apart(content)
        if found == CACHE:
            return whole(content)
    except FileNotFoundError as missing:
        raise RunError(f"{file} is not there: give the folder of a cache plan, or its {PLAN}") from missing
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as damage:
        own = isinstance(damage, OSError | ValueError)
        reason = str(damage) if own else f"{type(damage).__name__}: {damage}"
        raise RunError(
            f"{file} is no cache plan, or it is damaged ({reason}); make the plan again (rotoscope plan cache)"
        ) from damage
    raise RunError(f"{file} is a plan of another kind ('{found[:40]}'), and a cache plan was expected")


def _taken_apart(content: Any) -> tuple[str, dict[str, Any]]:
    """The kind of a plan, and what it says."""
    if not isinstance(content, dict):
        raise ValueError("it holds no description")
    rest = dict(content)
    kind = rest.pop(KIND, None)
    for name, known in EARLIER.items():
        said = rest.pop(name, None)
        if kind is None and isinstance(said, str):
            kind = known.get(said)
    if not isinstance(kind, str):
        raise ValueError(f"it does not say what its plan is about ('{KIND}')")
    return kind, rest


def is_number(value: Any, least: int) -> bool:
    """Whether this is a whole number that a plan can have."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST
