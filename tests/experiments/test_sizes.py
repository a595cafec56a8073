"""Byte counts are those of the tensors and tables that are really there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import TooLargeError
from rotoscope.experiments import known_heads as known
from rotoscope.experiments.depths import run as depth_curves
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.profile.sizes import prompt_bytes, table_bytes
from rotoscope.measures.batches import LOSS_ROW, check_losses
from rotoscope.models import devices as memory
from rotoscope.models.reader import HeadReader
from rotoscope.tasks.prompt import Prompts, from_tokens
from tests.tiny_models import GROUPED, from_config, tiny, tokens

UNEVEN = [(1, 3), (3, 4), (4, 6), (6, 9)]
PLAIN: dict[str, Any] = {"null": "none", "examples": False}


def table_size(*tables: pd.DataFrame) -> int:
    return sum(int(table.memory_usage(index=False, deep=False).sum()) for table in tables)


def most_bytes(work: Callable[[], object]) -> int:
    """The most that tensors took at a time while something was done, whatever else this process holds."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as watched:
        work()
    events = watched.profiler.kineto_results.events()
    changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"frequencies": True},
        {"queries": "all"},
        {"frequencies": True, "heads": "0:1,2:3", "tau": (1e-4, 1e-2)},
    ],
    ids=["heads", "frequencies", "all queries", "frequencies of two heads at two tau"],
)
@pytest.mark.parametrize("architecture", ["llama", "phi"])
def test_the_tables_of_a_profile_are_counted_to_the_byte(architecture: str, settings: dict[str, Any]) -> None:
    """Blocks of several lengths and different symbols, so that no head has scores that some profiles lack."""
    subject, shown = rs.load(tiny(architecture)), from_tokens(tokens(3, 12), UNEVEN)
    wanted = ProfileSettings(**PLAIN, **settings)
    found = rs.profile(subject, shown, wanted, show_progress=False).tables
    names = ("prompts", "queries", "prompt_frequencies")
    taken = table_size(*(found[name] for name in names if name in found))
    assert table_bytes(HeadReader(subject.model), shown, wanted) == taken


def test_every_draw_of_a_null_has_tables_of_its_own() -> None:
    subject, shown = rs.load(tiny("llama")), from_tokens(tokens(2, 12), UNEVEN)
    settings = ProfileSettings(null="gaussian", null_draws=3, examples=False)
    found = rs.profile(subject, shown, settings, show_progress=False)
    counted = table_bytes(HeadReader(subject.model), shown, settings)
    assert table_size(found.tables["null_prompts"].drop(columns=["null_name", "draw"])) == 3 * counted


def large(**sizes: Any) -> rs.Subject:
    config = tf.LlamaConfig(**{**GROUPED, "num_hidden_layers": 1, "max_position_embeddings": 32768, **sizes})
    return rs.load(from_config(config))


@pytest.mark.parametrize(
    ("sizes", "shown", "settings"),
    [
        ({"hidden_size": 1024, "num_attention_heads": 16}, from_tokens(tokens(1, 3000), UNEVEN), {}),
        ({}, from_tokens(tokens(1, 150), UNEVEN), {"queries": "all"}),
        ({"hidden_size": 512}, from_tokens(tokens(1, 40)), {"frequencies": True}),
    ],
    ids=["keys of a long prompt", "scores at all queries", "scores of planes"],
)
def test_a_prompt_takes_no_less_than_was_counted(
    sizes: dict[str, int], shown: Prompts, settings: dict[str, Any]
) -> None:
    """Nothing that fits is refused."""
    subject, wanted = large(**sizes), ProfileSettings(**PLAIN, prove=False, **settings)
    counted = prompt_bytes(HeadReader(subject.model), shown[0], wanted)
    taken = most_bytes(lambda: rs.profile(subject, shown, wanted, show_progress=False))
    assert 1000 < counted <= taken


def refused(monkeypatch: pytest.MonkeyPatch, free: int) -> Any:
    monkeypatch.setattr(memory, "free_memory", lambda device: free)
    return pytest.raises(TooLargeError)


def test_a_prompt_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, shown = rs.load(tiny("llama")), from_tokens(tokens(1, 12), UNEVEN)
    counted = prompt_bytes(HeadReader(subject.model), shown[0], ProfileSettings(**PLAIN))
    with refused(monkeypatch, counted - 1) as problem:
        rs.profile(subject, shown, **PLAIN, show_progress=False)
    assert "scoring one prompt of 12 tokens needs" in str(problem.value)


def test_the_table_of_depths_is_counted_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(depth_curves, "check_tables", lambda what, size, out, less: counted.append(size))
    found = rs.depths(
        rs.load(tiny("llama")), tokens=tokens(2, 12), at=(0, 2, "own"), tau=(1e-4, 1e-2), null="none", show_progress=False
    )  # fmt: skip
    assert counted == [table_size(found.prompts)]


def test_all_swaps_of_a_prompt_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """11 tokens before the query: 55 swaps, two scores and one weight of each in four heads."""
    with refused(monkeypatch, 4 * 55 * 3 * 4 - 1) as problem:
        rs.depths(rs.load(tiny("llama")), tokens=tokens(1, 12), null="none", show_progress=False)
    assert "one prompt with 55 swaps needs 2.6 kB" in str(problem.value)


def test_known_heads_are_asked_at_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = large(vocab_size=5000)
    shown = from_tokens(tokens(1, 200))
    counted = known.prompt_bytes(HeadReader(subject.model), 200)
    assert 199 * 5000 * 4 < counted <= most_bytes(lambda: rs.known_heads(subject, shown, show_progress=False))
    with refused(monkeypatch, counted - 1) as problem:
        rs.known_heads(subject, shown, show_progress=False)
    assert "one prompt of 200 tokens, all of them queries, needs" in str(problem.value)


def test_losses_and_the_logits_they_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = rs.load(tiny("llama"))
    shown = {"task": rs.tasks.from_tokens(tokens(5, 12))}
    words = subject.model.config.vocab_size
    check_losses(subject, shown, 1, None)
    with refused(monkeypatch, 4 * words - 1) as problem:
        check_losses(subject, shown, 1, None)
    assert "one prompt with 1 answers needs" in str(problem.value)
    with refused(monkeypatch, LOSS_ROW * 5 * 1000 - 1) as problem:
        check_losses(subject, shown, 1000, None)
    assert "a table of 1,000 losses for each of 5 prompts needs 120.0 kB" in str(problem.value)
