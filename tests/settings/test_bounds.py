"""Every number that can be set has bounds, and what lies outside is refused in one sentence with a reason."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import get_args, get_type_hints

import pytest

from rotoscope.errors import RotoscopeError
from rotoscope.settings import Settings
from tests.settings_kinds import settings_kinds

KINDS = settings_kinds()


def numeric(kind: type[Settings]) -> list[str]:
    """The fields that hold numbers, one or several."""
    hints = get_type_hints(kind)
    parts = {name: {hint, *get_args(hint)} for name, hint in hints.items()}
    parts = {name: found | {p for part in found for p in get_args(part)} for name, found in parts.items()}
    return [name for name in kind.names() if parts[name] & {int, float}]


FIELDS = [(kind, name) for kind in KINDS for name in numeric(kind)]


def several(kind: type[Settings], name: str, value: object) -> object:
    """The value as the field holds it: betas are two, lengths and angles any number of them."""
    if "tuple" not in str(get_type_hints(kind)[name]):
        return value
    default = next(field.default for field in dataclasses.fields(kind) if field.name == name)
    return (value,) * max(len(default or ()), 1)  # type: ignore[arg-type]


def test_every_number_has_bounds() -> None:
    assert len(FIELDS) > 60
    assert {(kind, name) for kind in KINDS for name in kind.bounds} == set(FIELDS)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_what_is_no_number_or_out_of_bounds_is_refused(kind: type[Settings], name: str) -> None:
    for value in (math.nan, math.inf, -math.inf, -(10**30), 10**40, True):
        with pytest.raises(RotoscopeError, match=rf"^{name} must be .*found") as refusal:
            kind.make(**{name: several(kind, name, value)})
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_bounds_are_where_they_say(kind: type[Settings], name: str) -> None:
    allowed = kind.bounds[name]
    step = 1 if allowed.whole else max(abs(allowed.least), abs(allowed.most)) * 1e-9
    inside = (allowed.least if allowed.least_itself else allowed.least + step, allowed.most - step)
    for value in (*inside, *([allowed.most] if allowed.most_itself else [])):
        allowed.check(name, value)
    for value in (allowed.least - step, allowed.most + step):
        with pytest.raises(RotoscopeError, match=re.escape(allowed.why)):
            allowed.check(name, value)
    if allowed.whole:
        with pytest.raises(RotoscopeError, match=f"{name} must be a whole number, found 1.5"):
            kind.make(**{name: several(kind, name, 1.5)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_defaults_and_presets_lie_within(kind: type[Settings]) -> None:
    kind.make()
    for name in kind.presets:
        kind.preset(name)
