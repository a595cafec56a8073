"""What a profile says beforehand that it will take."""

from __future__ import annotations

import pytest

import rotoscope as rs
from rotoscope.analysis.estimate import estimate
from rotoscope.settings import ProfileSettings
from rotoscope.tasks import from_tokens
from tests.models import tiny, tokens


def gigabytes(subject: rs.Subject, n: int = 20, **settings: object) -> float:
    return estimate(subject, from_tokens(tokens(1, n)), ProfileSettings(**settings)).gigabytes


def test_memory_holds_the_weights() -> None:
    small, large = (rs.load(tiny("llama", vocab_size=words)) for words in (128, 60_000))
    bytes_of = [sum(p.numel() * p.element_size() for p in one.model.parameters()) for one in (small, large)]
    more = (bytes_of[1] - bytes_of[0]) / 1e9
    assert more > 0.03
    assert gigabytes(large) - gigabytes(small) == pytest.approx(more, rel=0.05)


def test_memory_grows_with_what_a_layer_holds() -> None:
    """At least the logits of one layer's heads, all positions by all positions; at most sixteen such tables."""
    subject = rs.load(tiny("llama"))
    table = 4 * 4 * 500**2 / 1e9
    assert table < gigabytes(subject, 500) - gigabytes(subject, 3) < 16 * table


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
    assert every.plane_logits == 6 * two.plane_logits == 12 * 8 * 20 * 20
    assert "single frequencies" in str(two)
