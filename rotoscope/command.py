"""Commands made from settings types: every field is a flag, the sentence under it its help.

A command is a function. A keyword whose type is a `Settings` class stands for one flag per field of it, and is given an
instance; one annotated `Annotated[Given, SomeSettings]` is given the flags that were used, by name, for commands that must
know which. Names after the class choose some of its fields. Fields that the function has a parameter for are left to that.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import CoercionError, Parameter, Token, convert

from rotoscope.errors import RotoscopeError
from rotoscope.settings import Bounds, Output, Settings, nearest

Given = dict[str, Any]
KEPT = ("ROTOSCOPE_CACHE", "ROTOSCOPE_MODELS", "ROTOSCOPE_API_KEY")
"""Variables of ours that are no settings of a command."""


@dataclass(frozen=True)
class _Bundle:
    """A keyword that stands for several flags."""

    kind: type[Settings]
    names: tuple[str, ...]
    as_given: bool

    def value(self, given: Given) -> Any:
        return given if self.as_given else self.kind.make(**given)


def command(function: Callable[..., int]) -> Callable[..., int]:
    """The same function with its bundles of settings taken apart into flags."""
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
    taken = {name for name in signature.parameters if _bundle(hints[name], set()) is None}
    bundles: dict[str, _Bundle] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        bundle = _bundle(hints[parameter.name], taken)
        if bundle is None:
            hint = hints[parameter.name]
            strict: dict[str, Any] = {"converter": _whole} if _counts(hint) else {}
            parameters.append(parameter.replace(annotation=Annotated[hint, Parameter(**strict)]))
        else:
            bundles[parameter.name] = bundle
            parameters += _flags(bundle)

    @functools.wraps(function)
    def run(*args: Any, **given: Any) -> int:
        for name, bundle in bundles.items():
            used = {key: given.pop(key) for key in bundle.names if key in given}
            given[name] = bundle.value({key: value for key, value in used.items() if value is not None})
        return function(*args, **given)

    del run.__wrapped__  # type: ignore[attr-defined]  # the flags are those of the new signature
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    run.bundles = bundles  # type: ignore[attr-defined]
    return run


def _bundle(hint: Any, taken: set[str]) -> _Bundle | None:
    kind, chosen, as_given = hint, (), False
    if get_origin(hint) is Annotated:
        _, kind, *names = get_args(hint)
        chosen, as_given = tuple(names), True
    if not (inspect.isclass(kind) and issubclass(kind, Settings)):
        return None
    offered = chosen or tuple(name for name in kind.names() if name not in kind.python_only)
    return _Bundle(kind, tuple(name for name in offered if name not in taken), as_given)


def _flags(bundle: _Bundle) -> Iterator[inspect.Parameter]:
    """One optional keyword per field: nothing says that it was not used."""
    hints, sentences = get_type_hints(bundle.kind), _sentences(bundle.kind)  # type: ignore[arg-type]
    for field in dataclasses.fields(bundle.kind):
        if field.name in bundle.names:
            options: dict[str, Any] = {
                "help": sentences[field.name] + _default(field.default),
                "group": bundle.kind.title,
            }
            if field.default is False:
                options["negative"] = ""
            if _counts(hints[field.name]):
                options["converter"] = _whole
            allowed = bundle.kind.bounds.get(field.name)
            if allowed is not None and allowed.percent:
                options["converter"] = functools.partial(_shares, allowed)
            optional: Any = hints[field.name] | None
            annotation = Annotated[optional, Parameter(**options)]
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
            )


def _counts(hint: Any) -> bool:
    """Whether a flag takes whole numbers, one or several."""
    return hint is int or int in get_args(hint) or any(int in get_args(part) for part in get_args(hint))


def _whole(kind: Any, tokens: Sequence[Token]) -> Any:
    """Whole numbers only: 1.5 would otherwise be taken for 2."""
    for token in tokens:
        if not re.fullmatch("[+-]?[0-9][0-9_]*", token.value):
            raise CoercionError(token=token, target_type=int)
    return convert(kind, tokens)


def _shares(allowed: Bounds, kind: Any, tokens: Sequence[Token]) -> Any:
    """One share or several, which may be written as percentages."""
    several = any(get_origin(part) is tuple for part in (kind, *get_args(kind)))
    found = tuple(allowed.read(token.value) for token in tokens)
    return found if several else found[-1]


@functools.cache
def _sentences(kind: type[Settings]) -> dict[str, str]:
    """What stands under each field, also under those a class inherits; looked up once, since that takes a while."""
    from docstring_parser import parse_from_object

    found: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            documented = parse_from_object(parent).params
            found |= {one.arg_name: " ".join((one.description or "").split()) for one in documented}
    return found


def _default(value: object) -> str:
    if value is None or isinstance(value, bool) or value == ():
        return ""
    several = value if isinstance(value, tuple) else (value,)
    shown = " ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in several)
    return f" Default: {shown}." if len(shown) < 40 else ""


def flags(function: Callable[..., int]) -> list[str]:
    """The settings a command takes, by name."""
    return [name for name in inspect.signature(function).parameters if name != "tokens"]


def makes_run(function: Callable[..., int]) -> bool:
    """Whether a command makes a run in a folder of its own."""
    return any(bundle.kind is Output for bundle in getattr(function, "bundles", {}).values())


def usual(function: Callable[..., int]) -> dict[str, Any]:
    """What each setting of a command is where it is not given."""
    found = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    for bundle in getattr(function, "bundles", {}).values():
        found |= {one.name: one.default for one in dataclasses.fields(bundle.kind) if one.name in bundle.names}
    return found


def check_settings(function: Callable[..., int], given: Given) -> None:
    """Refuse settings that are out of bounds, as the command itself would, without running it."""
    preset = given.get("preset", usual(function).get("preset"))
    for bundle in getattr(function, "bundles", {}).values():
        own = {name: given[name] for name in bundle.names if given.get(name) is not None}
        bundle.kind.check_line(own, given, preset)


def check_environment(environment: Mapping[str, str], commands: Mapping[str, Callable[..., int]]) -> None:
    """Refuse variables that look like settings of ours and are none."""
    known = {f"ROTOSCOPE_{name}_{flag}".upper() for name, run in commands.items() for flag in flags(run)}
    for variable in environment:
        if variable.startswith("ROTOSCOPE_") and variable not in known | set(KEPT):
            raise RotoscopeError(
                f"the environment variable {variable} is no setting: {nearest(variable, [*known, *KEPT])}"
                "they are called ROTOSCOPE_COMMAND_SETTING"
            )


def check_file(content: Mapping[str, Any], name: str, commands: Mapping[str, Callable[..., int]]) -> None:
    """Refuse tables and keys of a settings file that mean nothing."""
    for table, settings in content.items():
        if table not in commands:
            raise RotoscopeError(
                f"{name} has '{table}', which is no command: {nearest(table, commands)}give one table per command"
            )
        if not isinstance(settings, dict):
            raise RotoscopeError(f"{name}: settings of {table} belong into a table [{table}]")
        known = flags(commands[table])
        for key in settings:
            if key.replace("-", "_") not in known:
                raise RotoscopeError(
                    f"{name} sets '{key}' for {table}, which has no such setting: {nearest(key, known)}"
                    f"see rotoscope {table} --help"
                )
