"""Swaps at a depth, against twins that permute by hand and models whose heads are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from benchmarks.false_verdicts import random_prompts, random_subject
from rotoscope.errors import RotoscopeError, UnprovenError
from rotoscope.experiments.depths.swaps import (
    Swapping,
    covering,
    gaussian_permuted,
    paired_scores,
    swap_at_depths,
)
from rotoscope.measures.batches import batches
from rotoscope.measures.null import make_nulls
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.models.sites import attending
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.swaps import score_swaps
from rotoscope.stats.aggregate import INPUT_SCORES, head_table, with_permuted
from rotoscope.tasks.prompt import Prompts, from_tokens
from tests.constructed import neighbours_read, places_written, remembering, symbol_prompts, symbols_read
from tests.tiny_models import tiny, tokens

MANY = [
    *("llama", "gemma2", "gpt_oss", "gptj", "deepseek_v3"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "cohere2", "llama4", "phi", "qwen3")),
]
UNEQUAL = [(1, 3), (4, 7), (7, 8), (10, 14), (15, 17)]
QUIET: dict[str, Any] = {"null": "none", "show_progress": False}


def unequal(count: int = 2) -> Prompts:
    return from_tokens(tokens(count), UNEQUAL)


Attend = Callable[[list[int]], np.ndarray]
"""The order of the contents after a swap -> attention of the last position [layers, heads, n]."""


def by_hand(
    before: np.ndarray, attend: Attend, blocks: Blocks, n: int, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """Both scores of every head [layers, heads] over all swaps, each of them really made."""
    weights, cosines = [], []
    for first, second in itertools.combinations(range(len(blocks)), 2):
        after = attend(blocks.exchange(first, second, n))
        old = [before[..., slice(*blocks.spans[k])].mean(-1) for k in (first, second)]
        new = [after[..., slot].mean(-1) for slot in blocks.slots(first, second)]
        size = np.hypot(*old) * np.hypot(*new)
        seen = size > 0
        size = np.where(seen, size, 1.0)
        weights.append(np.where(seen, np.abs(old[0] - old[1]), -np.inf))
        cosines.append([(new[0] * old[0] + new[1] * old[1]) / size, (new[0] * old[1] + new[1] * old[0]) / size])
    gap = np.stack(weights) / tau
    alpha = np.exp(gap - gap.max(0))
    alpha /= alpha.sum(0)
    both = np.stack(cosines, axis=1)
    return tuple((alpha * both).sum(1))


def own_attention(model: Any, shown: torch.Tensor) -> np.ndarray:
    """What a model says itself that it attends to."""
    with attending(model, "eager"), torch.no_grad():
        found = model(shown[None], use_cache=False, output_attentions=True).attentions
    return torch.stack([layer[0, :, -1] for layer in found]).double().numpy()


@pytest.mark.parametrize("name", MANY)
def test_depth_zero_is_the_prompt_permuted_by_hand(name: str) -> None:
    """Literally permuted tokens through the untouched model, its own eager attention, plain cosines."""
    model, shown = tiny(name), unequal(1)
    found = rs.depths(model, shown, at=(0,), tau=0.05, **QUIET).heads
    rows = found[found["depth"] == 0]
    given, blocks = tokens(1)[0], shown[0].blocks
    assert blocks is not None
    expected = by_hand(
        own_attention(model, given), lambda order: own_attention(model, given[order]), blocks, 20, 0.05
    )
    assert np.allclose(rows["positional_score"], expected[0].ravel(), atol=2e-5)
    assert np.allclose(rows["symbolic_score"], expected[1].ravel(), atol=2e-5)
    assert np.allclose(rows["covered_share"], 1.0, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptj"])
def test_a_depth_between_is_a_layers_input_permuted_by_hand(name: str) -> None:
    """A hook of our own exchanges the states that enter layer 1; the model does the rest."""
    model, shown = tiny(name), unequal(1)
    found = rs.depths(model, shown, at=(1,), tau=0.05, **QUIET).heads
    rows = found[found["depth"] == 1]
    assert rows["layer"].unique().tolist() == [1, 2]
    given, blocks = tokens(1)[0], shown[0].blocks
    assert blocks is not None
    block = rs.models.HeadReader(model).blocks[1]

    def attend(order: list[int]) -> np.ndarray:
        def exchange(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            if args:
                return (args[0][:, order], *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": kwargs["hidden_states"][:, order]}

        handle = block.register_forward_pre_hook(exchange, with_kwargs=True)
        try:
            return own_attention(model, given)
        finally:
            handle.remove()

    expected = by_hand(own_attention(model, given), attend, blocks, 20, 0.05)
    assert np.allclose(rows["positional_score"], expected[0][1:].ravel(), atol=2e-5)
    assert np.allclose(rows["symbolic_score"], expected[1][1:].ravel(), atol=2e-5)


@pytest.mark.parametrize("name", MANY)
def test_the_own_layer_is_the_closed_form(name: str) -> None:
    """Entered at a head's own layer, the model gives the papers' score, and so does `rs.profile`."""
    model, shown = tiny(name), unequal()
    found = rs.depths(model, shown, at=("all",), tau=(1e-4, 0.05), **QUIET)
    curves = found.curves.set_index(["layer", "head", "tau"])
    own = curves[curves["own"]]
    entered = curves[~curves["own"] & (curves["depth"] == curves.index.get_level_values("layer"))]
    assert len(own) == len(entered) == len(found.turns) > 0
    profile = rs.profile(model, shown, tau=(1e-4, 0.05), **QUIET).heads.set_index(["layer", "head", "tau"])
    for score in ("positional_score", "symbolic_score"):
        assert np.allclose(own[score], entered[score], atol=2e-5)
        assert np.allclose(own[score], profile[score].reindex(own.index), atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("writer", [0, 1])
def test_a_place_written_into_the_states_is_found_with_its_depth(writer: int) -> None:
    found = rs.depths(places_written(writer), symbol_prompts(), at=("all",), **QUIET)
    reader = found.at().set_index("layer").loc[2]
    assert reader["head_class"] == "carried"
    assert reader["input_class"] == "positional"
    assert reader["carry_depth"] == writer
    assert (found.at()["head_class"] == "carried").sum() == 1
    curve = found.curves.query("layer == 2 and not own").set_index("depth")["positional_score"]
    assert (curve[: writer + 1] > 0.9).all()
    assert (curve[writer + 1 :] < 0.1).all()


@pytest.mark.parametrize("writer", [0, 1])
def test_a_carry_depth_is_located_by_bisection(writer: int) -> None:
    """Nothing is said from the two ends alone; halving gives what all depths give, with fewer."""
    model, shown = places_written(writer), symbol_prompts(3)
    ends = rs.depths(model, shown, at=(0,), **QUIET)
    reader = ends.at().set_index("layer").loc[2]
    assert (reader["stays_at"], ends.turning()["carry depth"].tolist()) == (0, ["not located"])
    assert pd.isna(reader["carry_depth"])
    assert ends.brackets() == {(2, 0): (0, 2)}
    found = rs.depths(model, shown, at=(0, "carry"), **QUIET)
    assert found.at().set_index("layer").loc[2, "carry_depth"] == writer
    assert found.depths == [0, 1]
    assert found.brackets() == {}
    between = found.prompts.query("depth == 1 and not own")
    assert set(between["layer"]) == {2}  # only the carried head was asked


def test_a_head_that_reads_symbols_is_not_carried() -> None:
    found = rs.depths(symbols_read(), symbol_prompts(), at=("all",), **QUIET)
    reader = found.at().set_index("layer").loc[2]
    assert (reader["head_class"], reader["input_class"]) == ("symbolic", "symbolic")
    assert found.at()["carry_depth"].isna().all()
    assert found.turning().empty


def test_a_profile_tells_carried_heads_where_it_permutes_the_prompt() -> None:
    shown = symbol_prompts()
    told = rs.profile(places_written(1), shown, input_swaps=1000, **QUIET)
    head = told.heads.set_index("layer").loc[2]
    assert (head["head_class"], head["input_class"]) == ("carried", "positional")
    assert head["class_share"] == 1.0
    untold = rs.profile(places_written(1), shown, **QUIET)
    assert untold.heads.set_index("layer").loc[2, "head_class"] == "symbolic"
    assert "input_class" not in untold.heads
    follows = rs.profile(symbols_read(), shown, input_swaps=1000, **QUIET).heads.set_index("layer").loc[2]
    assert (follows["head_class"], follows["input_class"]) == ("symbolic", "symbolic")
    depths = rs.depths(places_written(1), shown, at=(0,), swaps=1000, **QUIET)
    for column in ("input_positional_score", "input_symbolic_score", "covered_share"):
        assert np.allclose(depths.at()[column], told.at()[column], atol=1e-6)


def test_the_heaviest_swaps_are_run_and_what_they_cover_is_said() -> None:
    model, shown = tiny("llama"), unequal(3)
    few, all_ = (rs.depths(model, shown, at=(0,), swaps=swaps, **QUIET).curves for swaps in (2, 10))
    few, all_ = (table[~table["own"]].reset_index(drop=True) for table in (few, all_))
    assert np.allclose(all_["covered_share"], 1.0, atol=1e-6)
    assert few["covered_share"].between(0, 1 + 1e-9).all()
    assert few["covered_share"].min() < 0.5 < few["covered_share"].max()
    assert few.loc[few["covered_share"] < 0.5, "depth_class"].isna().all()
    assert few.loc[few["covered_share"] >= 0.5, "depth_class"].notna().all()


def test_swaps_are_drawn_by_the_heads_weights() -> None:
    """What every head gives a swap, in the sum, and what a head's share of the swaps run is: from all weights at once."""
    reader = HeadReader(tiny("gemma2"))  # a window hides some blocks
    [batch] = batches(unequal(1), "last", 1000)
    blocks = batch.blocks_for(19)
    weights: list[torch.Tensor] = []

    def visit(layer: Any) -> None:
        here = layer.at(0)
        detail = score_swaps(
            here.gather, here.real(), blocks, (1e-4, 0.05), sink=here.sinks, detail=True
        ).detail
        assert detail is not None
        weights.append(detail.weight[0])

    reader.read(batch.tokens, (19,), visit)
    run = torch.tensor(most_covering(torch.cat(weights)[..., 0].tolist(), 3))
    covered = torch.cat([weight[:, run].sum(1).flatten() for weight in weights])
    found = swap_at_depths(Reruns(reader), batch, Swapping(swaps=3, taus=(1e-4, 0.05)))
    found = found[~found["own"]].sort_values(["layer", "head", "tau"])
    assert np.allclose(found["covered_share"], covered, atol=1e-6)


