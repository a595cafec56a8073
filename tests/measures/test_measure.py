"""A user's own measure: its column everywhere, and what is wrong with it told by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import NumberError, RotoscopeError, RunError
from rotoscope.measures.built_in import BUILT_IN
from rotoscope.measures.measure import Measure, measure_file
from rotoscope.models.reader import HeadReader
from rotoscope.report.page import run_payload
from tests.tiny_models import tiny, tokens

SHOWN: dict[str, Any] = {"tokens": tokens(3, 12), "null": "none", "show_progress": False}


@rs.measure
def previous_token(heads: rs.LayerHeads) -> dict[str, torch.Tensor]:
    return {"previous_token": heads.attention[..., -2]}


@rs.measure
def plane_share(heads: rs.LayerHeads) -> dict[str, torch.Tensor]:
    variance = heads.plane_logits[:, :, heads.swapped].var(2)
    return {"plane_share": (variance * (heads.angles < 0.05)).sum(-1) / variance.sum(-1)}


@pytest.fixture(scope="module")
def measured() -> rs.Profile:
    return rs.profile(
        tiny("llama"),
        **SHOWN | {"null": "random", "null_draws": 2},
        measures=[previous_token, plane_share],
    )


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptj"])
def test_a_measure_is_the_models_own_attention(name: str) -> None:
    model, columns = tiny(name), rs.profile(tiny(name), **SHOWN, measures=[previous_token]).prompts
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(tokens(3, 12), output_attentions=True).attentions
    for row in columns.itertuples():
        expected = float(layers[row.layer][row.prompt, row.head, -1, -2])
        assert row.previous_token == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "gptj", "gpt_oss"])
def test_plane_logits_add_up_to_the_logits(name: str) -> None:
    def visit(reading: Any) -> None:
        heads = reading.at(0)
        remainder = heads.remainder().real() if reading.layout.remainder else 0.0
        total = heads.plane_logits.sum(-1) + remainder
        seen = heads.visible
        assert torch.allclose(total[..., seen], heads.real_logits[..., seen], atol=1e-5)
        assert heads.angles.tolist() == pytest.approx(reading.layout.angles.tolist(), rel=1e-6)

    HeadReader(tiny(name)).read(tokens(1, 12), (11,), visit)


def edited_measure(factor: float) -> Measure:
    @rs.measure
    def last_token(heads: rs.LayerHeads) -> dict[str, torch.Tensor]:
        return {"last_token": factor * heads.attention[..., -1]}

    return last_token


def test_an_edited_measure_is_another_run(tmp_path: Path) -> None:
    model = tiny("llama", num_hidden_layers=1)
    how = {**SHOWN, "out": tmp_path / "run"}
    before = rs.profile(model, measures=[edited_measure(1.0)], **how)
    assert rs.profile(model, measures=[edited_measure(1.0)], **how).run.written == before.run.written
    with pytest.raises(RunError, match="measures_hash"):
        rs.profile(model, measures=[edited_measure(2.0)], **how)
    assert "measures_hash" not in rs.profile(model, **SHOWN).run.settings


def test_the_file_of_a_measure() -> None:
    assert measure_file("tests.measures.test_measure:previous_token") == Path(__file__)
    assert measure_file("mine.py:previous_token") == Path("mine.py")
    for path in ("nowhere.at.all:f", "f", ":f", "sys:f"):
        assert measure_file(path) is None or not measure_file(path).exists()


def test_a_column_with_its_null(measured: rs.Profile, tmp_path: Path) -> None:
    means = measured.prompts.groupby(["layer", "head"])["previous_token"].mean()
    assert np.allclose(measured.heads["previous_token"], means)
    assert len(measured.nulls) == 2 * len(measured.heads)
    assert measured.nulls["plane_share"].between(0, 1).all()
    row = measured.statistics().set_index("statistic").loc["mean previous_token"]
    assert row["value"] == pytest.approx(float(means.mean()))
    assert row["null_value"] == pytest.approx(float(measured.nulls["previous_token"].mean()), rel=0.5)
    assert row["low"] < row["value"] < row["high"]
    opened: rs.Profile = rs.open(measured.save(tmp_path / "run"))
    tab = run_payload(tmp_path / "run")["tabs"]["overview"]
    assert tab["measures"] == ["previous_token", "plane_share"]
    assert tab["at"][0]["previous_token"] == pytest.approx(opened.heads["previous_token"].tolist(), abs=1e-4)
    assert len(tab["at"][0]["null_band"]["previous_token"]) == 3


def test_queries_are_measured_one_by_one() -> None:
    scores = rs.profile(tiny("llama"), **SHOWN, queries=[5, 11], measures=[previous_token]).queries
    short = rs.profile(
        tiny("llama"), **SHOWN | {"tokens": tokens(3, 12)[:, :6]}, measures=[previous_token]
    ).prompts
    assert np.allclose(scores[scores["query_position"] == 5]["previous_token"], short["previous_token"])


def test_several_batches_and_layers_give_the_same(measured: rs.Profile) -> None:
    alone = rs.profile(tiny("llama"), **SHOWN, batch_tokens=12, measures=[plane_share])
    assert np.allclose(alone.heads["plane_share"], measured.heads["plane_share"], atol=1e-6)


def wrong_shape(heads: rs.LayerHeads) -> Any:
    return {"a_column": heads.attention}


def not_a_number(heads: rs.LayerHeads) -> Any:
    return {"a_column": heads.attention[..., 0] * torch.nan}


def no_columns(heads: rs.LayerHeads) -> Any:
    return heads.attention[..., 0]


def no_tensor(heads: rs.LayerHeads) -> Any:
    return {"a_column": 1.0}


def name_in_use(heads: rs.LayerHeads) -> Any:
    return {"entropy": heads.attention[..., 0]}


def raises(heads: rs.LayerHeads) -> Any:
    return {"a_column": heads.attention[..., 99]}


WRONG = {
    wrong_shape: r"\[batch, heads\] = \[9, 4\], found \[9, 4, 12\]",
    not_a_number: "layer 0.*a_column is not a finite number",
    no_columns: "must return a dictionary",
    no_tensor: "must be a tensor of real numbers, found float",
    name_in_use: "'entropy' exists already",
    raises: "failed: IndexError",
}


@pytest.mark.parametrize(("function", "words"), WRONG.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_wrong_is_told_by_name(function: Any, words: str) -> None:
    with pytest.raises((RotoscopeError, NumberError), match=f"measure '{function.__name__}'") as problem:
        rs.profile(tiny("llama"), **SHOWN, measures=[function])
    assert problem.match(words)


def item(heads: rs.LayerHeads) -> Any:
    return {"a_column": heads.attention[..., 0] / heads.attention.max().item()}


def mask(heads: rs.LayerHeads) -> Any:
    return {"a_column": heads.attention[..., heads.visible].sum(-1)}


def copies(heads: rs.LayerHeads) -> Any:
    return {"a_column": heads.attention[..., 0].to("cpu")}


@pytest.mark.parametrize(
    ("function", "words"), [(item, "item"), (mask, "indexing with a mask"), (copies, "to")]
)
def test_waiting_for_the_device_is_told_by_name(function: Any, words: str) -> None:
    with pytest.warns(UserWarning, match=rf"measure '{function.__name__}' waits .*{words}"):
        rs.profile(tiny("llama"), **SHOWN, measures=[function])


def test_measures_by_name(tmp_path: Path) -> None:
    file = tmp_path / "my_measures.py"
    file.write_text("def first(heads):\n    return {'first': heads.attention[..., 0]}\n")
    profile = rs.profile(tiny("llama"), **SHOWN, measures=f"{file}:first")
    assert "first" in profile.heads
    for name in (f"{file}:second", "no_such_module:first", "first"):
        with pytest.raises(RotoscopeError, match=r"cannot be imported .* write module:function"):
            rs.profile(tiny("llama"), **SHOWN, measures=name)
    for nameless in (lambda heads: {}, 3):
        with pytest.raises(RotoscopeError, match="a function with a name"):
            rs.profile(tiny("llama"), **SHOWN, measures=[nameless])


def test_built_in_measures_are_measures() -> None:
    assert all(isinstance(built_in, Measure) for built_in in BUILT_IN)
