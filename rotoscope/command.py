"""Commands made from settings types: every field is a flag, the sentence under it its help.

A command is a function. A keyword whose type is a `Settings` class stands for one flag per field of it, and is given an
instance; one annotated `Annotated[Given, SomeSettings]` is given the flags that were used, by name, for commands that must
know which. Names after the class choose some of its fields. Fields that the function has a parameter for are left to that.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import App, CoercionError, CycloptsError, Parameter, Token, convert
from cyclopts.config import Env, Toml

from rotoscope import __version__
from rotoscope.errors import RotoscopeError
from rotoscope.removed import removed_command, removed_setting, removed_variable
from rotoscope.settings import Bounds, Settings, nearest

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
    own_names = {name for name in signature.parameters if _bundle(hints[name], set()) is None}
    bundles: dict[str, _Bundle] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        bundle = _bundle(hints[parameter.name], own_names)
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


def _bundle(hint: Any, own_names: set[str]) -> _Bundle | None:
    kind, chosen, as_given = hint, (), False
    if get_origin(hint) is Annotated:
        _, kind, *names = get_args(hint)
        chosen, as_given = tuple(names), True
    if not (inspect.isclass(kind) and issubclass(kind, Settings)):
        return None
    offered = chosen or tuple(name for name in kind.names() if name not in kind.python_only)
    return _Bundle(kind, tuple(name for name in offered if name not in own_names), as_given)


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
    shares = tuple(allowed.read(token.value) for token in tokens)
    return shares if several else shares[-1]


@functools.cache
def _sentences(kind: type[Settings]) -> dict[str, str]:
    """What stands under each field, also under those a class inherits; looked up once, since that takes a while."""
    from docstring_parser import parse_from_object

    sentences: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            documented = parse_from_object(parent).params
            sentences |= {
                parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in documented
            }
    return sentences


def _default(value: object) -> str:
    if value is None or isinstance(value, bool) or value == ():
        return ""
    several = value if isinstance(value, tuple) else (value,)
    shown = " ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in several)
    return f" Default: {shown}." if len(shown) < 40 else ""


def flags(function: Callable[..., int]) -> list[str]:
    """The settings a command takes, by name."""
    return [name for name in inspect.signature(function).parameters if name != "tokens"]


def usual(function: Callable[..., int]) -> dict[str, Any]:
    """What each setting of a command is where it is not given."""
    defaults = {name: field.default for name, field in inspect.signature(function).parameters.items()}
    for bundle in getattr(function, "bundles", {}).values():
        defaults |= {
            field.name: field.default for field in dataclasses.fields(bundle.kind) if field.name in bundle.names
        }
    return defaults


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
        if not variable.startswith("ROTOSCOPE_"):
            continue
        if message := removed_variable(variable, environment[variable]):
            raise RotoscopeError(f"the environment variable {variable}: {message}")
        if variable not in known | set(KEPT):
            raise RotoscopeError(
                f"the environment variable {variable} is no setting: {nearest(variable, [*known, *KEPT])}"
                "they are called ROTOSCOPE_COMMAND_SETTING"
            )


def check_file(content: Mapping[str, Any], name: str, commands: Mapping[str, Callable[..., int]]) -> None:
    """Refuse tables and keys of a settings file that mean nothing."""
    for table, settings in content.items():
        if message := removed_command(table):
            raise RotoscopeError(f"{name}: {message}")
        if table not in commands:
            raise RotoscopeError(
                f"{name} has '{table}', which is no command: {nearest(table, commands)}give one table per command"
            )
        if not isinstance(settings, dict):
            raise RotoscopeError(f"{name}: settings of {table} belong into a table [{table}]")
        known = flags(commands[table])
        for key, value in settings.items():
            if message := removed_setting(table, key, value):
                raise RotoscopeError(f"{name}: {message}")
            if key.replace("-", "_") not in known:
                raise RotoscopeError(
                    f"{name} sets '{key}' for {table}, which has no such setting: {nearest(key, known)}"
                    f"see rotoscope {table} --help"
                )


# An application of commands: settings files, environment variables, and errors as sentences.


NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""How torch says it: of a GPU, of a CPU, of a CPU on Windows."""
ENVIRONMENT = "ROTOSCOPE_"


