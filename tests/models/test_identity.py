"""A model's identity: every edit that changes what it computes is noticed, and nothing else is."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

import peft
import pytest
import torch
import transformers as tf
from torch import nn

import rotoscope as rs
from rotoscope.models.identity import model_identity, tokenizer_identity
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny, tokens

Model = Any


def shift(name: str, index: Any = (0, 1), by: float = 1e-3) -> Callable[[Model], object]:
    """Add a little to one number, or one slice, of a weight or a buffer."""

    def edit(model: Model) -> None:
        with torch.no_grad():
            dict([*model.named_parameters(), *model.named_buffers()])[name][index] += by

    return edit


def zero(name: str, index: Any) -> Callable[[Model], object]:
    def edit(model: Model) -> None:
        with torch.no_grad():
            model.get_parameter(name)[index] = 0

    return edit


def exchange(name: str, first: slice, second: slice) -> Callable[[Model], object]:
    """Two heads change places: the same numbers, elsewhere."""

    def edit(model: Model) -> None:
        with torch.no_grad():
            weight = model.get_parameter(name)
            kept = weight[first].clone()
            weight[first] = weight[second]
            weight[second] = kept

    return edit


def flip_signs(model: Model) -> None:
    """The highest bit of two numbers: a plain sum modulo 2^64 would not see it."""
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight")[0, [1, 3]] *= -1


def merge_adapter(model: Model) -> Model:
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    )
    return wrapped.merge_and_unload()


def other_setting(name: str, value: Any) -> Callable[[Model], object]:
    return lambda model: setattr(model.config, name, value)


def wrapped_forward(model: Model) -> None:
    """As interpretability tutorials replace a method: the new one says that it is the old one."""
    mlp = model.model.layers[0].mlp
    plain = mlp.forward

    @wraps(plain)
    def doubled(states: Any) -> Any:
        return 2 * plain(states)

    mlp.forward = doubled


def undecorated_gradients(model: Model) -> None:
    """A user's function inside a decorator of torch."""
    mlp = model.model.layers[0].mlp
    mlp.forward = torch.no_grad()(lambda states: states)


class Ablated(nn.Module):
    def forward(self, states: Any) -> Any:
        return torch.zeros_like(states)


def other_attribute(place: str, name: str, value: Any) -> Callable[[Model], object]:
    return lambda model: setattr(model.get_submodule(place), name, value)


LAYER = "model.layers.1."
EDITS: dict[str, Callable[[Model], Any]] = {
    "one number of the embedding": shift("model.embed_tokens.weight", (77, 5)),
    "one number of a query": shift(f"{LAYER}self_attn.q_proj.weight", (3, 7), 1e-6),
    "one number of a key": shift(f"{LAYER}self_attn.k_proj.weight", (0, 63)),
    "one number of a value": shift(f"{LAYER}self_attn.v_proj.weight", (31, 1)),
    "a head ablated in the output": zero(f"{LAYER}self_attn.o_proj.weight", (slice(None), slice(16, 32))),
    "an MLP neuron zeroed": zero(f"{LAYER}mlp.down_proj.weight", (slice(None), 5)),
    "a gate": shift(f"{LAYER}mlp.gate_proj.weight", (95, 63)),
    "a norm": shift(f"{LAYER}input_layernorm.weight", 9),
    "the last norm": shift("model.norm.weight", 63),
    "the output": shift("lm_head.weight", (127, 63)),
    "two heads exchanged": exchange(f"{LAYER}self_attn.q_proj.weight", slice(0, 16), slice(16, 32)),
    "two signs": flip_signs,
    "a frequency": shift("model.rotary_emb.inv_freq", 3, 1e-5),
    "the scale of rotations": lambda model: setattr(model.model.rotary_emb, "attention_scaling", 1.1),
    "half precision": lambda model: model.to(torch.bfloat16),
    "double precision": lambda model: model.double(),
    "LoRA merged": merge_adapter,
    "a layer removed": lambda model: model.model.layers.__delitem__(2),
    "epsilon of the norms": other_setting("rms_norm_eps", 1e-3),
    "the activation": other_setting("hidden_act", "relu"),
    "a hook on a layer": lambda model: model.model.layers[0].register_forward_hook(lambda *_: None),
    "a hook before the model": lambda model: model.register_forward_pre_hook(lambda *_: None),
    "a method replaced": lambda model: setattr(model.model.layers[0].mlp, "forward", lambda states: states),
    "heads that stream": lambda model: setattr(model.config, "_attn_implementation_internal", "rotoscope_1f"),
    "a method wrapped": wrapped_forward,
    "a method in a decorator of torch": undecorated_gradients,
    "a helper of a layer replaced": other_attribute("model.layers.0", "combined", MethodType(print, 0)),
    "the scale of logits": other_attribute(f"{LAYER}self_attn", "scaling", 0.3),
    "causality": other_attribute(f"{LAYER}self_attn", "is_causal", False),
    "a window": other_attribute(f"{LAYER}self_attn", "sliding_window", 4),
    "epsilon of one norm": other_attribute(f"{LAYER}input_layernorm", "variance_epsilon", 1e-3),
    "the activation of one layer": other_attribute(f"{LAYER}mlp", "act_fn", nn.ReLU()),
    "a module of the user's": other_attribute("model.layers.0", "mlp", Ablated()),
    "a direction beside the weights": other_attribute("model.layers.0", "direction", torch.ones(3)),
    "a new buffer": lambda model: model.register_buffer("direction", torch.ones(3)),
}


