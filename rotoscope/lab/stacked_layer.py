"""What a layer of GPT-J computes, for one model or for several at once.

Several models have weights with an axis of models in front, and so has what is computed with them. The formula is the
same; only what is done with a weight (`linear`, `normed`, `embedded`) knows of that axis.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from rotoscope.shapes import Tensor

Drawing = Callable[..., Tensor]
"""Calls a function that drops, with the tensors after it: for all models at once, or for each with draws of its own."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with a matrix [out, in], or of every model's part with its own [models, out, in]."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    rows = x.flatten(1, -2)
    product = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return product.unflatten(1, x.shape[1:-1])


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm with a weight and a bias [width], or with every model's own [models, width]."""
    if weight.ndim == 1:
        return F.layer_norm(x, weight.shape, weight, bias)
    broadcast = (len(weight), *(1,) * (x.ndim - 2), -1)
    return torch.addcmul(bias.view(broadcast), F.layer_norm(x, weight.shape[1:]), weight.view(broadcast))


def embedded(tokens: Tensor, table: Tensor) -> Tensor:
    """Rows of a table [vocabulary, width], or of every model's own [models, vocabulary, width]."""
    if table.ndim == 2:
        return F.embedding(tokens, table)
    first = torch.arange(len(table), device=table.device) * table.shape[1]
    return F.embedding(tokens + first.view(-1, 1, 1), table.flatten(0, 1))


def _turned(pairs: Tensor, turns: Tensor) -> Tensor:
    """Planes [..., n, planes, 2] turned by (cos, sin) [n, planes, 2], or by every model's own: a complex product."""
    if not torch.compiler.is_compiling():
        return torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(turns))
    (x, y), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)  # compilers know no complex numbers
    return torch.stack((x * cos - y * sin, x * sin + y * cos), -1)


def _attended(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Causal attention [..., batch, heads, n, head_width]; the kernels know one axis before that of the heads."""
    front = query.shape[:-3]
    query, key, value = (part.flatten(0, -4) for part in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
    return attended.unflatten(0, front)


def at_once(work: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """All models draw together."""
    return work(*parts)


def block(
    x: Tensor,
    w: dict[str, Tensor],
    turns: Tensor | None,
    heads: int,
    dropout: float,
    drawing: Drawing,
    visit: Callable[[Tensor], None] | None,
) -> Tensor:
    """One layer: attention and MLP beside one another. `visit` is shown queries and keys, as planes, before they are turned."""

    def dropped(x: Tensor) -> Tensor:
        return drawing(partial(F.dropout, p=dropout), x) if dropout else x

    inside = normed(x, w["ln_1.weight"], w["ln_1.bias"])
    mixed = linear(inside, w["attn.qkv.weight"]).unflatten(-1, (3, heads, -1))
    mixed = mixed.movedim(-3, 0).transpose(-2, -3)  # [3, ..., batch, heads, n, head_width]
    query_and_key = mixed[:2].contiguous().unflatten(-1, (-1, 2))
    if visit is not None:
        visit(query_and_key)
    query, key = (query_and_key if turns is None else _turned(query_and_key, turns)).flatten(-2)
    attended = drawing(partial(_attended, dropout=dropout), query, key, mixed[2])
    attended = linear(attended.transpose(-2, -3).flatten(-2), w["attn.out_proj.weight"])
    wide = F.gelu(linear(inside, w["mlp.fc_in.weight"], w["mlp.fc_in.bias"]), approximate="tanh")
    thought = linear(wide, w["mlp.fc_out.weight"], w["mlp.fc_out.bias"])
    return x + dropped(attended) + dropped(thought)


def compiled_block() -> Callable[..., Tensor]:
    """A layer that is compiled, also where it is visited: then queries and keys come out of it beside what it computes."""

    layer: Any = block

    def showing(*arguments: Any) -> tuple[Tensor, Tensor]:
        visited: list[Tensor] = []
        return layer(*arguments, visited.append), visited[0]

    plain_block: Any = torch.compile(block, dynamic=False)
    visited_block: Any = torch.compile(showing, dynamic=False)

    def either(*arguments: Any) -> Tensor:
        *plain, visit = arguments
        if visit is None:
            alone: Tensor = plain_block(*arguments)
            return alone
        output: Tensor
        output, query_and_key = visited_block(*plain)
        visit(query_and_key)
        return output

    return either
