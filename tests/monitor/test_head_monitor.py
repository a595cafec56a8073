"""The monitor: what it measures, what it leaves alone, and what it does when something is wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.monitor.watched_prompts import scalars
from tests.disk import full_disk
from tests.monitor.trained import STEPS, TOKENS, equal, fresh, loop, trainer

LOGGED = {f"rotoscope/{name}" for name in ("positional_score", "symbolic_score", "pure_heads", "share_mixed")}


def monitored(**how: Any) -> rs.HeadMonitor:
    return rs.HeadMonitor(TOKENS, **{"every": 2} | how)


def test_a_trainer_is_watched_and_its_weights_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    plain, watched = fresh(), fresh()
    trainer(tmp_path, plain).train()
    done = trainer(tmp_path, watched, monitored(out=tmp_path / "run"))
    done.train()
    assert equal(plain, watched)
    run = rs.open(tmp_path / "run")
    assert isinstance(run, Dynamics)
    assert run.steps == [0, 2, 4, 6]
    logged = {row["step"]: row for row in done.state.log_history if "rotoscope/pure_heads" in row}
    assert set(logged) == {2, 4, 6}
    assert set(logged[2]) >= LOGGED
    last = run.at()[lambda rows: rows["step"] == 6]
    assert logged[6]["rotoscope/positional_score"] == pytest.approx(last["positional_score"].mean(), rel=1e-6)


def test_a_point_is_what_a_profile_of_the_same_weights_gives(tmp_path: Path) -> None:
    model = fresh()
    monitor = monitored(out=tmp_path / "run", every=[STEPS])
    trainer(tmp_path, model, monitor).train()
    found = rs.open(tmp_path / "run").at()
    wanted = rs.profile(model, tokens=TOKENS, null="none", examples=False).at()
    for name in ("positional_score", "symbolic_score", "entropy"):
        assert found[name].to_numpy() == pytest.approx(wanted[name].to_numpy(), abs=1e-6)
    fingerprint = rs.load(model).weights_fingerprint
    assert rs.open(tmp_path / "run").points["fingerprint"].tolist() == [fingerprint]


@pytest.mark.parametrize("callbacks", [1, 2])
def test_what_reports_is_given_the_numbers_in_whatever_order_it_stands(tmp_path: Path, callbacks: int) -> None:
    class Reports(tf.TrainerCallback):
        def __init__(self) -> None:
            self.seen: list[dict[str, float]] = []

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            self.seen.append(dict(logs))

    before = Reports()
    trainer(tmp_path, fresh(), *[before, monitored()][-callbacks:]).train()
    assert callbacks == 1 or [set(row) >= LOGGED for row in before.seen] == [True, True, True, False]


def test_tensorboard_shows_the_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = trainer(tmp_path, fresh(), monitored(), report_to=["tensorboard"])
    shown.args.logging_dir = str(tmp_path / "board")
    shown.train()
    [events] = tmp_path.rglob("events.*")
    board = EventAccumulator(str(events.parent)).Reload()
    assert [event.step for event in board.Scalars("train/rotoscope/pure_heads")] == [2, 4, 6]


def test_a_plain_loop_is_watched(tmp_path: Path) -> None:
    plain = loop(fresh())
    monitor = monitored(out=tmp_path / "run")
    assert equal(loop(fresh(), monitor), plain)
    assert monitor.result.steps == [0, 2, 4, 6]
    result = monitor.finish()
    assert isinstance(result, Dynamics)
    assert rs.open(tmp_path / "run").steps == result.steps
    assert result.run.subject is not None
    assert result.run.subject.architecture == "llama"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert [sum(row["classes"].values()) for row in rows] == [len(result.pure_from())] * 4


def test_what_was_measured_in_memory_is_there_after_the_training(tmp_path: Path) -> None:
    monitor = monitored()
    trainer(tmp_path, fresh(), monitor).train()
    assert monitor.result.steps == [0, 2, 4, 6]
    with pytest.raises(rs.errors.RunError, match="measured nothing yet"):
        _ = monitored().result


def test_processes_that_do_not_measure_end_together_with_the_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rotoscope.monitor.head_monitor.is_first", lambda: False)
    monitor = monitored()
    assert monitor.step(fresh(), 0) is None
    assert monitor.finish() is None
    assert not monitor._begun


def test_a_change_of_any_weight_is_another_point() -> None:
    model, monitor = fresh(), monitored(every=1)
    monitor.step(model, 0)
    with torch.no_grad():
        model.model.embed_tokens.weight[77, 13] += 1
    monitor.step(model, 1)
    assert monitor.result.points["fingerprint"].nunique() == 2
    assert monitor.result.caveats() == []


def test_numbers_come_back_only_from_points() -> None:
    monitor, model = monitored(), fresh()
    assert monitor.step(model, 0) is not None
    assert monitor.step(model, 1) is None
    assert monitor.step(model, 1, now=True) is not None
    assert monitor.step(model, 1, now=True) is None  # no point twice


def test_two_monitors_are_told_apart_in_the_log(tmp_path: Path) -> None:
    both = [rs.HeadMonitor(part, every=[6], label=name) for name, part in (("a", TOKENS), ("b", TOKENS - 1))]
    done = trainer(tmp_path, fresh(), *both)
    done.train()
    [row] = [row for row in done.state.log_history if "rotoscope/a/pure_heads" in row]
    assert row["rotoscope/a/symbolic_score"] != row["rotoscope/b/symbolic_score"]


def test_two_monitors_without_labels_are_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(rs.RotoscopeError, match="give each a label"):
        trainer(tmp_path, fresh(), monitored(), monitored()).train()


def test_a_training_that_diverges_is_called_so(said: pytest.LogCaptureFixture) -> None:
    model, monitor = fresh(), monitored(every=1)
    monitor.step(model, 0)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.fill_(torch.nan)
    assert monitor.step(model, 1) is None
    assert "a training that has diverged has such weights" in said.text


def test_the_training_finds_everything_as_it_left_it() -> None:
    model, monitor = fresh(), monitored(every=1)
    model.train()
    model.model.layers[1].eval()  # as whoever freezes a layer does
    model.config.use_cache = True
    batch = TOKENS[:1]
    model(input_ids=batch, labels=batch).loss.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    modes = [module.training for module in model.modules()]
    torch.manual_seed(7)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        monitor.step(model, 0)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.rand(3), drawn)
    assert [module.training for module in model.modules()] == modes
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(weight.grad, gradient)
    assert model.config.use_cache is True
    assert model.config._attn_implementation == fresh().config._attn_implementation


def test_the_reading_is_proven_once_and_again_when_modules_are_others() -> None:
    model, monitor = fresh(), monitored(every=1)
    for step in range(3):
        monitor.step(model, step)
    assert monitor.reader.proofs == 1
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(64, 64, bias=False)
    monitor.step(model, 3)
    assert monitor.reader.proofs == 2


def test_the_null_is_scored_beside_the_model(tmp_path: Path) -> None:
    monitor = monitored(null_draws=2)
    plain = loop(fresh())
    assert equal(loop(fresh(), monitor), plain)
    null = monitor.result.tables["null_scores"]
    assert sorted(null["draw"].unique()) == [0, 1]
    assert sorted(null["step"].unique()) == [0, 2, 4, 6]
    assert len(null) == 2 * len(monitor.result.scores)
    first, second = (null[null["draw"] == draw]["positional_score"].to_numpy() for draw in (0, 1))
    assert (first != second).any()


def test_accuracy_on_the_prompts() -> None:
    letters = rs.tasks.letter(24, hops=2, target=4, window=4, alphabet=4, digits=3, seed=0)
    words = len(letters.vocabulary)
    monitor = rs.HeadMonitor(letters, every=1)
    numbers = monitor.step(fresh(vocab_size=words), 0)
    accuracy = monitor.result.accuracy
    assert accuracy is not None
    assert accuracy["hops"].tolist() == [1, 2]
    assert numbers is not None
    assert numbers["rotoscope/accuracy"] == pytest.approx(accuracy["accuracy"].mean())


def test_a_budget_spaces_the_points() -> None:
    monitor = monitored(every="2%")
    now = iter(range(10**9))
    monitor.schedule.clock = lambda: float(next(now))  # a look takes less than a step
    loop(fresh(), monitor, steps=4)
    assert monitor.result.steps[0] == 0
    assert monitor.schedule.share == 0.02


# Several sets of prompts, and measures of one's own.


@rs.measure
def last_key(heads: rs.LayerHeads) -> dict[str, torch.Tensor]:
    """Attention of the query to itself."""
    return {"last_key": heads.attention[..., -1]}


def test_several_sets_have_a_run_each_and_one_proof(tmp_path: Path) -> None:
    plain, model = fresh(), fresh()
    trainer(tmp_path, plain).train()
    sets = {"first": TOKENS, "second": TOKENS - 1}
    monitor = rs.HeadMonitor(sets, every=2, out=tmp_path, measures=[last_key], strict=True)
    done = trainer(tmp_path, model, monitor)
    done.train()
    assert equal(plain, model)
    assert monitor.reader.proofs == 1
    [row] = [row for row in done.state.log_history if row["step"] == 6 and "rotoscope/first/pure_heads" in row]
    for name, tokens in sets.items():
        alone = rs.profile(model, tokens=tokens, measures=[last_key], null="none", examples=False).at()
        last = rs.open(tmp_path / name).at()[lambda rows: rows["step"] == 6]
        for column in ("symbolic_score", "last_key"):
            assert last[column].to_numpy() == pytest.approx(alone[column].to_numpy(), abs=1e-6)
        assert row[f"rotoscope/{name}/last_key_max"] == pytest.approx(alone["last_key"].max())
    assert set(monitor.results) == set(sets)
    with pytest.raises(rs.RotoscopeError, match="a run for each of first, second"):
        _ = monitor.result


def test_a_stopped_training_goes_on_with_all_its_runs(tmp_path: Path) -> None:
    sets = {"first": TOKENS, "second": TOKENS - 1}
    model = loop(fresh(), rs.HeadMonitor(sets, every=1, out=tmp_path), steps=2)
    again = rs.HeadMonitor(sets, every=1, out=tmp_path)
    loop(model, again, steps=4, first=2)
    runs = again.finish()
    assert isinstance(runs, dict)
    assert [run.steps for run in runs.values()] == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("prompts", "why"),
    [({}, "holds no prompts"), ({"a b": TOKENS}, "letters, digits"), ({1: TOKENS}, "found 1")],
)
def test_sets_need_names_that_folders_can_have(prompts: Any, why: str) -> None:
    with pytest.raises(rs.RotoscopeError, match=why):
        rs.HeadMonitor(prompts)


def test_pure_heads_in_the_log_have_something_at_stake_and_lie_beyond_layer_0() -> None:
    scores = pd.DataFrame(
        {"layer": [0, 1, 1, 2], "head": 0, "tau": 1e-4, "positional_score": [0.0, 0.0, 1.0, 0.0]}
    )
    scores = scores.assign(symbolic_score=1 - scores["positional_score"], swapped_mass=[0.9, 0.9, 0.9, 0.01])
    numbers = scalars({"scores": scores}, [])
    assert (numbers["symbolic_heads"], numbers["positional_heads"], numbers["pure_heads"]) == (1, 1, 2)
    assert numbers["share_symbolic"] == 0.75


def test_a_run_says_what_watching_took() -> None:
    monitor = monitored()
    loop(fresh(), monitor)
    run = monitor.finish()
    assert isinstance(run, Dynamics)
    assert run.run.timings["monitor_s"] == pytest.approx(run.points["seconds"].sum())
    assert "% of the training's" in repr(run)


# What is wrong is said when training begins.


@pytest.mark.parametrize(
    ("prompts", "changes", "why"),
    [
        (TOKENS, {"max_position_embeddings": 8}, "12 tokens, and the model's context is 8"),
        (TOKENS + 200, {}, r"token \d+, and the model knows 0 to 127"),
        (TOKENS - 50, {}, r"token -\d+, and the model knows 0 to 127"),
    ],
)
def test_prompts_that_do_not_fit_end_the_training_before_it_begins(
    tmp_path: Path, prompts: torch.Tensor, changes: dict[str, Any], why: str
) -> None:
    model = fresh(**changes)
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(rs.errors.TaskError, match=why):
        trainer(tmp_path, model, rs.HeadMonitor(prompts, every=500)).train()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_that_cannot_be_read_ends_the_training_before_it_begins(tmp_path: Path) -> None:
    gpt2 = tf.GPT2LMHeadModel(tf.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=128, n_positions=64))
    with pytest.raises(rs.errors.NoRotaryError):
        trainer(tmp_path, gpt2, monitored(every=500)).train()


def test_a_plain_module_is_refused() -> None:
    with pytest.raises(rs.errors.ModelError, match="no transformers configuration"):
        monitored().step(torch.nn.Linear(2, 2), 0)


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(rs.errors.RunError, match="no run folder"):
        trainer(tmp_path, fresh(), monitored(out=tmp_path)).train()


# What goes wrong later ends the monitor, not the training.


def breaks_at(monitor: rs.HeadMonitor, step: int) -> None:
    """Measuring fails from a step on."""
    [watched] = monitor.watched.values()
    measure = watched.measure

    def broken(subject: rs.Subject, reader: Any, now: int) -> Any:
        if now >= step:
            raise torch.OutOfMemoryError("no memory left")
        return measure(subject, reader, now)

    watched.measure = broken  # type: ignore[method-assign]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, logger="rotoscope"):
        yield caplog


def test_an_error_in_training_is_logged_once_and_training_goes_on(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    plain, watched = fresh(), fresh()
    trainer(tmp_path, plain).train()
    monitor = monitored(out=tmp_path / "run", every=1)
    breaks_at(monitor, 3)
    trainer(tmp_path, watched, monitor).train()
    assert equal(plain, watched)
    assert [record.getMessage() for record in said.records if record.name == "rotoscope"] == [
        "the monitor was switched off at step 3, and training goes on without it: OutOfMemoryError: no memory left"
    ]
    run = rs.open(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    assert "switched off at step 3" in run.run.warnings[0]


def test_a_full_disk_ends_the_monitor_only(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    model, monitor = fresh(), monitored(out=tmp_path / "run", every=1)
    monitor.step(model, 0)
    with full_disk(100):
        assert monitor.step(model, 1) is None
        assert monitor.finish() is None
    assert monitor.off is not None
    assert monitor.off.startswith("RunError")
    again = monitored(out=tmp_path / "run", every=1)  # the disk has room again
    again.begin(model, 1)
    again.step(model, 1)
    finished = again.finish()
    assert isinstance(finished, Dynamics)
    assert finished.steps == [0, 1]


def test_strict_raises_it(tmp_path: Path) -> None:
    monitor = monitored(every=1, strict=True)
    breaks_at(monitor, 3)
    with pytest.raises(torch.OutOfMemoryError):
        trainer(tmp_path, fresh(), monitor).train()


def test_an_error_at_the_first_point_is_raised(tmp_path: Path) -> None:
    monitor = monitored()
    breaks_at(monitor, 0)
    with pytest.raises(torch.OutOfMemoryError):
        trainer(tmp_path, fresh(), monitor).train()