@pytest.fixture
def model() -> Model:
    return tiny("llama")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_is_noticed(model: Model, edit: Callable[[Model], Any]) -> None:
    subject = rs.load((model, None))
    before = subject.fingerprint
    edited = edit(model)
    assert rs.load((edited if isinstance(edited, nn.Module) else model, None)).fingerprint != before


def saved(model: Model, folder: Path, **how: Any) -> Model:
    model.save_pretrained(folder, **how)
    return type(model).from_pretrained(folder)


def replaced_parameters(model: Model) -> Model:
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.detach().clone()))
    return model


def strided(model: Model) -> Model:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    return model


def bits_and_back(model: Model) -> Model:
    kept = io.BytesIO()
    from safetensors.torch import load, save

    kept.write(save({name: weight.contiguous() for name, weight in model.state_dict().items()}))
    model.load_state_dict(load(kept.getvalue()))
    return model


def with_gradients(model: Model) -> Model:
    model(tokens(1, 8), labels=tokens(1, 8)).loss.backward()
    return model


def nudged_table(model: Model) -> Model:
    """As another device would round it."""
    table = model.model.rotary_emb.inv_freq
    table.copy_(torch.nextafter(table, torch.ones_like(table)))
    return model


def spread_model(model: Model, folder: Path, place: str) -> Model:
    from accelerate import dispatch_model

    layers = {f"model.layers.{k}": place if k else "cpu" for k in range(3)}
    ends = dict.fromkeys(("model.embed_tokens", "model.norm", "lm_head", "model.rotary_emb"), "cpu")
    return dispatch_model(model, ends | layers, offload_dir=str(folder), force_hooks=True)


def then_removed(model: Model, register: str) -> Model:
    getattr(model.model.layers[1], register)(lambda *_: None).remove()
    return model


def profiled(model: Model) -> Model:
    rs.profile(model, tokens=tokens(2, 10), null="none", show_progress=False)
    return model


NO_OPS: dict[str, Callable[[Model, Path], Model]] = {
    "nothing": lambda model, _: model,
    "a copy": lambda model, _: copy.deepcopy(model),
    "to the same device": lambda model, _: model.to("cpu"),
    "to the same type": lambda model, _: model.float(),
    "to the meta device and filled": lambda model, _: _refilled(model),
    "training mode": lambda model, _: model.train(),
    "evaluation mode": lambda model, _: model.eval(),
    "no gradients wanted": lambda model, _: model.requires_grad_(False),
    "gradients there": lambda model, _: with_gradients(model),
    "gradients cleared": lambda model, _: (with_gradients(model).zero_grad(), model)[1],
    "a forward pass": lambda model, _: (model(tokens(1, 9)), model)[1],
    "a generation": lambda model, _: (model.generate(tokens(1, 5), max_new_tokens=2, do_sample=False), model)[
        1
    ],
    "a profile": lambda model, _: profiled(model),
    "attentions asked for": lambda model, _: (model(tokens(1, 9), output_attentions=True), model)[1],
    "states asked for": lambda model, _: (model(tokens(1, 9), output_hidden_states=True), model)[1],
    "eager attention": lambda model, _: (model.set_attn_implementation("eager"), model)[1],
    "sdpa attention": lambda model, _: (model.set_attn_implementation("sdpa"), model)[1],
    "saved and loaded": lambda model, folder: saved(model, folder),
    "saved in shards": lambda model, folder: saved(model, folder, max_shard_size="20KB"),
    "saved twice": lambda model, folder: saved(saved(model, folder / "a"), folder / "b"),
    "loaded through its class's parent": lambda model, folder: _auto(model, folder),
    "loaded by rotoscope": lambda model, folder: _by_rotoscope(model, folder),
    "loaded with a device_map": lambda model, folder: _with_device_map(model, folder),
    "torch.compile": lambda model, _: torch.compile(model, backend="eager"),
    "compiled in place": lambda model, _: (model.compile(backend="eager"), model)[1],
    "data parallel": lambda model, _: nn.DataParallel(model),
    "spread over the CPU": lambda model, folder: spread_model(model, folder, "cpu"),
    "spread over CPU and disk": lambda model, folder: spread_model(model, folder, "disk"),
    "parameters replaced by copies": lambda model, _: replaced_parameters(model),
    "another memory layout": lambda model, _: strided(model),
    "weights written and read": lambda model, _: bits_and_back(model),
    "shared memory": lambda model, _: model.share_memory(),
    "another name": lambda model, _: (setattr(model, "name_or_path", "elsewhere"), model)[1],
    "no cache": lambda model, _: (setattr(model.config, "use_cache", False), model)[1],
    "another padding token": lambda model, _: (setattr(model.config, "pad_token_id", 5), model)[1],
    "a label": lambda model, _: (setattr(model.config, "id2label", {0: "x"}), model)[1],
    "a table rounded elsewhere": lambda model, _: nudged_table(model),
    "a hook that was removed": lambda model, _: then_removed(model, "register_forward_hook"),
    "a first hook that was removed": lambda model, _: then_removed(model, "register_forward_pre_hook"),
    "another random state": lambda model, _: (torch.manual_seed(7), model)[1],
    "a layer compiled": lambda model, _: with_layer(
        model, torch.compile(model.model.layers[0], backend="eager")
    ),
    "a compiled forward pass": lambda model, _: (
        setattr(model, "forward", torch.compile(model.forward, backend="eager")),
        model,
    )[1],
    "dropout in training": lambda model, _: (setattr(model.config, "attention_dropout", 0.1), model)[1],
    "dropout of one layer": lambda model, _: (
        setattr(model.model.layers[0].self_attn, "attention_dropout", 0.1),
        model,
    )[1],
    "a gradient checkpointed": lambda model, _: (model.gradient_checkpointing_enable(), model)[1],
    "an optimiser beside it": lambda model, _: (torch.optim.AdamW(model.parameters()), model)[1],
}


