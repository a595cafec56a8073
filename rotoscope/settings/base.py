"""What all settings can do: be made from names and values, be stored, be read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, get_type_hints

from rotoscope.errors import RotoscopeError
from rotoscope.settings.bounds import Bounds
from rotoscope.settings.kinds import held
from rotoscope.settings.kinds import nearest as nearest


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
