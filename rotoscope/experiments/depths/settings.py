"""Where swaps are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.settings import Settings, check_tau, count, each, each_tau

OWN, ALL, CARRY = "own", "all", "carry"
ASKED = ("readers", "writer_swaps", "controls")
"""Settings of who is asked, and how."""


@dataclass(frozen=True, kw_only=True)
class DepthsSettings(Settings):
    """At which layers' inputs blocks change places, and how many swaps are run."""

    title: ClassVar = "What is swapped, and where"
    without_effect: ClassVar = ("batch_tokens",)
    python_only: ClassVar = ("batch_tokens", "controls", "readers")
    bounds: ClassVar = {
        **{name: ProfileSettings.bounds[name] for name in ("tau", "gamma", "null_draws", "batch_tokens")},
        "swaps": count(10_000_000, "every one is a run of the model, for every depth"),
        "readers": count(10_000, "no model has more heads worth asking"),
        "writer_swaps": count(10_000_000, "every one is a run of the model, under every gate"),
        "controls": count(1_000, "every one costs as much as the gate itself", least=0),
    }

    at: tuple[str, ...] = ("0", OWN)
    """Depths: numbers of layers whose input is exchanged (0: the prompt itself), own (each head's own layer, always there), all,
    or carry (with 0: the depths that locate where carried heads turn, by bisection)."""
    swaps: int = 160
    """How many swaps of a prompt are run: those that bring most heads to half of their weight, then the heaviest."""
    tau: tuple[float, ...] = (1e-4,)
    """Temperature of the swap weights; several are possible."""
    gamma: float = 0.1
    """Tolerance of the purity classes."""
    null: Literal["none", "random"] = "none"
    """What stands beside the figures: a randomly initialised model, or nothing. A draw takes up to as long as the model itself."""
    null_draws: int | None = None
    """How often the null is drawn; to say that a figure is beyond the null takes 19. By default 39 where a draw takes up to about
    a second, otherwise 19."""
    null_heads: Literal["symbolic", "all"] = "symbolic"
    """Whose swaps the null runs: those of its heads that are pure symbolic at their layer (others cannot be carried), or of all
    heads, which takes as long as the subject each time."""
    batch_tokens: int | None = None
    """Most tokens that run through the model together. By default 1,024 on a CPU."""
    writers: bool = False
    """Also ask who writes the place that carried heads read: silence positional heads below them, and random ones beside."""
    readers: int = 8
    """How many carried heads are asked, those with most attention on the blocks first."""
    writer_swaps: int = 16
    """How many swaps of a prompt are run under every gate: the heaviest of the heads that are asked."""
    controls: int = 20
    """Different random sets of as many heads of the same layers, beside every set of positional heads that is silenced. An edge
    takes 19, so a single head is only ever shown to be a writer in a layer of 20 heads or more."""

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """Depths as numbers, or a single one, will do in Python."""
        values = dict(changes)
        if "at" in values:
            values["at"] = tuple(dict.fromkeys(str(depth) for depth in each(values["at"])))
        if "tau" in values:
            values["tau"] = each_tau(values["tau"])
        if "null" not in values and (values.get("null_draws") is not None or "null_heads" in values):
            values["null"] = "random"
        return values

    def __post_init__(self) -> None:
        check_tau(self.tau)
        super().__post_init__()
        for depth in self.at:
            if depth not in (OWN, ALL, CARRY) and not depth.isdecimal():
                raise RotoscopeError(
                    f"'{depth}' is no depth: give numbers of layers, from 0 on, own, all or carry"
                )
        if CARRY in self.at and not {"0", ALL} & set(self.at):
            raise RotoscopeError(
                "carried heads are known where the prompt itself is permuted: add depth 0 (--at 0 carry)"
            )
        usual = (None, 5)  # now, and in runs of earlier versions
        if self.null == "none" and (self.null_draws not in usual or self.null_heads != type(self).null_heads):
            raise RotoscopeError("--null-draws and --null-heads mean nothing without a null")
        asks = any(getattr(self, name) != getattr(type(self), name) for name in ASKED)
        if asks and not self.writers:
            raise RotoscopeError("readers, controls and --writer-swaps mean nothing without --writers")
        if self.writers and not {"0", ALL} & set(self.at):
            raise RotoscopeError(
                "--writers asks carried heads, which are known where the prompt itself is permuted: add depth 0 (--at 0)"
            )

    def depths(self, layers: int) -> tuple[int, ...]:
        """The depths below a head's own layer, in order; one that is beyond the model is refused."""
        if ALL in self.at:
            return tuple(range(layers))
        values = sorted(int(depth) for depth in self.at if depth not in (OWN, CARRY))
        if values and values[-1] >= layers:
            raise RotoscopeError(
                f"depth {values[-1]} is beyond the model: its layers go from 0 to {layers - 1}"
            )
        return tuple(values)
