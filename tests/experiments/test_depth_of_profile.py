"""Frequencies, nulls, sinks, intervals: what a profile says beyond the two scores."""

from __future__ import annotations

import importlib

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.examples import examples, vectors_of
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.measures.batches import batches
from rotoscope.models.reader import HeadReader
from rotoscope.stats.aggregate import frequency_use
from tests.tiny_models import EACH, tiny, tokens
from tests.twin import model_planes

TAUS = (1e-4, 1e-2, 1.0)
PLAIN = ProfileSettings(null="none", examples=False)
LAYOUTS = {"half-split": "llama", "interleaved": "cohere", "partial": "phi", "from a table": "gptj"}
PAIRS = {
    "llama": [(k, k + 8) for k in range(8)],
    "cohere": [(2 * k, 2 * k + 1) for k in range(8)],
    "phi": [(k, k + 4) for k in range(4)],
    "gptj": [(2 * k, 2 * k + 1) for k in range(4)],
    "smollm2": [(k, k + 32) for k in range(32)],
}
"""Which two dimensions of a head turn together, fastest plane first, as the architectures define it."""


def limit(tau: float) -> float:
    return 2e-4 if tau == 1e-4 else 2e-5


@pytest.mark.parametrize("name", LAYOUTS.values(), ids=LAYOUTS)
def test_frequencies_equal_the_twin_on_every_layout(name: str) -> None:
    model, ids = tiny(name), tokens(1, 9)
    found = rs.profile(model, tokens=ids, tau=TAUS, frequencies=True, null="none").frequencies
    reader = HeadReader(model)
    twin = model_planes(reader, ids, PAIRS[name])
    assert len(found) == len(twin) * len(TAUS)
    rows = found.set_index(["layer", "head", "frequency_id", "tau"])
    for (layer, head, plane), matrix in twin.items():
        expected = rs.swap_scores(matrix, TAUS)
        for k, tau in enumerate(TAUS):
            row = rows.loc[layer, head, plane, tau]
            assert row["positional_score"] == pytest.approx(expected.positional[k].item(), abs=limit(tau))
            assert row["symbolic_score"] == pytest.approx(expected.symbolic[k].item(), abs=limit(tau))
    angles = found.drop_duplicates("frequency_id").set_index("frequency_id")["angle"]
    assert (angles[angles.index > 0].sort_index().diff().dropna() < 0).all()
    assert (angles[angles.index == 0] == 0).all()


@pytest.mark.slow
def test_frequencies_of_three_smollm2_heads(smollm2: rs.Subject) -> None:
    heads = [(0, 3), (14, 1), (29, 8)]
    ids = torch.tensor([rs.tasks.binding(smollm2, 3, 1)[0].tokens])[:, -24:]
    found = rs.profile(smollm2, tokens=ids, tau=TAUS, frequencies=heads, null="none").frequencies
    assert len(found) == 3 * 32 * len(TAUS)
    planes = model_planes(HeadReader(smollm2.model), ids, PAIRS["smollm2"])
    twin = {key: matrix for key, matrix in planes.items() if key[:2] in heads}
    rows = found.set_index(["layer", "head", "frequency_id", "tau"])
    for (layer, head, plane), matrix in twin.items():
        expected = rs.swap_scores(matrix, TAUS)
        for k, tau in enumerate(TAUS):
            row = rows.loc[layer, head, plane, tau]
            assert row["positional_score"] == pytest.approx(expected.positional[k].item(), abs=limit(tau))
            assert row["symbolic_score"] == pytest.approx(expected.symbolic[k].item(), abs=limit(tau))


