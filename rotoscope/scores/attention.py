"""Attention weights from logits, and how spread out they are."""

from __future__ import annotations

from typing import Any

import torch

from rotoscope.errors import NumberError, RotoscopeError
from rotoscope.shapes import Bool, Float, Int, Tensor


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


# Logits as they are given: of which precision and shape, and without anything that is no logit.
#
# A logit is a number, or -inf where a position is hidden. NaN and +inf are neither, and a score made of them could look
# like any other, so they are refused with their place.


def at_least_float32(logits: Tensor) -> Tensor:
    """Exponentials and swap weights want float32 or better, whatever a model computes in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def logit_matrix(logits: Any) -> Float[Tensor, "... n n"]:
    """A counterfactual logit matrix, tensor or array, in float32 or better; one that is not square is refused."""
    values = torch.as_tensor(logits)
    if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
        shape = " x ".join(str(size) for size in values.shape) or "a single number"
        raise RotoscopeError(
            f"a counterfactual logit matrix has one row per position and one column per content, as many rows as "
            f"columns; found {shape}"
        )
    return at_least_float32(values)


def no_logit(values: Tensor) -> Bool[Tensor, "..."]:
    """Where something stands that is no logit: NaN or +inf."""
    return values.isnan() | (values == torch.inf)


def check_logits(values: Tensor, *, hidden: bool = True) -> None:
    """Refuse NaN and +inf, and -inf too where nothing may be `hidden`, naming the first place."""
    wrong = no_logit(values) if hidden else ~values.isfinite()
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        raise NumberError(
            f"logits{place} is {float(values[tuple(place)])}: a logit is a number"
            f"{', or -inf where a position is hidden' if hidden else '; leave hidden positions out'}"
        )


# What heads are known to look for, as targets of attention: which earlier positions count for which query.
#
# Sources: previous-token and induction heads are those of Elhage et al. 2021 and Olsson et al. 2022 (prefix matching),
# duplicate-token heads those of Wang et al. 2022, copying is the retrieval score of Wu et al. 2024, delimiters are those of
# Clark et al. 2019, and the sink is the first position, as in Xiao et al. 2023.


LOOKED_AT = ("previous_token", "duplicate_token", "induction", "delimiter", "sink")
"""Scores that are shares of attention."""
KNOWN = ("previous_token", "duplicate_token", "induction", "copying", "delimiter", "sink")
"""All scores, in the order they are shown."""


def targets(
    tokens: Int[Tensor, "batch n"], delimiters: Bool[Tensor, "batch n"]
) -> Bool[Tensor, "patterns batch n n"]:
    """For every pattern of `LOOKED_AT`, query and key: does a head of that kind look there?

    Keys are earlier than the query. The first position is a target of the sink alone: it draws attention whatever it says,
    and would pass for whatever else happens to stand there.
    """
    equal = tokens[:, :, None] == tokens[:, None]  # [batch, query, key]
    after = torch.zeros_like(equal)
    after[:, :, 1:] = equal[:, :, :-1]
    place = torch.arange(tokens.shape[1], device=tokens.device)
    query, key = place[:, None], place[None]
    earlier = (key > 0) & (key < query)
    looked_at = (key == query - 1).expand_as(equal), equal, after, delimiters[:, None].expand_as(equal)
    sink = ((key == 0) & (query > 1)).expand_as(equal)
    return torch.stack([*(pattern & earlier for pattern in looked_at), sink])


def copied(tokens: Int[Tensor, "batch n"], induction: Bool[Tensor, "batch n n"]) -> Bool[Tensor, "batch n n"]:
    """Of the targets of induction those that hold the token that comes next; the last query has no next one."""
    padded = torch.zeros_like(induction)
    padded[:, :-1] = induction[:, :-1] & (tokens[:, 1:, None] == tokens[:, None])
    return padded


def share_on(
    attention: Float[Tensor, "batch heads queries n"], patterns: Bool[Tensor, "patterns batch queries n"]
) -> Float[Tensor, "patterns batch heads"]:
    """Attention on the targets of every pattern, summed over the queries."""
    flat = patterns.flatten(2).movedim(0, 1).to(attention)  # [batch, patterns, queries * n]
    return (attention.flatten(2) @ flat.mT).movedim(2, 0)


def most_attended_in(
    attention: Float[Tensor, "batch heads queries n"], pattern: Bool[Tensor, "batch queries n"]
) -> Bool[Tensor, "batch heads queries"]:
    """Whether the position with the most attention is a target."""
    most = attention.argmax(-1)
    return pattern[:, None].expand_as(attention).gather(3, most[..., None])[..., 0]
