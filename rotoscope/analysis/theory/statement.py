"""A statement of a paper, and the evidence for or against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Evidence:
    """What came out of a check."""

    printed: bool
    """Whether the statement as printed survived."""
    checked: str
    """What was checked: inputs, lengths, angles."""
    figure: str
    """The number that decides."""
    corrected: bool | None = None
    """Whether the corrected statement survived, where there is one."""
    counterexample: str | None = None
    """The input on which the printed statement fails."""


@dataclass(frozen=True)
class Statement:
    """A claim, in our own words, with the function that puts it to the test."""

    name: str
    source: str
    """Paper and place."""
    claim: str
    check: Callable[[], Evidence]
    correction: str | None = None
    """What should stand there instead."""
    mended: bool = False
    """Whether the correction only adds a condition to the claim, rather than replacing it."""

    @property
    def says(self) -> Literal["printed", "summary", "ours"]:
        """Who says it: P2 in print, P1 as a summary has it (its full text was not available), or we, after a paper."""
        front = self.source.split()[0]
        return "ours" if front == "ours," else "summary" if front.startswith("P1") else "printed"

    def verdict(self, evidence: Evidence) -> str:
        """From the evidence alone: a mended claim that survives "holds as corrected", a replaced one is false."""
        if evidence.printed:
            return "holds"
        return "holds as corrected" if self.mended and evidence.corrected else "false as printed"
