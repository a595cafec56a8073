"""Run folders as bytes and in storage, and what a Ray task asks for."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.results.items import ITEM, Outcome, close, outcome_of
from rotoscope.sweep import on_ray
from rotoscope.sweep.carrying import Storage, packed, public_address, scratch_for, unpack
from rotoscope.sweep.commands import Swept
from rotoscope.sweep.items import Item
from tests.sweep.conftest import Light
from tests.sweep.light import light_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    light_run(tmp_path / "made", {"model": "a"})
    close(tmp_path / "made", Outcome("finished", 1.0))
    return tmp_path / "made"


def content(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


def test_a_folder_comes_back_from_its_bytes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "old").write_text("of an earlier try")
    (tmp_path / "back.log").write_text("of an earlier try")
    unpack(packed(folder), tmp_path / "back")
    assert content(tmp_path / "back") == content(folder)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["back", "made"]


def test_nothing_is_unpacked_outside(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(made.getvalue(), tmp_path / "inner" / "back")
    assert not list((tmp_path / "inner").iterdir())


@pytest.mark.parametrize("kind", ["memory", "path", "url"])
def test_a_folder_comes_back_from_storage(kind: str, folder: Path, tmp_path: Path) -> None:
    address = {
        "memory": "memory://sweeps/one",
        "path": str(tmp_path / "kept"),
        "url": f"file://{tmp_path / 'kept'}",
    }[kind]
    storage = Storage(address)
    storage.check()
    storage.put(folder)
    storage.put(folder)  # again, as after a lost node
    storage.get("made", tmp_path / "back")
    assert content(tmp_path / "back") == content(folder)
    storage.get("made", tmp_path / "some", only=(ITEM, "run.json"))
    assert sorted(content(tmp_path / "some")) == [ITEM, "run.json"]
    assert outcome_of(tmp_path / "some").state == "finished"
    storage.get("never", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_without_its_note_what_is_stored_is_not_finished(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that dies while it writes."""
    (folder / "zz.parquet").write_text("a table whose name comes late")
    storage = Storage("memory://sweeps/two")
    system = type(fsspec.filesystem("memory"))
    whole = system.put_file

    def put(self: Any, source: str, target: str, *more: Any, **how: Any) -> Any:
        if target.endswith("zz.parquet"):
            raise OSError("the node is gone")
        return whole(self, source, target, *more, **how)

    monkeypatch.setattr(system, "put_file", put)
    with pytest.raises(OSError, match="the node is gone"):
        storage.put(folder)
    storage.get("made", tmp_path / "back")
    assert (tmp_path / "back" / "run.json").exists()
    assert outcome_of(tmp_path / "back").state == "unfinished"


def test_storage_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(RotoscopeError, match="storage 'nothing://x' cannot be used"):
        Storage("nothing://x")
    with pytest.raises(RotoscopeError, match="storage '/proc/x' cannot be used"):
        Storage("/proc/x").check()


def item(**given: Any) -> Item:
    return Item("one", Swept("profile"), given, ())


def test_a_task_asks_for_a_gpu_where_there_is_one() -> None:
    cards, none = on_ray.Nodes(64.0, 6, 4, {"": 24.0}), on_ray.Nodes(64.0)
    assert on_ray.resources(item(), none) == {"num_cpus": 1}
    assert on_ray.resources(item(), cards) == {"num_cpus": 1, "num_gpus": 1}
    assert on_ray.resources(item(device="cpu"), cards) == {"num_cpus": 1}
    assert on_ray.resources(item(device_map="auto"), cards) == {"num_cpus": 1, "num_gpus": 4}


@pytest.fixture
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is there, and nothing is left to be run on it."""
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))


@pytest.mark.usefixtures("nobody_is_asked")
def test_parts_in_storage_are_one_sweep(light: Light, tmp_path: Path) -> None:
    """Every part brings the tables of all items, and what is stored is known to a dry run."""
    found = light()
    stored = Storage(str(tmp_path / "stored"))
    stored.check()
    for name in found.items["folder"]:
        stored.put(Path("swept") / name)
    how: dict[str, Any] = {"on": "ray", "storage": str(tmp_path / "stored"), "out": tmp_path / "other"}
    for part in ("1/2", "2/2"):
        again = light(shard=part, **how)
        pd.testing.assert_frame_equal(again.heads, found.heads)
        assert again.run.complete
    assert list(light(dry_run=True, **how).items["state"]) == ["finished"] * 4
    opened = rs.open(tmp_path / "other")
    assert len(opened.heads) == len(found.heads)
    with pytest.raises(RotoscopeError, match="the runs of this sweep are in .*stored, and only their heads"):
        opened.joined("heads")


@pytest.mark.usefixtures("nobody_is_asked")
def test_a_part_that_is_not_whole_has_what_was_stored(light: Light, tmp_path: Path) -> None:
    found = light()
    stored = Storage(str(tmp_path / "stored"))
    stored.check()
    for name in found.items["folder"][::2]:
        stored.put(Path("swept") / name)
    light(on="ray", storage=str(tmp_path / "stored"), out=tmp_path / "other", shard="1/2")
    opened = rs.open(tmp_path / "other")
    assert list(opened.items["state"]) == ["finished", "waiting"] * 2
    assert not opened.run.complete


def test_an_address_is_written_down_without_its_password() -> None:
    assert public_address("ftp://me:secret@host/sweeps") == "ftp://host/sweeps"
    assert public_address("s3://bucket/a@b") == "s3://bucket/a@b"


def test_what_a_killed_process_left_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    host = socket.gethostname()
    left = tmp_path / f"rotoscope-item-{host}-{gone.pid}"
    others = tmp_path / f"rotoscope-item-{host}-{os.getppid()}", tmp_path / "rotoscope-item-elsewhere-1"
    for folder in (left, *others):
        folder.mkdir()
    with scratch_for("one") as place:
        assert place.parent.is_dir()
        assert not left.exists()
        assert all(folder.exists() for folder in others)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_cluster_that_is_not_there_is_refused_at_once(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(RotoscopeError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
            light(on="ray", address=f"127.0.0.1:{port}")
    with pytest.raises(RotoscopeError, match="--address nowhere: a cluster is written as 10.0.0.1:6379"):
        light(on="ray", address="nowhere")
    assert not Path("swept").exists()


def test_ray_is_asked_for_when_it_is_missing(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RotoscopeError, match=r"--on ray needs: pip install 'rotoscope\[ray\]'"):
        light(on="ray")
