"""Short names: files in the models folder are checked, fetched from the hub, or asked for in a sentence."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.errors import ModelError
from rotoscope.models import zoo
from rotoscope.models.zoo import ZOO, ZooModel, file_hash, zoo_file
from tests.hub import serving
from tests.tiny_gguf import write_gguf


@pytest.fixture
def tiny_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ZooModel:
    """A model of one file, which lies in the models folder."""
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ROTOSCOPE_MODELS", str(tmp_path / "models"))
    (tmp_path / "models").mkdir()
    file = write_gguf(tmp_path / "models" / "tiny.gguf")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    model = ZooModel("MIT", file.name, file.stat().st_size, digest, hub="org/tiny")
    monkeypatch.setitem(zoo.ZOO, "tiny", model)
    return model


def test_a_short_name_is_a_file_in_the_models_folder(tiny_zoo: ZooModel) -> None:
    subject = rs.load("tiny", device="cpu")
    assert (subject.name, subject.source) == ("tiny", {"kind": "zoo", "place": "tiny"})
    assert subject.tokenizer("ab").input_ids


@pytest.mark.parametrize("folder", ["", "models"])
def test_a_missing_file_is_named_with_its_checksum_and_its_place(
    tiny_zoo: ZooModel, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / tiny_zoo.file).unlink()
    monkeypatch.setenv("ROTOSCOPE_MODELS", folder and str(tmp_path / folder))
    place = (
        f"put it into {tmp_path / folder}, which" if folder else "put it into a folder, and name that folder in"
    )
    with pytest.raises(
        ModelError, match=rf"get tiny\.gguf .*{tiny_zoo.sha256}\) .*org/tiny .*{place} ROTOSCOPE_MODELS"
    ):
        rs.load("tiny")
    monkeypatch.setitem(zoo.ZOO, "tiny", replace(tiny_zoo, on_hub=True))
    with pytest.raises(ModelError, match="from org/tiny on the hub .*HF_HUB_OFFLINE says not to ask"):
        rs.load("tiny")


def test_an_altered_file_is_refused(tiny_zoo: ZooModel, tmp_path: Path) -> None:
    file = tmp_path / "models" / tiny_zoo.file
    assert zoo_file("tiny") == file
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(
        ModelError, match=f"is not the file that 'tiny' stands for.*{tiny_zoo.sha256} is expected"
    ):
        rs.load("tiny")


def test_a_file_of_the_hub_is_fetched_and_checked(
    tiny_zoo: ZooModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").rename(tmp_path / "elsewhere")
    monkeypatch.setitem(zoo.ZOO, "tiny", replace(tiny_zoo, on_hub=True))
    with serving(tmp_path / "hub", monkeypatch) as hub:
        hub.models["org/tiny"] = {"main": tmp_path / "elsewhere"}
        assert file_hash(zoo_file("tiny")) == tiny_zoo.sha256
        monkeypatch.setitem(zoo.ZOO, "tiny", replace(tiny_zoo, on_hub=True, sha256="0" * 64))
        with pytest.raises(ModelError, match="is not the file that 'tiny' stands for"):
            zoo_file("tiny")


def test_a_checksum_is_computed_once_for_a_file_that_stays_the_same(
    tiny_zoo: ZooModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, computed = tmp_path / "models" / tiny_zoo.file, []
    right = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *what: computed.append(1) or right(*what))
    assert file_hash(file) == file_hash(file) == tiny_zoo.sha256
    assert len(computed) == 1
    state = file.stat()
    file.write_bytes(b"x" * state.st_size)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert file_hash(file) != tiny_zoo.sha256  # of the same size and time of writing
    for note in (tmp_path / "cache" / "hashes").iterdir():
        note.write_text("damaged")
    assert file_hash(file) == hashlib.sha256(b"x" * state.st_size).hexdigest()


def test_every_model_says_where_it_comes_from() -> None:
    for model in ZOO.values():
        assert len(model.sha256) == 64
        assert set(model.sha256) <= set("0123456789abcdef")
        assert model.licence
        assert model.size > 10**7
        assert model.hub.count("/") == 1
