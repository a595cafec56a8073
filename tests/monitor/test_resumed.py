"""A training that was stopped and goes on: its run goes on, and has no point twice."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
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


@pytest.mark.parametrize("step", [0, 2, 3, 5])
@pytest.mark.parametrize("finished", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_points_of_another_training_are_not_kept(tmp_path: Path, step: int, finished: bool) -> None:
    first = monitored(tmp_path, every=[0, 3])
    loop(fresh(), first, steps=3)
    if finished:
        first.finish()
    before = sorted(file.name for file in (tmp_path / "run").rglob("*.parquet"))
    torch.manual_seed(1)
    other = tf.LlamaForCausalLM(fresh().config)
    with pytest.raises(rs.errors.RunError, match="holds (points of another|a finished run of such a) training"):
        monitored(tmp_path, every=[0, 3]).begin(other, step)
    assert sorted(file.name for file in (tmp_path / "run").rglob("*.parquet")) == before


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


def test_a_finished_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    """A loop that is watched from step 1 on, run again in the same place: it is no resumed training."""
    first = monitored(tmp_path)
    for step in (1, 2, 3):
        first.step(fresh(), step)
    first.finish()
    with pytest.raises(rs.errors.RunError, match="holds a finished run of such a training"):
        monitored(tmp_path).step(fresh(hidden_act="relu", rms_norm_eps=1e-3).double(), 1)
    assert rs.open(tmp_path / "run").steps == [1, 2, 3]


def test_a_training_that_comes_back_to_a_step_it_passed_goes_on_from_there(tmp_path: Path) -> None:
    trainer(tmp_path, fresh(), monitored(tmp_path), **SAVED).train()
    checkpoint = str(tmp_path / "trained" / "checkpoint-3")
    with pytest.raises(Stopped):
        trainer(tmp_path, fresh(), monitored(tmp_path), StopAt(4), **SAVED).train(
            resume_from_checkpoint=checkpoint
        )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5  # steps 0 to 4: those before 3 were carried over


def test_a_resumed_training_keeps_its_points_also_where_runs_are_overwritten(tmp_path: Path) -> None:
    trainer(tmp_path, fresh(), monitored(tmp_path, overwrite=True), max_steps=3, **SAVED).train()
    again = trainer(tmp_path, fresh(), monitored(tmp_path, overwrite=True), max_steps=4, **SAVED)
    again.train(resume_from_checkpoint=True)
    assert rs.open(tmp_path / "run").steps == [0, 1, 2, 3, 4]


def test_a_model_that_is_loaded_from_its_checkpoint_and_watched_more_often_goes_on(tmp_path: Path) -> None:
    model = loop(fresh(), monitored(tmp_path, every=2), steps=2)
    model.save_pretrained(tmp_path / "saved")
    loaded = tf.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    again = monitored(tmp_path)
    again.begin(loaded, 2)
    again.step(loaded, 2)
    again.step(loaded, 3)
    assert again.result.steps == [0, 2, 3]


def test_a_monitor_that_is_used_again_does_not_mix_two_models() -> None:
    monitor = rs.HeadMonitor(TOKENS, every=1)
    monitor.step(fresh(), 0)
    monitor.begin(fresh(num_hidden_layers=2), 0)
    monitor.step(fresh(num_hidden_layers=2), 0)
    assert monitor.result.layers == 2
    assert monitor.result.steps == [0]
