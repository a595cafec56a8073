"""What flags say arrives in the run: its settings, its seed, its model, its folder."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli import world as lines
from tests.cli.world import Outcome, World, with_flags
from tests.server import replied, scripted

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "profile": (
        (f"{lines.PROFILE} --prompts 3 --tau 1e6 --queries 8,10 --frequencies --heads 1:2,0:3 --examples --input-swaps 4 "
        "--known --null random --null-draws 2 --length 7 --prefix none --gamma 0.2 --seed 4"),
        {"tau": [1e6], "queries": "8,10", "frequencies": True, "examples": True, "input_swaps": 4, "known": True,
         "null": "random", "null_draws": 2, "length": 7, "prefix": "none",
         "gamma": 0.2, "seed": 4, "count": 3},
    ),
    "depths": (
        (f"{lines.DEPTHS} --prompts 2 --tau 1e6 --at 1 own --swaps 3 --length 5 --prefix none --gamma 0.2 --null random "
        "--null-draws 2 --null-heads all --seed 4"),
        {"tau": [1e6], "at": ["1", "own"], "swaps": 3, "length": 5, "prefix": "none", "gamma": 0.2, "null": "random", "null_draws": 2,
         "null_heads": "all", "seed": 4, "count": 2},
    ),
    "gate": (
        f"{lines.GATE} --prompts 3 --length 8 --prefix none --keep 1-3 --heads 0:1,1:2 --controls 2 --seed 4",
        {"keep": "1-3", "heads": "0:1,1:2", "controls": 2, "length": 8, "prefix": "none", "seed": 4, "count": 3},
    ),
    "plan cache": (
        (f"{lines.CACHE} --keep 50% --window 5 --sinks 2 --frontier 0.75 "
        "--prompts 3 --length 9 --seed 4"),
        {"keep": 0.5, "window": 5, "sinks": 2, "frontier": [0.75],
         "seed": 4},
    ),
    "plan rotation": (
        f"{lines.ROTATION} --planes 3 --prompts 3",
        {"planes": 3, "prompts": 3},
    ),
    "canonical": (
        f"{lines.CANONICAL} --seeds 2 --keys 6 --steps 6 --angles 1 --seed 4",
        {"seeds": 2, "keys": 6, "steps": 6, "seed": 4},
    ),
    "train": (
        (f"{lines.LETTER} --hops 2 --layers 2 --heads 2 --width 16 --nope 1 --steps 9 --watch-every 2 --checkpoints 3 "
        "--base 500 --seed 4"),
        {"hops": 2, "layers": 2, "heads": 2, "width": 16, "nope": [1], "steps": 9, "watch_every": 2, "checkpoints": 3,
         "base": 500.0, "seed": 4},
    ),
    "dynamics": (f"{lines.DYNAMICS} --queries path --inputs 5", {"queries": "path", "inputs": 5}),
    "lengths": (f"{lines.LENGTHS} --lengths 14 15 --inputs 5 --seed 4", {"lengths": [14, 15], "inputs": 5, "seed": 4}),
    "ask": (
        f"{lines.ASK} --lengths 6 7 --runs 2 --questions 3 --seed 4",
        {"lengths": [6, 7], "runs": 2, "questions": 3, "seed": 4},
    ),
}  # fmt: skip
"""A command line with many flags, and what its run must say of itself."""
SEEDED = {
    "profile": (lines.PROFILE, "heads"),
    "depths": (lines.DEPTHS, "curves"),
    "gate": (lines.GATE, "conditions"),
    "plan cache": (lines.CACHE, "points"),
    "plan rotation": (lines.ROTATION, "scores"),
    "canonical": (lines.CANONICAL, "vectors"),
    "train": (lines.LETTER, "metrics"),
    "dynamics": (
        "dynamics {steps} --task repeats --inputs 1 --no-roles --no-page --device cpu",
        "scores",
    ),
    "ask": (lines.ASK, "answers"),
}
"""Commands whose numbers depend on --seed, and the table to look at."""
LOADED = {"profile": lines.PROFILE, "depths": lines.DEPTHS, "gate": lines.GATE, "plan cache": lines.CACHE}
WITH_DEVICE = LOADED | {
    "canonical": lines.CANONICAL,
    "train": lines.LETTER,
    "dynamics": lines.DYNAMICS,
    "lengths": lines.LENGTHS,
    "ask": lines.ASK,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("effects"))
    made.train()
    return made


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not told where to write must not write here."""
    monkeypatch.chdir(tmp_path)


def ran(world: World, line: str, more: str = "") -> Outcome:
    outcome = world.run(with_flags(line, more))
    assert outcome.code == 0, outcome.problem
    return outcome


