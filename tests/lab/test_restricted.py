"""Heads with some frequencies only: what the words mean, what is stored, and that nobody else's model is changed by it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

import rotoscope as rs
from rotoscope.errors import ModelError, RotoscopeError
from rotoscope.lab.checkpoints import save_checkpoint
from rotoscope.lab.gptj import GPTJ, GPTJShape
from rotoscope.lab.sequences import model_shape
from rotoscope.lab.settings import TrainSettings, layer_ids
from rotoscope.lab.trainer import Trainer
from rotoscope.models.reader import HeadReader
from rotoscope.scores.counterfactual import rope_angles
from tests.lab.test_gptj import awake
from tests.lab.test_stack import CPU, SMALL, trained

EIGHT = tuple(range(1, 9))


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        ("fast", (1, 2, 3, 4), (1, 2, 3, 4)),
        ("slow", (5, 6, 7, 8), (5, 6, 7, 8)),
        ("2-4", (2, 3, 4), (2, 3, 4)),
        ("7,1-2,2", (1, 2, 7), (1, 2, 7)),
        ("0-1:fast+2:8", (1, 2, 3, 4), (8,)),
        ("2:slow", EIGHT, (5, 6, 7, 8)),
    ],
)
def test_words_and_their_frequencies(words: str, first: tuple[int, ...], last: tuple[int, ...]) -> None:
    ids = layer_ids(words, layers=3, planes=8)
    assert (ids[0], ids[-1]) == (first, last)


@pytest.mark.parametrize("words", ["all", "1-8", "0-2:all", "1:1-8"])
def test_words_that_restrict_nothing(words: str) -> None:
    assert layer_ids(words, layers=3, planes=8) == ()


def test_halves_of_an_odd_number_share_the_middle() -> None:
    assert layer_ids("fast", 1, 5) == ((1, 2, 3),)
    assert layer_ids("slow", 1, 5) == ((3, 4, 5),)
    assert layer_ids("fast", 1, 1) == layer_ids("slow", 1, 1) == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("quick", "cannot be understood at 'quick'"),
        ("", "cannot be understood at ''"),
        ("1-", "cannot be understood at '1-'"),
        ("1-99999999999999", "cannot be understood"),
        ("0", "frequency ids 0; this model has 1 to 8"),
        ("7-9", "frequency ids 7-9; this model has 1 to 8"),
        ("4-2", "frequency ids 4-2"),
        ("3:fast", "layers 3; this model has 0 to 2"),
        ("0-1:fast+1:slow", "layer 1, which is named twice"),
        ("0:fast+2:slow", r"layer 2, which does not rotate \(nope\)"),
        ("0:fast+slow", "cannot be understood at 'slow'"),
    ],
)
def test_words_that_mean_nothing(words: str, message: str) -> None:
    with pytest.raises(RotoscopeError, match=message):
        layer_ids(words, layers=3, planes=8, nope=(2,))


def test_planes_are_dealt_out_evenly_and_none_stands_still() -> None:
    usual = rope_angles(8)
    assert torch.equal(rope_angles(8, ids=EIGHT), usual)
    assert torch.equal(rope_angles(8, ids=(1, 3, 5)), usual[[0, 0, 0, 2, 2, 2, 4, 4]])
    assert torch.equal(rope_angles(8, ids=(8,)), usual[[7] * 8])
    assert torch.allclose(rope_angles(4, base=16.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    for count in range(1, 9):
        found, times = rope_angles(8, ids=EIGHT[:count]).unique(return_counts=True)
        assert (found > 0).all()
        assert times.max() - times.min() <= 1


def restricted(samples: Any, **changes: Any) -> GPTJ:
    sizes = {"layers": 2, "width": 32, "rotary": 32, "positions": 64} | changes
    return awake(GPTJShape(len(samples.vocabulary), **sizes))


def test_a_restriction_survives_saving(tmp_path: Path) -> None:
    samples = rs.tasks.letter(6)
    model = restricted(samples, ids=((1, 2), (9, 10, 11)), base=300.0)
    folder = save_checkpoint(tmp_path / "model", model, samples)
    subject = rs.load(folder, device="cpu")
    assert GPTJ.from_transformers(subject.model).shape == model.shape
    with torch.no_grad():
        said = model.logits(samples.tokens)
        torch.testing.assert_close(subject.model(samples.tokens).logits[:, -1], said)
        torch.testing.assert_close(GPTJ.from_transformers(subject.model).logits(samples.tokens), said)
        elsewhere = AutoModelForCausalLM.from_pretrained(folder)(samples.tokens).logits[:, -1]
        assert (elsewhere - said).abs().max() > 0.05  # another loader turns all planes as usual: another model
    layouts = HeadReader(subject.model).layouts
    assert layouts[0].angles.unique().numel() == 2
    torch.testing.assert_close(layouts[1].angles, model.angles[1].double(), rtol=1e-4, atol=0.0)
    plain = save_checkpoint(tmp_path / "plain", restricted(samples), samples)
    assert "rotoscope_angles" not in json.loads((plain / "config.json").read_text())


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([1.0], r"is \[1.0\] in a model of type 'gptj'"),
        ({"base": float("nan"), "ids": []}, "has the base nan"),
        ({"base": 1e300, "ids": []}, "has the base 1e"),
        ({"base": True, "ids": []}, "has the base True"),
        ({"base": "10000", "ids": []}, "has the base '10000'"),
        ({"base": 10**400, "ids": []}, "has the base 1000"),
        ({"base": 100.0}, "has ids None for 2 layers"),
        ({"base": 100.0, "ids": [[1]]}, r"has ids \[\[1\]\] for 2 layers"),
        ({"base": 100.0, "ids": [[1], []]}, r"has ids \[\] for the 16 planes of layer 1"),
        ({"base": 100.0, "ids": [[1], [17]]}, r"has ids \[17\] for the 16 planes"),
        ({"base": 100.0, "ids": [[1], [0]]}, r"has ids \[0\]"),
        ({"base": 100.0, "ids": [[1], [2, 1]]}, r"has ids \[2, 1\]"),
        ({"base": 100.0, "ids": [[1], [1.0]]}, r"has ids \[1.0\]"),
        ({"base": 100.0, "ids": [[1], ["1"]]}, r"has ids \['1'\]"),
        ({"base": 100.0, "ids": [[1], 5]}, "has ids 5"),
    ],
)
def test_stored_angles_that_nobody_can_have_trained_with_are_refused(
    stored: Any, message: str, saved: Path, tmp_path: Path
) -> None:
    place = tmp_path / "foreign"
    place.mkdir()
    for file in saved.iterdir():
        (place / file.name).symlink_to(file) if file.name != "config.json" else None
    config = json.loads((saved / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"rotoscope_angles": stored}))
    with pytest.raises(ModelError, match=message):
        rs.load(place, device="cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = rs.tasks.letter(2)
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "model", restricted(samples), samples)


SMALLER = {**SMALL, "nope": (), "rotary": None, "steps": 20}


def test_models_of_a_stack_with_other_angles_are_what_they_would_have_been_alone() -> None:
    """With dropout, two tasks and restrictions of single layers."""
    each = TrainSettings.several(
        "paper", ["number", "letter"], 1, angles=["all", "1", "0:4", "slow"], **SMALLER
    )
    stack = trained(each)
    assert stack.model.angles.shape == (8, 2, 4)
    found = stack.states()
    for k in (1, 2, 6):
        alone = trained(each[k]).states()[0]
        for name, value in alone.items():
            torch.testing.assert_close(found[k][name], value, atol=5e-6, rtol=0.0, msg=name)
    whole, one, *_ = stack.model.each
    assert (whole.weights["lm_head.weight"] - one.weights["lm_head.weight"]).abs().max() > 1e-4
    assert len(stack.tokens) == 2 * SMALL["train_sequences"]  # restrictions share their sequences


def test_alike_models_share_their_table() -> None:
    each = TrainSettings.several("paper", ["number", "letter"], 2, angles="slow", **SMALLER)
    assert Trainer(each, CPU).model.angles.shape == (2, 4)


def test_runs_of_restrictions(tmp_path: Path) -> None:
    how: dict[str, Any] = {"device": "cpu", "on_evaluate": rs.experiments.Watch(4), **SMALLER, "steps": 4}
    del how["letters"]  # meant for the other task
    runs = rs.lab.train("letter", "paper", angles=["all", "0:slow"], out=tmp_path / "runs", **how)
    assert [run.folder.name for run in runs] == ["letter-0", "letter-0.slow-0"]
    alone = rs.lab.train("letter", "paper", angles="0:slow", out=tmp_path / "alone", **how)
    assert alone.run.settings == runs[1].run.settings
    assert runs[1].run.proof.largest_difference < 1e-5
    pd.testing.assert_frame_equal(
        rs.dynamics(alone).at(), rs.dynamics(runs[1]).at(), atol=1e-4, rtol=0.0
    )  # scored with other angles beside it
    again = rs.load(tmp_path / "alone", device="cpu")
    assert GPTJ.from_transformers(again.model).shape.ids == ((3, 4), (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"angles": []}, "each restriction of angles must be given once, found none"),
        ({"angles": ["fast", "fast"]}, "each restriction of angles must be given once, found fast, fast"),
        ({"angles": 3}, "angles must be text, found 3"),
        ({"angles": ["fast", "33"]}, "frequency ids 33; this model has 1 to 32"),
        ({"base": 1.0}, "base must be more than 1, found 1"),
        ({"base": float("inf")}, "base must be at most"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RotoscopeError, match=message):
        rs.lab.train("number", "mini", out=tmp_path / "runs", device="cpu", **changes)
    assert not (tmp_path / "runs").exists()


def test_a_shape_knows_its_angles() -> None:
    shape = model_shape(TrainSettings.preset("mini", angles="slow", base=100.0, nope=(1,)), 10)
    assert torch.equal(shape.angles[0], rope_angles(32, 100.0, tuple(range(17, 33))))
    assert shape.angles[1].count_nonzero() == 0
    assert torch.equal(replace(shape, ids=(), base=10_000.0).angles[0], rope_angles(32))
