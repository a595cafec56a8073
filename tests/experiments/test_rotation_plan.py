"""Plans of rotating planes: what must be found, what must not be claimed, and what is written."""

from __future__ import annotations

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
from rotoscope.experiments.plan import plane_rankings as plane_gradients
from rotoscope.experiments.plan import rotation_plan
from rotoscope.experiments.plan.plane_rankings import plane_scores, ranks
from rotoscope.experiments.plan.rotation_result import RotationPlan
from rotoscope.experiments.plan.settings import RotationSettings
from rotoscope.measures.batches import Halving
from rotoscope.models.partial_rope import mixed, stopped
from rotoscope.models.reader import HeadReader
from rotoscope.stats.verdict import BEYOND
from tests.models.test_load import word_tokenizer
from tests.planes_needed import DECOY, NEEDED, planes_needed, settings, there_and_back
from tests.tiny_models import tiny, tokens

SMALL: dict[str, Any] = {"sources": ("repeats",), "length": 8, "prompts": 4, "path_points": 2, "planes": 2}


def random_subject(seed: int = 0, **changes: Any) -> rs.Subject:
    return rs.load((tiny("llama", seed=seed, num_hidden_layers=2, **changes), word_tokenizer()), name="tiny")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[rs.Subject, RotationPlan, Path]:
    subject, folder = random_subject(), tmp_path_factory.mktemp("plan") / "run"
    return subject, rs.plan.rotation(subject, plane_budgets=(4,), out=folder, **SMALL), folder


