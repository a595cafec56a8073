"""Datasets that are stopped in the middle go on, and nothing of anyone else is replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rotoscope.errors import RunError
from rotoscope.lab import TrainSettings, export_dataset
from tests.disk import full_disk

SETTINGS = TrainSettings(
    task="letter", train_sequences=40, validation_sequences=9, test_sequences=2000, batch=1
)
ROOM = 20_000
"""Bytes: enough for two of the parts, not for the third."""


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }


def test_the_task_that_is_solved_either_way_is_written(tmp_path: Path) -> None:
    sizes = {"train_sequences": 20, "validation_sequences": 5, "test_sequences": 5}
    *files, card = export_dataset(
        TrainSettings.preset("paper", task="either", batch=1, **sizes), tmp_path / "either"
    )
    rows = pd.read_parquet(files[0])
    asked, answer = rows["text"].str.split().str[-1], rows["answer"]
    pairs = [set(text.split()[:-1]) for text in rows["text"]]
    assert all(letter + digit in found for letter, digit, found in zip(asked, answer, pairs, strict=True))
    assert "Every place of the window has letters of its own" in card.read_text()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A dataset for which there was no room."""
    with full_disk(ROOM), pytest.raises(RunError, match="test-00000-of-00001.parquet cannot be written"):
        export_dataset(SETTINGS, tmp_path / "stopped")
    assert [file.name for file in sorted((tmp_path / "stopped" / "data").iterdir())] == [
        "train-00000-of-00001.parquet", "validation-00000-of-00001.parquet",
    ]  # fmt: skip
    return tmp_path / "stopped"


def test_the_same_command_goes_on(stopped: Path, tmp_path: Path) -> None:
    kept = stopped / "data" / "train-00000-of-00001.parquet"
    (stopped / "data" / ".test-00000-of-00001.parquet.1.part").write_bytes(b"left by a killed process")
    before = kept.stat()
    export_dataset(SETTINGS, stopped)
    export_dataset(SETTINGS, tmp_path / "whole")
    assert content(stopped) == content(tmp_path / "whole")
    assert kept.stat().st_ino == before.st_ino  # not made again


def test_other_settings_do_not_go_on_from_there(stopped: Path, tmp_path: Path) -> None:
    other = replace(SETTINGS, seed=1)
    with pytest.raises(RunError, match="holds an unfinished dataset with other settings; choose another --out"):
        export_dataset(other, stopped)
    export_dataset(other, stopped, overwrite=True)
    export_dataset(other, tmp_path / "whole")
    assert content(stopped) == content(tmp_path / "whole")


def test_a_replacement_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """The parts of the dataset that was to be replaced are not taken for its own."""
    other = replace(SETTINGS, seed=1)
    export_dataset(SETTINGS, tmp_path / "data")
    with full_disk(ROOM), pytest.raises(RunError, match="cannot be written"):
        export_dataset(other, tmp_path / "data", overwrite=True)
    export_dataset(other, tmp_path / "data")
    export_dataset(other, tmp_path / "whole")
    assert content(tmp_path / "data") == content(tmp_path / "whole")


@pytest.mark.parametrize("left", ["nothing", ".unfinished.json", ".README.md.12.part"])
def test_a_try_that_came_to_nothing_is_no_obstacle(tmp_path: Path, left: str) -> None:
    """A corrected setting after it is not another setting."""
    (tmp_path / "data" / "data").mkdir(parents=True)
    if left != "nothing":
        (tmp_path / "data" / left).write_text('{"whole": [], "settings": {"seed": 9}}')
    assert len(export_dataset(SETTINGS, tmp_path / "data")) == 4
    assert left not in content(tmp_path / "data")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(RunError, match="is no dataset of rotoscope, so nothing is written there"):
        export_dataset(SETTINGS, tmp_path, overwrite=overwrite)
    assert content(tmp_path) == {"README.md": b"my project"}
