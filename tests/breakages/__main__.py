"""Apply every breakage to a copy of the project, one at a time, and run the tests that must notice it."""

from __future__ import annotations

import argparse
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.breakages.edits import Breakage, EditError, Package, read_all

ROOT = Path(__file__).parents[2]
LEFT_OUT = (".*", "runs", "build", "dist", "_build", "__pycache__", "*.egg-info")
PROCESSES, PATIENCE_S = 2, 300
IGNORED = "ignore::pytest.PytestAssertRewriteWarning"


class Failures:
    """A pytest plugin that keeps the ids of the tests that failed."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.ids.append(report.nodeid)


def verdict(breakage: Breakage) -> tuple[str, str]:
    """Run in a process of its own, inside the broken copy: the verdict, and what pytest printed."""
    import pytest

    failures, output = Failures(), io.StringIO()
    # Libraries imported beforehand, some of which have plugins, are not what is tested.
    options = [
        "-q",
        "--tb=short",
        "-m",
        "slow or not slow",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        IGNORED,
    ]
    with redirect_stdout(output), redirect_stderr(output):
        code = pytest.main([*options, *breakage.tests], plugins=[failures])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return "the tests did not run", output.getvalue()
    passing = [test for test in breakage.tests if not any(i.startswith(test) for i in failures.ids)]
    return ("survived" if passing else "caught"), "\n".join(passing) or output.getvalue()


def answer(breakage: Breakage, copy: Path, pipe: Any) -> None:
    os.chdir(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if p and Path(p).resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(copy)
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]  # the copy's own are meant
    pipe.send(verdict(breakage))
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # whatever a test left running


def check(breakage: Breakage, package: Package, copy: Path, number: int) -> tuple[str, str]:
    """Break the copy, run the tests, and put it right again."""
    try:
        file, broken = package.edit(breakage)
    except EditError as problem:
        return "does not apply", str(problem)
    before, whole = file.stat(), file.read_bytes()
    file.write_text(broken, encoding="utf-8")
    # Compiled files are told apart by the second their source was changed: each breakage gets one of its own.
    os.utime(file, (before.st_atime, before.st_mtime + 10 * (number + 1)))
    here, far = multiprocessing.Pipe(duplex=False)
    asked = multiprocessing.get_context("fork").Process(target=answer, args=(breakage, copy, far))
    asked.start()
    far.close()
    try:
        if here.poll(PATIENCE_S):
            return here.recv()
        asked.kill()
        return "the tests did not run", f"they were stopped after {PATIENCE_S} s"
    except EOFError:
        return "the tests did not run", f"the process ended with {asked.exitcode}"
    finally:
        asked.join()
        file.write_bytes(whole)
        os.utime(file, (before.st_atime, before.st_mtime))


def work(places: Path, todo: Any, done: Any) -> None:
    copy = Path(shutil.copytree(ROOT, places / str(os.getpid()), ignore=shutil.ignore_patterns(*LEFT_OUT)))
    package = Package(copy / "rotoscope")
    while (item := todo.get()) is not None:
        number, breakage = item
        began = time.monotonic()
        done.put((breakage, *check(breakage, package, copy, number), time.monotonic() - began))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.breakages", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="as in scores/wrong-sign, or the beginning of it; all if none is given"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES)
    asked = parser.parse_args()
    every = read_all()
    chosen = [b for b in every if not asked.names or b.name.startswith(tuple(asked.names))]
    if not chosen:
        parser.error(f"no breakage begins with {' or '.join(asked.names)}")
    # Imported once, before the processes are made: each of them would spend more time on this than on its test.
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "UNCHECKED_SHAPES": "1",
    }
    for library in (
        "torch",
        "pandas",
        "pyarrow.parquet",
        "matplotlib.figure",
        "transformers.models.llama.modeling_llama",
    ):
        importlib.import_module(library)
    fork = multiprocessing.get_context("fork")
    todo, done = fork.Queue(), fork.Queue()
    names: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as places:
        workers = [fork.Process(target=work, args=(Path(places), todo, done)) for _ in range(asked.processes)]
        for worker in workers:
            worker.start()
        for item in [*enumerate(chosen), *[None] * len(workers)]:
            todo.put(item)
        for _ in chosen:
            breakage, found, details, seconds = done.get()
            names.setdefault(found, []).append(breakage.name)
            print(f"{found:>22}  {breakage.name}  ({seconds:.0f} s)", flush=True)
            if found != "caught":
                print(f"{'':24}{breakage.why}\n{details}", flush=True)
        for worker in workers:
            worker.join()
    print(", ".join(f"{len(some)} {found}" for found, some in sorted(names.items())))
    for found in sorted(names.keys() - {"caught"}):
        print(f"{found}: {', '.join(sorted(names[found]))}")
    return 0 if names.keys() == {"caught"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