def most_covering(weight: list[list[float]], most: int) -> list[int]:
    """The twin, swap by swap and head by head."""
    swaps, chosen = range(len(weight[0])), list[int]()
    held = [0.0] * len(weight)
    while len(chosen) < most:
        left = [swap for swap in swaps if swap not in chosen]
        worth = {
            swap: sum(
                min(row[swap] / (0.5 - own), 1) for row, own in zip(weight, held, strict=True) if own < 0.5
            )
            for swap in left
        }
        if not left or max(worth.values()) <= 0:
            return (
                chosen + sorted(left, key=lambda swap: -sum(row[swap] for row in weight))[: most - len(chosen)]
            )
        chosen.append(max(left, key=lambda swap: worth[swap]))
        held = [own + row[chosen[-1]] for row, own in zip(weight, held, strict=True)]
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_swaps_bring_heads_to_half_of_their_weight(seed: int) -> None:
    weight = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(12, 0.2), 30))
    for most in (1, 4, 9, 12, 20):
        assert covering(weight, most).tolist() == most_covering(weight.tolist(), most)


def test_a_head_of_its_own_kind_is_not_left_out() -> None:
    """Six heads share swaps that all weigh more than the one of the seventh, and would take both of two."""
    weight = torch.tensor([[0.6, 0.4, 0.0]] * 6 + [[0.0, 0.0, 1.0]], dtype=torch.float64)
    assert covering(weight, 2).tolist() == [0, 2]
    assert covering(weight, 3).tolist() == [0, 2, 1]


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_paired_swaps_move_each_block_with_the_one_before(name: str) -> None:
    """The twin moves the tokens by hand and looks where the two blocks stand then."""
    model, spans = tiny(name), [(1, 3), (3, 6), (7, 8), (8, 11), (13, 15), (15, 17)]
    [batch] = batches(from_tokens(tokens(1), spans), "last", 1000)
    given, tau = tokens(1)[0], 0.05
    before = own_attention(model, given)
    gaps, cosines = [], []
    for a, b in [(1, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 5)]:
        (s, e), (t, f) = ((spans[k - 1][0], spans[k][1]) for k in (a, b))
        order = [*range(s), *range(t, f), *range(e, t), *range(s, e), *range(f, 20)]
        after = own_attention(model, given[order])
        old = np.stack([before[..., slice(*spans[k])].mean(-1) for k in (a, b)])
        now = np.stack([after[..., [order.index(p) for p in range(*spans[k])]].mean(-1) for k in (a, b)])
        size = np.linalg.norm(old, axis=0) * np.linalg.norm(now, axis=0)
        # b's content stands in front: a head that stays gives it what a had.
        cosines.append([(now[1] * old[0] + now[0] * old[1]) / size, (now * old).sum(0) / size])
        gaps.append(np.abs(old[0] - old[1]) / tau)
    weight = np.exp(np.stack(gaps))
    expected = (weight[:, None] / weight.sum(0) * np.array(cosines)).sum(0)
    runs = Reruns(HeadReader(model))
    everyone = frozenset((layer, head) for layer in range(3) for head in range(4))
    rows = paired_scores(runs, batch, Swapping(taus=(tau,)), everyone)["paired_prompts"]
    for score, values in zip(INPUT_SCORES, expected, strict=True):
        assert np.allclose(rows[score], values.ravel(), atol=2e-5)
    assert rows["covered_share"].between(0.05, 0.95).all()  # the rest cannot move with a block before


