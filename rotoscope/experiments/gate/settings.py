"""What is gated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.selection import head_pairs
from rotoscope.settings import Settings, count, listed

HeadClass = Literal["positional", "symbolic", "carried", "uniform", "mixed"]
Group = Literal["all", "positional", "symbolic", "carried", "uniform", "mixed"]


@dataclass(frozen=True, kw_only=True)
class GateSettings(Settings):
    """Which frequencies or heads are taken away; without keep, remove or silence every band in turn (a sweep)."""

    title: ClassVar = "What is gated"
    python_only: ClassVar = ("groups",)
    without_effect: ClassVar = ("classes",)  # the heads chosen by it stand in the run's settings
    meant_for: ClassVar = {
        "bands": ("a sweep",),
        "groups": ("a sweep",),
        "heads": ("one gate",),
        "scores": ("one gate",),
    }
    bounds: ClassVar = {
        "bands": count(10_000, "a band holds at least one frequency, and no head has more"),
        "controls": count(1_000, "every one costs as much as the gate itself", least=0),
    }

    keep: str | None = None
    """Keep only these frequencies in the chosen heads: 1-8,12 or "angle 0.01-0.5" or none."""
    remove: str | None = None
    """Remove these frequencies from the chosen heads: 1-8,12 or "angle 0.01-0.5" or all."""
    silence: bool = False
    """Silence the chosen heads whole."""
    heads: str = "all"
    """all, a class (positional, symbolic, uniform, mixed), or layer:head as in 18:6,20:4."""
    heads_of_class: HeadClass | None = None
    """Silence all heads of this class, and judge what is lost beside random heads of the same layers."""
    bands: int = 8
    """Sweep: how many bands the frequencies are cut into."""
    groups: tuple[Group, ...] = ("all", "positional", "symbolic")
    """Sweep: whose heads are gated, all or those of a class; a class without heads is left out."""
    controls: int = 20
    """Random groups of as many heads from the same layers, beside every group but all; in a sweep each on a quarter of the
    prompts, at least two."""
    scores: bool = True
    """One gate: also score every head under it."""
    classes: Path | None = None
    """A profile run of the same model to take the classes from. By default the task's own prompts are profiled."""

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """Frequency ids and heads as lists will do in Python."""
        fields = super().plain(changes)
        for name in ("keep", "remove"):
            if not isinstance(fields.get(name, ""), str | None):
                fields[name] = listed(name, fields[name]) or "none"
        if not isinstance(fields.get("heads", ""), str):
            fields["heads"] = ",".join(f"{layer}:{head}" for layer, head in head_pairs(fields["heads"]))
        return fields

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.keep is not None) + (self.remove is not None) + self.silence > 1:
            raise RotoscopeError("say one of: keep (--keep), remove (--remove), silence (--silence)")
        by_heads = self.keep is not None or self.remove is not None or self.silence or self.heads != "all"
        if self.heads_of_class is not None and by_heads:
            raise RotoscopeError(
                "--heads-of-class silences whole heads: give it without keep, remove, silence and heads"
            )

    @property
    def action(self) -> str | None:
        """What one gate does: keep, remove or silence; None in a sweep."""
        if self.silence or self.heads_of_class is not None:
            return "silence"
        if self.keep is not None:
            return "keep"
        return None if self.remove is None else "remove"

    @property
    def case(self) -> str:
        """Whether one gate is closed or every band in turn."""
        return "a sweep" if self.action is None else "one gate"
