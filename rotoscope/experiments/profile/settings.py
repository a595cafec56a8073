"""How heads are scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.selection import head_pairs
from rotoscope.measures.measure import Measure, find_measure, measure_path
from rotoscope.settings import TAU, Bounds, Settings, check_tau, count, each, each_tau, listed, share

NULLS = {"none": (), "random": ("random",), "gaussian": ("gaussian",), "both": ("random", "gaussian")}


@dataclass(frozen=True, kw_only=True)
class ProfileSettings(Settings):
    """What a profile measures; everything that decides its numbers, prompts and model aside."""

    title: ClassVar = "What is measured"
    without_effect: ClassVar = ("batch_tokens",)
    python_only: ClassVar = ("least_mass", "prove")
    bounds: ClassVar = {
        "tau": TAU,
        "gamma": Bounds(
            0,
            0.5,
            "from there on a head could be positional and symbolic at once",
            whole=False,
            most_itself=False,
        ),
        "least_mass": share("it is a share of attention, from 0 to 1"),
        "null_draws": count(1_000, "a null needs at least one draw, and each costs a whole profile"),
        "input_swaps": count(10_000_000, "every one is a run of the model", least=0),
        "batch_tokens": count(2**31, "at least one token must fit a batch, and no device holds more"),
    }

    tau: tuple[float, ...] = (1e-4,)
    """Temperature of the swap weights; several are possible. 1e-4 is that of the papers' code."""
    gamma: float = 0.1
    """Tolerance of the purity classes."""
    least_mass: float = 0.05
    """Heads with less of their attention on what is swapped are marked: little at stake."""
    queries: str = "last"
    """Positions that are scored: last, all, task (where the task asks), or positions such as 20,31."""
    frequencies: bool = False
    """Score every rotation plane of every head by itself, too, at the last query."""
    heads: str | None = None
    """With frequencies: only of these heads, written layer:head as in 18:6,20:4."""
    null: Literal["none", "random", "gaussian", "both"] = "none"
    """What stands beside every figure: a randomly initialised model, Gaussian keys, both, or nothing."""
    null_draws: int | None = None
    """How often each null is drawn; to say that a figure is beyond the null takes 19. By default 39 where a draw takes up to
    about a second, otherwise 19."""
    examples: bool = True
    """Keep the first prompt and every head's attention on it, before and after swaps, with vectors in its dominant plane."""
    input_swaps: int = 0
    """Also swap blocks of the prompt itself, so many of the heaviest swaps of a prompt, and run the model again: tells symbolic
    heads that follow the symbol from carried ones. 64 are enough for most."""
    measures: tuple[str, ...] = ()
    """Measures of your own beside the built-in ones, written module:function or file.py:function."""
    known: bool = False
    """Also score every head as what people know (previous-token, induction, copying, ... heads), and count kinds by class."""
    batch_tokens: int | None = None
    """Most tokens that run through the model together; what a killed run has to do again. By default 1,024 on a CPU."""
    prove: bool | None = None
    """Check that the model's own attention is rebuilt. By default a model that was proven before is not proven again; true proves
    it, false never does."""

    @classmethod
    def make(cls, given: Self | None = None, /, **changes: Any) -> Self:
        """As for all settings; draws without the name of a null, where there would be none, are of random models."""
        usual = cls.null if given is None else given.null
        if changes.get("null_draws") is not None and usual == "none":
            changes.setdefault("null", "random")
        return super().make(given, **changes)

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """A single tau, positions as a list, and the heads in place of `frequencies=True` will do in Python."""
        plain = dict(changes)
        if isinstance(plain.get("tau"), str):
            raise RotoscopeError(
                f"tau must be a number, found the text '{plain['tau']}': write tau=1e-4 without quotes"
            )
        if "tau" in plain:
            plain["tau"] = each_tau(plain["tau"])
        if "measures" in plain:
            plain["measures"] = tuple(measure_path(measure) for measure in each(plain["measures"]))
        if not isinstance(plain.get("queries", ""), str):
            plain["queries"] = listed("queries", plain["queries"])
        if not isinstance(plain.get("frequencies", True), bool | None):
            plain |= {"frequencies": True, "heads": plain["frequencies"]}
        if plain.get("heads") is not None:
            plain["heads"] = ",".join(f"{layer}:{head}" for layer, head in sorted(head_pairs(plain["heads"])))
        return plain

    def __post_init__(self) -> None:
        check_tau(self.tau)
        super().__post_init__()
        if self.heads is not None and not self.frequencies:
            raise RotoscopeError("heads are named for single frequencies: give --frequencies too")
        usual = (None, 1, 5, 19)  # now, and in runs of earlier versions
        if self.null == "none" and self.null_draws not in usual:
            raise RotoscopeError("--null-draws means nothing without a null")

    def stored(self) -> dict[str, Any]:
        """As in `run.json`; measures are named, with what they do, where there are any, so that older runs stay the same."""
        stored = super().stored()
        return {name: stored[name] for name in stored if name != "measures"} | self.stored_measures()

    def stored_measures(self) -> dict[str, Any]:
        """The user's own measures by name, and checksums of their code; empty where there are none."""
        if not self.measures:
            return {}
        code = [measured.code for measured in self.own_measures]
        return {"measures": list(self.measures), "measures_hash": code}

    @property
    def positions(self) -> Literal["last", "all", "task"] | list[int]:
        """The queries as `last`, `all`, `task` or a list of positions."""
        if self.queries in ("last", "all", "task"):
            return self.queries  # type: ignore[return-value]
        try:
            return [int(position) for position in self.queries.split(",")]
        except ValueError as problem:
            raise RotoscopeError(
                f"--queries {self.queries}: choose last, all, task or positions such as 20,31"
            ) from problem

    @property
    def nulls(self) -> tuple[str, ...]:
        """The nulls by their names, the random one first."""
        return NULLS[self.null]

    @property
    def own_measures(self) -> tuple[Measure, ...]:
        """The measures beside the built-in ones."""
        return tuple(map(find_measure, self.measures))

    @property
    def single_heads(self) -> list[tuple[int, int]] | None:
        """The heads whose frequencies are scored; None for all of them."""
        return None if self.heads is None else head_pairs(self.heads)


@dataclass(frozen=True, kw_only=True)
class CommandSettings(ProfileSettings):
    """The same on a command line, where a null is drawn unless another is named."""

    null: Literal["none", "random", "gaussian", "both"] = "both"
    """What stands beside every figure: a randomly initialised model, Gaussian keys, both, or nothing."""