def test_a_place_and_a_neighbour_are_told_apart() -> None:
    place = rs.depths(places_written(1), symbol_prompts(), at=(0,), **QUIET).at().set_index("layer")
    assert (place.loc[2, "head_class"], place.loc[2, "carried_by"]) == ("carried", "place")
    assert place.loc[[0, 1], "carried_by"].isna().all()
    told = rs.profile(places_written(1), symbol_prompts(), input_swaps=1000, **QUIET).at().set_index("layer")
    assert told.loc[2, "carried_by"] == "place"
    context = rs.depths(neighbours_read(), symbol_prompts(), at=(0,), **QUIET).at().set_index("layer")
    assert (context.loc[2, "head_class"], context.loc[2, "carried_by"]) == ("carried", "context")
    assert "paired_positional_score" in context
    follows = rs.depths(symbols_read(), symbol_prompts(), at=(0,), **QUIET)
    assert "paired_prompts" not in follows.tables
    assert follows.at()["carried_by"].isna().all()


def test_gaussian_keys_are_drawn_anew_after_a_swap() -> None:
    """Before it, heads are those of a profile's Gaussian null; with the same keys again every head stays where it was."""
    model, shown = tiny("llama"), unequal(1)
    profile = rs.profile(model, shown, null="gaussian", null_draws=1, show_progress=False)
    [batch] = batches(shown, "last", 1)
    subject = rs.load(model)
    nulls = list(make_nulls(subject, HeadReader(model), "gaussian", [0, 1], profile.prompts, []))
    again, anew = gaussian_permuted([(nulls[0], nulls[0]), (nulls[0], nulls[1])], batch)
    own = anew[anew["own"]].sort_values(["layer", "head"])
    expected = profile.tables["null_prompts"].sort_values(["layer", "head"])
    assert np.allclose(own["positional_score"], expected["positional_score"], atol=1e-5)
    moved = anew[~anew["own"]].sort_values(["layer", "head"])
    stays = again[~again["own"]].sort_values(["layer", "head"])
    assert np.allclose(moved["covered_share"], 1, atol=1e-6)
    assert (stays["positional_score"] > moved["positional_score"] + 0.01).any()
    assert stays["positional_score"].min() > 0.5


