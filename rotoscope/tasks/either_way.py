"""A task that can be solved either way, by place or by symbol, as long as the letters stand in their order.

(letter, digit) pairs, then one letter, whose digit is the answer. Every place of the target window has letters of its own, and
in the order of training they stand nowhere else. So the asked letter says where its pair stands: a head can look at that
place, or for that letter. `shuffled` puts the letters of a place elsewhere, in every row anew: only the symbol is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from rotoscope.errors import TaskError
from rotoscope.tasks.multihop_frames import PAD, MultiHops, frame_of, letters_of


def either(
    count: int = 1000,
    *,
    hops: int | Sequence[int] = 1,
    target: int = 8,
    window: int = 0,
    alphabet: int = 16,
    digits: int = 4,
    shuffled: bool = False,
    front: int = 0,
    seed: int = 0,
    first: int = 0,
    balanced: bool = False,
    device: str | torch.device = "cpu",
) -> MultiHops:
    """Sequences of `target` pairs and the asked letter, with `alphabet` letters for each place.

    There is one hop and no pointing window. `front` puts more pairs before the sequence, of any letters but the asked one. The
    other arguments are those of `number`.
    """
    letters = target * alphabet
    if hops not in (1, [1], (1,)) or window:
        raise TaskError(f"the either task has 1 hop and a window of 0, found {hops} and {window}")
    if alphabet < 1 or digits < 1 or not 2 <= letters <= 26 * 27:
        raise TaskError(
            f"a target of {target} with {alphabet} letters a place makes {letters} letters, and there must be 2 to {26 * 27} "
            f"with at least 1 digit each, found {digits}"
        )
    frame = frame_of(count, 1, target, 0, alphabet * digits, front, seed, first, balanced, device)
    dice, where = frame.dice, frame.path[:, 1:] - front
    places = torch.arange(target, device=device).expand(count, -1)
    groups = dice.bits(target).argsort(dim=1, stable=True) if shuffled else places
    begins = groups * alphabet + dice.below(alphabet, target)
    asked = groups.gather(1, where) * alphabet + frame.value[:, None] // digits
    digit = frame.value % digits
    others = dice.below(letters - 1, front)
    before = (others + (others >= asked)) * digits + dice.below(digits, front)
    pairs = (begins * digits + dice.below(digits, target)).scatter(1, where, asked * digits + digit[:, None])
    tokens = torch.cat((before, pairs, letters * digits + asked), dim=1)
    names, said = letters_of(letters), [str(k) for k in range(1, digits + 1)]
    vocabulary = (*(name + one for name in names for one in said), *names, *said, PAD)
    answered = replace(frame, value=letters * (digits + 1) + digit)
    return answered.made("either", tokens, vocabulary, alphabet=alphabet, digits=digits, shuffled=shuffled)
