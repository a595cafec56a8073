from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rotoscope as rs
from rotoscope.errors import BlockError, RotoscopeError
from rotoscope.scores import swaps
from tests.twin import Literal, cosine, exchange

GOLDEN = Path(__file__).parents[1] / "golden"
TAUS = (1e-4, 1e-2, 1.0)


def golden(name: str) -> list[dict]:
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def tolerance(dtype: torch.dtype, tau: float) -> float:
    """As stated beside the golden values."""
    if dtype == torch.float64:
        return 1e-9
    return 2e-4 if tau == 1e-4 else 2e-5


def case_logits(case: dict, dtype: torch.dtype, planes: slice = slice(None)) -> torch.Tensor:
    query = torch.tensor(case["query"], dtype=dtype)[planes]
    keys = torch.tensor(case["keys"], dtype=dtype)[:, planes]
    angles = torch.tensor(case["angles"], dtype=dtype)[planes]
    return rs.counterfactual_logits(query, keys, angles, case["scale"], case["query_position"])


def assert_scores(logits: torch.Tensor, expected: dict, blocks: list | None = None) -> None:
    taus = [float(tau) for tau in expected]
    scores = rs.swap_scores(logits, taus, blocks)
    for k, (text, values) in enumerate(expected.items()):
        limit = tolerance(logits.dtype, float(text))
        assert scores.positional[k].item() == pytest.approx(values["positional"], abs=limit)
        assert scores.symbolic[k].item() == pytest.approx(values["symbolic"], abs=limit)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", golden("token_swaps"))
