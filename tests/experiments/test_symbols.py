"""Swaps between equal symbols, wherever a task knows its symbols; and numbers that are none, in a real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import NumberError
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.measures.batches import batches
from rotoscope.models.reader import HeadReader
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import Prompt
from tests.tiny_models import tiny, tokens

PLAIN = ProfileSettings(null="none", examples=False)
EQUAL = ["equal_symbol_positional_score", "equal_symbol_symbolic_score"]


def test_the_symbol_of_a_block_is_what_it_says_unless_the_task_knows_better() -> None:
    shown = Prompt((1, 2, 1, 2, 3, 1, 9), (6,))
    assert shown.symbols_of(Blocks.tokens(6)) == (0, 1, 0, 1, 2, 0)
    assert shown.symbols_of(Blocks.of([(0, 2), (2, 4), (4, 6)], 6)) == (0, 0, 1)
    told = Prompt((1, 2, 1, 2, 9), (4,), blocks=Blocks.tokens(4), symbols=(7, 7, 8, 9))
    assert told.symbols_of(Blocks.tokens(3)) == (7, 7, 8)


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor([[*row, 50] for row in rows])


def test_prompts_of_one_batch_have_symbols_of_their_own() -> None:
    """Equal tokens in other places of each prompt, and in one of them none: as if each were profiled alone."""
    model = tiny("llama")
    shown = ids([5, 6, 5, 7, 8, 9], [5, 6, 7, 7, 7, 9], [1, 2, 3, 4, 5, 6])
    assert len(batches(rs.tasks.from_tokens(shown), "last", 1024)) == 1
    found = rs.profile(model, rs.tasks.from_tokens(shown), PLAIN)
    rows = found.prompts.set_index(["prompt", "layer", "head"])[EQUAL]
    for k in (0, 1):
        alone = rs.profile(model, tokens=shown[k : k + 1], null="none", examples=False)
        expected = alone.prompts.set_index(["layer", "head"])[EQUAL]
        np.testing.assert_allclose(rows.loc[k], expected, atol=1e-6)
    assert rows.loc[2].isna().all(axis=None)  # nothing is equal there
    assert (found.heads["equal_symbol_prompts"] == 2).all()
    assert (found.heads["prompts"] == 3).all()
    swaps = rs.swap_scores(_logits(model, shown[:1]), symbols=[0, 1, 0, 2, 3, 4]).equal_symbols
    np.testing.assert_allclose(rows.loc[0][EQUAL[0]].loc[0], swaps.positional, atol=1e-5)


def _logits(model: object, shown: torch.Tensor) -> torch.Tensor:
    """Counterfactual logits [heads, n, n] of the first layer."""
    found = []
    places = torch.arange(shown.shape[1])[None]

    def visit(layer) -> None:
        found.append(layer.at(0).gather(places, places)[0, :, 0])

    HeadReader(model).read(shown, (shown.shape[1] - 1,), visit)
    return found[0]


@pytest.mark.slow
def test_tasks_that_know_their_symbols() -> None:
    for task in ("number", "letter"):
        subject = rs.load(task, device="cpu")
        made = getattr(rs.tasks, task)
        found = rs.profile(subject, made(12, seed=3), PLAIN)
        repeated = [len(set(row[:-1])) < len(row) - 1 for row in made(12, seed=3).tokens.tolist()]
        assert sum(repeated) > 0
        assert (found.heads["equal_symbol_prompts"] == sum(repeated)).all()
        assert found.heads[EQUAL].notna().all(axis=None)


def test_text_cut_into_tokens_and_into_equal_sentences(stand_in: rs.Subject) -> None:
    text = "So it goes. A dog barks. A cat sleeps. A dog barks. The end is near"
    for cut in ("token", "sentence"):
        found = rs.profile(stand_in, rs.tasks.text(stand_in, text, cut), PLAIN)
        assert found.heads[EQUAL].notna().all(axis=None), cut
    different = rs.profile(
        stand_in, rs.tasks.text(stand_in, "A dog barks. A cat sleeps. The end is near"), PLAIN
    )
    assert not set(EQUAL) & set(different.heads)


def test_equal_symbols_behind_a_window_are_missing_and_not_zero() -> None:
    """Of 20 tokens a query sees the last 8; the equal ones are the first two."""
    shown = torch.arange(1, 21)[None].repeat(2, 1)
    shown[:, 1] = shown[:, 0]
    shown[1, 15] = shown[1, 16]
    found = rs.profile(tiny("mistral"), tokens=shown, null="none", examples=False)
    rows = found.prompts.set_index("prompt")[EQUAL]
    assert rows.loc[0].isna().all(axis=None)
    assert rows.loc[1].notna().all(axis=None)
    assert (found.heads["equal_symbol_prompts"] == 1).all()
    assert found.heads["positional_score"].notna().all()


def test_logits_that_overflow_stop_the_run_and_say_where(tmp_path) -> None:
    """Queries and keys are numbers; their product is not."""
    model = tiny("llama")
    with torch.no_grad():
        for part in (model.model.layers[2].self_attn.q_proj, model.model.layers[2].self_attn.k_proj):
            part.weight *= 1e22
    with pytest.raises(NumberError, match=r"layer 2: NaN or infinity in the states it hands on"):
        rs.profile(model, tokens=tokens(), prove=False, out=tmp_path / "run", null="none", examples=False)
    assert not list((tmp_path / "run").rglob("*.parquet"))
