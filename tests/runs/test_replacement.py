"""Sites and runs that are replaced: killed or failing at any step on the disk, one whole version is left."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.report.site import write_site
from rotoscope.runs.files import disk_errors
from rotoscope.runs.folder import ASIDE, recover_folder, replaced_folder
from rotoscope.runs.record import RunRecord
from rotoscope.runs.run import Run
from tests.campaign.faults import Layer
from tests.campaign.kinds import forked
from tests.tiny_models import tiny, tokens

NAMES = "old", "new", "next"


@dataclass(frozen=True)
class Kind:
    """How a folder of some kind is written, with a name in it, and how that name is read from a whole one."""

    write: Callable[[Path, str, bool], object]
    """(folder, name, overwrite)"""
    read: Callable[[Path], str]
    """Raises an error where the folder is not whole."""
    last: int | None = None
    """How many of the last steps are disturbed, where writing the new version takes many that are alike."""


def write_text(out: Path, name: str, overwrite: bool) -> None:
    def is_ours(folder: Path) -> bool:
        return (folder / "mark").is_file()

    recover_folder(out, is_ours)
    if out.exists() and not overwrite:
        raise RotoscopeError("there already")
    with disk_errors(out), replaced_folder(out, is_ours) as scratch:
        for file in ("mark", "text"):
            (scratch / file).write_text(name)


def read_text(out: Path) -> str:
    names = {file: (out / file).read_text() for file in ("mark", "text")}
    assert len(set(names.values())) == 1
    return names["text"]


def statements(name: str) -> dict[str, pd.DataFrame]:
    return {"statements": pd.DataFrame({"statement": [name], "holds": [True]})}


def make_run(out: Path, name: str, overwrite: bool) -> None:
    run = Run(TheoryRun, {"statements": [name]}, out, overwrite=overwrite)
    if run.finished is None:
        run.piece(name, lambda: statements(name))
        run.finish(device="cpu")


def save_run(out: Path, name: str, overwrite: bool) -> None:
    run = Run(TheoryRun, {"statements": [name]})
    run.add(name, statements(name))
    run.finish(device="cpu").save(out, overwrite=overwrite)


def read_run(out: Path) -> str:
    """The run, or while another is made in its place and is not finished, the one that it replaces."""
    assert (out / "notes.txt").read_text() == "the user's"
    if (out / ASIDE).exists() and not RunRecord.read(out).complete:
        with pytest.raises(RunError, match=f"the run that it replaces is in {out / ASIDE}"):
            rs.open(out)
        out = out / ASIDE
    run = rs.open(out)
    assert run.run.settings["statements"] == run.tables["statements"]["statement"].tolist()
    return str(run.run.settings["statements"][0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs to make sites of."""
    place = tmp_path_factory.mktemp("runs")
    for name in NAMES:
        rs.profile(tiny("llama"), tokens=tokens(1, 8), null="none", out=place / name)
    return place


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("site", "saved run", "run", "end of a run")]


@pytest.fixture(params=["text", *SLOW])
def kind(request: pytest.FixtureRequest) -> Kind:
    match request.param:
        case "site":
            runs = request.getfixturevalue("runs")
            return Kind(
                lambda out, name, overwrite: write_site(
                    runs / name, site=out, overwrite=overwrite, show_progress=False
                ),
                read_site,
                last=16,
            )
        case "run":
            return Kind(make_run, read_run)
        case "end of a run":
            return Kind(make_run, read_run, last=12)
        case "saved run":
            return Kind(save_run, read_run)
    return Kind(write_text, read_text)


def read_site(out: Path) -> str:
    for file in json.loads((out / "site.json").read_text())["files"]:
        assert (out / file).is_file()
    page = next(out.glob("run-001-*.html")).stem
    return page.removeprefix("run-001-")


def begin(place: Path, kind: Kind) -> Path:
    """The old version, and beside or in it what a user has there."""
    place.mkdir()
    kind.write(place / "out", "old", False)
    if kind.read is read_run:
        (place / "out" / "notes.txt").write_text("the user's")
    (place / "letter.txt").write_text("dear")
    return place / "out"


