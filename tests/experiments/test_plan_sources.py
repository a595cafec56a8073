"""What plans are made and judged on: what is asked lies out of sight, shares are those asked for, another text is another run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError, TaskError
from rotoscope.experiments.plan.cache_plan import cache_prompts
from rotoscope.experiments.plan.settings import CacheSettings
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

SMALL: dict[str, Any] = {
    "window": 4,
    "sinks": 1,
    "prompts": 2,
    "length": 8,
    "passage": 12,
    "show_progress": False,
}
REPEATS: dict[str, Any] = {**SMALL, "sources": ("repeats",), "rankings": ("far_task", "gradient")}
BOTH: dict[str, Any] = {**SMALL, "sources": ("repeats", "text"), "frontier": (0.5,)}


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    return rs.load((tiny("llama"), word_tokenizer()), name="small")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "words.txt", 0)


def write(file: Path, seed: int) -> Path:
    """Words of our own; another seed gives as many others."""
    draw = np.random.default_rng(seed)
    file.write_text(" ".join(f"w{k}" for k in draw.integers(3, 128, 600)))
    return file


def cached(subject: rs.Subject, **how: Any) -> Any:
    return rs.plan.cache(subject, rankings="far_task", **BOTH, **how)


def rotated(subject: rs.Subject, **how: Any) -> Any:
    own = {
        "rankings": "fastest",
        "budgets": 2,
        "planes": 1,
        "prompts": 2,
        "length": 8,
        "passage": 12,
    }
    return rs.plan.rotation(subject, sources=("repeats", "text"), show_progress=False, **own, **how)


@pytest.mark.parametrize("planned", [cached, rotated])
def test_another_text_under_the_same_name_is_another_run(
    planned: Callable[..., Any], subject: rs.Subject, text: Path, tmp_path: Path
) -> None:
    first = planned(subject, text=text, out=tmp_path / "run")
    again = planned(subject, text=str(text), out=tmp_path / "run")
    assert again.run.settings == first.run.settings
    write(text, 1)
    with pytest.raises(RunError, match="prompts_hash"):
        planned(subject, text=text, out=tmp_path / "run")
    other = planned(subject, text=text, out=tmp_path / "run", overwrite=True)
    assert other.run.settings["prompts_hash"] != first.run.settings["prompts_hash"]
    before, after = (plan.points.query("source == 'text'")["loss"] for plan in (first, other))
    assert not np.allclose(before, after)


@pytest.mark.parametrize("planned", [cached, rotated])
def test_plans_say_what_chance_is_made_of(planned: Callable[..., Any], subject: rs.Subject, text: Path) -> None:
    assert planned(subject, text=text).run.settings["vocabulary"] == subject.model.config.vocab_size == 128


@pytest.mark.parametrize(
    ("window", "pairs"),
    [(32, (12, 16)), (256, (95, 110)), pytest.param(512, (110, 110), marks=pytest.mark.slow)],
)
def test_what_is_looked_up_is_out_of_sight(stand_in: rs.Subject, window: int, pairs: tuple[int, int]) -> None:
    """Of every prompt: those that heads are ranked on, that rankings are chosen on, and that are shown."""
    wanted = CacheSettings.make(sources=("repeats", "lookup"), window=window, prompts=8)
    shown = cache_prompts(stand_in, wanted)
    assert len(shown["lookup"]) == len(shown["repeats"]) == 24
    assert pairs[0] <= shown["lookup"].settings["pairs"] <= pairs[1]
    for prompts in shown.values():
        for prompt in prompts:
            for query, answer in zip(prompt.queries, prompt.answers, strict=True):
                places = [k for k, token in enumerate(prompt.tokens[: query + 1]) if token == answer]
                assert places
                assert all(query - place >= window for place in places)
                assert prompts.task == "repeats" or min(places) >= wanted.sinks


@pytest.mark.parametrize("change", [{"pairs": 4}, {"window": 1024, "length": 2000, "passage": 2000}])
def test_lines_that_are_all_in_sight_are_refused(stand_in: rs.Subject, change: dict[str, Any]) -> None:
    with pytest.raises(
        TaskError, match=r"lines all stand among the last .*give more lines \(--pairs\) or a smaller window"
    ):
        rs.plan.cache(stand_in, rankings="far_task", sources=("repeats", "lookup"), **change)


def test_repeats_that_are_all_in_sight_are_refused(stand_in: rs.Subject) -> None:
    how: dict[str, Any] = {"sources": "repeats", "rankings": "far_task", "prompts": 1}
    with pytest.raises(
        TaskError, match="15 of 15 tokens that repeats ask for, 15 tokens back, stand among the last 20"
    ):
        rs.plan.cache(stand_in, length=16, window=20, **how)
    with pytest.raises(TaskError, match="stand among the last 16 or the first 4"):
        rs.plan.cache(stand_in, length=16, window=16, **how)


def test_a_passage_that_a_window_holds_is_refused(subject: rs.Subject, text: Path) -> None:
    with pytest.raises(
        TaskError, match=r"hold all of a prompt of 12 \(text\), so no head would forget anything"
    ):
        rs.plan.cache(
            subject,
            text=text,
            **BOTH | {"sources": "text", "task": "text", "window": 11, "rankings": "far_task"},
        )


def test_the_share_that_was_asked_for_is_measured(subject: rs.Subject) -> None:
    """A third, and nearly a third: both are 2 of 6 heads, and one point."""
    plan = rs.plan.cache(subject, keep=1 / 3, frontier=(0.3333, 0.3334, 0.5), **REPEATS)
    assert plan.budgets == [0.0, 1 / 3, 0.5, 1.0]
    assert plan.ranking in ("far_task", "gradient")
    kept = plan.scores[(plan.scores["ranking"] == plan.ranking) & (plan.scores["place"] < 2)]
    stays = plan.heads[~plan.heads["streams"]]
    assert set(zip(kept["layer"], kept["key_head"], strict=True)) == set(
        zip(stays["layer"], stays["key_head"], strict=True)
    )
    counts = plan.points.groupby("kept_share")["kept_heads"].unique()
    assert [list(found) for found in counts] == [[0], [2], [3], [6]]


def test_shares_that_differ_in_heads_differ(subject: rs.Subject) -> None:
    plan = rs.plan.cache(subject, keep=0.24, frontier=(0.2500001, 0.26), **REPEATS)
    assert plan.budgets == [0.0, 0.24, 0.26, 1.0]  # 1 and 2 of 6 heads


@pytest.mark.parametrize(("keep", "streams"), [(0.01, 6), (0.99, 0)])
def test_a_share_that_is_none_or_all(subject: rs.Subject, keep: float, streams: int) -> None:
    plan = rs.plan.cache(subject, keep=keep, frontier=0.5, **REPEATS)
    assert int(plan.heads["streams"].sum()) == streams
    assert plan.ranking == "any"
    assert plan.sentences()
    assert plan.overview()
    with pytest.raises(RotoscopeError, match="at no budget would some of the 6 key heads be kept and others"):
        rs.plan.cache(subject, keep=keep, frontier=(0.01, 1.0), **REPEATS)


def test_random_rankings_alone_make_no_plan(subject: rs.Subject) -> None:
    with pytest.raises(RotoscopeError, match="random rankings are what a plan is compared with"):
        rs.plan.cache(subject, **REPEATS | {"rankings": "random"})
