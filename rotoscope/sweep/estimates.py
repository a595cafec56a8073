"""What an item is expected to take, before anything starts: time, memory and disk, from the estimates of its command.

They are as rough as those are. A command that has none is not estimated, and nothing is refused for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from rotoscope.errors import RotoscopeError
from rotoscope.settings import (
    CacheSettings,
    DepthsSettings,
    GateSettings,
    LengthsSettings,
    ProfileSettings,
    PromptSettings,
    RotationSettings,
    Settings,
    TrainSettings,
    WatchSettings,
)
from rotoscope.settings.prompts import DRAWN
from rotoscope.sweep.items import Item

if TYPE_CHECKING:
    from rotoscope.reading.cost import Cost
    from rotoscope.reading.outline import Outline

STARTING_S, DRAWING_S = 3.0, 5.0
"""Reading a small model, and drawing the figures, on two CPU cores."""
READ_S = 1.0
"""A gigabyte of weights, from a disk."""
PLAN_TABLES = 0.3e6
"""Bytes of a plan's tables, small and large."""
ROW_BYTES, HEAD_BYTES, FILES, FIGURES = 70.0, 300.0, 0.15e6, 1.2e6
"""Of a prompt's row of the tables, of a head's, of the files themselves and of the figures, as they are on disk: measured."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Expected:
    """What one item of a sweep is expected to take."""

    seconds: float | None = None
    gigabytes: float | None = None
    """Of memory at its worst moment, everything included."""
    megabytes: float | None = None
    """On disk."""
    problem: str = ""
    """Why nothing is known, or nothing can come of it."""


def expected(item: Item, device: str | None = None) -> Expected:
    """What an item would take on a device, by default the one it would choose here."""
    make = ESTIMATES.get(item.command.name)
    if make is None:
        return Expected(problem=f"{item.command.name} has no estimate")
    given = {name: value for name, value in item.understood.items() if value is not None}
    try:
        return make(given, given.get("device", device))
    except RotoscopeError as problem:
        return Expected(problem=str(problem))


def _some(kind: type[S], given: Mapping[str, Any], leaving: Iterable[str] = (), **usual: Any) -> S:
    """The settings of a kind among those given."""
    own = {name: given[name] for name in kind.names() if name in given and name not in leaving}
    return kind.make(**usual | own)


@cache
def _outline(model: str, dtype: str, device: str | None) -> Outline:
    from rotoscope.reading.outline import outline

    return outline(model, device=device, dtype=dtype)


def _subject(given: Mapping[str, Any], device: str | None) -> Outline:
    return _outline(str(given.get("model", "smollm2")), str(given.get("dtype", "auto")), device)


def _weights(subject: Outline) -> float:
    return float(sum(weight.numel() * weight.element_size() for weight in subject.model.parameters()))


def _around(subject: Outline, given: Mapping[str, Any], seconds: float) -> float:
    """A command is more than its measurement: a model is read, figures are drawn."""
    drawing = DRAWING_S if given.get("figures", True) else 0.0
    return STARTING_S + READ_S * _weights(subject) / 1e9 + seconds + drawing


def _megabytes(given: Mapping[str, Any], tables: float) -> float:
    return (FILES + tables + (FIGURES if given.get("figures", True) else 0.0)) / 1e6


def _tasks(given: Mapping[str, Any]) -> list[str | None]:
    found = given.get("task")
    return list(found) if isinstance(found, tuple) else [found]


def _profile(given: Mapping[str, Any], device: str | None) -> Expected:
    from rotoscope.analysis.estimate import estimate, swaps_of
    from rotoscope.analysis.prompts import make_prompts
    from rotoscope.reading.cost import size_of

    subject, wanted = _subject(given, device), _some(ProfileSettings, given)
    config = subject.model.config.get_text_config()
    heads = size_of(config, "num_hidden_layers") * size_of(config, "num_attention_heads")
    seconds, gigabytes, tables = 0.0, 0.0, 0.0
    for task in _tasks(given):
        sizes = _some(PromptSettings, given, leaving=["task"], task=task)
        one = make_prompts(subject, replace(sizes, prompts=1))
        count = sizes.prompts if one.task in DRAWN else 1
        found = estimate(subject, one, wanted, count=count)
        seconds, gigabytes = seconds + found.seconds, max(gigabytes, found.gigabytes)
        passes = 1 + (wanted.null_draws if wanted.null != "none" else 0)
        tables += heads * len(wanted.tau) * passes * (HEAD_BYTES + ROW_BYTES * count)
        if wanted.examples:
            prompt, m = one[0], swaps_of(one[0])
            blocks = len(prompt.blocks) if prompt.blocks is not None else len(prompt.tokens) - 1
            tables += heads * (6 * len(prompt.tokens) + m * (2 + 2 * len(prompt.tokens) / blocks))
    return Expected(_around(subject, given, seconds), gigabytes, _megabytes(given, tables))


def _gate(given: Mapping[str, Any], device: str | None) -> Expected:
    from rotoscope.analysis.gating import gates_cost
    from rotoscope.analysis.prompts import make_prompts

    subject, wanted = _subject(given, device), _some(GateSettings, given)
    sizes = _some(PromptSettings, given, pairs=8, prompts=8)
    one = make_prompts(subject, replace(sizes, prompts=1), usual="repeats")
    count = sizes.prompts if one.task in DRAWN else 1
    return _of(subject, given, gates_cost(subject, one[0], count, wanted), ROW_BYTES * 100 * count)


def _depths(given: Mapping[str, Any], device: str | None) -> Expected:
    from rotoscope.analysis.depth_curves import depths_cost
    from rotoscope.analysis.prompts import make_prompts
    from rotoscope.reading.cost import size_of

    subject, wanted = _subject(given, device), _some(DepthsSettings, given)
    sizes = _some(PromptSettings, given, prompts=8)
    one = make_prompts(subject, replace(sizes, prompts=1))
    count = sizes.prompts if one.task in DRAWN else 1
    config = subject.model.config.get_text_config()
    layers = size_of(config, "num_hidden_layers")
    rows = layers * size_of(config, "num_attention_heads") * count * (1 + len(wanted.depths(layers)))
    return _of(subject, given, depths_cost(subject, one, wanted, count), ROW_BYTES * rows)


def _plan(given: Mapping[str, Any], device: str | None) -> Expected:
    from rotoscope.analysis.plan.cache_plan import cache_cost
    from rotoscope.analysis.plan.rotation_plan import rotation_cost

    subject = _subject(given, device)
    decided: dict[str, Callable[[], Cost]] = {
        "cache": lambda: cache_cost(subject, _some(CacheSettings, given)),
        "rotation": lambda: rotation_cost(subject, _some(RotationSettings, given)),
    }
    return _of(subject, given, decided[given["decision"]](), PLAN_TABLES)


def _of(subject: Outline, given: Mapping[str, Any], cost: Cost, tables: float) -> Expected:
    """From a cost, which leaves out what is taken already: the libraries and the weights."""
    from rotoscope.analysis.estimate import RUNTIME

    gigabytes = cost.gigabytes + (RUNTIME + _weights(subject)) / 1e9
    return Expected(_around(subject, given, cost.seconds), gigabytes, _megabytes(given, tables))


def _train(given: Mapping[str, Any], device: str | None) -> Expected:
    from rotoscope.analysis.estimate import RUNTIME
    from rotoscope.lab.cost import trainings_cost
    from rotoscope.reading.devices import pick_device

    tasks = [task for task in _tasks(given) if task is not None]
    changes = {name: given[name] for name in TrainSettings.names() if name in given and name != "task"}
    each = TrainSettings.several(given.get("preset", "mini"), tasks, int(given.get("seeds") or 1), **changes)
    watch = _some(WatchSettings, given)
    cost = trainings_cost(each, pick_device(device), watch.inputs)
    weights = sum(one.layers * 12 * one.width**2 * 4 * len(one.kept) for one in each)
    rows = sum(len(one.evaluations) * one.layers * one.heads for one in each)
    drawing = DRAWING_S if given.get("figures", True) else 0.0
    tables = weights + ROW_BYTES * rows * len(watch.tau)
    return Expected(cost.seconds + drawing, cost.gigabytes + RUNTIME / 1e9, _megabytes(given, tables))


def _lengths(given: Mapping[str, Any], device: str | None) -> Expected:
    from rotoscope.analysis.estimate import RUNTIME
    from rotoscope.analysis.lengths import expected_cost

    wanted = _some(LengthsSettings, given)
    cost = expected_cost(str(given["source"]), wanted, device)
    drawing = DRAWING_S if given.get("figures", True) else 0.0
    return Expected(STARTING_S + cost.seconds + drawing, cost.gigabytes + RUNTIME / 1e9, _megabytes(given, 1e5))


ESTIMATES: dict[str, Callable[[Mapping[str, Any], str | None], Expected]] = {
    "profile": _profile,
    "gate": _gate,
    "depths": _depths,
    "plan": _plan,
    "train": _train,
    "lengths": _lengths,
}
