"""The examples that train models and watch them: run from beginning to end, small, and slowly as they are shown."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
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
    sys.modules[name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


cards = script("train_and_watch")
language = script("train_language_model")
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
    def run(positional: list[float]) -> rs.experiments.Dynamics:
        heads = pd.DataFrame({"step": 0, "layer": 0, "head": [0, 1], "positional_score": positional})
        return rs.experiments.Dynamics(
            rs.runs.RunRecord(kind="dynamics"), {"scores": heads.assign(symbolic_score=0.5)}
        )

    assert cards.moved(run([0.0, 0.5]), run([1.0, 0.5])).tolist() == [0.5]


def test_cards_run_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--steps", "1", "--every", "1", "--prompts", "2"]
    cards.main([*small, "--answers", "random", "--out", str(tmp_path)])
    for kind in cards.KINDS:
        run = rs.open(tmp_path / "random" / kind)
        assert (run.steps, run.task) == ([0, 1], kind)
    assert (tmp_path / "cards.png").exists()
    assert "Trained on random answers\n  lookup: accuracy 0" in capsys.readouterr().out


@pytest.mark.slow
def test_heads_follow_the_question_when_it_is_learned_and_not_otherwise(tmp_path: Path) -> None:
    """What docs/training.md says of the two trainings: the twin does not show it."""
    cards.main(["--out", str(tmp_path)])
    for answers in ("right", "random"):
        runs = {kind: rs.open(tmp_path / answers / kind) for kind in cards.KINDS}
        learned = [run.accuracy["accuracy"].iloc[-1] >= 0.95 for run in runs.values()]
        assert learned == [answers == "right"] * 2
        last = cards.moved(**runs).iloc[-1]
        assert (last > 0.5) == (answers == "right")
        assert (abs(last) < 0.2) == (answers == "random")


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


@pytest.mark.slow
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


# A language model that learns to copy.


@pytest.fixture(scope="module")
def passage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 40 documents."""
    words = [f"word{k % 83}" for k in range(12_000)]
    file = tmp_path_factory.mktemp("passage") / "text.txt"
    file.write_text("\n\n".join(" ".join(words[k : k + 300]) for k in range(0, len(words), 300)))
    return file


def test_words_are_shuffled_within_their_documents(passage: Path) -> None:
    tokens, tokenizer = language.encoded(passage, 300)

    def documents(ids: np.ndarray) -> list[list[str]]:
        texts = tokenizer.decode(ids.tolist(), skip_special_tokens=False).split(language.DOCUMENT)
        return [text.replace("word", " word").split() for text in texts[1:]]

    before, after = documents(tokens), documents(language.shuffled(tokens, tokenizer, seed=0))
    assert len(before) == 40
    assert [sorted(words) for words in before] == [sorted(words) for words in after]
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_copies_are_compared_token_by_token() -> None:
    copies = language.Copies(language.PRESETS["tiny"], "cpu", count=6)
    losses = torch.rand(6, copies.tokens.shape[1] - 1)
    attention = torch.rand(6, 2, *[copies.tokens.shape[1]] * 2)
    first, second, weights = [], [], {name: [] for name in language.PATTERNS}
    for k, row in enumerate(copies.tokens.tolist()):
        assert len(set(row[: copies.length])) == copies.length
        for place in range(1, len(row)):
            weights["previous"].append(attention[k, :, place, place - 1])
        for place in range(copies.length, len(row)):
            earlier = row.index(row[place])
            weights["induction"].append(attention[k, :, place, earlier + 1])
            weights["duplicate"].append(attention[k, :, place, earlier])
            if place > copies.length:
                first.append(losses[k, earlier - 1])
                second.append(losses[k, place - 1])
    gain = torch.stack(first).mean() - torch.stack(second).mean()
    assert copies.gain(losses)["gain"] == pytest.approx(float(gain), abs=1e-6)
    expected = torch.stack([torch.stack(weights[name]).mean(0) for name in language.PATTERNS])
    assert torch.allclose(copies.patterns(attention), expected, atol=1e-6)
    assert len(set(copies.begin.flatten().tolist())) > 1  # no fixed distance leads to the answer


