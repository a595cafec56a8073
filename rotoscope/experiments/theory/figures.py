"""Pictures of the theory: paths, constructions, discrepancy, shapes, invariant and equivariant logits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.plotting.palette import EXPERIMENT_COLOURS as HUES
from rotoscope.plotting.palette import INK, NULL, POSITIONAL, SYMBOLIC, TASK_COLOURS
from rotoscope.plotting.style import SMALLEST, TEXT_WIDTH, caption, drawing, shade, under
from rotoscope.scores.constructions import (
    RotaryHead,
    h_pos,
    h_sym,
    positional_target_weight,
    symbolic_target_weight,
    t_index,
    t_retrieval,
)
from rotoscope.scores.discrepancy import (
    index_largest,
    index_printed_bound,
    index_worst,
    index_worst_bound,
    retrieval_printed_bound,
    retrieval_worst,
)
from rotoscope.tasks.multihop import letter, number
from rotoscope.tasks.multihop_frames import MultiHop


def hop_path(*sequences: MultiHop) -> Figure:
    """The path through a multi-hop sequence, from the last token to the answer (P2 Fig. 1)."""
    longest = max(len(sample.tokens) for sample in sequences)
    with drawing(TEXT_WIDTH, 1.7 * len(sequences) + 0.2, len(sequences), 1) as (figure, axes):
        for ax, sample in zip(axes, sequences, strict=True):
            hue = TASK_COLOURS[sample.task]
            for p, token in enumerate(sample.tokens):
                on = p in sample.path
                ax.text(p, 0, token, ha="center", va="center", fontsize=8, fontweight="bold" if on else "normal",
                        bbox={"boxstyle": "round,pad=0.3", "fc": "white", "ec": hue if on else "#CCCCCC",
                              "lw": 1.6 if p == sample.path[-1] else 1.0})  # fmt: skip
                ax.text(p, -0.55, str(p), ha="center", va="center", fontsize=SMALLEST, color="#777777")
            for pointing, pointed in itertools.pairwise(sample.path):
                bent = f"arc3,rad={0.32 if pointing - pointed > 1 else 0.6}"
                look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 10, "color": hue, "lw": 1.2}
                ax.add_patch(FancyArrowPatch((pointing, 0.3), (pointed, 0.3), connectionstyle=bent, **look))
            ax.set(xlim=(-0.7, longest - 0.3), ylim=(-0.8, 0.45 + 0.18 * longest**0.9))
            ax.set_axis_off()
            ax.set_title(f"{sample.task} task, {sample.hops} hops, answer {sample.answer}", loc="left")
    return figure


def construction_vectors(
    theta_index: float = 10_000 ** (-2 / 128), theta_retrieval: float = 10_000 ** (-82 / 128), longest: int = 17
) -> Figure:
    """Queries and keys of T_Index and T_Retrieval in their plane (P2 Fig. 4A)."""
    with drawing(7.0, 3.7, 1, 2) as (figure, (left, right)):
        index = t_index(1, 8, theta_index, longest).head
        _arrows(left, index.w_key[:1, 0].numpy(), ["keys"], INK)
        _arrows(left, index.w_query[1:7, 0].numpy(), [f"{t}" for t in range(1, 7)], HUES["index"])
        left.set_title(f"T_Index, θ = {theta_index:.3f}", loc="left")
        retrieval = t_retrieval(8, 1, theta_retrieval, longest).head
        letters = [chr(ord("A") + k) for k in range(8)]
        _arrows(right, retrieval.w_key[:8, 0].numpy(), letters, HUES["retrieval"])
        right.set_title(f"T_Retrieval, θ = {theta_retrieval:.4f}, ω = 2π/8", loc="left")
        for ax in (left, right):
            ax.add_patch(Circle((0, 0), 1, fill=False, color="#DDDDDD", linewidth=0.8, zorder=0))
            ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", xticks=[], yticks=[])
    return caption(
        figure,
        "before rotation; left: queries of the integers 1 to 6 and the one key; right: key of a first letter "
        "= query of that letter",
    )


def _arrows(axes: Axes, vectors: np.ndarray, names: list[str], colour: str) -> None:
    for (x, y), name in zip(vectors, names, strict=True):
        axes.annotate(
            "", xy=(x, y), xytext=(0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2}
        )
        axes.text(
            (1.17 + 0.02 * len(name)) * x, 1.17 * y, name, ha="center", va="center", fontsize=8, color=colour
        )


def discrepancies(longest: int = 100, alphabet: int = 8) -> Figure:
    """Discrepancy against length, printed and corrected (P2 Fig. 5A)."""
    theta_index, theta_retrieval = 10_000 ** (-2 / 128), 10_000 ** (-82 / 128)
    lengths = range(3, longest + 1)
    with drawing(TEXT_WIDTH, 3.5, 1, 2) as (figure, (left, right)):
        worst: dict[str, Any] = {"lw": 1.6, "label": "worst input"}
        printed: dict[str, Any] = {"color": NULL, "lw": 1.2, "ls": ":", "label": "printed bound on the largest"}
        for curve, look in (
            (partial(index_largest, theta_index), {"lw": 1.0, "ls": "--", "label": "largest over inputs"}),
            (partial(index_worst, theta_index), worst),
            (index_worst_bound, {"color": INK, "lw": 0.9, "label": "1 − cos(2π/n)"}),
            (partial(index_printed_bound, theta_index), printed),
        ):
            left.plot(lengths, [curve(n) for n in lengths], **{"color": HUES["index"], **look})
        left.set(yscale="log", xlabel="length n", ylabel="discrepancy")
        left.set_title(f"T_Index, θ = {theta_index:.3f}", loc="left")
        for curve, look in (
            (partial(retrieval_worst, alphabet, theta_retrieval), worst),
            (partial(retrieval_worst, alphabet, 0.0), {"lw": 1.0, "ls": "--", "label": "worst input, θ = 0"}),
            (partial(retrieval_printed_bound, alphabet, theta_retrieval), printed),
        ):
            right.plot(lengths, [curve(n) for n in lengths], **{"color": HUES["retrieval"], **look})
        right.set(xlabel="length n")
        right.axhline(0, color="#DDDDDD", lw=0.8, zorder=0)
        right.set_title(f"T_Retrieval, θ = {theta_retrieval:.4f}, {alphabet} letters", loc="left")
        for ax in (left, right):
            under(ax)
    return caption(
        figure,
        "closed forms; the printed bounds are exceeded by the largest discrepancy, which is not what failure "
        "depends on",
    )


def target_weights(keys: int = 32, beta: float = 5.0) -> Figure:
    """w_max over the answer's position, within and beyond N θ = 2π (P1 Theorem 7)."""
    positions = np.arange(1, keys + 1)
    shares = (0.5, 1.0, 1.9, 3.0)
    with drawing(TEXT_WIDTH, 3.2, 1, 2) as (figure, (left, right)):
        for k, share in enumerate(shares):
            theta = share * math.pi / keys
            beyond = share > 2
            label = f"Nθ = {share:g}π" + (" (beyond)" if beyond else "")
            style = "--" if beyond else "-"
            for ax, weights, hue in (
                (left, positional_target_weight, POSITIONAL),
                (right, symbolic_target_weight, SYMBOLIC),
            ):
                colour = INK if beyond else shade(hue, k, 3)
                ax.plot(positions, weights(keys, theta, beta), style, color=colour, label=label)
        left.set_title("H_POS: U while Nθ < 2π", loc="left")
        right.set_title("simplified H_SYM: inverse U", loc="left")
        for ax in (left, right):
            ax.set(xlabel="position j of the answer", ylabel="w_max(j)")
            under(ax, ncols=2)
    return caption(figure, f"N = {keys}, β = {beta:g}")


