"""Batches that do not fit the memory of a GPU. There is none here: a model refuses more inputs at a time than it has room for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import TooLargeError
from rotoscope.experiments.profile import run as profiling
from rotoscope.measures.batches import Halving, batches
from tests.tiny_models import GROUPED, tokens

N = 16
QUIET: dict[str, Any] = {"show_progress": False, "examples": False}


class Cramped(tf.LlamaForCausalLM):  # type: ignore[misc]
    """A model whose last layer has room for so many inputs at a time; a null of it has as little."""

    room = 2

    def __init__(self, config: tf.LlamaConfig) -> None:
        super().__init__(config)
        self.model.layers[-1].register_forward_pre_hook(self._enter)

    def _enter(self, layer: Any, args: tuple[torch.Tensor]) -> None:
        if len(args[0]) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has no more.")


@pytest.fixture
def cramped() -> rs.Subject:
    torch.manual_seed(0)
    model = Cramped(tf.LlamaConfig(**{**GROUPED, "num_hidden_layers": 2})).eval()
    return rs.load(model)


def same(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame]) -> None:
    """The same rows; batches come draw by draw, or draws batch by batch."""
    assert found.keys() == expected.keys()
    for name, table in found.items():
        by = [column for column in ("draw", "prompt") if column in table]
        one, other = (
            t.sort_values(by, kind="stable", ignore_index=True) if by else t for t in (table, expected[name])
        )
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("null", ["random", "gaussian"])
def test_halved_batches_give_what_small_ones_give(cramped: rs.Subject, null: str) -> None:
    """Four prompts together become batches of 2; the same run cut so from the start holds the same tables."""
    how = {"tokens": tokens(4, N), "null": null, "null_draws": 2, "frequencies": True, "prove": False, **QUIET}
    halved = rs.profile(cramped, batch_tokens=4 * N, **how)
    small = rs.profile(cramped, batch_tokens=2 * N, **how)
    same(halved.tables, small.tables)
    assert [text for text in halved.run.warnings if "did not fit" in text] == [
        "4 inputs of 16 tokens did not fit the memory of the GPU together: batches were halved, to 2 of them"
    ]
    assert not any("did not fit" in text for text in small.run.warnings)


def test_one_prompt_that_does_not_fit_is_refused(cramped: rs.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "score_batch", out_of_memory)
    words = r"one input of 16 tokens does not fit the memory of the GPU \(CUDA out of memory. Tried to allocate 2.00 GiB\): use"
    with pytest.raises(TooLargeError, match=words):
        rs.profile(cramped, tokens=tokens(3, N), null="none", **QUIET)


def out_of_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has no more.")


def test_a_run_that_was_stopped_goes_on_with_the_same_pieces(
    cramped: rs.Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are those of whole batches, so a try with more room takes over what one with less has finished."""
    how = {"tokens": tokens(6, N), "null": "none", "batch_tokens": 3 * N, "prove": False, **QUIET}
    whole = profiling.score_batch

    def stopped(reader: Any, batch: Any, *rest: Any) -> Any:
        if batch.first >= 3:
            raise KeyboardInterrupt
        return whole(reader, batch, *rest)

    monkeypatch.setattr(profiling, "score_batch", stopped)
    with pytest.raises(KeyboardInterrupt):
        rs.profile(cramped, out=tmp_path / "run", **how)
    monkeypatch.setattr(Cramped, "room", 8)
    scored: list[int] = []
    monkeypatch.setattr(
        profiling, "score_batch", lambda r, b, *rest: scored.append(b.first) or whole(r, b, *rest)
    )
    found = rs.profile(cramped, out=tmp_path / "run", **how)
    assert scored == [3]
    assert sorted(found.prompts["prompt"].unique()) == list(range(6))


def test_swaps_of_the_prompt_are_halved_too(cramped: rs.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"tokens": tokens(1, N), "at": (0, "own"), "swaps": 6, "null": "none", "show_progress": False}
    halved = rs.depths(cramped, batch_tokens=8 * N, **how)
    assert any("did not fit" in text for text in halved.run.warnings)
    monkeypatch.setattr(Cramped, "room", 100)
    whole = rs.depths(cramped, batch_tokens=8 * N, **how)
    pd.testing.assert_frame_equal(halved.prompts, whole.prompts, rtol=1e-5, atol=1e-6)


def test_gated_prompts_are_halved_too(cramped: rs.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = rs.tasks.from_tokens(tokens(3, N), answers=[5, 6, 7])
    halved = rs.gate(cramped, prompts, remove="1-2", show_progress=False)
    assert sum("did not fit" in text for text in halved.run.warnings) == 1
    monkeypatch.setattr(Cramped, "room", 100)
    whole = rs.gate(cramped, prompts, remove="1-2", show_progress=False)
    pd.testing.assert_frame_equal(halved.conditions, whole.conditions, rtol=1e-5)
    pd.testing.assert_frame_equal(halved.gated_heads, whole.gated_heads, rtol=1e-5)


def test_the_size_that_fits_is_kept() -> None:
    sizes: list[int] = []
    tried = Halving()

    def work(part: Any) -> list[int]:
        sizes.append(len(part))
        if len(part) > 3:
            raise torch.OutOfMemoryError("no")
        return list(range(part.first, part.first + len(part)))

    first, second = batches(rs.tasks.from_tokens(tokens(20, N)), "last", 10 * N)
    assert [k for part in tried.each(first, N, work) for k in part] == list(range(10))
    assert sizes == [10, 5, 3, 3, 3, 1]
    sizes.clear()
    assert [k for part in tried.each(second, N, work) for k in part] == list(range(10, 20))
    assert sizes == [3, 3, 3, 1]
    assert len(tried.warnings) == 1
    assert "5 inputs of 16 tokens" in tried.warnings[0]
    sizes.clear()
    tried.each(first, 3 * N, work)
    assert set(sizes) == {1}