@pytest.mark.parametrize(
    ("holds", "step"),
    [("0111111", 1), ("0101111111", 3), ("01111", None), ("1111110", 0), ("1111101111", None), ("", None)],
)
def test_an_onset_lasts(holds: str, step: int | None) -> None:
    found = language.onset(pd.Series([mark == "1" for mark in holds], dtype=bool))
    assert found == step if step is not None else np.isnan(found)


def test_other_choices_are_of_the_same_layers_and_differ() -> None:
    recipe, chosen = language.PRESETS["small"], [(1, 0), (1, 3), (4, 2)]
    choices = language.other_choices(chosen, recipe)
    assert len({tuple(choice) for choice in choices}) == language.DRAWS
    assert all([layer for layer, _ in choice] == [1, 1, 4] for choice in choices)
    assert not set(chosen) & {head for choice in choices for head in choice}
    assert len(language.other_choices([(2, 5)], recipe)) == 7  # all there are: too few for a conclusion
    assert language.other_choices([(1, head) for head in range(5)], recipe) == []


def test_heads_without_mass_are_not_pure() -> None:
    scores = pd.DataFrame({"positional_score": [1.0, 1.0, 0.0, 0.5], "symbolic_score": [0.0, 0.0, 1.0, 0.5]})
    heads = language.pure_heads(scores.assign(swapped_mass=[0.5, 0.1, 0.2, 0.9]))
    assert heads["head_class"].tolist() == ["positional", "no", "symbolic", "no"]


def test_averaged_heads_say_nothing_of_their_prompt() -> None:
    """With all heads replaced by their means the model of one layer sees the last token alone."""
    recipe = replace(language.PRESETS["tiny"], layers=1)
    model, copies = language.new_model(recipe, "cpu"), language.Copies(recipe, "cpu", count=4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    every = [(0, head) for head in range(recipe.heads)]
    assert language.gain_without(model, every, copies, "cpu") == pytest.approx(0, abs=1e-5)
    assert abs(language.gain_without(model, [], copies, "cpu")) > 1e-4


def test_a_language_model_runs_from_beginning_to_end(
    passage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(language.PRESETS["tiny"], width=32, inner=32, heads=2, vocabulary=300, context=32, batch=2)
    monkeypatch.setitem(language.PRESETS, "tiny", replace(small, steps=2, points=2, prompts=2))
    language.main(["--text", str(passage), "--controls", "shuffled", "fast", "--out", str(tmp_path)])
    table = pd.read_csv(tmp_path / "onsets.csv")
    assert sorted(table["model"]) == ["fast-0", "shuffled-0", "text-0"]
    assert table["copying"].isna().all()
    assert rs.open(tmp_path / "text-0" / "heads").steps == [0, 2]
    assert "1 of at least 3 seeds: nothing is concluded" in capsys.readouterr().out
    language.main(["--read", "--out", str(tmp_path)])
    assert (tmp_path / "language_model.png").exists()


@pytest.mark.slow
def test_the_tiny_preset_learns_its_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(file.read_text() for file in (EXAMPLES.parent / "docs").glob("*.md")))
    language.main(["--text", str(text), "--out", str(tmp_path)])
    points = pd.read_parquet(tmp_path / "text-0" / "points.parquet")
    assert len(points) >= 38
    assert points["text_loss"].iloc[-1] < 0.9 * points["text_loss"].iloc[0]


def test_the_language_script_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        language.main(["--read", "--out", str(tmp_path)])
    assert "there is no finished model in" in capsys.readouterr().err
    short = tmp_path / "short.txt"
    short.write_text("The cat sat on the mat.")
    with pytest.raises(SystemExit):
        language.main(["--text", str(short), "--out", str(tmp_path)])
    assert "give one of at least 7680" in capsys.readouterr().err


def test_the_text_of_the_documented_command_is_long_enough() -> None:
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    [name] = re.findall(r"--text (\S+) --preset tiny", page)
    recipe = language.PRESETS["tiny"]
    tokens, _ = language.encoded(Path(__file__).parents[1] / name, recipe.vocabulary)
    assert len(tokens) >= 60 * recipe.context
