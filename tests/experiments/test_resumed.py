"""A run that is stopped anywhere and goes on with other batches, versions or weights: the same numbers, or a sentence."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.measures import null as nulls
from rotoscope.runs.record import described_checksum
from rotoscope.runs.run import Run
from tests.constructed import places_written, symbol_prompts
from tests.tiny_models import tiny, tokens

PROMPTS, LENGTH = 3, 9
QUIET: dict[str, Any] = {
    "tokens": tokens(PROMPTS, LENGTH),
    "examples": False,
    "prove": False,
    "show_progress": False,
}
SIZES = [LENGTH * together for together in range(1, PROMPTS + 1)]


class Stopped(Exception):
    pass


@contextmanager
def stopping(after: int) -> Iterator[None]:
    """Let a run be stopped when so many pieces are on disk."""
    add, left = Run.add, after

    def add_and_stop(run: Any, key: str, tables: Any) -> None:
        nonlocal left
        add(run, key, tables)
        left -= 1
        if left == 0:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "add", add_and_stop)
        yield


def assert_same(first: Any, second: Any) -> None:
    """All tables, row by row; numbers as far as batches of other sizes round alike."""
    assert first.tables.keys() == second.tables.keys()
    for name, expected in first.tables.items():
        table = second.tables[name]
        pd.testing.assert_frame_equal(table, expected, check_exact=False, rtol=1e-4, atol=1e-5, obj=name)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def whole(model: Any) -> dict[str, rs.Profile]:
    return {null: rs.profile(model, **null_settings(null), **QUIET) for null in ("none", "random", "gaussian")}


def null_settings(null: str) -> dict[str, Any]:
    return {"null": null} if null == "none" else {"null": null, "null_draws": 2}


PAIRS = list(itertools.product(SIZES, SIZES))
CASES = [
    pytest.param("none", SIZES[0], SIZES[-1]),
    pytest.param("gaussian", SIZES[-1], SIZES[0]),
    *(
        pytest.param(null, *pair, marks=pytest.mark.slow)
        for null in ("none", "random", "gaussian")
        for pair in PAIRS
    ),
]


@pytest.mark.parametrize(("null", "first", "second"), CASES)
def test_a_profile_goes_on_with_any_batch_size(
    model: Any, whole: dict[str, rs.Profile], null: str, first: int, second: int, tmp_path: Path
) -> None:
    """Stopped after every piece there is, and continued: the device decides the batch size, not the result."""
    how = QUIET | null_settings(null)
    for after in itertools.count(1):
        place = tmp_path / str(after)
        try:
            with stopping(after):
                rs.profile(model, out=place, batch_tokens=first, **how)
        except Stopped:
            resumed = rs.profile(model, out=place, batch_tokens=second, **how)
            assert resumed.run.settings["prompts"] == resumed.prompts["prompt"].nunique() == PROMPTS
            assert_same(whole[null], resumed)
            continue
        assert after > PROMPTS * LENGTH // first  # it was stopped somewhere
        return


SWAPPED: dict[str, Callable[..., Any]] = {
    "depths": partial(rs.depths, at=(0, "carry"), swaps=4, null="none"),
    "input swaps": partial(
        rs.profile, input_swaps=4, null="random", null_draws=1, examples=False, prove=False, known=False
    ),
}


@contextmanager
def copying(run: Path, copies: Path) -> Iterator[None]:
    """Copy a run's folder whenever a piece is on disk, as it would lie there if the run were killed then."""
    add = Run.add

    def add_and_copy(self: Any, key: str, tables: Any) -> None:
        add(self, key, tables)
        if self.folder == run:
            shutil.copytree(run, copies / key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "add", add_and_copy)
        yield


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 1), (1, 1), (2, 2)))],
)
@pytest.mark.parametrize("measure", SWAPPED.values(), ids=SWAPPED)
def test_swaps_in_the_prompt_go_on_with_any_batch_size(
    measure: Callable[..., Any], first: int, second: int, tmp_path: Path
) -> None:
    """Stopped after every piece there is, of a model with a carried head."""
    model, shown = places_written(1), symbol_prompts(2)
    length = len(shown[0].tokens)
    how = {"batch_tokens": first * length, "show_progress": False}
    with copying(tmp_path / "run", tmp_path / "copies"):
        whole = measure(model, shown, out=tmp_path / "run", **how)
    keys = {place.name.partition("-")[0] for place in (tmp_path / "copies").iterdir()}
    assert keys >= {"real", "paired"}
    assert keys & {"carry", "input"}
    for place in (tmp_path / "copies").iterdir():
        resumed = measure(model, shown, out=place, **how | {"batch_tokens": second * length})
        assert_same(whole, resumed)


