"""Every kind of run, as small as it can be and as a command: made once, and again with faults and kills."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign.scratch import require

TRAIN = "--hops 1 --layers 2 --width 16 --steps 12 --batch 16 --watch-every 6 --checkpoints 2"
COMMANDS = {
    "train": f"train number {TRAIN} --no-page",
    "profile": "profile train --prompts 2 --batch-tokens 16 --no-page",
    "depths": "depths train --prompts 2 --swaps 4 --at all --null-draws 2 --no-page",
    "gate": "gate train --prompts 2 --bands 1 --controls 1 --no-page",
    "lengths": "lengths train --lengths 13 --inputs 4 --no-page",
    "dynamics": "dynamics train --inputs 8 --no-roles --no-page",
    "canonical": "canonical index --angles 0 0.1 --steps 4 --keys 4 --seeds 1 --no-page",
    "theory": "theory appendix-b",
    "ask": "ask model --task number --lengths 4 5 --runs 1 --questions 2 --template template.txt --no-page",
    "plan-cache": "plan cache model --sources repeats --prompts 2 --length 8 --window 4 --sinks 1 "
    "--frontier 0.5 --no-page",
    "plan-rotation": "plan rotation model --sources repeats --prompts 2 --length 8 --planes 2 --no-page",
}
"""The first is what others start from. All run in a folder that holds `train` and `model`."""
TIMES = ("seconds", "total_s")


@dataclass
class Ended:
    """How a command ended: its exit code, or minus the signal, and what it said."""

    code: int
    problem: str = ""
    leaked: str = ""
    """The error that a user would see as a traceback."""

    def wrong(self, *codes: int) -> str | None:
        """What is wrong with this end: a traceback, a code that means nothing, more than one sentence."""
        if self.leaked:
            return f"traceback: {self.leaked}"
        if self.code not in (0, *codes):
            return f"exit code {self.code}: {self.problem[:300]}"
        if "Traceback" in self.problem or "Warning:" in self.problem:
            return f"noise: {self.problem[:300]}"
        if self.code == 2 and not (self.problem.startswith("rotoscope: ") and self.problem.count("\n") == 1):
            return f"not one sentence: {self.problem[:300]}"
        return None


def run_command(tokens: list[str]) -> Ended:
    """A command in this process."""
    require()
    from rotoscope.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            main(tokens)
            ended = Ended(0)
        except SystemExit as left:
            ended = Ended(left.code if isinstance(left.code, int) else 1)
        except BaseException as problem:
            ended = Ended(1, leaked=where(problem))
    ended.problem = said.getvalue() if not said.closed else ""
    return ended


def where(problem: BaseException) -> str:
    """An error and the last line of the package that it went through."""
    place, step = "", problem.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if "/rotoscope/" in file:
            place = f"{Path(file).name}:{step.tb_lineno}"
        step = step.tb_next
    return f"{type(problem).__name__}: {str(problem)[:200]!r} at {place}"


def line(name: str, out: str) -> list[str]:
    """The command that makes a run of this kind."""
    return [*shlex.split(COMMANDS[name]), "--out", out]


def forked(work: Any) -> int:
    """Start something in a process of its own, which ends with the code that it returns."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = int(work())
        finally:
            os._exit(code)
    return child


def in_a_fork(tokens: list[str], report: Path) -> int:
    """Start a command in a process of its own; what it said lies in a file when it ends."""

    def work() -> int:
        ended = run_command(tokens)
        report.write_text(json.dumps([ended.code, ended.problem, ended.leaked]))
        return 0

    report.unlink(missing_ok=True)
    return forked(work)


def end_of(child: int, report: Path) -> Ended:
    """Wait for a command."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(*json.loads(report.read_text())) if code == 0 else Ended(code)


def kill(child: int, number: int = signal.SIGKILL) -> None:
    """At once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def make_stock(place: Path, names: Iterable[str] = COMMANDS) -> None:
    """A folder with a run of every kind, or of these, a small model and the files that commands name."""
    require()
    place.mkdir(parents=True, exist_ok=True)
    os.chdir(place)
    from tests.models.test_load import word_tokenizer
    from tests.tiny_models import tiny

    tiny("llama", num_hidden_layers=2, max_position_embeddings=64).save_pretrained("model")
    word_tokenizer().save_pretrained("model")
    Path("template.txt").write_text("w3 {sequence} w4 {query} w5")
    Path("text.txt").write_text(" ".join(f"w{k}" for k in range(3, 17)))
    for name in names:
        ended = run_command(line(name, name))
        if ended.code != 0:
            raise RuntimeError(f"{name} cannot be made: {ended}")
    gc.collect()


def made(stock: Path) -> list[str]:
    """The kinds of run that are there."""
    return [name for name in COMMANDS if (stock / name).exists()]


def content(folder: Path) -> dict[str, Any]:
    """Everything a run folder holds that must not depend on kills: tables, arrays, settings; no times, no ids."""
    import pyarrow.parquet as pq
    from safetensors.numpy import load_file

    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.suffix == ".parquet":
            table = pq.read_table(file, use_threads=False)
            table = table.drop_columns([time for time in TIMES if time in table.column_names])
            found[name] = (table.schema.to_string(), [_bytes(column) for column in table.columns])
        elif file.suffix == ".safetensors":
            found[name] = {key: value.tobytes() for key, value in load_file(file).items()}
        elif file.name == "run.json":
            kept = {"kind", "settings", "complete", "subject", "tables", "warnings"}
            found[name] = {key: value for key, value in json.loads(file.read_text()).items() if key in kept}
        elif file.is_file() and file.suffix != ".jsonl":
            found[name] = None
    return found


def _bytes(column: Any) -> list[bytes | None]:
    """What a column holds, to the last bit."""
    buffers = (
        [chunk.buffers() for chunk in column.combine_chunks().chunks]
        if column.num_chunks != 1
        else [column.chunk(0).buffers()]
    )
    return [None if one is None else one.to_pybytes() for several in buffers for one in several]


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first thing that is not the same."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is left over"
        if expected[name] != found[name]:
            if name.endswith("run.json"):
                changed = [key for key in expected[name] if expected[name][key] != found[name].get(key)]
                return f"{name} says other {', '.join(changed)}: {str([found[name].get(k) for k in changed])[:200]}"
            return f"{name} is not what an undisturbed run gives"
    return None
