"""What heads are known to look for, as targets of attention: which earlier positions count for which query.

Sources: previous-token and induction heads are those of Elhage et al. 2021 and Olsson et al. 2022 (prefix matching),
duplicate-token heads those of Wang et al. 2022, copying is the retrieval score of Wu et al. 2024, delimiters are those of
Clark et al. 2019, and the sink is the first position, as in Xiao et al. 2023.
"""

from __future__ import annotations

import torch

from rotoscope.shapes import Bool, Float, Int, Tensor

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
    return torch.stack([*(there & earlier for there in looked_at), sink])


def copied(tokens: Int[Tensor, "batch n"], induction: Bool[Tensor, "batch n n"]) -> Bool[Tensor, "batch n n"]:
    """Of the targets of induction those that hold the token that comes next; the last query has no next one."""
    found = torch.zeros_like(induction)
    found[:, :-1] = induction[:, :-1] & (tokens[:, 1:, None] == tokens[:, None])
    return found


def share_on(
    attention: Float[Tensor, "batch heads queries n"], wanted: Bool[Tensor, "patterns batch queries n"]
) -> Float[Tensor, "patterns batch heads"]:
    """Attention on the targets of every pattern, summed over the queries."""
    flat = wanted.flatten(2).movedim(0, 1).to(attention)  # [batch, patterns, queries * n]
    return (attention.flatten(2) @ flat.mT).movedim(2, 0)


def most_attended_in(
    attention: Float[Tensor, "batch heads queries n"], wanted: Bool[Tensor, "batch queries n"]
) -> Bool[Tensor, "batch heads queries"]:
    """Whether the position with the most attention is a target."""
    most = attention.argmax(-1)
    return wanted[:, None].expand_as(attention).gather(3, most[..., None])[..., 0]
