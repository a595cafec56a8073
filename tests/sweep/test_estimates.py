"""What items are expected to take, without any weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.analysis.estimate import estimate
from rotoscope.analysis.prompts import make_prompts
from rotoscope.reading.outline import outline
from rotoscope.settings import ProfileSettings, PromptSettings
from rotoscope.sweep import Expected, expected
from rotoscope.sweep.commands import Swept
from rotoscope.sweep.items import Item
from tests.models import tiny
from tests.reading.test_load import word_tokenizer


def item(command: str, **given: Any) -> Item:
    swept = Swept(command)
    return Item("one", swept, given, (), swept.understood(given))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny"
    tiny("llama", num_hidden_layers=2).save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    return place


def test_an_outline_has_every_shape_and_no_weight(folder: Path) -> None:
    whole, found = rs.load(folder, device="cpu"), outline(str(folder), device="cpu")
    assert found.device == torch.device("cpu")
    assert all(weight.is_meta for weight in found.model.parameters())
    shapes = [
        {name: (tuple(weight.shape), weight.dtype) for name, weight in one.model.named_parameters()}
        for one in (whole, found)
    ]
    assert shapes[0] == shapes[1]
    half = outline(str(folder), device="cpu", dtype="bfloat16")
    assert next(half.model.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("model", ["folder", "letter"])
def test_a_profile_is_expected_to_take_what_its_own_estimate_says(model: str, folder: Path) -> None:
    source = str(folder) if model == "folder" else model
    given = {
        "model": source,
        "task": "repeats",
        "prompts": 3,
        "null": "none",
        "figures": False,
        "device": "cpu",
    }
    found = expected(item("profile", **given))
    subject = rs.load(source, device="cpu")
    prompts = make_prompts(subject, PromptSettings(task="repeats", prompts=1))
    own = estimate(subject, prompts, ProfileSettings(null="none"), count=3)
    assert found.gigabytes == pytest.approx(own.gigabytes)
    assert found.seconds is not None
    assert own.seconds < found.seconds < own.seconds + 10


@pytest.mark.parametrize(
    ("command", "given", "more"),
    [
        ("profile", {"task": "repeats"}, {"prompts": 10_000}),
        ("profile", {"task": ["repeats"]}, {"task": ["repeats", "binding"], "pairs": 4}),
        ("gate", {"task": "repeats"}, {"prompts": 10_000}),
        ("depths", {"task": "repeats"}, {"prompts": 10_000}),
        ("plan", {"decision": "cache", "sources": ["repeats"], "length": 64}, {"prompts": 1000}),
        ("plan", {"decision": "rotation", "sources": ["repeats"], "length": 64}, {"prompts": 100}),
        ("plan", {"decision": "context", "sources": ["repeats"], "trained": 64, "to": 128}, {"to": 8192}),
        ("train", {"task": "number"}, {"steps": 20_000, "batch": 4000}),
        ("lengths", {"source": "letter", "lengths": [17, 25]}, {"lengths": [17, 5000]}),
    ],
)
def test_more_work_takes_more(command: str, given: dict[str, Any], more: dict[str, Any], folder: Path) -> None:
    base = given if command in ("train", "lengths") else {"model": str(folder), **given}
    less, much = (expected(item(command, device="cpu", **one)) for one in (base, base | more))
    assert less.problem == much.problem == ""
    assert less.seconds < much.seconds  # type: ignore[operator]
    assert 0.4 < less.gigabytes <= much.gigabytes  # type: ignore[operator]
    assert 0.1 < less.megabytes <= much.megabytes  # type: ignore[operator]


def test_what_a_plan_refuses_is_said_before_it_starts() -> None:
    """From the configuration alone; of the embedded model with the training length that it is known to have."""
    given = {"decision": "context", "model": "smollm2", "to": 1024, "device": "cpu"}
    assert "the model was trained on 2,048 tokens" in expected(item("plan", **given)).problem
    given = {"decision": "cache", "model": "letter", "device": "cpu"}
    assert "knows only the words of its letter task" in expected(item("plan", **given)).problem


def test_disk_is_what_a_run_takes(folder: Path, tmp_path: Path) -> None:
    """Within a factor of two, figures aside."""
    given = {"model": str(folder), "task": "repeats", "prompts": 8, "figures": False, "device": "cpu"}
    rs.profile(
        rs.load(folder, device="cpu"),
        make_prompts(rs.load(folder), PromptSettings(task="repeats", prompts=8)),
        out=tmp_path / "run",
    )
    taken = sum(file.stat().st_size for file in (tmp_path / "run").iterdir()) / 1e6
    assert taken / 2 < expected(item("profile", **given)).megabytes < 2 * taken  # type: ignore[operator]


def test_what_is_not_known_is_said() -> None:
    assert expected(item("theory")) == Expected(problem="theory has no estimate")
    assert "no such folder: ./nowhere" in expected(item("profile", model="./nowhere")).problem
    assert "pointing" in expected(item("profile", model="letter", task="lookup")).problem or (
        "knows only the words of its letter task"
        in expected(item("profile", model="letter", task="lookup")).problem
    )
