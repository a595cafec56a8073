"""Plans as files: what cannot be believed is refused in a sentence, and what other programs read is right or not written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import rotoscope as rs
from rotoscope.errors import ModelError, RunError
from rotoscope.experiments.plan.plan_files import StreamingPlan, layer_numbers, write_exports
from rotoscope.experiments.plan.result import CachePlan
from rotoscope.models.reader import HeadReader
from rotoscope.runs.run import Run
from tests import plans
from tests.models.test_load import word_tokenizer
from tests.tiny_models import GROUPED, from_config, tiny, tokens

TRAINED = 32


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    model = tiny("llama", max_position_embeddings=TRAINED, num_hidden_layers=2)
    return rs.load((model, word_tokenizer()), name="tiny")


def streaming_plan(subject: rs.Subject, **changes: Any) -> rs.plan.StreamingPlan:
    said = {
        "fingerprint": subject.fingerprint, "window": 4, "sinks": 1, "streaming": ((1, 0),), "key_heads": (2, 2), "model": "tiny"
    }  # fmt: skip
    return rs.plan.StreamingPlan(**said | changes)  # type: ignore[arg-type]


@pytest.fixture
def cache_file(subject: rs.Subject, tmp_path: Path) -> Path:
    streaming_plan(subject, keep=0.75, ranking="gradient", ranked_on="repeats").write(tmp_path / "plan.json")
    return tmp_path / "plan.json"


GONE = object()


def without(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value is not GONE}


def changed(file: Path, other: Path, /, **changes: Any) -> Path:
    """A plan file with some things said otherwise, or gone."""
    other.write_text(json.dumps(without(json.loads(file.read_text()) | changes)))
    return other


def test_a_file_brings_the_plan_back(cache_file: Path, subject: rs.Subject) -> None:
    expected = streaming_plan(subject, keep=0.75, ranking="gradient", ranked_on="repeats")
    assert rs.plan.load_cache(cache_file) == rs.plan.load_cache(cache_file.parent) == expected
    assert json.loads(cache_file.read_text())["plan"] == "cache"
    plan = plans.cache_plan()
    StreamingPlan.of(plan).write(cache_file)
    assert rs.plan.load_cache(cache_file) == rs.plan.load_cache(plan) == rs.plan.StreamingPlan.of(plan)


def test_what_is_no_plan_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    damages: list[bytes] = [
        b"", b"{", b"[]", b"3", b"null", b"{}", b'{"plan": 3}', b'{"plan": null}', b"\xff\xfe",
        b"[" * 100_000, b'{"plan": ' + b"[" * 100_000, b'{"plan": ' + b"9" * 5000 + b"}", b"x" * 2_000_000,
        b'{"plan": "cache"}',
    ]  # fmt: skip
    for damage in damages:
        file.write_bytes(damage)
        with pytest.raises(RunError, match="is no cache plan, or it is damaged .*make the plan again"):
            rs.plan.load_cache(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RunError, match="no plain file"):
        rs.plan.load_cache(file)
    with pytest.raises(RunError, match="is not there: give the folder"):
        rs.plan.load_cache(tmp_path / "nowhere")
    with pytest.raises(RunError, match="is no cache plan"):
        rs.plan.load_cache("a\0b")


def test_a_plan_of_another_kind_is_said_to_be_one(cache_file: Path) -> None:
    with pytest.raises(RunError, match=r"another kind \('rotation'\), and a cache plan was expected"):
        rs.plan.load_cache(changed(cache_file, cache_file, plan="rotation"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 0}, "a window of 0"),
        ({"window": "4"}, "window is missing"),
        ({"streaming": [[0, 9]]}, "not there"),
        ({"streaming": [[0, 1], [0, 1]]}, "twice"),
        ({"streaming": [[True, 1]]}, "not there"),
        ({"key_heads": []}, "no numbers of heads"),
        ({"key_heads": [2**39, 2**39]}, "no numbers of heads"),
        ({"key_heads": [2**20, 2**20]}, "no numbers of heads"),
        ({"layers": [1]}, "not as many as key_heads"),
        ({"layers": [3, 1]}, "in order"),
        ({"layers": [1, 1]}, "each once"),
        ({"layers": [True, 3]}, "no numbers of layers"),
        ({"layers": "13"}, "no numbers of layers"),
    ],
)
def test_a_cache_plan_that_no_model_has_is_refused(
    cache_file: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(RunError, match=words):
        rs.plan.load_cache(changed(cache_file, cache_file, **change))


def test_a_plan_that_was_changed_does_not_stream(cache_file: Path, subject: rs.Subject) -> None:
    file = changed(cache_file, cache_file, key_heads=[2] * 30, streaming=[[29, 1]])
    assert rs.plan.load_cache(file).streaming == ((29, 1),)
    with pytest.raises(
        RunError, match="for 30 layers of 2 key heads, and this model has 2 layers of 2 key heads"
    ):
        rs.plan.stream(subject, file)
    assert subject.model.config._attn_implementation == "sdpa"


def test_a_model_that_streams_is_not_stopped(subject: rs.Subject) -> None:
    undo = rs.plan.stream(subject, streaming_plan(subject))
    ranks = torch.arange(8, dtype=torch.int32).expand(2, 2, 8).contiguous()
    planes = rs.plan.RotatingPlanes(ranks, 2, "fastest", subject.fingerprint, "tiny")
    for change in (
        lambda: rs.plan.stream(subject, streaming_plan(subject)),
        lambda: rs.plan.stop_planes(subject, planes),
    ):
        with pytest.raises(ModelError, match="attends in another way than it was made with already"):
            change()
    undo()
    assert subject.model.config._attn_implementation == "sdpa"


def test_planes_of_a_model_in_a_folder_are_stopped(subject: rs.Subject, tmp_path: Path) -> None:
    subject.model.save_pretrained(tmp_path)
    subject.tokenizer.save_pretrained(tmp_path)
    kept = rs.load(tmp_path)
    ranks = torch.arange(8, dtype=torch.int32).expand(2, 2, 8).contiguous()
    planes = rs.plan.RotatingPlanes(ranks, 2, "fastest", kept.fingerprint, "tiny")
    found, model = rs.plan.stop_planes(str(tmp_path), planes), kept.model
    assert rs.plan.stop_planes(kept, planes) is model
    with torch.no_grad():
        torch.testing.assert_close(found(tokens()).logits, model(tokens()).logits)
        assert not torch.allclose(found(tokens()).logits, subject.model(tokens()).logits, atol=0.1)
    with pytest.raises(ModelError, match="no model called 'm-llama'"):
        rs.plan.stop_planes("m-llama", planes)


def test_a_mask_is_a_rectangle() -> None:
    with pytest.raises(RunError, match="a mask is a rectangle"):
        StreamingPlan("0", 4, 1, (), (2, 3)).mask()


def hybrid() -> Any:
    """Two layers that attend between two that convolve."""
    kinds = ["conv", "full_attention", "conv", "full_attention"]
    return from_config(tf.Lfm2Config(**{**GROUPED, "num_hidden_layers": 4}, layer_types=kinds))


def test_layers_between_which_others_lie_are_not_exported(tmp_path: Path) -> None:
    mine = rs.load(hybrid(), name="hybrid")
    reader = HeadReader(mine.model)
    assert reader.layers == 2
    assert layer_numbers(reader) == (1, 3)
    assert layer_numbers(HeadReader(tiny("llama"))) == layer_numbers(HeadReader(tiny("gptj"))) == (0, 1, 2)
    plan = streaming_plan(mine, layers=layer_numbers(reader))
    plan.write(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["layers"] == [1, 3]
    found = rs.plan.load_cache(tmp_path)
    for export in (found.mask, lambda: rs.plan.save_duo_attention(found, tmp_path / "duo")):
        with pytest.raises(RunError, match=r"only some attend \(1, 3\), and programs that count all of them"):
            export()
    assert not (tmp_path / "duo").exists()
    with torch.no_grad():
        plain = mine.model(tokens(), use_cache=False).logits
        undo = rs.plan.stream(mine, found)
        assert not torch.allclose(mine.model(tokens(), use_cache=False).logits, plain, atol=1e-4)
    undo()
    assert streaming_plan(mine, layers=(0, 1)).mask().tolist() == [[False, False], [True, False]]


def test_a_folder_of_something_else_is_left_alone(subject: rs.Subject, tmp_path: Path) -> None:
    subject.model.save_pretrained(tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[" * 100_000)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    for name in ("model", "broken", "pipe"):
        with pytest.raises(
            RunError, match=r"config.json is not the one of a DuoAttention pattern.*another folder"
        ):
            rs.plan.save_duo_attention(streaming_plan(subject), tmp_path / name)
        assert not (tmp_path / name / "full_attention_heads.tsv").exists()
    assert (tmp_path / "model" / "config.json").read_bytes() == before
    for window in (4, 8):
        folder = rs.plan.save_duo_attention(streaming_plan(subject, window=window), tmp_path / "duo")
    assert json.loads((folder / "config.json").read_text()) == {"sink_size": 1, "recent_size": 8}


def finished(folder: Path, plan: CachePlan, layers: tuple[int, ...] = ()) -> Path:
    """A run with the tables of a plan, its exports beside them."""
    run = Run(CachePlan, plan.run.settings, folder)
    run.piece("all", lambda: plan.tables)
    write_exports(run, layers)
    run.finish()
    return folder


def test_what_other_programs_read_lies_in_the_run_folder(tmp_path: Path) -> None:
    plan = plans.cache_plan()
    folder = finished(tmp_path / "run", plan, tuple(range(6)))
    found = rs.plan.load_cache(folder)
    assert found == rs.plan.load_cache(rs.open(folder)) != rs.plan.StreamingPlan.of(plan)
    assert found.layers == tuple(range(6))
    pattern = np.loadtxt(folder / "duo_attention" / "full_attention_heads.tsv", delimiter="\t")
    assert np.array_equal(pattern == 0, found.mask())
    assert json.loads((folder / "duo_attention" / "config.json").read_text()) == {
        "sink_size": 4,
        "recent_size": 32,
    }
    listed = (folder / "manifest.txt").read_text().splitlines()
    assert {"plan.json", "duo_attention/config.json", "duo_attention/full_attention_heads.tsv"} <= set(listed)
    assert isinstance(rs.open(folder), CachePlan)
    some = finished(tmp_path / "hybrid", plan, (1, 3, 5, 7, 9, 11))
    assert rs.plan.load_cache(some).layers == (1, 3, 5, 7, 9, 11)
    with pytest.raises(RunError, match="only some attend"):
        rs.plan.save_duo_attention(rs.open(some), tmp_path / "duo")
    assert not (some / "duo_attention").exists()
