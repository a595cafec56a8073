"""Plans of rotating planes: what must be found, what must not be claimed, and what is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

import rotoscope as rs
from rotoscope.errors import NoRotaryError, RotoscopeError, RunError, TaskError
from rotoscope.experiments.plan import planner
from rotoscope.experiments.plan.planner import path_gradients
from rotoscope.experiments.plan.result import RotationPlan
from rotoscope.experiments.plan.rotation_plan import RotationPlanner
from rotoscope.experiments.plan.settings import RotationSettings
from rotoscope.models.partial_rope import mixed, stopped
from rotoscope.models.reader import HeadReader
from rotoscope.tasks.prompt import Prompts
from tests.models.test_load import word_tokenizer
from tests.planes_needed import DECOY, NEEDED, planes_needed, settings, there_and_back
from tests.tiny_models import tiny, tokens

SMALL: dict[str, Any] = {
    "sources": ("repeats",),
    "length": 8,
    "prompts": 4,
    "path_points": 2,
    "planes": 2,
    "random_draws": 5,
    "show_progress": False,
}


def random_subject(seed: int = 0, **changes: Any) -> rs.Subject:
    return rs.load((tiny("llama", seed=seed, num_hidden_layers=2, **changes), word_tokenizer()), name="tiny")


def planner_of(subject: rs.Subject, shown: Prompts, count: int) -> RotationPlanner:
    wanted = RotationSettings.make(prompts=count, sources=("repeats",))
    run = rs.runs.Run(RotationPlan, {"model": subject.name, **wanted.stored()})
    return RotationPlanner(run, subject, HeadReader(subject.model), wanted, {"repeats": shown})


Planned = tuple[rs.Subject, RotationPlan, Path]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    subject, folder = random_subject(), tmp_path_factory.mktemp("plan") / "run"
    return subject, rs.plan.rotation(subject, budgets=(4,), out=folder, **SMALL), folder


def test_a_key_head_that_needs_one_plane_gets_that_plane(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(there_and_back())
    plan = rs.plan.rotation(
        planes_needed(),
        planes=1,
        budgets=(1,),
        rankings=("effect", "norm"),
        **settings(tmp_path / "text"),
    )
    assert plan.ranking == "effect"
    kept = plan.plan[plan.plan["rotates"]].set_index("key_head")["frequency_id"].to_dict()
    assert kept == NEEDED
    best = plan.scores.query("place == 0").set_index(["ranking", "key_head"])["frequency_id"]
    assert [best["effect", head] for head in NEEDED] == list(NEEDED.values())
    assert [best["norm", head] for head in NEEDED] == [DECOY, DECOY]
    losses = plan.table("text").set_index("ranking")
    assert losses.loc["effect", "1"] == pytest.approx(losses.loc["effect", "8"], abs=0.05)
    assert losses.loc["norm", "1"] > losses.loc["norm", "8"] + 0.5
    verdicts = plan.against_others.set_index("ranking")["verdict"]
    assert verdicts["norm"] == "the plan loses less"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_nothing_is_better_than_random_in_a_random_model(seed: int) -> None:
    plan = rs.plan.rotation(random_subject(seed), seed=seed, budgets=(2,), **SMALL)
    assert len(plan.against_random) == 1
    assert "beyond the null" not in set(plan.against_random["verdict"])
    assert any("no better than guessing" in sentence for sentence in plan.sentences())
    assert not any("better than random" in sentence for sentence in plan.sentences())


@pytest.mark.parametrize("planes", [0, 8])
def test_where_no_plane_or_every_plane_rotates_nothing_is_chosen(planes: int) -> None:
    how = SMALL | {"planes": planes, "budgets": (2,), "rankings": ("fastest", "effect", "random")}
    plan = rs.plan.rotation(random_subject(), **how)
    sentences = plan.sentences()
    assert (
        sentences[0]
        == f"{planes} of 8 planes of every key head go on rotating, so there was nothing to choose."
    )
    assert not any("fastest" in sentence or "effect" in sentence for sentence in sentences)
    assert repr(plan) == f"RotationPlan('tiny': {planes} of 8 planes)"
    assert set(plan.plan["rotates"]) == {planes == 8}


def test_a_plan_keeps_as_many_planes_of_every_key_head(planned: Planned) -> None:
    _, plan, _ = planned
    counts = plan.plan.groupby(["layer", "key_head"])["rotates"].sum()
    assert len(counts) == 4
    assert set(counts) == {2}
    assert (plan.plan["rotates"] == (plan.plan["rank"] < 2)).all()
    scores = plan.scores[plan.scores["ranking"] == plan.ranking].reset_index(drop=True)
    for _, rows in plan.plan.groupby(["layer", "key_head"]):
        assert sorted(rows["rank"]) == list(range(8))
        own = scores.loc[rows.index, "number"].to_numpy()
        assert (np.diff(own[rows["rank"].argsort()]) <= 0).all()
    assert plan.budgets == [0, 2, 4, 8]
    least = plan.points[(plan.points["purpose"] == "choosing") & (plan.points["planes"] == 2)]
    assert plan.ranking == least.groupby("ranking")["loss"].mean().idxmin()
    draws = plan.points[(plan.points["ranking"] == "random") & (plan.points["planes"] == 2)]
    assert (draws["draw"].nunique(), draws["prompt"].nunique()) == (5, 2)


def test_losses_are_those_of_the_stopped_model(planned: Planned) -> None:
    subject, plan, _ = planned
    reader = HeadReader(subject.model)
    shown = rs.tasks.repeats(subject, 8, 12, 0)[8:]  # the last third
    which = {
        key: frozenset(rows.loc[~rows["rotates"], "frequency_id"])
        for key, rows in plan.plan.groupby(["layer", "key_head"])
    }
    rows = plan.judged[(plan.judged["ranking"] == plan.ranking) & (plan.judged["planes"] == 2)]
    for prompt, loss in zip(shown, rows["loss"], strict=True):
        with torch.no_grad(), stopped(reader, which):
            logits = subject.model(torch.tensor([prompt.tokens])).logits[0, list(prompt.queries)]
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(prompt.answers))
        assert loss == pytest.approx(float(expected), abs=1e-4)


def test_prompts_of_three_purposes_differ() -> None:
    subject = random_subject()
    made = planner_of(subject, rs.tasks.repeats(subject, 8, 12, 0), 4)
    purposes = (made.ranking_prompts, made.choosing_prompts, made.judging_prompts)
    sets = [{prompt.tokens for prompt in prompts["repeats"]} for prompts in purposes]
    assert [len(prompts) for prompts in sets] == [4, 2, 4]
    assert len(set.union(*sets)) == 10
    assert {prompt.tokens for prompt in made.random_prompts["repeats"]} < sets[2]


def test_gradients_are_those_of_the_loss() -> None:
    """-dL/dalpha beside what the loss does when one alpha is moved a little."""
    model = tiny("llama", num_hidden_layers=2).double()
    subject = rs.load((model, word_tokenizer()), name="tiny")
    reader = HeadReader(model)
    shown = {"repeats": rs.tasks.repeats(subject, 6, 2, 0), "more": rs.tasks.repeats(subject, 9, 2, 1)}
    path = [[torch.full((2, 8), share) for _ in range(2)] for share in (0.8, 0.3)]
    found = path_gradients(subject, reader, shown, path, partial(mixed, reader))
    assert all(weight.requires_grad for weight in model.parameters())
    step = 1e-3
    for layer, head, plane in ((0, 0, 0), (0, 1, 3), (1, 0, 2), (1, 1, 7)):
        slopes = []
        for point in path:
            ends = []
            for side in (step, -step):
                moved = [part.clone().double() for part in point]
                moved[layer][head, plane] += side
                with mixed(reader, moved), torch.no_grad():
                    ends.append(np.mean([_loss(model, prompts) for prompts in shown.values()]))
            slopes.append((ends[0] - ends[1]) / (2 * step))
        assert float(found[layer][head, plane]) == pytest.approx(-np.mean(slopes), rel=1e-2, abs=1e-4)


def _loss(model: Any, prompts: Any) -> float:
    losses = []
    for prompt in prompts:
        logits = model(torch.tensor([prompt.tokens]), use_cache=False).logits[0, list(prompt.queries)]
        losses.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(prompt.answers))))
    return float(np.mean(losses))


def test_norms_are_those_of_a_profile() -> None:
    """A key head takes the largest of its group, in the mean over prompts."""
    subject = random_subject()
    shown = rs.tasks.repeats(subject, 8, 4, 3)
    made = planner_of(subject, shown, 4)
    ranked = made.rank("norm")
    profile = rs.profile(subject, shown, frequencies=True, null="none", queries="last")
    rows = profile.tables["prompt_frequencies"]
    by_head = rows.groupby(["layer", "head", "frequency_id"])["logit_norm"].mean().reset_index()
    for row in ranked.itertuples():
        own = by_head[(by_head["layer"] == row.layer) & (by_head["frequency_id"] == row.frequency_id)]
        group = own[own["head"].isin((2 * row.key_head, 2 * row.key_head + 1))]["logit_norm"]
        assert len(group) == 2
        assert row.number == pytest.approx(group.max(), rel=1e-5)
    fastest = made.rank("fastest")
    assert (fastest["place"] == fastest["frequency_id"] - 1).all()


def test_of_equal_planes_the_faster_is_kept_first() -> None:
    made = planner_of(random_subject(), Prompts("repeats", ()), 1)
    numbers = np.tile([0.5, 2.0, 0.5, 9.0, 0.5, 0.5, 0.5, 0.5], 4)
    assert made.placed(numbers)["place"].tolist() == 4 * [2, 1, 3, 0, 4, 5, 6, 7]


def test_a_plan_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, right, calls = random_subject(), planner.measure_losses, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return right(*args, **kwargs)

    how = SMALL | {"rankings": ("fastest", "norm", "random"), "budgets": (2,), "random_draws": 2}
    monkeypatch.setattr(planner, "measure_losses", failing)
    with pytest.raises(KeyboardInterrupt):
        rs.plan.rotation(subject, out=tmp_path / "run", **how)
    with pytest.raises(RunError, match="not finished"):
        rs.open(tmp_path / "run")
    again = rs.plan.rotation(subject, out=tmp_path / "run", **how)
    assert len(calls) == 6 + 4  # the ends and the first ranking, twice, were finished before
    pd.testing.assert_frame_equal(again.points, rs.plan.rotation(subject, **how).points)
    before = len(calls)
    assert repr(rs.plan.rotation(subject, out=tmp_path / "run", **how)) == repr(again)
    assert len(calls) == before


def test_ranks_as_a_file(planned: Planned) -> None:
    subject, plan, folder = planned
    opened, loaded = rs.open(folder), rs.plan.load_rotation(folder)
    assert isinstance(opened, RotationPlan)
    assert opened.sentences() == plan.sentences()
    assert torch.equal(loaded.rank, rs.plan.load_rotation(folder / "rotation.safetensors").rank)
    assert tuple(loaded.rank.shape) == (2, 2, 8)
    assert (loaded.planes, loaded.ranking, loaded.fingerprint) == (2, plan.ranking, subject.fingerprint)
    for row in plan.plan.itertuples():
        assert int(loaded.rank[row.layer, row.key_head, row.frequency_id - 1]) == row.rank
        assert (row.frequency_id in loaded.stopped()[row.layer, row.key_head]) != row.rotates
    assert loaded.stopped(8) == {}


def test_layers_that_do_not_rotate(tmp_path: Path) -> None:
    """Every fourth layer of SmolLM3 has no planes: there is nothing to stop there."""
    subject = rs.load((tiny("smollm3"), word_tokenizer()), name="smollm3")
    how = SMALL | {"rankings": ("effect", "fastest"), "budgets": (2,), "path_points": 1, "prompts": 1}
    plan = rs.plan.rotation(subject, out=tmp_path / "run", **how)
    still = [layer for layer, layout in enumerate(HeadReader(subject.model).layouts) if not layout.planes]
    assert still
    assert not set(plan.plan["layer"]) & set(still)
    rank = rs.plan.load_rotation(tmp_path / "run").rank
    assert (rank[still] == -1).all()
    rs.plan.stop_planes(subject, tmp_path / "run")


def test_a_stopped_model_is_saved_and_stopped_again(planned: Planned, tmp_path: Path) -> None:
    _, plan, folder = planned
    subject, loaded = random_subject(), rs.plan.load_rotation(folder)
    with torch.no_grad(), stopped(HeadReader(subject.model), loaded.stopped()):
        expected = subject.model(tokens()).logits
    model = rs.plan.stop_planes(subject.model, plan)
    assert model is subject.model
    with torch.no_grad():
        assert torch.allclose(model(tokens()).logits, expected, atol=1e-4)
        model.lm_head.weight.mul_(1.5)  # as if it had been trained
        after = model(tokens()).logits
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model")
    with torch.no_grad():
        assert not torch.allclose(again(tokens()).logits, after, atol=1e-2)
    with pytest.raises(RotoscopeError, match="made for another model"):
        rs.plan.stop_planes(again, folder)
    again = rs.plan.stop_planes(again, folder, uptrained=True)
    with torch.no_grad():
        assert torch.allclose(again(tokens()).logits, after, atol=1e-4)


def test_what_cannot_be_planned() -> None:
    with pytest.raises(RotoscopeError, match="planes is 9, and a head of tiny has 8"):
        rs.plan.rotation(random_subject(), **SMALL | {"planes": 9})
    with pytest.raises(RotoscopeError, match="at no budget would some of the 32 frequency ids be kept"):
        rs.plan.rotation(random_subject(), **SMALL | {"planes": 8, "budgets": (0, 8)})
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=1, n_head=2, n_positions=64))
    with pytest.raises(NoRotaryError, match="no rotary positions"):
        rs.plan.rotation(rs.load((gpt2, word_tokenizer()), name="gpt2"), **SMALL)
    with pytest.raises(TaskError, match="a plan is judged by what the model answers"):
        rs.plan.rotation(rs.load((tiny("llama").model, word_tokenizer()), name="headless"), **SMALL)


def test_files_that_are_no_plans(planned: Planned, tmp_path: Path) -> None:
    _, _, folder = planned
    loaded, file = rs.plan.load_rotation(folder), tmp_path / "rotation.safetensors"
    metadata = {"fingerprint": "x", "planes": "2", "ranking": "norm", "model": "m"}
    twice = loaded.rank.clone()
    twice[0, 0, 0] = twice[0, 0, 1]
    damages = [(twice, {}), (loaded.rank.float(), {}), (loaded.rank[0], {}), (loaded.rank, {"planes": "9"}), (loaded.rank + 1, {})]  # fmt: skip
    for rank, changed in damages:
        save_file({"rank": rank.contiguous()}, file, metadata=metadata | changed)
        with pytest.raises(RunError, match="is no plan of planes: it should hold ranks"):
            rs.plan.load_rotation(file)
    for lacking in ("planes", "fingerprint"):
        save_file({"rank": loaded.rank}, file, metadata={k: v for k, v in metadata.items() if k != lacking})
        with pytest.raises(RunError, match="is no plan of planes, or damaged"):
            rs.plan.load_rotation(file)
    file.write_bytes((folder / "rotation.safetensors").read_bytes()[:-9])
    for missing in (file, tmp_path / "nowhere"):
        with pytest.raises(RunError, match="is no plan of planes, or damaged"):
            rs.plan.load_rotation(missing)
    with pytest.raises(RotoscopeError, match="the plan is for 2 layers of 2 key heads with 8 planes"):
        rs.plan.stop_planes(tiny("llama"), folder)
    with pytest.raises(RotoscopeError, match="planes is 9, and a head of this model has 8"):
        rs.plan.stop_planes(random_subject(), folder, planes=9)
