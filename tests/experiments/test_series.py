"""Checkpoints that were published as branches of a model: which are taken, what is fetched, what is said of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch
from huggingface_hub import constants

import rotoscope as rs
from rotoscope.errors import ModelError, RunError
from rotoscope.experiments.train.series import find_series
from rotoscope.experiments.train.settings import SeriesSettings
from rotoscope.experiments.train.watch import sampled
from rotoscope.models.hub import lacking
from tests.hub import Hub, serving
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny, tokens

STEPS = (0, 1, 10, 100)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A tiny model that wanders through its weights."""
    model, places = tiny("llama", num_hidden_layers=1), {}
    generator = torch.Generator().manual_seed(0)
    for step in STEPS:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
        places[step] = tmp_path_factory.mktemp(f"at-{step}")
        model.save_pretrained(places[step])
        word_tokenizer().save_pretrained(places[step])
    return places


@pytest.fixture
def hub(tmp_path: Path, walk: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with that model as org/model, a branch for every step and main for the last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    with serving(tmp_path / "hub", monkeypatch) as running:
        running.models["org/model"] = {f"step{step}": walk[step] for step in STEPS} | {"main": walk[100]}
        yield running


def scored(
    revisions: str | Sequence[str] = "step*", out: Path | None = None, **settings: object
) -> rs.experiments.Dynamics:
    prompts = rs.tasks.from_tokens(tokens(1, 6))
    return rs.dynamics("org/model", revisions=revisions, prompts=prompts, device="cpu", out=out, **settings)


def test_branches_are_scored_in_order_and_fetched_once(
    hub: Hub, walk: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    names = [f"step{step}" for step in STEPS]
    weights = [file.stat().st_size for place in walk.values() for file in place.glob("*.safetensors")]
    shared = sum(file.stat().st_size for file in walk[0].glob("*.json"))
    assert lacking("org/model", names) == (names, sum(weights) + shared)
    found = scored(out=tmp_path / "run")
    assert found.steps == list(STEPS)
    assert found.points["revision"].tolist() == names
    assert found.points["fingerprint"].tolist() == [
        rs.load(walk[step], device="cpu", dtype="float32").weights_fingerprint for step in STEPS
    ]
    assert found.run.warnings == []
    assert found.run.settings["revisions"] == names
    said = f"4 of 4 revisions of org/model are fetched: {(sum(weights) + shared) / 1e6:.1f} MB\n"
    assert said in capsys.readouterr().err
    assert sum(path.endswith("model.safetensors") for path in hub.downloads) == 4
    hub.asked.clear()
    again = scored(out=tmp_path / "run")
    pd.testing.assert_frame_equal(again.scores, found.scores)
    for step in STEPS:
        rs.load("org/model", revision=f"step{step}", device="cpu")
    assert hub.downloads == []
    assert "fetched" not in capsys.readouterr().err


def test_a_branch_that_has_moved_is_noticed(hub: Hub, walk: dict[int, Path], tmp_path: Path) -> None:
    before = scored(out=tmp_path / "run")
    assert before.run.device == "cpu"
    hub.models["org/model"]["step1"] = walk[100]
    rs.load("org/model", revision="step1", device="cpu")
    with pytest.raises(RunError, match="step1 has changed since"):
        scored(out=tmp_path / "run")
    after = scored(out=tmp_path / "run", overwrite=True)
    assert (after.points["content"] != before.points["content"]).tolist() == [False, True, False, False]


def loaded(*patterns: str, most: int | None = None) -> list[tuple[int, str]]:
    """The steps of a series and what their weights are, without anything scored."""
    series = find_series("org/model", SeriesSettings(revisions=patterns, most=most))
    return [(one.step, rs.load(one.source, device="cpu").fingerprint) for one in series.checkpoints]


def test_only_what_is_missing_is_fetched(hub: Hub, capsys: pytest.CaptureFixture) -> None:
    assert [step for step, _ in loaded("step*", most=2)] == [0, 100]
    assert not any("step1" in path and "step100" not in path for path in hub.asked)
    hub.asked.clear()
    capsys.readouterr()
    assert [step for step, _ in loaded("step1", "step100", "step0")] == [0, 1, 100]
    (fetched,) = hub.downloads  # the tokenizer is the same
    assert fetched.endswith("model.safetensors")
    assert "1 of 3 revisions of org/model are fetched" in capsys.readouterr().err


def test_offline_what_was_fetched_is_a_series(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded("step*", most=2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert loaded("step*") == found
    with pytest.raises(ModelError, match="'org/other' was not fetched from the hub before, and HF_HUB_OFFLINE"):
        rs.dynamics("org/other", revisions="*")
    assert hub.asked == []


def test_what_cannot_be_asked_for(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'org/none' could not be loaded from the hub"):
        rs.dynamics("org/none", revisions="step*")
    with pytest.raises(
        ModelError,
        match=r"no branch or tag of 'org/model' fits 'ckpt\*' or 'x' .*there are main, step0, step1, ",
    ):
        scored(("ckpt*", "x"))
    with pytest.raises(
        ModelError, match="fits 'm\\*' and names a step, as step1000 does; those that fit are main"
    ):
        scored("m*")
    with pytest.raises(
        ModelError, match="no such folder: org/model; if it is a model on the hub, .*--revisions 'step"
    ):
        rs.dynamics("org/model")
    with pytest.raises(ModelError, match=f"and {tmp_path} is none: give org/name"):
        rs.dynamics(tmp_path, revisions="step*")
    with pytest.raises(rs.errors.RotoscopeError, match="most must be at least 1, found 0"):
        scored(most=0)
    assert hub.downloads == []


def test_names_without_a_step_are_said_and_left_out(hub: Hub) -> None:
    series = find_series("hf:org/model", SeriesSettings(revisions=("*",)))
    assert [one.step for one in series.checkpoints] == list(STEPS)
    assert series.warnings == ("left out, since their names name no step: main",)


def test_stages_count_on_whatever_is_asked_for(hub: Hub, walk: dict[int, Path]) -> None:
    names = ("stage1-step10-tokens1B", "stage1-step20-tokens2B", "stage2-step5-tokens1B")
    hub.models["org/model"] = dict(zip(names, walk.values(), strict=False))
    later = find_series("org/model", SeriesSettings(revisions=("stage2*",)))
    assert [one.step for one in later.checkpoints] == [25]
    assert "begin again at 5: they count on from 20" in later.warnings[0]
    assert find_series("org/model", SeriesSettings(revisions=("stage1*",))).warnings == ()


def test_no_room_for_what_would_be_fetched(hub: Hub) -> None:
    hub.larger["step10"] = 10**18
    with pytest.raises(
        ModelError,
        match=r"4 of 4 revisions of org/model are still to be fetched, 1,000,000,000\.0 GB, and .* are free",
    ):
        scored()
    assert hub.downloads == []
    assert len(loaded("step0", "step1")) == 2


def test_a_revision_that_cannot_be_fetched_is_left_out_until_it_can(hub: Hub, tmp_path: Path) -> None:
    hub.broken = {"step10", "step100"}
    found = scored(out=tmp_path / "run")
    assert found.steps == [0, 1]
    assert [said.split(":")[0] for said in found.run.warnings] == [
        "step10 was left out",
        "step100 was left out",
    ]
    assert scored(out=tmp_path / "run").steps == [0, 1]
    hub.broken = {"step100"}
    hub.asked.clear()
    mended = scored(out=tmp_path / "run")
    assert len(hub.downloads) == 1
    assert mended.steps == [0, 1, 10]
    assert [said.split(":")[0] for said in mended.run.warnings] == ["step100 was left out"]
    whole = mended.scores.query("step != 10").reset_index(drop=True)
    pd.testing.assert_frame_equal(whole, found.scores)
    pd.testing.assert_frame_equal(rs.open(tmp_path / "run").weights, mended.weights)


def test_damaged_weights_on_the_hub(hub: Hub, walk: dict[int, Path], tmp_path: Path) -> None:
    shutil.copytree(walk[10], tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    hub.models["org/model"]["step10"] = tmp_path / "damaged"
    found = scored(["step1", "step10"])
    assert found.steps == [1]
    assert found.run.warnings[0].startswith(
        "step10 was left out: the model in org/model@step10 cannot be loaded"
    )
    with pytest.raises(ModelError, match="no checkpoint of org/model could be read: step10 was left out"):
        scored("step10")


def test_weights_out_of_order_are_said(hub: Hub, walk: dict[int, Path]) -> None:
    hub.models["org/model"] |= {"step1": walk[10], "step10": walk[1]}
    (said,) = scored().run.warnings
    assert said.startswith("steps 1 and 10 seem to have each other's weights")


def test_equal_weights_are_said_of_folders_too(walk: dict[int, Path], tmp_path: Path) -> None:
    for step, other in zip(STEPS, (0, 1, 1, 100), strict=True):
        (tmp_path / f"checkpoint-{step}").symlink_to(walk[other])
    prompts = rs.tasks.from_tokens(tokens(1, 6))
    said = rs.dynamics(tmp_path, prompts=prompts, device="cpu").run.warnings
    assert said == ["steps 1 and 10 have the same weights"]
    few = rs.dynamics(tmp_path, prompts=prompts, device="cpu", most=2)
    assert (few.steps, few.run.warnings) == ([0, 100], [])


def test_a_real_training_is_in_order_until_two_are_exchanged(trained: dict[str, rs.lab.Training]) -> None:
    """Also said by a run that is put together from its tables; that nothing is said of whole runs is in test_dynamics."""
    for run in trained.values():
        subjects = {
            step: rs.load(run.folder / f"checkpoint-{step}", device="cpu") for step in (0, 50, 150, 300)
        }
        for steps, said in (
            ((0, 50, 150, 300), ""),
            ((0, 150, 50, 300), "steps 50 and 150 seem to have each other's"),
        ):
            found = [sampled(step, subjects[other]) for step, other in zip(subjects, steps, strict=True)]
            made = rs.experiments.Dynamics(rs.runs.RunRecord(), {"weights": pd.concat(found)})
            assert " ".join(made.caveats()).startswith(said)
            assert len(made.caveats()) == bool(said)
