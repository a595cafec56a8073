"""When a training is looked at: every so many steps, at log-spaced or listed ones, or as often as a budget allows."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral

from rotoscope.errors import RotoscopeError

Every = int | str | Sequence[int]
"""500, "log", [0, 10, 100] or "2%"."""
DENSE, THEN = 512, 1000
"""The steps of Pythia's checkpoints: 0, the powers of two up to the first, then every so many."""
BUDGET = re.compile(r"(\d+(?:\.\d+)?) ?%")


class Schedule:
    """Says whether a step is due. All processes of a training have the same one, and `next_look` is what they agree on."""

    def __init__(self, every: Every = 500, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every = every
        self.clock = clock
        self.share: float | None = None
        """The part of the time that may be spent, where there is a budget."""
        self.next_look = 0
        """With a budget: the next step at which it is asked whether there is time."""
        self.spent = 0.0
        """Seconds that looking has taken."""
        self._last = 0.0
        self._apart: int | None = None
        self._listed: frozenset[int] | None = None
        if isinstance(every, str):
            self._read(every)
        elif isinstance(every, (int, Integral)):
            self._apart = int(every)
            if self._apart < 1:
                raise RotoscopeError(f"every must be at least 1 step, found {every}")
        elif not isinstance(every, Iterable):
            raise RotoscopeError(
                f"every must be a whole number of steps, 'log', a list, or '2%', found {every}"
            )
        else:
            steps = list(every)
            if not steps or not all(isinstance(step, Integral) and step >= 0 for step in steps):
                raise RotoscopeError(
                    f"a list of steps holds whole numbers from 0 on, and at least one, found {every}"
                )
            self._listed = frozenset(int(step) for step in steps)

    def _read(self, every: str) -> None:
        budget = BUDGET.fullmatch(every.strip())
        if budget:
            self.share = float(budget.group(1)) / 100
            if not 0 < self.share < 1:
                raise RotoscopeError(
                    f"a budget is more than 0 % and less than 100 % of the time, found {every}"
                )
        elif every != "log":
            raise RotoscopeError(
                f"unknown schedule '{every}'; choose a number of steps, 'log', a list, or '2%'"
            )

    def begin(self, step: int) -> None:
        """The training begins, or goes on, at this step."""
        self.first, self.began, self.spent, self.next_look = step, self.clock(), 0.0, step

    @property
    def elapsed(self) -> float:
        """Seconds since the training began, or went on."""
        return self.clock() - self.began

    def due(self, step: int) -> bool:
        """Whether to look at a step; with a budget, whether to ask if there is time."""
        if self.share is not None:
            return step >= self.next_look
        if self._listed is not None:
            return step in self._listed
        if self._apart is not None:
            return step % self._apart == 0
        return step % THEN == 0 or (step <= DENSE and step.bit_count() == 1)

    def has_time(self, step: int) -> bool:
        """With a budget: whether another look fits it; if not, `next_look` is the step at which it should."""
        if self.share is None or step == self.first:
            return True
        elapsed = self.elapsed
        wait = (self.spent + self._last) / self.share - self._last - elapsed
        if wait <= 0:
            return True
        pace = max(elapsed - self.spent, 1e-9) / (step - self.first)
        self.next_look = step + max(1, math.ceil(wait / pace))
        return False

    def looked(self, step: int, seconds: float) -> None:
        """A look has taken so long."""
        self.spent += seconds
        self._last, self.next_look = seconds, step + 1

    def stored(self) -> int | str | list[int]:
        """As it stands in a run's settings."""
        if self._listed is not None:
            return sorted(self._listed)
        return str(self.every) if self._apart is None else self._apart
