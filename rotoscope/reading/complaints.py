"""What other libraries complain of, in one sentence; the whole of it goes to a log."""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from pathlib import Path

LOG = "loading.log"
LONGEST = 240


def cache_folder() -> Path:
    """`ROTOSCOPE_CACHE`, or the platform's usual place for what can be made again."""
    if chosen := os.environ.get("ROTOSCOPE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "rotoscope"


def folded(problem: BaseException) -> str:
    """The first sentence of an error, after its kind; where there is more, the place it was written to."""
    whole = str(problem).strip()
    first = re.split(r"\n|(?<=[.!?])\s", whole, maxsplit=1)[0].strip().rstrip(".:;,")
    if len(first) > LONGEST:
        first = first[:LONGEST].rsplit(" ", 1)[0] + " ..."
    kind = type(problem).__name__
    short = f"{kind}: {first}" if first else kind
    place = _log(problem)
    return short if place is None else f"{short}; all of it is in {place}"


def _log(problem: BaseException) -> Path | None:
    """Write the whole error down, in place of the one before; nowhere, where that is not possible."""
    place = cache_folder() / LOG
    text = "".join(traceback.format_exception(problem))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{LOG}-", dir=place.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
            os.replace(scratch, place)
        except OSError:
            Path(scratch).unlink(missing_ok=True)
            raise
    except OSError:
        return None
    return place
