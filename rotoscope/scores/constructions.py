"""An attention head in the papers' form: a logit function, a value map, an output map.

`L(x_i, i, x_j, j)` is the logit between a query vector at position i and a key vector at position j. Here it comes from
weight matrices and rotation angles; no angles (or zero ones) is NoPE. A head acts *positionally* on an input if its
logits do not change when the keys' contents are permuted, *symbolically* if they follow the contents. Both are decided
exactly: by the counterfactual logit matrix for any length, and literally, over all permutations, for short inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from rotoscope.errors import RotoscopeError
from rotoscope.scores.counterfactual import counterfactual_logits, turn
from rotoscope.shapes import Float, Int, Tensor

MOST_PERMUTED = 8


@dataclass(frozen=True)
class RotaryHead:
    """One head: weight matrices from embeddings to planes, an angle per plane, values, output."""

    w_query: Float[Tensor, "width planes 2"]
    w_key: Float[Tensor, "width planes 2"]
    angles: Float[Tensor, "planes"]
    w_value: Float[Tensor, "width out"]
    sharpness: float = 1.0
    """Inverse temperature of the softmax."""
    residual: bool = False
    """Whether the input is added to what was attended to."""
    output: Callable[[Tensor, Tensor], Tensor] | None = None
    """Output map from (input, attended); the identity on what was attended to by default."""

    def logits(self, x: Float[Tensor, "... n width"]) -> Float[Tensor, "... n n"]:
        """Counterfactual logits of the last position's query; its own row and column come last."""
        query = torch.einsum("...d,dpk->...pk", x[..., -1, :], self.w_query)
        keys = torch.einsum("...nd,dpk->...npk", x, self.w_key)
        return counterfactual_logits(query, keys, self.angles)

    def real_logits(self, x: Float[Tensor, "... n width"]) -> Float[Tensor, "... n"]:
        """The last position's logits over everything up to itself, query and keys rotated where they stand."""
        n = x.shape[-2]
        phase = (n - torch.arange(1, n + 1, dtype=torch.float64))[:, None] * self.angles.double()
        query = torch.einsum("...d,dpk->...pk", x[..., -1, :], self.w_query)
        keys = torch.einsum("...nd,dpk->...npk", x, self.w_key)
        turned = turn(query.unsqueeze(-3), phase.cos().to(x.dtype), phase.sin().to(x.dtype))
        return (turned * keys).sum((-2, -1))

    def attention(self, x: Float[Tensor, "... n width"], *, hard: bool = False) -> Float[Tensor, "... n n"]:
        """Attention of every position over itself and what comes before: the ordinary computation.

        `hard` puts all weight on the largest logit, shared between exact ties.
        """
        n = x.shape[-2]
        phase = torch.arange(1, n + 1, dtype=torch.float64)[:, None] * self.angles.double()
        cos, sin = phase.cos().to(x.dtype), phase.sin().to(x.dtype)
        query, key = (
            turn(torch.einsum("...nd,dpk->...npk", x, w), cos, sin).flatten(-2)
            for w in (self.w_query, self.w_key)
        )
        later = torch.ones(n, n, dtype=torch.bool).triu(diagonal=1)
        logits = (query @ key.mT).masked_fill(later, -torch.inf)
        if not hard:
            return (self.sharpness * logits).softmax(-1)
        best = logits >= logits.amax(-1, keepdim=True) - 1e-12
        return best.to(x.dtype) / best.sum(-1, keepdim=True)

    def __call__(self, x: Float[Tensor, "... n width"], *, hard: bool = False) -> Float[Tensor, "... n out"]:
        """What the head writes at every position."""
        attended = self.attention(x, hard=hard) @ (x @ self.w_value)
        if self.output is not None:
            return self.output(x, attended)
        return x + attended if self.residual else attended

    def sharpened(self, sharpness: float) -> RotaryHead:
        """The same head with another inverse temperature."""
        return replace(self, sharpness=sharpness)

    def acts_positionally(
        self, x: Float[Tensor, "n width"], *, permuting: bool = False, tolerance: float = 1e-9
    ) -> bool:
        """Whether permuting the keys' contents leaves every logit where it is."""
        if permuting:
            _, before, after = self._permuted(x)
            return bool((after - before).abs().max() <= tolerance)
        keys = self.logits(x)[:-1, :-1]
        return bool((keys - keys.diagonal()[:, None]).abs().max() <= tolerance)

    def acts_symbolically(
        self, x: Float[Tensor, "n width"], *, permuting: bool = False, tolerance: float = 1e-9
    ) -> bool:
        """Whether every logit follows its content under a permutation."""
        if permuting:
            orders, before, after = self._permuted(x)
            return bool((after - before[orders]).abs().max() <= tolerance)
        keys = self.logits(x)[:-1, :-1]
        return bool((keys - keys.diagonal()[None, :]).abs().max() <= tolerance)

    def _permuted(
        self, x: Float[Tensor, "n width"]
    ) -> tuple[Int[Tensor, "permutations keys"], Float[Tensor, "keys"], Float[Tensor, "permutations keys"]]:
        """All permutations of the keys, and the real logits before and after each."""
        n = x.shape[0] - 1
        if n > MOST_PERMUTED:
            raise RotoscopeError(f"{n} keys have too many permutations; decide it by the matrix instead")
        orders = torch.tensor(list(itertools.permutations(range(n))))
        query = x[-1:].expand(len(orders), 1, -1)
        after = self.real_logits(torch.cat((x[orders], query), dim=1))
        return orders, self.real_logits(x)[:-1], after[:, :-1]


