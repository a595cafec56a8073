"""What a person at a terminal of 80 columns sees: whole words, short lines, what to type next, and that something goes on."""

from __future__ import annotations

import ast
import inspect
import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from rich.text import Text

from rotoscope.cli import app as make_app
from rotoscope.cli import commands, main
from rotoscope.experiments.commands import save_figures
from rotoscope.experiments.profile import run as profiling
from rotoscope.experiments.profile.screen import SHOWN, null_lines, unstable_line
from rotoscope.progress import progress_bar, says_loading
from rotoscope.terminal import (
    MOST_ROWS,
    Grid,
    Screen,
    as_flags,
    in_lines,
    new_console,
    show_next,
    show_screen,
    show_table,
)
from tests.cli import world as lines
from tests.cli.world import Outcome, World, with_flags

COMMANDS = commands()
app = make_app()
LINES = {
    "profile": with_flags(lines.PROFILE, "--null random --null-draws 2 --input-swaps 4 --known"),
    "profile text": lines.PROFILE_TEXT,
    "profile tasks": f"profile {{model}} --task repeats text --text {{text}} --length 6 --prompts 2 {lines.PLAIN}",
    "depths": f"{lines.DEPTHS} --writers",
    "gate": lines.GATE_SWEEP,
    "gate one": lines.GATE,
    "plan": lines.CACHE,
    "plan rotation": lines.ROTATION,
    "theory": lines.THEORY,
    "canonical": lines.CANONICAL,
    "train": lines.LETTER,
    "dynamics": lines.DYNAMICS,
    "lengths": lines.LENGTHS,
    "ask": lines.ASK,
    "ask dry": lines.ASK_DRY,
    "reproduce": lines.CLAIM,
    "report": "report runs/1",
    "doctor": "doctor runs/1",
}
LONGER = {"lengths": "lengths stored --no-page", "dynamics": with_flags(lines.DYNAMICS, "--roles")}
"""The same with more to show, which takes longer."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Short names, so that only what we say can be too long."""
    with chdir(tmp_path_factory.mktemp("terminal")):
        made = World(Path())
        made.train()
        yield made


def at(width: int, name: str, world: World, patch: pytest.MonkeyPatch, *, longer: bool) -> Outcome:
    """A command on a terminal so wide, in a folder of its own that it finds finished the second time."""
    patch.setenv("COLUMNS", str(width))
    line = LONGER[name] if longer else LINES[name]
    if name in ("report", "doctor"):
        world.run(f"{lines.PROFILE} --out runs/1")
    if name != "doctor":
        line += f" --out out/{name.replace(' ', '-')}{'-longer' * longer}"
    if name == "report":
        line += " --overwrite"
    world.known.pop(line, None)
    found = world.run(line)
    assert found.code == 0, found.problem
    return found


def typed_next(told: str) -> list[list[str]]:
    """The commands that an output ends with."""
    _, _, last = f"\n{told}".partition("\nnext: ")
    return [
        shlex.split(command.removeprefix("next: ")) for command in last.replace("\\\n", "").strip().splitlines()
    ]


def parses(words: list[str]) -> bool:
    """A command of ours, with flags that it has and values that they take."""
    name, *arguments = words
    command, _, unknown = app.parse_args(arguments, exit_on_error=False, print_error=False)[:3]
    return name == "rotoscope" and command is COMMANDS[arguments[0]] and not unknown


MOST_LINES = 26
"""Of what a command says when it is done: about fifteen, and what wraps."""


