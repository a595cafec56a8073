"""Cache plans: rankings against brute force, plans where there is something to find, and none where there is nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError, TaskError
from rotoscope.experiments.plan.cache_plan import CachePlanner, head_path, key_heads
from rotoscope.experiments.plan.planner import path_gradients, path_points
from rotoscope.experiments.plan.settings import CacheSettings
from rotoscope.measures.batches import Halving
from rotoscope.measures.losses import measure_losses
from rotoscope.models.reader import HeadReader
from rotoscope.models.stream import KeyHead, Streaming, mixed, streaming
from rotoscope.tasks.prompt import Prompt, Prompts
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

SMALL = {"window": 4, "sinks": 1, "prompts": 2, "length": 8, "sources": ("repeats",), "random_draws": 2}
PLANNED: dict[str, Any] = {**SMALL, "rankings": ("far_task", "gradient", "random"), "frontier": (0.5,)}


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    return rs.load((tiny("llama"), word_tokenizer()), name="small")


def ranked_on(subject: rs.Subject, count: int = 3) -> Prompts:
    return rs.tasks.repeats(subject, 8, count, seed=3)


def planner(subject: rs.Subject, shown: Prompts | None = None, **changes: Any) -> CachePlanner:
    """Thirds of the prompts are for ranking, choosing and judging."""
    prompts = rs.tasks.repeats(subject, 8, 9, seed=3) if shown is None else shown
    settings = CacheSettings.make(**{**SMALL, "prompts": len(prompts) // 3, **changes})
    described = {"model": subject.name, "fingerprint": subject.fingerprint, **settings.stored()}
    run = rs.runs.Run(rs.experiments.CachePlan, described)
    return CachePlanner(run, subject, HeadReader(subject.model), settings, {"repeats": prompts})


def head_gradients(
    subject: rs.Subject, prompts: Prompts, streams: Collection[KeyHead] = ()
) -> list[torch.Tensor]:
    reader, plan = HeadReader(subject.model), Streaming(frozenset(EVERYONE), 4, 1)
    path = head_path(reader, path_points(40), streams)
    mixing = lambda mixes: mixed(reader, plan, dict(enumerate(mixes)))  # noqa: E731
    return path_gradients(subject, reader, {"repeats": prompts}, path, mixing, 20)


EVERYONE = [(layer, head) for layer in range(3) for head in range(2)]


def loss_of(subject: rs.Subject, prompts: Prompts, streams: Collection[KeyHead]) -> float:
    reader = HeadReader(subject.model)
    with streaming(reader, Streaming(frozenset(streams), 4, 1)):
        return float(measure_losses(subject, {"task": prompts}, Halving())["loss"].mean())


@pytest.mark.parametrize("streams", [(), ((0, 0), (1, 1))])
def test_gradients_along_the_path_add_up_to_what_streaming_costs(
    subject: rs.Subject, streams: Collection[KeyHead]
) -> None:
    prompts = ranked_on(subject)
    gradients = head_gradients(subject, prompts, streams)
    left = [head for head in EVERYONE if head not in streams]
    cost = loss_of(subject, prompts, EVERYONE) - loss_of(subject, prompts, streams)
    assert sum(float(gradients[layer][head]) for layer, head in left) == pytest.approx(cost, abs=2e-3)
    assert abs(cost) > 0.01


def test_gradients_leave_the_model_as_it_was(subject: rs.Subject) -> None:
    before = [weight.requires_grad for weight in subject.model.parameters()]
    planner(subject).rank("gradient")
    assert [weight.requires_grad for weight in subject.model.parameters()] == before
    assert all(weight.grad is None for weight in subject.model.parameters())


def test_far_attention_is_the_models_own(subject: rs.Subject) -> None:
    prompts = ranked_on(subject)
    total = np.zeros((3, 4))
    subject.model.set_attn_implementation("eager")
    try:
        for prompt in prompts:
            with torch.no_grad():
                maps = subject.model(torch.tensor([prompt.tokens]), output_attentions=True).attentions
            for layer, attention in enumerate(maps):
                for query in prompt.queries:
                    far = [key for key in range(query + 1) if key >= 1 and query - key >= 4]
                    total[layer] += attention[0, :, query, far].sum(-1).numpy()
    finally:
        subject.model.set_attn_implementation("sdpa")
    expected = (total / sum(len(prompt.queries) for prompt in prompts)).reshape(3, 2, 2).max(2)
    ranked = planner(subject).rank("far_task")
    for (layer, head), number in zip(key_heads(ranked), ranked["number"], strict=True):
        assert number == pytest.approx(expected[layer, head], abs=1e-5)


def test_rounds_rank_those_that_are_left(subject: rs.Subject) -> None:
    calls = []

    def score(streams: Collection[KeyHead]) -> np.ndarray:
        calls.append(set(streams))
        # Without (0, 0), (2, 1) needs everything most.
        first = (2, 1) if (0, 0) in streams else (1, 0)
        return np.array([100.0 if head == first else float(k) for k, head in enumerate(EVERYONE)])

    ranked = planner(subject).rank_in_rounds(score).sort_values("place")
    assert [len(streams) for streams in calls] == [0, 2, 3, 4, 5]
    assert all(before < after for before, after in itertools.pairwise(calls))
    assert key_heads(ranked)[0] == (2, 1)
    assert ranked["place"].tolist() == list(range(6))


@pytest.mark.parametrize("name", ["far_task", "gradient", "gradient_rounds"])
def test_every_ranking_ranks_every_head(subject: rs.Subject, name: str) -> None:
    ranked = planner(subject, rankings=(name,)).rank(name)
    assert key_heads(ranked) == EVERYONE
    assert sorted(ranked["place"]) == list(range(6))
    assert np.isfinite(ranked["number"]).all()


PAYLOAD, ASK, COMMON, FILLER, WIDTH = 4, 4, 5, 6, 16
"""Payload tokens 0 to 3; dimensions, and tokens, of the question and of the filler."""
FAR = (0, 2)


def looks_far() -> rs.Subject:
    """One layer of four heads, of which head 2 alone looks for the payload, however far; the others see nothing in anything."""
    config = LlamaConfig(
        vocab_size=8, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        head_dim=8, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
        for weight in (
            attention.v_proj.weight,
            attention.o_proj.weight,
            mlp.down_proj.weight,
            model.lm_head.weight,
        ):
            weight.zero_()
        model.model.embed_tokens.weight.zero_()
        for token in range(8):
            model.model.embed_tokens.weight[token, token if token != COMMON else 7] = 1.0
        model.model.embed_tokens.weight[:PAYLOAD, COMMON] = 1.0
        still = 2 * 8 + 3  # the slowest plane of head 2
        attention.q_proj.weight[still, ASK] = attention.k_proj.weight[still, COMMON] = 4.0
        for k in range(PAYLOAD):
            attention.v_proj.weight[2 * 8 + k, k] = attention.o_proj.weight[k, 2 * 8 + k] = 1.0
            model.lm_head.weight[k, k] = 3.0
    return rs.load(model, name="looks far")


def payloads(seed: int, count: int = 6) -> Prompts:
    dice = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        token = int(dice.integers(PAYLOAD))
        tokens = (FILLER, FILLER, token, *(FILLER,) * 16, ASK)
        items.append(Prompt(tokens, (len(tokens) - 1,), (token,)))
    return Prompts("repeats", tuple(items))


@pytest.mark.parametrize("name", ["far_task", "gradient", "gradient_rounds"])
def test_the_one_head_that_looks_far_keeps_everything(name: str) -> None:
    subject = looks_far()
    ranked = planner(subject, payloads(0), rankings=(name,)).rank(name)
    assert key_heads(ranked.sort_values("place"))[0] == FAR


def planned(subject: rs.Subject, prompts: Prompts, seed: int = 0) -> rs.experiments.CachePlan:
    """A plan on prompts of our own."""
    changes = {**PLANNED, "prompts": 6, "random_draws": 5, "keep": 0.25, "frontier": (0.25,), "seed": seed}
    return planner(subject, prompts, **changes).plan(show_progress=False)


def test_a_plan_keeps_the_head_that_is_needed_and_beats_random_choices() -> None:
    found = planned(looks_far(), payloads(1, 18), seed=1)
    kept = found.heads[~found.heads["streams"]]
    assert [tuple(row) for row in kept[["layer", "key_head"]].to_numpy().tolist()] == [FAR]
    row = found.against_random.iloc[0]
    assert row["loss"] < row["null_value"] - 0.5
    table = found.table("repeats")
    assert table.set_index("ranking").loc["plan", "25 %"] == pytest.approx(table.set_index("ranking").loc["plan", "100 %"], abs=1e-3)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_random_model_gets_no_plan_that_is_better_than_random(seed: int) -> None:
    model = tiny("llama", seed=seed, sharp=1.0)
    subject = rs.load((model, word_tokenizer()), name="random")
    prompts = rs.tasks.repeats(subject, 8, 18, seed=seed)
    found = planned(subject, prompts, seed)
    assert (found.against_random["verdict"] == "also in the null").all()
    assert not (found.against_others["verdict"] == "the plan loses less").any()
    assert "better than random" not in " ".join(found.sentences())


def test_the_plan_is_chosen_on_prompts_that_are_not_shown(subject: rs.Subject) -> None:
    """Whatever the shown prompts say."""
    rows = []
    for ranking, choosing, judging in (("gradient", 1.0, 9.0), ("far_task", 5.0, 2.0)):
        for purpose, loss in (("choosing", choosing), ("judging", judging)):
            about = {"ranking": ranking, "draw": -1, "kept_share": 0.5, "kept_heads": 3, "purpose": purpose}
            rows += [
                about | {"source": "repeats", "prompt": k, "loss": loss, "accuracy": 0.0} for k in range(2)
            ]
    plan = rs.plan.cache(subject, **PLANNED, show_progress=False)
    plan.tables["points"] = pd.DataFrame(rows)
    for name in ("chosen", "judged", "frontier", "against_random", "against_others"):
        vars(plan).pop(name, None)
    assert plan.chosen == {0.5: "gradient"}
    own = plan.frontier[plan.frontier["ranking"] == "plan"]
    assert own["loss"].tolist() == [9.0]


def test_a_run_comes_back_and_goes_on(
    subject: rs.Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rs.plan.cache(subject, **PLANNED, show_progress=False)
    real, calls = measure_losses, 0

    def dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr("rotoscope.experiments.plan.planner.measure_losses", dies)
    with pytest.raises(KeyboardInterrupt):
        rs.plan.cache(subject, **PLANNED, out=tmp_path / "run", show_progress=False)
    before, calls = calls, 100
    found = rs.plan.cache(subject, **PLANNED, out=tmp_path / "run", show_progress=False)
    again = calls - 100
    assert again < 2 + 2 * 4 * 2  # what was finished was not measured again
    assert before == 6
    pd.testing.assert_frame_equal(found.points, whole.points)
    opened = rs.open(tmp_path / "run")
    assert isinstance(opened, rs.experiments.CachePlan)
    pd.testing.assert_frame_equal(opened.heads, found.heads)
    assert repr(opened).startswith("CachePlan('small'")
    said = rs.report.run_payload(tmp_path / "run")["proof"]
    assert said["layers rebuilt after a permutation"] == 3
    assert said["largest difference of an attention weight"] < 1e-4


def test_the_plan_file_says_who_streams(subject: rs.Subject, tmp_path: Path) -> None:
    found = rs.plan.cache(subject, **PLANNED, keep=0.5, out=tmp_path / "run", show_progress=False)
    plan = rs.plan.load_cache(tmp_path / "run")
    assert plan == rs.plan.load_cache(tmp_path / "run" / "plan.json") == rs.plan.load_cache(found)
    streams = found.heads[found.heads["streams"]]
    assert set(plan.streaming) == {tuple(row) for row in streams[["layer", "key_head"]].to_numpy().tolist()}
    assert len(plan.streaming) == 3
    content = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert content["fingerprint"] == subject.fingerprint
    assert content["window"] == 4
    folder = rs.plan.save_duo_attention(plan, tmp_path / "duo")
    assert np.array_equal(np.loadtxt(folder / "full_attention_heads.tsv", delimiter="\t") == 0, plan.mask())
    assert json.loads((folder / "config.json").read_text()) == {"sink_size": 1, "recent_size": 4}
    assert found.memory_share(4096) == pytest.approx(0.5 + 0.5 * 5 / 4096)


def test_a_model_streams_as_planned(subject: rs.Subject) -> None:
    found = rs.plan.cache(subject, **PLANNED, keep=0.5, show_progress=False)
    plan = rs.plan.load_cache(found)
    prompts = ranked_on(subject)
    expected = loss_of(subject, prompts, plan.streaming)
    undo = rs.plan.stream(subject, plan)
    during = float(measure_losses(subject, {"task": prompts}, Halving())["loss"].mean())
    undo()
    assert during == pytest.approx(expected, abs=1e-6)
    after = float(measure_losses(subject, {"task": prompts}, Halving())["loss"].mean())
    assert after == pytest.approx(loss_of(subject, prompts, ()), abs=1e-6)
    assert abs(after - during) > 1e-4


@pytest.mark.parametrize(("keep", "streams"), [(0.0, 6), (1.0, 0)])
def test_all_or_none(subject: rs.Subject, keep: float, streams: int) -> None:
    found = rs.plan.cache(subject, **{**PLANNED, "rankings": ("far_task",)}, keep=keep, show_progress=False)
    assert int(found.heads["streams"].sum()) == streams
    assert found.sentences()[0].endswith(", so there was nothing to choose.")
    assert [title.split(" by ")[0] for title, _ in found.overview()] == ["loss on repeats"]


def test_a_window_that_forgets_nothing_is_refused(subject: rs.Subject) -> None:
    with pytest.raises(
        TaskError, match="7 of 7 tokens that repeats ask for, 7 tokens back, stand among the last 8"
    ):
        rs.plan.cache(subject, **{**PLANNED, "window": 8})
    with pytest.raises(TaskError, match="stand among the last 4 or the first 6, so no head would forget them"):
        rs.plan.cache(subject, **{**PLANNED, "sinks": 6})
    rs.plan.cache(subject, **{**PLANNED, "window": 7, "sinks": 2}, show_progress=False)


@pytest.mark.parametrize("keep", ["125 %", "-1%", 1.2, "a quarter"])
def test_no_such_share(subject: rs.Subject, keep: Any) -> None:
    with pytest.raises(RotoscopeError, match="keep must be|is no share"):
        rs.plan.cache(subject, **PLANNED, keep=keep)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan": 3}, "does not say what its plan is about"),
        ({"plan": "another"}, "a plan of another kind"),
        ({"window": 0}, "a window of 0"),
        ({"window": "4"}, "window is missing"),
        ({"streaming": [[0, 9]]}, "not there"),
        ({"streaming": [[0, 1], [0, 1]]}, "twice"),
        ({"streaming": [[True, 1]]}, "not there"),
        ({"key_heads": []}, "no numbers of heads"),
    ],
)
def test_damaged_plans_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    whole = {
        "plan": "cache", "fingerprint": "0", "window": 4, "sinks": 1, "streaming": [[0, 1]], "key_heads": [2, 2],
    }  # fmt: skip
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(whole))
    assert rs.plan.load_cache(file).streaming == ((0, 1),)
    file.write_text(json.dumps(whole | change))
    with pytest.raises(RunError, match=words):
        rs.plan.load_cache(file)
    file.write_text("{")
    with pytest.raises(RunError, match="is no cache plan, or it is damaged"):
        rs.plan.load_cache(file)


def test_a_plan_for_another_model_is_refused(subject: rs.Subject) -> None:
    plan = rs.plan.load_cache(rs.plan.cache(subject, **PLANNED, show_progress=False))
    other = rs.load((tiny("llama", seed=1), word_tokenizer()), name="other")
    with pytest.raises(RunError, match="the plan was made for small"):
        rs.plan.stream(other, plan)


def test_a_mask_is_a_rectangle() -> None:
    with pytest.raises(RunError, match="a mask is a rectangle"):
        rs.plan.StreamingPlan("0", 4, 1, (), (2, 3)).mask()


def test_lines_to_look_up(stand_in: rs.Subject) -> None:
    """Other sources are judged as well, with their own sizes."""
    how = {
        "sources": ("repeats", "lookup", "text"),
        "pairs": 5,
        "passage": 20,
        "prompts": 1,
        "rankings": ("far_task",),
    }
    found = rs.plan.cache(stand_in, **{**PLANNED, **how}, show_progress=False)
    assert set(found.points["source"]) == {"repeats", "lookup", "text"}
    assert found.run.settings["task_settings"]["lookup"]["pairs"] == 5
    assert [title.split(" by ")[0] for title, _ in found.overview()][:3] == [
        "loss on repeats",
        "loss on lookup",
        "loss on text",
    ]


def test_a_model_of_another_language_is_told_what_it_can_be_judged_by() -> None:
    with pytest.raises(TaskError, match="knows only the words of its letter task"):
        rs.plan.cache("letter")