def test_golden_token_swaps(case: dict, dtype: torch.dtype) -> None:
    logits = case_logits(case, dtype)
    assert_scores(logits, case["scores"])
    real = logits.diagonal().softmax(-1)
    assert np.allclose(real.double().numpy(), case["attention"], atol=tolerance(dtype, 1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", golden("token_swaps"))
def test_golden_per_frequency(case: dict, dtype: torch.dtype) -> None:
    assert len(case["per_frequency"]) == len(case["angles"])
    for plane, expected in enumerate(case["per_frequency"]):
        assert_scores(case_logits(case, dtype, slice(plane, plane + 1)), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", golden("block_swaps"))
def test_golden_block_swaps(case: dict, dtype: torch.dtype) -> None:
    assert_scores(case_logits(case, dtype), case["scores"], case["blocks"])


def random_head(seed: int, n: int, planes: int = 3, **more: object) -> tuple[Literal, torch.Tensor]:
    draw = np.random.default_rng(seed)
    query, keys = draw.normal(size=(planes, 2)) * 2, draw.normal(size=(n, planes, 2)) * 1.5
    angles = draw.uniform(0, 1.5, planes)
    literal = Literal(query, keys, angles, scale=0.7, **more)
    logits = rs.counterfactual_logits(*(torch.tensor(x) for x in (query, keys, angles)), scale=0.7)
    if literal.visible is not None:
        logits[~torch.tensor(literal.visible)] = -torch.inf
    return literal, logits


BLOCKS = {
    "tokens": None,
    "equal": [(1, 3), (3, 5), (6, 8), (8, 10)],
    "unequal": [(0, 1), (2, 5), (5, 7), (8, 11)],
}


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("sink", [None, 1.3])
@pytest.mark.parametrize("hidden", [(), (0, 1, 2), (0, 4, 5)])
@pytest.mark.parametrize("variant", ["plain", "renormalised", "centred"])
def test_every_variant_equals_its_literal_twin(blocks, sink, hidden, variant) -> None:
    if variant == "centred" and blocks == BLOCKS["unequal"]:
        assert rs.swap_scores(random_head(0, 12)[1], blocks=blocks).centred_positional is None
        return
    visible = np.array([p not in hidden for p in range(12)])
    for seed in range(4):
        literal, logits = random_head(seed, 12, visible=visible, sink=sink)
        given_sink = None if sink is None else torch.tensor(sink, dtype=torch.float64)
        for tau in TAUS:
            positional, symbolic, effective = literal.scores(tau, blocks, variant)
            ours = rs.swap_scores(logits, tau, blocks, sink=given_sink)
            prefix = "" if variant == "plain" else f"{variant}_"
            assert getattr(ours, f"{prefix}positional").item() == pytest.approx(positional, abs=1e-9)
            assert getattr(ours, f"{prefix}symbolic").item() == pytest.approx(symbolic, abs=1e-9)
            if variant != "centred":
                assert getattr(ours, f"{prefix}effective_swaps").item() == pytest.approx(effective, rel=1e-7)


def test_entropy_and_mass_are_those_of_the_real_attention() -> None:
    literal, logits = random_head(3, 12)
    attention = literal.attention(range(12))
    ours = rs.swap_scores(logits, blocks=BLOCKS["unequal"])
    assert ours.entropy.item() == pytest.approx(-(attention * np.log(attention)).sum(), abs=1e-12)
    expected = sum(attention[a:b].sum() for a, b in BLOCKS["unequal"])
    assert ours.swapped_mass.item() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(1, 13), min_size=2, max_size=6, unique=True),
    tau=st.sampled_from(TAUS),
)
def test_any_blocks_equal_the_twin(seed: int, cuts: list[int], tau: float) -> None:
    borders = [0, *sorted(cuts)]
    blocks = list(itertools.pairwise(borders))
    literal, logits = random_head(seed, 15)
    positional, symbolic, _ = literal.scores(tau, blocks)
    ours = rs.swap_scores(logits, tau, blocks)
    assert ours.positional.item() == pytest.approx(positional, abs=1e-9)
    assert ours.symbolic.item() == pytest.approx(symbolic, abs=1e-9)


def test_tiles_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    _, logits = random_head(1, 41)
    whole = rs.swap_scores(logits, TAUS, detail=True)
    monkeypatch.setattr(swaps, "TILE", 7)
    tiled = rs.swap_scores(logits, TAUS, detail=True)
    assert torch.allclose(whole.positional, tiled.positional, atol=1e-12)
    assert torch.allclose(whole.centred_symbolic, tiled.centred_symbolic, atol=1e-12)
    assert torch.equal(whole.detail.first, tiled.detail.first)
    assert torch.equal(whole.detail.second, tiled.detail.second)
    assert torch.allclose(whole.detail.weight, tiled.detail.weight, atol=1e-12)


def test_detail_adds_up_to_the_score() -> None:
    _, logits = random_head(2, 9)
    scores = rs.swap_scores(logits, TAUS, detail=True)
    assert len(scores.detail.first) == scores.swaps.item() == 8 * 7 // 2
    assert torch.allclose((scores.detail.weight * scores.detail.positional[:, None]).sum(0), scores.positional)
    assert torch.allclose(scores.detail.weight.sum(0), torch.ones(3, dtype=torch.float64))


def test_leading_axes_and_single_tau() -> None:
    heads = torch.stack([random_head(seed, 10)[1] for seed in range(6)]).reshape(2, 3, 10, 10)
    scores = rs.swap_scores(heads, 1e-2)
    assert scores.positional.shape == (2, 3)
    alone = rs.swap_scores(heads[1, 2], [1e-2])
    assert alone.positional.shape == (1,)
    assert torch.allclose(scores.positional[1, 2], alone.positional[0])


def test_half_precision_is_scored_in_float32() -> None:
    _, logits = random_head(4, 10)
    half = logits.to(torch.bfloat16)
    assert rs.swap_scores(half).positional.dtype == torch.float32
    assert torch.equal(rs.swap_scores(half).positional, rs.swap_scores(half.float()).positional)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype: torch.dtype) -> None:
    logits = (
        torch.randn(4, 12, 12, dtype=dtype) * torch.tensor([1e-6, 1e2, 1e4, 1e6], dtype=dtype)[:, None, None]
    )
    scores = rs.swap_scores(logits, TAUS)
    for name in ("positional", "symbolic", "centred_positional", "renormalised_symbolic", "effective_swaps"):
        assert torch.isfinite(getattr(scores, name)).all(), name
    assert (scores.positional <= 1 + 1e-6).all()
    assert (scores.symbolic >= 0).all()


