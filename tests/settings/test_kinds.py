"""Every field of every settings type holds what it is annotated with, whatever of it Python lets one write."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.gate.settings import GateSettings
from rotoscope.experiments.lengths.settings import LengthsSettings
from rotoscope.experiments.plan.settings import CacheSettings, RotationSettings
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.toy import ToySettings
from rotoscope.settings import Settings, each, held
from tests.settings.test_bounds import KINDS

FIELDS = [(kind, name) for kind in KINDS for name in kind.names()]
OTHERS = {"at": "0", "nope": 0, "sources": "repeats", "measures": "rotoscope.measures.built_in:exclusion"}
"""A value that goes with the defaults of all other fields, where that is not any."""


def parts(kind: type[Settings], name: str) -> list[Any]:
    """What a field can hold besides nothing."""
    hint = kind.kinds()[name]
    whole = (hint,) if get_origin(hint) in (tuple, Literal) else get_args(hint) or (hint,)
    return [part for part in whole if part is not NoneType]


def one_of(kind: type[Settings], name: str) -> Any:
    """A single value for a field that has several."""
    default = next(field.default for field in dataclasses.fields(kind) if field.name == name)
    if name in OTHERS:
        return OTHERS[name]
    if default:
        return default[0]  # type: ignore[index]
    [inner, *_] = get_args(parts(kind, name)[0])
    if get_origin(inner) is Literal:
        return get_args(inner)[0]
    return {int: 4096, float: 0.5, str: "word"}[inner]


SEVERAL = [
    (kind, name)
    for kind, name in FIELDS
    if get_origin(parts(kind, name)[0]) is tuple and get_args(parts(kind, name)[0])[-1] is Ellipsis
]
NAMED = [
    (kind, name, options)
    for kind, name in FIELDS
    for part in [*parts(kind, name), *get_args(parts(kind, name)[0])]
    if get_origin(part) is Literal
    for options in [get_args(part)]
]
label = lambda part: getattr(part, "__name__", part if isinstance(part, str) else "")  # noqa: E731


def test_there_are_such_fields() -> None:
    assert len(SEVERAL) > 15
    assert len(NAMED) > 15


@pytest.mark.parametrize(("kind", "name"), SEVERAL, ids=label)
def test_a_single_value_or_a_list_will_do(kind: type[Settings], name: str) -> None:
    value = one_of(kind, name)
    for given in (value, [value], (value,), np.array([value])):
        made = kind.make(**{name: given})
        assert getattr(made, name) == (value,)
        assert type(getattr(made, name)[0]) is type(value)
        assert kind.read(made.stored()) == made


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=label)
def test_what_is_of_another_kind_is_refused_in_a_sentence(kind: type[Settings], name: str) -> None:
    for wrong in (object(), [object()], {"a": 1}, 1j):
        with pytest.raises(RotoscopeError) as refusal:
            kind.make(**{name: wrong})
        assert "\n" not in str(refusal.value)
    if NoneType not in get_args(kind.kinds()[name]):
        with pytest.raises(RotoscopeError, match="None"):
            kind.make(**{name: None})


@pytest.mark.parametrize(("kind", "name", "options"), NAMED, ids=label)
def test_a_misspelt_name_is_refused_with_the_nearest(
    kind: type[Settings], name: str, options: tuple[str, ...]
) -> None:
    right = max(options, key=len)
    with pytest.raises(RotoscopeError, match=f"^unknown {name} '{right}x'; did you mean '{right}'. choose "):
        kind.make(**{name: f"{right}x"})


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, name in FIELDS if Path in parts(kind, name)], ids=label
)
def test_a_path_can_be_a_name(kind: type[Settings], name: str) -> None:
    assert getattr(kind.make(**{name: "some/file"}), name) == Path("some/file")


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (CacheSettings, {"rankings": ("nosuch",)}, "unknown rankings 'nosuch'; choose far_task, gradient, gradient_rounds or random"),
        (CacheSettings, {"keep": None}, "keep must be a number, found None"),
        (CacheSettings, {"keep": 25}, "keep must be at most 1, found 25: did you mean 25%? this is the share"),
        (CacheSettings, {"frontier": (0.1, 10)}, "frontier must be at most 1, found 10: did you mean 10%?"),
        (CacheSettings, {"frontier": "a tenth"}, "'a tenth' is no share: write 0.25 or 25%"),
        (RotationSettings, {"rankings": "norms"}, "unknown rankings 'norms'; did you mean 'norm'? choose"),
        (CacheSettings, {"sources": ("nosuch",)}, "unknown sources 'nosuch'; choose repeats, lookup or text"),
        (TrainSettings, {"betas": 0.9}, "betas must be 2 values, found (0.9,)"),
        (GateSettings, {"silence": "yes"}, "silence must be True or False, found 'yes'"),
        (GateSettings, {"heads": 5}, "'5': heads are written layer:head, as in 18:6,20:4"),
        (ToySettings, {"task": "index", "angles": "fast"}, "angles must be a number, found 'fast'"),
    ],
)  # fmt: skip
def test_what_is_said(kind: type[Settings], given: dict[str, Any], words: str) -> None:
    with pytest.raises(RotoscopeError) as refusal:
        kind.make(**given)
    assert str(refusal.value).startswith(words)


def test_shares_are_percentages_where_they_may_be() -> None:
    assert CacheSettings.make(keep="50 %", frontier=["10%", 0.2, "0.3"]).frontier == (0.1, 0.2, 0.3)
    assert CacheSettings.make(keep="50 %").keep == 0.5
    with pytest.raises(RotoscopeError, match="least_mass must be a number, found '5%'"):
        ProfileSettings.make(least_mass="5%")


def test_other_ways_to_say_it() -> None:
    assert GateSettings.make(keep=3).keep == "3"
    assert GateSettings.make(remove=np.arange(1, 4)).remove == "1,2,3"
    assert ProfileSettings.make(queries=5).queries == "5"
    assert LengthsSettings.make(lengths=20).lengths == (20,)
    assert TrainSettings.make(favour="symbolic", favour_layers=2).favoured == (2,)
    assert ToySettings.make(task="index", angles=[[0.1], 0.2]).angles == ((0.1,), (0.2,))


def test_one_value_or_several() -> None:
    assert each("word") == ("word",)
    assert each(Path("a")) == (Path("a"),)
    assert each(range(2)) == (0, 1)
    assert each(np.array([1.5])) == (1.5,)
    assert held("name", str, Path("a/b")) == "a/b"
