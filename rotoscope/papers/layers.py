"""P2: what the layers of a multi-hop model do, which frequencies they use, and their geometry."""

from __future__ import annotations

from functools import partial

import numpy as np

from rotoscope.papers.claim import NOT, Finding, claims, judged, one_way
from rotoscope.papers.tables import TABLE_1
from rotoscope.papers.workshop import Workshop

TASKS = ("number", "letter")


def pointing_heads(task: str, role: str, target: str, workshop: Workshop) -> Finding:
    table = workshop.roles(task).table()
    named = table[table["role"] == role]
    value = ", ".join(f"layer {row.layer}: {row.on_pointed:.2f}" for row in named.itertuples()) or "none"
    return Finding(f"attention on {target}: {value}", judged(len(named) >= 4, in_part=len(named) >= 1))


def reflexive_heads(workshop: Workshop) -> Finding:
    tables = [workshop.roles(task).table() for task in TASKS]
    named = sum(int((t["role"] == "Reflexive").sum()) for t in tables)
    largest = max(float(t["on_self"].max()) for t in tables)
    deepest = [float(t.set_index("layer")["along_path"].iloc[-1]) for t in tables]
    along = f"number {deepest[0]:.2f}, letter {deepest[1]:.2f}"
    return Finding(
        f"{named} heads; largest share of attention on itself {largest:.2f}",
        judged(named >= 4, in_part=named >= 1),
        note=f"attention of the last layer anywhere along the path: {along}",
    )


def flow(task: str, workshop: Workshop) -> Finding:
    found = workshop.roles(task).agreement.groupby("layer")[["agreement", "null_agreement"]].mean()
    inside = found.loc[1:]
    worst = inside["agreement"].min()
    return Finding(
        f"agreement after each layer {', '.join(f'{x:.2f}' for x in inside['agreement'])}",
        judged(worst >= 0.95, in_part=float(inside["agreement"].iloc[-1]) >= 0.95),
        f"{inside['null_agreement'].min():.2f} to {inside['null_agreement'].max():.2f}",
    )


def hop_order(workshop: Workshop) -> Finding:
    texts, found = [], []
    for task in TASKS:
        run = workshop.roles(task)
        arrives = run.answer_arrives
        texts.append(f"{task}: before layers {', '.join(str(x) for x in arrives)}")
        reached = bool((arrives <= run.attention["layer"].max() + 1).all())
        found.append(reached and run.in_hop_order() and bool((arrives.diff().dropna() > 0).all()))
    return Finding("; ".join(texts) + " for 1 to 4 hops", judged(all(found), in_part=any(found)))


def shortcuts(workshop: Workshop) -> Finding:
    found = {task: workshop.roles(task).arrivals()["shortcut"] for task in TASKS}
    value = ", ".join(f"{task}: {places.sum()} of {len(places)} places" for task, places in found.items())
    seen = any(places.any() for places in found.values())
    return Finding(f"answer decodable in fewer layers than hops at {value}", judged(seen))


def table_1(task: str, workshop: Workshop) -> Finding:
    ids = workshop.geometry(task).weighted_ids()
    ours, theirs = ids["product_weighted_id"].to_numpy(), np.array(TABLE_1[task], dtype=float)
    value = ", ".join(f"{x:.0f}" for x in ours)
    if len(ours) != len(theirs):
        return Finding(value, NOT, note=f"a model of {len(ours)} layers, where P2's has {len(theirs)}")
    close = np.abs(ours - theirs) <= 5
    same_side = (ours < 16) == (theirs < 16)
    note = (
        f"{int(close.sum())} of {len(ours)} layers within 5, {int(same_side.sum())} on the same side of 16; P2 "
        "leaves the weights undefined, here softmax of unscaled products"
    )
    verdict = judged(bool(close.all()), in_part=bool(same_side.mean() >= 0.75))
    return Finding(value, verdict, note=note)


def index_geometry(workshop: Workshop) -> Finding:
    """In an Index layer all keys point one way, and the query of integer t is turned by t angles."""
    run = workshop.geometry("number")
    layer = int(workshop.roles("number").table().set_index("layer")["on_pointed"].idxmax())
    angle = float(run.weighted_ids().set_index("layer").loc[layer, "dominant_angle"])
    vectors = run.vectors[run.vectors["layer"] == layer]
    alike = one_way(vectors[vectors["kind"] == "key"])
    queries = vectors[(vectors["kind"] == "query") & vectors["token"].str.isdigit()].sort_values("token_id")
    phases = np.unwrap(np.arctan2(queries["im"], queries["re"]))
    turn = abs(float(np.polyfit(queries["token"].astype(int), phases, 1)[0]))
    value = f"layer {layer}: keys alike {alike:.2f}, query turned by {turn:.3f} a step (angle {angle:.3f})"
    return Finding(value, judged(alike >= 0.9 and abs(turn - angle) <= 0.05 * angle, in_part=alike >= 0.9))


CLAIMS = claims(
    {
        "p2-index-heads": partial(pointing_heads, "number", "Index", "the token pointed at"),
        "p2-retrieval-heads": partial(pointing_heads, "letter", "Retrieval", "the matching pair"),
        "p2-reflexive-heads": reflexive_heads,
        "p2-number-flow": partial(flow, "number"),
        "p2-letter-flow": partial(flow, "letter"),
        "p2-hop-order": hop_order,
        "p2-shortcuts": shortcuts,
        "p2-number-frequencies": partial(table_1, "number"),
        "p2-letter-frequencies": partial(table_1, "letter"),
        "p2-index-geometry": index_geometry,
    }
)
