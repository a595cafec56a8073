"""A finished profile is given more draws of its nulls; draws that fail are left out; what fails is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import BitsAndBytesConfig

import rotoscope as rs
from rotoscope.errors import NumberError, RunError
from rotoscope.experiments.depths import run as depths_run
from rotoscope.experiments.profile import run as profile_run
from rotoscope.measures import null as nulls
from rotoscope.runs.run import Run
from tests.tiny_models import tiny, tokens

ASKED: dict[str, Any] = {"tokens": tokens(3, 10), "batch_tokens": 20, "show_progress": False}


def same_tables(first: Path, second: Path) -> None:
    one, other = rs.open(first), rs.open(second)
    assert one.run.settings == other.run.settings
    assert one.run.tables == other.run.tables
    for name, table in one.tables.items():
        pd.testing.assert_frame_equal(table, other.tables[name])
    pd.testing.assert_frame_equal(one.statistics(), other.statistics())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"null_draws": 4}, marks=pytest.mark.slow),
        pytest.param({"null_draws": 2}, {"null_draws": 4}, marks=pytest.mark.slow),
        pytest.param(
            {"null": "gaussian", "null_draws": 2}, {"null": "both", "null_draws": 3}, marks=pytest.mark.slow
        ),
        (
            {"null_draws": 1, "input_swaps": 4, "known": True, "frequencies": True},
            {"null_draws": 2, "input_swaps": 4, "known": True, "frequencies": True},
        ),
    ],
)
def test_a_finished_run_is_given_the_draws_it_lacks(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    prompts = rs.tasks.from_tokens(ASKED["tokens"], [(p, p + 2) for p in range(1, 9, 2)])
    how = {"prompts": prompts, "batch_tokens": 20, "show_progress": False}
    monkeypatch.setattr(profile_run, "usual_prompts", lambda subject, seed: [rs.tasks.repeats(range(90), 5, 1)])
    at_once = rs.profile(model, out=tmp_path / "once", **how, **after)
    rs.profile(model, out=tmp_path / "grown", **how, **before)
    scored: list[str] = []
    add = Run.add

    def noted(self: Any, key: str, tables: Any) -> None:
        scored.append(key)
        add(self, key, tables)

    def not_again(*how: Any) -> None:
        raise AssertionError("the subject was scored again")

    monkeypatch.setattr(Run, "add", noted)
    monkeypatch.setattr(profile_run, "score_batch", not_again)
    monkeypatch.setattr(profile_run, "permuted", not_again)
    monkeypatch.setattr(profile_run, "examples", not_again)
    grown = rs.profile(model, out=tmp_path / "grown", **how, **after)
    assert grown.nulls["draw"].nunique() == at_once.nulls["draw"].nunique() == after["null_draws"]
    same_tables(tmp_path / "once", tmp_path / "grown")
    assert not (tmp_path / "grown" / ".replaced").exists()


def test_a_run_with_more_draws_than_asked_for_is_returned(tmp_path: Path) -> None:
    model, folder = tiny("llama", num_hidden_layers=1), tmp_path / "run"
    rs.profile(model, out=folder, null_draws=3, **ASKED)
    for fewer in ({"null_draws": 2}, {"null": "none"}):
        assert rs.profile(model, out=folder, **ASKED, **fewer).nulls["draw"].nunique() == 3
    with pytest.raises(RunError, match="made with other settings.*null: random there, gaussian now"):
        rs.profile(model, out=folder, null="gaussian", null_draws=5, **ASKED)
    with pytest.raises(RunError, match="gamma: 0.1 there, 0.2 now"):
        rs.profile(model, out=folder, null_draws=5, gamma=0.2, **ASKED)
    assert rs.open(folder).nulls["draw"].nunique() == 3


def test_a_run_that_is_killed_while_it_is_given_draws_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama", num_hidden_layers=1)
    rs.profile(model, out=tmp_path / "once", null_draws=3, **ASKED)
    rs.profile(model, out=tmp_path / "grown", null_draws=1, **ASKED)
    add = Run.add

    def limited(self: Any, key: str, tables: Any) -> None:
        if key.startswith("random-2"):
            raise KeyboardInterrupt
        add(self, key, tables)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add", limited)
        with pytest.raises(KeyboardInterrupt):
            rs.profile(model, out=tmp_path / "grown", null_draws=3, **ASKED)
    rs.profile(model, out=tmp_path / "grown", null_draws=3, **ASKED)
    same_tables(tmp_path / "once", tmp_path / "grown")


def test_a_draw_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw_weights = tiny("llama", num_hidden_layers=1), nulls.draw_weights
    bad = nulls.null_seed(0, 1)

    def fails(made: Any, seed: int) -> None:
        if seed == bad:
            raise NumberError("layer 0 gives NaN")
        draw_weights(made, seed)

    with monkeypatch.context() as patch:
        patch.setattr(nulls, "draw_weights", fails)
        found = rs.profile(model, out=tmp_path / "run", null_draws=3, **ASKED)
    assert found.nulls["draw"].unique().tolist() == [0, 2]
    assert found.statistics()["null_draws"].max() == 2
    [warning] = [text for text in found.run.warnings if "failed" in text]
    assert warning.startswith(
        "1 draw of the random null failed and was left out (NumberError: layer 0 gives NaN"
    )


@pytest.mark.parametrize("null", ["random", "gaussian"])
def test_a_null_all_of_whose_draws_fail(null: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*how: Any) -> None:
        raise NumberError("no number")

    model = tiny("llama", num_hidden_layers=1)
    monkeypatch.setattr("rotoscope.experiments.profile.nulls.score_draws", fails)
    found = rs.profile(model, null=null, null_draws=2, **ASKED)
    assert found.null_name is None
    assert any(
        text.startswith(f"2 draws of the {null} null failed and were left out") for text in found.run.warnings
    )
    assert any(text.startswith("no null: ") for text in found.run.warnings)


def test_too_few_draws_are_said(tmp_path: Path) -> None:
    found = rs.profile(tiny("llama", num_hidden_layers=1), null_draws=2, **ASKED)
    assert (
        "2 draws of the null: nothing can be called beyond it with fewer than 19 (--null-draws 39)"
        in found.run.warnings
    )


def test_depths_go_on_without_a_null_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", num_hidden_layers=1)
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    found = rs.depths(model, null="random", tokens=tokens(2, 8), show_progress=False)
    assert found.null_name is None
    assert len(found.prompts)
    assert any(text.startswith("no random null: ") and "is quantised" in text for text in found.run.warnings)


def test_depths_go_on_without_draws_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bad = depths_run.null_scores, 1

    def fails(null: Any, *rest: Any, **how: Any) -> Any:
        if null.draw == bad:
            raise NumberError("layer 0 gives NaN")
        return rows(null, *rest, **how)

    monkeypatch.setattr(depths_run, "null_scores", fails)
    model = tiny("llama", num_hidden_layers=1)
    found = rs.depths(model, tokens=tokens(2, 8), null_draws=3, show_progress=False)
    assert found.null_prompts["draw"].unique().tolist() == [0, 2]
    assert any(
        text.startswith("1 draw of the random null failed and was left out") for text in found.run.warnings
    )


@pytest.mark.slow
def test_depths_draw_no_null_unless_asked_and_then_enough() -> None:
    model = tiny("llama", num_hidden_layers=1)
    plain = rs.depths(model, tokens=tokens(2, 6), at="own", show_progress=False)
    assert plain.null_name is None
    assert any(text.startswith("no null: ") for text in plain.run.warnings)
    drawn = rs.depths(model, tokens=tokens(2, 6), at="own", null="random", show_progress=False)
    assert drawn.null_prompts["draw"].nunique() == drawn.run.settings["null_draws"] == 39