def test_only_prompts_with_half_of_the_weight_count() -> None:
    """Of four prompts two are covered: their mean; of one covered prompt nothing is said."""
    own = pd.DataFrame({"prompt": range(4), "layer": 1, "head": 0, "tau": 1e-4, "input_id": range(4)})
    own = own.assign(positional_score=0.0, symbolic_score=1.0)
    shares, scores = [0.9, 0.49, 0.5, 0.0], [1.0, 0.0, 0.8, np.nan]
    moved = own.assign(covered_share=shares, input_positional_score=scores, input_symbolic_score=0.1)
    [head] = head_table(with_permuted(own, moved), 0.1).to_dict("records")
    assert head["input_positional_score"] == pytest.approx(0.9)
    assert (head["covered_prompts"], head["head_class"]) == (2, "carried")
    assert head["covered_share"] == pytest.approx(np.mean(shares))
    thin = moved.assign(covered_share=[0.9, 0.4, 0.4, 0.4])
    [head] = head_table(with_permuted(own, thin), 0.1).to_dict("records")
    assert (head["head_class"], head["input_class"], head["covered_prompts"]) == ("symbolic", None, 0)
    assert head_table(with_permuted(own[:1], moved[:1]), 0.1)["covered_prompts"].tolist() == [1]


def test_a_class_takes_half_of_the_weight() -> None:
    """Without it a head that would be carried is symbolic at its layer, and nobody says more."""
    told = rs.profile(places_written(1), symbol_prompts(), input_swaps=1000, **QUIET)
    thin = rs.experiments.Profile(told.run, dict(told.tables))
    thin.tables["input_prompts"] = told.input_prompts.assign(covered_share=0.49)
    head = thin.heads.set_index("layer").loc[2]
    assert head["head_class"] == "symbolic"
    assert head["input_class"] is None


