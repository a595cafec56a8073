"""Heads along training: watched on the way or read from checkpoints, the numbers are the same."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from benchmarks.multihop import swap_by_swap
from rotoscope.errors import ModelError, RotoscopeError, RunError, TaskError
from rotoscope.experiments.train.dynamics import Dynamics, onset
from rotoscope.experiments.train.watch import score_heads
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.settings import TrainSettings
from rotoscope.report.page import run_payload
from rotoscope.runs.record import RunRecord
from rotoscope.scores.classes import AT_ITS_LAYER
from tests.tiny_models import tiny

SCORES = ["positional_score", "symbolic_score", "entropy", "relative_entropy"]


ENDS = [f"{score}_{end}" for score in SCORES[:2] for end in ("low", "high")]


def close(
    found: pd.DataFrame, expected: pd.DataFrame, atol: float = 2e-5, names: Sequence[str] = SCORES
) -> None:
    keys = ["step", "layer", "head", "queries"]
    both = found.merge(expected, on=keys, suffixes=("", "_expected"))
    assert len(both) == len(found) > 0
    for name in names:
        np.testing.assert_allclose(both[name], both[f"{name}_expected"], atol=atol, err_msg=name)


@pytest.mark.slow
def test_watched_scores_are_those_of_the_checkpoints(trained: dict[str, rs.lab.Training]) -> None:
    for task, run in trained.items():
        watched = rs.dynamics(run)
        read = rs.dynamics(run.folder, queries="last", task=task, device="cpu")
        assert read.steps == list(TrainSettings.read(run.run.settings).checkpoint_steps)
        assert len(read.steps) >= 4
        assert read.run.warnings == []
        close(read.scores, watched.scores)
        accuracy = read.accuracy.merge(run.metrics, on=["step", "hops"], suffixes=("", "_whole"))
        np.testing.assert_allclose(accuracy["accuracy"], accuracy["accuracy_whole"], atol=0.12)  # fewer inputs


@pytest.mark.parametrize("queries", ["last", "all", pytest.param("path", marks=pytest.mark.slow)])
def test_all_layers_at_once_and_layer_by_layer_agree(trained: dict[str, rs.lab.Training], queries: str) -> None:
    run = trained["number"]
    samples = rs.lab.training_sequences(TrainSettings.read(run.run.settings), "validation", count=40)
    found = score_heads(run.model, samples, queries).assign(step=300)
    read = rs.dynamics(run.folder, queries=queries, inputs=40, device="cpu")
    scores = read.scores[read.scores["step"] == 300]
    close(found, scores, names=[*SCORES, *ENDS, "swapped_mass", "inputs", "asked"])
    assert (found["inputs"] == 40).all()
    assert (found["asked"] == {"last": 40, "path": int(samples.on_path.sum()), "all": 40 * 5}[queries]).all()
    rows = rs.profile(
        rs.load(run.folder / "checkpoint-300", device="cpu"), samples, queries=queries if queries == "all" else "last",
        null="none", examples=False,
    )  # fmt: skip
    if queries != "path":  # the same number of queries in every input: the interval is that of their means
        ends = rows.heads[["positional_score_low", "symbolic_score_high"]].to_numpy()
        np.testing.assert_allclose(found[["positional_score_low", "symbolic_score_high"]], ends, atol=2e-4)


def test_a_swap_carried_out_gives_the_same_scores(trained: dict[str, rs.lab.Training]) -> None:
    run = trained["letter"]
    samples = rs.lab.training_sequences(TrainSettings.read(run.run.settings), "validation", count=12)
    found = score_heads(run.model, samples)
    twin = swap_by_swap(run.model, samples.tokens).mean(1)
    np.testing.assert_allclose(found["positional_score"], twin[:, 0], atol=2e-4)
    np.testing.assert_allclose(found["symbolic_score"], twin[:, 1], atol=2e-4)


def test_layers_without_rotation_are_scored_with_the_rest() -> None:
    samples = rs.tasks.number(8)
    shape = GPTJShape(len(samples.vocabulary), layers=3, heads=2, width=32, rotary=16, nope=(1,))
    model = GPTJ.initialise(shape, 1)
    for weight in model.weights.values():
        weight.mul_(6)
    table = score_heads(model, samples).set_index(["layer", "head"])
    assert len(table) == 6
    np.testing.assert_allclose(table.loc[1, "symbolic_score"], 1.0, atol=1e-5)
    assert (table.loc[0, "symbolic_score"] < 1 - 1e-4).any()


@pytest.mark.slow
def test_checkpoints_of_another_architecture(tmp_path: Path, smollm2: rs.Subject) -> None:
    """Anyone's checkpoints: a tiny llama saved as step-N, with prompts of one's own."""
    for step in (10, 200, 30):
        model = tiny("llama", seed=step)
        model.save_pretrained(tmp_path / f"step-{step}")
        smollm2.tokenizer.save_pretrained(tmp_path / f"step-{step}")
    tokens = torch.randint(3, 100, (4, 9))
    prompts = rs.tasks.from_tokens(tokens)
    found = rs.dynamics(tmp_path, prompts=prompts, out=tmp_path / "out")
    assert found.steps == [10, 30, 200]
    alone = rs.profile(rs.load(tmp_path / "step-30"), prompts, null="none")
    np.testing.assert_allclose(
        found.scores.query("step == 30")["symbolic_score"], alone.heads["symbolic_score"], atol=1e-6
    )
    assert found.accuracy is None
    pd.testing.assert_frame_equal(rs.open(tmp_path / "out").scores, found.scores)
    with pytest.raises(TaskError, match="only the number and letter tasks have paths"):
        rs.dynamics(tmp_path, prompts=prompts, queries="path")
    with pytest.raises(ModelError, match="does not say which multi-hop task"):
        rs.dynamics(tmp_path)


def test_a_corrupt_checkpoint_is_left_out_and_named(
    trained: dict[str, rs.lab.Training], tmp_path: Path
) -> None:
    shutil.copytree(trained["letter"].folder, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoint-150" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    found = rs.dynamics(tmp_path / "run", queries="last", inputs=20, device="cpu")
    assert found.steps == [0, 50, 300]
    assert "checkpoint-150 was left out" in found.run.warnings[0]


def test_another_task_and_empty_folders_are_named(trained: dict[str, rs.lab.Training], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="trained on the letter task, not on the number task"):
        rs.dynamics(trained["letter"].folder, task="number")
    with pytest.raises(ModelError, match="trained on the letter task, not on the number task"):
        rs.dynamics(trained["letter"].folder, task="number", queries="all")
    with pytest.raises(ModelError, match="does not know the words of the number task"):
        rs.dynamics(trained["letter"].folder, prompts=rs.tasks.number(5), queries="last")
    with pytest.raises(ModelError, match="holds no checkpoints"):
        rs.dynamics(tmp_path)
    with pytest.raises(ModelError, match="no such folder"):
        rs.dynamics(tmp_path / "nowhere")
    with pytest.raises(RotoscopeError, match="unknown queries 'first'"):
        rs.experiments.Watch(queries=("first",))
    with pytest.raises(RotoscopeError, match="at least one input"):
        rs.experiments.Watch(inputs=0)


def test_a_killed_scoring_goes_on(trained: dict[str, rs.lab.Training], tmp_path: Path, monkeypatch) -> None:
    from rotoscope.experiments.train import checkpoint_scores as module

    scored: list[int] = []
    real = module.profile

    def counting(*args, **kwargs):
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "profile", counting)
    with pytest.raises(KeyboardInterrupt):
        rs.dynamics(trained["letter"].folder, queries="last", inputs=10, out=tmp_path / "d", device="cpu")
    scored.clear()
    monkeypatch.setattr(module, "profile", lambda *a, **k: scored.append(1) or real(*a, **k))
    rs.dynamics(trained["letter"].folder, queries="last", inputs=10, out=tmp_path / "d", device="cpu")
    assert len(scored) == 2  # four checkpoints, two were done


def made_up(classes: dict[int, list[tuple[float, float]]], accuracy: dict[int, list[float]]) -> Dynamics:
    steps = [0, 10, 20, 30]
    rows = [
        {
            "step": s,
            "layer": layer,
            "head": 0,
            "queries": "last",
            "tau": 1e-4,
            "positional_score": p,
            "symbolic_score": q,
        }
        for layer, track in classes.items()
        for s, (p, q) in zip(steps, track, strict=True)
    ]
    right = [
        {"step": s, "hops": h, "accuracy": a, "inputs": 10}
        for h, track in accuracy.items()
        for s, a in zip(steps, track, strict=True)
    ]
    return Dynamics(
        RunRecord(settings={"task": "number"}), {"scores": pd.DataFrame(rows), "accuracy": pd.DataFrame(right)}
    )


def test_purity_learning_and_waiting_by_hand() -> None:
    up, pos, sym = (1.0, 1.0), (0.97, 0.02), (0.04, 0.99)
    run = made_up(
        {
            0: [up, pos, sym, pos],
            1: [up, up, (0.88, 0.15), pos],
            2: [up, sym, sym, sym],
            3: [up, up, up, (0.5, 0.5)],
        },
        {1: [0.1, 0.96, 0.9, 1.0], 2: [0.1, 0.2, 0.3, 0.99]},
    )
    pure = run.pure_from(0.1).set_index("layer")
    assert pure["head_class"].tolist() == ["positional", "positional", "symbolic", "mixed"]
    assert pure["first_pure"].tolist()[:3] == [10, 30, 10]
    assert pure["pure_since"].tolist()[:3] == [30, 30, 10]
    assert pd.isna(pure["first_pure"][3])
    assert run.learned().to_dict() == {1: 10, 2: 30}
    waiting = run.waiting().set_index("hops")
    assert waiting.loc[1, "positional_then"] == 1
    assert waiting.loc[2, "positional_then"] == 2
    assert waiting.loc[2, "as_many_positional_at"] == 30
    assert waiting.loc[1, "last_symbolic_at"] == 10
    counts = run.purity((0.1, 0.2)).set_index(["gamma", "step"])
    assert counts.loc[(0.1, 0), "uniform"] == 4
    assert counts.loc[(0.1, 30), list(AT_ITS_LAYER)].tolist() == [2, 1, 0, 1]
    assert counts.filter(like="little_at_stake").isna().all(axis=None)  # not measured
    assert counts.loc[(0.2, 20), "positional"] == 1  # within the wider tolerance
    run.tables["scores"]["swapped_mass"] = 0.5 * (run.scores["layer"] > 0)  # layer 0 looks elsewhere
    counts = run.purity((0.1,)).set_index("step").filter(like="little_at_stake")
    assert counts.columns.tolist() == [f"{name}_little_at_stake" for name in AT_ITS_LAYER]
    assert counts.loc[[0, 30]].to_numpy().tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    tab = run_payload(run)["tabs"]["training"]["series"][0]
    assert tab["little_at_stake"][-1] == "1000"
    aligned = run.alignment().set_index("heads")["rank_correlation"]
    assert aligned["pure"] == pytest.approx(
        pd.Series([0, 2, 2, 3]).rank().corr(pd.Series([0.1, 0.58, 0.6, 0.995]).rank())
    )


EVERY_SEED = [
    (task, place)
    for task in ("number", "letter")
    for place in (
        Path(rs.__file__).parent / "stored" / task,
        *(Path(rs.__file__).parent / "stored" / task).glob("seed-*"),
    )
]


@pytest.mark.parametrize(("task", "place"), EVERY_SEED, ids=[f"{t}-{p.name}" for t, p in EVERY_SEED])
def test_what_the_paper_runs_of_three_seeds_show(task: str, place: Path) -> None:
    """P2's claims on the stored tables of this code's own runs (GPU, paper preset)."""
    assert sum(t == task for t, _ in EVERY_SEED) == 3
    run = rs.open(place)
    assert run.run.settings["preset"] == "paper"
    assert (run.test["accuracy"] >= 0.995).all()
    assert run.test["inputs"].sum() == 45_600
    heads = rs.dynamics(place)
    start = heads.at()[lambda t: t["step"] == 0]
    assert (start[["positional_score", "symbolic_score"]] >= 0.95).all(axis=None)
    learned = run.learned().tolist()
    pure = heads.pure_from(0.1).set_index("layer")["head_class"]
    if task == "number":
        assert learned == sorted(learned)
        assert len(set(learned)) == 4
        assert (pure[:6] == "positional").sum() >= 3
        assert (pure[6:] == "symbolic").sum() >= 3
    else:
        assert max(learned) - min(learned) <= 400
        assert not (pure == "positional").any()
        assert (pure == "symbolic").sum() >= 8
    assert len(heads.steps) >= 90


@pytest.mark.slow
def test_other_queries_of_an_embedded_model() -> None:
    found = rs.dynamics("letter", queries="path", inputs=8, device="cpu")
    assert found.steps == [22_500]
    assert set(found.scores["queries"]) == {"path"}
    with pytest.raises(RunError, match="no heads were watched"):
        Dynamics.of_training(rs.lab.train("letter", "mini", steps=2, train_sequences=500, device="cpu"))


@pytest.mark.parametrize(
    ("holds", "step"),
    [("0111111", 1), ("0101111111", 3), ("01111", None), ("1111110", 0), ("1111101111", None), ("", None)],
)
def test_an_onset_lasts(holds: str, step: int | None) -> None:
    steps = onset(pd.Series([mark == "1" for mark in holds], dtype=bool))
    assert steps == step if step is not None else np.isnan(steps)


def test_heads_that_become_pure_to_stay_have_something_at_stake() -> None:
    """Head 0:0 turns symbolic at step 2 and stays, 0:1 flickers, 1:0 has no mass, 1:1 turns positional at step 3."""
    rows = []
    for step in range(9):
        symbolic = {(0, 0): step >= 2, (0, 1): step % 2 == 0, (1, 0): True, (1, 1): False}
        for (layer, head), pure in symbolic.items():
            scores = (0.0, 1.0) if pure else (1.0, 0.0) if (layer, head) == (1, 1) and step >= 3 else (0.5, 0.5)
            rows.append((step, layer, head, *scores, 0.01 if (layer, head) == (1, 0) else 0.5))
    columns = ["step", "layer", "head", "positional_score", "symbolic_score", "swapped_mass"]
    table = pd.DataFrame(rows, columns=columns).assign(queries="last", tau=1e-4)
    run = Dynamics(rs.runs.RunRecord(kind="dynamics"), {"scores": table})
    expected = [(0, 0, "symbolic", 2), (1, 1, "positional", 3)]
    assert list(run.onsets().itertuples(index=False, name=None)) == expected
    assert set(run.onsets(least_mass=0.0)["head_class"]) == {"symbolic", "positional"}
    counts = run.pure_counts().set_index(["step", "layer"])
    assert counts.loc[(2, 0)].tolist() == [0, 2]
    assert counts.loc[(8, 1)].tolist() == [1, 0]
