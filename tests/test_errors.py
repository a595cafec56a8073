"""Every error has its entry in docs/errors.md, and every message shown there is made."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file

import rotoscope as rs
from rotoscope import errors
from rotoscope.analysis.batches import Halving
from rotoscope.analysis.gating import parse_heads
from rotoscope.cli.doctor import EXTRAS
from rotoscope.reading import HeadReader
from rotoscope.reading.own_angles import stored_angles
from rotoscope.reading.rerun import Reruns
from rotoscope.tasks.vocabulary import words
from tests.constructed import first_for_last, remembering
from tests.models import GROUPED, from_config, other, tiny, tokens
from tests.monitor.trained import TOKENS, prompt_tuned, sharded
from tests.reading.test_wrapped import HookedTransformer, LanguageModel, TransformerBridge, holding, unread
from tests.results.test_restrictions import training
from tests.scene import Said, Scene

ROOT = Path(__file__).parents[1]
PYTHIA = SimpleNamespace(tokenizer_name="EleutherAI/pythia-70m", model_name="pythia-70m")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """Heading -> what stands under it, up to the next heading of any level."""
    parts = re.split(r"^#{2,3} (.+)$", read(page), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def subclasses(parent: type) -> set[type]:
    return {parent}.union(*(subclasses(child) for child in parent.__subclasses__()))


def test_every_error_has_an_entry() -> None:
    ours = {kind for kind in subclasses(errors.RotoscopeError) if kind.__module__ == errors.__name__}
    assert {kind.__name__ for kind in ours} == set(errors.__all__)
    headings = re.findall(r"^## (\w+)$", read("docs/errors.md"), flags=re.MULTILINE)
    assert {kind.__name__ for kind in ours} <= set(headings)


def test_every_extra_in_a_hint_exists_and_is_explained() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "rotoscope").rglob("*.py"))
    named = set(re.findall(r"rotoscope\[([a-z]+)\]", source))
    assert named
    assert named <= set(project["optional-dependencies"])
    assert named == set(EXTRAS), "what doctor looks for"
    for extra in named:
        assert f"pip install 'rotoscope[{extra}]'" in sections("docs/errors.md")["A missing extra"]


def monitored_twice(model: Any) -> None:
    for _ in range(2):
        monitor = rs.HeadMonitor(TOKENS, out="runs/mine")
        monitor.step(model, 0)
        monitor.finish()


def checkpointed(model: Any) -> Any:
    favour = rs.monitor.Favour(model, "symbolic")
    model.train().gradient_checkpointing_enable()
    return favour


def _planes(scene: Scene, shape: tuple[int, ...] = (3, 2, 8)) -> Any:
    """A plan that keeps the two fastest planes of every key head."""
    return rs.plan.RotatingPlanes(
        torch.arange(shape[-1]).expand(shape).contiguous(), 2, "fastest", scene.subject.fingerprint, "tiny"
    )


def _knows_colours(scene: Scene) -> Any:
    scene.tokenizer.add_tokens(words("colours.txt"))
    return scene.tokenizer


def _flat_ranks(scene: Scene) -> None:
    about = {"fingerprint": "x", "planes": "2", "ranking": "fastest", "model": "tiny"}
    save_file({"rank": torch.arange(3).repeat(2, 1)}, "mine.safetensors", metadata=about)
    rs.plan.load_rotation("mine.safetensors")


SITUATIONS: dict[str, Callable[[Scene], Any]] = {
    "Fewer than two blocks": lambda s: s.text(),
    "A block holds the query": lambda s: s.profile(blocks=[(1, 6), (6, 12)]),
    "A block after the query": lambda s: rs.Blocks.of([(1, 3), (8, 9)], 5),
    "Overlapping blocks": lambda s: s.profile(blocks=[(1, 6), (5, 9)]),
    "An empty block": lambda s: s.profile(blocks=[(1, 1), (5, 9)]),
    "Blocks of unequal length": lambda s: s.text(blocks=[(1, 3), (3, 4)], equal_length=True),
    "Longer than the context": lambda s: rs.profile(s.subject, tokens=tokens(1, 600)),
    "Too short to swap": lambda s: rs.profile(s.subject, tokens=tokens(1, 2)),
    "A gate on a class and on something else": lambda s: rs.settings.GateSettings(
        heads_of_class="symbolic", keep="1"
    ),
    "Carried heads that nobody looked for": lambda s: parse_heads(
        "carried", HeadReader(s.model), s.profile(null="none")
    ),
    "Too short to look back": lambda s: rs.known_heads(
        s.subject, rs.tasks.Prompts("mine", (rs.Prompt((5,), (0,)),))
    ),
    "A text without words": lambda s: rs.known_heads(s.subject, text=["w3 w4 w5", " "]),
    "Several things to look at": lambda s: rs.known_heads(s.subject, text="w3 w4 w5", tokens=tokens(1, 9)),
    "A query that has nothing to swap": lambda s: s.profile(queries=[1, 40]),
    "No character offsets": lambda s: rs.tasks.text(
        type("SlowTokenizer", (), {"is_fast": False, "bos_token_id": 1})(), "a b c"
    ),
    "No chat template": lambda s: rs.tasks.binding(s.subject, 4, 1, prefix="chat"),
    "More pairs than names": lambda s: rs.tasks.binding(s.subject, 4000, 1),
    "Too few words that differ": lambda s: rs.tasks.lookup(s.subject, 64),
    "A path that does not fit": lambda s: rs.tasks.number(8, window=2),
    "Too few letters for one path": lambda s: rs.tasks.letter(8, alphabet=4),
    "A template without its places": lambda s: rs.tasks.one_hop(
        "letter", 12, template="Which begins with {query}?"
    ),
    "A query that an encoder sees past": lambda s: rs.profile(
        other("modernbert"), tokens=tokens(1, 12), queries="all", null="none"
    ),
    "Planes that have been stopped": lambda s: [rs.plan.stop_planes(s.model, _planes(s)) for _ in range(2)],
    "Stopped planes and a cache of something else": lambda s: (
        rs.plan.stop_planes(model := tiny("deepseek_v3"), _planes(s, (3, 4, 4)), uptrained=True)(tokens())
        and model
    ),
    "A file that is no plan of planes": lambda s: rs.plan.load_rotation(s.made("mine.safetensors", "nothing")),
    "Ranks that are none": _flat_ranks,
    "More planes than a head has": lambda s: rs.plan.rotation(
        s.subject, planes=9, sources=("repeats",), length=8
    ),
    "A plan of planes for another model": lambda s: rs.plan.stop_planes(
        s.model, dataclasses.replace(_planes(s), fingerprint="0123456789abcdef", model="other")
    ),
    "A plan of planes for another shape": lambda s: rs.plan.stop_planes(
        s.model, dataclasses.replace(_planes(s, (2, 2, 8)), model="other")
    ),
    "A window that holds what is asked for": lambda s: rs.plan.cache(
        s.subject, window=20, length=8, sources="repeats"
    ),
    "Lines that a window holds": lambda s: rs.tasks.lookup(_knows_colours(s), 4, beyond=200, after=4),
    "A window that holds the whole prompt": lambda s: rs.plan.cache(
        s.subject,
        window=20,
        passage=16,
        sources="text",
        task="text",
        rankings="far_task",
        text=s.made("words.txt", "w3 " * 99),
    ),
    "A ranking without its text": lambda s: rs.plan.cache(s.subject, sources="repeats", rankings="far_text"),
    "Random rankings alone": lambda s: rs.plan.cache(s.subject, rankings="random"),
    "A share that was a percentage": lambda s: rs.plan.cache(s.subject, keep=25),
    "No share to compare at": lambda s: rs.plan.cache(
        s.subject, keep=1.0, frontier=0.01, sources="repeats", length=8, window=4
    ),
    "A context that cannot be filled": lambda s: rs.plan.context(
        s.subject, trained=64, to=256, sources="repeats"
    ),
    "An unknown name": lambda s: rs.plan.cache(s.subject, sources="repeat"),
    "A value of another kind": lambda s: rs.plan.cache(s.subject, keep=None),
    "A plan for a model of another language": lambda s: rs.plan.cache("letter"),
    "A text that is too short for its stretches": lambda s: rs.tasks.long_text(
        s.tokenizer, text="w1 w2 w3 w4 w5 w6 w7 w8 w9"
    ),
    "Stretches without tokens": lambda s: rs.tasks.long_text(s.tokenizer, 2),
    "More asked for than there is": lambda s: rs.tasks.long_text(s.tokenizer, 8, asked=9),
    "A cache plan that is not there": lambda s: rs.plan.load_cache("nowhere"),
    "A plan of another kind": lambda s: rs.plan.load_context(s.made("plan.json", '{"plan": "cache"}')),
    "A damaged cache plan": lambda s: rs.plan.load_cache(s.made("plan.json", "{}")),
    "A cache plan for another model": lambda s: rs.plan.stream(
        s.subject, rs.plan.StreamingPlan("0123456789abcdef", 4, 1, (), (2,), "other")
    ),
    "A cache plan that was changed": lambda s: rs.plan.stream(
        s.subject, rs.plan.StreamingPlan(s.subject.fingerprint, 4, 1, ((29, 1),), (2,) * 30)
    ),
    "A config.json of something else": lambda s: rs.plan.save_duo_attention(
        rs.plan.StreamingPlan("0", 4, 1, (), (2, 2)), s.folder("mine")
    ),
    "Layers that do not all attend": lambda s: rs.plan.StreamingPlan(
        "0", 4, 1, (), (2, 2), layers=(1, 3)
    ).mask(),
    "A model that attends in another way already": lambda s: [
        rs.plan.stream(s.subject, rs.plan.StreamingPlan(s.subject.fingerprint, 4, 1, (), (2,) * 3))
        for _ in range(2)
    ],
    "A scaling of a plan that was changed": lambda s: s.scaled_by(rope_type="longrope", factor=2.0),
    "A part of a scaling that is missing": lambda s: s.scaled_by(rope_type="linear"),
    "A mask that is no rectangle": lambda s: rs.plan.StreamingPlan("0", 4, 1, (), (2, 3)).mask(),
    "A share that is none": lambda s: rs.plan.cache(s.subject, keep="a quarter"),
    "A task that is not judged": lambda s: rs.plan.cache(s.subject, task="text", sources=("repeats",)),
    "Swaps of the prompt without their ranking": lambda s: rs.plan.cache(s.subject, input_swaps=4),
    "A flag of another plan": lambda s: s.command("plan", "cache", "--planes", "2"),
    "A model that gives no answers": lambda s: rs.gate(
        rs.load((s.model.model, s.tokenizer)), rs.tasks.repeats(s.subject, 8, 1), silence=True, heads="0:0"
    ),
    "A model that writes no text": lambda s: rs.analysis.onehop.one_hop_local((s.model.model, s.tokenizer)),
    "A model that reads no text": lambda s: s.changed("seeing", "config.json", model_type="vit"),
    "A part that is not in the folder": lambda s: s.changed(
        "parted", "config.json", model_type="llava", vision_config={"model_type": "timm_wrapper"}
    ),
    "A model that another library wrote anew": lambda s: rs.load(holding(HookedTransformer, cfg=PYTHIA)),
    "A model that another library has changed": lambda s: rs.load(
        holding(TransformerBridge, original_model=unread(s.model), cfg=PYTHIA)
    ),
    "Weights that another library has not read yet": lambda s: rs.load(
        holding(LanguageModel, _module=s.model.to("meta"))
    ),
    "A name that leads nowhere": lambda s: rs.load("smolm2"),
    "A folder that is not there": lambda s: rs.load(s.made("models") + "/typo"),
    "The embedded model is not installed": Scene.no_package,
    "A folder without a model": lambda s: rs.load(s.made("empty")),
    "Weights that are no safetensors": Scene.pickled,
    "Weights that cannot be read": Scene.truncated,
    "Weights that are not the model's": Scene.lacking,
    "An index that names other files": Scene.indexed,
    "Quantised weights": lambda s: s.changed(
        "quantised", "config.json", quantization_config={"quant_method": "gptq"}
    ),
    "An adapter": lambda s: s.changed("adapted", "adapter_config.json", peft_type="LORA"),
    "A model with code of its own": lambda s: s.changed(
        "coded", "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"}
    ),
    "A GGUF file that cannot be read": Scene.small_gguf,
    "A GGUF file that is not as it was made": Scene.longer_gguf,
    "No tokenizer": Scene.mute,
    "A file of another kind": lambda s: rs.load(s.made("weights.pt", "x")),
    "The hub cannot be reached": Scene.no_hub,
    "A device that is not there": lambda s: rs.load(s.folder("model"), device="cuda:7"),
    "Weights that are not in memory": Scene.offloaded,
    "A device map that is none": lambda s: rs.load(s.folder("model"), device_map="ballanced"),
    "A device map to no device": lambda s: rs.load(
        s.folder("model"), device_map={"model": ["cpu"], "lm_head": 0.5}
    ),
    "A device and a device map": lambda s: rs.load(s.folder("model"), device_map="auto", device="cpu"),
    "A spread model that is to be moved": lambda s: rs.load(s.spread(), device="cpu"),
    "Nobody to share a model with": lambda s: rs.load(s.folder("model"), tensor_parallel=True),
    "A random null that no memory holds": Scene.no_room_to_draw,
    "No checkpoints": lambda s: rs.dynamics(s.made("empty")),
    "A task that is given twice": lambda s: rs.lab.train(["number", "number"]),
    "A revision of what is not on the hub": lambda s: rs.load("smollm2", revision="step1000"),
    "A published series without its revisions": lambda s: rs.dynamics("org/model"),
    "Revisions of a folder": lambda s: rs.dynamics(s.made("empty"), revisions="step*"),
    "No branch or tag that fits": Scene.published,
    "Two checkpoints of one step": lambda s: (
        s.folder("run/step-5"),
        rs.dynamics(s.folder("run/checkpoint-5").parent),
    ),
    "No room for a series": lambda s: s.published("step1", 10**18),
    "Angles that cannot be understood": lambda s: rs.lab.train("number", angles="quick"),
    "Frequencies that a model does not have": lambda s: rs.lab.train("number", angles="60-64"),
    "Trainings that cannot be compared": lambda s: rs.analysis.restrictions(
        [training("number", "all", 0, [1.0], steps=2), training("number", "slow", 0, [1.0], steps=3)]
    ),
    "Angles in a configuration": lambda s: stored_angles(
        tf.GPTJConfig(rotoscope_angles={"base": float("nan"), "ids": []}), 32
    ),
    "A checkpoint that does not name its task": lambda s: rs.dynamics(s.folder("run/step-1").parent),
    "No random null": Scene.stubborn,
    "No random null for quantised weights": Scene.quantised,
    "NoRotaryError": lambda s: HeadReader(
        from_config(
            tf.GPT2Config(vocab_size=128, n_embd=64, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2)
        )
    ),
    "The proof fails": Scene.misread,
    "A model that cannot be entered": lambda s: remembering(s.model) and s.depths(at=(0, 1)),
    "Attention that is not what was read": lambda s: Reruns(first_for_last(HeadReader(s.model))),
    "No planes": lambda s: HeadReader(from_config(tf.HunYuanDenseV1Config(**GROUPED, head_dim=16))),
    "No way in": lambda s: HeadReader(
        from_config(tf.BloomConfig(vocab_size=128, hidden_size=64, n_layer=1, n_head=4))
    ),
    "NumberError": Scene.not_a_number,
    "A run with other settings is there": Scene.other_settings,
    "A folder that is no run": Scene.no_run,
    "A folder that is no bundle": lambda s: s.bundled(out=s.folder("model")),
    "A bundle is there already": lambda s: s.bundled(s.bundled()),
    "Something else in a bundle": lambda s: s.bundled(s.bundled(), "CNAME", overwrite=True),
    "No run to bundle": lambda s: rs.bundle(s.folder("model"), show_progress=False),
    "A run where several should be": lambda s: rs.lab.train("number", seeds=2, out=s.run("runs/first")),
    "No such run": lambda s: rs.open("runs/frist"),
    "Nothing to open": lambda s: rs.open(s.folder("model")),
    "Not finished": lambda s: rs.open(s.run("runs/unfinished", complete=False)),
    "Written by a newer version": lambda s: rs.open(s.run("runs/newer", schema="9.0")),
    "A description that is damaged": Scene.damaged,
    "A table that is missing": Scene.partial,
    "A table that is damaged": Scene.broken,
    "A run of another kind": lambda s: rs.results.Lengths.open(s.run("runs/first")),
    "The disk is full": Scene.full,
    "Days of work": lambda s: rs.lab.train("number", steps=10_000_000, device="cpu"),
    "One prompt is too much for a GPU": lambda s: Halving().each(["a prompt"], 32_768, s.no_room),
    "No answer": Scene.unanswered,
    "The key is refused": lambda s: s.refused(401),
    "The model is not known": lambda s: s.refused(404),
    "No credit": lambda s: s.refused(402),
    "The request is refused": lambda s: s.refused(400, "no such parameter: temperature"),
    "An address without its scheme": lambda s: s.ask("localhost:8080"),
    "An answer without a limit": lambda s: s.ask(body={}),
    "τ out of range": lambda s: s.profile(tau=0.0),
    "γ out of range": lambda s: rs.purity_class(0.9, 0.1, gamma=0.7),
    "Neither prompts nor tokens": lambda s: rs.profile(s.subject),
    "Prompts and tokens": lambda s: rs.profile(s.subject, rs.tasks.number(4), tokens=tokens(1, 12)),
    "A table that was not asked for": lambda s: s.profile().frequencies,
    "One query only": lambda s: s.profile().queries,
    "Another τ than was measured": lambda s: s.profile().at(0.5),
    "A head that is not there": lambda s: s.profile(frequencies=[(9, 0)]),
    "A class without heads": lambda s: rs.gate(
        s.subject, rs.tasks.repeats(s.subject, 8, 1), heads="symbolic", remove="1-2"
    ),
    "A gate with two orders": lambda s: rs.gate(
        s.subject, rs.tasks.repeats(s.subject, 8, 1), keep="1", remove="2"
    ),
    "A depth that is none": lambda s: s.depths(at="top"),
    "A depth beyond the model": lambda s: s.depths(at=(0, 3)),
    "Draws without a null": lambda s: s.depths(null_draws=3),
    "Writers without carried heads": lambda s: s.depths(at=(1,), writers=True),
    "Settings of writers without them": lambda s: s.depths(controls=3),
    "Writers were not asked for": lambda s: rs.figures.writer_graph(s.depths(at=(0,))),
    "Nobody to ask": lambda s: rs.figures.writer_graph(s.depths(at=(0,), writers=True)),
    "The prompt was not permuted": lambda s: rs.figures.depth_ends(s.profile(null="none")),
    "A format that figures do not have": lambda s: rs.figures.save(
        rs.figures.plane(s.profile(null="none")), "plane", formats=("tiff",)
    ),
    "Prompts that a model in training cannot be shown": lambda s: rs.HeadMonitor(tokens(1, 600)).step(
        s.model, 0
    ),
    "A module that is no transformers model": lambda s: rs.HeadMonitor(TOKENS).step(torch.nn.Linear(2, 2), 0),
    "Weights that are spread over processes": lambda s: rs.HeadMonitor(TOKENS).step(sharded(s.model), 0),
    "Virtual tokens": lambda s: rs.HeadMonitor(TOKENS).step(prompt_tuned(s.model), 0),
    "A run that a monitor has finished": lambda s: monitored_twice(s.model),
    "Layers that cannot be favoured": lambda s: rs.lab.train(
        "number", "paper", favour="symbolic", favour_layers="4-12"
    ),
    "Settings of a penalty that nobody asked for": lambda s: rs.lab.train("number", strength=0.1),
    "A penalty without a forward pass": lambda s: rs.monitor.Favour(s.model, "symbolic").penalty,
    "Heads that cannot be overheard": lambda s: checkpointed(s.model).__enter__(),
    "Two sweeps in one folder": Scene.two_sweeps,
    "A folder that is no sweep": lambda s: s.sweep(out=s.folder("model")),
    "A sweep with an unknown key": lambda s: s.sweep("prompts = 4", "promts = 4"),
    "An empty axis": lambda s: s.sweep("[0, 1]", "[]"),
    "A command that cannot be swept": lambda s: s.sweep("profile", "profil"),
    "An item that cannot be run": lambda s: s.sweep("prompts = 4", "prompts = 0"),
    "The same item twice": lambda s: s.sweep("seed = [0, 1]", "tau = [1, 1.0]"),
    "A part that is none": lambda s: s.sweep(shard="0/16"),
    "A cluster that is not there": Scene.no_cluster,
    "No schedule": lambda s: rs.HeadMonitor(TOKENS, every="often"),
    "A setting that does not exist": lambda s: s.profile(gama=0.2),
    "A claim that is not in the ledger": lambda s: rs.papers.reproduce("p2-number-oder", out="runs/ledger"),
    "An option that does not exist": lambda s: s.command("profile", "--pair", "3"),
    "A settings file that is not there": lambda s: s.command("doctor", "--config", "nope.toml"),
    "A setting in a file that does not exist": Scene.misspelt,
    "A variable that is no setting": Scene.variable,
    "A flag that means nothing here": lambda s: s.command("train", "letter", "--letters", "30"),
    "Out of memory": lambda s: s.command(failing=RuntimeError("CUDA out of memory. Tried to allocate")),
    "Angles that are scaled already": lambda s: rs.plan.context(tiny("llama-3 scaling")),
    "No angles to scale": lambda s: rs.plan.context(tiny("gptj")),
    "A scaling that the configuration forbids": lambda s: rs.plan.context(tiny("phi3"), scaling="linear"),
    "A context plan of another model": lambda s: rs.plan.scale(tiny("llama", seed=1), s.context_plan()),
    "A context plan that recommends nothing": lambda s: rs.plan.scale(s.subject, s.context_plan()),
    "A damaged context plan": Scene.damaged_plan,
    "A context plan that is not there": lambda s: rs.plan.load_context("nowhere"),
    "A scaling that a plan does not have": lambda s: rs.plan.scale(s.subject, s.context_plan(), "yarn"),
    "A context that needs no scaling": lambda s: rs.plan.context(s.subject, to=256),
    "An unknown scaling": lambda s: rs.plan.context(s.subject, scaling="longrope"),
    "Lengths that no context plan measures": lambda s: rs.plan.context(s.subject, to=1024, lengths=(100,)),
    "Stopped by you": lambda s: s.command(failing=KeyboardInterrupt()),
}


def test_every_example_message_is_made() -> None:
    shown = {heading for heading, body in sections("docs/errors.md").items() if "```text" in body}
    assert shown == set(SITUATIONS)


@pytest.mark.parametrize("heading", SITUATIONS)
def test_example_messages_are_printed(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry shows what the program says, word for word; `…` stands for anything."""
    monkeypatch.chdir(tmp_path)
    for key in ("ROTOSCOPE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    before, body = read("docs/errors.md").split(
        f"\n## {heading}\n" if heading in errors.__all__ else f"\n### {heading}\n"
    )
    (example,) = re.findall(r"```text\n(.*?)\n```", body.split("\n#")[0], flags=re.DOTALL)
    scene = Scene(monkeypatch)
    with pytest.raises((errors.RotoscopeError, Said)) as found:
        SITUATIONS[heading](scene)
    message = " ".join(str(found.value).split()).replace(
        getattr(scene, "address", "\n"), "http://localhost:8080/v1"
    )
    wanted = ".*".join(re.escape(part) for part in example.split("…"))
    assert re.fullmatch(wanted, message), message
    if found.type is not Said:
        headings = [heading, *re.findall(r"^## (.+)$", before, flags=re.MULTILINE)[::-1]]
        assert found.type.__name__ == next(name for name in headings if name in errors.__all__)