# The papers' constructions as explicit weight matrices.
#
# P1: H_POS solves Index with one angle, H_SYM Retrieval without any, H_MIX partial induction with angles (0, theta_2);
# and the one-angle solution of partial induction that the theorem on pure heads does not forbid. P2: T_Index and
# T_Retrieval, the steps of the multi-hop tasks, and Reflexive, the identity. Each comes with the smallest logit gap it
# leaves over all inputs up to a length, hence with the sharpness it needs: weight more than one half on the right key
# whenever
#
#     beta > log(keys - 1) / gap
#
# Positions count from 1, as in the papers; the query of P1's tasks stands at N + 1.
# At the end: the attention weight of the answer's position in H_POS and H_SYM, over all positions (P1 Theorem 7).


@dataclass(frozen=True)
class Construction:
    """A head made by hand, and the smallest gap between its largest logit and the next over its inputs."""

    name: str
    head: RotaryHead
    gap: float
    sharpness: float
    """The inverse temperature above which the right key gets more than half of the attention."""

    @classmethod
    def of(cls, name: str, head: RotaryHead, gap: float, competitors: int, margin: float) -> Construction:
        """Sharpen a head as far as its gap asks, times a margin above 1."""
        if not gap > 1e-12:
            raise RotoscopeError(f"{name} is ambiguous: its smallest logit gap is {gap:.3g}, so two keys tie")
        needed = math.log(max(competitors, 1)) / gap
        return cls(name, head.sharpened(max(margin * needed, 1e-6)), gap, needed)


def directions(phases: Tensor) -> Tensor:
    """Unit vectors at these phases."""
    return torch.stack((phases.cos(), phases.sin()), dim=-1)


def index_gap(theta: float, reach: int) -> float:
    """1 - max over 1 <= t <= reach of cos(t theta): how far the peak stands out among that many neighbours."""
    if reach < 1:
        return 2.0
    return 1 - max(math.cos(t * theta) for t in range(1, reach + 1))


