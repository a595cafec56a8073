"""The same weights under other angles, against models that transformers makes from scratch."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.errors import ModelError
from rotoscope.reading import HeadReader, Subject
from rotoscope.reading.scaled import (
    check_scalable,
    rope_scaling,
    rotary_width,
    rotation_tables,
    scaled,
    training_length,
)
from rotoscope.results.context_plan import AS_IT_IS
from tests.models import other, tiny, tokens

TRAINED, TO = 64, 256
SCALED = ("llama", "qwen3", "gemma2", "mistral", "phi", "gpt_neox", "cohere", "glm4")


def subject(name: str = "llama", **changes: Any) -> Subject:
    return Subject(tiny(name, max_position_embeddings=TRAINED, **changes), None, name)


def from_scratch(model: Any, scaling: Any) -> Any:
    """What transformers makes of a config.json with this scaling and these weights."""
    described = model.config.to_dict() | {
        "rope_parameters": copy.deepcopy(scaling.rope_parameters),
        "max_position_embeddings": scaling.max_position_embeddings,
    }
    twin = type(model)(type(model.config).from_dict(described)).eval()
    twin.load_state_dict(model.state_dict())
    return twin


@pytest.mark.parametrize("architecture", SCALED)
@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "dynamic", AS_IT_IS])
def test_a_scaled_model_is_what_transformers_makes(architecture: str, name: str) -> None:
    mine = subject(architecture)
    scaling = rope_scaling(mine.model, name, TRAINED, TO)
    shown = tokens(1, 200)
    with torch.no_grad():
        before = mine.model(shown).logits
        found = scaled(mine, scaling, TO).model(shown).logits
        assert torch.equal(found, from_scratch(mine.model, scaling)(shown).logits)
        assert torch.equal(mine.model(shown).logits, before), "the model itself is another one now"
    assert (name == AS_IT_IS) == torch.equal(found, before)


def test_weights_are_shared_and_nothing_else_changes() -> None:
    mine = subject()
    described, mark = mine.model.config.to_dict(), mine.fingerprint
    found = scaled(mine, rope_scaling(mine.model, "yarn", TRAINED, TO), TO)
    pairs = zip(mine.model.parameters(), found.model.parameters(), strict=True)
    assert all(one.data_ptr() == two.data_ptr() for one, two in pairs)
    assert found.model.config.rope_parameters["rope_type"] == "yarn"
    assert found.model.config.max_position_embeddings == TO
    assert mine.model.config.to_dict() == described
    assert Subject(mine.model, None, "llama").fingerprint == mark
    assert found.model.training == mine.model.training
    mine.model.train()
    assert scaled(mine, rope_scaling(mine.model, "ntk", TRAINED, TO)).model.training


@pytest.mark.parametrize("name", ["linear", "ntk", "yarn", "dynamic"])
def test_the_reader_proves_itself_on_scaled_models(name: str) -> None:
    mine = scaled(subject(), rope_scaling(subject().model, name, TRAINED, TO), TO)
    reader = HeadReader(mine.model)
    assert max(reader.proof) < 1e-4
    assert reader.read(tokens(1, TO)).shape[0] == 1, "and reads as many tokens as were asked for"


def test_what_each_scaling_does_to_the_angles() -> None:
    model = subject().model
    own = model.model.rotary_emb.inv_freq
    at = {
        name: scaled(
            Subject(model, None, ""), rope_scaling(model, name, TRAINED, TO)
        ).model.model.rotary_emb.inv_freq
        for name in ("linear", "ntk", "yarn", "dynamic")
    }
    factor = TO / TRAINED
    torch.testing.assert_close(at["linear"], own / factor)
    torch.testing.assert_close(at["ntk"][0], own[0])
    torch.testing.assert_close(at["ntk"][-1], own[-1] / factor)
    torch.testing.assert_close(at["yarn"][-1], own[-1] / factor)
    torch.testing.assert_close(at["dynamic"], own), "as far as nothing longer was read"


def test_tables_are_those_the_model_would_use_at_that_length() -> None:
    mine = subject()
    scaling = rope_scaling(mine.model, "dynamic", TRAINED, TO)
    found = scaled(mine, scaling, TO)
    seen: list[torch.Tensor] = []
    HeadReader(found.model).read(tokens(1, 200), (199,), lambda layer: seen.append(layer.cos))
    cos, _ = rotation_tables(scaled(mine, scaling, TO).model, 200)
    layout = HeadReader(found.model).layouts[0]
    torch.testing.assert_close(cos[:, layout.columns], seen[0])


def test_partial_rotation_counts_in_the_base() -> None:
    model = tiny("phi").config
    assert rotary_width(model) == 8, "half of a head of 16"


def test_what_forbids_a_scaling() -> None:
    for name, words in {
        "llama-3 scaling": "scaled already (rope_type 'llama3')",
        "llama yarn": "scaled already (rope_type 'yarn')",
        "gemma3": "turns its layers by different angles",
        "gptj": "has no rope_parameters",
    }.items():
        with pytest.raises(ModelError) as problem:
            check_scalable(tiny(name))
        assert words in str(problem.value)
    with pytest.raises(ModelError, match="places in a picture"):
        check_scalable(other("qwen2_vl"))
    with pytest.raises(ModelError, match=r"phi3 model forbids the scaling 'linear' \(.*longrope.*leave it out"):
        rope_scaling(tiny("phi3"), "linear", 64, 128)
    model = tiny("llama")
    del model.model.rotary_emb
    with pytest.raises(ModelError, match="no rotary embedding that transformers scales"):
        check_scalable(model)
    silent = SimpleNamespace(config=SimpleNamespace(get_text_config=SimpleNamespace))
    with pytest.raises(ModelError, match="does not say how many tokens"):
        training_length(Subject(silent, None, "silent"))


def test_the_training_length_is_that_of_the_configuration_but_for_the_embedded_model(smollm2: Subject) -> None:
    assert training_length(subject()) == TRAINED
    assert smollm2.model.config.max_position_embeddings == 8192
    assert training_length(smollm2) == 2048, "its pretraining"


def test_a_text_model_within_a_model_is_scaled() -> None:
    mine = rs.load((other("llava"), None))
    found = scaled(mine, rope_scaling(mine.model, "linear", 512, 1024))
    shown = tokens(1, 20)
    with torch.no_grad():
        assert not torch.equal(found.model(shown).logits, mine.model(shown).logits)
