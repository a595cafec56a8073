from __future__ import annotations

import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.gate import run as module
from rotoscope.experiments.gate.run import Condition, bands, with_controls
from rotoscope.experiments.selection import parse_heads, parse_planes
from rotoscope.models.interventions import Gate, gated
from rotoscope.models.reader import HeadReader
from rotoscope.tasks.prompt import Prompt, Prompts, from_tokens
from tests.models.test_load import word_tokenizer
from tests.tiny_models import EACH, tiny, tokens


def everything(reader: HeadReader) -> Gate:
    return Gate({
        (layer, head): frozenset(range(reader.layouts[layer].planes + 1))
        for layer in range(reader.layers)
        for head in range(reader.head_counts[layer])
    })  # fmt: skip


@pytest.mark.parametrize("name", EACH)
def test_gates_close_and_open_exactly(name: str) -> None:
    model = tiny(name)
    reader, ids = HeadReader(model), tokens()
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
        with gated(reader, Gate()):
            assert torch.equal(model(ids, use_cache=False).logits, plain)
        rotating = next(k for k, layout in enumerate(reader.layouts) if layout.planes)
        with gated(reader, Gate({(rotating, 1): frozenset({1})})):
            assert not torch.allclose(model(ids, use_cache=False).logits, plain, atol=1e-5)
        with gated(reader, Gate(heads=frozenset({(1, 2)}))):
            assert not torch.allclose(model(ids, use_cache=False).logits, plain, atol=1e-5)
        with pytest.raises(RuntimeError, match="in the middle"), gated(reader, everything(reader)):
            raise RuntimeError("in the middle")
        assert torch.equal(model(ids, use_cache=False).logits, plain)


def test_an_unknown_group_is_refused_before_a_model_is_loaded() -> None:
    known = "choose all, positional, symbolic, carried, uniform or mixed"
    with pytest.raises(
        RotoscopeError, match=f"unknown groups 'symbolical'; did you mean 'symbolic'\\? {known}"
    ):
        rs.gate("nowhere", from_tokens(tokens()), groups=["all", "symbolical"])


@pytest.mark.parametrize("name", ["llama", "phi", "deepseek_v3"])
def test_without_any_plane_attention_is_uniform(name: str) -> None:
    model = tiny(name)
    model.set_attn_implementation("eager")
    reader = HeadReader(model)
    with torch.no_grad(), gated(reader, everything(reader)):
        attentions = model(tokens(), use_cache=False, output_attentions=True).attentions
    assert len(attentions) == 3
    for weights in attentions:
        assert torch.allclose(weights[:, :, -1], torch.full((), 1 / 20), atol=1e-6)


def test_one_plane_kept_gives_that_planes_logits() -> None:
    model = tiny("llama")
    model.set_attn_implementation("eager")
    reader = HeadReader(model)
    keep = 3
    closed = Gate({(0, head): frozenset(range(9)) - {keep} for head in range(4)})
    found = {}
    with torch.no_grad(), gated(reader, closed):
        own = model(tokens(1), use_cache=False, output_attentions=True).attentions[0][0, :, -1]
        reader.read(tokens(1), (19,), lambda layer: found.setdefault(layer.layer, layer))
    seen, keys = found[0].at(0).by_plane()
    expected = (seen[:, :, keep - 1] * keys[:, :, keep - 1]).sum(-1).softmax(-1)
    assert torch.allclose(own, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "output"),
    [("llama", "model.layers.1.self_attn.o_proj"), ("gptj", "transformer.h.1.attn.out_proj")],
)
def test_silenced_head_writes_nothing(name: str, output: str) -> None:
    model = tiny(name)
    reader = HeadReader(model)
    written = []
    handle = model.get_submodule(output).register_forward_hook(lambda m, a, o: written.append(a[0]))
    with torch.no_grad(), gated(reader, Gate(heads=frozenset({(1, 2)}))):
        model(tokens(), use_cache=False)
    handle.remove()
    assert (written[0].unflatten(-1, (4, 16))[:, :, 2] == 0).all()
    assert (written[0].unflatten(-1, (4, 16))[:, :, 1] != 0).any()


def test_selections() -> None:
    reader = HeadReader(tiny("llama"))
    assert parse_planes("1-3,8", reader) == (1, 2, 3, 8)
    assert parse_planes("none", reader) == ()
    assert parse_planes([5, 2], reader) == (2, 5)
    angles = reader.layouts[0].angles
    ids = parse_planes("angle 0.01-0.5", reader)
    assert ids == tuple(k + 1 for k in range(8) if 0.01 <= angles[k] <= 0.5)
    for wrong in ("9", "a-b", "angle x", "3-99"):
        with pytest.raises(RotoscopeError):
            parse_planes(wrong, reader)
    for words in ("2:1,0:3", "L2H1, l0h3", "2.1,0.3", [(2, 1), (0, 3)], ["2:1", "L0H3"]):
        assert parse_heads(words, reader, None) == ((2, 1), (0, 3))
    assert len(parse_heads("all", reader, None)) == 12
    for wrong in ("7:0", "1:x", "positional", "nosuch", "L1", "-1:0", "1:2:3", [(1,)], [(0, -1)]):
        with pytest.raises(RotoscopeError):
            parse_heads(wrong, reader, None)
    assert [band[0] for band in bands(reader, 4)] == [1, 3, 5, 7]
    with pytest.raises(RotoscopeError, match="1 to 8 bands"):
        bands(reader, 9)


