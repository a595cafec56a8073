from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import ModelError, NumberError, RotoscopeError, RunError, TaskError
from rotoscope.experiments.profile import run as profiling
from rotoscope.models.reader import HeadReader
from tests.tables import scores_agree
from tests.tiny_models import EACH, tiny, tokens
from tests.twin import model_scores

TAUS = (1e-4, 1e-2, 1.0)


def limit(tau: float) -> float:
    return 2e-4 if tau == 1e-4 else 2e-5


def assert_equals_twin(model, ids: torch.Tensor, blocks, layers=None) -> None:
    found = rs.profile(model, tokens=ids, blocks=blocks, tau=TAUS, null="none")
    spans = blocks or [(p, p + 1) for p in range(ids.shape[1] - 1)]
    reader = HeadReader(model)
    for tau in TAUS:
        twins = [model_scores(reader, row[None], spans, tau, layers) for row in ids]
        for layer in twins[0]:
            expected = np.mean([twin[layer] for twin in twins], axis=0)
            rows = found.heads.query("layer == @layer and tau == @tau")
            ours = rows[["positional_score", "symbolic_score"]].to_numpy()
            assert np.abs(ours - expected).max() <= limit(tau)


@pytest.mark.parametrize("name", EACH)
def test_scores_equal_the_models_own_attention_swap_by_swap(name: str) -> None:
    assert_equals_twin(tiny(name), tokens(2, 12), None)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "gptj"])
@pytest.mark.parametrize("blocks", [[(1, 4), (4, 7), (9, 12)], [(0, 1), (1, 4), (4, 6), (7, 12)]])
def test_block_scores_equal_the_models_own_attention(name: str, blocks) -> None:
    assert_equals_twin(tiny(name), tokens(2, 14), blocks)


@pytest.mark.parametrize("equal_length", [pytest.param(True, marks=pytest.mark.slow), False])
def test_smollm2_equals_the_twin(smollm2: rs.Subject, equal_length: bool) -> None:
    prompts = rs.tasks.binding(smollm2, pairs=3, count=1, seed=3, equal_length=equal_length)
    found = rs.profile(smollm2, prompts, tau=TAUS, null="none")
    reader = HeadReader(smollm2.model)
    ids = torch.tensor([prompts[0].tokens])
    for tau in TAUS:
        for layer, expected in model_scores(reader, ids, prompts[0].blocks.spans, tau, [0, 11, 29]).items():
            rows = found.at(tau)[found.at(tau)["layer"] == layer]
            assert len(rows) == 9
            ours = rows[["positional_score", "symbolic_score"]].to_numpy()
            assert np.abs(ours - expected).max() <= limit(tau)


def test_tables() -> None:
    found = rs.profile(tiny("llama"), tokens=tokens(3, 12), tau=[1e-4, 1e-2], null="none")
    assert len(found.heads) == 3 * 4 * 2
    assert len(found.prompts) == 3 * 3 * 4 * 2
    means = found.prompts.groupby(["layer", "head", "tau"])["positional_score"].mean().to_numpy()
    assert np.allclose(means, found.heads["positional_score"])
    assert found.heads["positional_score"].between(0, 1 + 1e-6).all()
    assert set(found.heads["head_class"]) <= {"positional", "symbolic", "uniform", "mixed"}
    assert (found.heads["logit_variance"] <= found.heads["d_pos"] + found.heads["d_sym"]).all()
    assert found.at(1e-2)["tau"].eq(1e-2).all()
    with pytest.raises(RotoscopeError, match="not 0.5"):
        found.at(0.5)
    assert found.accuracy is None


def test_exclusion_columns_equal_the_full_matrix() -> None:
    """Both ways: from the factors, and, under a soft-cap, from the matrix."""
    for name in ("llama", "gemma2"):
        model = tiny(name)
        found = rs.profile(model, tokens=tokens(1, 7), tau=1.0, null="none").heads
        expected = {}
        HeadReader(model).read(
            tokens(1, 7),
            (6,),
            lambda layer: expected.update({layer.layer: rs.exclusion(layer.at(0).logits()[0, :, :6, :6])}),  # noqa: B023
        )
        for layer, spread in expected.items():
            rows = found[found["layer"] == layer]
            for column, value in (
                ("logit_variance", spread.variance),
                ("d_pos", spread.d_pos),
                ("d_sym", spread.d_sym),
            ):
                assert np.allclose(rows[column], value.numpy(), rtol=1e-4, atol=1e-5)


