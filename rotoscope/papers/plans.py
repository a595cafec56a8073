"""Ours, and what others published about the same decisions: which heads need the whole cache, what slow planes are for."""

from __future__ import annotations

from rotoscope.papers.claim import beside_untrained, claims
from rotoscope.papers.verdicts import Found
from rotoscope.papers.workshop import Workshop
from rotoscope.results.verdict import BEYOND

TENTH, TASK = 0.1, "repeats"
LOSES_MORE = "the plan loses more"


def frontier(workshop: Workshop) -> Found:
    """Whether the plan is better than random choices at a tenth, and nowhere worse than another ranking."""
    plan = workshop.cache_plan
    others = plan.against_others[plan.against_others["source"] == TASK]
    worse = others[others["verdict"] == LOSES_MORE]
    at = plan.against_random[
        (plan.against_random["source"] == TASK) & (plan.against_random["kept_share"] == TENTH)
    ]
    row = at.iloc[0]
    better = bool(row["verdict"] == BEYOND and row["loss"] < row["null_value"])
    ends = plan.frontier[(plan.frontier["source"] == TASK) & plan.frontier["kept_share"].isin((0.0, 1.0))]
    ends = ends.drop_duplicates("kept_share").set_index("kept_share")["loss"]
    value = (
        f"a tenth kept: loss {row['loss']:.2f}, random choices {row['null_value']:.2f} (all kept {ends[1.0]:.2f}, none "
        f"{ends[0.0]:.2f}); worse than another ranking at {len(worse)} of {len(others)} points"
    )
    return Found(value, better and worse.empty, better or worse.empty)


def slow_planes(workshop: Workshop) -> Found:
    """Whether copying heads lose more without their slowest planes than random heads of the same layers do."""
    effects = workshop.copying.effects
    row = effects[(effects["source"] == "task") & (effects["measure"] == "loss")].iloc[0]
    value = (
        f"loss {row['effect']:+.2f} [{row['low']:.2f}, {row['high']:.2f}] without the slowest quarter of the planes of "
        f"{int(row['gated_heads'])} copying heads, {row['null_value']:+.2f} of random heads of the same layers"
    )
    more = bool(row["effect"] > row["null_value"])
    return Found(value, more and row["verdict"] == BEYOND, False)


CLAIMS = claims(
    {
        "ours-cache-frontier": beside_untrained(frontier),
        "ours-copying-slow-planes": beside_untrained(slow_planes),
    },
    learned=True,
)