def test_controls_come_from_the_same_layers() -> None:
    reader = HeadReader(tiny("llama"))
    chosen = Condition("x", "keep", "listed", (1,), ((0, 0), (0, 1), (2, 3)))
    assert next(with_controls(chosen, reader, 20, seed=0)) == chosen
    drawn = list(with_controls(chosen, reader, 20, seed=0))[1:]
    assert all(sorted(layer for layer, _ in one.heads) == [0, 0, 2] for one in drawn)
    assert all(len(set(one.heads)) == 3 for one in drawn)
    assert len({one.heads for one in drawn}) > 5
    alone = Condition("x", "silence", "listed", (), ((1, 2),))
    assert sorted(one.heads for one in list(with_controls(alone, reader, 20, seed=0))[1:]) == [
        ((1, head),) for head in (0, 1, 3)
    ]
    whole = Condition("x", "keep", "all", (1,), parse_heads("all", reader, None))
    assert list(with_controls(whole, reader, 3, seed=0)) == [whole]


def test_a_single_head_of_nine_is_never_beyond_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight other heads allow no p below 1 / 9, however often each of them is drawn."""
    sizes = {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 9}
    subject = rs.load((tiny("llama", **sizes), word_tokenizer()))
    monkeypatch.setattr(module, "text_prompts", lambda subject: {})
    prompts = rs.tasks.repeats(subject, length=8, count=3)
    far_out = {(1, 4): 50.0}

    def measured(subject, reader, condition, sources, halving):
        loss = sum(far_out.get(head, 0.01 * head[1]) for head in condition.heads)
        rows = pd.DataFrame(
            {"source": "task", "prompt": range(3), "loss": [loss, 1.01 * loss, loss], "accuracy": 0.0}
        )
        return {"conditions": rows.assign(**module.labels_of(condition))}

    monkeypatch.setattr(module, "_measure", measured)
    effects = rs.gate(subject, prompts, silence=True, heads="1:4", scores=False).effects
    loss = effects.set_index("measure").loc["loss"]
    assert loss["effect"] > 49
    assert (loss["null_draws"], loss["verdict"]) == (8, "undecided")
    assert loss["reason"] == "8 draws: a verdict of beyond the null takes 19"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[rs.Subject, Prompts]:
    subject = rs.load((tiny("llama"), word_tokenizer()))
    prompts = rs.tasks.repeats(subject, length=8, count=3)
    prose = Prompts("passages", (Prompt(tuple(range(3, 15)), (4, 5), (8, 9)),))
    monkeypatch.setattr(module, "passages", lambda *a, **k: prose)
    return subject, prompts


def test_removing_nothing_changes_nothing(small) -> None:
    found = rs.gate(*small, remove="none")
    by = found.conditions.groupby("condition")["loss"].apply(list)
    assert by["nothing gated"] == by["remove none"]
    moved = found.gated_heads
    assert (moved["positional_score"] == moved["positional_score_gated"]).all()


def test_removing_all_makes_heads_uniform(small) -> None:
    moved = rs.gate(*small, remove="all").gated_heads
    assert (moved["positional_score_gated"] > 0.999).all()
    assert (moved["symbolic_score_gated"] > 0.999).all()


def test_sweep_is_saved_resumed_and_opened(small, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ("all", "mixed")
    whole = rs.gate(*small, bands=2, groups=groups, controls=1)
    calls = []
    measure = module._measure

    def limited(*args):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(args)
        return measure(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_measure", limited)
        with pytest.raises(KeyboardInterrupt):
            rs.gate(*small, bands=2, groups=groups, controls=1, out=tmp_path / "run")
    resumed = rs.gate(*small, bands=2, groups=groups, controls=1, out=tmp_path / "run")
    pd.testing.assert_frame_equal(resumed.conditions, whole.conditions)
    opened = rs.open(tmp_path / "run")
    pd.testing.assert_frame_equal(opened.summary, whole.summary)
    assert {"keep 1-4", "remove 5-8", "remove all", "silence mixed"} <= set(opened.summary["condition"])


def test_one_action_at_a_time(small) -> None:
    with pytest.raises(RotoscopeError, match="say one of"):
        rs.gate(*small, keep="1", remove="2")


@pytest.mark.slow
def test_smollm2_needs_its_planes_to_repeat(smollm2: rs.Subject) -> None:
    prompts = rs.tasks.repeats(smollm2, length=12, count=2)
    summary = rs.gate(smollm2, prompts, remove="all", scores=False).summary.set_index(["condition", "source"])
    assert summary.loc[("nothing gated", "task"), "accuracy"] > 0.3
    assert summary.loc[("remove all", "task"), "accuracy"] < 0.05
    assert summary.loc[("remove all", "text"), "loss"] > summary.loc[("nothing gated", "text"), "loss"] + 1


def test_other_random_controls_are_other_settings(small, tmp_path) -> None:
    """However many heads a control has, a run with other draws is not taken for the same."""
    subject, prompts = small
    many = [(layer, head) for layer in range(3) for head in range(3)]
    rs.gate(subject, prompts, keep="1", heads=many, controls=1, scores=False, out=tmp_path / "run")
    with pytest.raises(RunError, match="other settings"):
        rs.gate(subject, prompts, keep="1", heads=many, controls=1, scores=False, seed=5, out=tmp_path / "run")


def test_a_gate_needs_answers() -> None:
    """Tokens without a task say nothing about right and wrong."""
    with pytest.raises(RotoscopeError, match="say what should come next"):
        rs.gate(tiny("llama"), from_tokens(tokens(1, 12)), keep="1-2", heads="0:1")