def test_a_key_head_that_needs_one_plane_gets_that_plane(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(there_and_back())
    subject = planes_needed()
    plan = rs.plan.rotation(
        subject,
        planes=1,
        plane_budgets=(1,),
        plane_rankings=("effect", "norm", "random"),
        **settings(tmp_path / "text"),
    )
    assert plan.chosen == "effect"
    kept = plan.plan[plan.plan["rotates"]].set_index("key_head")["frequency_id"].to_dict()
    assert kept == NEEDED
    scores = plan.scores.set_index(["key_head", "frequency_id"])
    for head, needed in NEEDED.items():
        assert scores.loc[head]["effect"].idxmax() == needed
        assert scores.loc[head]["norm"].idxmax() == DECOY
    at = plan.at(1).set_index("ranking")["text"]
    assert at["effect"] == pytest.approx(at["all rotate"], abs=0.05)
    assert at["norm"] > at["all rotate"] + 0.5
    assert "effect beside the best baseline" in plan.sentences()[1]
    assert "it loses less on text" in plan.sentences()[1]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_nothing_is_better_than_random_in_a_random_model(seed: int) -> None:
    plan = rs.plan.rotation(random_subject(seed), seed=seed, plane_budgets=(2,), **SMALL)
    table = plan.beside_random
    assert len(table) == 3
    assert not ((table["verdict"] == BEYOND) & (table["effect"] < 0)).any()
    assert any("no better than guessing" in sentence for sentence in plan.sentences())
    assert not any("is better than random" in sentence for sentence in plan.sentences())


def made_up(losses: dict[str, float], draws: int = 5, prompts: int = 6) -> RotationPlan:
    """A plan from losses at 2 of 8 planes; random draws lose 5 to 5.4, and prompts differ by a tenth."""
    rows = []
    for ranking, loss in {**losses, "random": 5.0}.items():
        for draw in range(draws) if ranking == "random" else (-1,):
            for prompt in range(prompts):
                found = loss + 0.1 * max(draw, 0) + 0.1 * (prompt % 2)
                about = {"ranking": ranking, "draw": draw, "planes": 2, "source": "text", "prompt": prompt}
                rows.append(about | {"loss": found, "accuracy": 0.5})
    frontier = pd.DataFrame(rows)
    plan = pd.DataFrame({"layer": 0, "key_head": 0, "frequency_id": range(1, 9), "rank": range(8)})
    record = rs.runs.RunRecord("rotation-plan", {"planes": 2, "model": "m", "fingerprint": "f"})
    return RotationPlan(record, {"frontier": frontier, "selection": frontier, "plan": plan})


def test_what_is_said_beside_baselines_and_random_planes() -> None:
    ours = made_up({"effect": 2.0, "norm": 3.0}).sentences()
    assert "ranked by effect" in ours[0]
    assert ours[1].startswith(
        "effect beside the best baseline, norm: -1.00 [-1.00, -1.00] on text; it loses less on text."
    )
    assert ours[2:] == ["effect is better than random planes on text."]
    theirs = made_up({"effect": 4.0, "norm": 3.0}).sentences()
    assert "ranked by norm" in theirs[0]
    assert "it loses less on nothing, beyond what prompts differ by, and more on text." in theirs[1]
    assert theirs[1].endswith("The plan uses the baseline norm: effect lost no less where it was chosen.")
    alike = made_up({"effect": 5.1, "norm": 5.2}).sentences()
    assert alike[2:] == ["On text effect is not better than random planes, as far as these prompts tell."]
    worse = made_up({"effect": 9.0}).sentences()
    assert worse[1] == "effect was not compared with a baseline."
    assert worse[2:] == ["On text effect is worse than random planes."]
    few = made_up({"effect": 5.1, "norm": 5.2}, draws=2).sentences()
    assert few[2].startswith("Nothing is said of effect beside random planes (2 draws")


@pytest.mark.parametrize("planes", [0, 8])
def test_where_no_plane_or_every_plane_rotates_nothing_is_chosen(planes: int) -> None:
    how = SMALL | {"planes": planes, "plane_budgets": (2,), "plane_rankings": ("fastest", "effect", "random")}
    plan = rs.plan.rotation(random_subject(), **how)
    said = plan.sentences()
    assert said[0] == f"{planes} of 8 planes of every key head go on rotating, so there was nothing to choose."
    assert not any("fastest" in sentence or "effect" in sentence for sentence in said)
    assert repr(plan) == f"RotationPlan('tiny': {planes} of 8 planes)"


def test_a_plan_keeps_as_many_planes_of_every_key_head(planned: tuple[rs.Subject, RotationPlan, Path]) -> None:
    _, plan, _ = planned
    counts = plan.plan.groupby(["layer", "key_head"])["rotates"].sum()
    assert len(counts) == 4
    assert set(counts) == {2}
    assert (plan.plan["rotates"] == (plan.plan["rank"] < 2)).all()
    for _, rows in plan.plan.groupby(["layer", "key_head"]):
        assert sorted(rows["rank"]) == list(range(8))
        own = plan.scores.loc[rows.index, plan.chosen].to_numpy()
        assert (np.diff(own[rows["rank"].argsort()]) <= 0).all()
    assert sorted(plan.summary["planes"].unique()) == [0, 2, 4, 8]
    assert set(plan.selection["planes"]) == {2}
    least = plan.selection[plan.selection["ranking"] != "random"].groupby("ranking")["loss"].mean()
    assert plan.chosen == least.idxmin()


def test_losses_are_those_of_the_stopped_model(planned: tuple[rs.Subject, RotationPlan, Path]) -> None:
    subject, plan, _ = planned
    reader = HeadReader(subject.model)
    shown = rs.tasks.repeats(subject, 8, 12, 0)[8:]  # the last third
    which = {
        key: frozenset(rows.loc[~rows["rotates"], "frequency_id"])
        for key, rows in plan.plan.groupby(["layer", "key_head"])
    }
    rows = plan.frontier[(plan.frontier["ranking"] == plan.chosen) & (plan.frontier["planes"] == 2)]
    for prompt, loss in zip(shown, rows["loss"], strict=True):
        with torch.no_grad(), stopped(reader, which):
            logits = subject.model(torch.tensor([prompt.tokens])).logits[0, list(prompt.queries)]
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(prompt.answers))
        assert loss == pytest.approx(float(expected), abs=1e-4)