@pytest.mark.slow
def test_a_random_model_has_no_carried_heads_beyond_the_null() -> None:
    subject = random_subject(0.1, 3)
    prompts = random_prompts(3, 3)
    found = rs.depths(subject, prompts, at=(0,), swaps=4, null_draws=5, show_progress=False).statistics()
    row = found.set_index("statistic").loc["carried of symbolic"]
    assert not row["value"] > 0
    assert row["verdict"] != "beyond the null"


@pytest.mark.slow
def test_the_null_runs_what_may_be_carried_and_everything_where_asked() -> None:
    """Of the null's heads only those pure symbolic at their layer can be carried; the rest is not run unless asked for."""
    subject, shown = rs.load("letter"), from_tokens(rs.tasks.letter(1, seed=0).tokens[:, :7])
    how: dict[str, Any] = {"at": (0,), "swaps": 15, "null_draws": 2, "show_progress": False}
    some = rs.depths(subject, shown, **how)
    everything = rs.depths(subject, shown, null_heads="all", **how)
    few, whole = (run.null_prompts[~run.null_prompts["own"]] for run in (some, everything))
    assert 0 < len(few) < len(whole) == 2 * 12
    keys = ["draw", "prompt", "layer", "head"]
    both = few.merge(whole, on=keys)
    assert len(both) == len(few)
    assert np.allclose(both["positional_score_x"], both["positional_score_y"], atol=1e-5)
    own = some.null_prompts[some.null_prompts["own"]]
    assert len(own) == 2 * 12
    shares = [run.statistics().set_index("statistic").loc["carried of symbolic"] for run in (some, everything)]
    assert shares[0]["null_value"] == shares[1]["null_value"]
    assert "null_positional_score" in everything.layers()
    assert everything.layers()["null_positional_score"].notna().all()
    drawn = few.groupby("layer")["draw"].nunique()
    in_some = drawn.index[drawn < 2]
    assert len(in_some)  # layers whose head is symbolic in one draw: no mean of that draw alone
    means = some.layers().query("not own").set_index("layer")["null_positional_score"]
    assert means[in_some].isna().all()


def test_nothing_is_run_above_the_last_head_that_is_asked_about() -> None:
    """As in a null whose symbolic heads all lie in its first layers."""
    (batch,) = batches(unequal(1), "last", 1024)
    swapping = Swapping(depths=(0, 1, 2), heads=frozenset({(1, 0)}))
    rows = swap_at_depths(Reruns(HeadReader(tiny("llama")), enters=True), batch, swapping)
    assert rows["depth"].tolist() == [0, 1, 1]
    assert rows["own"].tolist() == [False, False, True]


