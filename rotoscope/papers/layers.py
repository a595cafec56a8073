"""P2: what the layers of a multi-hop model do, which frequencies they use, and their geometry."""

from __future__ import annotations

from functools import partial

import numpy as np

from rotoscope.papers.claim import NOT, Claim, Finding, judged, one_way
from rotoscope.papers.tables import TABLE_1
from rotoscope.papers.workshop import Workshop

__all__ = ["CLAIMS"]

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
    note = (
        f"attention of the last layer anywhere along the path: number {deepest[0]:.2f}, letter {deepest[1]:.2f}"
    )
    return Finding(
        f"{named} heads; largest share of attention on itself {largest:.2f}",
        judged(named >= 4, in_part=named >= 1),
        note=note,
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


CLAIMS = [
    Claim(
        id="p2-index-heads",
        paper="p2",
        where="Fig. 3",
        statement="layers of the number model do Index",
        paper_value="one per hop",
        rule="at least 4 heads with .9 of their attention on the token pointed at; with a difference from 1",
        needs="roles",
        compute=partial(pointing_heads, "number", "Index", "the token pointed at"),
    ),
    Claim(
        id="p2-retrieval-heads",
        paper="p2",
        where="Fig. 3",
        statement="layers of the letter model do Retrieval",
        paper_value="one per hop",
        rule="at least 4 heads with .9 of their attention on the matching pair; with a difference from 1",
        needs="roles",
        compute=partial(pointing_heads, "letter", "Retrieval", "the matching pair"),
    ),
    Claim(
        id="p2-reflexive-heads",
        paper="p2",
        where="Fig. 3",
        statement="the remaining layers do Reflexive, symbolically",
        paper_value="identity",
        rule="at least 4 heads with .9 of their attention on themselves; with a difference from 1",
        needs="roles",
        compute=reflexive_heads,
    ),
    Claim(
        id="p2-number-flow",
        paper="p2",
        where="Fig. 3",
        statement="information flows as Index h times, then Reflexive",
        paper_value="shown",
        rule=(
            "agreement of what can be read with the composition at least .95 after every layer; with a "
            "difference if at the end"
        ),
        needs="roles",
        compute=partial(flow, "number"),
    ),
    Claim(
        id="p2-letter-flow",
        paper="p2",
        where="Fig. 3",
        statement="information flows as Retrieval h times, then Reflexive",
        paper_value="shown",
        rule=(
            "agreement of what can be read with the composition at least .95 after every layer; with a "
            "difference if at the end"
        ),
        needs="roles",
        compute=partial(flow, "letter"),
    ),
    Claim(
        id="p2-hop-order",
        paper="p2",
        where="Fig. 3",
        statement="the answer arrives in hop order",
        paper_value="one place after another",
        rule=(
            "blocking experiment: the answer arrives before the last layer, later for more hops and along "
            "each path in order, both tasks"
        ),
        needs="roles",
        compute=hop_order,
    ),
    Claim(
        id="p2-shortcuts",
        paper="p2",
        where="section 3",
        statement="some layers do more than one hop",
        paper_value="observed",
        rule="an answer decodable in fewer layers than hops",
        needs="roles",
        compute=shortcuts,
    ),
    Claim(
        id="p2-number-frequencies",
        paper="p2",
        where="Table 1, Fig. 8",
        statement="number: fast frequencies in the first layers, slow ones later",
        paper_value="ids 1 2 2 2 10 39 38 38 38 37 37 38",
        rule="every layer within 5; with a difference if three quarters lie on the same side of 16",
        needs="geometry",
        compute=partial(table_1, "number"),
    ),
    Claim(
        id="p2-letter-frequencies",
        paper="p2",
        where="Table 1, Fig. 8",
        statement="letter: slow frequencies throughout",
        paper_value="ids 18 32 42 37 40 38 41 38 41 39 38 40",
        rule="every layer within 5; with a difference if three quarters lie on the same side of 16",
        needs="geometry",
        compute=partial(table_1, "letter"),
    ),
    Claim(
        id="p2-index-geometry",
        paper="p2",
        where="Fig. 4B, 4C",
        statement="an Index head has learned the construction: keys alike, queries turned by the integer",
        paper_value="shown",
        rule="keys alike to .9, and the query of t turned by t angles to 5 %",
        needs="geometry",
        compute=index_geometry,
    ),
]
