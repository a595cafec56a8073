"""A training that was stopped and goes on: its run goes on, and has no point twice."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import transformers as tf

import rotoscope as rs
from tests.monitor.trained import TOKENS, fresh, loop, trainer


class Stopped(Exception):
    pass


class StopAt(tf.TrainerCallback):
    """Ends a training in the middle, as losing the machine would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Stopped


SAVED = {"save_strategy": "steps", "save_steps": 3}


def monitored(folder: Path, **how: Any) -> rs.HeadMonitor:
    return rs.HeadMonitor(TOKENS, **{"every": 1, "out": folder / "run", "strict": True} | how)


def test_a_stopped_training_goes_on_with_its_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Stopped):
        trainer(tmp_path, fresh(), monitored(tmp_path), StopAt(5), **SAVED).train()
    with pytest.raises(rs.errors.RunError, match="not finished"):
        rs.open(tmp_path / "run")
    again = monitored(tmp_path)
    with caplog.at_level(logging.WARNING, logger="rotoscope"):
        trainer(tmp_path, fresh(), again, **SAVED).train(resume_from_checkpoint=True)
    assert "2 points after step 3" in caplog.text
    run = rs.open(tmp_path / "run")
    assert run.points["step"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert len(run.scores) == len(run.scores.drop_duplicates(["step", "layer", "head", "tau"]))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 7
    trainer(tmp_path / "whole", fresh(), monitored(tmp_path / "whole"), **SAVED).train()
    whole = rs.open(tmp_path / "whole" / "run")
    assert run.points["fingerprint"].tolist() == whole.points["fingerprint"].tolist()
    assert run.scores["symbolic_score"].to_numpy() == pytest.approx(whole.scores["symbolic_score"].to_numpy())


def test_the_point_it_goes_on_from_is_not_made_again(tmp_path: Path) -> None:
    model = loop(fresh(), first := monitored(tmp_path), steps=3)
    again = monitored(tmp_path)
    assert first.result.steps == [0, 1, 2, 3]
    again.begin(model, 3)
    assert again.step(model, 3) is None
    other = monitored(tmp_path)
    other.begin(fresh(), 3)
    assert other.step(fresh(), 3) is not None  # weights of another training


def test_a_finished_run_goes_on_when_the_training_does(tmp_path: Path) -> None:
    trainer(tmp_path, fresh(), monitored(tmp_path), max_steps=3, **SAVED).train()
    assert rs.open(tmp_path / "run").steps == [0, 1, 2, 3]
    trainer(tmp_path, fresh(), monitored(tmp_path), max_steps=5, **SAVED).train(resume_from_checkpoint=True)
    assert rs.open(tmp_path / "run").steps == [0, 1, 2, 3, 4, 5]


def test_a_finished_run_is_not_taken_for_another_training(tmp_path: Path) -> None:
    trainer(tmp_path, fresh(), monitored(tmp_path), max_steps=2).train()
    with pytest.raises(rs.errors.RunError, match="holds a finished run of such a training"):
        trainer(tmp_path, fresh(), monitored(tmp_path), max_steps=2).train()
    trainer(tmp_path, fresh(), monitored(tmp_path, overwrite=True), max_steps=1).train()
    assert rs.open(tmp_path / "run").steps == [0, 1]


def test_other_prompts_are_another_run(tmp_path: Path) -> None:
    loop(fresh(), monitored(tmp_path), steps=1)
    with pytest.raises(rs.errors.RunError, match="other settings"):
        rs.HeadMonitor(TOKENS - 1, every=1, out=tmp_path / "run").step(fresh(), 0)
