"""Commands run in this process on tiny models."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import rotoscope as rs
from rotoscope.cli import main
from tests.experiments.test_onehop import subject as speaker
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

STAYING = ("embed_tokens", "rotary_emb", "layers.0", "norm")
MAP = {"lm_head": "cpu", "model.layers.1": "disk"} | {f"model.{part}": "cpu" for part in STAYING}
"""One layer of a model on disk."""

PLAIN = "--null none --no-examples --no-page --device cpu"
PROFILE = f"profile {{model}} --task repeats --length 6 --prompts 2 {PLAIN}"
PROFILE_TEXT = f"profile {{model}} --task text --text {{text}} --blocks token --tau 1e6 {PLAIN}"
DEPTHS = "depths {model} --task repeats --length 4 --prompts 1 --null none --no-page --device cpu"
GATE = "gate {model} --task repeats --length 6 --prompts 2 --keep 1-2 --heads 0:1 --controls 0 --no-scores --no-page"
GATE_SWEEP = "gate {model} --task repeats --length 6 --prompts 2 --bands 1 --controls 0 --no-page"
CACHE = (
    "plan cache {model} --sources repeats --prompts 2 --length 8 --window 4 --sinks 1 --frontier 0.5 --no-page"
)
ROTATION = "plan rotation {model} --sources repeats --length 6 --prompts 2 --planes 2 --no-page"
THEORY = "theory appendix-b"
CANONICAL = "canonical index --steps 4 --keys 4 --angles 1 0.1 --no-page"
LETTER = (
    "train letter --hops 1 --layers 1 --width 8 --steps 3 --batch 4 --watch-every 3 --checkpoints 2 --device cpu "
    "--no-page"
)
NUMBER = LETTER.replace("letter", "number")
EITHER = LETTER.replace("letter --hops 1", "either")
DYNAMICS = "dynamics {trained} --queries last --inputs 4 --no-roles --no-page --device cpu"
LENGTHS = "lengths {trained} --lengths 13 20 --inputs 4 --no-page --device cpu"
QUESTIONS = "--task letter --lengths 5 --runs 1 --questions 1 --template {template} --no-page"
ASK = f"ask {{talker}} {QUESTIONS} --device cpu"
ASK_DRY = f"ask --endpoint http://localhost:1/v1 --model m {QUESTIONS} --dry-run"
CLAIM = "reproduce p2-number-order"


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    told: str
    problem: str
    folder: Path

    @cached_property
    def result(self) -> Any:
        return rs.open(self.folder)

    @property
    def settings(self) -> dict[str, Any]:
        """What stands in the run's description, the sizes of its prompts included."""
        settings = self.result.run.settings
        sizes = settings.get("task_settings") or {}
        return {**settings, **sizes}

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.rglob("*") if file.is_file())


@dataclass
class World:
    """Models and texts to run commands on. The same command is run once."""

    place: Path
    known: dict[str, Outcome] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        tiny("llama", num_hidden_layers=2).save_pretrained(self.place / "model")
        word_tokenizer().save_pretrained(self.place / "model")
        shutil.copytree(self.place / "model", self.place / "steps" / "step-5")
        talker = speaker(chat=True)
        talker.model.save_pretrained(self.place / "talker")
        talker.tokenizer.save_pretrained(self.place / "talker")
        (self.place / "map").write_text(json.dumps(MAP))
        (self.place / "text").write_text("w3 w4. w6 w7. w9 w10. w5 w11 w12")
        (self.place / "template").write_text("{sequence} {query}")

    def train(self) -> None:
        """A model that was trained for a moment, called {trained}."""
        (self.place / "trained").symlink_to(self.run(LETTER).folder)

    def run(self, line: str) -> Outcome:
        """Run a command line; {name} stands for a file of this world, and a run folder is added where none is named."""
        if line in self.known:
            return self.known[line]
        arguments = [
            re.sub(r"\{(\w+)\}", lambda match: str(self.place / match[1]), word) for word in shlex.split(line)
        ]
        self.number += 1
        folder = self.place / "runs" / str(self.number)
        if "--out" in arguments:
            folder = Path(arguments[arguments.index("--out") + 1])
        elif arguments[0] != "doctor":
            arguments += ["--out", str(folder)]
        told, problem = io.StringIO(), io.StringIO()
        code = 0
        with redirect_stdout(told), redirect_stderr(problem):
            try:
                main(arguments)
            except SystemExit as ended:
                code = int(ended.code or 0)
        self.known[line] = Outcome(code, told.getvalue(), problem.getvalue(), folder)
        return self.known[line]


def with_flags(line: str, more: str) -> str:
    """A command line with flags added, or in place of those it has."""
    head, *flags = re.split(r" (?=--)", f"{line} {more}".strip())
    named = {re.sub(r"^--(no-)?", "", flag.split(" ")[0]): flag for flag in flags}
    return " ".join([head, *named.values()])
