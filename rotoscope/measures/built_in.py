"""The built-in measures: swap scores with their variants, how the attention is spread, and the exclusion principle."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from rotoscope.measures.batches import Batch
from rotoscope.measures.measure import measure
from rotoscope.models.layer import LayerHeads, LayerReading
from rotoscope.scores.blocks import block_spread
from rotoscope.scores.exclusion_principle import Exclusion, exclusion_from_factors, exclusion_in_parts
from rotoscope.scores.swaps import score_swaps
from rotoscope.shapes import Float, Tensor
from rotoscope.stats.aggregate import AT_TAU

SINK_MASS = 0.1
SINK_SHARE = 4.0  # times an even share, which matters in short prompts
SINK_LAYERS = 0.25
SINK_NORM = 10.0
NEAR_QUERY = 4


class WhereAttentionGoes:
    """Gathered layer by layer, on whatever device a layer is, and looked at when all have been there."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.weights: dict[int, Float[Tensor, "batch n"]] = {}
        """Of every layer: mean over heads."""
        self.norms: dict[int, Float[Tensor, "batch n"]] = {}
        self.answer: dict[int, Float[Tensor, "batch heads"]] = {}

    def entering(self, layer: LayerReading) -> None:
        """The residual stream that enters a layer."""
        norm = layer.residual_norm
        if norm is not None:
            self.norms[layer.layer] = norm[:, : layer.positions[-1] + 1]

    def add(self, heads: LayerHeads) -> None:
        """Layers at the last query, the inputs of the first before those of the second."""
        weights = heads.attention.unflatten(0, (len(heads.layers), -1))
        for k, layer in enumerate(heads.layers):
            self.weights[layer] = weights[k].mean(1)
            if self.batch.asked is not None:
                start, stop = self.batch.asked
                self.answer[layer] = weights[k][..., start:stop].sum(-1)

    def on_answer(self) -> list[tuple[float, float]] | None:
        """Per prompt: mean and largest attention of a head on the block that holds the answer."""
        if not self.answer:
            return None
        first = self.answer[min(self.answer)]
        heads = torch.cat([part.to(first.device) for part in self.answer.values()], dim=1)
        return list(zip(heads.mean(1).tolist(), heads.amax(1).tolist(), strict=True))

    def sinks(self, tokenizer: Any) -> pd.DataFrame:
        """Positions that draw attention whatever they say: by mass, in the mean or in a quarter of the layers, or by an
        outlying residual norm."""
        by_layer = _stacked(self.weights)  # [layers, batch, n]
        n = by_layer.shape[2]
        size = torch.zeros_like(by_layer[0])
        if self.norms:
            norms = _stacked(self.norms)
            size = (norms / norms.median(-1, keepdim=True).values).median(0).values
        often = by_layer.quantile(1 - SINK_LAYERS, dim=0)
        statistics = (by_layer.mean(0), often, by_layer.amax(0), size.to(by_layer.device))
        mass, often, most, size = torch.stack(statistics).cpu()
        far = torch.arange(n) < n - 1 - NEAR_QUERY  # what stands nearer is drawn by the query, not by the place
        heavy = (torch.maximum(mass, often) >= max(SINK_MASS, SINK_SHARE / n)) & far
        large = size >= SINK_NORM
        chosen = heavy | large
        chosen[:, -1] = False  # the query's own position is no sink
        swapped = set(self.batch.blocks_for(self.batch.queries[-1]).positions)
        rows = []
        for k, position in chosen.nonzero().tolist():
            by_mass, by_norm = bool(heavy[k, position]), bool(large[k, position])
            token = self.batch.prompts[k].tokens[position]
            rows.append(
                {
                    "prompt": self.batch.first + k,
                    "position": position,
                    "token_text": tokenizer.decode([token]) if tokenizer else None,
                    "attention_mass": float(mass[k, position]),
                    "largest_layer_mass": float(most[k, position]),
                    "residual_norm_ratio": float(size[k, position]),
                    "found_by": "mass and norm" if by_mass and by_norm else "mass" if by_mass else "norm",
                    "in_block": position in swapped,
                }
            )
        return pd.DataFrame(rows)

    def answers(self, logits: torch.Tensor, tokenizer: Any) -> pd.DataFrame:
        """What the model answered where the task expects something."""
        batch, on_answer, rows = self.batch, self.on_answer(), []
        if not batch.asked_at:
            return pd.DataFrame()
        expected_tokens = [[answer or 0 for answer in prompt.answers] for prompt in batch.prompts]
        chances = logits.float().log_softmax(-1)
        chances = chances.gather(2, torch.tensor(expected_tokens, device=logits.device)[..., None])[
            ..., 0
        ].cpu()
        answered = logits.argmax(-1).tolist()
        for k, prompt in enumerate(batch.prompts):
            for q, position in enumerate(batch.asked_at):
                expected, predicted = prompt.answers[q], answered[k][q]
                if expected is None:
                    continue
                rows.append(
                    {
                        "prompt": batch.first + k,
                        "query_position": position,
                        "expected": expected,
                        "predicted": predicted,
                        "expected_text": tokenizer.decode([expected]) if tokenizer else None,
                        "predicted_text": tokenizer.decode([predicted]) if tokenizer else None,
                        "correct": predicted == expected,
                        "log_likelihood": float(chances[k, q]),
                        "asked_block": prompt.asked,
                        "asked_attention": on_answer[k][0] if on_answer is not None else None,
                        "asked_attention_largest": on_answer[k][1] if on_answer is not None else None,
                    }
                )
        return pd.DataFrame(rows)