@pytest.mark.parametrize("name", LAYOUTS.values(), ids=LAYOUTS)
def test_vectors_meet_as_the_model_multiplies_them(name: str) -> None:
    """Key and query of an example, turned to where they meet, give the logit of that plane in the model itself.

    All these models divide by the root of a head's width, 16.
    """
    model, ids = tiny(name), tokens(1, 9)
    reader = HeadReader(model)
    batch = batches(rs.tasks.from_tokens(ids), "last", 100)[0]
    heads = {f"{layer}:{head}": (layer, head) for layer in range(3) for head in range(4)}
    vectors = vectors_of(*examples(reader, batch).values(), heads)
    planes = model_planes(reader, ids, PAIRS[name])
    assert len(vectors) == 12 * 9  # the query and its eight keys
    for (layer, head), rows in vectors.groupby(["layer", "head"]):
        query, keys = rows[rows["kind"] == "query"].iloc[0], rows[rows["kind"] == "key"]
        logits = planes[layer, head, int(query["frequency_id"])].diagonal()[keys["position"].tolist()]
        met = 0.25 * (keys["re_met"] * query["re_met"] + keys["im_met"] * query["im_met"])
        assert met.to_numpy() == pytest.approx(logits.numpy(), rel=1e-4, abs=1e-5)
        still = 0.25 * (keys["re"] * query["re"] + keys["im"] * query["im"])
        unmoved = planes[layer, head, int(query["frequency_id"])][-1, keys["position"].tolist()]
        assert still.to_numpy() == pytest.approx(unmoved.numpy(), rel=1e-4, abs=1e-5)


def test_layer_without_rotation_has_one_row_and_says_so() -> None:
    found = rs.profile(tiny("smollm3"), tokens=tokens(1, 10), frequencies=True, null="none")
    still = found.frequencies[found.frequencies["layer"] == 3]
    assert still["frequency_id"].tolist() == [0] * 4
    assert np.allclose(still["symbolic_score"], 1, atol=1e-6)
    assert any("layers [3] do not rotate" in warning for warning in found.run.warnings)


def test_frequency_use() -> None:
    table = pd.DataFrame(
        {"layer": 0, "head": 0, "tau": 1.0, "frequency_id": [0, 1, 2, 3], "max_logit": [9.0, 1.0, 3.0, 2.0]}
    )
    row = frequency_use(table).iloc[0]
    weight = np.exp([1.0, 3.0, 2.0])
    assert row["weighted_frequency_id"] == pytest.approx((weight / weight.sum()) @ [1, 2, 3])
    assert row["dominant_frequency_id"] == 2


def test_unknown_head_is_named() -> None:
    with pytest.raises(RotoscopeError, match="no head 9:0"):
        rs.profile(tiny("llama"), tokens=tokens(), frequencies=[(9, 0)], null="none")


@pytest.mark.parametrize("name", EACH)
def test_everything_runs_on_every_architecture(name: str) -> None:
    found = rs.profile(
        tiny(name),
        tokens=tokens(2, 12),
        blocks=[(1, 3), (3, 5), (5, 8), (8, 11)],
        frequencies=True,
        null="random",
        null_draws=1,
        examples=True,
    )
    assert found.null_name == "random"
    assert len(found.nulls) == len(found.heads)
    assert len(found.null_frequencies) == len(found.frequencies)
    assert {"value", "null_value", "verdict"} <= set(found.statistics())
    assert set(found.traces["example"]) == {"most symbolic", "most positional", "flattest"}


def test_statistics_equal_plain_computation() -> None:
    profile = rs.profile(tiny("llama"), tokens=tokens(4, 20), null="none")
    found = profile.statistics().set_index("statistic")["value"]
    summary = profile.summary()
    assert found["correlation"] == pytest.approx(summary.correlation)
    assert found["early positional"] == pytest.approx(summary.early_positional)
    assert found["positional decline"] == pytest.approx(summary.early_positional - summary.late_positional)
    assert found["share symbolic"] == pytest.approx(summary.classes["symbolic"] / summary.heads)


def test_intervals_hold_the_mean_and_unstable_heads_are_marked() -> None:
    heads = rs.profile(tiny("llama"), tokens=tokens(8, 16), null="none").heads
    for score in ("positional_score", "symbolic_score"):
        assert (heads[f"{score}_low"] <= heads[score] + 1e-9).all()
        assert (heads[score] <= heads[f"{score}_high"] + 1e-9).all()
    assert (heads["stable"] == (heads["class_stability"] >= 0.95)).all()
    one = rs.profile(tiny("llama"), tokens=tokens(1, 16), null="none").heads
    assert one["stable"].isna().all()