def make_app(commands: Mapping[str, Callable[..., int]]) -> App:
    """A command line with these commands."""
    app = App(
        name="rotoscope",
        help=(
            "Does an attention head attend by position or by symbol? Exact scores for every head of a RoPE model.\n\n"
            "Example: rotoscope profile smollm2 --pairs 32 --prompts 16 --out runs/first"
        ),
        help_epilogue=(
            "Settings come from flags, then ROTOSCOPE_COMMAND_SETTING environment variables, then --config FILE.toml."
        ),
        version=__version__,
        version_flags=["--version"],
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(
            consume_multiple=True, negative_iterable="", show_env_var=False, json_list=False
        ),
    )
    for name, run in commands.items():
        app.command(run, name=name)
    app.meta.group_parameters = "Common"
    app.meta.suppress_keyboard_interrupt = False

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(help="A TOML file with one table per command.")] = None,
    ) -> int | None:
        """Read the settings file, then run the command."""
        check_environment(os.environ, commands)
        sources = [Env(ENVIRONMENT)]
        if config is not None:
            check_file(_read(config), config.name, commands)
            sources.append(Toml(config, must_exist=True))  # type: ignore[arg-type]
        app.config = sources
        code: int | None = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        return code

    return app


def check_line(app: App, tokens: list[str]) -> dict[str, Any]:
    """Refuse a command line that is wrong, as far as that can be told without running it; what it sets, by name."""
    before, app.config = app.config, [Env(ENVIRONMENT)]
    try:
        _check_text(tokens)
        run, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as problem:
        raise RotoscopeError(" ".join(str(problem).split())) from problem
    finally:
        app.config = before
    check_settings(run, dict(bound.arguments))
    return dict(bound.arguments)


def _read(config: Path) -> dict[str, object]:
    if not config.is_file():
        raise RotoscopeError(f"no such settings file: {config}")
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise RotoscopeError(f"the settings file {config} cannot be read ({problem})") from problem


def run_line(app: App, tokens: list[str]) -> int:
    """Run a command line; anything wrong with the input is one sentence on standard error and exit code 2."""
    try:
        _check_text(tokens)
        code = app.meta(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        return int(code or 0)
    except (RotoscopeError, CycloptsError) as problem:
        complain(str(problem))
    except KeyboardInterrupt:
        complain("stopped; what is finished is kept, and the same command goes on from there")
        return 130
    except (MemoryError, RuntimeError) as problem:
        if not isinstance(problem, MemoryError) and not any(word in str(problem).lower() for word in NO_MEMORY):
            raise
        place = "the device is out of memory" if "cuda" in str(problem).lower() else "out of memory"
        complain(f"{place}: use fewer or shorter prompts, smaller batches, a smaller model or another --device")
    except UnicodeEncodeError as problem:
        complain(
            f"{problem.object!a} is no UTF-8, and not all that we use can do with that; choose another name"
        )
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as problem:  # a name too long, a place that may not be read or written, a full disk
        files = [str(file) for file in (problem.filename, problem.filename2) if file is not None]
        complain(
            f"{' and '.join(files) or 'standard output or a file'} cannot be used ({problem.strerror or problem})"
        )
    return 2


def _check_text(tokens: list[str]) -> None:
    """Refuse what is no text: Parquet and safetensors take names in UTF-8 only, and so do terminals."""
    for token in tokens:
        try:
            token.encode()
        except UnicodeEncodeError as problem:
            words = f"{token!a} is no UTF-8, which all names and values must be; rename it"
            raise RotoscopeError(words) from problem
        if "\0" in token:
            raise RotoscopeError(f"{token!a} holds a zero byte, which no name and no value can")


def complain(message: str) -> None:
    """Write a sentence to standard error; a name and a password in an address are left out."""
    text = re.sub(r"://[^/\s]*@", "://***@", f"rotoscope: {' '.join(message.splitlines())}")
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)
