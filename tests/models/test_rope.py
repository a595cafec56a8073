"""Models read with other rotary settings, against models that transformers makes with them from scratch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import ModelError, RotoscopeError, RunError
from rotoscope.models.reader import HeadReader
from rotoscope.models.rope import check_rotary, read_rope
from tests.models.test_load import word_tokenizer
from tests.tiny_models import GEMMA, GROUPED, from_config, other, tiny, tokens, typical_first

TRAINED = 64
SIX = {**GROUPED, "num_hidden_layers": 6}
"""Layers, the last of which sees everything."""
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.0 + k for k in range(8)]}
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {"rope_theta": 80_000.0, "max_position_embeddings": 256},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "longrope": {"rope_type": "longrope", "factor": 4.0, **FACTORS},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
ARCHITECTURES = ("llama", "qwen3", "gemma2", "phi", "gpt_neox", "glm4")


def saved(place: Path, model: Any) -> Path:
    model.save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", tiny("llama", max_position_embeddings=TRAINED))


def from_scratch(folder: Path, rope: dict[str, Any]) -> Any:
    """What transformers makes of the same weights and a config.json with these settings."""
    described = json.loads((folder / "config.json").read_text())
    described |= {key: value for key, value in rope.items() if key == "max_position_embeddings"}
    own = {key: value for key, value in rope.items() if key != "max_position_embeddings"}
    parameters = described.pop("rope_parameters") | own
    config = tf.AutoConfig.for_model(**described, rope_parameters=parameters)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict(tf.AutoModelForCausalLM.from_pretrained(folder).state_dict())
    return model


@pytest.mark.parametrize("architecture", typical_first(ARCHITECTURES))
@pytest.mark.parametrize("name", SETTINGS)
def test_a_model_with_rope_is_the_one_that_transformers_makes(
    architecture: str, name: str, tmp_path: Path
) -> None:
    rope = dict(SETTINGS[name])
    model = tiny(architecture, max_position_embeddings=TRAINED)
    folder = saved(tmp_path / "model", model)
    if name == "longrope":
        planes = len(model.get_decoder().rotary_emb.inv_freq)
        rope |= {key: rope[key][:planes] for key in FACTORS}
    subject = rs.load(folder, rope=rope)
    shown = tokens(1, 200)
    with torch.no_grad():
        logits = subject.model(shown).logits
        assert torch.equal(logits, from_scratch(folder, rope)(shown).logits)
        assert not torch.equal(logits, model(shown).logits)
    reader = HeadReader(subject.model)
    assert max(reader.proof) < 1e-4
    assert reader.positions == 256


def test_attention_and_scores_are_those_of_the_model_from_scratch(folder: Path) -> None:
    rope = SETTINGS["yarn"]
    shown, how = tokens(2, 40), {"null": "none", "examples": False, "show_progress": False}
    scaled = rs.profile(rs.load(folder, rope=rope), tokens=shown, **how).heads
    theirs = rs.profile(from_scratch(folder, rope), tokens=shown, **how).heads
    plain = rs.profile(rs.load(folder), tokens=shown, **how).heads
    for column in ("positional_score", "symbolic_score"):
        assert scaled[column].tolist() == theirs[column].tolist()
        assert (scaled[column] - plain[column]).abs().max() > 1e-3


def test_a_type_of_layer_has_settings_of_its_own(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", from_config(tf.Gemma3TextConfig(**SIX, **GEMMA)))
    rope = {"full_attention": {"rope_type": "linear", "factor": 2.0}}
    subject, plain = rs.load(folder, rope=rope), rs.load(folder)
    assert subject.model.config.rope_parameters["full_attention"]["factor"] == 2.0
    assert (
        subject.model.config.rope_parameters["sliding_attention"]
        == plain.model.config.rope_parameters["sliding_attention"]
    )
    assert max(HeadReader(subject.model).proof) < 1e-4
    assert subject.fingerprint != plain.fingerprint
    with pytest.raises(
        ModelError, match="'rope_type' is none of them; give a dictionary from .*full_attention"
    ):
        rs.load(folder, rope={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(ModelError, match="rope holds 2 where a dictionary"):
        rs.load(folder, rope={"full_attention": 2})


def test_another_type_leaves_the_keys_of_the_old_one_behind(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny("llama-3 scaling"))
    parameters = rs.load(folder, rope="rope_type=yarn,factor=2").model.config.rope_parameters
    assert set(parameters) == {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"}
    assert parameters["original_max_position_embeddings"] == TRAINED
    assert rs.load(folder, rope="rope_type=default").model.config.rope_parameters.keys() == {
        "rope_type",
        "rope_theta",
    }
    same = rs.load(folder, rope="factor=2.0").model.config.rope_parameters
    assert (same["rope_type"], same["factor"], same["low_freq_factor"]) == ("llama3", 2.0, 1.0)


def test_a_training_length_that_stands_beside_the_settings(tmp_path: Path) -> None:
    """Phi-3 has it in its configuration, where transformers prefers it."""
    folder = saved(tmp_path / "model", tiny("phi3", original_max_position_embeddings=128))
    rope = SETTINGS["longrope"] | {"original_max_position_embeddings": 32}
    config = rs.load(folder, rope=rope).model.config
    assert config.rope_parameters["original_max_position_embeddings"] == 32
    assert config.original_max_position_embeddings == 32


def test_text_says_the_same_as_a_dictionary() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "truncate": False}
    assert read_rope(rope) == read_rope(json.dumps(rope))
    assert read_rope(rope) == read_rope("rope_type=yarn, factor=4.0,truncate=false")
    assert read_rope(None) == {}


def test_rope_is_part_of_the_identity_and_of_the_settings(folder: Path, tmp_path: Path) -> None:
    plain = rs.load(folder)
    scaled = [rs.load(folder, rope=f"rope_type=yarn,factor={factor}") for factor in (2.0, 4.0)]
    assert len({plain.fingerprint, *(subject.fingerprint for subject in scaled)}) == 3
    assert rs.load(folder, rope="rope_type=yarn,factor=2.0").fingerprint == scaled[0].fingerprint
    assert scaled[0].name == "model (rope_type=yarn, factor=2.0)"
    assert rs.load(folder, name="mine", rope="factor=2.0,rope_type=yarn").name == "mine"
    how: dict[str, Any] = {"tokens": tokens(1, 12), "null": "none", "out": tmp_path / "run"}
    run = rs.profile(scaled[0], **how)
    assert run.run.settings["rope"] == {"rope_type": "yarn", "factor": 2.0}
    assert rs.open(tmp_path / "run").run.subject.source["rope"] == {"rope_type": "yarn", "factor": 2.0}
    assert "rope" not in rs.profile(plain, **how | {"out": None}).run.settings
    with pytest.raises(RunError, match="rope"):
        rs.profile(scaled[1], **how)
    with pytest.raises(RunError, match="fingerprint"):
        rs.profile(plain, **how)


def test_a_model_in_memory_stays_as_it_is() -> None:
    model = tiny("llama")
    described, shown = model.config.to_dict(), tokens()
    with torch.no_grad():
        before = model(shown).logits
        for source in (model, (model, word_tokenizer()), rs.load(model)):
            with pytest.raises(
                ModelError, match=r"this one is in memory, where it stays as it is; give its folder"
            ):
                rs.load(source, rope=SETTINGS["yarn"])
        assert torch.equal(model(shown).logits, before)
    assert model.config.to_dict() == described


def test_a_text_model_within_a_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", other("llava"))
    shown = tokens(1, 20)
    with torch.no_grad():
        logits = rs.load(folder, rope="rope_type=linear,factor=2").model(shown).logits
        assert not torch.equal(logits, rs.load(folder).model(shown).logits)


def test_an_embedded_model_with_rope() -> None:
    subject = rs.load("smollm2", rope="rope_type=yarn,factor=2.0,original_max_position_embeddings=2048")
    assert subject.name == (
        "SmolLM2-135M-Instruct (rope_type=yarn, factor=2.0, original_max_position_embeddings=2048)"
    )
    assert subject.model.config.max_position_embeddings == 8192, "never fewer than before"
    assert subject.source["kind"] == "embedded"


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ("rope_type=nonsense,factor=2", "unknown rope_type 'nonsense'; transformers knows default, linear, dynamic, yarn"),
        ("rope_type=yarn", r"cannot have these rotary settings \(Missing .*{'factor'}\); transformers knows rope_theta, "),
        ("rope_type=longrope,factor=2", "cannot have these rotary settings .*_factor"),
        ("rope_type=yarn,facter=2", "unknown rotary setting 'facter'; transformers knows rope_theta, "),
        ("rope_type=yarn,factor=two", "factor must be a positive number, found 'two'"),
        ("rope_type=linear,factor=0", "factor must be a positive number, found 0"),
        ("rope_type=linear,factor=NaN", "factor must be a positive number, found nan"),
        ("rope_type=linear,factor=true", "factor must be a positive number, found True"),
        ("max_position_embeddings=-4", "max_position_embeddings must be a positive whole number, found -4"),
        ("max_position_embeddings=4.5", "max_position_embeddings must be a positive whole number, found 4.5"),
        ({"rope_type": "linear", "factor": [2.0]}, r"factor must be a positive number, found \[2.0\]"),
        ({"rope_type": "longrope", "short_factor": 2}, "short_factor must be a list of positive numbers, found 2"),
        ("rope_type=yarn,factor=2,truncate=1", "truncate must be true or false, found 1"),
        ("yarn", "'yarn' in rope is not key=value; give JSON or key=value, such as rope_type=yarn,factor=4.0"),
        ('{"rope_type": ', "rope is not valid JSON"),
        ("{}", "rope holds no rotary settings"),
        ({}, "rope holds no rotary settings"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_read(folder: Path, rope: Any, words: str) -> None:
    with pytest.raises(RotoscopeError, match=words):
        rs.load(folder, rope=rope)


@pytest.mark.parametrize("name", ["number", "letter"])
def test_embedded_multihop_models_have_no_rotary_settings(name: str) -> None:
    with pytest.raises(ModelError, match="this gptj model has no rope_parameters, .*leave rope out"):
        rs.load(name, rope=SETTINGS["yarn"])


def test_settings_that_a_configuration_forbids(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tiny("phi3"))
    with pytest.raises(ModelError, match=r"this phi3 model cannot have these rotary settings \(.*longrope"):
        rs.load(folder, rope=SETTINGS["linear"])


def test_a_model_without_a_rotary_embedding() -> None:
    model = from_config(tf.LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    check_rotary(model)
    del model.model.rotary_emb
    with pytest.raises(ModelError, match="no rotary embedding that transformers makes from rope_parameters"):
        check_rotary(model)
