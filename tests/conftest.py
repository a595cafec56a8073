"""Shapes in signatures are checked while the tests run, and only then."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from jaxtyping import install_import_hook

install_import_hook("rotoscope.maths", "beartype.beartype")

import pytest
import torch

import rotoscope as rs

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


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rs.results.Training]:
    """Both tasks, trained here with the mini preset, every head watched."""
    place = tmp_path_factory.mktemp("mini")
    return {
        task: rs.lab.train(task, "mini", out=place / task, on_evaluate=rs.analysis.Watch(), device="cpu")
        for task in ("number", "letter")
    }
