"""What to run next: only questions that are open, each a command that the command line takes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.experiments.profile.screen import asked_again, head_steps, next_steps
from rotoscope.runs.record import RunRecord, SubjectRecord


def profile(correct: float, *, null: bool = True, permuted: bool = False, symbolic: bool = True) -> rs.Profile:
    """Two layers of two heads: positional ones, and symbolic ones where asked for."""
    rows = []
    for prompt in range(4):
        for layer in range(2):
            for head in range(2):
                follows = float(symbolic and head == 1)
                rows.append([prompt, prompt, layer, head, 1e-4, 1 - follows, follows, 1.0, 0.1, 0.1, 10.0])
    names = ["prompt", "input_id", "layer", "head", "tau", "positional_score", "symbolic_score"]
    names += ["swapped_mass", "entropy", "relative_entropy", "effective_swaps"]
    prompts = pd.DataFrame(rows, columns=names)
    tables = {
        "prompts": prompts,
        "answers": pd.DataFrame({"prompt": range(4), "correct": [k < 4 * correct for k in range(4)]}),
    }
    if null:
        tables["null_prompts"] = prompts.assign(null_name="random", draw=0)
    if permuted:
        covered = prompts.assign(input_positional_score=1.0, input_symbolic_score=0.0, covered_share=1.0)
        tables["input_prompts"] = covered[
            [
                "prompt",
                "input_id",
                "layer",
                "head",
                "tau",
                "input_positional_score",
                "input_symbolic_score",
                "covered_share",
            ]
        ]
    settings: dict[str, Any] = {
        "model": "SmolLM2-135M-Instruct", "task": "binding", "task_settings": {"pairs": 8, "prefix": "chat", "seed": 3},
        "prompts": 4, "chance": 0.1, "tau": [1e-4], "gamma": 0.1,
    }  # fmt: skip
    subject = SubjectRecord("SmolLM2-135M-Instruct", source={"kind": "embedded"})
    return rs.Profile(RunRecord("profile", settings, subject=subject, tables=list(tables)), tables)


def test_open_questions_alone() -> None:
    commands = [step.command for step in next_steps(profile(1.0, null=False))]
    assert commands[0] == (
        "rotoscope profile smollm2 --task binding --pairs 8 --prompts 4 --prefix chat --seed 3 --null random"
    )
    assert "--input-swaps 64" in commands[1]
    done = [step.command for step in next_steps(profile(1.0, permuted=True))]
    assert not any("--null random" in command or "--input-swaps" in command for command in done)
    assert any(command.startswith("rotoscope depths smollm2") for command in done)  # carried heads were found
    nothing = [step.command for step in next_steps(profile(1.0, symbolic=False))]
    assert not any("depths" in command or "--input-swaps" in command for command in nothing)


def test_an_easier_task_for_a_model_that_fails_and_for_no_other() -> None:
    assert next_steps(profile(0.0))[0].command == "rotoscope profile smollm2 --task recall"
    assert not any("--task recall" in step.command for step in next_steps(profile(1.0)))


def test_the_place_of_a_model_is_quoted() -> None:
    run = profile(1.0).run
    assert run.subject is not None
    place = replace(run, subject=replace(run.subject, source={"kind": "folder", "place": "my models/a'b"}))
    assert shlex.split(asked_again(place, "profile") or "")[:3] == ["rotoscope", "profile", "my models/a'b"]


def test_the_same_prompts_or_no_command() -> None:
    run = profile(1.0).run
    sizes = {"pairs": 8, "prefix": "none", "seed": 0}
    groups = replace(run, settings=run.settings | {"task": "groups", "task_settings": sizes})
    assert (asked_again(groups, "gate") or "").split()[2:] == [
        "smollm2", "--task", "groups", "--pairs", "8", "--prompts", "4", "--prefix", "none",
    ]  # fmt: skip
    for setting in ("distinct", "equal_length"):  # has no flag
        python_only = replace(run, settings=run.settings | {"task_settings": {setting: True}})
        assert asked_again(python_only, "gate") is None
    own = replace(run, settings=run.settings | {"task": "text"})
    assert asked_again(own, "profile") is None  # the text is not in the run
    assert run.subject is not None
    memory = replace(run, subject=replace(run.subject, source={"kind": "memory"}))
    assert asked_again(memory, "profile") is None
    assert head_steps(memory) == []
    assert next_steps(rs.Profile(memory, profile(1.0).tables)) == []


def test_no_gate_for_a_model_that_answers_nothing() -> None:
    silent = profile(1.0)
    silent.tables.pop("answers")
    silent.run.tables.remove("answers")
    assert not any("gate" in step.command for step in [*next_steps(silent), *head_steps(silent.run)])
    assert any("gate" in step.command for step in next_steps(profile(1.0, permuted=True)))
    assert head_steps(profile(1.0).run)[0].command.endswith(
        "--prompts 4 --prefix chat --seed 3 --silence --heads {head}"
    )


@pytest.mark.parametrize("permuted", [False, True])
def test_every_command_is_one_that_the_command_line_takes(permuted: bool) -> None:
    from rotoscope.cli import app

    found = profile(0.0, null=False, permuted=permuted)
    named = [
        step.command.replace("{head}", "1:0").replace("{class}", "symbolic") for step in head_steps(found.run)
    ]
    assert len(named) == 5
    for command in [*(step.command for step in next_steps(found)), *named]:
        app().parse_args(shlex.split(command)[1:], print_error=False, exit_on_error=False)


@pytest.mark.parametrize("same", [["smollm2"], ["smollm2", "--device-map", "balanced"]])
def test_every_next_command_loads_the_model_alike(same: list[str]) -> None:
    from rotoscope.cli import app

    asked = [*next_steps(profile(1.0, null=False), same), *next_steps(profile(1.0, permuted=True), same)]
    assert {shlex.split(step.command)[1] for step in asked} >= {"profile", "gate", "depths"}
    for step in asked:
        app().parse_args(shlex.split(step.command)[1:], print_error=False, exit_on_error=False)
