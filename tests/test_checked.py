"""Every call of the package is checked while the tests run."""

from __future__ import annotations

import os

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

import rotoscope as rs
from rotoscope.runs.record import RunRecord
from rotoscope.scores.classes import purity_class

pytestmark = pytest.mark.skipif("UNCHECKED_SHAPES" in os.environ, reason="calls are not checked this time")


def test_shapes_and_kinds_of_arguments_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        rs.counterfactual_logits(torch.ones(3, 2), torch.ones(5, 4, 2), torch.ones(3))
    with pytest.raises(BeartypeCallHintViolation):
        purity_class("high", 0.2)
    with pytest.raises(BeartypeCallHintViolation):
        RunRecord.read("a text is no path")
