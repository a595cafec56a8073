"""Capacity on paper: its formulas against the estimates and against what was measured, and the page against both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rotoscope as rs
from rotoscope.analysis.estimate import estimate
from rotoscope.reading.outline import Outline
from rotoscope.settings import ProfileSettings
from rotoscope.sweep.capacity import (
    CARD,
    CPU,
    SHAPES,
    Shape,
    Work,
    beyond_weights,
    capacity,
    forward_seconds,
    in_words,
    needed,
    scoring_seconds,
)

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
SMALL, EIGHT = SHAPES[0], SHAPES[2]


def without_weights(shape: Shape) -> LlamaForCausalLM:
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.width,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.wide,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=lambda shape: shape.name)
def test_weights_are_counted_as_transformers_makes_them(shape: Shape) -> None:
    model = without_weights(shape)
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)


@pytest.mark.parametrize("draws", [0, 5])
def test_the_formulas_are_those_of_a_profile_s_own_estimate(draws: int) -> None:
    work = Work(tokens=513, blocks=32, prompts=16, draws=draws)
    spans = [(k, k + 16) for k in range(0, 512, 16)]
    prompts = rs.tasks.from_tokens(torch.ones(1, 513, dtype=torch.long), blocks=spans)
    subject = Outline(without_weights(SMALL), None, "small", place=torch.device("cpu"))
    null = {"null": "random", "null_draws": draws} if draws else {"null": "none"}
    theirs = estimate(subject, prompts, ProfileSettings.make(**null), count=16)
    ours = needed(SMALL, work, CPU)
    assert ours.seconds == pytest.approx(theirs.seconds, rel=0.15, abs=5)
    assert ours.gigabytes == pytest.approx(theirs.gigabytes, rel=0.05)


MEASURED = {2_048: (0.058, 0.083), 8_192: (0.247, 0.341), 32_768: (1.382, 2.208)}
"""Seconds of a forward pass, and with all heads: the 8B shape on one H200, blocks of 8 tokens (the README's table)."""


@pytest.mark.parametrize("tokens", MEASURED)
def test_what_was_measured_on_a_card_is_foretold_within_half_as_much_again(tokens: int) -> None:
    forward = forward_seconds(EIGHT, tokens, CARD)
    scored = forward + scoring_seconds(EIGHT, Work(tokens=tokens, blocks=tokens // 8), CARD)
    for ours, theirs in zip((forward, scored), MEASURED[tokens], strict=True):
        assert 1 / 1.5 < ours / theirs < 1.5
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith(f"| 1 × {tokens:,} |"))
    told = [float(number.replace(",", "")) / 1000 for number in re.findall(r"([\d,]+) ms", row)]
    assert tuple(told[:2]) == MEASURED[tokens]


def test_what_was_measured_on_two_cores_is_foretold() -> None:
    """SmolLM2, 512 tokens on two idle cores: the forward pass, and with all heads (the figures of the page)."""
    forward = forward_seconds(SMALL, 512, CPU)
    scored = forward + scoring_seconds(SMALL, Work(tokens=512, blocks=31), CPU)
    page = PAGE.read_text(encoding="utf-8")
    for ours, measured in ((forward, 1.05), (scored, 1.01)):
        assert f"| {ours:.2f} s | {measured} s |" in page
        assert 1 / 1.5 < ours / measured < 1.5


RESIDENT = {
    Work(tokens=64, blocks=62, prompts=6, draws=0): 1.27,
    Work(tokens=64, blocks=62, prompts=6, draws=2): 1.84,
    Work(tokens=175, blocks=32, prompts=6, draws=0): 1.24,
    Work(tokens=1_024, blocks=1_022, prompts=2, draws=0): 1.45,
    Work(tokens=595, blocks=128, prompts=2, draws=2): 2.01,
}
"""Gigabytes: SmolLM2, `rotoscope profile` without figures and examples in a process of its own, as `/usr/bin/time` has it."""


@pytest.mark.parametrize("work", RESIDENT, ids=str)
def test_memory_on_a_cpu_is_foretold(work: Work) -> None:
    ours, measured = needed(SMALL, work, CPU).gigabytes, RESIDENT[work]
    assert f"| {ours:.2f} GB | {measured} GB |" in PAGE.read_text(encoding="utf-8")
    assert 1 / 1.25 < ours / measured < 1.25


BEYOND = {8_192: 1.1, 32_768: 4.2, 131_072: 16.7}
"""Gigabytes beyond the weights: the 8B shape in bfloat16 on one H200, one prompt (the table of docs/devices.md)."""


@pytest.mark.parametrize("tokens", BEYOND)
def test_memory_on_a_card_is_foretold(tokens: int) -> None:
    bare = Work(tokens=tokens, blocks=tokens // 8, prompts=1, draws=0)
    ours, measured = beyond_weights(EIGHT, bare, CARD) / 1e9, BEYOND[tokens]
    page = PAGE.read_text(encoding="utf-8")
    assert f"{tokens:,} tokens: memory beyond the weights | {ours:.1f} GB | {measured} GB |" in page
    assert f"weights | {EIGHT.parameters * 2 / 1e9:.1f} GB | 16.1 GB |" in page
    assert 1 / 1.25 < ours / measured < 1.25
    devices = (PAGE.parent / "devices.md").read_text(encoding="utf-8")
    row = next(line for line in devices.splitlines() if line.startswith(f"| {tokens:,} |"))
    assert f"| {measured} GB |" in row


def test_disk_is_foretold() -> None:
    """Run folders of the sweep that made the shipped atlas, without figures and examples, in megabytes."""
    small = needed(SMALL, Work(tokens=63, blocks=62, prompts=6), CPU).megabytes
    assert f"| {small:.2f} MB | 0.96 and 0.97 MB |" in PAGE.read_text(encoding="utf-8")
    assert 1 / 1.5 < small / 0.96 < 1.5


def test_more_models_take_as_much_more() -> None:
    table = capacity()
    assert set(table["models"]) == {1, 100, 10_000}
    for _, rows in table.groupby(["parameters", "on"]):
        times = rows.set_index("models")["device_days"]
        assert times[10_000] == pytest.approx(100 * times[100]) == pytest.approx(10_000 * times[1])
    assert table.groupby("parameters", sort=False)["memory_gb"].max().is_monotonic_increasing
    assert (table.loc[table["on"] == CPU.name, "memory_gb"] <= CPU.gigabytes).all()
    assert (table["memory_gb"] <= table["devices"] * CARD.gigabytes).all()


def test_without_a_null_less_is_needed() -> None:
    bare, beside = (needed(EIGHT, Work(draws=draws), CARD) for draws in (0, 5))
    assert bare.seconds < beside.seconds
    assert bare.gigabytes < beside.gigabytes / 2
    assert bare.megabytes < beside.megabytes


def test_the_table_on_the_page_is_the_one_that_is_computed() -> None:
    assert in_words(capacity()) in PAGE.read_text(encoding="utf-8")
