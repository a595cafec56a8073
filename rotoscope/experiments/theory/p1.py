"""Checks of P1: definitions, exclusion, H_POS, H_SYM, H_MIX, and what pure heads cannot do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

import torch

from rotoscope.experiments.theory.statement import Evidence, decode, one_hot, pairs_input, refuses
from rotoscope.scores.constructions import (
    Construction,
    RotaryHead,
    falls_then_rises,
    h_mix,
    h_pos,
    h_sym,
    one_angle_induction,
    positional_target_weight,
    rises_then_falls,
    symbolic_target_weight,
)
from rotoscope.scores.exclusion_principle import exclusion


def random_head(
    width: int, angles: list[float], dice: torch.Generator, *, shared_key: bool = False
) -> RotaryHead:
    """A head with Gaussian weights; with `shared_key` every key is the same vector."""
    planes = len(angles)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=dice, dtype=torch.float64)

    w_key = draw(1, planes, 2).expand(width, planes, 2) if shared_key else draw(width, planes, 2)
    return RotaryHead(
        draw(width, planes, 2), w_key, torch.tensor(angles, dtype=torch.float64), torch.eye(width).double()
    )


def check_nope_is_symbolic() -> Evidence:
    dice = torch.Generator().manual_seed(0)
    right = wrong = 0
    for _ in range(40):
        x = one_hot(torch.randint(0, 5, (6,), generator=dice), 5)
        still = random_head(5, [0.0, 0.0], dice)
        shared = random_head(5, [1.0, 0.3], dice, shared_key=True)
        for permuting in (False, True):
            right += still.acts_symbolically(x, permuting=permuting) + shared.acts_positionally(
                x, permuting=permuting
            )
            turning = random_head(5, [1.0, 0.3], dice)
            by_matrix = (turning.acts_positionally(x), turning.acts_symbolically(x))
            by_force = (
                turning.acts_positionally(x, permuting=True),
                turning.acts_symbolically(x, permuting=True),
            )
            wrong += by_matrix != by_force
    return Evidence(
        right == 160 and wrong == 0,
        "80 random heads on random inputs of 5 keys, by the matrix and over all 120 permutations",
        f"{right} of 160 as stated, {wrong} disagreements between matrix and permutations",
    )


def check_exclusion() -> Evidence:
    dice = torch.Generator().manual_seed(0)
    largest = 0.0
    for size in (2, 3, 5, 8, 13, 21, 34, 55):
        logits = torch.randn(250, size, size, generator=dice, dtype=torch.float64)
        logits *= torch.logspace(-2, 2, 250, dtype=torch.float64)[:, None, None]
        terms = exclusion(logits)
        largest = max(largest, float((terms.variance / terms.bound).max()))
    real = torch.randn(30, generator=dice, dtype=torch.float64)
    tight = exclusion((real[:, None] + real[None, :]) / 2)
    pure = exclusion(real[:, None].expand(30, 30))
    equality, half = float(tight.variance / tight.bound), float(pure.variance / pure.bound)
    return Evidence(
        largest <= 1 + 1e-12 and abs(equality - 1) < 1e-9 and abs(half - 0.5) < 1e-9,
        "2,000 random heads of 2 to 55 keys; the equality case and a pure head",
        f"largest Var / bound {largest:.3f}; equality case {equality:.9f}; pure head {half:.9f}",
    )


Case = tuple[Construction, torch.Tensor, torch.Tensor]
"""A construction, inputs for it, and the right answers at their last position."""


def _answered(cases: Iterable[Case]) -> tuple[int, bool, str]:
    """How many inputs, whether all answers were right, and how many with hard and with sharp attention."""
    inputs = hard = sharp = 0
    for construction, x, expected in cases:
        inputs += len(x)
        hard += int((decode(construction.head(x, hard=True)[:, -1]) == expected).sum())
        sharp += int((decode(construction.head(x)[:, -1]) == expected).sum())
    return inputs, hard == sharp == inputs, f"right: {hard} with hard, {sharp} with the computed sharpness"


def check_h_pos() -> Evidence:
    dice = torch.Generator().manual_seed(0)

    def case(keys: int, theta: float) -> Case:
        symbols = torch.randint(0, 16, (200, keys), generator=dice)
        j = torch.randint(1, keys + 1, (200,), generator=dice)
        # the hardest input: one symbol at j, another everywhere else
        symbols[:keys] = torch.eye(keys, dtype=torch.long)
        j[:keys] = torch.arange(1, keys + 1)
        x = torch.cat((one_hot(symbols, 16 + keys), one_hot(15 + j, 16 + keys)[:, None]), dim=1)
        return h_pos(keys, 16, theta), x, symbols.gather(1, j[:, None] - 1)[:, 0]

    inputs, solved, right = _answered(
        case(keys, theta)
        for keys in (2, 5, 16, 32, 64)
        for theta in (1.0, 0.3, 0.05, 2 * math.pi / (2 * keys + 1))
    )
    return Evidence(
        solved, f"{inputs} inputs, N in 2..64, four angles each, the hardest inputs among them", right
    )


def _pairs(
    construction: Construction, keys: int, entities: int, dice: torch.Generator, count: int, repeats: int
) -> Case:
    """Pairs with the asked entity `repeats` times, the others distinct; its last attribute is right."""
    rows = []
    for _ in range(count):
        others = torch.randperm(entities, generator=dice)
        entities_asked, rest = others[0], others[1 : keys - repeats + 1]
        line = torch.cat((entities_asked.expand(repeats), rest))[torch.randperm(keys, generator=dice)]
        rows.append((line, entities_asked))
    lines = torch.stack([line for line, _ in rows])
    entities_asked = torch.stack([a for _, a in rows])
    attributes = torch.randint(0, entities, (count, keys), generator=dice)
    last = keys - 1 - (lines == entities_asked[:, None]).flip(1).int().argmax(1)
    x = pairs_input(lines, attributes, entities_asked, entities, entities)
    return construction, x, attributes.gather(1, last[:, None])[:, 0]


def check_h_sym() -> Evidence:
    dice = torch.Generator().manual_seed(0)
    inputs, solved, right = _answered(
        _pairs(h_sym(keys, 64, 64), keys, 64, dice, 300, repeats=1) for keys in (2, 8, 32, 64)
    )
    return Evidence(solved, f"{inputs} inputs of 2 to 64 pairs, 64 entities, no rotation", right)


def check_h_mix() -> Evidence:
    dice = torch.Generator().manual_seed(0)
    inputs, solved, right = _answered(
        _pairs(h_mix(keys, 64, 64, share * math.pi / keys), keys, 64, dice, 200, repeats=3)
        for keys in (4, 8, 32)
        for share in (0.1, 0.5, 1.0)
    )
    beyond = refuses(lambda: h_mix(32, 64, 64, 1.2 * math.pi / 32))
    return Evidence(
        solved and beyond,
        f"{inputs} inputs of 4, 8 and 32 pairs, the asked entity three times, N theta_2 up to pi",
        f"{right}; N theta_2 = 1.2 pi is {'refused' if beyond else 'accepted'}",
    )


def check_one_angle() -> Evidence:
    dice = torch.Generator().manual_seed(0)
    sizes = ((4, 8), (8, 16), (32, 32))
    constructions = [one_angle_induction(keys, entities, entities) for keys, entities in sizes]
    inputs, solved, right = _answered(
        _pairs(construction, keys, entities, dice, 300, repeats=3)
        for construction, (keys, entities) in zip(constructions, sizes, strict=True)
    )
    gaps = [
        construction.gap / ((2 * math.pi / e) ** 2 / (16 * n))
        for construction, (n, e) in zip(constructions, sizes, strict=True)
    ]
    return Evidence(
        not solved,
        f"{inputs} inputs of 4, 8 and 32 pairs with one angle, omega / 4N",
        f"{right}; gap / (omega^2 / 16N) = {', '.join(f'{gap:.2f}' for gap in gaps)}",
        corrected=solved,
        counterexample="cos((s - q) omega + (n - j) theta + phi) with theta = omega / 4N, phi = omega / 4",
    )


@cache
def check_index_needs_position() -> Evidence:
    """For any symbolic head: [s, t] and [t, s], both asking for position 1, get one and the same output."""
    dice = torch.Generator().manual_seed(0)
    erred = symbolic = 0
    for _ in range(200):
        head = random_head(6, [0.0], dice).sharpened(float(torch.rand(1, generator=dice)) * 20)
        s, t = torch.randperm(4, generator=dice)[:2].tolist()
        first, second = (
            one_hot(torch.tensor([a, b, 4]), 6) for a, b in ((s, t), (t, s))
        )  # token 4: "position 1"
        symbolic += head.acts_symbolically(first) and head.acts_symbolically(second)
        outputs = [head(x)[-1] for x in (first, second)]
        same = bool((outputs[0] - outputs[1]).abs().max() < 1e-9)
        erred += same  # the right answers are s and t: one output cannot be both
    return Evidence(
        erred == symbolic == 200,
        "200 random symbolic heads of any sharpness, each with its own pair of inputs [s, t, 1] and [t, s, 1]",
        f"{erred} give one output for two different answers",
    )


@cache
def check_retrieval_needs_symbols() -> Evidence:
    """For any positional head with identity values and a projection: [(e, a), (f, b)] and its swap, asking for e."""
    dice = torch.Generator().manual_seed(0)
    erred = positional = 0
    for _ in range(200):
        head = random_head(8, [1.0, 0.2], dice, shared_key=True).sharpened(
            float(torch.rand(1, generator=dice)) * 20
        )
        e, f = torch.randperm(4, generator=dice)[:2].tolist()
        a, b = (4 + torch.randperm(4, generator=dice)[:2]).tolist()
        pairs = {(e, a): 0, (f, b): 0}
        x = {
            order: torch.stack(
                [one_hot(torch.tensor(p[0]), 8) + one_hot(torch.tensor(p[1]), 8) for p in order]
                + [one_hot(torch.tensor(e), 8)]
            )
            for order in (tuple(pairs), tuple(reversed(tuple(pairs))))
        }
        positional += all(head.acts_positionally(variant) for variant in x.values())
        votes = [head(variant)[-1, 4:] for variant in x.values()]  # the projection onto attributes
        erred += any(float(v[a - 4]) <= float(v[b - 4]) + 1e-12 for v in votes)
    return Evidence(
        erred == positional == 200,
        "200 random positional heads with identity values and a projection, each with its own pair of inputs",
        f"{erred} of {positional} err on their pair",
    )


def check_remark() -> Evidence:
    """Both halves as they are proved in P1, and the second without its assumptions."""
    symbolic, positional = check_index_needs_position(), check_retrieval_needs_symbols()
    solved, inputs = _general_output_map_solves_retrieval(torch.Generator().manual_seed(0))
    return Evidence(
        symbolic.printed and positional.printed and solved < inputs,
        "the heads of P1's Theorems 2 and 4; uniform attention with a general output map",
        f"Index: {symbolic.figure}; Retrieval: {positional.figure}, the general output map answers {solved} of {inputs}",
        corrected=symbolic.printed and positional.printed,
        counterexample="uniform attention over one-hot pairs: which (asked entity, attribute) pair is present can be read off the mean",
    )


def _general_output_map_solves_retrieval(dice: torch.Generator) -> tuple[int, int]:
    """Uniform attention is positional; with one-hot pairs, the mean says which pairs are there."""
    entities = attributes = 6
    width = entities * attributes + entities
    nothing = torch.zeros(width, 1, 2, dtype=torch.float64)

    def read_off(x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        present = attended[..., : entities * attributes].unflatten(-1, (entities, attributes))
        query_entity = x[..., entities * attributes :]
        return torch.einsum("...ea,...e->...a", present, query_entity)

    head = RotaryHead(
        nothing, nothing, torch.tensor([1.0]).double(), torch.eye(width).double(), output=read_off
    )
    solved = 0
    for _ in range(300):
        names = torch.randperm(entities, generator=dice)[:4]
        values = torch.randint(0, attributes, (4,), generator=dice)
        query_entity = int(torch.randint(0, 4, (1,), generator=dice))
        ids = torch.cat(
            (names * attributes + values, entities * attributes + names[query_entity : query_entity + 1])
        )
        x = one_hot(ids, width)
        solved += head.acts_positionally(x) and int(decode(head(x)[-1])) == int(values[query_entity])
    return solved, 300


def check_induction_needs_both() -> Evidence:
    """[(e, a), (e, b)] and [(e, b), (e, a)]: a symbolic head answers both alike. Positional heads fail as on Retrieval."""
    dice = torch.Generator().manual_seed(0)
    alike = 0
    for _ in range(200):
        head = random_head(8, [0.0], dice).sharpened(float(torch.rand(1, generator=dice)) * 20)
        a, b = (4 + torch.randperm(4, generator=dice)[:2]).tolist()
        e = one_hot(torch.tensor(0), 8)
        first, second = (
            torch.stack((e + one_hot(torch.tensor(x), 8), e + one_hot(torch.tensor(y), 8), e))
            for x, y in ((a, b), (b, a))
        )
        alike += bool((head(first)[-1] - head(second)[-1]).abs().max() < 1e-9)
    positional = check_retrieval_needs_symbols().printed
    return Evidence(
        alike == 200 and positional,
        "200 random symbolic heads on [(e, a), (e, b)] and its swap; positional heads as for Retrieval",
        f"{alike} give one output for the answers b and a",
    )


def _target_weights(weight: Callable[[int, float, float], torch.Tensor]) -> list[torch.Tensor]:
    """Curves over positions with N theta < 2 pi."""
    return [
        weight(keys, share * 2 * math.pi / keys, beta)
        for keys in (8, 16, 32, 64)
        for share in torch.linspace(0.05, 0.999, 40).tolist()
        for beta in (0.5, 1.0, 5.0, 20.0)
    ]


def check_w_max_positional() -> Evidence:
    shapes = [falls_then_rises(curve) for curve in _target_weights(positional_target_weight)]
    beyond = positional_target_weight(32, 3 * math.pi / 32, 5.0)
    return Evidence(
        all(shapes) and not falls_then_rises(beyond),
        f"{len(shapes)} curves with N theta < 2 pi; N = 32, beta = 5, N theta = 3 pi beyond it",
        f"{sum(shapes)} are U-shaped; beyond: ends {float(beyond[0]):.3f}, middle {float(beyond[15]):.3f}",
    )


def check_w_max_symbolic() -> Evidence:
    shapes = [rises_then_falls(curve) for curve in _target_weights(symbolic_target_weight)]
    return Evidence(all(shapes), f"{len(shapes)} curves with N theta < 2 pi", f"{sum(shapes)} are inverse U")
