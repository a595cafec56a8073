"""Multi-hop sequences on disk: what training sees, with a card, in place of nothing but another dataset."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError, TaskError
from rotoscope.lab.sequences import training_sequences
from rotoscope.lab.settings import TrainSettings
from tests.disk import full_disk

SIZES = {"validation": 9, "test": 20}


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }


@pytest.mark.parametrize("task", ["number", "letter"])
def test_a_dataset_is_what_training_sees(task: str, tmp_path: Path) -> None:
    from huggingface_hub import DatasetCard

    samples = getattr(rs.tasks, task)(329)
    files = samples.save(tmp_path / "data", **SIZES)
    assert [file.name.split("-")[0] for file in files] == ["train", "validation", "test", "README.md"]
    settings = TrainSettings(
        task=task, train_sequences=300, validation_sequences=9, test_sequences=20, hops=4, target=8, window=8
    )
    for part, file in zip(("train", "validation", "test"), files, strict=False):
        table = pd.read_parquet(file)
        trained = training_sequences(settings, part)
        assert table["text"].tolist() == [" ".join(one.tokens) for one in trained]
        assert table["answer"].tolist() == [one.answer for one in trained]
        assert [tuple(path) for path in table["path"]] == [one.path for one in trained]
        assert table["hops"].tolist() == trained.hops.tolist()
        assert table["token_ids"].map(list).tolist() == trained.tokens.tolist()
        assert table["answer_id"].tolist() == trained.answer.tolist()
    card = DatasetCard.load(tmp_path / "data" / "README.md")
    assert card.data.configs[0]["data_files"][0] == {"split": "train", "path": "data/train-*.parquet"}
    assert f"rs.tasks.{task}(" in card.text


def test_by_default_everything_is_for_training(tmp_path: Path) -> None:
    [file, card] = rs.tasks.either(30).save(tmp_path / "data")
    rows = pd.read_parquet(file)
    assert len(rows) == 30
    asked, answer = rows["text"].str.split().str[-1], rows["answer"]
    pairs = [set(text.split()[:-1]) for text in rows["text"]]
    assert all(letter + digit in found for letter, digit, found in zip(asked, answer, pairs, strict=True))
    text = card.read_text()
    assert "Every place of the window has letters of its own" in text
    assert "split: test" not in text


def test_sequences_that_are_in_training_as_well_are_counted(tmp_path: Path) -> None:
    samples = rs.tasks.number(248, letters=3, hops=1, target=2, window=1)
    *_, card = samples.save(tmp_path / "data", validation=8, test=40)
    train, test = ({one.tokens for one in part} for part in (samples[:200], samples[208:]))
    assert test & train
    assert f"| test | 40 | {len(test)} | {len(test & train)} |" in card.read_text()


def test_a_split_that_is_larger_than_the_sequences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="29 sequences cannot be split into training, 9 for validation and 20"):
        rs.tasks.letter(29).save(tmp_path / "data", **SIZES)
    assert not (tmp_path / "data").exists()


def test_a_dataset_is_replaced_when_asked_whole_or_not_at_all(tmp_path: Path) -> None:
    samples = rs.tasks.letter(2000)
    samples[:60].save(tmp_path / "data", **SIZES)
    before = content(tmp_path)
    with pytest.raises(RunError, match="holds a dataset; choose another folder, or overwrite=True"):
        samples.save(tmp_path / "data")
    with full_disk(10_000), pytest.raises(RunError, match="cannot be written"):
        samples.save(tmp_path / "data", overwrite=True)
    assert content(tmp_path) == before
    samples.save(tmp_path / "data", overwrite=True)
    assert [file.name for file in (tmp_path / "data" / "data").iterdir()] == ["train-00000-of-00001.parquet"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["README.md", "data/notes.txt"])
def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path, overwrite: bool, name: str) -> None:
    place = tmp_path / "data"
    if name != "README.md":
        rs.tasks.letter(5).save(place)
    place.mkdir(exist_ok=True)
    (place / name).write_text("my project")
    before = content(place)
    with pytest.raises(RunError, match="is no dataset of rotoscope, so nothing is written there"):
        rs.tasks.letter(6).save(place, overwrite=overwrite)
    assert content(place) == before
