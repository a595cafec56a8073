"""Which frequencies the heads of a model in training have: the words of `--angles`, and what they mean.

Restricted heads have only the frequencies that are listed. Their rotating planes are dealt out evenly over these, in order: with the
ids 1 and 3 the first half of the planes turns like plane 1 and the second half like plane 3. So a head keeps its width, and no
plane stands still; one that did would be a perfect channel for symbols, whatever the others do.

Ids count from 1, the fastest. A restriction is one word:

    all                     every plane turns at its own frequency, as usual
    fast, slow              the faster or the slower half of the ids; the middle one of an odd number belongs to both
    1-8, 1,3,5, 1-4,61-64   these ids
    0-5:fast+6-11:slow      by layer; layers that are not named are not restricted
"""

from __future__ import annotations

import re
from collections.abc import Collection

from rotoscope.errors import RotoscopeError

UNRESTRICTED = "all"


def layer_ids(angles: str, layers: int, planes: int, nope: Collection[int] = ()) -> tuple[tuple[int, ...], ...]:
    """The frequency ids each layer has, by the words of a restriction; nothing where no layer is restricted."""
    every = tuple(range(1, planes + 1))
    if ":" not in angles:
        found = [_ids(angles, angles, planes)] * layers
    else:
        named: dict[int, tuple[int, ...]] = {}
        for part in angles.split("+"):
            where, _, ids = part.partition(":")
            for layer in _numbers(where, angles, "layers", 0, layers - 1):
                if layer in (*named, *nope):
                    why = "does not rotate (nope)" if layer in nope else "is named twice"
                    raise RotoscopeError(
                        f"angles '{angles}' name layer {layer}, which {why}; name another, or none"
                    )
                named[layer] = _ids(ids, angles, planes)
        found = [named.get(layer, every) for layer in range(layers)]
    return () if all(ids == every for ids in found) else tuple(found)


def _ids(words: str, angles: str, planes: int) -> tuple[int, ...]:
    if words == UNRESTRICTED:
        return tuple(range(1, planes + 1))
    if words == "fast":
        return tuple(range(1, (planes + 1) // 2 + 1))
    if words == "slow":
        return tuple(range(planes // 2 + 1, planes + 1))
    return tuple(sorted(set(_numbers(words, angles, "frequency ids", 1, planes))))


def _numbers(words: str, angles: str, what: str, least: int, most: int) -> list[int]:
    """The numbers of `1-4,7`, each within its bounds."""
    found: list[int] = []
    for part in words.split(","):
        matched = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if matched is None:
            raise RotoscopeError(
                f"angles '{angles}' cannot be understood at '{part}'; give all, fast, slow, ids such as 1-8 or 1,3,5, or "
                "layers with theirs such as 0-5:fast+6-11:slow"
            )
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if not least <= first <= last <= most:
            raise RotoscopeError(
                f"angles '{angles}' ask for {what} {part}; this model has {least} to {most}, from the lower to the higher"
            )
        found += range(first, last + 1)
    return found
