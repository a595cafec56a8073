"""Every flag of every command, tried from the type of its setting: values it takes, values it refuses, its help, and the other
places where it can be set."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from cyclopts.config import Env, Toml
from rich.console import Console

from rotoscope.cli import app as make_app
from rotoscope.cli import commands
from rotoscope.command import check_line, flags
from rotoscope.errors import RotoscopeError
from rotoscope.settings import Bounds, Settings
from tests.cli.world import ASK, EITHER, GATE, GATE_SWEEP, PROFILE, World
from tests.settings_kinds import settings_kinds

COMMANDS = commands()
app = make_app()
NUMBERS = (int, float)
CANDIDATES = (2, 3, 5, 0.25, 0.75, 64, 1000)
MEANINGLESS = {
    f"{EITHER} --hops 2": "--hops means something for number and letter only, not for either",
    f"{PROFILE} --pairs 3": "--pairs means something for binding and groups and lookup only, not for repeats",
    f"{GATE} --bands 2": "--bands means something for a sweep only, not for one gate",
    f"{GATE_SWEEP} --heads 0:1": "--heads means something for one gate only, not for a sweep",
    f"{ASK} --dry-run": "--dry-run means something for an endpoint only",
}

COMPANIONS: dict[str, dict[str, Any]] = {
    **{key: {"writers": True} for key in ("readers", "writer_swaps")},
    **{key: {"favour": "symbolic"} for key in ("strength", "favour_layers", "favour_from", "favour_until")},
}
"""Settings that mean something together only."""


@dataclass(frozen=True)
class Flag:
    """One setting of a command, with what its annotation says it holds."""

    name: str
    kind: Any
    default: Any
    bounds: Bounds | None
    settings: type[Settings] | None
    help: str

    @property
    def several(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def part(self) -> Any:
        """What one value is."""
        return get_args(self.kind)[0] if self.several else self.kind

    @property
    def spelled(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def valid(self) -> Any:
        """A value that is not the default."""
        if self.part is bool:
            return not self.default
        if self.bounds is not None or self.part in NUMBERS:
            value = next(number for number in CANDIDATES if self._takes(number))
        elif get_origin(self.part) is Literal:
            value = next(name for name in get_args(self.part) if self.default not in (name, (name,)))
        else:
            value = self.part("word")
        return (
            (value,) * (len(self._defaults()) if Ellipsis not in get_args(self.kind) else 1)
            if self.several
            else value
        )

    def invalid(self) -> Iterator[str]:
        """Values that are refused."""
        if self.bounds is not None:
            yield f"{self.bounds.most + 1 if self.bounds.whole else self.bounds.most * 2}"
        if self.part in NUMBERS:
            yield "word"
        if get_origin(self.part) is Literal:
            yield "no-such-choice"

    def words(self, value: Any) -> list[str]:
        """A value as it stands on a command line."""
        if self.part is bool:
            return [self.spelled if value else f"--no-{self.spelled[2:]}"]
        return [self.spelled, *self.texts(value)]

    def texts(self, value: Any) -> list[str]:
        return [str(one) for one in (value if self.several else (value,))]

    def _defaults(self) -> tuple[Any, ...]:
        return self.default if isinstance(self.default, tuple) else ()

    def _takes(self, number: float) -> bool:
        if number in (self.default, *self._defaults()) or (self.part is int and number != int(number)):
            return False
        try:
            if self.bounds is not None:
                self.bounds.check(self.name, number)
        except RotoscopeError:
            return False
        return True


@cache
def flags_of(command: str) -> dict[str, Flag]:
    """The flags of a command, without what is given by its place."""
    run, made = COMMANDS[command], {}
    bundles = {name: bundle.kind for bundle in getattr(run, "bundles", {}).values() for name in bundle.names}
    for name, parameter in inspect.signature(run).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        owner, default = bundles.get(name), parameter.default
        hint = owner.kinds()[name] if owner else get_type_hints(run, include_extras=True)[name]
        hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        options = [part for part in get_args(hint) if part is not type(None)]
        optional = type(None) in get_args(hint)
        text = next((part.help for part in get_args(parameter.annotation) if getattr(part, "help", None)), "")
        if owner:
            default = getattr(owner, name)
        bounds = owner.bounds.get(name) if owner else None
        made[name] = Flag(name, options[0] if optional else hint, default, bounds, owner, text)
    return made


def positional(command: str) -> list[str]:
    """One value for everything that has to be named first."""
    words = []
    hints = get_type_hints(COMMANDS[command], include_extras=True)
    for name, parameter in inspect.signature(COMMANDS[command]).parameters.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY:
            hint = get_args(hints[name])[0] if get_origin(hints[name]) is Annotated else hints[name]
            hint = get_args(hint)[0] if get_origin(hint) is tuple else hint
            words.append(str(get_args(hint)[0]) if get_origin(hint) is Literal else "word")
    return words


def bound(words: list[str], sources: tuple[Any, ...] = ()) -> dict[str, Any]:
    """What a command is called with, without calling it."""
    before, app.config = app.config, sources
    try:
        _, arguments, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    finally:
        app.config = before
    return dict(arguments.arguments)


def held(flag: Flag, value: Any) -> Any:
    """The value as the command's settings hold it; text has a grammar of its own, which the type does not say."""
    if flag.settings is None or flag.part is str:
        return value
    companions = COMPANIONS.get(flag.name, {})
    known = {name: companion for name, companion in companions.items() if name in flag.settings.names()}
    return getattr(flag.settings.make(**known | {flag.name: value}), flag.name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("flags"))


