"""A small slice of the campaign with fixed seeds, behind the same fence."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import scratch
from tests.campaign.damage import remove
from tests.campaign.kinds import make_stock
from tests.campaign.requests import ask_all_at_once
from tests.campaign.runner import attempt
from tests.campaign.scratch import Place, RefusedError, can_be_ordinary, enter

pytestmark = pytest.mark.slow
SLICE = {
    "run_folders": 50, "commands": 12, "model_folders": 6, "gguf": 1, "payloads": 2, "faults": 2, "kills": 1, "requests": 20,
}  # fmt: skip
"""Cases of every part."""
KINDS = ("train", "profile", "theory")
LONG_S = 240


def inside(place: Path) -> dict[str, Any]:
    """What the cases of every part gave."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    stock, found = place / "stock", {}
    make_stock(stock, KINDS)
    for name, count in SLICE.items():
        part = importlib.import_module(f"tests.campaign.{name}").PART
        (place / name).mkdir()
        os.chdir(place / name)
        case = part.prepare(place / name, stock)
        seen = [attempt(part, case, number, 0) for number in range(1, count + 1)]
        found[name] = {"cases": len(seen), "findings": [what for what in seen if what is not None]}
        if name == "requests":
            shutil.copytree(stock / "train", "train")
            shutil.copytree(stock / "model", "model")
            many = ask_all_at_once(case.server, 2, 0, 20)
            found["crowd"] = {"cases": many.cases, "findings": [one.what for one in many.findings]}
            case.close()
    return found


def test_a_slice_of_the_campaign() -> None:
    place, fence = Place(), {"superuser": os.geteuid() == 0 and not can_be_ordinary()}
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(LONG_S, exit=True, file=sys.__stderr__)
            enter(place.inside, **fence)
            (place.inside / "found.json").write_text(json.dumps(inside(place.inside)))
            code = 0
        except BaseException:
            (place.inside / "problem.txt").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    problem = place.inside / "problem.txt"
    assert code == 0, problem.read_text() if problem.exists() else code
    found = json.loads((place.inside / "found.json").read_text())
    assert {name: part["cases"] for name, part in found.items() if name != "crowd"} == SLICE
    assert found["crowd"]["cases"] > 0
    assert [what for part in found.values() for what in part["findings"]] == []
    assert [name for name in place.touched() if name.startswith(str(place.base))] == []
    remove(place.base)


def fenced(work: Any) -> int:
    """Do something in a fenced process; 0 where it was not refused, 13 where the system refused it."""
    place = Place()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter(place.inside, superuser=os.geteuid() == 0 and not can_be_ordinary())
            work(place)
            code = 0
        except PermissionError as refused:
            code = refused.errno or 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    remove(place.base)
    return code


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda place: (place.inside / "new.txt").write_text("x"), 0),
        (lambda place: place.canary.write_text("x"), 13),
        (lambda place: place.canary.unlink(), 13),
        (lambda place: os.truncate(place.canary, 0), 13),
        (lambda place: (place.base / "new").mkdir(), 13),
        (lambda place: (place.inside / "x").symlink_to(place.canary), 0),
        (
            lambda place: ((place.inside / "x").symlink_to(place.canary), (place.inside / "x").write_text("y")),
            13,
        ),
        (lambda place: (scratch.PROJECT / "pyproject.toml").open("a"), 13),
    ],
)
def test_nothing_outside_can_be_written(work: Any, code: int) -> None:
    assert fenced(work) == code


def test_what_was_touched_is_named() -> None:
    place = Place()
    place.canary.write_text("changed")
    (place.base / "new.txt").write_text("x")
    assert place.touched() == [str(place.canary), str(place.base / "new.txt")]
    remove(place.base)


def test_nothing_runs_outside_the_fence(tmp_path: Path) -> None:
    from tests.campaign.kinds import run_command

    with pytest.raises(RefusedError, match="outside its scratch folder"):
        run_command(["doctor", str(tmp_path)])
    with pytest.raises(RefusedError, match="outside its scratch folder"):
        make_stock(tmp_path / "stock")
    assert list(tmp_path.iterdir()) == []


def test_every_command_has_a_small_example() -> None:
    """What odd flags are added to: a new command is tried as soon as it is there."""
    from rotoscope.cli import commands
    from tests.campaign.commands import BASES

    assert {base[0] for base in BASES.values()} == set(commands()) <= set(BASES)
