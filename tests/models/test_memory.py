"""What cannot fit is refused with the bytes that it needs and those that are free."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rotoscope as rs
from rotoscope.errors import TooLargeError
from rotoscope.models import devices as memory
from rotoscope.models.devices import check_disk, check_memory, free_disk, free_memory, size_text
from tests.tiny_models import tiny, tokens

CPU = torch.device("cpu")


def test_what_fits_to_the_byte_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1500)
    check_memory("this work", 1500, CPU, "ask for less")
    words = r"this work needs 1\.5 kB of memory, and 1\.5 kB are free on cpu: ask for less"
    with pytest.raises(TooLargeError, match=words):
        check_memory("this work", 1501, CPU, "ask for less")


def test_nothing_is_refused_where_nobody_knows_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    check_memory("this work", 10**18, CPU, "ask for less")


def test_a_folder_counts_what_it_holds_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on needs the rest only."""
    monkeypatch.setattr(memory, "free_disk", lambda folder: 1000)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "table").write_bytes(bytes(500))
    check_disk("this run", 1500, tmp_path / "run", "ask for less")
    with pytest.raises(TooLargeError, match=r"this run needs 1\.5 kB of disk space, and 1\.5 kB are free for"):
        check_disk("this run", 1501, tmp_path / "run", "ask for less")
    check_disk("a run in memory", 10**18, None, "ask for less")


def test_a_disk_is_asked_by_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_disk(tmp_path / "not" / "yet") == pytest.approx(free_disk(tmp_path), rel=0.1)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (2_500_000, "2.5 MB"),
        (4 * 10**9, "4.0 GB"),
        (3 * 10**15, "3,000.0 TB"),
    ],
)
def test_bytes_are_written_in_their_unit(size: int, words: str) -> None:
    assert size_text(size) == words


def test_a_random_null_needs_a_second_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, whatever its subject is."""
    subject = rs.load(tiny("llama").to(torch.bfloat16))
    needed = 4 * sum(weight.numel() for weight in subject.model.parameters())
    how = {"tokens": tokens(1, 12), "null_draws": 1, "show_progress": False}
    monkeypatch.setattr(memory, "free_memory", lambda device: needed - 1)
    with pytest.raises(
        TooLargeError, match="a random model of the size of .*: use --null gaussian or --null none"
    ):
        rs.profile(subject, **how)
    rs.profile(subject, null="none", **how)
    monkeypatch.setattr(memory, "free_memory", lambda device: needed)
    rs.profile(subject, **how)


def test_free_memory_is_known_here() -> None:
    free = free_memory(CPU)
    assert free is not None
    assert free > 0
