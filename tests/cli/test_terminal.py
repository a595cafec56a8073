"""What a person at a terminal of 80 columns sees: whole words, short lines, what to type next, and that something goes on."""

from __future__ import annotations

import ast
import inspect
import io
import re
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from rich.text import Text

import rotoscope.cli
from rotoscope.cli import COMMANDS, app
from rotoscope.cli.command import flags
from rotoscope.cli.summary import MOST_ROWS, show_table
from rotoscope.cli.terminal import as_flags, in_lines, say, show_next
from rotoscope.progress import progress_bar, says_loading
from tests.cli.flags import ask, calibrate, canonical, depths, gate, others, profile, train
from tests.cli.flags.effect import World

HEAVY = {"torch", "pandas", "transformers", "rich"}
LINES = {
    "profile": f"{profile.REPEATS} --input-swaps 4 --null random --null-draws 2",
    "profile on tasks": profile.REPEATS.replace("repeats", "repeats text") + " --text {text}",
    "depths": f"{depths.REPEATS} --writers",
    "gate": gate.SWEEP,
    "theory": others.CHECKED,
    "canonical": canonical.BASE if hasattr(canonical, "BASE") else "canonical index --steps 2 --no-figures",
    "data": "data number --train 40 --validation 8 --test 8 --device cpu",
    "train": train.LETTER,
    "dynamics": "dynamics {trained} --no-roles --no-figures --device cpu",
    "lengths": "lengths stored --no-figures",
    "ask": ask.HERE,
    "calibrate": calibrate.BASE if hasattr(calibrate, "BASE") else "",
    "reproduce": others.CLAIM,
}