def _stacked(by_layer: dict[int, Tensor]) -> Float[Tensor, "layers batch n"]:
    """In the order of the layers, on the device of the first."""
    first = by_layer[min(by_layer)]
    return torch.stack([by_layer[layer].to(first.device) for layer in sorted(by_layer)])


SWAPS, HIGHEST = "swaps", "highest"
"""What is fetched besides the columns: how many swaps a head sees, and whether all logits after swaps are numbers."""


@measure
def swap_scores(heads: LayerHeads) -> dict[str, Tensor]:
    """Both scores with their variants at every tau, entropy, and attention on what is swapped."""
    assert heads.blocks is not None
    scores: Any = score_swaps(
        heads, heads.real_logits, heads.blocks, heads.taus, sink=heads.sinks, symbols=heads.symbols
    )
    columns: dict[str, Tensor] = {}
    for name in AT_TAU:
        plain_name = name.removeprefix("equal_symbol_")
        part = scores if plain_name == name else scores.equal_symbols
        tensor = getattr(part, plain_name.removesuffix("_score"), None)
        if tensor is not None:
            columns[name] = tensor
    return columns | {
        "entropy": scores.entropy,
        "relative_entropy": scores.entropy / heads.visible.sum().clamp(min=2).log(),
        "swapped_mass": scores.swapped_mass,
        SWAPS: scores.swaps,
        HIGHEST: scores.highest.expand(scores.swaps.shape),
    }


@measure
def logit_spread(heads: LayerHeads) -> dict[str, Tensor]:
    """How far the blocks' mean logits lie apart, by which random models are rescaled."""
    assert heads.blocks is not None
    return {"block_spread": block_spread(heads.real_logits, heads.blocks)}


@measure
def exclusion(heads: LayerHeads) -> dict[str, Tensor]:
    """Variance, D_pos and D_sym over the visible positions that take part in swaps."""
    terms = _exclusion(heads)
    return {"logit_variance": terms.variance, "d_pos": terms.d_pos, "d_sym": terms.d_sym}


def _exclusion(heads: LayerHeads) -> Exclusion:
    assert heads.taken is not None
    if heads.softcap is None:
        return exclusion_from_factors(heads, heads.taken)
    positions = heads.swapped[heads.visible[heads.swapped]] if heads.hides else heads.swapped
    if len(positions):
        return exclusion_in_parts(heads, positions)
    nothing = torch.zeros(heads.keys.shape[0], heads.heads, device=heads.keys.device)
    return Exclusion(nothing, nothing, nothing)


BUILT_IN = (swap_scores, logit_spread, exclusion)
