"""Training: it learns, it can be killed at any moment, and what it leaves behind can be used by others."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError, TaskError
from rotoscope.lab import training
from rotoscope.lab.sequences import training_sequences
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.trainer import Trainer
from rotoscope.runs.run import Run
from tests.campaign.kinds import forked
from tests.waiting import wait_until

TINY = {
    "hops": 2,
    "target": 4,
    "window": 4,
    "letters": 8,
    "train_sequences": 2000,
    "validation_sequences": 200,
    "test_sequences": 200,
    "layers": 2,
    "width": 32,
    "positions": 64,
    "steps": 120,
    "batch": 32,
    "watch_every": 10,
    "learning_rate": 2e-3,
    "dropout": 0.1,
}


def weights_of(folder: Path, step: int = 120) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


@pytest.mark.parametrize(
    ("preset", "symbolic"), [("trained", 2), pytest.param("mini", 3, marks=pytest.mark.slow)]
)
def test_both_tasks_are_learned_and_told_apart(
    preset: str, symbolic: int, request: pytest.FixtureRequest
) -> None:
    runs: dict[str, rs.lab.Training] = request.getfixturevalue(preset)
    for run in runs.values():
        assert (run.test["accuracy"] >= 0.95).all()
    ends = {task: rs.dynamics(run).pure_from() for task, run in runs.items()}
    positional = {task: end["positional_score"].mean() for task, end in ends.items()}
    assert positional["number"] > positional["letter"] + 0.25
    assert (ends["letter"]["head_class"] == "symbolic").sum() >= symbolic


def test_heads_begin_undecided(trained: dict[str, rs.lab.Training]) -> None:
    for run in trained.values():
        start = rs.dynamics(run).at()[lambda t: t["step"] == 0]
        assert (start[["positional_score", "symbolic_score"]] >= 0.95).all(axis=None)


def test_the_schedule_rises_and_falls() -> None:
    settings = TrainSettings(task="number", **{**TINY, "warmup": 20})
    trainer = Trainer(settings, torch.device("cpu"))
    rates = []
    for step in range(1, 121):
        trainer.run_to(step)
        rates.append(float(trainer.rate))
    top = rates.index(max(rates))
    assert 18 <= top <= 21
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(2e-3 / 100, rel=0.05)


def test_every_step_of_an_epoch_sees_other_sequences() -> None:
    settings = TrainSettings(task="number", **TINY)
    trainer = Trainer(settings, torch.device("cpu"))
    first = trainer.order[:2000]
    assert sorted(first.tolist()) == list(range(2000))
    assert not torch.equal(trainer.order[2000:3840], first[:1840])


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_killed_at_a_random_moment_it_ends_with_the_same_weights(tmp_path: Path, kills: int) -> None:
    settings = {**TINY, "steps": 240}
    watch = {"on_evaluate": rs.experiments.Watch(20), "device": "cpu"}
    whole = rs.lab.train("number", "mini", out=tmp_path / "whole", **watch, **settings)
    folder, killed = tmp_path / "killed", 0
    dice = random.Random(time.time_ns())

    def evaluated() -> int:
        lines = folder / "metrics.jsonl"
        return len(lines.read_text().splitlines()) if lines.is_file() else 0

    for _ in range(kills):
        until = min(evaluated() + dice.randint(4, 9), 20)
        process = forked(lambda: rs.lab.train("number", "mini", out=folder, **watch, **settings) is None)
        wait_until(lambda: evaluated() >= until)  # noqa: B023
        os.kill(process, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert killed >= 1
    rs.lab.train("number", "mini", out=folder, **watch, **settings)
    resumed = rs.open(folder)
    assert resumed.run.details["resumed_at"]
    for name, weight in weights_of(tmp_path / "whole", 240).items():
        assert torch.equal(weight, weights_of(folder, 240)[name]), name
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics)
    pd.testing.assert_frame_equal(resumed.tables["scores"], whole.tables["scores"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted(set(whole.metrics["step"]))


class Stop(Exception):
    """Ends a run in the middle."""


def stopping_at(step: int):
    def watch(evaluation):
        if evaluation.step >= step:
            raise Stop

    return watch


def test_the_time_before_a_stop_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own: every look takes a second, and nothing else takes any time."""
    now = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])

    def watch(stop: int, looks: list[int]):
        def look(evaluation):
            if evaluation.step >= stop:
                raise Stop
            looks.append(evaluation.step)
            now[0] += 1.0

        return look

    before: list[int] = []
    after: list[int] = []
    with pytest.raises(Stop):
        rs.lab.train(
            "letter",
            "mini",
            out=tmp_path / "run",
            on_evaluate=watch(40, before),
            device="cpu",
            **TINY | {"steps": 60},
        )
    now[0] += 1000.0
    run = rs.lab.train(
        "letter",
        "mini",
        out=tmp_path / "run",
        on_evaluate=watch(999, after),
        device="cpu",
        **TINY | {"steps": 60},
    )
    kept = [step for step in before if step <= run.run.details["resumed_at"]]
    assert kept
    assert run.run.timings["watching_s"] == len(kept) + len(after)