def test_prompts_of_three_purposes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name in ("plane_scores", "measure_losses"):
        right, which = getattr(rotation_plan, name), {"plane_scores": 2, "measure_losses": 1}[name]

        def noted(*given: Any, right: Any = right, which: int = which) -> Any:
            shown = {prompt.tokens for prompt in given[which]["repeats"]}
            if shown not in made:
                made.append(shown)
            return right(*given)

        monkeypatch.setattr(rotation_plan, name, noted)
    rs.plan.rotation(random_subject(), plane_rankings=("fastest", "random"), plane_budgets=(2,), **SMALL)
    shown = made
    assert len(shown) == 3
    assert not shown[0] & shown[1]
    assert not shown[0] & shown[2]
    assert not shown[1] & shown[2]


def test_gradients_are_those_of_the_loss() -> None:
    """-dL/dalpha beside what the loss does when one alpha is moved a little."""
    model = tiny("llama", num_hidden_layers=2).double()
    subject = rs.load((model, word_tokenizer()), name="tiny")
    reader = HeadReader(model)
    shown = {"repeats": rs.tasks.repeats(subject, 6, 2, 0), "more": rs.tasks.repeats(subject, 9, 2, 1)}
    way = [[torch.full((2, 8), share) for _ in range(2)] for share in (0.8, 0.3)]
    found = plane_gradients.stopping_effects(subject, reader, shown, way)
    assert all(weight.requires_grad for weight in model.parameters())
    step = 1e-3
    for layer, head, plane in ((0, 0, 0), (0, 1, 3), (1, 0, 2), (1, 1, 7)):
        slopes = []
        for point in way:
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


def test_scores_are_those_of_a_profile() -> None:
    """A key head takes the largest of its group, in the mean over prompts."""
    subject = random_subject()
    shown = rs.tasks.repeats(subject, 8, 4, 3)
    wanted = RotationSettings(plane_rankings=("norm", "fastest"))
    found = plane_scores(subject, HeadReader(subject.model), {"repeats": shown}, wanted, Halving([]))
    profile = rs.profile(subject, shown, frequencies=True, null="none", queries="last")
    rows = profile.tables["prompt_frequencies"]
    by_head = rows.groupby(["layer", "head", "frequency_id"])["logit_norm"].mean().reset_index()
    for row in found.itertuples():
        own = by_head[(by_head["layer"] == row.layer) & (by_head["frequency_id"] == row.frequency_id)]
        group = own[own["head"].isin((2 * row.key_head, 2 * row.key_head + 1))]["logit_norm"]
        assert len(group) == 2
        assert row.norm == pytest.approx(group.max(), rel=1e-5)
    assert (found["fastest"] == -found["frequency_id"]).all()


def test_ranks() -> None:
    table = pd.DataFrame({"layer": [0, 0, 0, 1], "key_head": 0, "frequency_id": [1, 2, 3, 1]})
    assert ranks(table, pd.Series([0.5, 2.0, 0.5, 9.0])).tolist() == [1, 0, 2, 0]


def test_a_plan_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, right, calls = random_subject(), rotation_plan.measure_losses, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return right(*args, **kwargs)

    how = {"plane_rankings": ("fastest", "norm", "random"), "plane_budgets": (2,), "plane_draws": 2, **SMALL}
    monkeypatch.setattr(rotation_plan, "measure_losses", failing)
    with pytest.raises(KeyboardInterrupt):
        rs.plan.rotation(subject, out=tmp_path / "run", **how)
    with pytest.raises(RunError, match="not finished"):
        rs.open(tmp_path / "run")
    again = rs.plan.rotation(subject, out=tmp_path / "run", **how)
    assert len(calls) == 5 + 6  # four of ten were finished before
    pd.testing.assert_frame_equal(again.frontier, rs.plan.rotation(subject, **how).frontier)
    before = len(calls)
    assert repr(rs.plan.rotation(subject, out=tmp_path / "run", **how)) == repr(again)
    assert len(calls) == before


def test_opened_again(planned: tuple[rs.Subject, RotationPlan, Path]) -> None:
    _, plan, folder = planned
    opened = rs.open(folder)
    assert isinstance(opened, RotationPlan)
    assert opened.sentences() == plan.sentences()
    assert opened.run.details["ranking"] == plan.chosen
    assert [title for title, _ in opened.overview()] == [title for title, _ in plan.overview()]


