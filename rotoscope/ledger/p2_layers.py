"""P2: what the layers of a multi-hop model do, which frequencies they use, and their geometry."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.roles.result import ARRIVED, EQUAL_WEIGHTS, ROLE, TABLE_1, Geometry, Roles, ideal_hop
from rotoscope.ledger.claim import BesideModels, Look, claims, outcomes_of
from rotoscope.ledger.claim_runs import ClaimRuns, Runs
from rotoscope.ledger.verdicts import Finding, Outcome, beside, resultant

TASKS = ("number", "letter")
HOPS, LAYERS = 4, 12
NEAR = 5
"""Frequency ids of 64: P2's own late layers differ by as much from one another."""
KEYS_ALIKE, TURNED = 0.9, 0.05


def pointing_heads(task: str, target: str, runs: Runs) -> Outcome:
    """Heads whose attention lies ahead on the path, where the states already hold what is pointed at."""
    ahead = _ahead_on_path(runs.roles(task))
    named = ahead[ahead >= ROLE]
    value = ", ".join(f"layer {layer}: {share:.2f}" for layer, share in named.items()) or "none"
    note = f"largest of all layers {ahead.max():.2f}"
    return Outcome(
        f"attention on {target} and what follows it: {value}", len(named) >= HOPS, len(named) >= HOPS / 2, note
    )


def _ahead_on_path(run: Roles) -> pd.Series:
    """By layer, the share of attention on the tokens ahead on the path, at the places that point on."""
    table = run.table().groupby("layer").first()
    return table["along_path"] - table["on_self"]


def reflexive_heads(runs: Runs) -> Outcome:
    tables = [runs.roles(task).table() for task in TASKS]
    named = [int((t["role"] == "Reflexive").sum()) for t in tables]
    largest = max(float(t["on_self"].max()) for t in tables)
    along = ", ".join(
        f"{task} {t.set_index('layer')['along_path'].iloc[-1]:.2f}"
        for task, t in zip(TASKS, tables, strict=True)
    )
    return Outcome(
        f"{sum(named)} heads; largest share of attention on itself {largest:.2f}",
        min(named) >= HOPS,
        min(named) >= HOPS / 2,
        f"attention of the last layer anywhere along the path: {along}",
    )


def flow(task: str, runs: Runs) -> Outcome:
    """How often a token can be read that is as far along the path as the composition has come, or farther."""
    farthest = _farthest(runs.roles(task), LAYERS)
    ideal = np.array([ideal_hop(task, layer, hops, place) for layer, hops, place in farthest.index])
    reached = pd.Series(farthest.to_numpy() >= ideal, index=farthest.index).groupby("layer").mean()
    value = f"as far or farther after each layer {', '.join(f'{x:.2f}' for x in reached)}"
    return Outcome(value, bool(reached.min() >= ARRIVED), bool(reached.iloc[HOPS - 1 :].min() >= ARRIVED))


def ideal_flow(runs: Runs) -> Outcome:
    """How often the farthest token that can be read is that of the task's own idealised flow, and of the other's."""
    texts: list[str] = []
    own: list[float] = []
    other: list[float] = []
    for task in TASKS:
        farthest = _farthest(runs.roles(task), HOPS)
        shares = {kind: _agreeing(farthest, kind) for kind in TASKS}
        own.append(shares.pop(task))
        other += shares.values()
        texts.append(f"{task}: {own[-1]:.2f} as its own, {other[-1]:.2f} as the other task's")
    apart = all(a > b for a, b in zip(own, other, strict=True))
    return Outcome("; ".join(texts), apart and min(own) >= ARRIVED, apart and min(own) > 0.5)


def _farthest(run: Roles, layers: int) -> pd.Series:
    """By (layer, hops, path_index), after each of the first layers: how far ahead the state can be read."""
    rows = run.flow[run.flow["layer"].between(1, layers)]
    read = rows["ahead"].where(rows["accuracy"] >= ARRIVED, -1)
    return read.groupby([rows[name] for name in ("layer", "hops", "path_index")]).max()


def _agreeing(farthest: pd.Series, task: str) -> float:
    ideal = [ideal_hop(task, layer, hops, place) for layer, hops, place in farthest.index]
    return float((farthest.to_numpy() == np.array(ideal)).mean())


def hop_order(runs: Runs) -> Outcome:
    texts, ordered = [], []
    for task in TASKS:
        run = runs.roles(task)
        arrives, middle = run.answer_arrives, run.arrivals().query("path_index > 0")["arrived_before_layer"]
        needed = int((middle > 0).sum())
        texts.append(
            f"{task}: before layers {', '.join(str(x) for x in arrives)}, {needed} of {len(middle)} middle places needed"
        )
        reached = bool((arrives <= run.attention["layer"].max() + 1).all())
        later = reached and bool((arrives.diff().dropna() > 0).all())
        ordered.append(later and run.in_hop_order() and needed == len(middle))
    return Outcome("; ".join(texts) + " (for 1 to 4 hops)", all(ordered), any(ordered))


