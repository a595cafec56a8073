"""What rotation alone does to a head's logits when an input becomes longer, plane by plane.

All functions take un-rotated queries and keys, dimensions arranged by plane (re, im of plane 1, of plane 2, ..., then what never
rotates), and tables of cosines and sines by distance.
"""

from __future__ import annotations

import torch

from rotoscope.shapes import Float, Int, Tensor


def plane_products(
    query: Float[Tensor, "... d"], key: Float[Tensor, "... d"], planes: int
) -> Float[Tensor, "... parts"]:
    """What every plane adds to the product of a query and a key, both as they stand; last, where there is one, the un-rotated rest."""
    product = query * key
    turning = product[..., : 2 * planes].unflatten(-1, (-1, 2)).sum(-1) if planes else product[..., :0]
    if product.shape[-1] == 2 * planes:
        return turning
    return torch.cat((turning, product[..., 2 * planes :].sum(-1, keepdim=True)), dim=-1)


class AtDistance:
    """The logits of keys set at any distance from their query by rotation."""

    def __init__(
        self, query: Float[Tensor, "*many 1 d"], keys: Float[Tensor, "*many n d"], planes: int, scaling: float
    ) -> None:
        turning = query[..., : 2 * planes], keys[..., : 2 * planes]
        (a, b), (c, d) = (part.unflatten(-1, (-1, 2)).unbind(-1) for part in turning)
        # The query turned by a distance, times a key: one part goes with its cosine, the other with its sine.
        self.with_cos, self.with_sin = scaling * (a * c + b * d), scaling * (a * d - b * c)
        self.still = scaling * (query[..., 2 * planes :] * keys[..., 2 * planes :]).sum(-1)

    def each(
        self,
        cos: Float[Tensor, "distances planes"],
        sin: Float[Tensor, "distances planes"],
        distance: Int[Tensor, "#n"],
    ) -> Float[Tensor, "*many n"]:
        """Every key at a distance of its own."""
        turned = (self.with_cos * cos[distance]).sum(-1) + (self.with_sin * sin[distance]).sum(-1)
        return turned + self.still

    def all_at(
        self,
        cos: Float[Tensor, "distances planes"],
        sin: Float[Tensor, "distances planes"],
        distances: Int[Tensor, "k"],
    ) -> Float[Tensor, "*many n k"]:
        """All keys at all of these distances."""
        turned = self.with_cos @ cos[distances].mT + self.with_sin @ sin[distances].mT
        return turned + self.still[..., None]
