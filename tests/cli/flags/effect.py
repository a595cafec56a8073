"""Commands run in this process on tiny models, and what is seen with a flag but not without it."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import rotoscope as rs
from rotoscope.cli import main
from tests.analysis.test_onehop import subject as speaker
from tests.models import tiny
from tests.reading.test_load import word_tokenizer

STAYING = ("embed_tokens", "rotary_emb", "layers.0", "norm")
MAP = {"lm_head": "cpu", "model.layers.1": "disk"} | {f"model.{part}": "cpu" for part in STAYING}
"""One layer of a model on disk."""
ON_CPU = " --device cpu"
OTHER = object()
"""Expected is anything else than what is seen without the flag."""


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
    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.rglob("*") if file.is_file())


@dataclass
class World:
    """Models and texts to run commands on. The same command is run once."""

    place: Path
    known: dict[str, Outcome] = field(default_factory=dict)
    number: int = 0
    tried: dict[Callable[[World], None], Exception | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, seed in (("model", 0), ("other", 1)):
            tiny("llama", seed=seed, num_hidden_layers=2).save_pretrained(self.place / name)
            word_tokenizer().save_pretrained(self.place / name)
        shutil.copytree(self.place / "model", self.place / "steps" / "step-5")
        talker = speaker(chat=True)
        talker.model.save_pretrained(self.place / "talker")
        talker.tokenizer.save_pretrained(self.place / "talker")
        (self.place / "map").write_text(json.dumps(MAP))
        (self.place / "talkers").write_text(json.dumps(MAP | {"model.layers.2": "disk"}))
        (self.place / "text").write_text("w3 w4. w6 w7. w9 w10. w5 w11 w12")
        (self.place / "longer").write_text("w3 w4. w6 w7. w9 w10. w5 w11 w12. w20 w21 w22")
        (self.place / "long").write_text(" ".join(f"w{3 + k % 40}" for k in range(200)))
        (self.place / "template").write_text("{sequence} {query}")
        (self.place / "wordy").write_text("In {sequence}, what begins with {query}?")

    def run(self, line: str) -> Outcome:
        """Run a command line; {name} stands for a file of this world, and a run folder is added where none is named."""
        if line in self.known:
            return self.known[line]
        arguments = [
            re.sub(r"\{(\w+)\}", lambda found: str(self.place / found[1]), word) for word in shlex.split(line)
        ]
        self.number += 1
        folder = self.place / "runs" / str(self.number)
        if "--out" in arguments:
            folder = Path(arguments[arguments.index("--out") + 1])
        elif "--site" not in arguments and arguments[0] != "doctor":
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


def once(check: Callable[[World], None]) -> Callable[[World], None]:
    """A check that several flags share, carried out once; where it fails, it fails for all of them."""

    def shared(world: World) -> None:
        if check not in world.tried:
            world.tried[check] = None
            try:
                check(world)
            except Exception as problem:
                world.tried[check] = problem
        failed = world.tried[check]
        if failed is not None:
            raise failed

    return shared


def with_flags(line: str, more: str) -> str:
    """A command line with flags added, or in place of those it has."""
    head, *flags = re.split(r" (?=--)", f"{line} {more}".strip())
    named = {re.sub(r"^--(no-)?", "", flag.split(" ")[0]): flag for flag in flags}
    return " ".join([head, *named.values()])


@dataclass(frozen=True)
class Effect:
    """What is seen when a flag is given to a command line, and must not be seen when it is not."""

    base: str
    flag: str
    look: Callable[[Outcome], Any]
    expected: Any = OTHER

    def check(self, world: World) -> None:
        without, given = world.run(self.base), world.run(with_flags(self.base, self.flag))
        assert without.code == 0, without.problem
        assert given.code == 0, given.problem
        before, after = self.look(without), self.look(given)
        assert before != after, f"{self.flag} changes nothing: {before}"
        if self.expected is not OTHER:
            assert after == self.expected


@dataclass(frozen=True)
class Refused:
    """A flag that makes a command stop, in a sentence, where it runs without."""

    base: str
    flag: str
    sentence: str

    def check(self, world: World) -> None:
        given = world.run(with_flags(self.base, self.flag))
        assert (given.code, given.problem.count("\n")) == (2, 1), given.problem
        assert self.sentence in given.problem
        assert world.run(self.base).code == 0


@dataclass(frozen=True)
class Other:
    """Another first argument of a command: a whole line instead of a flag."""

    base: str
    line: str
    look: Callable[[Outcome], Any]
    expected: Any = OTHER

    def check(self, world: World) -> None:
        without, given = world.run(self.base), world.run(self.line)
        assert without.code == given.code == 0, without.problem + given.problem
        before, after = self.look(without), self.look(given)
        assert before != after
        if self.expected is not OTHER:
            assert after == self.expected


@dataclass(frozen=True)
class Written:
    """--out: everything is written there, and nothing where it would be by default."""

    base: str

    def check(self, world: World) -> None:
        found = world.run(self.base)
        assert found.code == 0, found.problem
        assert "run.json" in found.files
        assert not Path("runs").exists()


@dataclass(frozen=True)
class Overwrites:
    """--overwrite: a run made with other settings is replaced, and kept without."""

    base: str
    change: str
    written: str = "run.json"

    def check(self, world: World) -> None:
        old = world.run(self.base).folder
        place = Path(shutil.copytree(old, old.with_name(f"{old.name}-again")))
        again = f"{with_flags(self.base, self.change)} --out {place}"
        file = next(place.rglob(self.written))
        before = file.read_bytes()
        kept = world.run(again)
        assert (kept.code, kept.problem.count("\n")) == (2, 1)
        assert "--overwrite" in kept.problem
        assert file.read_bytes() == before
        replaced = world.run(f"{again} --overwrite")
        assert replaced.code == 0, replaced.problem
        assert file.read_bytes() != before


@dataclass(frozen=True)
class Undrawn:
    """--no-figures: no picture is written. A test elsewhere, `drawn`, sees them written without it."""

    base: str
    drawn: str

    def check(self, world: World) -> None:
        assert "--no-figures" in self.base
        assert not [name for name in world.run(self.base).files if name.endswith((".png", ".pdf"))]


def half_on_disk(base: str, where: str = "{map}") -> Effect:
    """--device-map: the run says where the weights were."""
    base = base.replace(ON_CPU, "")
    return Effect(base, f"--device-map {where}", lambda o: o.result.run.subject.device, "cpu, disk")


def on_device(base: str) -> Refused:
    """--device: the one that is named is used, so one that is not there is refused."""
    return Refused(base, "--device nowhere", "device 'nowhere' cannot be used")


Check = Effect | Refused | Other | Written | Overwrites | Undrawn | Callable[[World], None] | str
"""What tries a flag; a string names the test elsewhere that does."""
Table = dict[str, Check | tuple[Check, ...]]


def every(outcome: Outcome, table: str, column: str) -> list[Any]:
    """The different values of a column of the run's table."""
    return sorted(outcome.result.tables[table][column].unique().tolist())