def test_pure_heads() -> None:
    by_position = torch.randn(9, 1, dtype=torch.float64).expand(9, 9)
    scores = rs.swap_scores(by_position)
    assert scores.positional.item() == pytest.approx(1, abs=1e-12)
    assert scores.symbolic.item() < 1
    scores = rs.swap_scores(by_position.T)
    assert scores.symbolic.item() == pytest.approx(1, abs=1e-12)
    uniform = rs.swap_scores(torch.zeros(9, 9))
    assert uniform.positional.item() == uniform.symbolic.item() == pytest.approx(1, abs=1e-6)
    assert uniform.centred_positional == uniform.centred_symbolic == 0  # nothing is focused


def test_window_is_positional_behaviour() -> None:
    """A position the query cannot see keeps weight 0 whatever stands there."""
    logits = torch.randn(6, 6, dtype=torch.float64)
    logits[:3] = -torch.inf
    scores = rs.swap_scores(logits, 1.0, detail=True)
    across = (scores.detail.first < 3) & (scores.detail.second >= 3)
    assert torch.allclose(scores.detail.positional[across], torch.ones((), dtype=torch.float64))
    unseen = scores.detail.second < 3
    assert (scores.detail.weight[unseen] == 0).all()
    assert scores.swaps == 10 - 3


def test_a_query_that_sees_no_swap_has_no_score() -> None:
    logits = torch.full((6, 6), -torch.inf)
    logits[-1] = 0.0
    scores = rs.swap_scores(logits)
    assert scores.missing
    assert torch.isfinite(scores.positional)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf"), []])
