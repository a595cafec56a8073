"""Shapes in signatures are checked while the tests run, and only then."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from jaxtyping import install_import_hook

install_import_hook("rotoscope.maths", "beartype.beartype")

import pytest
import torch

import rotoscope as rs


@pytest.fixture(scope="session")
def smollm2() -> rs.Subject:
    """The real model, which the set-up installs: without it these tests fail, they do not pass silently."""
    return rs.load("smollm2", device="cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
