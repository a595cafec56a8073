"""What all settings can do: be made from names and values, be stored, be read back."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from rotoscope.errors import RotoscopeError
from rotoscope.settings.bounds import Bounds


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like a wrong one; empty where none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{close[0]}'? " if close else ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A frozen dataclass with a sentence under every field."""

    title: ClassVar[str] = "Settings"
    """What the fields are about, over their flags."""
    meant_for: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that mean something in some cases only (of tasks, of subjects): which."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values that go together, by name; what a preset does not say is the default."""
    bounds: ClassVar[Mapping[str, Bounds]] = {}
    """What the numbers can be; every field with a number has an entry."""

    def __post_init__(self) -> None:
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
    def make(cls, given: Self | None = None, /, **changes: Any) -> Self:
        """The given settings, or the defaults, with changes; an unknown name is refused with the nearest known one."""
        for name in changes:
            if name not in cls.names():
                hint = nearest(name, cls.names())
                raise RotoscopeError(f"unknown setting '{name}': {hint}there are {', '.join(cls.names())}")
        plain = cls.plain(changes)
        return cls(**plain) if given is None else dataclasses.replace(given, **plain)

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """Values as the fields hold them: where a field has several values, a list or a single one will do in Python."""
        return {key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from a run's record; what this version does not know is left out."""
        known = {key: value for key, value in stored.items() if key in cls.names()}
        return cls(**cls.plain(known))

    def stored(self) -> dict[str, Any]:
        """As they stand in `run.json`."""
        return dataclasses.asdict(self)

    @classmethod
    def check_meant(cls, given: Iterable[str], *cases: str) -> None:
        """Refuse, in the flag's own spelling, what means nothing in any of these cases."""
        for name in given:
            meant = cls.meant_for.get(name, cases)
            if not set(cases) & set(meant):
                flag = name.replace("_", "-")
                raise RotoscopeError(
                    f"--{flag} means something for {' and '.join(meant)} only, not for {' and '.join(cases)}"
                )
