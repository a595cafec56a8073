"""Our plans in kvpress: its DuoAttentionPress reads our files, and loses what our own attention function loses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import rotoscope as rs
from rotoscope.experiments.plan.plan_files import StreamingPlan, save_duo_attention
from rotoscope.measures.batches import Halving, measure_losses
from rotoscope.models.reader import HeadReader
from rotoscope.models.streaming import streaming
from tests.others.environment import ROOT, python_of


@pytest.mark.slow
@pytest.mark.xdist_group("others")
def test_kvpress_loses_what_we_lose(smollm2: rs.Subject, tmp_path: Path) -> None:
    """SmolLM2, half of its key heads streaming; the first copy is the prompt that is compressed."""
    python = python_of("kvpress")
    smollm2.model.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    drawn = torch.rand(30, 3) < 0.5
    heads = tuple((int(layer), int(head)) for layer, head in drawn.nonzero().tolist())
    plan = StreamingPlan(smollm2.fingerprint, 16, 4, heads, (3,) * 30)
    save_duo_attention(plan, tmp_path / "pattern")
    prompts = rs.tasks.repeats(smollm2, 64, 3, seed=5)
    context = prompts[0].queries[0]
    told = {
        "context": context, "window": plan.window, "sinks": plan.sinks, "mask": plan.mask().tolist(),
        "prompts": [{"tokens": p.tokens, "queries": p.queries, "answers": p.answers} for p in prompts],
    }  # fmt: skip
    (tmp_path / "prompts.json").write_text(json.dumps(told))
    done = subprocess.run(
        [python, ROOT / "tests/others/kvpress_losses.py", tmp_path / "model", tmp_path / "pattern", tmp_path / "prompts.json"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    reader = HeadReader(smollm2.model)
    with streaming(reader, plan.heads(context)):
        ours = measure_losses(smollm2, {"repeats": prompts}, Halving())["loss"].tolist()
    plain = measure_losses(smollm2, {"repeats": prompts}, Halving())["loss"].tolist()
    print(f"loss of kvpress {theirs}, ours {ours}, nothing streaming {plain}")
    assert theirs["same_heads"]
    assert theirs["files"] == pytest.approx(ours, abs=1e-5)
    assert theirs["mask"] == pytest.approx(ours, abs=1e-5)
    assert min(abs(a - b) for a, b in zip(ours, plain, strict=True)) > 0.05