def test_batches_make_no_difference() -> None:
    model, ids = tiny("qwen2"), tokens(6, 15)
    together = rs.profile(model, tokens=ids, tau=1e-2, null="none").prompts
    alone = rs.profile(model, tokens=ids, tau=1e-2, batch_tokens=1, null="none").prompts
    keys = ["prompt", "layer", "head", "tau"]
    pd.testing.assert_frame_equal(
        together.sort_values(keys, ignore_index=True), alone.sort_values(keys, ignore_index=True), atol=2e-5
    )


def test_window_that_hides_every_block_is_missing_with_a_reason() -> None:
    found = rs.profile(tiny("mistral"), tokens=tokens(1, 20), blocks=[(0, 4), (4, 8)], null="none").heads
    assert found["missing_reason"].str.contains("sees no block").all()
    assert found["positional_score"].isna().all()
    assert found["head_class"].isna().all()


def test_several_queries() -> None:
    model, ids = tiny("llama"), tokens(2, 12)
    found = rs.profile(model, tokens=ids, queries=[5, 8, 11], tau=1e-2, null="none")
    assert sorted(found.queries["query_position"].unique()) == [5, 8, 11]
    for position in (5, 8):
        cut = rs.profile(model, tokens=ids[:, : position + 1], tau=1e-2, null="none").prompts
        rows = found.queries[found.queries["query_position"] == position]
        merged = rows.merge(cut, on=["prompt", "layer", "head", "tau"], suffixes=("", "_cut"))
        assert len(merged) == len(cut)
        assert np.allclose(merged["positional_score"], merged["positional_score_cut"], atol=2e-5)
    means = found.queries.groupby(["prompt", "layer", "head", "tau"], sort=False)["symbolic_score"].mean()
    assert np.allclose(means.to_numpy(), found.prompts["symbolic_score"])
    everything = rs.profile(model, tokens=ids, queries="all", tau=1e-2, null="none").queries
    assert sorted(everything["query_position"].unique()) == list(range(2, 12))
    with pytest.raises(TaskError, match="from 2"):
        rs.profile(model, tokens=ids, queries=[1], null="none")


def test_accuracy_is_the_models_own(smollm2: rs.Subject) -> None:
    prompts = rs.tasks.repeats(smollm2, length=12, count=2, seed=1)
    answers = rs.profile(smollm2, prompts, null="none").answers
    assert len(answers) == 2 * 11
    with torch.no_grad():
        logits = smollm2.model(torch.tensor([prompts[1].tokens])).logits[0]
    rows = answers[answers["prompt"] == 1]
    assert rows["predicted"].tolist() == logits[list(prompts[1].queries)].argmax(-1).tolist()
    assert rows["expected"].tolist() == [*prompts[1].tokens[2:13]]
    assert answers["correct"].mean() > 0.3  # repeating is what it can do