def h_pos(keys: int, symbols: int, theta: float, *, margin: float = 1.05) -> Construction:
    """H_POS: a query naming position j is turned so that it meets the one shared key direction exactly at j.

    Embeddings are one-hot: `symbols` symbols, then one token for each nameable position 1..keys. The query's own key
    is zero, and so is its value.
    """
    _check(keys >= 2, f"H_POS needs at least 2 keys, found {keys}")
    gap = index_gap(theta, keys - 1)
    _check(
        gap > 1e-12,
        f"theta = {theta:g} ties: t * theta is a multiple of 2 pi for some t below {keys}, so two positions look alike",
    )
    width = symbols + keys
    w_key, w_query = torch.zeros(2, width, 1, 2, dtype=torch.float64)
    w_key[:symbols, 0] = torch.tensor([1.0, 0.0], dtype=torch.float64)
    named = torch.arange(1, keys + 1, dtype=torch.float64)
    w_query[symbols:, 0] = directions(-(keys + 1 - named) * theta)
    w_value = torch.eye(width, symbols, dtype=torch.float64)
    head = RotaryHead(w_query, w_key, torch.tensor([theta], dtype=torch.float64), w_value)
    return Construction.of("H_POS", head, gap, keys, margin)


def h_sym(keys: int, entities: int, attributes: int, *, margin: float = 1.05) -> Construction:
    """H_SYM: entities on a circle, no rotation: the asked entity meets itself and nothing else.

    A pair is the sum of two one-hot rows, entity then attribute; a question has a row of its own for each entity, whose
    key and value are zero.
    """
    _check(entities >= 2, f"H_SYM needs at least 2 entities, found {entities}")
    spread = directions(torch.arange(entities, dtype=torch.float64) * (2 * math.pi / entities))
    w_query, w_key, w_value = _pair_tables(spread[:, None], spread[:, None], attributes)
    head = RotaryHead(w_query, w_key, torch.zeros(1, dtype=torch.float64), w_value)
    return Construction.of("H_SYM", head, 1 - math.cos(2 * math.pi / entities), keys, margin)


def h_mix(keys: int, entities: int, attributes: int, theta: float, *, margin: float = 1.05) -> Construction:
    """H_MIX: one still plane finds the asked entity, one slow plane prefers the latest of its occurrences.

    The still plane is weighted so that a match outweighs any difference of recency. Right while cos falls over all
    distances 1..keys, that is for keys * theta <= pi.
    """
    _check(entities >= 2 and keys >= 2, f"H_MIX needs 2 entities and 2 keys, found {entities} and {keys}")
    apart = 1 - math.cos(2 * math.pi / entities)
    weight = math.sqrt(4 / apart)  # squared on the product: a match is worth 4, recency at most 2
    spread = directions(torch.arange(entities, dtype=torch.float64) * (2 * math.pi / entities)) * weight
    ahead = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(entities, 2)
    conditions = torch.stack((spread, ahead), dim=1)  # [entities, planes, 2]
    w_query, w_key, w_value = _pair_tables(conditions, conditions, attributes)
    recency = [math.cos(d * theta) for d in range(1, keys + 1)]
    # An earlier occurrence must lose to a later one at every pair of distances.
    later_wins = min(recency[d] - max(recency[d + 1 :]) for d in range(keys - 1))
    gap = min(later_wins, 4 - (max(recency) - min(recency)))
    _check(
        gap > 1e-12,
        f"keys * theta = {keys * theta:.3g} is beyond pi: an earlier occurrence can look later than the last one",
    )
    head = RotaryHead(w_query, w_key, torch.tensor([0.0, theta], dtype=torch.float64), w_value)
    return Construction.of("H_MIX", head, gap, keys, margin)


