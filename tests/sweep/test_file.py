"""What a sweep's file says, and every way in which it can be wrong, with its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rotoscope.errors import RotoscopeError
from rotoscope.sweeps.items import Item, items_of, part_of, read_file
from rotoscope.sweeps.settings import SweepSettings

DESIGNED = """\
command = "profile"
out = "sweeps/first"
[grid]
model = ["smollm2", "letter"]
task = ["repeats", "lookup"]
seed = [0, 1]
[settings]
prompts = 4
"""


def items(tmp_path: Path, text: str) -> list[Item]:
    (tmp_path / "sweep.toml").write_text(text)
    return items_of(read_file(tmp_path / "sweep.toml"))


def test_every_combination_is_an_item(tmp_path: Path) -> None:
    found = items(tmp_path, DESIGNED)
    assert read_file(tmp_path / "sweep.toml").out == Path("sweeps/first")
    places = [tuple(item.place.values()) for item in found]
    assert places == [(m, t, s) for m in ("smollm2", "letter") for t in ("repeats", "lookup") for s in (0, 1)]
    assert [item.name.rpartition("-")[0] for item in found[:3]] == [
        "smollm2-repeats-seed0", "smollm2-repeats-seed1", "smollm2-lookup-seed0",
    ]  # fmt: skip
    assert found[1].line(Path("x")) == [
        "profile", "--model=smollm2", "--task=repeats", "--seed=1", "--prompts=4", f"--out=x/{found[1].name}",
    ]  # fmt: skip
    assert found[1].understood == {"model": "smollm2", "task": ("repeats",), "seed": 1, "prompts": 4}


def test_a_folder_is_named_after_all_settings(tmp_path: Path) -> None:
    """Also after those that all items share: other settings, other folders."""
    names = [item.name for item in items(tmp_path, DESIGNED)]
    others = [item.name for item in items(tmp_path, DESIGNED.replace("prompts = 4", "prompts = 5"))]
    assert len({*names, *others}) == 16
    assert names == [item.name for item in items(tmp_path, DESIGNED)]


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ('model = ["a/b:c", "/x/y/z"]', ["a-b-c", "z"]),
        ("frequencies = [true, false]", ["frequencies", "no-frequencies"]),
        ("tau = [1e-4, [1e-3, 0.01]]", ["tau0.0001", "tau-0.001-0.01"]),
        ('model = ["checkpoint-5"]', ["item-checkpoint-5"]),
        (f'model = ["{"x" * 300}"]', ["x" * 28]),
    ],
)
def test_names_can_be_read(axis: str, words: list[str], tmp_path: Path) -> None:
    found = items(tmp_path, f'command = "profile"\n[grid]\n{axis}\n')
    assert [item.name.rpartition("-")[0] for item in found] == words


def test_values_become_flags(tmp_path: Path) -> None:
    text = 'command = "profile"\n[grid]\nfrequencies = [true, false]\n[settings]\npage = false\ntau = [1e-4, -1]\nheads = "0:1"\n'
    with pytest.raises(RotoscopeError, match="tau must be positive"):
        items(tmp_path, text)
    found = items(tmp_path, text.replace(", -1", ", 1").replace("heads", "model"))
    assert found[0].line(Path("x"))[1:-1] == [
        "--frequencies",
        "--no-page",
        "--tau=0.0001",
        "--tau=1",
        "--model=0:1",
    ]
    assert "--frequencies" not in found[1].line(Path("x"))


def test_presets_decide_what_a_training_may_be(tmp_path: Path) -> None:
    """A layer that mini has not cannot be favoured; paper has it."""
    text = (
        'command = "train"\n[grid]\ntask = ["number"]\n[settings]\nfavour = "symbolic"\nfavour-layers = "3"\n'
    )
    assert len(items(tmp_path, text)) == 1
    with pytest.raises(RotoscopeError, match="layer 7 cannot be favoured: it is beyond the last, 3"):
        items(tmp_path, text.replace('"3"', '"7"'))
    assert len(items(tmp_path, text.replace('"3"', '"7"') + 'preset = "paper"\n')) == 1


GOOD = 'command = "profile"\n[grid]\nseed = [0, 1]\n[settings]\nprompts = 4\n'
WRONG: dict[str, tuple[str, str]] = {
    "unknown key": (f"comand = 1\n{GOOD}", "sweep.toml, line 1: unknown key 'comand': did you mean 'command'? there are"),
    "unknown axis": (
        GOOD.replace("seed", "sed"), "sweep.toml, line 3: profile has no setting 'sed': did you mean 'seed'? see rotoscope",
    ),
    "unknown setting": (
        GOOD.replace("prompts", "promts"), "sweep.toml, line 5: profile has no setting 'promts': did you mean 'prompts'?",
    ),
    "empty axis": (GOOD.replace("[0, 1]", "[]"), "sweep.toml, line 3: the axis 'seed' is empty; give at least one value"),
    "no list": (GOOD.replace("[0, 1]", "3"), "sweep.toml, line 3: the axis 'seed' must be a list, found 3: write [3]"),
    "no grid": ('command = "profile"\n', "sweep.toml: the sweep has no grid"),
    "a grid that is no table": ('command = "profile"\ngrid = 3\n', "sweep.toml, line 2: grid must be a table"),
    "no command": ("[grid]\nseed = [0]\n", "sweep.toml: it names no command"),
    "a command that is no text": (GOOD.replace('"profile"', "3"), "sweep.toml, line 1: command must be a text, found 3"),
    "unknown command": (
        GOOD.replace("profile", "profil"), "sweep.toml, line 1: no command that makes runs is called 'profil': did you mean 'profile'?",
    ),
    "a command that makes no run": (GOOD.replace("profile", "serve"), "sweep.toml, line 1: no command that makes runs is called 'serve': "),
    "twice in an axis": (GOOD.replace("[0, 1]", "[0, 0]"), "sweep.toml, line 3: the axis 'seed' has 0 twice"),
    "the same item twice": (
        GOOD.replace("seed = [0, 1]", "tau = [1, 1.0]"), "sweep.toml: the items tau1-",
    ),
    "axis and setting": (GOOD.replace("prompts", "seed"), "sweep.toml, line 5: 'seed' is set for all items and is an axis"),
    "an axis twice": (
        GOOD.replace("seed = [0, 1]", "null-draws = [1]\nnull_draws = [2]"), "sweep.toml, line 4: 'null_draws' is there twice",
    ),
    "a folder of one's own": (
        GOOD.replace("prompts = 4", 'out = "x"'), "sweep.toml, line 5: 'out' cannot be set in a sweep: every item has a folder",
    ),
    "out of bounds": (
        GOOD.replace("prompts = 4", "prompts = 0"),
        "sweep.toml: the item with seed = 0 cannot be run: prompts must be at least 1, found 0",
    ),
    "no number": (
        GOOD.replace("prompts = 4", "prompts = 1.5"), "the item with seed = 0 cannot be run: Invalid value for",
    ),
    "a date": (
        GOOD.replace("prompts = 4", "prompts = 2020-01-01"), "prompts must be a text, a number or a list of them, found",
    ),
    "no choice": (GOOD.replace("prompts = 4", 'null = "normal"'), 'cannot be run: Invalid value "normal" for --null'),
    "no TOML": ("command = \n", "sweep.toml cannot be read (Invalid value (at line 1, column 11))"),
    "too many": (
        GOOD.replace("[0, 1]", str(list(range(1001)))) .replace("[settings]", f"gamma = {[k / 9999 for k in range(1000)]}\n[settings]"),
        "sweep.toml: the grid has 1,001,000 items, and 1,000,000 are the most",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_its_line(case: str, tmp_path: Path) -> None:
    text, said = WRONG[case]
    with pytest.raises(RotoscopeError) as problem:
        items(tmp_path, text)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "text",
    [
        'command = "profile"\ngrid.sed = [0]\n',
        'command = "profile"\ngrid = { sed = [0] }\n',
        'command = "profile"\n[grid]\ntau = [\n  [1, 2],\n  ["a"]\n]\nsed = [0]\n',
        'command = "profile"\n[grid] # all of it\n"sed" = [0]\n',
    ],
)
def test_lines_are_found_however_a_key_is_written(text: str, tmp_path: Path) -> None:
    line = text.splitlines().index(next(line for line in text.splitlines() if "sed" in line)) + 1
    with pytest.raises(RotoscopeError, match=rf"sweep.toml, line {line}: profile has no setting 'sed'"):
        items(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RotoscopeError, match="no such sweep file: .*nothing.toml"):
        read_file(tmp_path / "nothing.toml")
    with pytest.raises(RotoscopeError, match="cannot be read"):
        read_file(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        'command = "ask"\n[grid]\nseed = [0, 1]\n[settings]\nendpoint = "https://me:hidden@host/v1"\n',
        'command = "ask"\n[grid]\nseed = [0]\nmodel = ["m"]\n\nendpoint = ["https://host/v1", "https://hidden@host/v1"]\n',
    ],
)
def test_a_password_in_an_address_is_not_written_down(text: str, tmp_path: Path) -> None:
    line = len(text.splitlines())
    message = (
        rf"sweep.toml, line {line}: the address in 'endpoint' holds .*set the variable ROTOSCOPE_ASK_ENDPOINT"
    )
    with pytest.raises(RotoscopeError, match=message) as caught:
        items(tmp_path, text)
    assert "hidden" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.toml")
    with pytest.raises(RotoscopeError, match="cannot be read .*no plain file"):
        read_file(tmp_path / "sweep.toml")


def test_parts_are_all_items_once(tmp_path: Path) -> None:
    found = items(tmp_path, DESIGNED)
    parts = [part_of(found, SweepSettings(shard=f"{k}/3").part) for k in (1, 2, 3)]
    assert sorted(item.name for part in parts for item in part) == sorted(item.name for item in found)
    assert {len(part) for part in parts} == {2, 3}
    assert part_of(found, SweepSettings().part) == found
    assert [len(part_of(found, (k, 20))) for k in (1, 8, 9)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shard": "0/4"}, "--shard 0/4: parts are written as 3/16"),
        ({"shard": "5/4"}, "--shard 5/4: parts are written as 3/16"),
        ({"shard": "third"}, "--shard third: parts are written as 3/16"),
        ({"on": "slurm"}, "unknown on 'slurm'; choose here or ray"),
        ({"address": "auto"}, "--address means something with --on ray only"),
        ({"table": "x.parquet", "dry_run": True}, "--table means something without --dry-run only"),
        ({"on": "ray", "workers": 2}, "--workers means something without --on ray only"),
        ({"workers": 0}, "workers must be at least 1, found 0"),
    ],
)
def test_settings_of_a_sweep(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RotoscopeError) as problem:
        SweepSettings.make(**given)
    assert said in str(problem.value)
