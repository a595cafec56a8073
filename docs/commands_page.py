"""Write docs/commands.md from the declarations of all experiments and the settings of their commands.

python docs/commands_page.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from rotoscope.cli import commands
from rotoscope.command import flags
from rotoscope.experiments.registry import experiments

PAGE = Path(__file__).with_name("commands.md")
HEAD = """# Commands

Which commands are there, and what can each be told? `rotoscope profile --help` and the like say what every flag means and what it is by default.
Every flag can also stand in a settings file (`--config FILE.toml`, one table per command) or in a variable `ROTOSCOPE_COMMAND_FLAG`.
This page is written by `python docs/commands_page.py`."""


def reference() -> str:
    """A section per command: its question, its examples and its flags."""
    parts = [HEAD]
    for name, run in commands().items():
        text = inspect.getdoc(run) or ""
        declared = experiments().get(name)
        question = declared.question if declared is not None else text.splitlines()[0]
        examples = "\n".join("$ " + " ".join(example.split()) for example in re.findall(r"Example: (.+)", text))
        words = " ".join(f"`--{flag.replace('_', '-')}`" for flag in flags(run))
        parts.append(f"## {name}\n\n{question}\n\n```console\n{examples}\n```\n\n{words}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
