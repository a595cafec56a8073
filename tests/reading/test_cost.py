"""The one rule for what is too much: it refuses with figures, and lets through what is asked for all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rotoscope as rs
from rotoscope.analysis.estimate import estimate
from rotoscope.analysis.gating import gates_cost
from rotoscope.errors import TooLargeError
from rotoscope.lab.cost import grid_cost, sequences_cost, training_cost
from rotoscope.reading.cost import DAY, SPEEDS, Cost, how_long, speed_on
from rotoscope.reading.devices import free_memory
from rotoscope.settings import CanonicalSettings, GateSettings, ProfileSettings, TrainSettings
from tests.models import tiny, tokens

CPU = torch.device("cpu")
LITTLE = Cost("this work", 0.05, DAY, "ask for less")


def test_a_day_of_work_that_fits_is_not_refused() -> None:
    LITTLE.check(CPU, force=False)


def test_what_does_not_fit_is_refused_with_its_figures() -> None:
    free = free_memory(CPU)
    assert free is not None
    much = replace(LITTLE, gigabytes=1.5 * free / 1e9)
    words = r"this work would take about [\d.,]+ GB of memory, and [\d.,]+ GB are free on cpu: ask for less, or .*--force"
    with pytest.raises(TooLargeError, match=words):
        much.check(CPU, force=False)
    much.check(CPU, force=True)


@pytest.mark.parametrize(("days", "words"), [(3, "3 days"), (40_000, "110 years")])
def test_what_takes_days_is_refused_with_its_figures(days: float, words: str) -> None:
    long = replace(LITTLE, seconds=days * DAY)
    with pytest.raises(TooLargeError, match=f"this work would take about {words} on cpu: ask for less"):
        long.check(CPU, force=False)
    long.check(CPU, force=True)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (110, "110 s"), (600, "10 min"), (30_000, "8 h"), (3 * DAY, "3 days")]
)
def test_a_time_is_said_in_its_unit(seconds: float, words: str) -> None:
    assert how_long(seconds) == words


@pytest.mark.parametrize(("kernels", "form"), [(True, "fused"), (False, "gpu")])
def test_a_gpu_has_the_speed_of_its_kernels(kernels: bool, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rotoscope.reading.cost.fused", lambda device: kernels)
    assert speed_on(torch.device("cuda")) == SPEEDS[form]
    assert speed_on(CPU) == SPEEDS["cpu"]


def test_presets_can_be_run() -> None:
    """The papers' own experiments take hours on two cores, not days, and a few gigabytes."""
    for task in ("number", "letter"):
        for preset in TrainSettings.presets:
            settings = TrainSettings.preset(preset, task=task)
            cost = training_cost(settings, CPU, watched=200)
            assert cost.seconds < DAY
            assert cost.gigabytes < 4
            assert sequences_cost(settings).gigabytes < 1
            assert sequences_cost(settings).seconds < 600
    for preset in CanonicalSettings.presets:
        toys = CanonicalSettings.preset(preset)
        assert grid_cost(toys, len(toys.angles) * toys.seeds, 4, CPU).seconds < DAY


def test_time_grows_with_the_work() -> None:
    """Twice the prompts, draws, tokens or gates take at least about twice the time."""
    subject = rs.load(tiny("llama"))
    plain = ProfileSettings(null="none")
    shown, longer = (rs.tasks.from_tokens(tokens(1, n)) for n in (100, 200))
    once = estimate(subject, shown, plain, count=1000).seconds
    assert estimate(subject, shown, plain, count=2000).seconds == pytest.approx(2 * once)
    made = sum(weight.numel() for weight in subject.model.parameters()) * SPEEDS["cpu"].weight
    with_null = estimate(subject, shown, ProfileSettings(null_draws=3), count=1000)
    assert with_null.seconds == pytest.approx(4 * once + 3 * made)
    assert estimate(subject, longer, plain, count=1000).seconds > 2 * once
    assert estimate(subject, shown, replace(plain, queries="all"), count=1000).seconds > 50 * once
    gates = [gates_cost(subject, shown[0], 1000, GateSettings(bands=bands)).seconds for bands in (7, 15)]
    assert gates[1] == pytest.approx(2 * gates[0], rel=0.05)
