"""The numbers that a setting can have, and why no others."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin, get_type_hints

from rotoscope.errors import RotoscopeError


@dataclass(frozen=True)
class Bounds:
    """From the least to the most, both included unless said otherwise."""

    least: float
    most: float
    why: str
    """What is wrong with a number outside; it stands at the end of the sentence."""
    whole: bool = True
    least_itself: bool = True
    most_itself: bool = True
    percent: bool = False
    """Whether it may be written as a percentage."""

    def read(self, given: Any) -> Any:
        """0.25 from "25 %", "25%" or "0.25", where percentages may be written; what is no text is left as it is."""
        if isinstance(given, tuple | list):
            return tuple(self.read(one) for one in given)
        if not self.percent or not isinstance(given, str):
            return given
        number, per_cent = given.strip().removesuffix("%"), given.strip().endswith("%")
        try:
            return float(number) / (100 if per_cent else 1)
        except ValueError as problem:
            raise RotoscopeError(f"'{given}' is no share: write 0.25 or 25%") from problem

    def check(self, name: str, value: Any) -> None:
        """Refuse a value, or one of several, that lies outside."""
        for part in _each(value):
            kind: Any = numbers.Integral if self.whole else numbers.Real
            if not isinstance(part, kind) or isinstance(part, bool) or math.isnan(part):
                raise RotoscopeError(f"{name} must be a {'whole ' * self.whole}number, found {part}")
            if part < self.least or (part == self.least and not self.least_itself):
                self._refuse(name, "at least" if self.least_itself else "more than", self.least, part)
            if part > self.most or (part == self.most and not self.most_itself):
                self._refuse(name, "at most" if self.most_itself else "less than", self.most, part)

    def _refuse(self, name: str, words: str, bound: float, value: float) -> None:
        shown = f"{bound:,}" if self.whole else f"{bound:g}"
        meant = f"did you mean {value:g}%? " if self.percent and 2 <= value <= 100 else ""
        raise RotoscopeError(f"{name} must be {words} {shown}, found {value}: {meant}{self.why}")


def _each(value: Any) -> Iterator[Any]:
    """The numbers in a value; nothing is none."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from _each(part)
    elif value is not None:
        yield value


SEED = Bounds(0, 2**32 - 1, "a seed has 32 bits, so that what is added to it still fits a generator")


def count(most: int, why: str, *, least: int = 1) -> Bounds:
    """So many of something."""
    return Bounds(least, most, why)


def share(why: str, *, one: bool = True, percent: bool = False) -> Bounds:
    """From nothing to all of something."""
    return Bounds(0, 1, why, whole=False, most_itself=one, percent=percent)


def amount(least: float, most: float, why: str, *, least_itself: bool = True) -> Bounds:
    """A number with a fraction."""
    return Bounds(least, most, why, whole=False, least_itself=least_itself)


BASE = 10_000.0
"""Of RoPE's angles g_k = base^(-2(k-1)/d), unless another is chosen."""
ROTARY_BASE = amount(
    1, 1e12, "planes would all turn alike, or too slowly to tell from none", least_itself=False
)
"""The bases that a model can be trained with."""


# Values as settings hold them: what Python lets one write beside it is understood, anything else is refused in a sentence.


WORDS: dict[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path",
}  # fmt: skip
"""What a field of each kind holds."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like a wrong one; empty where none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{close[0]}'? " if close else ""


def either(names: Iterable[str]) -> str:
    """What there is to choose from, in words."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def each(value: Any) -> tuple[Any, ...]:
    """One value or several, as several."""
    value = _unwrapped(value)
    single = isinstance(value, str | bytes | os.PathLike | Mapping) or not isinstance(value, Iterable)
    return (value,) if single else tuple(_unwrapped(part) for part in value)


def listed(name: str, values: Any) -> str:
    """One whole number or several as they are written on a command line: 20,31."""
    return ",".join(str(held(name, int, value)) for value in each(values))


