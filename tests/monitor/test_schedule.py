"""When a training is looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest

import rotoscope as rs
from rotoscope.monitor.head_monitor import Schedule


def looks(schedule: Schedule, last: int) -> list[int]:
    schedule.begin(0)
    return [step for step in range(last + 1) if schedule.due(step)]


def test_every_so_many_steps() -> None:
    assert looks(Schedule(4), 10) == [0, 4, 8]


def test_log_spaced_as_the_checkpoints_of_pythia_are() -> None:
    powers = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert looks(Schedule("log"), 3500) == [*powers, 1000, 2000, 3000]


def test_a_list() -> None:
    assert looks(Schedule([5, 0, 2]), 10) == [0, 2, 5]
    assert Schedule([5, 0, 2]).stored() == [0, 2, 5]


def spent_of(share: str, step_s: float, look_s: float, steps: int) -> tuple[float, list[int]]:
    """A training on a clock of its own: the part of its time that was spent looking, and at which steps."""
    now, looked = 0.0, []
    schedule = Schedule(share, clock=lambda: now)
    schedule.begin(0)
    for step in range(steps + 1):
        if schedule.due(step) and schedule.has_time(step):
            now += look_s
            schedule.looked(step, look_s)
            looked.append(step)
        now += step_s
    return schedule.spent / now, looked


@pytest.mark.parametrize(("step_s", "look_s"), [(0.1, 3.0), (0.1, 0.01), (2.0, 30.0)])
def test_a_budget_is_kept_and_used(step_s: float, look_s: float) -> None:
    part, looked = spent_of("2%", step_s, look_s, 10_000)
    assert part <= 0.02
    assert part > 0.02 - 2 * look_s / (10_000 * step_s)  # there is no room for another
    assert looked[0] == 0
    gaps = {later - earlier for earlier, later in pairwise(looked[2:])}
    assert max(gaps) - min(gaps) <= 2  # spaced evenly, once it knows what a look takes


def test_a_look_that_never_fits_the_budget_is_taken_once() -> None:
    assert spent_of("1 %", 0.001, 100.0, 500)[1] == [0]


@pytest.mark.parametrize("every", [0, -3, "often", "0%", "100%", [], [-1], "-2%"])
def test_what_is_no_schedule_is_refused(every: object) -> None:
    with pytest.raises(rs.RotoscopeError, match="every must|schedule|budget|list of steps"):
        Schedule(every)  # type: ignore[arg-type]