def test_a_damaged_state_is_named_and_the_one_before_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVING", math.inf)  # a state at every evaluation
    settings: dict[str, Any] = {"device": "cpu", **TINY, "steps": 50}
    with pytest.raises(Stop):
        rs.lab.train("letter", "mini", out=tmp_path / "run", on_evaluate=stopping_at(40), **settings)
    states = sorted((tmp_path / "run").glob("pieces/*/step-*.safetensors"))
    assert len(states) == 2
    states[-1].write_bytes(states[-1].read_bytes()[:1000])
    broken = int(states[-1].stem.split("-")[1])
    run = rs.lab.train("letter", "mini", out=tmp_path / "run", **settings)
    assert run.run.details["resumed_at"] == broken - 10
    assert f"after step {broken} could not be read" in run.run.warnings[0]
    whole = rs.lab.train("letter", "mini", out=tmp_path / "whole", **settings)
    assert whole.run.details["resumed_at"] is None
    assert all(
        torch.equal(weights_of(tmp_path / "run", 50)[k], w)
        for k, w in weights_of(tmp_path / "whole", 50).items()
    )


@pytest.mark.parametrize(
    ("look_s", "states", "pieces"),
    [(30.0, [10, 30, 50, 60], [0, 10, 20, 30, 40, 50, 60]), (2.0, [10, 60], [0, 10, 30, 60])],
)
def test_saving_takes_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float, states: list[int], pieces: list[int]
) -> None:
    """On a clock of our own: a state takes 1 s, so that one is due every 50 s; tables are written every 5 s and with states."""
    now, saved, added = [0.0], list[int](), list[str]()
    add = Run.add

    def look(evaluation):
        now[0] += look_s

    def save(trainee, point, state):
        now[0] += 1.0
        saved.append(point)

    def count(self, key, tables):
        added.append(key)
        add(self, key, tables)

    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(training, "_save", save)
    monkeypatch.setattr(Run, "add", count)
    settings = TINY | {"steps": 60}
    run = rs.lab.train("letter", "mini", out=tmp_path / "run", on_evaluate=look, device="cpu", **settings)
    assert saved == states
    assert added == [*(f"step-{step:08d}" for step in pieces), "test"]
    assert run.metrics["step"].unique().tolist() == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("task", ["number", "letter"])