def refused(world: World, line: str, more: str = "") -> str:
    outcome = world.run(with_flags(line, more))
    assert (outcome.code, outcome.problem.count("\n")) == (2, 1), outcome.problem
    return outcome.problem


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_says_what_its_flags_said(name: str, world: World) -> None:
    line, expected = SETTINGS[name]
    outcome = ran(world, line)
    settings = outcome.settings
    assert {key: settings[key] for key in expected} == expected
    assert "run.json" in outcome.files
    assert not [file for file in outcome.files if file.endswith((".png", ".pdf"))]
    assert not any(Path().iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDED)
def test_another_seed_gives_other_numbers(name: str, world: World) -> None:
    line, table = SEEDED[name]
    first, second = (ran(world, line, f"--seed {seed}").result for seed in (0, 2))
    assert getattr(first, table).to_json() != getattr(second, table).to_json()


def test_null_draws_have_scores_of_their_own(world: World) -> None:
    null = ran(world, SETTINGS["profile"][0]).result.tables["null_prompts"]
    means = null.groupby("draw")["positional_score"].mean()
    assert means.index.tolist() == [0, 1]
    assert means.is_unique


def test_controls_are_drawn_with_the_seed(world: World) -> None:
    first, second = (ran(world, lines.GATE, f"--controls 1 --seed {seed}") for seed in (0, 2))
    assert first.settings["conditions"][1][-1] != second.settings["conditions"][1][-1]


def test_heads_of_a_class_are_those_of_the_profile(world: World) -> None:
    known = ran(world, lines.PROFILE, "--gamma 0.45")
    name, heads = next(iter(known.result.heads["head_class"].value_counts().items()))
    line = "gate {model} --task repeats --length 6 --prompts 2 --no-scores --no-page"
    outcome = ran(world, f"{line} --heads-of-class {name} --classes {known.folder}")
    rows = outcome.result.conditions.drop_duplicates(["condition", "head_group", "draw"])
    rows = rows[rows["condition"] != "nothing gated"]
    assert set(rows["condition"]) == {f"silence {name}"}
    assert set(rows["gated_heads"]) == {int(heads)}
    per_layer = known.result.heads.query("head_class == @name").groupby("layer").size()
    others = math.prod(math.comb(4, number) for number in per_layer) - 1
    assert rows["draw"].tolist() == list(range(-1, min(20, others)))


@pytest.mark.parametrize("name", LOADED)
def test_a_model_is_loaded_as_the_flags_say(name: str, world: World) -> None:
    line = LOADED[name].replace(" --device cpu", "")
    outcome = ran(world, line, "--device-map {map} --dtype bfloat16")
    assert outcome.result.run.subject.device == "cpu, disk"
    assert outcome.result.run.subject.dtype == "bfloat16"


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_the_device_that_is_named_is_used(name: str, world: World) -> None:
    assert "device 'nowhere' cannot be used" in refused(world, WITH_DEVICE[name], "--device nowhere")


@pytest.mark.parametrize("name", ["profile", "gate", "canonical", "train"])
def test_a_run_is_replaced_only_when_asked(name: str, world: World) -> None:
    line = SEEDED[name][0]
    old = ran(world, line).folder
    folder = Path(shutil.copytree(old, old.with_name(f"{name}-again")))
    file = next(folder.rglob("run.json"))
    before = file.read_bytes()
    again = f"{line} --seed 3 --out {folder}"
    assert "--overwrite" in refused(world, again)
    assert file.read_bytes() == before
    ran(world, f"{again} --overwrite")
    assert file.read_bytes() != before


@pytest.mark.slow
def test_a_page_is_replaced_only_when_asked(world: World) -> None:
    first, second = ran(world, lines.PROFILE).folder, ran(world, lines.PROFILE, "--seed 1").folder
    page, other = world.place / "page.html", world.place / "both.html"
    ran(world, f"report {first} --out {page}")
    assert not (first / "report.html").exists()
    assert "--overwrite" in refused(world, f"report {first} {second} --out {page}")
    ran(world, f"report {first} {second} --out {other}")
    assert page.read_text() != other.read_text()
    ran(world, f"report {first} {second} --out {page} --overwrite")
    assert page.read_text() == other.read_text()


def test_an_endpoint_is_asked_for_the_model_and_not_in_a_dry_run(world: World) -> None:
    with scripted(lambda number, request: replied("a1")) as server:
        line = f"ask --endpoint {server.url} --model some/name {lines.QUESTIONS}"
        dry = ran(world, f"{line} --dry-run")
        assert "nothing was sent" in dry.told
        assert not server.asked
        assert not dry.folder.exists()
        outcome = ran(world, f"{line} --body '{{\"max_completion_tokens\": 3}}'")
    assert [(one["model"], one["max_completion_tokens"]) for one in server.asked] == [("some/name", 3)]
    assert outcome.result.answers["answered"].tolist() == ["a1"]