def test_ranks_as_a_file(planned: tuple[rs.Subject, RotationPlan, Path]) -> None:
    subject, plan, folder = planned
    loaded = rs.plan.load_rotation(folder)
    assert torch.equal(loaded.rank, rs.plan.load_rotation(folder / "rotation.safetensors").rank)
    assert tuple(loaded.rank.shape) == (2, 2, 8)
    assert (loaded.planes, loaded.ranking, loaded.fingerprint) == (2, plan.chosen, subject.fingerprint)
    for row in plan.plan.itertuples():
        assert int(loaded.rank[row.layer, row.key_head, row.frequency_id - 1]) == row.rank
        assert (row.frequency_id in loaded.stopped()[row.layer, row.key_head]) != row.rotates
    assert loaded.stopped(8) == {}


def test_layers_that_do_not_rotate(tmp_path: Path) -> None:
    """Every fourth layer of SmolLM3 has no planes: there is nothing to stop there."""
    subject = rs.load((tiny("smollm3"), word_tokenizer()), name="smollm3")
    plan = rs.plan.rotation(
        subject,
        plane_rankings=("effect", "fastest"),
        plane_budgets=(2,),
        out=tmp_path / "run",
        **SMALL,
    )
    still = [layer for layer, layout in enumerate(HeadReader(subject.model).layouts) if not layout.planes]
    assert still
    assert not set(plan.plan["layer"]) & set(still)
    rank = rs.plan.load_rotation(tmp_path / "run").rank
    assert (rank[still] == -1).all()
    rs.plan.stop_planes(subject, tmp_path / "run")


def test_a_stopped_model_is_saved_and_stopped_again(
    planned: tuple[rs.Subject, RotationPlan, Path], tmp_path: Path
) -> None:
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
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=1, n_head=2, n_positions=64))
    with pytest.raises(NoRotaryError, match="no rotary positions"):
        rs.plan.rotation(rs.load((gpt2, word_tokenizer()), name="gpt2"), **SMALL)
    with pytest.raises(TaskError, match="a plan is judged by what the model answers"):
        rs.plan.rotation(rs.load((tiny("llama").model, word_tokenizer()), name="headless"), **SMALL)


def test_files_that_are_no_plans(planned: tuple[rs.Subject, RotationPlan, Path], tmp_path: Path) -> None:
    _, _, folder = planned
    loaded, file = rs.plan.load_rotation(folder), tmp_path / "rotation.safetensors"
    about = {"fingerprint": "x", "planes": "2", "ranking": "norm", "model": "m"}
    with pytest.raises(RunError, match="is no plan of planes, or damaged"):
        rs.plan.load_rotation(tmp_path)
    file.write_bytes((folder / "rotation.safetensors").read_bytes()[:-9])
    with pytest.raises(RunError, match="is no plan of planes, or damaged"):
        rs.plan.load_rotation(file)
    twice = loaded.rank.clone()
    twice[0, 0, 0] = twice[0, 0, 1]
    for rank, changed in (
        (twice, {}),
        (loaded.rank.float(), {}),
        (loaded.rank[0], {}),
        (loaded.rank, {"planes": "9"}),
        (loaded.rank + 1, {}),
    ):
        save_file({"rank": rank.contiguous()}, file, metadata=about | changed)
        with pytest.raises(RunError, match="is no plan of planes: it should hold ranks"):
            rs.plan.load_rotation(file)
    for lacking in ("planes", "fingerprint"):
        save_file({"rank": loaded.rank}, file, metadata={k: v for k, v in about.items() if k != lacking})
        with pytest.raises(RunError, match="is no plan of planes"):
            rs.plan.load_rotation(file)
    with pytest.raises(RotoscopeError, match="the plan is for 2 layers of 2 key heads with 8 planes"):
        rs.plan.stop_planes(tiny("llama"), folder)
    with pytest.raises(RotoscopeError, match="planes is 9, and a head of this model has 8"):
        rs.plan.stop_planes(random_subject(), folder, planes=9)
