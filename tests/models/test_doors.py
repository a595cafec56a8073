"""Folders of models that are no plain language models: encoders, backbones, and the text part of models of pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import ModelError, TaskError, UnprovenError
from rotoscope.models import layer as layer_of_heads
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.scores import counterfactual as factors
from rotoscope.scores.attention import attention_weights
from rotoscope.scores.counterfactual import turn
from tests.models.test_load import word_tokenizer
from tests.tiny_models import GROUPED, OTHERS, from_config, other, sharpened, tokens

ENCODERS = [name for name in OTHERS if name.startswith("modernbert")]


def saved(model: tf.PreTrainedModel, place: Path) -> Path:
    model.save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    return place


def scores(model: object) -> torch.Tensor:
    found = rs.profile(model, tokens=tokens(2, 12), null="none", examples=False, show_progress=False).heads
    return torch.tensor(found[["positional_score", "symbolic_score", "entropy"]].to_numpy())


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_gives_the_model_that_was_saved(name: str, tmp_path: Path) -> None:
    model = other(name)
    found = rs.load(saved(model, tmp_path / "m"), device="cpu")
    assert type(found.model) is type(model)
    assert found.source == {"kind": "folder", "place": str(tmp_path / "m")}
    assert found.warnings == ()
    assert found.fingerprint == rs.load(model).fingerprint
    for key, weight in model.state_dict().items():
        assert torch.equal(found.model.state_dict()[key], weight)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_read_is_what_the_model_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the proof, by its own attention, and not by a reader that turns the wrong way."""
    model = other(name)
    model.set_attn_implementation("eager")
    reader, found = HeadReader(model), []
    assert (reader.layers, reader.both_ways) == (3, name in ENCODERS)
    assert max(reader.proof) <= 1e-5
    reader.read(tokens(), (19,), lambda layer: found.append(layer.at(0)))
    with torch.no_grad():
        own = model(tokens(), output_attentions=True).attentions
    for ours, weights in zip(found, own, strict=True):
        assert torch.allclose(attention_weights(ours.real(), ours.sinks), weights[:, :, -1], atol=1e-5)
    for place in (factors, layer_of_heads):
        monkeypatch.setattr(place, "turn", lambda pairs, cos, sin: turn(pairs, cos, -sin))
    with pytest.raises(UnprovenError, match="differs from what was read"):
        HeadReader(model)


@pytest.mark.parametrize("name", ["llava", "smolvlm"])
def test_the_text_part_scores_as_it_does_alone(name: str) -> None:
    model = other(name)
    alone = model.model.text_model if name == "smolvlm" else model.model.language_model
    assert torch.equal(scores(model), scores(alone))


def test_a_backbone_scores_as_it_does_under_its_head() -> None:
    model = from_config(tf.LlamaConfig(**GROUPED))
    assert torch.equal(scores(model), scores(model.model))


@pytest.mark.parametrize("name", ["modernbert", "llama without a head"])
def test_a_model_that_does_not_say_what_comes_next_has_no_accuracy(name: str) -> None:
    subject = rs.load((other(name), word_tokenizer()))
    prompts = rs.tasks.repeats(subject, length=6, count=2)
    profile = rs.profile(subject, prompts, null_draws=2, show_progress=False)
    assert profile.accuracy is None
    why = "sees what comes next" if name in ENCODERS else "has no head that says what comes next"
    assert any(f"no accuracy: {type(subject.model).__name__} {why}" in said for said in profile.run.warnings)
    assert len(profile.heads) == 12
    for refused in (
        lambda: rs.gate(subject, prompts, silence=True, heads="0:0"),
        lambda: rs.known_heads(subject, tokens=tokens(2, 12)),
        lambda: rs.profile(subject, prompts, known=True),
    ):
        with pytest.raises(TaskError, match=why):
            refused()
    with pytest.raises(TaskError, match="writes no text"):
        rs.experiments.one_hop_local(subject)


@pytest.mark.parametrize("prove", [True, False])
def test_only_the_last_position_of_an_encoder_is_a_query(prove: bool) -> None:
    """Others have keys on both sides of them, and would be scored without the later ones."""
    model = other("modernbert")
    for queries in ("all", [5, 11]):
        with pytest.raises(TaskError, match="only the last position, 11, can be a query"):
            rs.profile(model, tokens=tokens(2, 12), null="none", queries=queries, prove=prove)
    assert len(rs.profile(model, tokens=tokens(2, 12), null="none", queries=[11], prove=prove).heads) == 12


def test_a_language_model_that_was_made_to_look_both_ways_is_found_out() -> None:
    """Its class says nothing of it; the mask does."""
    model = sharpened(tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED, is_causal=False)).eval(), 5.0)
    assert HeadReader(model, prove=False).both_ways


def test_prompts_of_an_encoder_are_permuted_as_a_whole() -> None:
    """Every position depends on every other, so no beginning of a prompt can be kept."""
    runs = Reruns(HeadReader(other("modernbert")))
    assert not runs.keeps
    assert runs.proof <= 1e-5
    subject = rs.load((other("modernbert"), word_tokenizer()))
    prompts = rs.tasks.repeats(subject, length=6, count=2)
    found = rs.profile(subject, prompts, null="none", input_swaps=4, examples=False, show_progress=False)
    assert found.heads["input_positional_score"].between(0, 1).any()


def test_without_a_name_of_its_class_a_folder_holds_a_language_model(tmp_path: Path) -> None:
    folder = saved(other("llama without a head"), tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    for said in (None, [], ["LlamaForNothing"]):
        (folder / "config.json").write_text(json.dumps(settings | {"architectures": said}))
        with pytest.raises(ModelError, match=r"lacks 1 \(lm_head\.weight\)"):
            rs.load(folder, device="cpu")


def test_a_model_that_reads_no_text_is_named(tmp_path: Path) -> None:
    folder = saved(other("llama without a head"), tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(
        ModelError, match="a model of type 'vit', for which transformers has no class that reads text"
    ):
        rs.load(folder, device="cpu")
