"""Draw docs/images/swap.png, a swap in two frames: python docs/swap_picture.py"""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from rotoscope.plotting.palette import CLASS_COLOURS

PICTURE = Path(__file__).with_name("images") / "swap.png"
FACTS = ("Ann likes red.", "Bob likes blue.", "Eve likes green.")
QUERY = "Bob likes"
CENTRES = (0.8, 2.5, 4.3, 6.0)


def draw_frame(
    axes: Axes, title: str, facts: tuple[str, ...], positional_slot: int, symbolic_slot: int
) -> None:
    """The facts and the query in a line, with an arrow for what each of two heads looks at."""
    axes.set(xlim=(-0.1, 6.7), ylim=(-1.55, 1.55))
    axes.axis("off")
    axes.set_title(title, fontsize=11, loc="left")
    for centre, text in zip(CENTRES, (*facts, QUERY), strict=True):
        asked = text == QUERY
        moves = text in FACTS[:2]
        box = {"boxstyle": "round,pad=0.35", "fc": "#fff3c4" if moves else "white", "ec": "#8a8f98"}
        axes.text(centre, 0, text, ha="center", va="center", fontsize=10.5, bbox=None if asked else box)
    heads = (("positional", positional_slot, -1, "same place"), ("symbolic", symbolic_slot, 1, "same fact"))
    for kind, slot, side, words in heads:
        colour = CLASS_COLOURS[kind]
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "connectionstyle": f"arc3,rad={0.22 * side}"}
        start, end = (CENTRES[-1], 0.25 * side), (CENTRES[slot], 0.42 * side)
        axes.annotate("", xy=end, xytext=start, arrowprops=arrow)
        label = f"{kind} head: {words}" if title.startswith("2") else f"{kind} head"
        axes.text(CENTRES[-1] + 0.6, 1.35 * side, label, ha="right", va="center", color=colour, fontsize=10)


def main() -> None:
    figure, (before, after) = plt.subplots(1, 2, figsize=(11, 2.3), layout="constrained")
    draw_frame(before, "1. As written: both heads look at Bob's fact", FACTS, 1, 1)
    swapped = (FACTS[1], FACTS[0], FACTS[2])
    draw_frame(after, "2. The first two facts change places", swapped, 1, 0)
    figure.savefig(PICTURE, dpi=150)


if __name__ == "__main__":
    main()
