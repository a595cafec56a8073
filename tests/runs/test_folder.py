from __future__ import annotations

import errno

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.runs import files
from rotoscope.runs.files import write_table
from rotoscope.runs.record import RunRecord
from tests.tiny_models import tiny, tokens


@pytest.fixture
def saved(tmp_path):
    found = rs.profile(tiny("llama"), tokens=tokens(2, 10), null="none")
    return found, found.save(tmp_path / "run")


def test_round_trip(saved) -> None:
    found, path = saved
    opened = rs.open(path)
    pd.testing.assert_frame_equal(opened.heads, found.heads)
    pd.testing.assert_frame_equal(opened.prompts, found.prompts)
    assert opened.run.subject == found.run.subject
    assert opened.run.proof == found.run.proof
    assert opened.run.settings["tau"] == [1e-4]
    pd.testing.assert_frame_equal(pd.read_parquet(path / "heads.parquet"), found.heads)


@pytest.mark.slow
def test_to_xarray(saved) -> None:
    found, _ = saved
    cube = found.to_xarray()
    assert dict(cube.sizes) == {"prompt": 2, "layer": 3, "head": 4, "tau": 1}
    row = found.prompts.query("prompt == 1 and layer == 2 and head == 3").iloc[0]
    assert cube["entropy"].sel(prompt=1, layer=2, head=3).item() == pytest.approx(row["entropy"])


def test_storage(saved) -> None:
    _, path = saved
    meta = pq.ParquetFile(path / "prompts.parquet").metadata.row_group(0)
    columns = {meta.column(k).path_in_schema: meta.column(k) for k in range(meta.num_columns)}
    assert columns["positional_score"].compression == "ZSTD"
    assert "BYTE_STREAM_SPLIT" in columns["positional_score"].encodings
    assert any("DICTIONARY" in encoding for encoding in columns["layer"].encodings)


def test_missing_scores_are_null_in_the_file(tmp_path) -> None:
    rs.profile(tiny("mistral"), tokens=tokens(1, 20), blocks=[(0, 4), (4, 8)], null="none").save(
        tmp_path / "run"
    )
    column = pq.read_table(tmp_path / "run" / "heads.parquet")["positional_score"]
    assert column.null_count == len(column)


def test_unknown_columns_are_ignored(saved) -> None:
    found, path = saved
    table = pd.read_parquet(path / "prompts.parquet").assign(something_new=1.0)
    write_table(path / "prompts.parquet", table)
    run = RunRecord.read(path)
    run.files["prompts.parquet"] = files.checksum(path / "prompts.parquet")
    run.write(path)
    assert np.allclose(rs.open(path).heads["positional_score"], found.heads["positional_score"])


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}"])
def test_damaged_description(saved, damage: str) -> None:
    _, path = saved
    (path / "run.json").write_text(damage)
    with pytest.raises(RunError, match=r"run.json is damaged \(.*\); make the run again with --overwrite"):
        rs.open(path)


def test_damaged_and_missing_tables(saved) -> None:
    _, path = saved
    (path / "prompts.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        RunError, match=r"prompts.parquet is damaged .*again with --overwrite \(its settings are in"
    ):
        rs.open(path)
    (path / "prompts.parquet").unlink()
    with pytest.raises(RunError, match=r"prompts.parquet is missing in .*again with --overwrite"):
        rs.open(path)


def test_places_that_are_no_runs(tmp_path) -> None:
    with pytest.raises(RunError, match="no such run folder"):
        rs.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match="no run folder"):
        rs.open(tmp_path)
    (tmp_path / "mine.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="nothing is written there"):
            rs.profile(tiny("llama"), tokens=tokens(), out=tmp_path, overwrite=overwrite)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_full_disk_leaves_no_half_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pq.write_table

    def full(table, file, **options) -> None:
        whole(table, file, **options)
        file.write_bytes(file.read_bytes()[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.pq, "write_table", full)
    with pytest.raises(RunError, match="the disk is full"):
        rs.profile(tiny("llama"), tokens=tokens(2, 10), out=tmp_path / "run", null="none")
    left = [file.name for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert set(left) == {"run.json", "manifest.txt", ".lock"}
    monkeypatch.undo()
    assert len(rs.profile(tiny("llama"), tokens=tokens(2, 10), out=tmp_path / "run", null="none").heads) == 12
