"""Who writes the place of a carried head: models whose writer is known, and a twin that cuts heads out by hand."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths import writers as asking
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.settings import DepthsSettings
from rotoscope.experiments.depths.swaps import Swapping
from rotoscope.experiments.depths.writers import (
    ALL,
    LAYER,
    NONE,
    ONE,
    Silenced,
    Writers,
    edges_of,
    empty_writers,
    plan_gates,
    readers_of,
    summarise_writers,
    too_few_sets,
)
from rotoscope.measures.batches import batches
from rotoscope.models.interventions import gated
from rotoscope.models.reader import HeadReader
from rotoscope.runs.record import RunRecord
from rotoscope.runs.run import Run
from rotoscope.stats.verdict import ENOUGH_DRAWS
from tests.constructed import DECOY, HEADS, WRITER, places_written_by_a_head, symbol_prompts, symbols_read
from tests.experiments.test_depths import QUIET, own_attention, unequal
from tests.swap_depths import swap_depths
from tests.tiny_models import tiny, tokens

ASK: dict[str, Any] = {**QUIET, "at": ("all",), "writers": True}


def asked(model: Any, gates: asking.Gates, prompts: Any, **how: Any) -> SwapDepths:
    """The table that some gates give."""
    run = Run(SwapDepths, {})
    writers = Writers(HeadReader(model), batches(prompts, "last", 1024), gates, Swapping(swaps=16, **how))
    assert len(list(writers.measure(run))) == len(gates)
    return run.result


@pytest.mark.parametrize("writer", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_head_that_writes_the_place_is_found(writer: int, tmp_path: Path) -> None:
    model, prompts = places_written_by_a_head(writer), symbol_prompts(2)
    found = rs.depths(model, prompts, out=tmp_path / "run", controls=19, **ASK)
    assert found.at().set_index(["layer", "head"]).loc[(2, 0), "head_class"] == "carried"
    summary = found.writers_summary().set_index(["condition", "layer", "head"])
    assert (summary["reader_layer"] == 2).all()
    assert (summary["reader_head"] == 0).all()
    told = summary.loc[[(ALL, -1, -1), (LAYER, writer, -1), (ONE, writer, WRITER)]]
    # A layer of eight heads has 15 other pairs and six other heads: too few for a verdict of beyond the null.
    assert (told["verdict"] == "undecided").all()
    assert told["null_draws"].tolist() == [15, 15, 6]
    assert (told["effect"] > told["null_high"]).all()
    assert (told["positional_score_before"] > 0.99).all()
    assert (told["positional_score"] < 0.8).all()
    assert (told["symbolic_score"] > 0.99).all()
    decoy = summary.loc[(ONE, writer, DECOY)]
    assert (decoy["effect"], decoy["verdict"]) == (0, "no verdict")
    assert len(summary) == 4
    assert found.writer_graph().empty
    again = rs.open(tmp_path / "run")
    pd.testing.assert_frame_equal(again.writers_summary(), found.writers_summary())
    assert not any("nobody could be asked" in caveat for caveat in found.run.warnings)


def test_no_line_leads_from_heads_drawn_at_random() -> None:
    """Some heads that write nothing are taken for positional ones; the writer itself is then among their controls."""
    gates = plan_gates({(2, 0): 2}, [(1, 0), (1, 3)], [HEADS] * 3, 3, seed=1)
    found = asked(places_written_by_a_head(1), gates, symbol_prompts(2))
    assert len(found.writers_summary()) == 4
    assert found.writers_summary()["null_value"].max() > 0.1
    assert found.writer_graph().empty


def by_chance(seed: int, draws: int = 19) -> pd.DataFrame:
    """Positional heads whose effects are drawn as those of their controls are."""
    dice = np.random.default_rng(seed)
    readers, heads, prompts = range(20), range(4), range(4)
    rows = [(reader, NONE, -1, -1, prompt, 1.0) for reader in readers for prompt in prompts]
    for reader, head in itertools.product(readers, heads):
        own = [(head, -1), *((-1, draw) for draw in range(draws) if head == 0)]
        for which, draw in own:
            losses = dice.normal(0.3, 0.1) + dice.normal(0, 0.05, len(prompts))
            rows += [
                (reader, ONE, which, draw, prompt, 1 - loss)
                for prompt, loss in zip(prompts, losses, strict=True)
            ]
    table = pd.DataFrame(
        rows, columns=["reader_head", "condition", "head", "draw", "input_id", "positional_score"]
    )
    return table.assign(
        reader_layer=9,
        layer=np.where(table["condition"] == NONE, -1, 3),
        silenced="3:0",
        symbolic_score=0.0,
        covered_share=1.0,
    )


def test_what_differs_by_chance_is_no_line() -> None:
    """One family for all readers: a family for each of these twenty would draw four lines, and two."""
    each, whole = [], []
    for seed in (1, 2):
        table = by_chance(seed)
        run = SwapDepths(RunRecord("depths", {}), {"writers": table})
        summary = run.writers_summary()
        assert len(summary) == 80
        assert set(summary["null_draws"]) == {19}
        assert summary["effect"].mean() == pytest.approx(0.15, abs=0.02)
        whole.append(len(run.writer_graph()))
        each.append(sum(len(edges_of(summarise_writers(rows))) for _, rows in table.groupby("reader_head")))
    assert whole == [0, 0]
    assert each == [4, 2]


def test_layers_of_few_heads_are_said_to_decide_nothing() -> None:
    words = "no single head of layer 3 can be shown to write a place"
    for draws, told in ((8, True), (19, False)):
        run = SwapDepths(RunRecord("depths", {}), {"writers": by_chance(0, draws)})
        assert too_few_sets(run.writers_summary()) == ([3] if told else [])
    small = swap_depths()
    said = SwapDepths(small.run, small.tables | {"writers": by_chance(0, 8)}).caveats()
    assert any(words in caveat for caveat in said)


def cut(model: Any, name: str, heads: Sequence[tuple[int, int]]) -> Any:
    """A copy of a model in which heads write nothing: their columns of the output projection are zero."""
    other = copy.deepcopy(model)
    for layer, head in heads:
        block = other.transformer.h[layer].attn if name == "gptj" else other.model.layers[layer].self_attn
        weight = (block.out_proj if name == "gptj" else block.o_proj).weight
        width = weight.shape[1] // other.config.num_attention_heads
        with torch.no_grad():
            weight[:, head * width : (head + 1) * width] = 0.0
    return other


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_gates_stay_closed_while_the_ends_of_prompts_run(name: str) -> None:
    """Heads cut out of a copy, tokens permuted by hand; weights of the whole model, all else of the copy."""
    model, shown, silent = tiny(name), unequal(1), frozenset({(0, 1), (1, 0)})
    readers = ((1, 1), (2, 0))
    gates = {frozenset(): [Silenced(NONE, readers)], silent: [Silenced(ALL, readers)]}
    found = asked(model, gates, shown, taus=(0.05,)).writers.set_index(["reader_layer", "reader_head"])
    given, blocks = tokens(1)[0], shown[0].blocks
    assert blocks is not None
    for condition, run in ((NONE, model), (ALL, cut(model, name, sorted(silent)))):
        whole, before = own_attention(model, given), own_attention(run, given)
        weights, cosines = [], []
        for first, second in itertools.combinations(range(len(blocks)), 2):
            after = own_attention(run, given[blocks.exchange(first, second, len(given))])
            gap = [whole[..., slice(*blocks.spans[k])].mean(-1) for k in (first, second)]
            old = [before[..., slice(*blocks.spans[k])].mean(-1) for k in (first, second)]
            new = [after[..., slot].mean(-1) for slot in blocks.slots(first, second)]
            size = np.hypot(*old) * np.hypot(*new)
            weights.append(np.exp(np.abs(gap[0] - gap[1]) / 0.05))
            stays, follows = new[0] * old[0] + new[1] * old[1], new[0] * old[1] + new[1] * old[0]
            cosines.append([stays / size, follows / size])
        expected = np.einsum("s...,sk...->k...", np.stack(weights) / np.sum(weights, axis=0), np.stack(cosines))
        rows = found[found["condition"] == condition]
        for reader in readers:
            scores = rows.loc[[reader], ["positional_score", "symbolic_score"]].to_numpy()
            assert np.allclose(scores, [expected[:, *reader]], atol=2e-5)


@pytest.mark.parametrize("model", [symbols_read, lambda: tiny("llama")])
def test_without_a_carried_head_nobody_is_asked(model: Any) -> None:
    prompts = symbol_prompts(1) if model is symbols_read else unequal(1)
    found = rs.depths(model(), prompts, **{**ASK, "at": (0,)})
    assert "writers" in found.tables
    assert found.writers.empty
    assert found.writers_summary().empty
    assert found.writer_graph().empty
    assert any("nobody could be asked who writes a place" in caveat for caveat in found.run.warnings)
    untold = rs.depths(model(), prompts, **{**ASK, "at": (0,), "writers": False})
    assert "writers" not in untold.tables
    assert not any("nobody" in caveat for caveat in untold.run.warnings)


def test_places_are_sought_below_the_first_depth_at_which_a_head_follows() -> None:
    assert readers_of(swap_depths(), 8) == {(2, 0): 2, (3, 0): 1}
    assert readers_of(swap_depths(depths=(0,)), 8) == {(2, 0): 2, (3, 0): 3}
    assert readers_of(swap_depths(depths=(0, 2)), 8) == {(2, 0): 2, (3, 0): 2}
    assert readers_of(swap_depths(), 1) == {(2, 0): 2}


def test_one_gate_serves_all_readers_above_it() -> None:
    readers = {(5, 0): 3, (9, 1): 6}
    positional = [(0, 0), (0, 1), (2, 3), (4, 2), (7, 0)]
    gates = plan_gates(readers, positional, [6] * 10, 5, seed=0)
    assert next(iter(gates)) == frozenset()
    assert gates[frozenset()] == [Silenced(NONE, ((5, 0), (9, 1)))]
    own = {heads: [what for what in told if what.draw < 0] for heads, told in gates.items() if heads}
    assert {heads: told for heads, told in own.items() if told} == {
        frozenset({(0, 0), (0, 1), (2, 3)}): [Silenced(ALL, ((5, 0),))],
        frozenset({(0, 0), (0, 1), (2, 3), (4, 2)}): [Silenced(ALL, ((9, 1),))],
        frozenset({(0, 0), (0, 1)}): [Silenced(LAYER, ((5, 0), (9, 1)), 0)],
        frozenset({(0, 0)}): [Silenced(ONE, ((5, 0), (9, 1)), 0, 0)],
        frozenset({(0, 1)}): [Silenced(ONE, ((5, 0), (9, 1)), 0, 1)],
        frozenset({(2, 3)}): [Silenced(ONE, ((5, 0), (9, 1)), 2, 3)],
        frozenset({(4, 2)}): [Silenced(ONE, ((9, 1),), 4, 2)],
    }
    assert not plan_gates(readers, [(7, 0)], [6] * 10, 5, seed=0)
    assert not plan_gates({}, positional, [6] * 10, 5, seed=0)


def test_controls_are_other_heads_of_the_same_layers() -> None:
    positional = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    gates = plan_gates({(3, 0): 3}, positional, [6, 4, 2], 5, seed=0)
    drawn: dict[tuple[str, int], list[set[tuple[int, int]]]] = {}
    for heads, told in gates.items():
        for what in told:
            if what.draw >= 0:
                assert what.head == -1
                drawn.setdefault((what.condition, what.layer), []).append(set(heads))
    for number, layer in ((2, 0), (1, 0)):
        sets = drawn[LAYER if number == 2 else ONE, layer]
        assert len(sets) == (5 if number == 2 else 4)  # four heads of layer 0 are not positional
        assert all(len(heads) == number and not heads & set(positional) for heads in sets)
        assert all(at == layer for heads in sets for at, _ in heads)
    # Layer 1 has one head that is not positional: it is always taken, and two positional ones with it.
    assert drawn[LAYER, 1]
    assert all((1, 3) in heads and len(heads) == 3 for heads in drawn[LAYER, 1])
    assert (LAYER, 2) not in drawn  # the whole layer
    assert all(len(heads) == len(positional) for heads in drawn[ALL, -1])
    assert gates == plan_gates({(3, 0): 3}, positional, [6, 4, 2], 5, seed=0)
    assert gates != plan_gates({(3, 0): 3}, positional, [6, 4, 2], 5, seed=1)


def test_a_run_that_was_stopped_goes_on_with_the_next_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts, closed = places_written_by_a_head(0), symbol_prompts(1), list[Any]()

    def stopped(reader: Any, gate: Any) -> Any:
        closed.append(gate.heads)
        if len(closed) == 4:
            raise KeyboardInterrupt
        return gated(reader, gate)

    monkeypatch.setattr(asking, "gated", stopped)
    how = {**ASK, "controls": 1, "writer_swaps": 1, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        rs.depths(model, prompts, **how)
    found = rs.depths(model, prompts, **how)
    assert closed[3] == closed[4]
    assert len(set(closed)) == len(closed) - 1
    assert len(found.writers.groupby(["condition", "layer", "head", "draw"])) == len(closed)
    assert set(found.writers["draw"]) == {-1, 0}
    assert found.writers["covered_share"].max() < 0.5  # one of seven swaps that weigh the same


def test_thin_swaps_give_no_verdict() -> None:
    rows = pd.DataFrame(
        [(c, d, i, 0.4) for c, d in ((NONE, -1), (ALL, -1), (ALL, 0), (ALL, 1)) for i in range(3)],
        columns=["condition", "draw", "input_id", "covered_share"],
    )
    rows = rows.assign(reader_layer=9, reader_head=0, layer=-1, head=-1, silenced="3:0")
    rows = rows.assign(positional_score=(rows["condition"] == NONE) * 1.0, symbolic_score=0.5)
    assert summarise_writers(rows).empty
    assert summarise_writers(empty_writers()).empty


def test_defaults_allow_a_verdict() -> None:
    assert DepthsSettings().controls >= ENOUGH_DRAWS


class TestBadInput:
    def test_writers_without_the_prompt_permuted(self) -> None:
        with pytest.raises(RotoscopeError, match="add depth 0"):
            rs.depths(tiny("llama"), unequal(1), **{**ASK, "at": (1,)})

    @pytest.mark.parametrize("setting", ["readers", "writer_swaps", "controls"])
    def test_settings_of_writers_without_them(self, setting: str) -> None:
        with pytest.raises(RotoscopeError, match="mean nothing without --writers"):
            rs.depths(tiny("llama"), unequal(1), **{**QUIET, setting: 3})