def test_tau_must_be_positive(tau) -> None:
    with pytest.raises(RotoscopeError, match="tau must be positive"):
        rs.swap_scores(torch.zeros(4, 4), tau)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(0, 2)], "at least two blocks"),
        ([(0, 2), (3, 6)], "contains the query"),
        ([(0, 3), (2, 4)], "overlap"),
        ([(0, 2), (2, 2)], "is empty"),
        ([(-1, 2), (2, 4)], "starts before"),
        ([(0, 2), (7, 9)], "lies after the query"),
    ],
)
def test_bad_blocks_are_named(blocks, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        rs.swap_scores(torch.zeros(6, 6), blocks=blocks)


def test_equal_lengths_on_demand() -> None:
    with pytest.raises(BlockError, match="lengths from 1 to 2"):
        rs.Blocks.of([(0, 1), (1, 3)], 5, equal=True)


def test_equal_symbol_swaps_alone() -> None:
    """The same as scoring only the swaps between equal symbols."""
    symbols = [0, 1, 0, 2, 1, 0, 3, 2]
    for seed in range(5):
        literal, logits = random_head(seed, 9)
        for tau in TAUS:
            ours = rs.swap_scores(logits, tau, symbols=symbols).equal_symbols
            before = literal.attention(range(9))
            gaps, positional, symbolic = [], [], []
            for a, b in itertools.combinations(range(8), 2):
                if symbols[a] != symbols[b]:
                    continue
                after = literal.attention(exchange(9, (a, a + 1), (b, b + 1))[1])
                old, new = before[[a, b]], after[[a, b]]
                gaps.append(abs(old[0] - old[1]))
                positional.append(cosine(new, old))
                symbolic.append(cosine(new, old[::-1]))
            weight = np.exp((np.array(gaps) - max(gaps)) / tau)
            weight /= weight.sum()
            assert ours.positional.item() == pytest.approx(weight @ positional, abs=1e-9)
            assert ours.symbolic.item() == pytest.approx(weight @ symbolic, abs=1e-9)
            assert ours.swaps == len(gaps) == 5
    with pytest.raises(RotoscopeError, match="2 symbols were given for 8 blocks"):
        rs.swap_scores(logits, symbols=[0, 1])


@pytest.mark.parametrize("seed", range(5))
def test_equal_symbol_scores_are_weighted_means_of_their_swaps(seed: int) -> None:
    """Many symbols, a few of them repeated: the weights of the equal swaps must add up to one."""
    dice = np.random.default_rng(seed)
    symbols = dice.permutation([*range(26), 3, 3, 3, 7, 7, 11]).tolist()
    _, logits = random_head(seed, 33)
    scores = rs.swap_scores(logits, 1e-4, symbols=symbols, detail=True)
    ids = torch.tensor(symbols)
    alike = ids[scores.detail.first] == ids[scores.detail.second]
    assert scores.equal_symbols.swaps == alike.sum() == 6 + 3 + 1
    attention = logits.diagonal().softmax(-1)
    gap = (attention[scores.detail.first] - attention[scores.detail.second]).abs()[alike]
    weight = ((gap - gap.max()) / 1e-4).exp()
    weight = weight / weight.sum()
    expected = (weight * scores.detail.positional[alike]).sum()
    assert scores.equal_symbols.positional.item() == pytest.approx(expected.item(), abs=1e-12)


def test_equal_symbols_reveal_a_mixed_head() -> None:
    """Picks the last of several equal symbols: looks symbolic over all swaps, positional over equal ones."""
    symbol = torch.tensor([5.0, 0, 0, 5.0, 0, 5.0, 0])
    later = torch.arange(7) * 0.8
    logits = torch.zeros(8, 8, dtype=torch.float64)
    logits[:7, :7] = 6 * symbol[None, :] + later[:, None]
    scores = rs.swap_scores(logits, symbols=[1, 0, 0, 1, 0, 1, 0])
    assert scores.symbolic > 0.99
    assert scores.positional < 0.1
    assert scores.equal_symbols.positional > 0.99


def test_equal_symbols_that_a_window_hides_are_missing() -> None:
    logits = torch.randn(2, 8, 8, dtype=torch.float64)
    logits[0, :4] = -torch.inf
    symbols = [5, 5, 5, 7, 0, 1, 2]
    found = rs.swap_scores(logits, TAUS, symbols=symbols).equal_symbols
    assert found.swaps.tolist() == [0, 3]
    assert found.positional[0].isnan().all()
    assert found.symbolic[0].isnan().all()
    assert torch.isfinite(found.positional[1]).all()
    across = rs.swap_scores(logits, TAUS, symbols=[5, 0, 1, 2, 5, 3, 4]).equal_symbols
    assert across.swaps.tolist() == [1, 1]  # one slot is seen
    assert across.positional[0].tolist() == pytest.approx([1, 1, 1])  # and the other stays hidden
    distinct = rs.swap_scores(logits[1], symbols=range(7)).equal_symbols
    assert distinct.swaps == 0
    assert distinct.positional.isnan()


def test_every_input_may_have_symbols_of_its_own() -> None:
    logits = torch.stack([random_head(seed, 9)[1] for seed in range(6)]).reshape(2, 3, 9, 9)
    symbols = torch.tensor([[0, 1, 0, 2, 1, 0, 3, 2], [9, 9, 9, 9, 4, 4, 5, 6]])
    together = rs.swap_scores(logits, TAUS, symbols=symbols[:, None]).equal_symbols
    for k, own in enumerate(symbols.tolist()):
        alone = rs.swap_scores(logits[k], TAUS, symbols=own).equal_symbols
        assert torch.equal(together.swaps[k], alone.swaps)
        assert torch.allclose(together.positional[k], alone.positional, atol=1e-12)
        assert torch.allclose(together.symbolic[k], alone.symbolic, atol=1e-12)