def test_two_random_models_are_not_joined_to_one_draw(
    model: Any, whole: dict[str, rs.Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device draws other models from the same seeds: what it has begun is not gone on with."""
    how = {"out": tmp_path / "run", "batch_tokens": LENGTH} | QUIET | null_settings("random")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(nulls, "null_seed", lambda seed, draw: 1000 + draw)
        with pytest.raises(Stopped), stopping(PROMPTS + 2):
            rs.profile(model, **how)
    markers = [*(tmp_path / "run").rglob("random-*.done.json")]
    assert markers
    for marker in markers:
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"device": "cuda"}))
    assert_same(whole["random"], rs.profile(model, **how))


def test_a_draw_does_not_depend_on_batches(model: Any) -> None:
    """Neither Gaussian keys nor the factor of random models."""
    for null, table in (("gaussian", "null_prompts"), ("random", "null_factors")):
        parts = [
            rs.profile(model, null=null, null_draws=1, batch_tokens=size, **QUIET).tables[table]
            for size in SIZES
        ]
        for part in parts[1:]:
            pd.testing.assert_frame_equal(part, parts[0], check_exact=False, rtol=1e-4, atol=1e-5)


def test_random_models_are_rescaled_on_the_same_prompts_everywhere() -> None:
    prompts = rs.tasks.from_tokens(tokens(300, LENGTH))
    count = nulls.CALIBRATION_BATCHES * (nulls.CALIBRATION_TOKENS // LENGTH)
    for most in (LENGTH, 7 * LENGTH, 1024, 16_384):
        chosen = nulls.calibration_batches(prompts, "last", most)
        assert [batch.first + k for batch in chosen for k in range(len(batch))] == list(range(count))
        assert max(len(batch) for batch in chosen) <= most // LENGTH


def begun(model: Any, place: Path) -> Path:
    """A run of which one piece is finished."""
    with pytest.raises(Stopped), stopping(1):
        rs.profile(model, out=place, null="none", batch_tokens=LENGTH, **QUIET)
    return place / "run.json"


def rewrite(file: Path, **versions: str) -> None:
    content = json.loads(file.read_text())
    content["versions"] |= versions
    file.write_text(json.dumps(content | {"checksum": described_checksum(content)}))


@pytest.mark.parametrize("package", ["rotoscope", "torch", "transformers"])
def test_an_unfinished_run_of_another_version_is_not_gone_on_with(
    model: Any, package: str, tmp_path: Path
) -> None:
    rewrite(begun(model, tmp_path / "run"), **{package: "0.0.9"})
    how = {"out": tmp_path / "run", "null": "none", **QUIET}
    with pytest.raises(
        RunError, match=rf"begun with {package} 0\.0\.9 \(.+ now\) and not finished.*--overwrite"
    ):
        rs.profile(model, **how)
    assert len(rs.profile(model, overwrite=True, **how).prompts)


def test_another_patch_release_goes_on(model: Any, tmp_path: Path) -> None:
    release = ".".join(torch.__version__.split(".")[:2])
    rewrite(begun(model, tmp_path / "run"), torch=f"{release}.99", numpy="1.0", python="3.0")
    assert len(rs.profile(model, out=tmp_path / "run", null="none", **QUIET).prompts)


def test_a_finished_run_of_another_version_opens_and_says_so(model: Any, tmp_path: Path) -> None:
    rs.profile(model, out=tmp_path / "run", null="none", **QUIET)
    rewrite(tmp_path / "run" / "run.json", torch="1.13.0")
    for opened in (
        rs.open(tmp_path / "run"),
        rs.open(tmp_path / "run", rs.Profile),
        rs.profile(model, out=tmp_path / "run", null="none", **QUIET),
    ):
        assert opened.run.versions["torch"] == "1.13.0"
        told = [line for line in opened.run.warnings if "made with" in line]
        assert told == [f"this run was made with torch 1.13.0 ({installed('torch')} now)"]
    opened.save(tmp_path / "copy")
    assert rs.open(tmp_path / "copy").run.warnings == opened.run.warnings


def test_a_run_continued_on_another_device_says_so(model: Any, tmp_path: Path) -> None:
    begun(model, tmp_path / "run")
    for marker in (tmp_path / "run").rglob("*.done.json"):
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"device": "cuda"}))
    resumed = rs.profile(model, out=tmp_path / "run", null="none", **QUIET)
    assert resumed.run.device == "cpu, cuda"
    assert any("different devices (cpu, cuda)" in line for line in resumed.run.warnings)
    undisturbed = rs.profile(model, null="none", **QUIET)
    assert undisturbed.run.device == "cpu"
    assert not any("different devices" in line for line in undisturbed.run.warnings)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(model: Any, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        scores = rs.profile(model, null="none", **QUIET).heads["symbolic_score"]
    finally:
        torch.set_num_threads(before)
    one_thread = rs.profile(model, null="none", **QUIET).heads["symbolic_score"]
    np.testing.assert_allclose(scores, one_thread, atol=1e-5)


def test_prompts_are_told_apart_by_what_is_expected_of_them(model: Any, tmp_path: Path) -> None:
    """The same tokens with other answers are other prompts: accuracies would be wrong."""
    prompts = rs.tasks.from_tokens(tokens(2, LENGTH))
    item = prompts.items[0]
    other = type(prompts)(prompts.task, tuple(type(item)(p.tokens, p.queries, answers=(5,)) for p in prompts))
    how = {"null": "none", "examples": False, "show_progress": False, "out": tmp_path / "run"}
    rs.profile(model, prompts, **how)
    with pytest.raises(RunError, match="other settings"):
        rs.profile(model, other, **how)