def with_layer(model: Model, layer: Any) -> Model:
    model.model.layers[0] = layer
    return model


def _refilled(model: Model) -> Model:
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.device("meta"):
        empty = type(model)(model.config)
    empty.load_state_dict(weights, assign=True)
    for name, table in model.model.rotary_emb.named_buffers():
        empty.model.rotary_emb.register_buffer(name, table.clone(), persistent=False)
    return empty


def _auto(model: Model, folder: Path) -> Model:
    model.save_pretrained(folder)
    return tf.AutoModelForCausalLM.from_pretrained(folder)


def _by_rotoscope(model: Model, folder: Path) -> Model:
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return rs.load(folder).model


def _with_device_map(model: Model, folder: Path) -> Model:
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, device_map={"": "cpu"})


@pytest.mark.parametrize("change", NO_OPS.values(), ids=NO_OPS)
def test_a_no_op_is_not_taken_for_an_edit(
    model: Model, change: Callable[[Model, Path], Model], tmp_path: Path
) -> None:
    before = rs.load((model, None)).fingerprint
    assert rs.load((change(model, tmp_path), None)).fingerprint == before


def test_there_are_twenty_edits_and_forty_no_ops() -> None:
    assert len(EDITS) >= 20
    assert len(NO_OPS) >= 40


def test_adapters_that_are_not_merged_count_with_what_they_add(model: Model) -> None:
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    )
    marks = [model_identity(wrapped)]
    wrapped.base_model.disable_adapter_layers()
    marks.append(model_identity(wrapped))
    wrapped.base_model.enable_adapter_layers()
    assert model_identity(wrapped) == marks[0]
    query = wrapped.get_submodule("base_model.model.model.layers.1.self_attn.q_proj")
    query.scaling["default"] *= 2
    marks.append(model_identity(wrapped))
    assert len(set(marks)) == 3


def test_every_architecture_has_an_identity_of_its_own() -> None:
    names = ("llama", "qwen2", "gemma2", "gemma3", "gpt_oss", "gptj", "phi")
    marks = [model_identity(tiny(name)) for name in names]
    assert len(set(marks)) == len(names)
    assert marks == [model_identity(tiny(name)) for name in names]


def test_a_trained_model_is_not_given_its_old_numbers(model: Model, tmp_path: Path) -> None:
    """One subject and one folder: the weights have changed in between."""
    subject = rs.load((model, None), name="mine")
    how: dict[str, Any] = {"tokens": tokens(2, 10), "null": "none", "show_progress": False}
    before = rs.profile(subject, out=tmp_path / "run", **how)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(-2)
    with pytest.raises(rs.errors.RunError, match="holds a run of another model"):
        rs.profile(subject, out=tmp_path / "run", **how)
    after = rs.profile(subject, out=tmp_path / "run", overwrite=True, **how)
    assert after.run.subject.fingerprint == subject.fingerprint != before.run.subject.fingerprint
    assert not after.heads["symbolic_score"].equals(before.heads["symbolic_score"])


def test_tokenizers_are_told_apart_by_what_they_hold() -> None:
    first, again = word_tokenizer(), word_tokenizer()
    assert tokenizer_identity(first) == tokenizer_identity(again) != ""
    again("a b", padding="max_length", truncation=True, max_length=7)
    again.pad_token = again.eos_token
    assert tokenizer_identity(first) == tokenizer_identity(again)
    again.add_tokens(["strange"])
    assert tokenizer_identity(first) != tokenizer_identity(again)
    assert tokenizer_identity(None) == ""
