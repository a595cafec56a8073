"""Situations in which a user gets an error: a model, a run and damaged copies of both."""

from __future__ import annotations

import errno
import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from filelock import FileLock
from huggingface_hub import constants

import rotoscope as rs
from rotoscope import cli
from rotoscope.reading import heads, loading
from rotoscope.reading.scaled import RopeScaling
from rotoscope.results.files import disk_errors
from rotoscope.results.record import described_checksum
from tests.hub import serving
from tests.models import tiny, tokens
from tests.reading.test_load import word_tokenizer
from tests.reading.test_missing_weights import saved, without
from tests.server import refused, scripted
from tests.tiny_gguf import write_gguf


class Said(Exception):
    """What the command line would have printed."""


class Scene:
    """A place with a model, a run and damaged copies of both, in the working directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.model, self.tokenizer = tiny("llama"), word_tokenizer()
        self.subject = rs.load((self.model, self.tokenizer), name="tiny")

    def profile(self, **settings: Any) -> rs.Profile:
        return rs.profile(self.subject, tokens=tokens(1, 12), **settings)

    def folder(self, name: str) -> Path:
        self.model.save_pretrained(name)
        self.tokenizer.save_pretrained(name)
        return Path(name)

    def text(self, **settings: Any) -> Any:
        words = "w3 w4 w5 w6 w7 w8 w9. w10 w11 w12 w13 w14"
        return rs.tasks.text(self.subject, words, **settings)

    def no_room(self, part: Any) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has 2.10 GiB free."
        )

    def run(self, name: str, **changes: Any) -> Path:
        """A finished run, its description changed."""
        self.profile(out=name)
        file = Path(name, "run.json")
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps(content | {"checksum": described_checksum(content)}))
        return Path(name)

    def context_plan(self) -> Any:
        """Of a model that knows nothing."""
        how: dict[str, Any] = {"trained": 32, "to": 64, "asked": 8, "sources": "repeats", "scaling": "linear"}
        return rs.plan.context(self.subject, show_progress=False, **how)

    def scaled_by(self, **rope: Any) -> Any:
        """The model under a scaling that a file might name."""
        said = RopeScaling("linear", {"rope_theta": 10000.0, **rope}, 64)
        found = (self.subject.name, self.subject.fingerprint, 32, 64, "linear", "", "", {"linear": said})
        return rs.plan.scale(self.subject, rs.plan.ContextFile(*found))

    def damaged_plan(self) -> None:
        Path("plan.json").write_text("{")
        rs.plan.load_context("plan.json")

    def truncated(self) -> rs.Subject:
        weights = self.folder("cut") / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        return rs.load("cut")

    def pickled(self) -> rs.Subject:
        folder = self.folder("pickled")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        return rs.load("pickled")

    def changed(self, name: str, file: str, **keys: Any) -> rs.Subject:
        """A folder one of whose settings files holds something more."""
        place = self.folder(name) / file
        before = json.loads(place.read_text()) if place.exists() else {}
        place.write_text(json.dumps(before | keys))
        return rs.load(name)

    def lacking(self) -> rs.Subject:
        folder = saved(Path("partial"), without("layers.1.mlp.up_proj"))
        return rs.load(folder)

    def indexed(self) -> rs.Subject:
        folder = self.folder("indexed")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return rs.load("indexed")

    def mute(self) -> rs.Subject:
        for file in self.folder("mute").glob("token*"):
            file.unlink()
        return rs.load("mute")

    def small_gguf(self) -> rs.Subject:
        self.patch.setenv("ROTOSCOPE_CACHE", str(Path.cwd()))
        Path("small.gguf").write_bytes(b"GGUF")
        return rs.load("small.gguf")

    def longer_gguf(self) -> rs.Subject:
        self.patch.setenv("ROTOSCOPE_CACHE", str(Path.cwd()))
        file = write_gguf(Path("longer.gguf"))
        file.write_bytes(file.read_bytes() + bytes(64))
        return rs.load(file)

    def no_package(self) -> rs.Subject:
        self.patch.setattr(loading.importlib.util, "find_spec", lambda name: None)
        return rs.load("smollm2")

    def no_hub(self) -> rs.Subject:
        """A hub on a port where nobody listens."""
        self.patch.setattr(constants, "HF_HUB_OFFLINE", False)
        self.patch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:1")
        return rs.load("org/model")

    def published(self, branch: str = "main", size: int = 0) -> rs.results.Dynamics:
        """A hub with a model that has one branch."""
        with serving(Path("hub"), self.patch) as hub:
            hub.models["org/model"] = {branch: self.folder("model")}
            hub.larger[branch] = size
            return rs.dynamics("org/model", revisions="step*")

    def made(self, name: str, content: str | None = None) -> str:
        path = Path(name)
        path.mkdir() if content is None else path.write_text(content)
        return name

    def stubborn(self) -> rs.Profile:
        def refuse(self: Any, config: Any) -> None:
            raise RuntimeError("no")

        self.patch.setattr(type(self.model), "__init__", refuse)
        return self.profile(null="random")

    def quantised(self) -> rs.Profile:
        self.model.config.quantization_config = tf.BitsAndBytesConfig(load_in_8bit=True)
        return self.profile()

    def not_a_number(self) -> rs.Profile:
        self.model.model.layers[1].self_attn.k_proj.weight.data[0, 0] = float("nan")
        return self.profile()

    def misread(self) -> rs.Profile:
        """The reader broken on purpose: planes taken from the wrong dimensions."""
        right = heads.find_layout

        def rolled(*arguments: Any) -> Any:
            layout = right(*arguments)
            return replace(layout, order=layout.order.roll(1))

        self.patch.setattr(heads, "find_layout", rolled)
        return self.profile()

    def depths(self, **settings: Any) -> rs.results.SwapDepths:
        return rs.depths(self.subject, tokens=tokens(1, 12), null="none", **settings)

    def offloaded(self) -> rs.Profile:
        self.model.model.layers[1].to("meta")
        return self.profile()

    def spread(self) -> rs.Subject:
        where = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers": "disk"}
        where |= {"model.norm": "cpu", "lm_head": "cpu"}
        return rs.load(self.folder("model"), device_map=where, name="mine")

    def no_room_to_draw(self) -> rs.Profile:
        subject = self.spread()
        self.patch.setattr("rotoscope.analysis.nulls.free_memory", lambda device: 1000)
        return rs.profile(subject, tokens=tokens(1, 12))

    def other_settings(self) -> rs.Profile:
        self.profile(out="runs/first")
        return self.profile(tau=1e-2, out="runs/first")

    def no_run(self) -> rs.Profile:
        self.folder("model")
        return self.profile(out="model")

    def bundled(self, before: Path | None = None, added: str = "", **settings: Any) -> Path:
        """A run as a bundle; with one that is there before, and something added to it."""
        if added and before is not None:
            (before / added).write_text("mine.example")
        return rs.bundle(self.run("runs/first"), show_progress=False, **settings)

    def damaged(self) -> Any:
        (self.run("runs/damaged") / "run.json").write_text("{")
        return rs.open("runs/damaged")

    def partial(self) -> Any:
        (self.run("runs/partial") / "prompts.parquet").unlink()
        return rs.open("runs/partial")

    def broken(self) -> Any:
        (self.run("runs/broken") / "prompts.parquet").write_bytes(b"x")
        return rs.open("runs/broken")

    def full(self) -> None:
        with disk_errors(Path("runs/first")):
            raise OSError(errno.ENOSPC, "No space left on device")

    def ask(self, address: str = "http://localhost:8080/v1", **settings: Any) -> Any:
        plan = rs.tasks.OneHopPlan(tasks=("letter",), lengths=(12,), runs=1, questions=1)
        return rs.analysis.one_hop_endpoint(address, "m", plan, **settings)

    def unanswered(self) -> Any:
        """A port on which nobody listens, called by the name in the example."""
        self.port(1)
        return self.ask("http://127.0.0.1:1/v1", patience=1)

    def refused(self, status: int, message: str = "no") -> Any:
        with scripted(lambda number, request: refused(status, message)) as server:
            self.port(server.server.server_address[1])
            return self.ask(server.url)

    def port(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/v1"

    def misspelt(self) -> None:
        Path("mine.toml").write_text("[profile]\ngama = 0.2\n")
        self.command("profile", "smollm2", "--config", "mine.toml")

    def variable(self) -> None:
        self.patch.setenv("ROTOSCOPE_PROFILE_PAIR", "3")
        self.command("profile", "smollm2")

    def sweep(self, before: str = "", after: str = "", **how: Any) -> Any:
        """A sweep whose file is changed."""
        text = 'command = "profile"\n[grid]\nseed = [0, 1]\n[settings]\nprompts = 4\n'
        Path("sweep.toml").write_text(text.replace(before, after) if before else text)
        return rs.sweep("sweep.toml", **how)

    def two_sweeps(self) -> None:
        place = Path("sweeps/first").absolute()
        place.mkdir(parents=True)
        with FileLock(place / ".sweep-1-of-1.lock"):
            self.sweep(out=Path("sweeps/first"))

    def no_cluster(self) -> None:
        self.patch.setitem(sys.modules, "ray", type(sys)("ray"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.sweep(on="ray", address=f"127.0.0.1:{free.getsockname()[1]}")

    def command(self, *words: str, failing: BaseException | None = None) -> None:
        if failing is not None:

            def fail(*_: Any, **__: Any) -> None:
                raise failing

            self.patch.setattr(cli, "app", SimpleNamespace(meta=fail))
        self.patch.setattr(cli, "_complain", lambda message: (_ for _ in ()).throw(Said(message)))
        cli.main(list(words))
