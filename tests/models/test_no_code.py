"""No code from a model folder runs: one test for every road by which transformers could get to it.

Each folder holds a program that would leave a mark, and the user at the keyboard says yes to every question.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase
from transformers.integrations import hub_kernels

import rotoscope as rs
from rotoscope.errors import ModelError
from rotoscope.models.sanitize import clean_room
from tests.models.test_load import word_tokenizer
from tests.tiny_gguf import write_gguf
from tests.tiny_models import GROUPED, PICTURES, tiny


class Hostile:
    """A model folder, and the mark that its code would leave."""

    def __init__(self, place: Path) -> None:
        self.mark = place / "the-code-ran"
        self.folder = place / "model"
        tiny("llama").save_pretrained(self.folder)
        word_tokenizer().save_pretrained(self.folder)
        self.program = f"open({str(self.mark)!r}, 'w').close()"

    def change(self, name: str, **keys: Any) -> None:
        """Set keys of a JSON file of the folder, which is made where it is not there."""
        file = self.folder / name
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(before | keys))

    def code(self, name: str, *lines: str) -> None:
        """A Python file that leaves the mark when it is imported."""
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join((self.program, *lines)))

    def pickled(self, name: str) -> None:
        """A pickle that leaves the mark when it is opened: it calls `exec`."""
        (self.folder / name).write_bytes(b"cbuiltins\nexec\n(V" + self.program.encode() + b"\ntR.")

    def loads(self) -> rs.Subject:
        """It loads all the same, and nothing ran."""
        subject = rs.load(self.folder, device="cpu")
        assert not self.mark.exists()
        return subject

    def refused(self, reason: str) -> None:
        with pytest.raises(ModelError, match=reason):
            rs.load(self.folder, device="cpu")
        assert not self.mark.exists()


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Hostile(tmp_path)


CUSTOM = (
    "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast",
    "class Config(LlamaConfig): model_type = 'mine'",
    "class Model(LlamaForCausalLM): config_class = Config",
    "class Words(PreTrainedTokenizerFast): pass",
)


def test_configuration_of_its_own(hostile: Hostile) -> None:
    hostile.code("mine.py", *CUSTOM)
    hostile.change("config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    hostile.refused("does not know models of type 'mine'.*the code that comes with it is not run")


def test_model_of_its_own(hostile: Hostile) -> None:
    """Where transformers knows the type, its own class is taken, whatever the folder brings."""
    hostile.code("mine.py", *CUSTOM)
    classes = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    hostile.change("config.json", auto_map=classes)
    assert type(hostile.loads().model).__module__.startswith("transformers.")


def test_model_of_its_own_for_a_type_that_is_no_language_model(hostile: Hostile) -> None:
    hostile.code("mine.py", *CUSTOM)
    hostile.change("config.json", model_type="vit", auto_map={"AutoModelForCausalLM": "mine.Model"})
    hostile.refused("has no class that reads text")


@pytest.mark.parametrize(
    "part",
    [
        {"model_type": "timm_wrapper", "architecture": "resnet18"},
        {"model_type": "detr", "backbone": "somebody/model"},
        {"model_type": "detr", "use_pretrained_backbone": True},
        {"model_type": "detr", "use_timm_backbone": True},
        {"model_type": "clip_vision_model", "further": {"architecture": "hf-hub:somebody/model"}},
    ],
)
def test_a_part_that_is_made_or_fetched_elsewhere(part: dict[str, Any], hostile: Hostile) -> None:
    """A model of pictures may name one of another library, or of the hub, as the part that sees."""
    hostile.change("config.json", model_type="llava", text_config={"model_type": "llama"}, vision_config=part)
    hostile.refused("has a part that is not in the folder")


@pytest.mark.parametrize("kind", ["perception_lm", "fast_vlm", "gemma3n"])
def test_a_part_that_transformers_fills_in(kind: str, hostile: Hostile) -> None:
    """Nothing in the folder names the other library; what it is handed stands there."""
    part = {"model_args": {"checkpoint_path": str(hostile.folder / "weights.pth")}}
    hostile.change("config.json", model_type=kind, text_config={}, vision_config=part)
    hostile.refused("has a part that is not in the folder")


def test_model_of_its_own_further_down(hostile: Hostile) -> None:
    """A configuration within the configuration."""
    hostile.code("mine.py", *CUSTOM)
    inner = {"auto_map": {"AutoModel": "mine.Model", "AutoModelForCausalLM": "mine.Model"}}
    text, pictures = (
        {**GROUPED, **inner, "model_type": "llama"},
        {**PICTURES, **inner, "model_type": "clip_vision_model"},
    )
    hostile.change("config.json", model_type="llava", text_config=text, vision_config=pictures)
    hostile.refused(r"lacks \d+ \(model\.")


def test_code_of_another_repository(hostile: Hostile) -> None:
    hostile.change("config.json", model_type="mine", auto_map={"AutoConfig": "somebody/code--mine.Config"})
    hostile.refused("does not know models of type 'mine'")


def test_tokenizer_of_its_own(hostile: Hostile) -> None:
    hostile.code("mine.py", *CUSTOM)
    hostile.change(
        "tokenizer_config.json", tokenizer_class="Words", auto_map={"AutoTokenizer": ["mine.Words", None]}
    )
    assert isinstance(hostile.loads().tokenizer, PreTrainedTokenizerBase)


def test_tokenizer_of_its_own_in_the_old_form(hostile: Hostile) -> None:
    hostile.code("mine.py", *CUSTOM)
    hostile.change("tokenizer_config.json", tokenizer_class="Words", auto_map=["mine.Words", "mine.Words"])
    assert isinstance(hostile.loads().tokenizer, PreTrainedTokenizerBase)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_tokenizer_class_that_loads_something_else(file: str, hostile: Hostile) -> None:
    """transformers takes any name it knows for a tokenizer's class and calls its `from_pretrained`."""
    hostile.code("mine.py", *CUSTOM)
    hostile.change("preprocessor_config.json", auto_map={"AutoImageProcessor": "mine.Words"})
    hostile.change("processor_config.json", auto_map={"AutoProcessor": "mine.Words"})
    hostile.change(file, tokenizer_class="AutoImageProcessor")
    hostile.refused("names 'AutoImageProcessor' as the class of the tokenizer, which is no tokenizer")


