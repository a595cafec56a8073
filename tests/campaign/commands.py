"""Command lines made from the settings types: every flag, with good, odd, huge, empty and hostile values."""

from __future__ import annotations

import inspect
import os
import shutil
import types
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from tests.campaign.damage import HOSTILE, remove
from tests.campaign.kinds import COMMANDS as SMALL
from tests.campaign.kinds import run_command
from tests.campaign.runner import Case, Part

BASES = {
    **{name: command.split(" ") for name, command in SMALL.items()},
    "report": ["report", "profile"],
    "doctor": ["doctor", "profile"],
    "serve": ["serve", "nowhere"],
    "plan": [
        "plan",
        "cache",
        "model",
        "--sources",
        "repeats",
        "--length",
        "8",
        "--window",
        "4",
        "--sinks",
        "1",
        "--prompts",
        "1",
        "--no-page",
    ],
    "sweep": ["sweep", "nowhere.toml"],
    "reproduce": ["reproduce", "p2-nothing"],
}
"""What an odd flag is added to: small, or refused by itself where it would not end or take minutes."""
NUMBERS = (
    "0", "-1", "1", "2", "3", "-0", "1.5", "0.5", "1e3", "1e-320", "1e400", "-1e400", "nan", "inf", "-inf", "0x10", "1_0", " 1",
    "１", "9" * 30, "-" + "9" * 30, "2147483648", "9223372036854775808", "1e-46", "1e38", "1,2", "", "abc", "None", "True", "²",
)  # fmt: skip
WORDS = (
    *HOSTILE, "number", "letter", "all", "none", "1-8", "5-2", "0", "angle 0.1-1", "angle nan-1", "12:0", "0:0", "0:0,1:0", ":", "a:b",
    "1:5,5:9", "a b 1 2", "a1 b2 ca", "fact", "token", "{", '{"max_tokens": 4}', "[1]", "cpu", "cuda:99", "meta", "mps", "-", "--", "~",
    "http://127.0.0.1:9/v1", "http://", "ftp://x", "\udcff", "line\nline", "\x1b[31m", "hf:", "hf:a/b", "a/b", "~nouser/x",
)  # fmt: skip
PLACES = (
    "new", "new/deeper/and/deeper", "profile", "train", "theory", "file.txt", "folder", "full", "loop", "gone", "closed/new", "unreadable",
    "n" * 300, "d/" * 2000 + "x", "", ".", "/nonexistent/x", "/dev/full", "/dev/null", "pipe", "\udcff\udcfe",
    "a\nb", "[/red]", "$HOME", "~nouser/x", "model", "-x", "text.txt", "template.txt", "latin1.txt", "new.html", "file.txt/in",
)  # fmt: skip
REWRITTEN = ("profile", "train", "theory", "model")


def prepare(place: Path, stock: Path) -> Case:
    from rotoscope.cli import commands

    flags = {name: _flags(function) for name, function in commands().items()}
    names = sorted(flags)
    pristine = _furnish(place / "world", stock)
    os.chdir(place / "world")

    def case(number: int, draw: Random) -> str | None:
        name = draw.choice(names)
        tokens = _line(draw, name, flags[name])
        if number % 10 == 0:  # odd words in odd places
            tokens.insert(
                draw.randrange(len(tokens)), draw.choice((*WORDS, *PLACES, "--help", "--version", "--config"))
            )
        try:
            ended = run_command(tokens)
        finally:
            _tidy(place / "world", pristine, stock)
        wrong = ended.wrong(*((1, 2) if "doctor" in tokens else (2,)))
        if wrong is None and os.listdir(place) != ["world"]:
            wrong = f"something was written outside its folder: {os.listdir(place)}"
        return None if wrong is None else f"rotoscope {' '.join(map(ascii, tokens))}: {wrong}"

    return case


def _flags(function: Any) -> dict[str, Any]:
    return {
        name: one.annotation for name, one in inspect.signature(function).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }  # fmt: skip


def _line(draw: Random, name: str, flags: dict[str, Any]) -> list[str]:
    tokens = list(BASES[name])
    if draw.random() < 0.15 and name not in ("serve", "reproduce"):  # another subject
        tokens[1:2] = [draw.choice((*PLACES, *WORDS))] if len(tokens) > 1 else []
    for flag in draw.sample(sorted(flags), min(len(flags), draw.randrange(1, 4))):
        tokens += [f"--{flag.replace('_', '-')}", *_values(draw, flags[flag])]
        if flag == "device" and draw.random() < 0.8:
            tokens[-1] = "cpu"
    if name not in ("serve", "report", "doctor") and draw.random() < 0.6:
        tokens += ["--out", draw.choice(PLACES) if draw.random() < 0.4 else "new"]
    if draw.random() < 0.2:
        tokens.append("--overwrite")
    return tokens


def _values(draw: Random, hint: Any) -> list[str]:
    """What is given to a flag of this type, fitting or not."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    parts = [part for part in get_args(hint) if part is not type(None)] if _is_union(hint) else [hint]
    kind = draw.choice(parts)
    if draw.random() < 0.08:
        return [draw.choice((*WORDS, *NUMBERS, *PLACES))]
    if kind is bool:
        return [] if draw.random() < 0.9 else [draw.choice(WORDS)]
    if get_origin(kind) is Literal:
        return [str(draw.choice(get_args(kind)))] if draw.random() < 0.7 else [draw.choice(WORDS)]
    if get_origin(kind) is tuple:
        return [one for _ in range(draw.randrange(4)) for one in _values(draw, get_args(kind)[0])]
    if kind in (int, float):
        return [draw.choice(NUMBERS)]
    return [draw.choice(PLACES if kind is Path else (*WORDS, *PLACES))]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _furnish(world: Path, stock: Path) -> set[str]:
    """A folder with small runs and with all the things that can stand where a file is expected."""
    remove(world)
    world.mkdir(parents=True)
    for name in (*REWRITTEN, "text.txt", "template.txt"):
        (shutil.copytree if (stock / name).is_dir() else shutil.copy)(stock / name, world / name)
    (world / "file.txt").write_text("w3 w4 w5. w6 w7")
    (world / "latin1.txt").write_bytes(b"caf\xe9 \x00\xff")
    (world / "folder").mkdir()
    (world / "full").mkdir()
    (world / "full" / "precious.txt").write_text("precious")
    (world / "loop").symlink_to("loop")
    (world / "gone").symlink_to("nowhere-at-all")
    (world / "closed").mkdir(mode=0o500)
    (world / "unreadable").mkdir(mode=0)
    os.mkfifo(world / "pipe")
    return set(os.listdir(world))


def _tidy(world: Path, pristine: set[str], stock: Path) -> None:
    """What a case wrote is removed; the runs it may have replaced are put back."""
    if not (world / "full" / "precious.txt").exists():
        raise RuntimeError("a file of the user's is gone")
    for name in set(os.listdir(world)) - pristine:
        remove(world / name)
    for name in REWRITTEN:
        was = {file.name for file in (stock / name).iterdir()}
        if {file.name for file in (world / name).iterdir()} != was or _changed(world / name, stock / name):
            remove(world / name)
            shutil.copytree(stock / name, world / name)
    for left in [
        *(world / "folder").iterdir(),
        *(one for one in (world / "full").iterdir() if one.name != "precious.txt"),
    ]:
        remove(left)


def _changed(now: Path, before: Path) -> bool:
    return any(
        one.stat().st_size != (before / one.name).stat().st_size for one in now.iterdir() if one.is_file()
    )


PART = Part("commands", prepare, share=0.12, limit_s=30, counts="bad inputs")