def one_angle_induction(keys: int, entities: int, attributes: int, *, margin: float = 1.05) -> Construction:
    """Partial induction with a single angle: logit cos((s - q) omega + (n - j) theta + phi), theta = omega / 4N and
    phi = omega / 4. Exact, with a gap of only about omega^2 / 16N: hard to learn, not impossible."""
    _check(
        entities >= 3 and keys >= 2,
        f"the one-angle solution needs 3 entities and 2 keys, found {entities}, {keys}",
    )
    omega = 2 * math.pi / entities
    theta, phi = omega / (4 * keys), omega / 4
    number = torch.arange(entities, dtype=torch.float64)
    # The logit turns by phase(query) - phase(key): the key's letter counts up, hence the minus.
    w_query, w_key, w_value = _pair_tables(
        directions(-number * omega + phi)[:, None], directions(-number * omega)[:, None], attributes
    )
    phase = [d * theta + phi for d in range(1, keys + 1)]
    later_wins = min(math.cos(a) - math.cos(b) for a, b in itertools.pairwise(phase))
    others = max(math.cos(k * omega + p) for k in range(1, entities) for p in phase[:-1])
    match_wins = min(math.cos(phase[-1]) - others, math.cos(phase[-2]) - math.cos(phase[-1] - omega))
    head = RotaryHead(w_query, w_key, torch.tensor([theta], dtype=torch.float64), w_value)
    return Construction.of("one-angle induction", head, min(later_wins, match_wins), keys, margin)


