"""Keys set at distances by rotation, against rotating both for real."""

from __future__ import annotations

import torch

from rotoscope.maths.longer import AtDistance, plane_products
from rotoscope.maths.rotation import turn

PLANES, REST = 3, 2
ANGLES = torch.tensor([1.0, 0.1, 0.003], dtype=torch.float64)


def at(vector: torch.Tensor, place: int) -> torch.Tensor:
    """A vector as it stands at a place."""
    phase = ANGLES * place
    pairs = turn(vector[: 2 * PLANES].unflatten(-1, (-1, 2)), phase.cos(), phase.sin())
    return torch.cat((pairs.flatten(), vector[2 * PLANES :]))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(
        *shape, 2 * PLANES + REST, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def test_planes_add_up_to_the_product() -> None:
    query, key = drawn(), 2 * drawn() + 1
    parts = plane_products(query, key, PLANES)
    assert parts.shape == (PLANES + 1,)
    torch.testing.assert_close(parts.sum(), query @ key)
    torch.testing.assert_close(parts[1], query[2:4] @ key[2:4])
    assert plane_products(query[: 2 * PLANES], key[: 2 * PLANES], PLANES).shape == (PLANES,)


def test_a_key_at_a_distance_is_one_that_was_turned() -> None:
    query, keys, place = drawn(), drawn(4) * torch.arange(1, 5)[:, None], 50
    phases = torch.arange(60, dtype=torch.float64)[:, None] * ANGLES
    cos, sin = phases.cos(), phases.sin()
    found = AtDistance(query[None], keys, PLANES, 0.5)
    distance = torch.tensor([3, 0, 49, 17])
    wanted = [0.5 * at(query, place) @ at(key, place - int(d)) for key, d in zip(keys, distance, strict=True)]
    torch.testing.assert_close(found.each(cos, sin, distance), torch.stack(wanted))
    every = torch.tensor([2, 40])
    wanted = [0.5 * at(query, place) @ at(key, place - int(d)) for key in keys for d in every]
    torch.testing.assert_close(found.all_at(cos, sin, every), torch.stack(wanted).reshape(4, 2))