each_flag = pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(command, name, id=f"{command} {flag.spelled}")
        for command in COMMANDS
        for name, flag in flags_of(command).items()
    ],
)


@each_flag
def test_a_flag_reaches_the_settings(command: str, name: str) -> None:
    flag = flags_of(command)[name]
    value = flag.valid()
    arguments = bound([command, *positional(command), *flag.words(value)])
    assert arguments[name] == value
    assert held(flag, arguments[name]) == value != flag.default


@each_flag
def test_a_file_and_the_environment_set_the_same(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = flags_of(command)[name]
    value, start = flag.valid(), [command, *positional(command)]
    texts = ", ".join(f"'{text}'" for text in flag.texts(value))
    if flag.part is bool or flag.part in NUMBERS:
        texts = texts.replace("'", "").lower()
    file = tmp_path / "settings.toml"
    file.write_text(f"[{command}]\n{flag.spelled[2:]} = {f'[{texts}]' if flag.several else texts}")
    assert bound(start, (Toml(file, must_exist=True),)).get(name) == value
    monkeypatch.setenv(f"ROTOSCOPE_{command}_{name}".upper(), " ".join(flag.texts(value)))
    assert bound(start, (Env("ROTOSCOPE_"),)).get(name) == value


@each_flag
def test_what_a_flag_cannot_hold_is_refused(command: str, name: str) -> None:
    """In one sentence that names it."""
    flag = flags_of(command)[name]
    for text in flag.invalid():
        with pytest.raises(RotoscopeError) as refusal:
            check_line(app, [command, *positional(command), flag.spelled, text])
        sentence = str(refusal.value)
        assert flag.spelled in sentence or flag.name in sentence, sentence
        assert "\n" not in sentence


@cache
def help_of(command: str) -> str:
    page = io.StringIO()
    app.help_print([command], console=Console(file=page, width=3000))
    return page.getvalue()


@each_flag
def test_help_says_what_a_flag_is_for(command: str, name: str) -> None:
    flag, page = flags_of(command)[name], help_of(command)
    assert flag.spelled in page
    if flag.settings is not None:
        assert flag.help
        assert flag.help.replace("`", "") in page.replace("`", "")


@pytest.mark.parametrize("kind", settings_kinds())
def test_every_setting_is_a_flag_unless_it_is_for_python_only(kind: type[Settings]) -> None:
    """So that a setting which no command offers cannot go untried."""
    offered = {flag for run in COMMANDS.values() for flag in flags(run)}
    assert issubclass(kind, Settings)
    assert set(kind.python_only) <= set(kind.names())
    assert set(kind.names()) - set(kind.python_only) <= offered


@pytest.mark.parametrize(
    "line", MEANINGLESS, ids=lambda line: " ".join([line.split()[0], line.split("--")[-1]])
)
def test_a_flag_that_means_nothing_is_refused(line: str, world: World) -> None:
    refused = world.run(line)
    assert (refused.code, refused.problem.count("\n")) == (2, 1)
    assert MEANINGLESS[line] in refused.problem
    assert not refused.folder.exists()
