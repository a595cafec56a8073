"""What is kept of every head on the first prompt, against the whole matrix of counterfactual logits."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile import examples as module
from rotoscope.experiments.profile.examples import after_swap, bytes_of, moved_by, shares_of
from rotoscope.models.reader import HeadReader
from rotoscope.scores.blocks import Blocks
from tests.tiny_models import tiny, tokens

EQUAL = [[1, 4], [4, 7], [8, 11], [12, 15]]
UNEQUAL = [[1, 2], [3, 7], [7, 9], [12, 15]]


def kept(name: str, blocks: Sequence[Sequence[int]] | None, n: int = 18) -> tuple[rs.Profile, dict]:
    """A profile, and the counterfactual logits and sinks of its heads on the first prompt."""
    model, shown = tiny("llama", sharp=40.0) if name == "sharp" else tiny(name), tokens(2, n)
    profile = rs.profile(model, tokens=shown, blocks=blocks, null="none")
    whole = {}
    HeadReader(model).read(
        shown[:1],
        (n - 1,),
        lambda layer: whole.update({layer.layer: (layer.at(0).logits()[0], layer.at(0).sinks)}),
    )
    return profile, whole


def softmax(logits: torch.Tensor, sink: torch.Tensor | None) -> np.ndarray:
    both = logits if sink is None else torch.cat((logits, sink[None]))
    return both.detach().double().softmax(0)[: len(logits)].numpy()


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        pytest.param("llama", EQUAL, marks=pytest.mark.slow),
        ("llama", UNEQUAL),
        pytest.param("llama", None, marks=pytest.mark.slow),
        ("gpt_oss", EQUAL),
        pytest.param("gemma2", UNEQUAL, marks=pytest.mark.slow),
        pytest.param("sharp", EQUAL, marks=pytest.mark.slow),
    ],
)
def test_every_swap_of_every_head_is_that_of_the_permuted_logits(name: str, blocks: list | None) -> None:
    profile, whole = kept(name, blocks)
    prompt, n = profile.shown_prompt, 18
    spans = Blocks.tokens(n - 1) if blocks is None else Blocks.of(blocks, n - 1)
    assert len(profile.attention) == sum(len(logits) for logits, _ in whole.values())
    everything = np.arange(n)
    for head in profile.attention.itertuples():
        logits, sinks = whole[head.layer]
        sink = None if sinks is None else sinks[0, head.head]
        before = softmax(logits[head.head, everything, everything], sink)
        np.testing.assert_allclose(head.attention, before, rtol=1e-4, atol=1e-7)
        pairs = list(zip(head.first.tolist(), head.second.tolist(), strict=True))
        everything_kept = len(spans) < 7
        assert len(set(pairs)) == (len(spans) * (len(spans) - 1) // 2 if everything_kept else 16)
        mean = [before[a:b].mean() for a, b in spans.spans]
        gaps = [abs(mean[a] - mean[b]) for a, b in pairs]
        np.testing.assert_allclose(gaps, sorted(gaps, reverse=True), atol=1e-7)
        for k, (first, second) in enumerate(pairs):
            order = spans.exchange(first, second, n)
            after = softmax(logits[head.head, everything, order], sink)
            np.testing.assert_allclose(after_swap(prompt, head, k), after, atol=0.005)
            if k == 0:
                np.testing.assert_allclose(head.attention_swapped, after, rtol=1e-3, atol=1e-6)


def test_few_swaps_of_many_are_the_heaviest(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for blocks in (
        Blocks.tokens(40),
        Blocks.of([(k, k + 3) for k in range(0, 39, 3)], 40),
        Blocks.of(UNEQUAL, 40),
    ):
        attention = rng.random((3, 41))
        pairs = module.heaviest_swaps(torch.from_numpy(attention), blocks, 5).tolist()
        for own, chosen in zip(attention, pairs, strict=True):
            means = [own[a:b].mean() for a, b in blocks.spans]
            gaps = {(i, j): abs(means[i] - means[j]) for i, j in itertools.combinations(range(len(blocks)), 2)}
            assert [tuple(pair) for pair in chosen] == sorted(gaps, key=lambda pair: -gaps[pair])[:5]
    monkeypatch.setattr(module, "MOST_MOVED", 12)
    assert module.heaviest_swaps(
        torch.ones(1, 41), Blocks.of([(k, k + 3) for k in range(0, 39, 3)], 40), 5
    ).shape == (1, 2, 2)


def test_a_byte_is_enough_for_a_share() -> None:
    shares = np.linspace(0, 1, 1001)
    assert np.abs(shares_of(bytes_of(shares)) - shares).max() < 0.004
    assert shares_of(bytes_of(np.array([0.0, 1.0]))).tolist() == [0, 1]


def test_what_moves_between_unequal_blocks() -> None:
    blocks = Blocks.of([(1, 2), (3, 5)], 6)
    positions, contents = moved_by(blocks, 0, 1)
    assert positions.tolist() == [1, 2, 3, 4]
    assert contents.tolist() == [3, 4, 2, 1]
    equal = moved_by(Blocks.of([(1, 2), (4, 5)], 6), 0, 1)
    assert [part.tolist() for part in equal] == [[1, 4], [4, 1]]


def test_the_prompt_is_kept_as_text(tmp_path: Path) -> None:
    subject = rs.load("letter")
    prompts = rs.tasks.letter(count=1, seed=0)
    profile = rs.profile(subject, prompts, null="none", out=tmp_path / "run")
    shown, first = profile.shown_prompt, prompts.prompts()[0]
    assert shown["token_id"].tolist() == list(first.tokens)
    assert shown["token"].tolist() == [subject.tokenizer.decode([t]) for t in first.tokens]
    assert shown.loc[shown["is_query"], "position"].tolist() == [max(first.queries)]
    opened = rs.open(tmp_path / "run")
    pd.testing.assert_frame_equal(opened.attention, profile.attention)
    assert opened.traces["token"].tolist()[:3] == shown["token"].tolist()[:3]


def test_depths_keep_it_too_and_without_examples_nothing_is_kept() -> None:
    found = rs.depths(tiny("llama"), tokens=tokens(1, 12), blocks=[[1, 3], [3, 5], [6, 8]], null="none")
    assert len(found.attention) == 12
    assert len(found.shown_prompt) == 12
    bare = rs.profile(tiny("llama"), tokens=tokens(1, 12), null="none", examples=False)
    assert not bare.has_examples
    with pytest.raises(RotoscopeError, match="made without examples=True"):
        _ = bare.attention