def shortcuts(runs: Runs) -> Outcome:
    """Places with two hops or more to go: those where the answer can be read after fewer layers than hops."""
    tables = {task: runs.roles(task).arrivals() for task in TASKS}
    cases = {task: table.loc[table["hops_left"] >= 2, "shortcut"] for task, table in tables.items()}
    value = ", ".join(f"{task} {places.sum()} of {len(places)} places" for task, places in cases.items())
    return Outcome(
        f"answer decodable in fewer layers than hops: {value}",
        any(places.all() for places in cases.values()),
        any(places.mean() > 0.5 for places in cases.values()),
    )


def table_1(task: str, runs: ClaimRuns) -> Finding:
    """By the scaled logits a head attends with, in the layers where these give frequencies unequal weights."""
    untrained = runs.nulls[0].geometry(task)

    def look(models: Runs) -> Outcome:
        return _frequencies(task, models.geometry(task), untrained)

    return beside(look(runs), outcomes_of(runs.nulls, look, twins=True))


def _frequencies(task: str, run: Geometry, untrained: Geometry) -> Outcome:
    printed = np.array(TABLE_1[task], dtype=float)
    table = run.weighted_ids()
    ids, nothing = table["weighted_id"].to_numpy(), untrained.weighted_ids()["weighted_id"].to_numpy()
    value = ", ".join(f"{x:.0f}" for x in ids)
    if len(ids) != len(printed):
        return Outcome(value, False, note=f"a model of {len(ids)} layers, where P2's has {len(printed)}")
    defined = run.weight_entropy().to_numpy() < EQUAL_WEIGHTS
    count = int(defined.sum())
    product = ", ".join(f"{x:.0f}" for x in table["product_weighted_id"])
    note = f"weights are defined in {count} of {len(ids)} layers; by unscaled products {product}"
    few = "the scaled weights are all but equal in most layers" if count <= len(ids) / 2 else ""
    if not count:
        return Outcome(value, False, note=note, undecided=few)
    far = np.abs(ids - printed)[defined]
    random = np.abs(nothing - printed)[defined].mean()
    note = f"of {count} layers with unequal weights {int((far <= NEAR).sum())} lie within {NEAR}, off by {far.mean():.1f} on average (untrained {random:.1f}); {note}"
    return Outcome(value, bool((far <= NEAR).all()), bool(far.mean() <= random / 2), note, undecided=few)


def index_geometry(runs: Runs) -> Outcome:
    """In every layer that attends along the path all keys point one way, and the query of t is turned by t angles."""
    run = runs.geometry("number")
    ahead = _ahead_on_path(runs.roles("number"))
    layers = [int(layer) for layer in ahead.index[ahead >= ROLE]]
    angles = run.weighted_ids().set_index("layer")["dominant_angle"]
    rows = {
        layer: _construction(run.vectors[run.vectors["layer"] == layer], float(angles[layer]))
        for layer in layers
    }
    texts = [
        f"layer {k}: keys {alike:.2f}, turn {turn:.3f} of {angles[k]:.3f}" for k, (alike, turn) in rows.items()
    ]
    alike = [keys >= KEYS_ALIKE for keys, _ in rows.values()]
    built = [keys >= KEYS_ALIKE and abs(turn / angles[k] - 1) <= TURNED for k, (keys, turn) in rows.items()]
    value = f"{sum(built)} of {len(built)} Index layers; {'; '.join(texts)}" if rows else "no Index layer"
    return Outcome(value, bool(built) and all(built), bool(alike) and (sum(built) >= len(built) / 2))


def _construction(vectors: pd.DataFrame, angle: float) -> tuple[float, float]:
    """How far a layer's keys are alike, and by how much the query turns per integer, in its dominant plane."""
    queries = vectors[(vectors["kind"] == "query") & vectors["token"].str.isdigit()].sort_values("token_id")
    phases = np.unwrap(np.arctan2(queries["im"], queries["re"]))
    turn = abs(float(np.polyfit(queries["token"].astype(int), phases, 1)[0]))
    return resultant(vectors[vectors["kind"] == "key"]), turn


LOOKS: dict[str, Look] = {
    "p2-index-heads": partial(pointing_heads, "number", "the token pointed at"),
    "p2-retrieval-heads": partial(pointing_heads, "letter", "the matching pair"),
    "p2-reflexive-heads": reflexive_heads,
    "p2-number-flow": partial(flow, "number"),
    "p2-letter-flow": partial(flow, "letter"),
    "p2-ideal-flow": ideal_flow,
    "p2-hop-order": hop_order,
    "p2-shortcuts": shortcuts,
    "p2-index-geometry": index_geometry,
}
CLAIMS = claims(
    {
        **{name: BesideModels(look, twins=True) for name, look in LOOKS.items()},
        **{f"p2-{task}-frequencies": partial(table_1, task) for task in TASKS},
    }
)
