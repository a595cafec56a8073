"""What the campaign found, each as a fixed case."""

from __future__ import annotations

import gc
import json
import os
import shutil
import struct
from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.cli import main
from rotoscope.errors import ModelError, RunError
from rotoscope.experiments.profile import run as profiling
from rotoscope.report.page import run_payload
from rotoscope.runs.folder import Place
from rotoscope.runs.record import described_checksum
from tests.campaign.damage import remove
from tests.tiny_gguf import write_gguf
from tests.tiny_models import tiny, tokens


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("found") / "run"
    rs.profile(tiny("llama"), tokens=tokens(1, 8), null="none", out=place)
    return place


@pytest.fixture
def run(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "run"))


@pytest.mark.parametrize("name", ["run.json", "prompts.parquet", "manifest.txt", "metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    if name.endswith((".json", ".parquet")):
        with pytest.raises(RunError, match="no plain file"):
            rs.open(run)
        with pytest.raises(RunError, match="no plain file"):
            run_payload(run)
    else:
        assert run_payload(run)["kind"] == "profile"


def test_a_report_says_that_a_table_is_not_what_was_written(run: Path) -> None:
    table = pd.read_parquet(run / "prompts.parquet")
    table["entropy"] *= 1.01
    table.to_parquet(run / "prompts.parquet")
    with pytest.raises(RunError, match="prompts.parquet is damaged"):
        run_payload(run)


@pytest.mark.parametrize(
    ("key", "value"), [("tables", [[]]), ("warnings", [{}]), ("files", {"a": []}), ("versions", {"a": 1})]
)
def test_names_in_a_description_that_are_no_names(run: Path, key: str, value: object) -> None:
    content = json.loads((run / "run.json").read_text()) | {key: value}
    (run / "run.json").write_text(json.dumps(content | {"checksum": described_checksum(content)}))
    with pytest.raises(RunError, match=f"the {key} in run.json are damaged"):
        rs.open(run)


def test_a_null_killed_after_its_draw_keeps_its_factors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wanted = tiny("llama"), {"tokens": tokens(1, 8), "null": "random", "null_draws": 2}

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(profiling, "examples", killed)
        with pytest.raises(KeyboardInterrupt):
            rs.profile(model, out=tmp_path / "run", **wanted)
    resumed = rs.profile(model, out=tmp_path / "run", **wanted)
    assert resumed.tables["null_factors"]["draw"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["reproduce", "p2-tasks", "--one-hop", "[/red]"], "no such run folder: [/red]"),
        (["profile", "a\nb"], "no model called 'a b'"),
        (
            ["profile", "number", "--prompts", "1", "--null", "none", "--no-page", "--out", "\udcff"],
            "is no UTF-8",
        ),
    ],
)
def test_refused_in_one_line(
    line: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(line)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("rotoscope: ")
    assert said.count("\n") == 1
    assert words in said


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.gguf")


def test_a_gguf_file_that_does_not_say_its_heads(gguf: Path) -> None:
    gguf.write_bytes(gguf.read_bytes().replace(b"attention.head_count", b"attention.head_coxnt"))
    with pytest.raises(ModelError, match="llama.attention.head_count is missing"):
        rs.load(gguf, device="cpu")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b"`" + bytes(12) + b"s\x01", b"`" + bytes(12) + b"s\x00", "is not where the tensor before it ends"),
        (b"output.weight\x02", b"ottput.weight\x02", "it has a tensor 'ottput.weight'"),
        (b"", bytes(64), "its tensors end after"),
    ],
)
def test_a_gguf_file_whose_tensors_are_not_its_own(gguf: Path, before: bytes, after: bytes, words: str) -> None:
    content = gguf.read_bytes()
    gguf.write_bytes(content.replace(before, after, 1) if before else content + after)
    with pytest.raises(ModelError, match=words):
        rs.load(gguf, device="cpu")


def test_a_run_killed_at_its_very_end_is_tidied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its description was written, before its pieces and its lock were removed."""
    wanted = {"tokens": tokens(1, 8), "null": "none", "out": tmp_path / "run"}

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Place, "leave", killed)
        with pytest.raises(KeyboardInterrupt):
            rs.profile(tiny("llama"), **wanted)
    gc.collect()  # the lock ends with the process, here with what held it
    assert (tmp_path / "run" / "pieces").exists()
    rs.profile(tiny("llama"), **wanted)
    assert not (tmp_path / "run" / "pieces").exists()
    assert not (tmp_path / "run" / ".lock").exists()


def test_folders_of_a_killed_process_go_when_the_run_is_finished(tmp_path: Path) -> None:
    """A checkpoint that was being written, and the rest of a run that was being replaced."""
    wanted = {"tokens": tokens(1, 8), "null": "none", "out": tmp_path / "run"}
    rs.profile(tiny("llama"), **wanted)
    left = [tmp_path / "run" / ".checkpoint-0.26419.part", tmp_path / "run" / ".replaced"]
    kept = tmp_path / "run" / "notes" / "mine.txt"
    for file in (*(folder / "config.json" for folder in left), kept):
        file.parent.mkdir()
        file.write_text("{}")
    rs.profile(tiny("llama"), **wanted)
    assert not any(folder.exists() for folder in left)
    assert kept.exists()


def test_a_place_two_thousand_folders_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deeper than Python calls itself; from here on, since a whole path must not be that long."""
    monkeypatch.chdir(tmp_path)
    deep = Path("d/" * 1500 + "run")
    try:
        rs.profile(tiny("llama"), tokens=tokens(1, 8), null="none", out=deep)
        assert rs.open(deep).heads.shape[0] > 0
    finally:
        remove(tmp_path / "d")


def test_a_gguf_list_longer_than_its_file(gguf: Path) -> None:
    """gguf's reader would count up to the length that the file gives, without an end."""
    content = gguf.read_bytes()
    key = b"tokenizer.ggml.tokens"
    at = content.index(key) + len(key) + 8  # after the types of the value and of its entries
    gguf.write_bytes(content[:at] + struct.pack("<Q", 2**63 - 1) + content[at + 8 :])
    with pytest.raises(ModelError, match="more than there is room for"):
        rs.load(gguf, device="cpu")


def test_settings_nested_without_end(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path / "model")
    inner: object = 0
    for _ in range(300):
        inner = [inner]
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"a": inner}))
    with pytest.raises(ModelError, match="settings within settings more than 60 deep"):
        rs.load(tmp_path / "model", device="cpu")


def test_a_gguf_file_that_says_it_has_a_billion_blocks(gguf: Path) -> None:
    content = gguf.read_bytes()
    key = b"block_count"
    at = content.index(key) + len(key) + 4  # after the type of the value
    gguf.write_bytes(content[:at] + struct.pack("<I", 10**9) + content[at + 4 :])
    with pytest.raises(ModelError, match="says it has 1000000000 blocks"):
        rs.load(gguf, device="cpu")