def test_sink_in_a_block_is_found_and_warned_about(smollm2: rs.Subject) -> None:
    inside = rs.profile(smollm2, rs.tasks.binding(smollm2, 8, 1, prefix="none"), PLAIN)
    assert any("sink inside a block" in warning for warning in inside.run.warnings)
    assert inside.sinks[inside.sinks["in_block"]]["position"].eq(0).all()
    chat = rs.profile(smollm2, rs.tasks.binding(smollm2, 8, 1, prefix="chat"), PLAIN)
    assert not chat.sinks["in_block"].any()
    first = chat.sinks[chat.sinks["position"] == 0]
    assert len(first) == 1
    assert (first["found_by"] == "mass and norm").all()
    assert (first["attention_mass"] > 0.2).all()


def test_an_even_share_of_a_short_prompt_is_no_sink() -> None:
    assert rs.profile(tiny("llama"), tokens=tokens(2, 8), null="none").sinks.empty


@pytest.mark.slow
def test_a_word_that_draws_attention_in_some_layers_is_a_sink(
    smollm2: rs.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ " The", with which some tokenizers begin the name Theo, draws half of all attention in SmolLM2's early layers
    and turns them symbolic; nothing in its mean over layers tells."""
    task = importlib.import_module("rotoscope.tasks.binding")
    names = task.words("names.txt")

    def profiled(name: str) -> rs.Profile:
        monkeypatch.setattr(task, "words", lambda file: [name if old == "Silas" else old for old in names])
        return rs.profile(smollm2, rs.tasks.binding(smollm2, 128, 1), PLAIN)

    plain, drawn = profiled("Silas"), profiled("Theo")
    assert not plain.sinks["in_block"].any()
    found = drawn.sinks[drawn.sinks["in_block"]]
    assert found["token_text"].tolist() == [" The"]
    assert found["attention_mass"].item() < 0.1 < found["largest_layer_mass"].item()
    assert any("leave such a word out" in warning for warning in drawn.run.warnings)
    assert plain.summary().early_positional > 0.9
    assert drawn.summary().early_positional < 0.3


@pytest.mark.slow
def test_early_layers_turn_symbolic_when_the_sink_is_swapped(smollm2: rs.Subject) -> None:
    chat, start = (
        rs.profile(smollm2, rs.tasks.binding(smollm2, 16, 2, prefix=p), PLAIN).summary()
        for p in ("chat", "start")
    )
    assert chat.early_positional > 0.8
    assert start.early_symbolic > 0.9
    assert start.early_positional < 0.3


def test_by_position(stand_in: rs.Subject) -> None:
    found = rs.profile(stand_in, rs.tasks.binding(stand_in, 6, 12), PLAIN)
    table = found.by_position(bins=3)
    assert table["answers"].sum() == 12
    assert table["asked_attention"].between(0, 1).all()
    rows = found.answers
    third = rows[rows["asked_block"] / rows["asked_block"].max() >= 2 / 3]
    assert table["log_likelihood"].iloc[-1] == pytest.approx(third["log_likelihood"].mean())


def test_equal_symbols_of_a_task(stand_in: rs.Subject) -> None:
    found = rs.profile(stand_in, rs.tasks.binding(stand_in, 12, 2, granularity="symbol"), PLAIN)
    assert found.heads["equal_symbol_positional_score"].notna().all()
    assert (
        "equal_symbol_positional_score"
        not in rs.profile(stand_in, rs.tasks.binding(stand_in, 4, 1), PLAIN).heads
    )


def test_the_permuted_prompt_agrees_in_the_first_layer() -> None:
    """There, nothing has mixed yet: permuting the prompt and permuting the keys are the same."""
    apart = [(1, 3), (5, 8), (10, 12)]
    heads = rs.profile(tiny("llama"), settings=PLAIN, tokens=tokens(2, 14), blocks=apart, input_swaps=3).heads
    differ = (heads["input_positional_score"] - heads["positional_score"]).abs().groupby(heads["layer"]).max()
    assert differ[0] < 1e-4
    assert differ[1:].min() > 0.01
