"""P2: what the layers of a multi-hop model do, which frequencies they use, and their geometry."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.paper_tables import TABLE_1
from rotoscope.experiments.roles.result import ARRIVED, Roles
from rotoscope.experiments.roles.run import ideal_hop
from rotoscope.ledger.claim import Look, beside_untrained, claims, one_way
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.verdicts import Finding, Found
from rotoscope.ledger.verdicts import beside as beside_null

TASKS = ("number", "letter")
HOPS = 4
NEAR = 5
"""Frequency ids of 64: P2's own late layers differ by as much from one another."""


def pointing_heads(task: str, role: str, target: str, workshop: Workshop) -> Found:
    table = workshop.roles(task).table()
    named = table[table["role"] == role]
    value = ", ".join(f"layer {row.layer}: {row.on_pointed:.2f}" for row in named.itertuples()) or "none"
    return Found(f"attention on {target}: {value}", len(named) >= HOPS, len(named) >= HOPS / 2)


def reflexive_heads(workshop: Workshop) -> Found:
    tables = [workshop.roles(task).table() for task in TASKS]
    named = [int((t["role"] == "Reflexive").sum()) for t in tables]
    largest = max(float(t["on_self"].max()) for t in tables)
    deepest = [float(t.set_index("layer")["along_path"].iloc[-1]) for t in tables]
    along = f"number {deepest[0]:.2f}, letter {deepest[1]:.2f}"
    return Found(
        f"{sum(named)} heads; largest share of attention on itself {largest:.2f}",
        min(named) >= HOPS,
        min(named) >= HOPS / 2,
        f"attention of the last layer anywhere along the path: {along}",
    )


def flow(task: str, workshop: Workshop) -> Found:
    found = workshop.roles(task).agreement.groupby("layer")["agreement"].mean().loc[1:]
    value = f"agreement after each layer {', '.join(f'{x:.2f}' for x in found)}"
    return Found(value, bool(found.min() >= ARRIVED), bool(found.iloc[HOPS - 1 :].min() >= ARRIVED))


def ideal_flow(workshop: Workshop) -> Found:
    """How often the farthest token that can be read is that of the task's own idealised flow, and of the other's."""
    texts: list[str] = []
    own: list[float] = []
    other: list[float] = []
    for task in TASKS:
        farthest = _farthest(workshop.roles(task))
        shares = {kind: _agreeing(farthest, kind) for kind in TASKS}
        own.append(shares.pop(task))
        other += shares.values()
        texts.append(f"{task}: {own[-1]:.2f} as its own, {other[-1]:.2f} as the other task's")
    apart = all(a > b for a, b in zip(own, other, strict=True))
    return Found("; ".join(texts), apart and min(own) >= ARRIVED, apart and min(own) > 0.5)


def _farthest(run: Roles) -> pd.Series:
    """By (layer, hops, path_index), up to as many layers as hops: how far ahead the state can be read."""
    flow = run.flow[run.flow["layer"].between(1, HOPS)]
    read = flow["ahead"].where(flow["accuracy"] >= ARRIVED, -1)
    return read.groupby([flow[name] for name in ("layer", "hops", "path_index")]).max()


def _agreeing(farthest: pd.Series, task: str) -> float:
    ideal = [ideal_hop(task, layer, hops, place) for layer, hops, place in farthest.index]
    return float((farthest.to_numpy() == np.array(ideal)).mean())


def hop_order(workshop: Workshop) -> Found:
    texts, found = [], []
    for task in TASKS:
        run = workshop.roles(task)
        arrives, middle = run.answer_arrives, run.arrivals().query("path_index > 0")["arrived_before_layer"]
        needed = int((middle > 0).sum())
        texts.append(
            f"{task}: before layers {', '.join(str(x) for x in arrives)}, {needed} of {len(middle)} middle places needed"
        )
        reached = bool((arrives <= run.attention["layer"].max() + 1).all())
        later = reached and bool((arrives.diff().dropna() > 0).all())
        found.append(later and run.in_hop_order() and needed == len(middle))
    return Found("; ".join(texts) + " (for 1 to 4 hops)", all(found), any(found))


def shortcuts(workshop: Workshop) -> Found:
    found = {task: workshop.roles(task).arrivals()["shortcut"] for task in TASKS}
    value = ", ".join(f"{task}: {places.sum()} of {len(places)} places" for task, places in found.items())
    seen = any(places.any() for places in found.values())
    return Found(f"answer decodable in fewer layers than hops at {value}", seen)


def table_1(task: str, workshop: Workshop) -> Finding:
    """By the logits a head attends with, as defined; the products before scaling stand beside it."""
    ids, nothing = (shop.geometry(task).weighted_ids() for shop in (workshop, workshop.untrained))
    theirs = np.array(TABLE_1[task], dtype=float)
    found, null = (
        _beside_table(table["weighted_id"].to_numpy(), theirs, nothing["weighted_id"].to_numpy())
        for table in (ids, nothing)
    )
    if len(ids) == len(theirs):
        products = ids["product_weighted_id"].to_numpy()
        beside = f"{', '.join(f'{x:.0f}' for x in products)}, off by {_off(products, theirs):.1f}"
        found = replace(found, note=f"{found.note}; by unscaled products {beside}")
    return beside_null(found, null)


def _beside_table(ours: np.ndarray, theirs: np.ndarray, nothing: np.ndarray) -> Found:
    value = ", ".join(f"{x:.0f}" for x in ours)
    if len(ours) != len(theirs):
        return Found(value, False, note=f"a model of {len(ours)} layers, where P2's has {len(theirs)}")
    close = np.abs(ours - theirs) <= NEAR
    off, most = _off(ours, theirs), _off(nothing, theirs)
    note = f"{int(close.sum())} of {len(ours)} layers within {NEAR}; off by {off:.1f} on average (untrained {most:.1f})"
    return Found(value, bool(close.all()), off <= most / 2, note)


def _off(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).mean()) if len(ours) == len(theirs) else np.inf


def index_geometry(workshop: Workshop) -> Found:
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
    turned = abs(turn - angle) <= 0.05 * angle
    return Found(value, alike >= 0.9 and turned, alike >= 0.9)


LOOKS: dict[str, Look] = {
    "p2-index-heads": partial(pointing_heads, "number", "Index", "the token pointed at"),
    "p2-retrieval-heads": partial(pointing_heads, "letter", "Retrieval", "the matching pair"),
    "p2-reflexive-heads": reflexive_heads,
    "p2-number-flow": partial(flow, "number"),
    "p2-letter-flow": partial(flow, "letter"),
    "p2-ideal-flow": ideal_flow,
    "p2-hop-order": hop_order,
    "p2-shortcuts": shortcuts,
    "p2-index-geometry": index_geometry,
}
TABLES = {f"p2-{task}-frequencies": partial(table_1, task) for task in TASKS}
CLAIMS = claims({name: beside_untrained(look) for name, look in LOOKS.items()} | TABLES, learned=True)
