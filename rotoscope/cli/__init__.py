"""The command line: one small file per command, calling the functions the library exports.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env, Toml

from rotoscope import __version__
from rotoscope.cli.doctor import doctor
from rotoscope.cli.removed import check_removed
from rotoscope.command import check_environment, check_file, check_settings
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.ask.command import ask
from rotoscope.experiments.canonical.command import canonical
from rotoscope.experiments.depths.command import depths
from rotoscope.experiments.gate.command import gate
from rotoscope.experiments.lengths.command import lengths
from rotoscope.experiments.plan.command import plan
from rotoscope.experiments.profile.command import profile
from rotoscope.experiments.theory.command import theory
from rotoscope.experiments.train.command import train
from rotoscope.experiments.train.dynamics_command import dynamics
from rotoscope.ledger.command import reproduce
from rotoscope.report.command import report, serve
from rotoscope.sweeps.command import sweep

__all__ = ["COMMANDS", "app", "main"]

NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""How torch says it: of a GPU, of a CPU, of a CPU on Windows."""
COMMANDS = {
    run.__name__: run
    for run in (
        profile, depths, gate, plan, theory, canonical, train, dynamics, lengths, ask, sweep,
        reproduce, report,
        serve, doctor,
    )
}  # fmt: skip

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
for _run in COMMANDS.values():
    app.command(_run)
app.meta.group_parameters = "Common"
app.meta.suppress_keyboard_interrupt = False


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, Parameter(help="A TOML file with one table per command.")] = None,
) -> int | None:
    """Read the settings file, then run the command."""
    check_environment(os.environ, COMMANDS)
    sources = [Env("ROTOSCOPE_")]
    if config is not None:
        check_file(_read(config), config.name, COMMANDS)
        sources.append(Toml(config, must_exist=True))  # type: ignore[arg-type]
    app.config = sources
    result: int | None = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    return result


def check_line(tokens: list[str]) -> dict[str, Any]:
    """Refuse a command line that is wrong, as far as that can be told without running it; what it sets, by name."""
    before, app.config = app.config, [Env("ROTOSCOPE_")]
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


def main(tokens: list[str] | None = None) -> None:
    """Run a command; anything wrong with the input is one sentence on standard error and exit code 2."""
    code: int | None
    try:
        words = sys.argv[1:] if tokens is None else tokens
        _check_text(words)
        check_removed(words)
        code = app.meta(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except (RotoscopeError, CycloptsError) as problem:
        _complain(str(problem))
        code = 2
    except KeyboardInterrupt:
        _complain("stopped; what is finished is kept, and the same command goes on from there")
        code = 130
    except (MemoryError, RuntimeError) as problem:
        if not isinstance(problem, MemoryError) and not any(word in str(problem).lower() for word in NO_MEMORY):
            raise
        place = "the device is out of memory" if "cuda" in str(problem).lower() else "out of memory"
        _complain(
            f"{place}: use fewer or shorter prompts, smaller batches, a smaller model or another --device"
        )
        code = 2
    except UnicodeEncodeError as problem:
        _complain(
            f"{problem.object!a} is no UTF-8, and not all that we use can do with that; choose another name"
        )
        code = 2
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except OSError as problem:  # a name too long, a place that may not be read or written, a full disk
        named = [str(file) for file in (problem.filename, problem.filename2) if file is not None]
        _complain(
            f"{' and '.join(named) or 'standard output or a file'} cannot be used ({problem.strerror or problem})"
        )
        code = 2
    sys.exit(code or 0)


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


def _complain(message: str) -> None:
    said = f"rotoscope: {' '.join(message.splitlines())}"
    said = re.sub(r"://[^/\s]*@", "://***@", said)  # a name and a password in an address
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        said = textwrap.fill(said, width, break_long_words=False, break_on_hyphens=False)
    print(said, file=sys.stderr)
