"""Attention weights from logits, and how spread out they are."""

from __future__ import annotations

import torch

from rotoscope.shapes import Float, Tensor


def log_normaliser(
    logits: Float[Tensor, "... n"], sink: Float[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    """log Z of the softmax; a learned sink logit (as in gpt_oss) belongs to it."""
    total = logits.logsumexp(-1)
    return total if sink is None else torch.logaddexp(total, sink)


def attention_weights(
    logits: Float[Tensor, "... n"], sink: Float[Tensor, "..."] | None = None
) -> Float[Tensor, "... n"]:
    """Softmax over the last axis. Hidden positions have logit -inf and weight 0."""
    return (logits - log_normaliser(logits, sink)[..., None]).exp()


def attention_entropy(weights: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """Entropy in nats. log(number of visible positions) means uniform, 0 means one position."""
    return torch.special.entr(weights).sum(-1)