def test_a_run_goes_on_and_comes_back(tmp_path: Path) -> None:
    model, shown = places_written(1), symbol_prompts()
    how: dict[str, Any] = {"at": (0, 1), "null_draws": 2, "out": tmp_path / "run", "show_progress": False}
    made = rs.depths(model, shown, **how)
    again = rs.open(tmp_path / "run")
    assert isinstance(again, rs.experiments.SwapDepths)
    assert again.heads.equals(made.heads)
    assert again.turns.equals(made.turns)
    assert set(again.heads["depth"]) == {0, 1, "own"}
    assert rs.depths(model, shown, **how).heads.equals(made.heads)
    assert "carried" in repr(again)


class TestBadInput:
    def test_a_depth_beyond_the_layers(self) -> None:
        with pytest.raises(RotoscopeError, match="depth 3 is beyond the model: its layers go from 0 to 2"):
            rs.depths(tiny("llama"), unequal(1), at=(0, 3), **QUIET)

    def test_carried_heads_are_not_located_without_the_prompt(self) -> None:
        with pytest.raises(RotoscopeError, match="add depth 0"):
            rs.depths(tiny("llama"), unequal(1), at=("carry",), **QUIET)

    @pytest.mark.parametrize("wrong", ["-1", "top", "1.5", ""])
    def test_what_is_no_depth(self, wrong: str) -> None:
        with pytest.raises(RotoscopeError, match="is no depth"):
            rs.depths(tiny("llama"), unequal(1), at=(wrong,), **QUIET)

    def test_no_depth_at_all(self) -> None:
        with pytest.raises(RotoscopeError, match="list of at is empty"):
            rs.depths(tiny("llama"), unequal(1), at=(), **QUIET)

    def test_draws_without_a_null(self) -> None:
        with pytest.raises(RotoscopeError, match="mean nothing without a null"):
            rs.depths(tiny("llama"), unequal(1), null="none", null_draws=3)

    def test_a_prompt_too_short_for_two_blocks(self) -> None:
        with pytest.raises(RotoscopeError, match="a swap needs two keys before the query"):
            rs.depths(tiny("llama"), tokens=[[5, 6]], **QUIET)

    def test_a_model_that_cannot_be_entered_still_takes_permuted_prompts(self) -> None:
        model = remembering(tiny("llama"))
        with pytest.raises(UnprovenError, match="architecture 'llama': entered at layer"):
            rs.depths(model, unequal(1), at=(0, 1), **QUIET)
        assert len(rs.depths(model, unequal(1), at=(0,), **QUIET).heads)


@pytest.mark.slow
def test_both_ends_of_a_real_model(smollm2: rs.Subject) -> None:
    """SmolLM2: depth 0 is the permuted prompt through the untouched model, the own layer is the closed form."""
    shown = rs.tasks.binding(smollm2, 5, 1)
    found = rs.depths(smollm2, shown, at=("all",), tau=0.05, **QUIET)
    curves = found.curves.set_index(["layer", "head"])
    own, entered = (
        curves[curves["own"]],
        curves[~curves["own"] & (curves["depth"] == curves.index.get_level_values(0))],
    )
    profile = rs.profile(smollm2, shown, tau=0.05, **QUIET).heads.set_index(["layer", "head"])
    given, blocks = torch.tensor(shown[0].tokens), shown[0].blocks
    assert blocks is not None
    expected = by_hand(
        own_attention(smollm2.model, given),
        lambda order: own_attention(smollm2.model, given[order]),
        blocks,
        len(given),
        0.05,
    )
    first = curves[~curves["own"] & (curves["depth"] == 0)]
    for k, score in enumerate(("positional_score", "symbolic_score")):
        assert np.allclose(own[score], profile[score], atol=2e-5)
        assert np.allclose(own[score], entered[score], atol=2e-5)
        assert np.allclose(first[score], expected[k].ravel(), atol=2e-5)