def _pair_tables(query: Tensor, key: Tensor, attributes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight matrices over rows for entities, attributes and questions: only questions ask, only entities answer to it,
    only attributes are read out."""
    entities, planes, _ = key.shape
    nothing = torch.zeros(attributes, planes, 2, dtype=torch.float64)
    w_query = torch.cat((torch.zeros_like(key), nothing, query))
    w_key = torch.cat((key, nothing, torch.zeros_like(query)))
    w_value = torch.zeros(2 * entities + attributes, attributes, dtype=torch.float64)
    w_value[entities : entities + attributes] = torch.eye(attributes)
    return w_query, w_key, w_value


def t_index(letters: int, integers: int, theta: float, longest: int, *, margin: float = 1.05) -> Construction:
    """T_Index: all keys equal; the query of integer t is turned back by t angles, a letter's not at all.

    Embeddings are one-hot: letters, then the integers 1..integers. Letters have value 2, integers none, and the input
    is added: a letter overwrites the integer that points at it, an integer leaves it as it is.
    """
    _check(longest >= 2, f"a sequence needs at least 2 tokens, found n0 = {longest}")
    gap = index_gap(theta, longest - 1)
    _check(
        gap > 1e-12,
        f"theta = {theta:g} ties: t * theta is a multiple of 2 pi for some t below n0 = {longest}",
    )
    width = letters + integers
    w_key, w_query = torch.zeros(2, width, 1, 2, dtype=torch.float64)
    w_key[:, 0, 0] = 1.0
    back = torch.cat((torch.zeros(letters), torch.arange(1, integers + 1))).double()
    w_query[:, 0] = directions(-back * theta)
    w_value = torch.zeros(width, width, dtype=torch.float64)
    w_value[:letters, :letters] = 2 * torch.eye(letters)
    head = RotaryHead(w_query, w_key, torch.tensor([theta], dtype=torch.float64), w_value, residual=True)
    return Construction.of("T_Index", head, gap, longest - 1, margin)


def retrieval_limit(alphabet: int, longest: int) -> float:
    """The sharp limit on T_Retrieval's angle: omega / (2 n0 - 3)."""
    return 2 * math.pi / alphabet / max(2 * longest - 3, 1)


def retrieval_gap(alphabet: int, theta: float, n: int) -> float:
    """T_Retrieval's smallest gap over letter pairs in proper inputs of length n: cos((n-2) theta) - cos(omega - (n-1) theta)."""
    omega = 2 * math.pi / alphabet
    if n < 3:
        return math.cos(theta) - math.cos(omega)
    return math.cos((n - 2) * theta) - math.cos(omega - (n - 1) * theta)


def t_retrieval(
    alphabet: int, digits: int, theta: float, longest: int, *, margin: float = 1.05
) -> Construction:
    """T_Retrieval: keys turned by their first letter, queries by the letter they look for.

    Tokens are one-hot: (letter, digit) pairs first, `letter * digits + digit`, then (letter, letter) pairs. A pair with
    a digit looks for its own letter and so for itself. Values are the identity; nothing is added.
    """
    _check(longest >= 2, f"a sequence needs at least 2 tokens, found n0 = {longest}")
    _check(
        theta != 0,
        "theta = 0 ties: two (letter, digit) pairs with the same letter look alike, as in [(A, 5), (A, 3)]",
    )
    _check(
        0 < theta < retrieval_limit(alphabet, longest),
        f"theta = {theta:g} must lie below omega / (2 n0 - 3) = {retrieval_limit(alphabet, longest):.4g} for n0 = {longest}",
    )
    omega = 2 * math.pi / alphabet
    letters = torch.arange(alphabet, dtype=torch.float64)
    first = torch.cat((letters.repeat_interleave(digits), letters.repeat_interleave(alphabet)))
    sought = torch.cat((letters.repeat_interleave(digits), letters.repeat(alphabet)))
    width = len(first)
    w_key, w_query = directions(-first * omega)[:, None], directions(-sought * omega)[:, None]
    head = RotaryHead(
        w_query, w_key, torch.tensor([theta], dtype=torch.float64), torch.eye(width, dtype=torch.float64)
    )
    gap = min(retrieval_gap(alphabet, theta, longest), 1 - math.cos(theta))
    return Construction.of("T_Retrieval", head, gap, longest - 1, margin)


def reflexive(width: int, theta: float, longest: int, *, margin: float = 1.05) -> Construction:
    """Reflexive, the identity: one direction for every key and query, so that each position meets itself."""
    _check(longest >= 2, f"a sequence needs at least 2 tokens, found n0 = {longest}")
    same = torch.zeros(width, 1, 2, dtype=torch.float64)
    same[:, 0, 0] = 1.0
    head = RotaryHead(
        same, same, torch.tensor([theta], dtype=torch.float64), torch.eye(width, dtype=torch.float64)
    )
    return Construction.of("Reflexive", head, index_gap(theta, longest - 1), longest - 1, margin)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise RotoscopeError(message)


def positional_target_weight(keys: int, theta: float, beta: float) -> Float[Tensor, "keys"]:
    """w_max(j) of H_POS: softmax over p of beta cos((p - j) theta), taken at p = j. U-shaped while N theta < 2 pi."""
    p = torch.arange(1, keys + 1, dtype=torch.float64)
    return (beta * ((p[None, :] - p[:, None]) * theta).cos()).softmax(-1).diagonal()


def symbolic_target_weight(
    keys: int, theta: float, beta: float, constant: float = 0.0
) -> Float[Tensor, "keys"]:
    """w_max(j) of simplified H_SYM: one match at logit beta cos((j - (N+1)/2) theta), all others at a constant."""
    p = torch.arange(1, keys + 1, dtype=torch.float64)
    match = beta * ((p - (keys + 1) / 2) * theta).cos()
    return (
        match
        - torch.logaddexp(match, torch.tensor(constant).double() + torch.tensor(keys - 1.0).double().log())
    ).exp()


def falls_then_rises(weights: Float[Tensor, "keys"], tolerance: float = 1e-12) -> bool:
    """Whether a curve over positions is U-shaped: never rises before its lowest point, never falls after it."""
    steps = weights.diff()
    lowest = int(weights.argmin())
    return bool((steps[:lowest] <= tolerance).all() and (steps[lowest:] >= -tolerance).all()) and bool(
        weights[0] > weights[lowest] + tolerance
    )


def rises_then_falls(weights: Float[Tensor, "keys"], tolerance: float = 1e-12) -> bool:
    """Whether it is an inverse U."""
    return falls_then_rises(-weights, tolerance)