def steps_of(kind: Kind, place: Path) -> int:
    """On the disk, where nothing fails."""
    out = begin(place, kind)
    seen = place.with_name("steps.txt")

    def work() -> int:
        layer = Layer(place)
        kind.write(out, "new", True)
        seen.write_text(str(layer.steps))
        return 0

    assert os.waitpid(forked(work), 0)[1] == 0
    assert kind.read(out) == "new"
    return int(seen.read_text())


def disturbed(kind: Kind, place: Path) -> Iterator[tuple[str, Path, str]]:
    """The folder after a replacement that was killed, or met an error, at each step; and what the error said."""
    steps = steps_of(kind, place)
    for step in range(1, steps + 1)[-(kind.last or steps) :]:
        for fault in ("kill", "broken"):
            told = place.with_name(f"{fault}-{step}.txt")
            out = begin(place.with_name(f"{fault}-{step}"), kind)

            def work(out: Path = out, step: int = step, fault: str = fault, told: Path = told) -> int:
                Layer(out.parent, step, fault)
                try:
                    kind.write(out, "new", True)
                except RotoscopeError as problem:
                    told.write_text(str(problem))
                return 0

            code = os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1])
            assert code == (-signal.SIGKILL if fault == "kill" else 0)
            yield f"{fault} at step {step} of {steps}", out, told.read_text() if told.exists() else ""


def test_one_whole_version_is_left(kind: Kind, tmp_path: Path) -> None:
    """At once after an error, after a kill when the next command has looked; then it can be replaced as ever."""
    for (case, out, told), name in zip(
        disturbed(kind, tmp_path / "calm"), itertools.cycle(("new", "new", "next", "next"))
    ):
        if told:
            assert str(out) in told, case
            assert kind.read(out) in ("old", "new"), f"{case}: {told}"
        with pytest.raises(RotoscopeError, match="already|other settings"):
            kind.write(out, "next", False)
        assert kind.read(out) in ("old", "new"), case
        kind.write(out, name, True)
        assert kind.read(out) == name, case
        assert sorted(file.name for file in out.parent.iterdir()) == ["letter.txt", "out"], case
        assert not [file for file in out.rglob("*") if file.name.startswith(".")], case


def test_the_error_says_where_a_folder_is_that_cannot_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = begin(tmp_path / "place", Kind(write_text, read_text))
    rename, calls = os.replace, itertools.count()

    def failing(source: Path, target: Path) -> None:
        if next(calls):
            raise OSError(5, "Input/output error")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(RunError, match=r"was not replaced .* the old one is whole in .*\.out\.replaced"):
            write_text(out, "new", True)
    assert read_text(out.with_name(".out.replaced")) == "old"
    with pytest.raises(RotoscopeError, match="already"):
        write_text(out, "new", False)
    assert read_text(out) == "old"


def test_the_error_says_where_a_run_is_that_cannot_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = begin(tmp_path / "place", Kind(make_run, read_run))
    rename, calls = os.replace, itertools.count()

    def failing(source: Path, target: Path) -> None:
        if next(calls) >= 2:
            raise OSError(5, "Input/output error")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(
            RunError, match=r"was not replaced, and cannot be put back .* it is in .*\.replaced"
        ):
            make_run(out, "new", True)
    with pytest.raises(RunError, match="other settings"):
        make_run(out, "next", False)
    assert read_run(out) == "old"


def test_what_lies_aside_and_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    out = begin(tmp_path / "place", Kind(write_text, read_text))
    letter = out.with_name(".out.replaced") / "letter"
    letter.parent.mkdir()
    letter.write_text("dear")
    with pytest.raises(RunError, match=f"{out} was not replaced .*; the old one is whole in {out}"):
        write_text(out, "new", True)
    assert read_text(out) == "old"
    assert letter.read_text() == "dear"


def test_two_processes_do_not_replace_one_folder(tmp_path: Path) -> None:
    out = begin(tmp_path / "place", Kind(write_text, read_text))

    def second() -> int:
        with pytest.raises(RunError, match="another rotoscope is at work in"):
            write_text(out, "next", True)
        return 0

    with replaced_folder(out, lambda folder: True) as scratch:
        assert os.waitpid(forked(second), 0)[1] == 0
        for file in ("mark", "text"):
            (scratch / file).write_text("new")
    assert read_text(out) == "new"
    assert sorted(file.name for file in out.parent.iterdir()) == ["letter.txt", "out"]
