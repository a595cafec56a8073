"""The same heads on several tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.profile import across_tasks
from rotoscope.experiments.profile.across_tasks import Agreement, profile_tasks, variance_components
from rotoscope.experiments.registry import figures_of
from rotoscope.tasks.prompt import Prompts, from_tokens
from tests.figures.drawn import footer, ticks
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny, tokens

PLAIN = {"null": "none", "examples": False, "show_progress": False, "gamma": 0.45}


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    return rs.load((tiny("llama"), word_tokenizer()), name="tiny")


@pytest.fixture(scope="module")
def prompts(subject: rs.Subject) -> list[Prompts]:
    return [
        rs.tasks.repeats(subject, 6, 4),
        rs.tasks.repeats(subject, 8, 3, 1),
        from_tokens(tokens(3, 12)),
    ]


@pytest.fixture(scope="module")
def found(subject: rs.Subject, prompts: list[Prompts]) -> tuple[dict[str, rs.Profile], Agreement]:
    return profile_tasks(subject, prompts, **PLAIN)


def test_tables_are_those_of_the_profiles(found: tuple[dict[str, rs.Profile], Agreement]) -> None:
    profiles, result = found
    assert list(profiles) == ["repeats", "repeats-2", "tokens"]
    one, other = profiles["repeats"].at(), profiles["tokens"].at()
    pair = result.pairs.set_index(["task", "other_task"]).loc[("repeats", "tokens")]
    assert (pair["heads"], pair["agreed"]) == (12, (one["head_class"] == other["head_class"]).sum())
    assert len(result.pairs) == 3
    classes = result.classes().set_index(["layer", "head"])
    assert classes["tokens"].tolist() == profiles["tokens"].at()["head_class"].tolist()
    assert (classes["same_on_all"] == (classes[list(profiles)].nunique(axis=1) == 1)).all()
    assert 0 < classes["same_on_all"].sum() < 12
    about = result.tasks.set_index("task")
    assert about.loc["repeats", ["prompts", "accuracy"]].tolist() == [4, profiles["repeats"].accuracy]
    assert about.loc["repeats-2", "chance"] == 1 / 8
    assert about.loc["tokens", ["positional", "symbolic", "uniform", "mixed"]].sum() == 12
    scores = np.stack(
        [  # of the four prompts the first three, as many as the others have
            one.prompts[one.prompts["prompt"] < 3]
            .pivot(index=["layer", "head"], columns="prompt", values="symbolic_score")
            .to_numpy()
            for one in profiles.values()
        ],
        axis=1,
    )
    rows = result.components[result.components["score"] == "symbolic_score"].set_index("component")
    assert rows["variance"].to_dict() == pytest.approx(variance_components(scores.astype(float)))
    assert rows["share"].sum() == pytest.approx(1)
    assert (rows["prompts"] == 3).all()


def test_agreement_of_finished_profiles(found: tuple[dict[str, rs.Profile], Agreement], tmp_path: Path) -> None:
    profiles, result = found
    again = rs.agreement(list(profiles.values()), out=tmp_path / "run")
    for name in ("tasks", "heads", "pairs", "components"):
        pd.testing.assert_frame_equal(again.tables[name], result.tables[name])
        pd.testing.assert_frame_equal(rs.open(tmp_path / "run").tables[name], result.tables[name])
    alone = list(profiles.values())[:1]
    with pytest.raises(RotoscopeError, match="two tasks at least, found 1"):
        rs.agreement(alone)
    strange = rs.Profile(replace(alone[0].run, settings=alone[0].run.settings | {"fingerprint": "x"}), {})
    with pytest.raises(RotoscopeError, match="differ in fingerprint cannot be compared"):
        rs.agreement([*alone, strange])
    permuted = rs.Profile(replace(alone[0].run, settings=alone[0].run.settings | {"input_swaps": 4}), {})
    with pytest.raises(RotoscopeError, match="differ in input_swaps cannot be compared: 0, 4"):
        rs.agreement([*alone, permuted])  # only one of them can have carried heads


def test_every_task_is_a_run_and_resumes(
    subject: rs.Subject,
    prompts: list[Prompts],
    found: tuple[dict[str, rs.Profile], Agreement],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, profile = [], across_tasks.profile

    def limited(subject: rs.Subject, shown: Prompts, *rest: object, **how: object) -> rs.Profile:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(shown.task)
        return profile(subject, shown, *rest, **how)

    with monkeypatch.context() as patch:
        patch.setattr(across_tasks, "profile", limited)
        with pytest.raises(KeyboardInterrupt):
            profile_tasks(subject, prompts, **PLAIN, out=tmp_path / "run")
    assert not (tmp_path / "run" / "tokens").exists()
    first = (tmp_path / "run" / "repeats" / "run.json").read_bytes()
    with pytest.raises(RunError, match="not finished"):
        rs.open(tmp_path / "run")
    profile_tasks(subject, prompts, **PLAIN, out=tmp_path / "run")
    assert (tmp_path / "run" / "repeats" / "run.json").read_bytes() == first  # it was there already
    result = rs.open(tmp_path / "run", Agreement)
    pd.testing.assert_frame_equal(result.pairs, found[1].pairs)
    assert len(rs.open(tmp_path / "run" / "tokens").heads) == 12
    profiles, again = profile_tasks(subject, prompts, **PLAIN, out=tmp_path / "run")
    assert list(profiles) == list(found[0])
    pd.testing.assert_frame_equal(again.components, result.components)
    with pytest.raises(RunError, match="other settings"):
        profile_tasks(subject, prompts, **PLAIN | {"gamma": 0.2}, out=tmp_path / "run")


def test_one_prompt_has_no_components(subject: rs.Subject, prompts: list[Prompts]) -> None:
    _, result = profile_tasks(subject, [prompts[0][:1], prompts[2]], **PLAIN)
    assert result.components.empty
    assert any("no variance components" in caveat for caveat in result.run.warnings)
    assert [name for name, _ in figures_of(result)] == ["task_agreement"]
    with pytest.raises(RotoscopeError, match="two tasks at least, found 1"):
        profile_tasks(subject, prompts[:1], **PLAIN)


def test_figure(found: tuple[dict[str, rs.Profile], Agreement]) -> None:
    result = found[1]
    [(name, figure)] = list(figures_of(result))
    assert name == "task_agreement"
    left, right = figure.axes
    assert [one.get_xdata().tolist() for one in left.lines] == [result.pairs["share"].tolist()]
    assert list(ticks(left, "y").values()) == ["repeats, repeats-2", "repeats, tokens", "repeats-2, tokens"]
    ends = [segment[:, 0].tolist() for segment in left.collections[0].get_segments()]
    assert ends == result.pairs[["null_low", "null_high"]].to_numpy().tolist()
    widths = [[bar.get_width() for bar in bars] for bars in right.containers]
    shares = result.components.pivot(index="component", columns="score", values="share")
    names = [bars.get_label() for bars in right.containers]
    assert np.allclose(widths, shares.loc[names].to_numpy())
    assert "tiny; repeats (4 prompts)" in footer(figure)
