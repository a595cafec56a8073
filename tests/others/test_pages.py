"""The pages for people who come from other libraries, run against those libraries; and the same without them, quickly."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import rotoscope as rs
from tests.others.environment import PACKAGES, ROOT, python_of
from tests.test_docs import OF_OTHERS
from tests.tiny_models import tiny, tokens

RUNS = [("transformerlens", "lens"), ("transformerlens", "hooked"), ("nnsight", "lens")]


def code(page: str, environment: str) -> str:
    """The Python of a page, without the HookedTransformer where there is none any more."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    return "\n".join(block for block in blocks if environment == "hooked" or "HookedTransformer" not in block)


def test_every_such_page_is_run() -> None:
    """And says with which versions."""
    assert {f"{page}.md" for page, _ in RUNS} == {page.name for page in OF_OTHERS}
    said = " ".join(page.read_text(encoding="utf-8") for page in OF_OTHERS)
    assert all(package.partition("==")[2] in said for place in PACKAGES.values() for package in place)


@pytest.mark.slow
@pytest.mark.xdist_group("others")  # one worker makes the environments
@pytest.mark.parametrize(("page", "environment"), RUNS)
def test_the_page_runs(page: str, environment: str, tmp_path: Path) -> None:
    """Its own assertions hold: scores from their caches are those of a profile."""
    python, program = python_of(environment), code(page, environment)
    assert program.count("assert ") >= 2
    done = subprocess.run(
        [python, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_queries_and_keys_of_any_hook_give_the_scores_of_a_profile(name: str) -> None:
    """Without those libraries: plain torch hooks on the projections, in half-split and in interleaved planes."""
    model, shown = tiny(name), tokens(1, 12)
    kept: dict[str, list[torch.Tensor]] = {"q_proj": [], "k_proj": []}

    def keep(which: str) -> Any:
        return lambda *call: kept[which].append(call[-1][0])

    hooks = [
        module.register_forward_hook(keep(title.rpartition(".")[2]))
        for title, module in model.named_modules()
        if title.endswith(tuple(kept))
    ]
    with torch.no_grad():
        model(shown)
    for hook in hooks:
        hook.remove()
    width, rotated = 16, 8 if name == "gptj" else 16
    angles = 10000.0 ** (-torch.arange(0, rotated, 2) / rotated)
    angles = torch.cat((angles, torch.zeros((width - rotated) // 2)))
    whole = rs.profile(model, tokens=shown, null="none").heads
    assert len(kept["q_proj"]) == whole["layer"].nunique()
    for layer, (q, k) in enumerate(zip(*kept.values(), strict=True)):
        asked, keys = q[-1].unflatten(-1, (-1, width)), k.unflatten(-1, (-1, width)).transpose(0, 1)
        keys = keys.repeat_interleave(len(asked) // len(keys), dim=0)
        asked, keys = (rs.scores.split_planes(x, rotated, interleaved=name == "gptj") for x in (asked, keys))
        found = rs.swap_scores(rs.counterfactual_logits(asked, keys, angles, width**-0.5))
        rows = whole[whole["layer"] == layer]
        for kind in ("positional", "symbolic"):
            expected = torch.tensor(rows[f"{kind}_score"].to_numpy())
            assert torch.allclose(getattr(found, kind).double(), expected, atol=1e-5)
