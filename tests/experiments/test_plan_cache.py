"""Cache plans: rankings against brute force, plans where there is something to find, and none where there is nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError, TaskError
from rotoscope.experiments.plan.cache_plan import CachePlanner, cache_prompts, head_path, key_heads
from rotoscope.experiments.plan.planner import path_gradients, path_points
from rotoscope.experiments.plan.result import CachePlan
from rotoscope.experiments.plan.settings import CacheSettings
from rotoscope.measures.batches import Halving, measure_losses
from rotoscope.models.reader import HeadReader
from rotoscope.models.streaming import KeyHead, Streaming, mixed, streaming
from rotoscope.tasks.prompt import Prompt, Prompts
from tests.models.test_load import word_tokenizer
from tests.plans import cache_plan
from tests.tiny_models import tiny

SMALL = {"window": 4, "sinks": 1, "prompts": 2, "length": 8, "sources": ("repeats",), "random_draws": 2}
PLANNED: dict[str, Any] = {
    **SMALL,
    "rankings": ("far_task", "random"),
    "frontier": (0.5,),
    "show_progress": False,
}
EVERYONE = [(layer, head) for layer in range(3) for head in range(2)]
NAMES = pytest.mark.parametrize("name", ["far_task", "gradient", "gradient_rounds"])


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    return rs.load((tiny("llama"), word_tokenizer()), name="small")


@pytest.fixture(scope="module")
def planned(subject: rs.Subject, tmp_path_factory: pytest.TempPathFactory) -> tuple[CachePlan, Path]:
    folder = tmp_path_factory.mktemp("plan") / "run"
    return rs.plan.cache(subject, **PLANNED, keep=0.5, out=folder), folder


def planner(subject: rs.Subject, prompts: Prompts, **changes: Any) -> CachePlanner:
    """Thirds of the prompts are for ranking, choosing and judging."""
    settings = CacheSettings.make(**{**SMALL, "prompts": len(prompts) // 3, **changes})
    described = {"model": subject.name, "fingerprint": subject.fingerprint, **settings.stored()}
    run = rs.runs.Run(CachePlan, described)
    return CachePlanner(run, subject, HeadReader(subject.model), settings, {"repeats": prompts})


def repeats_planner(subject: rs.Subject) -> CachePlanner:
    return planner(subject, rs.tasks.repeats(subject, 8, 9, seed=3))


def loss_of(subject: rs.Subject, prompts: Prompts, streams: Collection[KeyHead]) -> float:
    with streaming(HeadReader(subject.model), Streaming(frozenset(streams), 4, 1)):
        return float(measure_losses(subject, {"task": prompts}, Halving())["loss"].mean())


@pytest.mark.parametrize("streams", [(), ((0, 0), (1, 1))])
def test_gradients_along_the_path_add_up_to_what_streaming_costs(
    subject: rs.Subject, streams: Collection[KeyHead]
) -> None:
    prompts, plan = rs.tasks.repeats(subject, 8, 2, seed=3), Streaming(frozenset(EVERYONE), 4, 1)
    reader = HeadReader(subject.model)
    path = head_path(reader, path_points(20), streams)
    mixing = lambda mixes: mixed(reader, plan, dict(enumerate(mixes)))  # noqa: E731
    gradients = path_gradients(subject, reader, {"repeats": prompts}, path, mixing, 20)
    left = [head for head in EVERYONE if head not in streams]
    cost = loss_of(subject, prompts, EVERYONE) - loss_of(subject, prompts, streams)
    assert sum(float(gradients[layer][head]) for layer, head in left) == pytest.approx(cost, abs=2e-3)
    assert abs(cost) > 0.01
    weights = list(subject.model.parameters())
    assert all(weight.requires_grad and weight.grad is None for weight in weights)


def test_far_attention_is_the_models_own(subject: rs.Subject) -> None:
    prompts = rs.tasks.repeats(subject, 8, 9, seed=3)[:3]
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
    ranked = repeats_planner(subject).rank("far_task")
    for (layer, head), number in zip(key_heads(ranked), ranked["number"], strict=True):
        assert number == pytest.approx(expected[layer, head], abs=1e-5)


def test_rounds_rank_those_that_are_left(subject: rs.Subject) -> None:
    calls = []

    def score(streams: Collection[KeyHead]) -> np.ndarray:
        calls.append(set(streams))
        # Without (0, 0), (2, 1) needs everything most.
        first = (2, 1) if (0, 0) in streams else (1, 0)
        return np.array([100.0 if head == first else float(k) for k, head in enumerate(EVERYONE)])

    ranked = repeats_planner(subject).rank_in_rounds(score).sort_values("place")
    assert [len(streams) for streams in calls] == [0, 2, 3, 4, 5]
    assert all(before < after for before, after in itertools.pairwise(calls))
    assert key_heads(ranked)[0] == (2, 1)
    assert ranked["place"].tolist() == list(range(6))


@NAMES
def test_every_ranking_ranks_every_head(subject: rs.Subject, name: str) -> None:
    ranked = repeats_planner(subject).rank(name)
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
    generator = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        token = int(generator.integers(PAYLOAD))
        tokens = (FILLER, FILLER, token, *(FILLER,) * 16, ASK)
        items.append(Prompt(tokens, (len(tokens) - 1,), (token,)))
    return Prompts("repeats", tuple(items))


@NAMES
def test_the_one_head_that_looks_far_keeps_everything(name: str) -> None:
    ranked = planner(looks_far(), payloads(0)).rank(name)
    assert key_heads(ranked.sort_values("place"))[0] == FAR


def plan_of(subject: rs.Subject, prompts: Prompts, seed: int) -> CachePlan:
    changes = {
        "rankings": ("far_task", "gradient", "random"),
        "random_draws": 20,
        "keep": 0.25,
        "frontier": (0.25,),
    }
    return planner(subject, prompts, **changes, seed=seed).plan(show_progress=False)


def test_a_plan_keeps_the_head_that_is_needed_and_beats_random_choices() -> None:
    plan = plan_of(looks_far(), payloads(1, 18), seed=1)
    assert key_heads(plan.heads[~plan.heads["streams"]]) == [FAR]
    row = plan.against_random.iloc[0]
    assert row["loss"] < row["null_value"] - 0.5
    losses = plan.table("repeats").set_index("ranking").loc["plan"]
    assert losses["25 %"] == pytest.approx(losses["100 %"], abs=1e-3)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_a_random_model_gets_no_plan_that_is_better_than_random(seed: int) -> None:
    subject = rs.load((tiny("llama", seed=seed, sharp=1.0), word_tokenizer()), name="random")
    plan = plan_of(subject, rs.tasks.repeats(subject, 8, 18, seed=seed), seed)
    assert "beyond the null" not in set(plan.against_random["verdict"])
    assert not (plan.against_others["verdict"] == "the plan loses less").any()
    assert "better than random" not in " ".join(plan.sentences())


def test_the_plan_is_chosen_on_prompts_that_are_not_shown() -> None:
    """Whatever the judging prompts say: gradient loses least where the plan is chosen, and most where it is judged."""
    plan = cache_plan()
    points = plan.points
    chosen = points["ranking"] == "gradient"
    points.loc[chosen & (points["purpose"] == "choosing"), "loss"] = 0.0
    points.loc[chosen & (points["purpose"] == "judging"), "loss"] = 9.0
    assert set(plan.chosen.values()) == {"gradient"}
    rows = plan.frontier[
        plan.frontier["ranking"].isin(("plan", "gradient")) & (plan.frontier["kept_share"] == 0.25)
    ]
    assert set(rows["loss"]) == {9.0}


def test_a_run_is_opened_exported_and_used(
    planned: tuple[CachePlan, Path], subject: rs.Subject, tmp_path: Path
) -> None:
    found, folder = planned
    opened = rs.open(folder)
    assert isinstance(opened, CachePlan)
    assert repr(opened).startswith("CachePlan('small'")
    assert rs.report.run_payload(folder)["proof"]["layers rebuilt after a permutation"] == 3
    plan = rs.plan.load_cache(folder)
    assert plan == rs.plan.load_cache(folder / "plan.json") == rs.plan.load_cache(opened)
    assert set(plan.streaming) == set(key_heads(found.heads[found.heads["streams"]]))
    assert len(plan.streaming) == 3
    content = json.loads((folder / "plan.json").read_text())
    assert (content["fingerprint"], content["window"], content["plan"]) == (subject.fingerprint, 4, "cache")
    duo = rs.plan.save_duo_attention(plan, tmp_path / "duo")
    assert np.array_equal(np.loadtxt(duo / "full_attention_heads.tsv", delimiter="\t") == 0, plan.mask())
    assert found.memory_share(4096) == pytest.approx(0.5 + 0.5 * 5 / 4096)
    other = rs.load((tiny("llama", seed=1), word_tokenizer()), name="other")
    with pytest.raises(RunError, match="the plan was made for small"):
        rs.plan.stream(other, plan)


def test_a_model_streams_as_planned(planned: tuple[CachePlan, Path], subject: rs.Subject) -> None:
    plan = rs.plan.load_cache(planned[0])
    prompts = rs.tasks.repeats(subject, 8, 3, seed=3)
    expected = loss_of(subject, prompts, plan.streaming)
    undo = rs.plan.stream(subject, plan)
    during = float(measure_losses(subject, {"task": prompts}, Halving())["loss"].mean())
    undo()
    assert during == pytest.approx(expected, abs=1e-6)
    after = float(measure_losses(subject, {"task": prompts}, Halving())["loss"].mean())
    assert after == pytest.approx(loss_of(subject, prompts, ()), abs=1e-6)
    assert abs(after - during) > 1e-4


# Shares: those that were asked for are measured, and where nothing is chosen nothing is compared.


@pytest.mark.parametrize(("keep", "streams"), [(0.0, 6), (0.01, 6), (0.99, 0), (1.0, 0)])
def test_where_all_heads_or_none_stream_nothing_is_chosen(
    subject: rs.Subject, keep: float, streams: int
) -> None:
    plan = rs.plan.cache(subject, **PLANNED | {"prompts": 1}, keep=keep)
    assert int(plan.heads["streams"].sum()) == streams
    assert plan.ranking == "any"
    assert plan.sentences()[0].endswith(", so there was nothing to choose.")
    assert "nan" not in " ".join(plan.sentences())
    assert not any("ranked on" in caveat for caveat in plan.caveats())


def test_shares_that_keep_as_many_heads_are_one_point(subject: rs.Subject) -> None:
    """A third, and nearly a third: both are 2 of 6 heads, and the share that was asked for is measured."""
    shares = (0.3333, 0.3334, 0.501, 0.502)
    plan = rs.plan.cache(subject, **PLANNED | {"rankings": "far_task", "frontier": shares}, keep=1 / 3)
    assert plan.budgets == [0.0, 1 / 3, 0.502, 1.0]
    assert plan.points.groupby("kept_share")["kept_heads"].unique().explode().tolist() == [0, 2, 3, 6]
    kept = plan.scores[plan.scores["place"] < 2]
    assert set(key_heads(kept)) == set(key_heads(plan.heads[~plan.heads["streams"]]))
    assert plan.sentences()[0].endswith("chosen by far_task, the only ranking that was asked for.")
    assert not any("random choices" in title for title, _ in plan.overview())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"keep": keep}, "keep must be|is no share") for keep in ("125 %", "-1%", 1.2, "a quarter")),
        ({"rankings": "random"}, "random rankings are what a plan is compared with"),
        ({"sources": "text"}, "heads are ranked on repeats .--task., which is not among"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RotoscopeError, match=words):
        CacheSettings.make(**changes)


def test_no_share_between_none_and_all(subject: rs.Subject) -> None:
    with pytest.raises(RotoscopeError, match="at no budget would some of the 6 key heads be kept and others"):
        rs.plan.cache(subject, **PLANNED | {"frontier": (0.01, 1.0)}, keep=0.01)


# Prompts: what is asked lies where a streaming head has forgotten it.


@pytest.mark.parametrize(
    ("window", "pairs"),
    [
        (32, (12, 16)),
        *(pytest.param(w, p, marks=pytest.mark.slow) for w, p in [(256, (95, 110)), (512, (110, 110))]),
    ],
)
def test_what_is_looked_up_is_forgotten(stand_in: rs.Subject, window: int, pairs: tuple[int, int]) -> None:
    """Of every prompt: those that heads are ranked on, that rankings are chosen on, and that are judged."""
    settings = CacheSettings.make(sources=("repeats", "lookup"), window=window, prompts=4)
    sources = cache_prompts(stand_in, settings)
    assert len(sources["lookup"]) == len(sources["repeats"]) == 12
    assert pairs[0] <= sources["lookup"].settings["pairs"] <= pairs[1]
    for prompts in sources.values():
        for prompt in prompts:
            for query, answer in zip(prompt.queries, prompt.answers, strict=True):
                places = [k for k, token in enumerate(prompt.tokens[: query + 1]) if token == answer]
                assert places
                assert all(query - place >= window for place in places)
                assert prompts.task == "repeats" or min(places) >= settings.sinks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": 8}, "7 of 7 tokens that repeats ask for, 7 tokens back, stand among the last 8"),
        ({"sinks": 6}, "stand among the last 4 or the first 6, so no head would forget them"),
        ({"sources": ("repeats", "lookup"), "pairs": 4, "window": 32, "length": 64}, r"lines all stand among the last .*give more lines"),
        ({"sources": "text", "task": "text", "passage": 12, "window": 11}, r"hold all of a prompt of 12 \(text\)"),
    ],
)  # fmt: skip
def test_prompts_that_a_window_holds_are_refused(
    stand_in: rs.Subject, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(TaskError, match=words):
        rs.plan.cache(stand_in, **PLANNED | changes)


def test_another_text_under_the_same_name_is_another_run(subject: rs.Subject, tmp_path: Path) -> None:
    def write(seed: int) -> Path:
        words = np.random.default_rng(seed).integers(3, 128, 600)
        (tmp_path / "words.txt").write_text(" ".join(f"w{k}" for k in words))
        return tmp_path / "words.txt"

    how = PLANNED | {
        "sources": ("text",),
        "task": "text",
        "passage": 12,
        "rankings": "far_task",
        "out": tmp_path / "run",
    }
    first = rs.plan.cache(subject, text=write(0), **how)
    assert first.run.settings["vocabulary"] == subject.model.config.vocab_size
    assert rs.plan.cache(subject, text=str(write(0)), **how).run.settings == first.run.settings
    with pytest.raises(RunError, match="prompts_hash"):
        rs.plan.cache(subject, text=write(1), **how)
    other = rs.plan.cache(subject, text=write(1), overwrite=True, **how)
    assert not np.allclose(first.points["loss"], other.points["loss"])


def test_a_model_of_another_language_is_told_what_it_can_be_judged_by() -> None:
    with pytest.raises(TaskError, match="knows only the words of its letter task"):
        rs.plan.cache("letter")
