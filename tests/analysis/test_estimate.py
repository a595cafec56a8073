"""The memory that is expected before a profile starts, against what it takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.analysis.estimate import BYTES_PER_ROW, SMALL_THINGS, estimate
from rotoscope.reading.cost import SPEEDS
from rotoscope.reading.devices import free_memory
from rotoscope.settings import ProfileSettings
from rotoscope.tasks import Prompts, from_tokens
from tests.models import GROUPED, from_config, tiny, tokens

PLAIN = ProfileSettings(null="none", examples=False, prove=False)


def subject(**sizes: Any) -> rs.Subject:
    config = tf.LlamaConfig(**{**GROUPED, "num_hidden_layers": 1, "max_position_embeddings": 32768, **sizes})
    return rs.load(from_config(config))


def prompts(n: int, width: int | None = None) -> Prompts:
    spans = None if width is None else [(p, p + width) for p in range(1, n - width, width)]
    return from_tokens(tokens(1, n), spans)


def uneven(n: int) -> Prompts:
    """Blocks of one and of two tokens: swaps of all heads are held at a time."""
    return from_tokens(tokens(1, n), [(p + k, p + 1 + 2 * k) for p in range(1, n - 4, 3) for k in (0, 1)])


def most_bytes(work: Callable[[], object]) -> int:
    """The most that tensors took at a time while something was done, whatever else this process holds."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as watched:
        work()
    events = watched.profiler.kineto_results.events()
    changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes))


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 1024}, prompts(640)),
        ({"num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 256}, uneven(400)),
        ({"intermediate_size": 8192, "hidden_size": 256}, prompts(768, width=32)),
    ],
    ids=["swaps of single tokens", "blocks of one and two tokens", "a long prompt with few blocks"],
)
def test_within_a_factor_of_one_and_a_half(sizes: dict[str, int], shown: Prompts) -> None:
    """Tensors against tensors; what else a program takes is a fixed amount."""
    model = subject(**sizes)
    expected = 1e9 * estimate(model, shown, PLAIN).more_gigabytes
    assert expected > 2 * SMALL_THINGS
    taken = most_bytes(lambda: rs.profile(model, shown, PLAIN, show_progress=False))
    assert 1 / 1.5 < (expected - SMALL_THINGS) / taken < 1.5


def test_sixteen_thousand_tokens_are_no_thirteen_gigabytes() -> None:
    """Tiles make memory grow with the length, not with its square."""
    model = subject(hidden_size=576, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536)
    short, long = (estimate(model, prompts(n), PLAIN).more_gigabytes for n in (4096, 16384))
    assert long < 4 * short
    assert long < 3.5


def test_a_random_null_is_a_second_model_and_keys_that_are_kept() -> None:
    model = subject()
    shown = prompts(64)
    weights = 4 * sum(weight.numel() for weight in model.model.parameters()) / 1e9
    config = model.model.config
    kept = 4 * config.num_hidden_layers * 64 * config.num_key_value_heads * config.head_dim / 1e9
    alone, beside = (estimate(model, shown, replace(PLAIN, null=null)).gigabytes for null in ("none", "random"))
    rows = PLAIN.null_draws * BYTES_PER_ROW * GROUPED["num_attention_heads"] / 1e9
    assert beside - alone == pytest.approx(weights + kept + rows)


def test_it_is_compared_with_what_is_free() -> None:
    found = estimate(subject(), prompts(64), PLAIN)
    free = free_memory(torch.device("cpu"))
    assert free is not None
    assert found.free_gigabytes == pytest.approx(free / 1e9, rel=0.5)
    assert found.fits
    assert "may not fit" not in str(found)
    tight = replace(found, more_gigabytes=9.0, free_gigabytes=2.0)
    assert not tight.fits
    assert "9.0 GB more than now, and 2.0 GB are free: it may not fit" in str(tight)


def gigabytes(subject: rs.Subject, n: int = 20, **settings: object) -> float:
    plain = {"null": "none", **settings}  # a random null is a second model
    return estimate(subject, from_tokens(tokens(1, n)), ProfileSettings(**plain)).gigabytes


def test_memory_holds_the_weights() -> None:
    small, large = (rs.load(tiny("llama", vocab_size=words)) for words in (128, 60_000))
    bytes_of = [sum(p.numel() * p.element_size() for p in one.model.parameters()) for one in (small, large)]
    more = (bytes_of[1] - bytes_of[0]) / 1e9
    assert more > 0.03
    assert gigabytes(large) - gigabytes(small) == pytest.approx(more, rel=0.05)


def test_memory_of_the_program_itself_is_counted() -> None:
    """torch and transformers take some hundred megabytes before any model is there."""
    assert 0.2 < gigabytes(rs.load(tiny("llama"))) < 1.0


