"""What a model loses when only some of its planes rotate, and which planes a plan keeps."""

from __future__ import annotations

from matplotlib.figure import Figure

from rotoscope.experiments.plan.rotation_result import EFFECT, RANDOM, RotationPlan
from rotoscope.plotting.palette import NULL, SERIES
from rotoscope.plotting.style import TEXT_WIDTH, caption, colour_map, drawing, shared_legend

MARKERS = "osD^vP*X"
DASHES = {True: "-", False: "--"}
"""Of the ranking by effect, and of baselines."""


def rotation_frontier(run: RotationPlan) -> Figure:
    """Loss against the number of planes that rotate, a panel per source, a line per ranking."""
    rankings = list(dict.fromkeys(run.selection["ranking"]))
    hues = dict(zip([name for name in rankings if name != RANDOM], SERIES * 2, strict=False)) | {RANDOM: NULL}
    own = None if run.nothing_to_choose else run.chosen
    with drawing(TEXT_WIDTH, 3.6, 1, len(run.sources)) as (figure, panels):
        at = sorted({int(planes) for planes in run.summary["planes"]})
        for axes, source in zip(panels, run.sources, strict=True):
            for k, ranking in enumerate(rankings):
                rows = run.curve(ranking)
                rows = rows[rows["source"] == source]
                x, mine = [at.index(planes) for planes in rows["planes"]], ranking == EFFECT
                look = {
                    "color": hues[ranking],
                    "marker": MARKERS[k % len(MARKERS)],
                    "ms": 3.5,
                    "mfc": None if mine else "white",
                }
                name = ranking.replace("_", " ") + (" (the plan)" if ranking == own else "")
                axes.plot(x, rows["loss"], DASHES[mine], lw=2.0 if ranking == own else 1.1, label=name, **look)
                if ranking in (own, RANDOM):
                    axes.fill_between(
                        x, rows["loss_low"], rows["loss_high"], color=hues[ranking], alpha=0.15, lw=0
                    )
            axes.axvline(at.index(run.planes), color="#999999", lw=0.8, ls=":")
            axes.set_title(source, loc="left")
            axes.set_xticks(range(len(at)), [str(planes) for planes in at])
            top = float(run.summary.loc[run.summary["source"] == source, "loss"].max())
            axes.set(xlabel="planes that rotate", ylim=(0, 1.08 * top))
        panels[0].set_ylabel("loss")
        shared_legend(figure, panels[0], ncols=4)
    prompts = int(run.summary["prompts"].min())
    return caption(
        figure,
        f"{run.name}; {prompts} prompts of each source, shaded: 95 % intervals of the plan and of random planes; dashed: "
        "baselines; planes that do not rotate are stopped, not removed",
    )


def rotation_map(run: RotationPlan) -> Figure:
    """How many key heads of every layer keep the rotation of each frequency."""
    kept = run.kept()
    with drawing(TEXT_WIDTH, 0.9 + 0.09 * len(kept) + 0.8) as (figure, [axes]):
        heads = int(run.plan["key_head"].max()) + 1
        look = {"aspect": "auto", "origin": "lower", "interpolation": "nearest"}
        extent = (0.5, kept.shape[1] + 0.5, -0.5, len(kept) - 0.5)
        image = axes.imshow(kept, cmap=colour_map("#B4500A"), vmin=0, vmax=heads, extent=extent, **look)
        axes.set(xlabel="frequency id (1 = fastest)", ylabel="layer")
        figure.colorbar(
            image, ax=axes, label="key heads that keep it", ticks=range(heads + 1), fraction=0.04, pad=0.02
        )
    by = "" if run.nothing_to_choose else f", by {run.chosen}"
    return caption(figure, f"{run.name}; {run.planes} of {run.total} planes of every key head rotate{by}")