@pytest.mark.parametrize("name", LONGER)
@pytest.mark.slow
def test_a_longer_run_is_short_to_read(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_screen(at(80, name, world, monkeypatch, longer=True).told)


@pytest.mark.parametrize("name", LINES)
def test_a_command_is_short_to_read(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_screen(at(80, name, world, monkeypatch, longer=False).told)


def check_screen(told: str, most_lines: int = MOST_LINES) -> None:
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= most_lines, told
    commands = typed_next(told)
    assert commands
    assert all(parses(words) for words in commands)


@pytest.mark.parametrize("name", ["profile", "depths", "gate one", "plan", "lengths"])
def test_everything_else_is_shown_when_asked(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word is broken there either."""
    monkeypatch.setitem(LINES, name, f"{LINES[name]} --verbose")
    told = at(80, name, world, monkeypatch, longer=False).told
    assert max(map(len, told.splitlines())) <= 80
    result = world.known[next(line for line in reversed(world.known) if "--verbose" in line)].result
    for title, _ in result.screen().details:
        assert title in " ".join(told.split())


def test_every_command_is_looked_at() -> None:
    """`serve` goes on until it is stopped: tests/report/test_real_server.py reads what it says. Sweeps are
    made of runs: tests/sweep look at them."""
    assert {name.split()[0] for name in LINES} == set(COMMANDS) - {"serve", "sweep"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_at_80_columns_has_an_example_of_its_own(name: str, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, told, _ = run(name, "--help")
    assert code == 0
    assert max(len(line) for line in told.splitlines()) <= 80
    documented = {
        other: re.findall(r"Example: (.+)", inspect.getdoc(one) or "") for other, one in COMMANDS.items()
    }
    examples = documented.pop(name)
    assert examples
    for example in examples:
        assert " ".join(example.split()) in " ".join(told.split())
        assert example.startswith(f"rotoscope {name}")
        assert parses(shlex.split(example))
        assert not any(example in others for others in documented.values())


def test_lines_end_between_words() -> None:
    text = Text("  a sentence with /a/path/that/is/longer/than/the/line and more")
    lines = [line.plain for line in in_lines(text, 16, 4)]
    assert lines == ["  a sentence", "    with", "    /a/path/that/is/longer/than/the/line", "    and more"]
    assert [line.plain for line in in_lines(Text("short"), 16)] == ["short"]


def test_a_command_that_is_longer_than_a_line_can_be_pasted() -> None:
    told = io.StringIO()
    words = [
        "profile",
        "a folder with spaces/model",
        *as_flags({"pairs": 8, "at": (0, "own"), "known": True, "page": False}),
    ]
    show_next(Console(file=told, width=44), words)
    assert max(len(line) for line in told.getvalue().splitlines()) <= 44
    assert told.getvalue().count(" \\\n") == 2
    expected = ["rotoscope", *words[:2], "--pairs", "8", "--at", "0", "own", "--known", "--no-page"]
    assert typed_next(f"\n{told.getvalue()}") == [expected]


def test_a_long_table_is_cut() -> None:
    told = io.StringIO()
    table = pd.DataFrame(
        {"head": range(100), "score": 0.5, "score_low": 0.25, "score_high": 0.75, "why": "it is so"}
    )
    show_table(Console(file=told, width=80, soft_wrap=True), table, "a title")
    lines = told.getvalue().splitlines()
    assert lines[1:4] == ["a title", "head  score              why", "0     0.50 [0.25, 0.75]  it is so"]
    assert len(lines) == 3 + MOST_ROWS + 1
    assert lines[-1] == f"{MOST_ROWS} of 100 rows; the page has more"


def test_a_small_table_has_a_line_per_row_and_leaves_nothing_out_silently() -> None:
    table = pd.DataFrame(
        {"head": ["1:0", "1:1"], "score": [0.5, 0.25], "why": "so many words that nobody reads them"}
    )
    assert Grid.of(table).lines(80) == [
        "head  score  why",
        "1:0    0.50  so many words that nobody r…",
        "1:1    0.25  so many words that nobody r…",
    ]
    assert Grid.of(table[["head", "score"]].assign(empty=None)).lines(20) == Grid.of(
        table[["head", "score"]]
    ).lines(20)
    narrow = Grid(["head", "score", "of"], [["1:0", "0.50", "all"]])
    assert narrow.lines(11) == ["head  score", "1:0    0.50", "head  of", "1:0   all"]
    many = pd.DataFrame({"head": range(9)})
    assert Grid.of(many, 6).lines(80)[-1] == "and 3 more rows"
    assert Grid.of(many, 8).lines(80)[-1] == "8"


def test_columns_that_do_not_fit_stand_below() -> None:
    told = io.StringIO()
    table = pd.DataFrame({"head": ["1:0", "1:1"]} | {f"{'x' * 20}{k}": [k, k + 1] for k in range(5)})
    show_table(Console(file=told, width=50), table, "a title")
    lines = told.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 50
    assert [line.split()[0] for line in lines[2:]] == ["head", "1:0", "1:1"] * 3


def test_where_nobody_looks_a_sentence_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert new_console(file=io.StringIO()).soft_wrap
    monkeypatch.setenv("COLUMNS", "80")
    assert not new_console(file=io.StringIO()).soft_wrap


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_loading_is_said_on_a_terminal_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((Terminal(), "loading…\r\x1b[K"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        with says_loading():
            assert stream.getvalue() == expected[:8]
        assert stream.getvalue() == expected


FILES = {sys.modules[run.__module__].__file__ for run in COMMANDS.values()}


@pytest.mark.parametrize("file", sorted(map(str, FILES)), ids=lambda file: Path(file).parent.name)
def test_loading_is_said_before_anything_large_is_imported(file: str) -> None:
    """What a command imports first, it imports while that is said."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    large = ("rotoscope.models", "rotoscope.terminal", "rotoscope.runs", "rotoscope.report.server", "torch")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in (function for function in functions if not function.name.startswith("_")):
        for node in function.body:
            assert not (isinstance(node, ast.ImportFrom) and str(node.module).startswith(large)), function.name


def test_figures_are_drawn_under_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rotoscope.plotting.style.save", lambda figure, path: [path])
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    assert save_figures([("one", None), ("two", None)], tmp_path) == [tmp_path / "one", tmp_path / "two"]
    assert "drawing figures" in shown.getvalue()
    assert "2/?" in shown.getvalue()


def test_work_of_unknown_size_in_a_log(capsys: pytest.CaptureFixture) -> None:
    times = iter([0.0, 11.0, 12.0])
    with progress_bar("drawing", None, clock=lambda: next(times)) as bar:
        bar.advance()
        bar.advance()
    assert capsys.readouterr().err == "drawing: 1 done\n"


def test_complaints_on_a_terminal_end_lines_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", said := Terminal())
    with pytest.raises(SystemExit):
        main(["profile", "nowhere", "--null", "none", "--null-draws", "7"])
    lines = said.getvalue().replace("loading…\r\x1b[K", "").splitlines()
    assert max(len(line) for line in lines) <= 40
    assert " ".join(lines) == "rotoscope: --null-draws means nothing without a null"


@pytest.mark.parametrize("swaps", [[], ["--input-swaps", "2"]])
def test_scores_stand_on_the_screen_before_a_null_is_drawn(
    swaps: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[str] = []
    draw = profiling.null_passes

    def drawn(*passed: Any) -> None:
        shown.append(capsys.readouterr().out)
        draw(*passed)

    monkeypatch.setattr(profiling, "null_passes", drawn)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    words = [
        "profile",
        "number",
        "--prompts",
        "2",
        "--null",
        "gaussian",
        "--null-draws",
        "2",
        "--no-page",
        *swaps,
    ]
    with pytest.raises(SystemExit):
        main([*words, "--out", "run"])
    first, rest = shown[0], capsys.readouterr().out
    assert "most attention at stake" in first
    assert "against" not in first
    assert "against" in rest
    assert "most attention at stake" not in rest
    assert ("prompt swapped: " in rest) == bool(swaps)
    assert ("not asked: do symbolic heads follow the word in the prompt?" in rest) == (not swaps)
    assert len([line for line in (first + rest).splitlines() if line]) <= (20 if swaps else 18)
    with pytest.raises(SystemExit):  # a finished run shows all of it at once
        main([*words, "--out", "run"])
    assert "most attention at stake" in capsys.readouterr().out


VERDICTS = ["as in the null", "beyond the null", "undecided"]


def test_verdicts_stand_in_full_beside_two_nulls_at_80_columns() -> None:
    rows = [
        {"statistic": name, "value": -0.99, "p_value": 0.4, "verdict": verdict, "null_draws": 39}
        | {f"{null}_{end}": -1.0 for null in ("random", "gaussian") for end in ("low", "high")}
        for name, verdict in zip(SHOWN, VERDICTS, strict=False)
    ]
    [grid] = null_lines("random", pd.DataFrame(rows))
    header, *lines = grid.lines(80)
    assert header.split() == ["against", "39", "draws", "model", "random", "Gaussian", "p"]
    assert [line[line.index("0.40") + 4 :].strip() for line in lines] == VERDICTS


def test_how_many_prompts_to_use_where_classes_are_unstable() -> None:
    def line(task: str, prompts: int) -> list[str]:
        run = SimpleNamespace(settings={"task": task, "prompts": prompts})
        heads = pd.DataFrame({"stable": [True, False, False]})
        return unstable_line(SimpleNamespace(run=run, at=lambda: heads))

    assert line("recall", 6) == ["2 of them unstable over prompts: use --prompts 16"]
    assert line("recall", 16) == ["2 of them unstable over prompts: use --prompts 32"]
    assert line("text", 2) == ["2 of them unstable over prompts"]


def test_caveats_that_have_no_room_are_counted() -> None:
    told = io.StringIO()
    console = Console(file=told, width=80, soft_wrap=True)
    show_screen(console, Screen(), ["a" * 150, "not asked: why?   --why", "b" * 100, "c"])
    assert told.getvalue().split("\n")[1:3] == [
        "not asked: why?   --why",
        f"careful (2 more with --verbose): {'a' * 150}",
    ]
    assert "careful: b" not in told.getvalue()


def test_a_gates_table_shows_what_its_title_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told = at(80, "gate", world, monkeypatch, longer=False).told
    [header] = [line for line in told.splitlines() if line.startswith("condition")]
    assert header.split()[-2:] == ["loss", "accuracy"]


def test_a_single_line_of_progress_where_nobody_looks(capsys: pytest.CaptureFixture) -> None:
    times = iter([0.0, 11.0, 60.0, 120.0])
    with progress_bar("drawing nulls", 3, once=True, clock=lambda: next(times)) as bar:
        for _ in range(3):
            bar.advance()
    assert capsys.readouterr().err == "drawing nulls: 1/3 (33%), 0:00:22 left\n"