def test_processor_of_its_own(hostile: Hostile) -> None:
    hostile.code("mine.py", *CUSTOM)
    for name in ("processor_config.json", "preprocessor_config.json"):
        hostile.change(name, auto_map={"AutoProcessor": "mine.Words"}, processor_class="Words")
    hostile.change("tokenizer_config.json", processor_class="Words")
    hostile.loads()


def test_generation_of_its_own(hostile: Hostile) -> None:
    hostile.code("custom_generate/generate.py", "def generate(model, **_): pass")
    settings = {
        "custom_generate": str(hostile.folder),
        "cache_implementation": "quantized",
        "eos_token_id": [2, 5],
    }
    hostile.change("generation_config.json", trust_remote_code=True, **settings)
    model = hostile.loads().model
    assert model.generation_config.eos_token_id == [2, 5]
    assert model.generation_config.cache_implementation is None
    assert "generate" not in vars(model)


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_attention_kernel_of_the_hub(key: str, hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package installed that fetches such kernels, which stands in here."""

    def fetch(*_: Any, **__: Any) -> None:
        hostile.mark.touch()
        raise RuntimeError("fetched")

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_, **__: True)
    monkeypatch.setattr(hub_kernels, "get_kernel_hub", fetch, raising=False)
    hostile.change("config.json", **{key: "kernels-community/flash-attn"})
    assert hostile.loads().model.config._attn_implementation in ("sdpa", "eager")


def test_experts_and_fusions_are_left_out(hostile: Hostile) -> None:
    hostile.change("config.json", experts_implementation="somebody/kernel", fusion_config={"nothing": True})
    hostile.change("config.json", kernel_config={"RMSNorm": "somebody/kernel:Norm"}, use_kernels=True)
    config = hostile.loads().model.config
    assert not any(hasattr(config, key) for key in ("fusion_config", "kernel_config", "use_kernels"))


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "quark", "torchao", "mine"])
@pytest.mark.parametrize("inside", [False, True])
def test_quantiser(method: str, inside: bool, hostile: Hostile) -> None:
    settings: dict[str, Any] = {"quantization_config": {"quant_method": method, "load_in_4bit": True}}
    hostile.change("config.json", **({"text_config": settings} if inside else settings))
    hostile.refused(rf"describes quantised weights \({method}\)")


def test_pickled_weights(hostile: Hostile) -> None:
    (hostile.folder / "model.safetensors").unlink()
    hostile.pickled("pytorch_model.bin")
    hostile.refused("pytorch_model.bin, which may run code when opened")


def test_pickled_weights_under_the_name_of_safetensors(hostile: Hostile) -> None:
    hostile.pickled("model.safetensors")
    hostile.refused("SafetensorError")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../model/pytorch_model.bin", "../other.safetensors"])
def test_pickled_weights_through_an_index(name: str, hostile: Hostile) -> None:
    weights = hostile.folder / "model.safetensors"
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), name)}
    weights.unlink()
    hostile.pickled("pytorch_model.bin")
    hostile.change("model.safetensors.index.json", **index)
    hostile.refused("names '.*', which is no safetensors file of that folder and is not opened")


def test_pickled_weights_through_an_old_index(hostile: Hostile) -> None:
    weights = hostile.folder / "model.safetensors"
    hostile.change(
        "pytorch_model.bin.index.json", weight_map=dict.fromkeys(load_file(weights), "pytorch_model.bin")
    )
    weights.unlink()
    hostile.pickled("pytorch_model.bin")
    hostile.refused("has no safetensors weights")


def test_weights_that_the_configuration_names(hostile: Hostile) -> None:
    """`transformers_weights` may name a pickle of an adapter; the usual file is read instead."""
    hostile.pickled("adapter_model.bin")
    hostile.change("config.json", transformers_weights="adapter_model.bin")
    hostile.loads()


def test_adapter(hostile: Hostile) -> None:
    hostile.pickled("adapter_model.bin")
    hostile.change("adapter_config.json", base_model_name_or_path="somebody/model", peft_type="LORA")
    hostile.refused(r"holds an adapter \(adapter_config\.json\)")


def test_dtype_that_is_a_function(hostile: Hostile) -> None:
    hostile.change("config.json", dtype="load")
    hostile.refused("dtype 'load', which is no floating-point type")


def test_key_that_replaces_a_method(hostile: Hostile) -> None:
    hostile.change("config.json", get_text_config="mine")
    hostile.refused("a key 'get_text_config'")


def test_tokenizer_beside_a_gguf_file(hostile: Hostile) -> None:
    """Nothing that lies beside the file is looked at."""
    hostile.code("mine.py", *CUSTOM)
    hostile.change(
        "tokenizer_config.json", tokenizer_class="Words", auto_map={"AutoTokenizer": [None, "mine.Words"]}
    )
    hostile.change("config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    hostile.change("adapter_config.json", base_model_name_or_path="somebody/model", peft_type="LORA")
    subject = rs.load(write_gguf(hostile.folder / "a.gguf"), device="cpu")
    assert subject.model.config.model_type == "llama"
    assert not hostile.mark.exists()


def reach(mark: Path) -> str:
    """A template that climbs from a string to all classes, to the one that opens files."""
    return (
        "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{% if c.__name__ == 'FileIO' %}"
        f"{{{{ c('{mark}', 'w') }}}}{{% endif %}}{{% endfor %}}"
    )


@pytest.mark.parametrize(
    "file", ["tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/default.jinja"]
)
def test_chat_template(file: str, hostile: Hostile) -> None:
    template = reach(hostile.mark)
    if file.endswith(".json"):
        hostile.change(file, chat_template=template)
    else:
        (hostile.folder / file).parent.mkdir(exist_ok=True)
        (hostile.folder / file).write_text(template)
    subject = hostile.loads()
    assert subject.tokenizer.chat_template
    with pytest.raises(rs.errors.TaskError, match="chat template cannot be used"):
        rs.tasks.binding(subject, pairs=4, count=1, prefix="chat")
    assert not hostile.mark.exists()


def test_nothing_that_runs_is_in_the_room(hostile: Hostile) -> None:
    """Whatever road transformers may learn tomorrow: what could be run is not there."""
    hostile.code("mine.py")
    hostile.code("custom_generate/generate.py")
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "vocab.pkl", "flax_model.msgpack"):
        hostile.pickled(name)
    hostile.change("preprocessor_config.json", auto_map={"AutoProcessor": "mine.Words"})
    hostile.change("config.json", auto_map={"AutoConfig": "mine.Config"}, list=[{"auto_map": {"A": "b.C"}}])
    with clean_room(hostile.folder) as room:
        found = {str(file.relative_to(room)) for file in room.rglob("*")}
        texts = [file.read_text(encoding="utf-8") for file in room.glob("*.json")]
    assert found == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert not any("auto_map" in text for text in texts)
    assert not room.exists()


BROKEN = ["", "[]", "null", "{", "[" * 100_000, "\udcff"]


@pytest.mark.parametrize("content", [*BROKEN, '{"model_type": 3}', "{}"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_damaged_settings_are_one_sentence(name: str, content: str, hostile: Hostile) -> None:
    (hostile.folder / name).write_bytes(content.encode(errors="surrogateescape"))
    if name != "config.json" and content not in BROKEN:  # odd, but settings all the same
        hostile.loads()
        return
    with pytest.raises(ModelError) as said:
        rs.load(hostile.folder, device="cpu")
    assert "\n" not in str(said.value)
    assert str(hostile.folder) in str(said.value)