def held(name: str, kind: Any, value: Any) -> Any:
    """A value as a field annotated like this holds it: several where one was given, a path for its name, a plain number.

    What is of another kind is refused; whether a number is whole, and within its bounds, is asked of those.
    """
    value = _unwrapped(value)
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        [kind] = [alternative for alternative in get_args(kind) if alternative is not NoneType]
    if get_origin(kind) is tuple:
        return _several(name, get_args(kind), each(value))
    if get_origin(kind) is Literal:
        return _named(name, get_args(kind), value)
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    expected: Any = numbers.Real if kind in (int, float) else kind
    if kind in WORDS and not isinstance(value, expected):
        _refuse(name, WORDS[kind], value)
    return value


def _several(name: str, kinds: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """One kind for however many values there are, or a kind for each."""
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(values)
    if len(kinds) != len(values):
        _refuse(name, f"{len(kinds)} values", values)
    return tuple(held(name, kind, value) for kind, value in zip(kinds, values, strict=True))


def _named(name: str, known: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str):
        _refuse(name, either(known), value)
    if value not in known:
        raise RotoscopeError(f"unknown {name} '{value}'; {nearest(value, known)}choose {either(known)}")
    return value


def _unwrapped(value: Any) -> Any:
    """The number that an array or a tensor without axes holds."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _refuse(name: str, words: str, value: Any) -> NoReturn:
    raise RotoscopeError(f"{name} must be {words}, found {value!r}")


# What all settings can do: be made from names and values, be stored, be read back.


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A frozen dataclass with a sentence under every field. What a field can hold is said by its annotation.

    In Python a list or a single value will do where a field has several, and a name for a path.
    """

    title: ClassVar[str] = "Settings"
    """What the fields are about, over their flags."""
    meant_for: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that mean something in some cases only (of tasks, of subjects): which."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values that go together, by name; what a preset does not say is the default."""
    bounds: ClassVar[Mapping[str, Bounds]] = {}
    """What the numbers can be; every field with a number has an entry."""

    python_only: ClassVar[tuple[str, ...]] = ()
    """Fields that are set in Python, and have no flag."""
    without_effect: ClassVar[tuple[str, ...]] = ()
    """Fields that change no number: a run goes on with other values of them."""

    def __post_init__(self) -> None:
        for name, kind in self.kinds().items():
            allowed, given = self.bounds.get(name), getattr(self, name)
            given = allowed.read(given) if allowed is not None else given
            object.__setattr__(self, name, held(name, kind, given))
        for field in dataclasses.fields(self):
            if getattr(self, field.name) == () != field.default:
                raise RotoscopeError(f"the list of {field.name} is empty; give at least one, or leave it out")
        for name, allowed in self.bounds.items():
            allowed.check(name, getattr(self, name))

    @property
    def case(self) -> str | None:
        """Which of the cases of `meant_for` these settings are; None where that depends on something else."""
        return None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The settings of a preset, with changes."""
        if name not in cls.presets:
            raise RotoscopeError(f"unknown preset '{name}'; choose {' or '.join(cls.presets)}")
        return cls.make(**{**cls.presets[name], **changes})

    @classmethod
    def names(cls) -> list[str]:
        """The fields, in order."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    @cache
    def kinds(cls) -> dict[str, Any]:
        """What each field holds, as it is annotated."""
        hints = get_type_hints(cls)
        return {name: hints[name] for name in cls.names()}

    @classmethod
    def make(cls, given: Self | None = None, /, **changes: Any) -> Self:
        """The given settings, or the defaults, with changes; an unknown name is refused with the nearest known one."""
        for name in changes:
            if name not in cls.names():
                hint = nearest(name, cls.names())
                raise RotoscopeError(f"unknown setting '{name}': {hint}there are {', '.join(cls.names())}")
        plain = cls.plain(changes)
        return cls(**plain) if given is None else dataclasses.replace(given, **plain)

    @classmethod
    def check_line(cls, own: Mapping[str, Any], line: Mapping[str, Any], preset: str | None) -> None:
        """Refuse what a command line says of these settings, where it is out of bounds; `line` is all that it says."""
        if preset is not None and preset in cls.presets:
            cls.preset(preset, **own)
        else:
            cls.make(**own)

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """Values as the fields can hold them, from other ways to say the same in Python."""
        return dict(changes)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from a run's record; what this version does not know is left out."""
        known = {key: value for key, value in stored.items() if key in cls.names()}
        return cls(**cls.plain(known))

    def stored(self) -> dict[str, Any]:
        """As they stand in `run.json`, where two that are equal are one run."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if name not in self.without_effect
        }

    @classmethod
    def check_meant(cls, given: Iterable[str], *cases: str) -> None:
        """Refuse, in the flag's own spelling, what means nothing in any of these cases."""
        for name in given:
            meant = cls.meant_for.get(name, cases)
            if not set(cases) & set(meant):
                flag = name if name in cls.python_only else f"--{name.replace('_', '-')}"
                raise RotoscopeError(
                    f"{flag} means something for {' and '.join(meant)} only, not for {' and '.join(cases)}"
                )


# Temperatures of the swap weights.


SMALLEST_TAU, LARGEST_TAU = 1e-30, 1e30
"""Far from any difference of two attention weights in float32, and well within what float32 can hold (1e-38 to 1e38)."""
TAU = amount(
    SMALLEST_TAU, LARGEST_TAU, "swap weights are computed in float32, where it would be zero or infinite"
)


def check_tau(tau: Any) -> tuple[float, ...]:
    """One or several temperatures of the swap weights, each positive."""
    taus = (_number(tau),) if one_tau(tau) else tuple(_number(t) for t in tau)
    if not taus or not all(0 < t < float("inf") for t in taus):
        raise RotoscopeError(
            f"tau must be positive and finite, found {tau}: it divides |D_a - D_b| in the swap weights"
        )
    if min(taus) < SMALLEST_TAU:
        raise RotoscopeError(
            f"tau must be at least {SMALLEST_TAU:g}, found {min(taus):g}: in float32 it would be zero, and no swap would "
            "have a weight"
        )
    TAU.check("tau", taus)
    return taus


def each_tau(tau: Any) -> tuple[float, ...]:
    """The temperatures to score heads at, each once, in the order given."""
    return tuple(dict.fromkeys(check_tau(tau)))


def _number(tau: object) -> float:
    """A temperature as a number, from whatever holds one."""
    try:
        if not isinstance(tau, bool):
            return float(tau)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise RotoscopeError(f"tau must be a number, found {tau}")


def one_tau(tau: object) -> bool:
    """One temperature rather than a list, tuple, array or tensor of them."""
    return not hasattr(tau, "__len__") or getattr(tau, "ndim", 1) == 0


# Where a command computes and what it writes.


@dataclass(frozen=True, kw_only=True)
class Output(Settings):
    """What every command that makes a run takes."""

    title: ClassVar = "Run"

    out: Path | None = None
    """Run folder; by default one under runs/, named after what is run. A killed run goes on where it was."""
    overwrite: bool = False
    """Replace a run made with other settings."""
    figures: bool = False
    """Also draw the figures, as PDF, SVG and PNG files."""
    page: bool = True
    """Write the run's page, report.html in its folder."""
    verbose: bool = False
    """Show every table and every caveat."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; by default a GPU where there is one."""

    def folder(self, *name: str) -> Path:
        """The run folder: the one asked for, or one named after what is run."""
        return self.out or Path("runs") / "-".join(part for part in name if part)


# How a model is loaded.


MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways to spread a model over devices that accelerate knows by name."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """What is asked of a model before it is measured."""

    title: ClassVar = "Model"

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the weights: as they are stored (auto; number and letter: float32), or another."""
    device_map: str | None = None
    """Spread the model over devices: auto, balanced, balanced_low_0 or sequential (what fits no GPU goes to the CPU, then to
    disk), or a JSON file with a dictionary from modules to devices, cpu and disk. It is read where the weights are."""
    rope: str | None = None
    """Read the model with other rotary settings, as JSON or as key=value: rope_type=yarn,factor=4.0."""