def permuted_logits(seed: int = 0, keys: int = 10) -> Figure:
    """Logits before and after the keys are permuted (P1 Fig. 4): invariant for H_POS, not for H_SYM."""
    dice = torch.Generator().manual_seed(seed)
    order = torch.randperm(keys, generator=dice)
    heads: list[tuple[str, RotaryHead, torch.Tensor, str]] = []
    positional = h_pos(keys, keys, 0.45).head
    width = 2 * keys
    symbols = torch.arange(keys)
    x = torch.cat((_one_hot(symbols, width), _one_hot(torch.tensor([keys + 6]), width)))
    heads.append(("H_POS asked for position 7: logits stay", positional, x, POSITIONAL))
    symbolic = h_sym(keys, keys, 1).head
    pairs = torch.cat((_one_hot(symbols, 2 * keys + 1), _one_hot(torch.tensor([keys + 1 + 3]), 2 * keys + 1)))
    heads.append(("H_SYM asked for entity 4: logits move", symbolic, pairs, SYMBOLIC))
    with drawing(TEXT_WIDTH, 4.0, 2, 1, sharex=True) as (figure, axes):
        for ax, (title, head, before, hue) in zip(axes, heads, strict=True):
            after = torch.cat((before[:-1][order], before[-1:]))
            for state, style, label, offset in ((before, "-", "before", 0.0), (after, "--", "after", 0.08)):
                logits, colour = head.real_logits(state)[:-1], hue if style == "-" else INK
                places = np.arange(1, keys + 1) + offset
                ax.plot(places, logits, style, marker="o", ms=4, color=colour, label=label)
            ax.set_title(title, loc="left")
            ax.set_ylabel("logit")
            ax.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=2)
        axes[-1].set_xlabel(f"position; contents permuted to {' '.join(str(int(k) + 1) for k in order)}")
        axes[-1].set_xticks(range(1, keys + 1))
    return figure


def _one_hot(ids: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(ids, width).double()


def theory_figures(run: TheoryRun) -> Iterator[tuple[str, Figure]]:
    """Paths, vectors of the constructions, discrepancies, shapes and permuted logits, whichever statements were checked."""
    yield "hop_path", hop_path(*(task(1, hops=(3,))[0] for task in (number, letter)))
    for draw in (construction_vectors, discrepancies, target_weights, permuted_logits):
        yield draw.__name__, draw()
