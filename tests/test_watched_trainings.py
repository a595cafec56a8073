"""The examples that train models and watch them: run from beginning to end, small, and slowly as they are shown."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch

import rotoscope as rs

EXAMPLES = Path(__file__).parents[1] / "examples"


def script(name: str) -> ModuleType:
    found = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


cards = script("train_and_watch")
finetuning = script("finetune_smollm2")


# Cards: a Llama trained from scratch.


@pytest.mark.parametrize("kind", ["lookup", "place"])
def test_answers_are_those_of_the_cards_asked_for(kind: str) -> None:
    tokens, answers = cards.cards(50, kind, seed=3)
    for (*hand, question), answer in zip(tokens.tolist(), answers.tolist(), strict=True):
        letters, numbers = zip(*(divmod(card, cards.NUMBERS) for card in hand), strict=True)
        assert len(set(letters)) == len(set(numbers)) == cards.CARDS
        if kind == "lookup":
            [place] = [k for k, letter in enumerate(letters) if letter == question - cards.LETTER_ASKED]
        else:
            place = -1 - (question - cards.PLACE_ASKED)
        assert answer == cards.ANSWER + numbers[place]


def test_random_answers_are_on_the_cards_and_mostly_wrong() -> None:
    right, drawn = (
        torch.stack([row["input_ids"] for row in cards.training_data(400, answers, seed=0)])
        for answers in ("right", "random")
    )
    assert torch.equal(right[:, :-1], drawn[:, :-1])
    assert (drawn[:, :-2] % cards.NUMBERS == drawn[:, -1:] - cards.ANSWER).any(1).all()
    assert 0.05 < (right[:, -1] == drawn[:, -1]).float().mean() < 0.25


def test_what_is_asked_was_not_trained_on() -> None:
    trained = {tuple(row["input_ids"][:-1].tolist()) for row in cards.training_data(2000, "right", seed=0)}
    assert not trained & {prompt.tokens for kind in cards.KINDS for prompt in cards.held_out(kind, 64)}


def test_a_question_moves_heads_only_if_they_act_otherwise() -> None:
    def run(positional: list[float], null: list[float]) -> rs.experiments.Dynamics:
        heads = pd.DataFrame({"step": 0, "layer": 0, "head": [0, 1], "positional_score": positional})
        heads = heads.assign(symbolic_score=0.5)
        drawn = pd.concat([heads.assign(positional_score=score, draw=k) for k, score in enumerate(null)])
        record = rs.runs.RunRecord(kind="dynamics")
        return rs.experiments.Dynamics(record, {"scores": heads, "null_scores": drawn})

    [found] = cards.moved(run([0.0, 0.5], null=[0.2, 0.2]), run([1.0, 0.5], null=[0.2, 0.3])).itertuples()
    assert (found.heads, found.null_low, found.null_high) == pytest.approx((0.5, 0.0, 0.1))


def test_cards_run_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--steps", "1", "--every", "1", "--prompts", "2", "--null-draws", "1"]
    cards.main([*small, "--answers", "random", "--out", str(tmp_path)])
    for kind in cards.KINDS:
        run = rs.open(tmp_path / "random" / kind)
        assert (run.steps, run.task, run.run.settings["null_draws"]) == ([0, 1], kind, 1)
    assert (tmp_path / "cards.png").exists()
    assert "Trained on random answers\n  lookup: accuracy 0" in capsys.readouterr().out


@pytest.mark.slow
def test_heads_follow_the_question_when_it_is_learned_and_not_otherwise(tmp_path: Path) -> None:
    """What docs/training.md says of the two trainings: the twin and the null do not show it."""
    cards.main(["--out", str(tmp_path)])
    for answers in ("right", "random"):
        runs = {kind: rs.open(tmp_path / answers / kind) for kind in cards.KINDS}
        learned = [run.accuracy["accuracy"].iloc[-1] >= 0.95 for run in runs.values()]
        assert learned == [answers == "right"] * 2
        last = cards.moved(**runs).iloc[-1]
        assert (last["heads"] > 0.5) == (answers == "right")
        assert (abs(last["heads"]) < 0.2) == (answers == "random")
        assert max(abs(last["null_low"]), abs(last["null_high"])) < 0.2


# SmolLM2, fine-tuned.


def test_random_colours_are_those_of_the_facts(stand_in: rs.Subject) -> None:
    right, drawn = (finetuning.training_data(stand_in, 40, answers) for answers in ("right", "random"))
    known = {prompt.answers[0] for prompt in finetuning.facts(stand_in, 40, seed=0)}
    alike = 0
    for one, other in zip(right, drawn, strict=True):
        assert torch.equal(one["input_ids"][:-1], other["input_ids"][:-1])
        answer = other["labels"][-1]
        assert answer in other["input_ids"][:-1]
        assert (other["labels"][:-1] == -100).all()
        alike += int(answer == one["labels"][-1])
        known.discard(int(answer))
    assert 0 < alike < 20
    assert len(known) < 10  # colours, not any words of the facts


def test_finetuning_runs_from_beginning_to_end(
    stand_in: rs.Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = rs.load
    monkeypatch.setattr(
        rs, "load", lambda source, **how: stand_in if source == "smollm2" else load(source, **how)
    )
    before = [weight.clone() for weight in stand_in.model.parameters()]
    finetuning.main(
        ["--steps", "2", "--every", "2", "--prompts", "2", "--answers", "right", "--out", str(tmp_path)]
    )
    assert all(torch.equal(a, b) for a, b in zip(before, stand_in.model.parameters(), strict=True))
    watched = rs.open(tmp_path / "watched_right")
    assert watched.steps == [0, 2]
    assert watched.points["fingerprint"].nunique() == 2
    assert "paired over 2 prompts" in capsys.readouterr().out
    assert (tmp_path / "changed_heads.png").exists()
