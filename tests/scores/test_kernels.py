"""Fused kernels against their plain twins: on a CPU in Triton's interpreter, on a GPU as they are."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.scores import counterfactual as factors
from rotoscope.scores import frequency_scores as frequency
from rotoscope.scores import kernels, swaps
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.frequency_scores import FrequencyScores, frequency_scores, remainder_scores
from rotoscope.scores.kernels import fused
from rotoscope.scores.swaps import SwapScores, score_swaps
from tests.factors import random_factors
from tests.tables import scores_agree
from tests.tiny_models import tiny, tokens

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux", allow_module_level=True)

from rotoscope.scores import fused_swaps
from rotoscope.scores.kernels import heads as heads_kernel
from rotoscope.scores.kernels import planes as planes_kernel
from rotoscope.scores.kernels.attention import halves_bytes

# The interpreter computes with numpy, which says where infinities meet.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
INTERPRETED = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the kernels run there, not in the interpreter"
)
DEVICES = [
    pytest.param("cpu", marks=INTERPRETED),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]


def threes(n: int) -> rs.Blocks:
    return rs.Blocks.of([(p, p + 3) for p in range(1, n - 3, 3)], n - 1)


def unequal(n: int) -> rs.Blocks:
    """One to four tokens, some in none."""
    starts, lengths = range(0, n - 5, 5), (3, 1, 4, 2)
    return rs.Blocks.of([(p, p + lengths[k % 4]) for k, p in enumerate(starts)], n - 1)


def single(n: int) -> rs.Blocks:
    return rs.Blocks.tokens(n - 1)


def allowed(taus: tuple[float, ...]) -> torch.Tensor:
    """How far apart scores may be, for every tau."""
    return torch.tensor([2e-4 if tau < 1e-3 else 2e-5 for tau in taus])


@dataclass(frozen=True)
class Found:
    """Everything that one form says of some heads."""

    heads: SwapScores
    planes: FrequencyScores | None
    rest: FrequencyScores | None


def found(
    form: bool, factors: Factors, blocks: rs.Blocks, taus: tuple[float, ...], symbols: Any = None
) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        for module in (swaps, frequency):
            patch.setattr(module, "fused", lambda device: form)
        return Found(
            score_swaps(factors, factors.real(), blocks, taus, sink=factors.sinks, symbols=symbols),
            frequency_scores(factors, blocks, taus) if factors.planes else None,
            remainder_scores(factors, blocks, taus) if factors.keys.shape[-1] > 2 * factors.planes else None,
        )


def same(plain: Any, kernel: Any, taus: tuple[float, ...]) -> None:
    """Every number of two results, those on another device too."""
    for field in fields(plain):
        name = field.name
        one, other = getattr(plain, name), getattr(kernel, name)
        if name in ("detail", "highest") or one is None:
            assert name in ("detail", "highest") or other is None
        elif name == "equal_symbols":
            same(one, other, taus)
        elif name == "swaps":
            assert torch.equal(one, other.cpu())
        else:
            other = other.cpu()
            assert one.shape == other.shape
            assert torch.equal(one.isnan(), other.isnan())
            size = 1.0 if name.endswith(("positional", "symbolic")) else one.abs().clamp(min=1.0)
            within = allowed(taus) if one.shape[-1:] == (len(taus),) else 2e-5
            apart = ((one - other).abs() / size).nan_to_num(0.0)
            assert bool((apart <= within).all()), f"{name}: {float(apart.max()):.1e}"


def on(device: str, factors: Factors) -> Factors:
    moved = {
        field.name: value.to(device)
        for field in fields(factors)
        if isinstance(value := getattr(factors, field.name), torch.Tensor)
    }
    return replace(factors, **moved)


def precise(factors: Factors) -> Factors:
    exact = {name: getattr(factors, name).double() for name in ("query", "keys", "cos", "sin")}
    return replace(factors, **exact, sinks=None if factors.sinks is None else factors.sinks.double())


def compare(
    device: str, factors: Factors, blocks: rs.Blocks, taus: tuple[float, ...], symbols: Any = None
) -> None:
    """The plain form is in float64: of large logits float32 itself rounds off as much as is allowed here."""
    plain = found(False, precise(factors), blocks, taus, symbols)
    kernel = found(True, on(device, factors), blocks, taus, symbols)
    for part in fields(Found):
        one, other = getattr(plain, part.name), getattr(kernel, part.name)
        if one is not None:
            same(one, other, taus)
        assert (one is None) == (other is None)


CASES: dict[str, tuple[Any, dict[str, Any], tuple[float, ...], int | None]] = {
    # Blocks; heads; taus; how many symbols there are.
    "equal blocks, partly turned, several tau": (threes, {"rest": 3}, (1e-4, 1e-2, 1.0), None),
    "equal blocks, hidden positions, sinks": (threes, {"hidden": range(9), "sinks": True}, (1e-4,), 2),
    "equal blocks, large logits": (threes, {"size": 200.0}, (1e-4, 1e-2), None),
    "unequal blocks, soft-cap": (unequal, {"planes": 1, "rest": 2, "size": 9.0, "softcap": 5.0}, (1e-2,), 2),
    "unequal blocks, hidden positions, large logits": (
        unequal, {"hidden": range(8), "size": 200.0, "planes": 1}, (1e-4, 1e-2), None,
    ),
    "tokens, soft-cap, sinks, equal symbols": (single, {"softcap": 3.0, "sinks": True}, (1e-4, 1.0), 5),
    "tokens, hidden positions, large logits": (
        single, {"hidden": (0, 2, *range(5, 14)), "size": 200.0, "planes": 1}, (1e-4,), 3,
    ),
    "heads of an odd width": (threes, {"planes": 1, "rest": 140, "group": 1}, (1e-2,), None),
    "nothing turns": (threes, {"planes": 0, "rest": 7, "sinks": True}, (1e-4, 1e-2), None),
    "two inputs, two key heads": (threes, {"batch": 2, "key_heads": 2, "group": 1, "planes": 1}, (1e-2,), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_fused_equals_plain(device: str, case: str) -> None:
    """Small in the interpreter, where every program costs; larger on a GPU, with logits as large as before."""
    make, more, taus, symbols = CASES[case]
    n, more = 21, {"planes": 2, "group": 2, "size": 1.0, **more}
    if device == "cuda":
        n, more = 1021, more | {"planes": 32 * (more["planes"] > 0), "group": 4, "size": more["size"] / 4}
    if "hidden" in more:
        more["hidden"] = tuple(more["hidden"])
    if more.pop("sinks", False):
        more["sinks"] = torch.linspace(-1, 2, more["group"])[None]
    blocks = make(n)
    ids = None if symbols is None else [k * k % symbols for k in range(len(blocks))]
    compare(device, random_factors(n, **more), blocks, taus, ids)


@INTERPRETED
def test_float64_is_scored_in_float32() -> None:
    """Heads of a model in float64: the kernels take them as they take others."""
    heads, blocks, taus = random_factors(13, 1, rest=2, group=1), single(13), (1e-2,)
    one, other = (found(True, form, blocks, taus) for form in (heads, precise(heads)))
    for part in fields(Found):
        same(getattr(one, part.name), getattr(other, part.name), taus)


@INTERPRETED
def test_inputs_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three inputs with symbols and sinks of their own, two of them together, then one."""
    heads = random_factors(13, 1, batch=3, group=1, sinks=torch.tensor([[0.5], [1.0], [-1.0]]))
    ids = torch.tensor([[[k % count for k in range(12)]] for count in (2, 3, 5)])
    monkeypatch.setattr(factors, "ROOM", 2.5 * halves_bytes(heads))
    assert [len(part.keys) for part in heads.parts(halves_bytes(heads))] == [2, 1]
    compare("cpu", heads, single(13), (1e-2,), ids)


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_add_up(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than a tile has: each tile a program of its own, and all of a band one after the other."""
    factors, blocks = random_factors(71, 1, group=1), single(71)
    compare(device, factors, blocks, (1e-2,), [k % 9 for k in range(70)])
    monkeypatch.setattr(heads_kernel, "PROGRAMS", 1)
    monkeypatch.setattr(planes_kernel, "BUSY", 1)
    heads_kernel._work.cache_clear()
    compare(device, factors, blocks, (1e-2,))
    heads_kernel._work.cache_clear()


def far_apart(n: int) -> Factors:
    """Half of all attention on the first token, none on those up to the 64th, an even share on the rest; and keys of that rest
    whose logits are 100 elsewhere than where they stand. Those of the others are nowhere above 30."""
    factors = random_factors(n, 1, group=1)
    there = torch.full((n,), -30.0)
    there[0], there[64:] = 0.0, -torch.tensor(float(n - 64)).log()
    seen = factors.turned_query[0, 0, :, 0]
    across = torch.stack((-seen[:, 1], seen[:, 0]), dim=-1)
    size = seen.square().sum(-1, keepdim=True)
    keys = there[:, None] * seen / size
    keys[64:] += 100 * (across / size.sqrt())[64:] / size[:1].sqrt()
    return replace(factors, keys=keys[None, None])


@INTERPRETED
def test_what_cannot_weigh_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At tau = 1e-4 no swap with any of the last 64 tokens weighs: their tiles hold the largest logit, and it does not show."""
    factors, blocks, taus = far_apart(129), single(129), (1e-4,)
    skipped = found(True, factors, blocks, taus)
    assert float(skipped.heads.highest) < 31
    compare("cpu", factors, blocks, taus)
    for module in (swaps, fused_swaps):
        monkeypatch.setattr(module, "furthest", lambda taus, swaps: float("inf"))
    plain, whole = (found(way, factors, blocks, taus) for way in (False, True))
    assert float(whole.heads.highest) == pytest.approx(float(plain.heads.highest), rel=1e-5)
    assert float(whole.heads.highest) > 90


@pytest.mark.parametrize("device", DEVICES)
def test_a_logit_that_is_none_shows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the heads of one input, and in those alone."""
    factors, blocks = random_factors(13, 1, batch=2, group=1), single(13)
    real = on(device, factors).real()
    factors.keys[1, 0, 4, 0] = torch.nan
    monkeypatch.setattr(swaps, "fused", lambda device: True)
    highest = score_swaps(on(device, factors), real, blocks, 1.0).highest
    assert highest.isnan().flatten().tolist() == [False, True]


@INTERPRETED
def test_a_whole_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partly turned heads, every frequency and what never turns."""
    settings: dict[str, Any] = {
        "tokens": tokens(1, 14),
        "tau": [1e-4, 1e-2],
        "null": "none",
        "frequencies": True,
    }
    model = tiny("gpt_neox", num_hidden_layers=1, hidden_size=32, num_attention_heads=2)
    plain = rs.profile(model, **settings)
    for module in (swaps, frequency):
        monkeypatch.setattr(module, "fused", lambda device: True)
    kernel = rs.profile(model, **settings)
    for one, other in ((plain.heads, kernel.heads), (plain.frequencies, kernel.frequencies)):
        scores_agree(one, other)


def test_where_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on a CPU; not on a card that lacks what they need, which is said once."""
    fused.cache_clear()
    assert not fused(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old Card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    card = torch.device("cuda", 0)
    with pytest.warns(
        UserWarning, match=r"no fused kernels on Old Card: its compute capability is 7\.5.*need 8\.0"
    ):
        assert not fused(card)
    assert not fused(card)  # a second warning would be an error here
    fused.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert fused(card)
    fused.cache_clear()
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="Triton is not installed; scores come from the slower plain form"):
        assert not fused(card)
    fused.cache_clear()
