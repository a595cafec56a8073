"""A stand-in for the work of an item: a run in several pieces that takes a moment and needs no model.

`python -m tests.sweep.light FLAGS` is the command line with such items.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.train.restrictions import Restrictions
from rotoscope.runs.run import Run
from rotoscope.sweeps import local_pool
from rotoscope.sweeps import run_item as one_item
from rotoscope.sweeps.result import Outcome

PIECES, HEADS = 4, 3
JOURNAL, MOMENT = "LIGHT_JOURNAL", "LIGHT_MOMENT"
"""Variables: a file in which every begun and every finished run leaves a line, and the seconds of a piece."""


class Commands:
    """What the command line is to an item."""

    @staticmethod
    def main(words: list[str]) -> int:
        given = dict(word.removeprefix("--").partition("=")[::2] for word in words[1:])
        try:
            light_run(Path(given.pop("out")), given)
        except RotoscopeError as problem:
            print(f"rotoscope: {problem}", file=sys.stderr)
            return 2
        return 0


def light_run(folder: Path, given: dict[str, Any]) -> None:
    """A run whose numbers follow from its settings alone; a model called bad fails while a file `bad` is there, one called
    killer ends its process."""
    told(f"begun {folder.name}")
    if given["model"] == "bad" and Path("bad").exists():
        raise RotoscopeError("this model is bad; give a better one")
    if given["model"] == "killer":
        os.kill(os.getpid(), 9)
    run = Run(Restrictions, given, folder)
    for k in range(PIECES):
        run.piece(f"part{k}", lambda k=k: {"heads": piece(given, k)})
    run.finish()
    print(f"wrote {folder}")
    told(f"finished {folder.name}")


def piece(given: dict[str, Any], k: int) -> pd.DataFrame:
    time.sleep(float(os.environ.get(MOMENT, "0")))
    dice = np.random.default_rng([k, *"".join(map(str, given.values())).encode()])
    return pd.DataFrame({"layer": k, "head": range(HEADS), "positional_score": dice.random(HEADS)})


def light_item(words: Sequence[str], folder: Path) -> Outcome:
    """What a process does with an item; processes import this by its name."""
    one_item.run_words = Commands.main
    return one_item.run_item(words, folder)


def told(line: str) -> None:
    if JOURNAL in os.environ:
        with open(os.environ[JOURNAL], "a", encoding="utf-8") as journal:
            journal.write(f"{line}\n")


if __name__ == "__main__":
    from rotoscope import cli
    from tests.sweep import light

    local_pool.TASK = light.light_item
    cli.main(sys.argv[1:])
