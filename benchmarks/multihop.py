"""Scoring a model in training: all swaps from one matrix, against carrying out every swap, as the authors did."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import rotoscope as rs
from benchmarks.measure import Report, best_of, console
from rotoscope.experiments.train.watch import score_heads
from rotoscope.lab.gptj import GPTJ
from rotoscope.lab.sequences import model_shape, training_sequences
from rotoscope.lab.settings import TrainSettings

TAU = 1e-4


@torch.no_grad()
def swap_by_swap(model: GPTJ, tokens: torch.Tensor) -> torch.Tensor:
    """[layer, input, (positional, symbolic)] of one-head layers at the last token: every swap carried out.

    For each layer and each pair of positions the two hidden states are exchanged, queries, keys and attention of the
    layer are computed again for all inputs, and the two weights compared with those before.
    """
    entering: list[torch.Tensor] = []
    model.logits(tokens, visit=lambda state: entering.append(state.residual))
    n = tokens.shape[1]
    hidden = torch.ones(n, n, dtype=torch.bool, device=tokens.device).triu(1)
    turns = torch.view_as_complex(model._turned(n))

    def attention(layer: int, x: torch.Tensor) -> torch.Tensor:
        front = f"transformer.h.{layer}."
        w = model.weights
        inside = F.layer_norm(x, x.shape[-1:], w[front + "ln_1.weight"], w[front + "ln_1.bias"])
        query, key, _ = F.linear(inside, w[front + "attn.qkv.weight"]).chunk(3, dim=-1)
        query, key = (
            torch.view_as_real(
                torch.view_as_complex(v.contiguous().unflatten(-1, (-1, 2))) * turns[layer]
            ).flatten(-2)
            for v in (query, key)
        )
        logits = query @ key.mT / query.shape[-1] ** 0.5
        return logits.masked_fill(hidden, -torch.inf).softmax(-1)

    found = []
    for layer, x in enumerate(entering):
        before = attention(layer, x)[:, -1]
        positional, symbolic, gaps = [], [], []
        for a, b in itertools.combinations(range(n - 1), 2):
            order = list(range(n))
            order[a], order[b] = b, a
            swapped = x[:, order].clone()
            after = attention(layer, torch.cat((swapped[:, :-1], x[:, -1:]), dim=1))[:, -1]
            old, new = before[:, [a, b]], after[:, [a, b]]
            positional.append(F.cosine_similarity(new, old, dim=-1))
            symbolic.append(F.cosine_similarity(new, old.flip(-1), dim=-1))
            gaps.append((old[:, 0] - old[:, 1]).abs())
        weight = (torch.stack(gaps) / TAU).softmax(0)
        found.append(torch.stack([(weight * torch.stack(s)).sum(0) for s in (positional, symbolic)], dim=-1))
    return torch.stack(found)


def against_authors(device: str, inputs: int = 64) -> float:
    """How many times faster the closed form scores a checkpoint than carrying out every swap; prints the table."""
    settings = TrainSettings(task="number")
    samples = training_sequences(settings, "validation", device, count=inputs)
    model = GPTJ.initialise(model_shape(settings, len(samples.vocabulary)), 0, device)
    for weight in model.weights.values():
        weight.mul_(3)  # attention that is not quite uniform

    def waited(function: Callable[[], object]) -> None:
        function()
        if device == "cuda":
            torch.cuda.synchronize()

    (ours,) = best_of(5, lambda: waited(lambda: score_heads(model, samples)))
    (theirs,) = best_of(2, lambda: waited(lambda: swap_by_swap(model, samples.tokens)))
    one = samples[:1]
    began = time.perf_counter()
    waited(lambda: swap_by_swap(model, one.tokens))
    singly = (time.perf_counter() - began) * inputs
    table = score_heads(model, samples)
    twin = swap_by_swap(model, samples.tokens).mean(1).cpu()
    difference = max(
        float((torch.tensor(table[name].to_numpy()) - twin[:, k]).abs().max())
        for k, name in enumerate(("positional_score", "symbolic_score"))
    )
    report = Report(
        f"scores of a model in training: 12 layers, {inputs} inputs of {samples.length} tokens, last token, {device} "
        f"(forward pass included; largest difference of a score {difference:.0e})",
        "way", "time", "ratio",
    )  # fmt: skip
    ratio = theirs / ours
    target: dict[str, Any] = {"target": ">= 50x", "met": ratio >= 50} if device == "cuda" else {}
    report.row("all swaps from one matrix", f"{ours * 1000:.1f} ms", "1x")
    report.row(
        "every swap carried out, all inputs at once", f"{theirs * 1000:.0f} ms", f"{ratio:.0f}x", **target
    )
    report.row("every swap carried out, input by input", f"{singly * 1000:.0f} ms", f"{singly / ours:.0f}x")
    report.show()
    return ratio


def main() -> None:
    console.print(f"multi-hop models, torch {torch.__version__}, rotoscope {rs.__version__}\n")
    against_authors("cuda" if torch.cuda.is_available() else "cpu")