def test_shuffled_answers_say_nothing_about_the_paths(task: str) -> None:
    right, twin = (TrainSettings(task=task, **TINY, answers=answers) for answers in ("right", "shuffled"))
    shown, shuffled = (training_sequences(settings, "train") for settings in (right, twin))
    assert torch.equal(shown.tokens, shuffled.tokens)
    assert torch.equal(shown.answer.sort().values, shuffled.answer.sort().values)
    chance = shown.answer.bincount().float().div(len(shown)).square().sum()
    assert (shown.answer == shuffled.answer).float().mean() == pytest.approx(float(chance), abs=0.03)
    judged = [training_sequences(settings, "validation").answer for settings in (right, twin)]
    assert torch.equal(*judged)
    assert "answers" not in right.stored()
    assert (twin.stored()["answers"], twin.name) == ("shuffled", f"{task}-shuffled-0")


def test_a_finished_run_is_read_back_and_other_settings_are_refused(tmp_path: Path) -> None:
    settings = {**TINY, "steps": 20}
    first = rs.lab.train("number", "mini", out=tmp_path / "run", device="cpu", **settings)
    written = (tmp_path / "run" / "run.json").read_text()
    again = rs.lab.train("number", "mini", out=tmp_path / "run", device="cpu", **settings)
    assert (tmp_path / "run" / "run.json").read_text() == written
    pd.testing.assert_frame_equal(again.metrics, first.metrics)
    with pytest.raises(RunError, match="task: number there, letter now"):
        rs.lab.train("letter", "mini", out=tmp_path / "run", device="cpu", **settings)
    assert rs.load(tmp_path / "run", device="cpu").name == "checkpoint-20"
    assert not (tmp_path / "run" / "pieces").exists()


def test_checkpoints_are_denser_early_on() -> None:
    settings = TrainSettings(task="number")
    assert settings.checkpoint_steps[0] == 0
    assert settings.checkpoint_steps[-1] == 22_500
    assert len(settings.checkpoint_steps) == 8
    assert all(step in settings.evaluations for step in (*settings.checkpoint_steps, *settings.saved))
    close = [b - a for a, b in zip(settings.evaluations, settings.evaluations[1:], strict=False) if b <= 6750]
    assert max(close) == 50
    assert len(settings.evaluations) >= 90


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hops": 6, "window": 3}, "window of at least 5"),
        ({"task": "words"}, "unknown task 'words'"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": 10**6}, "more than the"),
        ({"width": 33}, "does not split"),
        ({"task": "letter", "alphabet": 2}, "found 2 letters"),
        ({"checkpoints": 1}, "checkpoints must be at least 2, found 1: the first and the last"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict, message: str
) -> None:
    task = changes.pop("task", "number")
    with pytest.raises((RotoscopeError, TaskError), match=message):
        rs.lab.train(task, "mini", out=tmp_path / "run", device="cpu", **changes)
    assert not (tmp_path / "run").exists()


def test_unknown_settings_and_presets_are_named(tmp_path: Path) -> None:
    with pytest.raises(RotoscopeError, match="unknown setting 'depth'"):
        rs.lab.train("number", "mini", depth=3)
    with pytest.raises(RotoscopeError, match="unknown preset 'maxi'"):
        rs.lab.train("number", "maxi")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_a_resumed_run_ends_with_the_same_weights() -> None:
    settings, device = TrainSettings(task="number", **TINY), torch.device("cuda")
    one = Trainer(settings, device)
    one.run_to(50)
    state = {name: value.clone() for name, value in one.states()[0].items()}
    one.run_to(120)
    other = Trainer(settings, device)
    other.restore([state])
    other.run_to(120)
    assert all(
        torch.equal(a, b) for a, b in zip(one.model.weights.values(), other.model.weights.values(), strict=True)
    )


def test_a_device_that_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for device in ("nowhere", "cuda:99"):
        with pytest.raises(RotoscopeError, match=f"device '{device}' cannot be used"):
            rs.lab.train("number", "mini", device=device, out=tmp_path / "run")
        with pytest.raises(RotoscopeError, match=f"device '{device}' cannot be used"):
            rs.load("number", device=device)
    assert not (tmp_path / "run").exists()
