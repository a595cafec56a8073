"""One torch thread per worker, shapes in signatures checked while the tests run (and only then), shared models."""

from __future__ import annotations

import gc

gc.disable()  # until all tests are collected: hardly anything that is imported ever goes

import os
import signal
from pathlib import Path
from typing import Any

# Before torch starts, and for the programs that tests start: several processes on few cores must not fight for threads.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MKL_NUM_THREADS": "1"}
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sys

from tests.checked import Finder

if "UNCHECKED_SHAPES" not in os.environ:  # tests/breakages want to be noticed by the tests themselves
    sys.meta_path.insert(0, Finder)

import pytest
import torch

if not torch.cuda.is_available():  # before Triton is imported: its kernels run in its interpreter
    os.environ["TRITON_INTERPRET"] = "1"

import rotoscope as rs
from tests.tiny_models import tiny

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """The garbage collector leaves alone what was imported: looking through all of it takes a second each time."""
    gc.freeze()
    gc.enable()


# Tests that interrupt a program need one that listens; in the background a shell makes all it starts deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2() -> rs.Subject:
    """The real model, which the set-up installs: without it these tests fail, they do not pass silently."""
    return rs.load("smollm2", device="cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fine_pictures() -> None:
    """Figures as they are saved for a reader."""


@pytest.fixture(autouse=True)
def _coarse_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a figure goes into its pixels and fonts, and few tests look at them."""
    from rotoscope.plotting import style

    if "fine_pictures" not in request.fixturenames:
        monkeypatch.setattr(style, "DPI", 50)
        monkeypatch.setattr(style, "FORMATS", ("png",))


@pytest.fixture(scope="session")
def stand_in(smollm2: rs.Subject) -> rs.Subject:
    """SmolLM2's tokenizer with a tiny random model: the same prompts, next to no work."""
    model = tiny("llama", vocab_size=len(smollm2.tokenizer), max_position_embeddings=2048, num_hidden_layers=13)
    return rs.load((model, smollm2.tokenizer), name="stand-in")


Trainings = dict[str, rs.lab.Training]
"""By task."""
SMALL = {
    "hops": 1, "target": 4, "window": 2, "letters": 8, "alphabet": 4, "digits": 2, "layers": 2, "width": 32, "steps": 300,
    "warmup": 20, "batch": 64, "learning_rate": 3e-3, "train_sequences": 6000, "validation_sequences": 200,
    "test_sequences": 200,
}  # fmt: skip
"""One hop among four tokens: learned in seconds."""


def both_tasks(place: Path, **settings: Any) -> Trainings:
    watch = {"on_evaluate": rs.experiments.Watch(), "device": "cpu"}
    return {
        task: rs.lab.train(task, "mini", out=place / task, **watch, **settings) for task in ("number", "letter")
    }


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Both tasks, learned here by a very small model, every head watched."""
    return both_tasks(tmp_path_factory.mktemp("trained"), **SMALL)


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """The same with the mini preset: a minute, for slow tests."""
    return both_tasks(tmp_path_factory.mktemp("mini"))
