"""One case made and compared; what the processes of `make pins` run."""

from __future__ import annotations

import os
import time
import traceback
from dataclasses import dataclass

from tests.pins import compare
from tests.pins.cases import CASES, tables_of


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    name: str
    word: str
    """equal, differs, failed or written."""
    seconds: float
    processor_seconds: float
    sentences: tuple[str, ...] = ()


def check(name: str, rewrite: bool) -> Outcome:
    """One case, compared with its golden values or written as them."""
    began, began_work = time.monotonic(), processor_seconds()
    sentences: list[str] = []
    try:
        tables = tables_of(name)
        if rewrite:
            compare.write(name, tables)
            word = "written"
        else:
            sentences = compare.differences(compare.read(name), tables, CASES[name].tolerance)
            word = "differs" if sentences else "equal"
    except Exception:
        word, sentences = "failed", traceback.format_exc().splitlines()
    return Outcome(name, word, time.monotonic() - began, processor_seconds() - began_work, tuple(sentences))


def processor_seconds() -> float:
    """Of this process and of the commands it has run."""
    return sum(os.times()[:4])
