"""Weights that are not those the configuration asks for are refused by name, never filled with random numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import rotoscope as rs
from rotoscope.errors import ModelError
from rotoscope.experiments.profile.notebook import profile_html
from tests.models.test_load import word_tokenizer
from tests.tiny_gguf import write_gguf
from tests.tiny_models import tiny, tokens

State = dict[str, torch.Tensor]


def saved(place: Path, change: Callable[[State], State] = dict, **config: object) -> Path:
    """A tiny model on disk, its tensors and its configuration changed."""
    tiny("llama").save_pretrained(place)
    word_tokenizer().save_pretrained(place)
    state = change(load_file(place / "model.safetensors"))
    save_file(state, place / "model.safetensors", metadata={"format": "pt"})
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return place


def without(*parts: str) -> Callable[[State], State]:
    return lambda state: {k: v for k, v in state.items() if not any(part in k for part in parts)}


def renamed(front: str) -> Callable[[State], State]:
    return lambda state: {f"{front}{k}": v for k, v in state.items()}


def reshaped(state: State) -> State:
    return state | {"model.norm.weight": torch.zeros(3)}


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", without("layers.1.mlp.up_proj"))
    with pytest.raises(ModelError, match=r"lacks 1 \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        rs.load(folder, device="cpu")


def test_a_wrong_prefix(tmp_path: Path) -> None:
    """As training wrappers leave it: not one name fits."""
    folder = saved(tmp_path / "m", renamed("module."))
    with pytest.raises(
        ModelError, match=r"of 30 tensors of the model, the file lacks 30.*has 30 that are no part.*\(module\."
    ):
        rs.load(folder, device="cpu")


def test_more_layers_in_the_configuration_than_in_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", num_hidden_layers=4)
    with pytest.raises(ModelError, match=r"lacks 9 \(model\.layers\.3\..* and 5 more\)"):
        rs.load(folder, device="cpu")


def test_fewer_layers_in_the_configuration_than_in_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", num_hidden_layers=2)
    with pytest.raises(ModelError, match=r"has 9 that are no part of the model \(model\.layers\.2\."):
        rs.load(folder, device="cpu")


def test_a_file_with_no_tensor_of_the_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", lambda state: {"something": torch.zeros(2)})
    with pytest.raises(ModelError, match=r"lacks 30 .*has 1 that are no part of the model \(something\)"):
        rs.load(folder, device="cpu")


def test_a_file_without_tensors(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", lambda state: {})
    with pytest.raises(ModelError, match="lacks 30"):
        rs.load(folder, device="cpu")


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", reshaped)
    with pytest.raises(ModelError, match=r"another shape than the model's it has 1 \(model\.norm\.weight\)"):
        rs.load(folder, device="cpu")


def test_a_shard_without_its_tensors(tmp_path: Path) -> None:
    """The index promises them; the file is asked."""
    folder = tmp_path / "m"
    tiny("llama").save_pretrained(folder, max_shard_size="60KB")
    word_tokenizer().save_pretrained(folder)
    assert rs.load(folder, device="cpu").warnings == ()
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    name = next(iter(load_file(shards[1])))
    save_file(without(name)(load_file(shards[1])), shards[1], metadata={"format": "pt"})
    with pytest.raises(ModelError, match=name):
        rs.load(folder, device="cpu")
    shards[2].unlink()
    with pytest.raises(ModelError, match=f"lacks 1 of the {len(shards)} files .*{shards[2].name}"):
        rs.load(folder, device="cpu")


@pytest.mark.parametrize("name", ["gemma2", "gptj", "gpt_oss", "deepseek_v3", "phi3"])
def test_what_transformers_makes_itself_is_no_fault(name: str, tmp_path: Path) -> None:
    """Tied weights, buffers that are not saved, experts that are put together: as they were."""
    model = tiny(name)
    model.save_pretrained(tmp_path / "m")
    word_tokenizer().save_pretrained(tmp_path / "m")
    found = rs.load(tmp_path / "m", device="cpu")
    assert found.warnings == ()
    assert rs.load(model).fingerprint == found.fingerprint
    for key, weight in model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[key], weight, rtol=0, atol=0)


def test_buffers_of_an_older_version_are_no_fault(tmp_path: Path) -> None:
    folder = saved(
        tmp_path / "m",
        lambda state: state | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)},
    )
    assert rs.load(folder, device="cpu").warnings == ()


def test_gguf_with_a_tensor_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not through the copy that was made for someone who asked for it."""
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    whole = rs.load(write_gguf(tmp_path / "whole.gguf"), device="cpu")
    assert whole.warnings == ()
    file = write_gguf(tmp_path / "part.gguf", without=("blk.1.ffn_up.weight",))
    for _ in range(2):
        with pytest.raises(ModelError, match=r"part\.gguf.*lacks 1 \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
            rs.load(file, device="cpu")
        meant = rs.load(file, device="cpu", allow_missing=True)
        assert "model.layers.1.mlp.up_proj.weight" in meant.warnings[0]


def test_whoever_means_it_gets_the_same_each_time_and_a_warning_in_every_output(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", without("layers.1.mlp.up_proj"))
    before = torch.get_rng_state()
    first, again = (rs.load(folder, device="cpu", allow_missing=True) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    assert torch.equal(before, torch.get_rng_state())
    assert "model.layers.1.mlp.up_proj.weight" in first.warnings[0]
    assert rs.load(first, name="other").warnings == first.warnings
    profile = rs.profile(
        first, tokens=tokens(2, 12), null="none", examples=False, out=tmp_path / "run", show_progress=False
    )
    assert first.warnings[0] in profile.run.warnings
    assert first.warnings[0] in rs.open(tmp_path / "run").run.warnings
    profile.report(tmp_path / "run.html")
    assert "layers.1.mlp.up_proj" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "layers.1.mlp.up_proj" in profile_html(profile)


def test_more_layers_than_tensors_are_not_even_tried(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", num_hidden_layers=200_000)
    with pytest.raises(ModelError, match="says 200000 layers, and its weights are 30 tensors"):
        rs.load(folder, device="cpu", allow_missing=True)


def test_a_model_larger_than_memory_is_not_even_tried(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", vocab_size=2**40)
    with pytest.raises(ModelError, match=r"take \d+\.\d GB, and \d+\.\d GB of memory are free"):
        rs.load(folder, device="cpu", allow_missing=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "changes"),
    [
        pytest.param(rs.dynamics, {"queries": "last", "inputs": 2}, marks=pytest.mark.slow),
        (rs.lengths, {"lengths": 7, "inputs": 1, "heads": False}),
    ],
    ids=["dynamics", "lengths"],
)
def test_missing_weights_along_training(
    measure: Callable[..., Any],
    changes: dict[str, Any],
    trained: dict[str, rs.lab.Training],
    tmp_path: Path,
) -> None:
    """One checkpoint lacks a tensor; the warning is written, and there again when the run is opened."""
    source = tmp_path / "trained"
    last = max(trained["number"].folder.glob("checkpoint-*"), key=lambda place: int(place.name.split("-")[1]))
    shutil.copytree(last, source / "checkpoint-1")
    weights = source / "checkpoint-1" / "model.safetensors"
    state = without("h.1.mlp.fc_in.bias")(load_file(weights))
    save_file(state, weights, metadata={"format": "pt"})
    place: dict[str, Any] = {"device": "cpu", "out": tmp_path / "run", "show_progress": False}
    with pytest.raises(ModelError, match="h.1.mlp.fc_in.bias"):
        measure(source, **changes, **place)
    assert not (tmp_path / "run").exists()
    for _ in range(2):
        measure(source, allow_missing=True, **changes, **place)
        warnings = rs.open(tmp_path / "run").run.warnings
        assert any("h.1.mlp.fc_in.bias" in warning for warning in warnings)
