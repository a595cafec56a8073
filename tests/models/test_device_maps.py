"""Models whose weights a device_map has put on the CPU, beside a GPU, or on disk, are read through their hooks."""

from __future__ import annotations

import gc
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf
from torch import distributed
from torch.distributed.fsdp import fully_shard

import rotoscope as rs
from rotoscope.errors import ModelError, NumberError, TooLargeError
from rotoscope.measures import null as nulls
from rotoscope.models import devices as memory
from rotoscope.models.offloading import (
    computes_on,
    dispatched_like,
    not_loaded,
    offloads,
    places,
    plain_copy,
    weights,
)
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from tests.models.test_load import word_tokenizer
from tests.models.test_wrapped import LanguageModel, holding
from tests.tiny_models import tiny, tokens

PLACES = [
    pytest.param(("cpu", "disk"), id="CPU and disk"),
    pytest.param(
        ("cuda:0", "cpu"),
        id="GPU and CPU",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]
ENDS = {
    "llama": ("model.layers", ("model.embed_tokens", "model.rotary_emb"), ("model.norm", "lm_head")),
    "gpt_oss": ("model.layers", ("model.embed_tokens", "model.rotary_emb"), ("model.norm", "lm_head")),
    "gptj": ("transformer.h", ("transformer.wte",), ("transformer.ln_f", "lm_head")),
}
Places = tuple[str, str]


def spread(name: str, first: str, second: str, *, begins: str | None = None) -> dict[str, str]:
    """One layer where the weights stay, two where they do not; the embedding stays unless said otherwise."""
    layers, front, end = ENDS[name]
    return (
        dict.fromkeys(front, begins or first)
        | {f"{layers}.0": first, f"{layers}.1": second, f"{layers}.2": second}
        | dict.fromkeys(end, second)
    )


def saved(folder: Path, name: str = "llama", **changes: Any) -> Path:
    tiny(name, **{"tie_word_embeddings": False, **changes}).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def both(folder: Path, where: Places, name: str = "llama", dtype: Any = None) -> tuple[rs.Subject, rs.Subject]:
    """The model whole, on the device that computes, and spread."""
    device_map = spread(name, *where)
    return rs.load(folder, device=where[0], dtype=dtype), rs.load(folder, device_map=device_map, dtype=dtype)


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Every number to 1e-6."""
    assert len(one) == len(other) > 0
    assert list(one) == list(other)
    numbers = one.select_dtypes("number")
    assert np.allclose(numbers, other[list(numbers)], rtol=0, atol=1e-6, equal_nan=True)
    rest = [column for column in one if column not in numbers]
    assert one[rest].astype(str).equals(other[rest].astype(str))


def in_place(subject: rs.Subject) -> set[str]:
    return {name for name, weight in subject.model.named_parameters() if not weight.is_meta}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gpt_oss", "bfloat16"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("llama", None), ("llama", "bfloat16"), ("gptj", None)]
        ),
    ],
)
def test_scores_are_those_of_the_whole_model(where: Places, name: str, dtype: Any, tmp_path: Path) -> None:
    """The second case is proven on float32 copies; gpt_oss has weights in the attention module itself, and files of its own."""
    whole, apart = both(saved(tmp_path / "model", name), where, name, dtype)
    before, told = in_place(apart), apart.weights_fingerprint
    assert 0 < len(before) < len(list(apart.model.parameters()))
    assert (whole.fingerprint, whole.weights_fingerprint) == (apart.fingerprint, told)
    found = [
        rs.profile(
            one,
            tokens=tokens(3, 14),
            tau=[1e-4, 1e-2],
            null="gaussian",
            null_draws=2,
            frequencies=True,
            batch_tokens=28,
        )
        for one in (whole, apart)
    ]
    for table in ("heads", "frequencies", "prompts", "nulls"):
        same(getattr(found[0], table), getattr(found[1], table))
    assert found[1].run.proof.layers == 3
    assert found[1].run.proof.largest_difference < 1e-6
    assert found[1].run.subject.device == ", ".join(where)
    assert in_place(apart) == before, "weights came for a call and stayed"
    assert apart.weights_fingerprint == told
    assert torch.equal(whole.sampled_weights(), apart.sampled_weights())


def test_tied_embeddings_that_are_both_elsewhere(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tie_word_embeddings=True)
    apart = rs.load(folder, device_map=spread("llama", "cpu", "disk", begins="disk"))
    assert next(apart.model.parameters()).is_meta
    assert (apart.device, HeadReader(apart.model).device) == (torch.device("cpu"), torch.device("cpu"))
    whole = rs.load(folder)
    assert apart.fingerprint == whole.fingerprint
    assert torch.equal(whole.sampled_weights(), apart.sampled_weights())
    same(*(rs.profile(one, tokens=tokens(1, 12), null="none").heads for one in (whole, apart)))


@pytest.mark.parametrize("where", PLACES)
def test_everything_else_that_is_asked_of_a_model(where: Places, tmp_path: Path) -> None:
    whole, apart = both(saved(tmp_path / "model"), where)
    before = in_place(apart)
    prompts = rs.tasks.repeats(whole, length=5, count=2)
    for one in (
        lambda s: rs.profile(s, prompts, null="none", input_swaps=4).tables["input_prompts"],
        lambda s: rs.profile(s, prompts, null="none", known=True).tables["known_heads"],
        lambda s: rs.depths(s, prompts, at=(0, 1, "own"), null="none").heads,
        lambda s: rs.gate(s, prompts, keep="1-2", heads="0:1,2:3", controls=0).conditions,
        lambda s: rs.gate(s, prompts, silence=True, heads="1:2", controls=0).conditions,
    ):
        same(one(whole), one(apart))
        assert in_place(apart) == before


def test_a_random_null_is_drawn_whole_and_spread_like_its_subject(tmp_path: Path) -> None:
    whole, apart = both(saved(tmp_path / "model"), ("cpu", "disk"))
    same(*(rs.profile(one, tokens=tokens(2, 12), null="random", null_draws=2).nulls for one in (whole, apart)))
    drawn, _ = nulls._initialise(apart, 1, apart.device)
    assert places(drawn) == ["cpu", "disk"]
    assert {name for name, _ in weights(drawn)} == {name for name, _ in weights(whole.model)}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_random_null_beside_a_gpu(tmp_path: Path) -> None:
    _, apart = both(saved(tmp_path / "model"), ("cuda:0", "cpu"))
    found = rs.profile(apart, tokens=tokens(2, 12), null="random", null_draws=2).nulls
    assert np.isfinite(found["positional_score"]).all()


def test_a_random_null_that_nothing_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its subject fits, being on disk; said before anything is measured."""
    apart = rs.load(saved(tmp_path / "model"), device_map=spread("llama", "cpu", "disk"))
    size = sum(weight.numel() for weight in apart.model.parameters())
    monkeypatch.setattr(memory, "free_memory", lambda device: 4 * size - 1)
    with pytest.raises(TooLargeError, match="a random model of the size of .* needs .*--null gaussian"):
        rs.profile(apart, tokens=tokens(1, 12), null="random")
    monkeypatch.setattr(memory, "free_memory", lambda device: 4 * size)
    nulls.check_null(apart, "random")


def test_weights_that_come_and_go_without_a_map(tmp_path: Path) -> None:
    """accelerate's own function for it leaves no map that a random model could be spread by."""
    from accelerate import cpu_offload

    model = cpu_offload(tiny("llama"), torch.device("cpu"))
    assert offloads(model)
    same(*(rs.profile(one, tokens=tokens(1, 12), null="none").heads for one in (tiny("llama"), model)))
    with pytest.raises(ModelError, match="no device_map that a random model could be"):
        rs.profile(model, tokens=tokens(1, 12), null="random")


def test_a_pass_that_is_cut_short_leaves_no_weights(tmp_path: Path) -> None:
    """gpt_oss has weights in the attention module itself, which is left in the middle of its work."""
    apart = rs.load(saved(tmp_path / "model", "gpt_oss"), device_map=spread("gpt_oss", "cpu", "disk"))
    before, reader = in_place(apart), HeadReader(apart.model)
    assert in_place(apart) == before
    Reruns(reader).begin(tokens(1, 12))
    assert in_place(apart) == before

    def stop(layer: Any) -> None:
        if layer.layer == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reader.read(tokens(1, 12), (11,), stop)
    assert in_place(apart) == before


def test_a_module_that_is_asked_again_gives_its_weights_back(tmp_path: Path) -> None:
    """At once, not only when the pass is over: else all layers would be in memory together."""
    apart = rs.load(saved(tmp_path / "model", "gpt_oss"), device_map=spread("gpt_oss", "cpu", "disk"))
    reader, calls = HeadReader(apart.model, prove=False), []
    reader._run(reader.proof_tokens, on_call=lambda site, call: calls.append((site, call)))
    site, call = calls[1]
    with torch.no_grad():
        found = site.project_unrotated(call)
    assert found.sinks is not None
    assert all(weight.is_meta for weight in site.module.parameters())


def test_a_damaged_weight_on_disk_is_named(tmp_path: Path) -> None:
    model = tiny("llama", tie_word_embeddings=False)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    apart = rs.load(tmp_path / "model", device_map=spread("llama", "cpu", "disk"))
    with pytest.raises(NumberError, match="layer 1.*q_proj.weight holds such numbers"):
        rs.profile(apart, tokens=tokens(1, 12), null="none", prove=False)


def test_a_copy_holds_its_weights_and_no_others(tmp_path: Path) -> None:
    apart = rs.load(saved(tmp_path / "model", "gpt_oss"), device_map=spread("gpt_oss", "cpu", "disk"))
    module = apart.model.model.layers[1].self_attn
    made = plain_copy(module)
    original = tiny("gpt_oss", tie_word_embeddings=False).model.layers[1].self_attn
    assert not any(hasattr(part, "_hf_hook") for part in made.modules())
    for name, weight in original.named_parameters():
        assert torch.equal(dict(made.named_parameters())[name], weight)
    assert made.forward.__self__ is made
    assert all(weight.is_meta for weight in module.parameters())


def test_a_map_by_name_from_a_file_or_none(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    file = tmp_path / "map.json"
    file.write_text(json.dumps(spread("llama", "cpu", "disk")))
    found = [rs.load(folder, device_map=one) for one in ("auto", str(file), file)]
    assert [len(places(one.model)) for one in found][1:] == [2, 2]
    assert len({one.fingerprint for one in found}) == 1


def test_files_last_as_long_as_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk is read from the model's own files; what a draw of a null writes goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    folder = saved(tmp_path / "model")
    apart = rs.load(folder, device_map=spread("llama", "cpu", "disk"))
    drawn = dispatched_like(tiny("llama", tie_word_embeddings=False), apart.model)
    left = {part.name.rpartition("-")[0] for part in (tmp_path / "temporary").iterdir()}
    assert left == {"rotoscope-offload"}, "the room it was loaded in is gone"
    assert any((tmp_path / "temporary").rglob("*.dat"))
    del apart, drawn
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())
    rs.load(folder, device_map=spread("llama", "cpu", "disk"), offload_folder=tmp_path / "kept")
    gc.collect()
    assert (tmp_path / "kept").is_dir()
    with pytest.raises(ModelError, match="cannot be loaded.*the device_map may not suit the model"):
        rs.load(folder, device_map={"lm_head": "disk"})
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a name nobody knows": ({"device_map": "balanced_high"}, "'balanced_high' is none of auto, balanced"),
    "two places": ({"device_map": "auto", "device": "cpu"}, "both say where the model goes"),
    "a device that is not there": ({"device_map": {"": "cuda:7"}}, "device 'cuda:7' cannot be used"),
    "no device": ({"device_map": {"": "dsk"}}, "device 'dsk' cannot be used"),
    "nothing": ({"device_map": {}}, "is empty or none"),
    "a folder for nothing": ({"offload_folder": "here"}, "together with a device_map only"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_map_is_refused(case: str, tmp_path: Path) -> None:
    how, sentence = REFUSED[case]
    with pytest.raises(ModelError, match=sentence):
        rs.load(saved(tmp_path / "model"), **how)


def test_files_that_are_no_map(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        rs.load(saved(tmp_path / "model"), device_map=tmp_path / "map.json")
    (tmp_path / "map.json").write_text("[]")
    with pytest.raises(ModelError, match="is empty or none"):
        rs.load(tmp_path / "model", device_map=tmp_path / "map.json")


@pytest.mark.parametrize("value", ['["cpu"]', "{}", "0.5", "true", "null", '"meta"', '"meta:0"'])
def test_a_value_that_is_no_device_is_named_with_its_module(value: str, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(f'{{"lm_head": "cpu", "model.layers": {value}}}')
    found = re.escape(f"the device_map puts 'model.layers' on {json.loads(value)!r}, which is no device")
    with pytest.raises(ModelError, match=found):
        rs.load(saved(tmp_path / "model"), device_map=tmp_path / "map.json")


def test_a_device_of_torch_is_one() -> None:
    with pytest.raises(ModelError, match="puts '' on device\\(type='meta'\\), which is no device"):
        rs.load("number", device_map={"": torch.device("meta")})
    assert places(rs.load("number", device_map={"": torch.device("cpu")}).model) == ["cpu"]


def test_a_model_in_memory_stays_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="this one is in memory"):
        rs.load(tiny("llama"), device_map="auto")
    apart = rs.load(saved(tmp_path / "model"), device_map=spread("llama", "cpu", "disk"))
    for how in ({"device": "cpu"}, {"dtype": "bfloat16"}):
        with pytest.raises(ModelError, match="neither moved nor converted as a whole"):
            rs.load(apart, **how)
    assert rs.load(apart, name="mine").model is apart.model


def test_a_part_of_the_weights_is_refused() -> None:
    """Whether a process holds some heads of each layer or a slice of each weight, no whole layer can be read in it."""
    shared, sliced = (tiny("llama") for _ in range(2))
    shared._tp_size = 2
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(sliced)
        for model in (shared, sliced):
            for read in (rs.load, HeadReader):
                with pytest.raises(ModelError, match="are split over several processes"):
                    read(model)
    finally:
        distributed.destroy_process_group()


def test_without_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rotoscope.models.devices.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install accelerate"):
        rs.load(saved(tmp_path / "model"), device_map="auto")


def test_what_nnsight_has_spread_is_read(tmp_path: Path) -> None:
    apart = rs.load(saved(tmp_path / "model"), device_map=spread("llama", "cpu", "disk"))
    assert not not_loaded(apart.model)
    assert rs.load(holding(LanguageModel, _module=apart.model)).model is apart.model
    with torch.device("meta"):
        empty = tf.AutoModelForCausalLM.from_config(apart.model.config)
    assert not_loaded(empty)
    with pytest.raises(ModelError, match="no hook of accelerate knows where it is"):
        list(weights(empty))
    assert computes_on(empty) == torch.device("meta")
