"""Attention on the first prompt after a swap in the prompt: what the model itself attends to when it reads that prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.examples import after_swap, blocks_shown
from rotoscope.models.reader import HeadReader
from rotoscope.report.page import run_payload
from tests.tiny_models import tiny, tokens


@pytest.mark.parametrize("swaps", [3, 1000])
def test_it_is_what_the_model_attends_to(swaps: int) -> None:
    model, shown = tiny("llama", sharp=7.0), tokens(2, 14)
    profile = rs.profile(model, tokens=shown, input_swaps=swaps, null="none", show_progress=False)
    table, attention = profile.attention_prompt_permuted, profile.attention
    assert table[["layer", "head"]].values.tolist() == attention[["layer", "head"]].values.tolist()
    blocks, reader = blocks_shown(profile.shown_prompt), HeadReader(model, prove=False)
    pairs = set(zip(table["first"], table["second"], strict=True))
    assert len(pairs) <= swaps
    read = {}
    for pair in pairs:
        changed = torch.as_tensor(shown[:1])[:, blocks.exchange(*pair, 14)]
        reader.read(
            changed, (13,), lambda layer, pair=pair: read.update({(pair, layer.layer): layer.at(0).real()[0]})
        )  # type: ignore[misc]
    for row, head in zip(table.itertuples(), attention.itertuples(), strict=True):
        real = torch.softmax(read[(row.first, row.second), row.layer][row.head].double(), -1)
        np.testing.assert_allclose(row.attention, real, atol=1e-5)
        same = np.flatnonzero((head.first == row.first) & (head.second == row.second))
        assert len(same) == 1  # kept among the head's own swaps, whatever it weighs
        gaps = abs(np.asarray(head.attention)[head.first] - np.asarray(head.attention)[head.second])
        assert (np.diff(gaps) < 1e-9).all()
        if swaps == 1000:
            assert same[0] == 0
        if row.layer == 0:  # nothing below has written a place
            np.testing.assert_allclose(
                row.attention, after_swap(profile.shown_prompt, head, same[0]), atol=0.005
            )


def test_the_page_has_it_for_the_same_swap() -> None:
    profile = rs.profile(tiny("llama"), tokens=tokens(2, 12), input_swaps=4, null="none", show_progress=False)
    shown = run_payload(profile)["tabs"]["overview"]["shown"]
    firsts = [
        int(head.first[swap])
        for head, swap in zip(profile.attention.itertuples(), shown["permuted"]["swap"], strict=True)
    ]
    assert firsts == profile.attention_prompt_permuted["first"].tolist()
    bare = rs.profile(tiny("llama"), tokens=tokens(2, 12), null="none", show_progress=False)
    assert "permuted" not in run_payload(bare)["tabs"]["overview"]["shown"]
    with pytest.raises(RotoscopeError, match="made without input_swaps"):
        _ = bare.attention_prompt_permuted
    quiet = rs.profile(
        tiny("llama"), tokens=tokens(2, 12), input_swaps=4, examples=False, null="none", show_progress=False
    )
    assert "attention_prompt_permuted" not in quiet.tables


def test_weights_that_changed_since_are_named() -> None:
    model = tiny("llama")
    profile = rs.profile(model, tokens=tokens(1, 12), null="none", show_progress=False)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(RotoscopeError, match="weights of the model have changed"):
        _ = profile.attention
    with pytest.raises(RotoscopeError, match="weights of the model have changed"):
        _ = profile.shown_prompt
    assert any("have changed" in warning for warning in run_payload(profile)["warnings"])