def test_work_on_single_frequencies_is_counted_by_heads() -> None:
    subject, shown = rs.load(tiny("llama")), from_tokens(tokens(2, 20))
    plain, every, two = (
        estimate(subject, shown, ProfileSettings(**settings))
        for settings in ({}, {"frequencies": True}, {"frequencies": True, "heads": "0:1,2:3"})
    )
    assert (plain.prompts, plain.tokens, plain.plane_logits) == (2, 20, 0.0)
    assert (every.prompts, two.prompts) == (2, 2)
    assert every.plane_logits == 6 * two.plane_logits == 12 * 8 * 20 * 20
    assert "single frequencies" in str(two)


@pytest.fixture(scope="module")
def eight() -> rs.Subject:
    """The shape of an 8B model in half precision, without its weights."""
    config = tf.LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=14_336, vocab_size=128_256, max_position_embeddings=65_536,
    )  # fmt: skip
    with torch.device("meta"):
        return rs.Subject(tf.LlamaForCausalLM(config).to(torch.bfloat16), None, "8B")


def on(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the model stood on a device where this form of the scores is chosen."""
    monkeypatch.setitem(SPEEDS, "cpu", SPEEDS[form])


@pytest.mark.parametrize(
    ("form", "n", "count", "heads", "planes"),
    [
        ("gpu", 2048, 1, 0.672, 2.334),
        ("gpu", 2048, 8, 1.40, 11.7),
        ("gpu", 512, 32, 1.09, 3.2),
        ("gpu", 8192, 1, 1.53, None),
        ("fused", 2048, 1, 0.093, 0.128),
        ("fused", 2048, 8, 0.592, 0.832),
        ("fused", 8192, 1, 0.359, 0.650),
        ("fused", 32_768, 1, 2.20, None),
    ],
)
def test_seconds_measured_on_a_gpu(
    eight: rs.Subject,
    form: str,
    n: int,
    count: int,
    heads: float,
    planes: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What both forms took on an H200, blocks of 8 tokens, scores and forward pass together."""
    on(form, monkeypatch)
    shown = from_tokens(tokens(1, n), [(p, p + 8) for p in range(16, n - 20, 8)])
    how = replace(PLAIN, batch_tokens=count * n)
    assert 1 / 1.5 < estimate(eight, shown, how, count=count).seconds / heads < 1.5
    if planes is not None:
        found = estimate(eight, shown, replace(how, frequencies=True), count=count)
        assert 1 / 1.5 < found.seconds / planes < 1.5


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("cpu", "on two CPU cores"),
        ("gpu", "on a GPU without fused kernels"),
        ("fused", "on a GPU with fused kernels"),
    ],
)
def test_it_says_what_it_assumes(form: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on(form, monkeypatch)
    assert words in str(estimate(subject(), prompts(64), replace(PLAIN, frequencies=True)))


def test_a_gpu_is_no_cpu(eight: rs.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, how = prompts(2048, width=8), replace(PLAIN, frequencies=True)
    taken = {}
    for form in ("cpu", "gpu", "fused"):
        on(form, monkeypatch)
        taken[form] = estimate(eight, shown, how).seconds
    assert taken["cpu"] > 30 * taken["gpu"] > 300 * taken["fused"]


def test_fused_kernels_hold_no_logits(eight: rs.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more blocks of the same prompt the plain form takes more memory, the fused one does not."""
    few, many = (prompts(2048, width=width) for width in (64, 2))
    on("gpu", monkeypatch)
    plain = [estimate(eight, shown, PLAIN).more_gigabytes for shown in (few, many)]
    on("fused", monkeypatch)
    fused = [estimate(eight, shown, PLAIN).more_gigabytes for shown in (few, many)]
    assert plain[1] > 1.5 * plain[0]
    assert fused[1] == pytest.approx(fused[0])
    assert fused[1] < 0.5


def test_a_random_null_of_a_model_in_half_precision(eight: rs.Subject) -> None:
    """It is made in float32, twice the subject's size, before it is turned into what the subject is."""
    shown = prompts(64)
    weights = sum(weight.numel() for weight in eight.model.parameters())
    alone, beside = (estimate(eight, shown, replace(PLAIN, null=null)).gigabytes for null in ("none", "random"))
    assert beside - alone == pytest.approx(4 * weights / 1e9, rel=0.05)


def test_a_null_that_is_not_kept_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shown, how = subject(), prompts(64), replace(PLAIN, null="random")
    kept = estimate(model, shown, how).seconds
    monkeypatch.setattr("rotoscope.analysis.estimate.MOST_KEPT", 0)
    assert estimate(model, shown, how).seconds > kept
