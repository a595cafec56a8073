from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama

import rotoscope as rs
from tests.twin import rotate


@pytest.mark.parametrize("query_position", [None, 3, 25])
def test_logit_of_content_at_position(query_position: int | None) -> None:
    draw = np.random.default_rng(0)
    query, keys, angles = draw.normal(size=(4, 2)), draw.normal(size=(7, 4, 2)), draw.uniform(0, 2, 4)
    logits = rs.counterfactual_logits(
        *(torch.tensor(x) for x in (query, keys, angles)), scale=0.3, query_position=query_position
    )
    i = 6 if query_position is None else query_position
    for p in range(7):
        for c in range(7):
            expected = 0.3 * (rotate(keys[c], angles * p) * rotate(query, angles * i)).sum()
            assert logits[p, c].item() == pytest.approx(expected, abs=1e-12)


def test_no_rotation_is_symbolic_and_equal_keys_are_positional() -> None:
    query, keys = torch.randn(3, 2), torch.randn(5, 3, 2)
    still = rs.counterfactual_logits(query, keys, torch.zeros(3))
    assert torch.allclose(still, still[:1].expand(5, 5))
    equal = rs.counterfactual_logits(query, keys[:1].expand(5, 3, 2), torch.rand(3))
    assert torch.allclose(equal, equal[:, :1].expand(5, 5), atol=1e-6)


def test_long_positions_keep_their_phase() -> None:
    """Phases are formed in float64: a hundred thousand positions away, float32 phases would be off by 1e-2."""
    angle, far = 0.7316, 100_003
    query, keys = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])
    logits = rs.counterfactual_logits(query, keys, torch.tensor([angle]), query_position=far)
    exact = torch.tensor(angle, dtype=torch.float32).double().item()
    assert logits[0, 0].item() == pytest.approx(np.cos(exact * far), abs=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_planes_are_those_of_the_models(interleaved: bool) -> None:
    """Ours against theirs: head vectors turned by Llama or GPT-J, the last four of twelve dimensions left as they are."""
    query, keys, angles = torch.randn(12), torch.randn(6, 12), torch.tensor([1.0, 0.3, 0.02, 0.001])
    phases = torch.arange(6)[:, None] * angles
    both = torch.stack((query.expand(6, 12), keys))[:, :, None, :8]  # [2, positions, heads, rotated]
    if interleaved:
        turned = gptj.apply_rotary_pos_emb(both, phases.sin()[None], phases.cos()[None])[:, :, 0]
    else:
        cos, sin = (x.tile(1, 2)[None] for x in (phases.cos(), phases.sin()))
        turned = llama.apply_rotary_pos_emb(both, both, cos, sin, unsqueeze_dim=2)[0][:, :, 0]
    theirs = turned[1] @ turned[0, -1] + keys[:, 8:] @ query[8:]
    query, keys = (rs.scores.split_planes(x, 8, interleaved=interleaved) for x in (query, keys))
    ours = rs.counterfactual_logits(query, keys, torch.cat((angles, torch.zeros(2))))
    assert torch.allclose(ours.diagonal(), theirs, atol=1e-5)