class Interrupted(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> list[int]:
    done: list[int] = []
    score = profiling.score_batch

    def limited(reader, batch, *rest):
        if len(done) == batches:
            raise Interrupted
        done.append(batch.first)
        return score(reader, batch, *rest)

    monkeypatch.setattr(profiling, "score_batch", limited)
    return done


def test_killed_run_goes_on_where_it_was(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), tokens(5, 12)
    whole = rs.profile(model, tokens=ids, null="none", batch_tokens=12)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            rs.profile(model, tokens=ids, null="none", batch_tokens=12, out=tmp_path / "run")
    with pytest.raises(RunError, match="not finished"):
        rs.open(tmp_path / "run")
    with monkeypatch.context() as patch:
        done = stop_after(patch, 9)
        resumed = rs.profile(model, tokens=ids, null="none", batch_tokens=12, out=tmp_path / "run")
    assert done == [3, 4]
    pd.testing.assert_frame_equal(resumed.prompts, whole.prompts)
    assert not (tmp_path / "run" / "pieces").exists()
    with monkeypatch.context() as patch:
        done = stop_after(patch, 0)  # a finished run is opened, not computed
        again = rs.profile(model, tokens=ids, null="none", batch_tokens=12, out=tmp_path / "run")
    pd.testing.assert_frame_equal(again.heads, whole.heads)


def test_other_settings_are_not_mixed_in(tmp_path) -> None:
    model, ids = tiny("llama"), tokens(2, 12)
    rs.profile(model, tokens=ids, out=tmp_path / "run", null="none")
    with pytest.raises(RunError, match=r"other settings \(tau"):
        rs.profile(model, tokens=ids, tau=1e-2, out=tmp_path / "run", null="none")
    with pytest.raises(RunError, match="fingerprint"):
        rs.profile(tiny("llama", seed=1), tokens=ids, out=tmp_path / "run", null="none")
    replaced = rs.profile(model, tokens=ids, tau=1e-2, out=tmp_path / "run", overwrite=True, null="none")
    assert replaced.taus == [1e-2]


def test_nan_stops_the_run_and_names_the_layer(tmp_path) -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[2].self_attn.q_proj.weight[0, 0] = torch.nan
    with pytest.raises(NumberError, match="layer 2"):
        rs.profile(model, tokens=tokens(), out=tmp_path / "run")


def test_bad_calls() -> None:
    model = tiny("llama")
    with pytest.raises(RotoscopeError, match="give prompts"):
        rs.profile(model)
    with pytest.raises(TaskError, match="two keys before the query"):
        rs.profile(model, tokens=tokens(1, 2), null="none")
    with pytest.raises(RotoscopeError, match="prompts bring their own tokens and blocks"):
        rs.profile(model, rs.tasks.number(4), tokens=tokens(1, 12))
    with pytest.raises(RotoscopeError, match="give one of: prompts, text, tokens"):
        rs.known_heads(model, text="w3 w4", tokens=tokens(1, 9))
    made = rs.profile(model, tokens=tokens(1, 12), null="none")
    with pytest.raises(RotoscopeError, match=r"this profile has tau = \[0.0001\], not 0.5"):
        made.at(0.5)
    with pytest.raises(RotoscopeError, match="made without frequencies=True"):
        _ = made.frequencies
    with pytest.raises(RotoscopeError, match=r"one query per prompt; its rows are in \.prompts"):
        _ = made.queries


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.parametrize("name", EACH)
def test_cuda_equals_cpu(name: str) -> None:
    """Fused kernels, queries and keys out of a GPU's own forward pass, everything fetched at once."""
    settings = {"tokens": tokens(4, 24) % 9 + 3, "tau": [1e-4, 1e-2, 1.0], "null": "none", "frequencies": True}
    on_cpu = rs.profile(tiny(name).float(), **settings)
    on_gpu = rs.profile(tiny(name).float().cuda(), **settings)
    scores_agree(on_cpu.heads, on_gpu.heads)
    scores_agree(on_cpu.frequencies, on_gpu.frequencies)
    for column in ("entropy", "d_pos", "swapped_mass"):
        assert np.allclose(on_cpu.heads[column], on_gpu.heads[column], atol=2e-4)


SHOWN: dict[str, Any] = {"tokens": tokens(2, 12), "null": "none", "examples": False, "show_progress": False}


def test_a_model_that_another_thread_reads_is_refused() -> None:
    model = tiny("llama")
    expected = rs.profile(model, **SHOWN)
    running, go_on = threading.Event(), threading.Event()

    def pause(*_: Any) -> None:
        if not running.is_set():
            running.set()
            assert go_on.wait(30)

    hook = model.register_forward_pre_hook(pause)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(rs.profile, model, **SHOWN)
        assert running.wait(30)
        others = [pool.submit(rs.profile, model, **SHOWN) for _ in range(2)]
        refusals = [other.exception() for other in others]
        go_on.set()
        assert first.result().heads.equals(expected.heads)
    hook.remove()
    for refusal in refusals:
        with pytest.raises(ModelError, match="is being read by another thread; let the threads take turns"):
            raise refusal or AssertionError("it was read")
    assert rs.profile(model, **SHOWN).heads.equals(expected.heads)


def test_three_threads_get_right_numbers_or_a_sentence() -> None:
    model, together = tiny("llama"), threading.Barrier(3)
    expected = rs.profile(model, **SHOWN)

    def outcome() -> Any:
        together.wait(30)
        try:
            return rs.profile(model, **SHOWN)
        except ModelError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(3) as pool:
        outcomes = [future.result() for future in [pool.submit(outcome) for _ in range(3)]]
    for found in outcomes:
        right = "another thread" in found if isinstance(found, str) else found.heads.equals(expected.heads)
        assert right, found


def test_threads_with_a_model_each() -> None:
    models = [tiny("llama", seed=seed) for seed in range(3)]
    expected = [rs.profile(model, **SHOWN).heads for model in models]
    with ThreadPoolExecutor(3) as pool:
        profiles = list(pool.map(lambda model: rs.profile(model, **SHOWN), models))
    assert all(profile.heads.equals(heads) for profile, heads in zip(profiles, expected, strict=True))


def test_a_reading_within_a_reading() -> None:
    model = tiny("llama")
    reader = HeadReader(model)
    with reader.ready():
        assert rs.profile(model, **SHOWN).heads.equals(rs.profile(tiny("llama"), **SHOWN).heads)


def test_a_subject_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    init = HeadReader.__init__
    monkeypatch.setattr(HeadReader, "__init__", lambda self, *a, **k: made.append(self) or init(self, *a, **k))
    subject = rs.load(tiny("llama"))
    first, second = (rs.profile(subject, **SHOWN) for _ in range(2))
    assert len(made) == 1
    pd.testing.assert_frame_equal(first.heads, second.heads)
    rs.profile(subject, **SHOWN, prove=True)
    subject.model.model.layers[1].self_attn = tiny("llama", seed=1).model.layers[1].self_attn
    other = rs.profile(subject, **SHOWN)
    assert len(made) == 3
    assert not other.heads.equals(first.heads)


def test_examples_are_made_when_they_are_needed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = tiny("llama"), []
    make = profiling.examples
    monkeypatch.setattr(profiling, "examples", lambda *a, **k: made.append(a) or make(*a, **k))
    shown = SHOWN | {"examples": True}
    profile, later = rs.profile(model, **shown), rs.profile(model, **shown)
    assert not made
    profile.report(tmp_path / "page.html")
    assert len(profile.attention) == 12
    assert len(made) == 1
    kept = rs.profile(model, **shown, out=tmp_path / "run")
    pd.testing.assert_frame_equal(rs.open(tmp_path / "run").attention, profile.attention)
    assert len(made) == 2
    assert kept.has_examples
    with torch.no_grad():
        model.lm_head.weight += 1
    assert not later.has_examples  # the model is another by now
    assert len(made) == 2


def test_texts_and_token_ids_as_prompts(stand_in: rs.Subject) -> None:
    pair, quiet = (stand_in.model, stand_in.tokenizer), {"show_progress": False}
    text = "The cat sat. The dog ran. The bird flew. Who ran? The"
    expected = rs.profile(stand_in, rs.tasks.text(stand_in, text, "token"), **quiet).heads
    for given in (
        rs.profile(stand_in.model, text, tokenizer=stand_in.tokenizer, **quiet),
        rs.profile(pair, [text], **quiet),
    ):
        pd.testing.assert_frame_equal(given.heads, expected)
    words = rs.profile(pair, "one two three four", **quiet)
    assert words.shown_prompt["block"].max() > 0
    ids = tokens(2, 12)
    expected = rs.profile(tiny("llama"), **SHOWN).heads
    for given in (ids, ids.tolist(), ids.numpy()):
        pd.testing.assert_frame_equal(rs.profile(tiny("llama"), given, **quiet).heads, expected)
    with pytest.raises(TaskError, match=r"write rs\.profile\(model, text, tokenizer=tokenizer\)"):
        rs.profile(tiny("llama"), "some text")
    with pytest.raises(RotoscopeError, match="tau must be a number, found the text '1e-4': write tau=1e-4"):
        rs.profile(tiny("llama"), **SHOWN, tau="1e-4")
    with pytest.raises(RotoscopeError, match="prompts are made by rotoscope.tasks"):
        rs.profile(tiny("llama"), 5)


def test_heads_by_name_and_by_what_is_at_stake() -> None:
    profile = rs.profile(tiny("llama"), **SHOWN)
    row = profile.at().query("layer == 1 and head == 2").iloc[0]
    for head in (profile.head(1, 2), profile["1:2"], profile["L1H2"], profile["1.2"], profile[1, 2]):
        pd.testing.assert_series_equal(head, row, check_names=False)
    heads = profile.at().assign(head_class=["symbolic", "mixed", "positional"] * 4)
    profile.heads[["head_class"]] = heads[["head_class"]]
    stake = heads["symbolic_score"] * heads["swapped_mass"]
    expected = stake[heads["head_class"] == "symbolic"].nlargest(3)
    top = profile.top("symbolic", 3)
    assert (top["symbolic_score"] * top["swapped_mass"]).tolist() == pytest.approx(expected.tolist())
    assert len(profile.top("positional", 9)) == 4
    with pytest.raises(RotoscopeError, match="'symbol' is no class of heads: choose positional, symbolic"):
        profile.top("symbol")
    with pytest.raises(RotoscopeError, match="there is no head 9:9: layers go from 0 to 2, heads from 0 to 3"):
        profile["9:9"]
    with pytest.raises(RotoscopeError, match="heads are written layer:head"):
        profile["head 3"]
