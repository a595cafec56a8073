"""P2: the multi-hop tasks, how models learn them, what their heads do and which frequencies they use."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rotoscope.lab.sequences import training_sequences
from rotoscope.papers.claim import Claim, Finding, judged, one_way
from rotoscope.papers.workshop import Workshop
from rotoscope.results import Dynamics
from rotoscope.results.geometry import TABLE_1
from rotoscope.settings import TrainSettings
from rotoscope.tasks.multihop import solve

__all__ = ["CLAIMS"]

SOLVED = 4800
BEST = {"number": 4800, "letter": 3400}
"""P2's steps of maximal accuracy."""


def _listed(values: list[object]) -> str:
    return "; ".join(str(v) for v in values)


def _verdict(found: list[bool]) -> str:
    """Every seed: reproduced. Some: with a difference. None: not."""
    return judged(all(found), in_part=any(found))


def one_path(workshop: Workshop) -> Finding:
    """Sequences of both tasks, followed step by step from their last token."""
    said, found = [], []
    for task in ("number", "letter"):
        made = training_sequences(TrainSettings(task=task), "test", count=SOLVED)
        paths = [solve(task, sequence.tokens) for sequence in made]  # refuses a second match
        right = sum(p.answer == m.answer and p.path == m.path for p, m in zip(paths, made, strict=True))
        balance = pd.crosstab(made.hops.numpy(), made.answer.numpy()).to_numpy()
        said.append(
            f"{task}: {right:,} of {len(made):,} have the stated path, answers differ by at most {np.ptp(balance)} inside a hop class"
        )
        found.append(right == len(made) and np.ptp(balance) <= 1)
    return Finding("; ".join(said), judged(all(found)))


def _accuracy(workshop: Workshop, task: str) -> Finding:
    runs = workshop.training(task)
    worst = [float(run.test["accuracy"].min()) for run in runs]
    value = _listed([f"{w:.4f}" for w in worst]) + " (lowest over 1 to 4 hops, by seed)"
    return Finding(value, _verdict([w >= 0.995 for w in worst]), rests_on=workshop.trained_where)


def number_accuracy(workshop: Workshop) -> Finding:
    return _accuracy(workshop, "number")


def letter_accuracy(workshop: Workshop) -> Finding:
    return _accuracy(workshop, "letter")


def number_order(workshop: Workshop) -> Finding:
    steps = [run.learned() for run in workshop.training("number")]
    found = [s.notna().all() and s.is_monotonic_increasing and s.is_unique for s in steps]
    said = [", ".join("never" if pd.isna(x) else f"{int(x)}" for x in s) for s in steps]
    return Finding(_listed(list(said)), _verdict(found), rests_on=workshop.trained_where)


def letter_together(workshop: Workshop) -> Finding:
    steps = [run.learned() for run in workshop.training("letter")]
    gaps = [s.max() - s.min() if s.notna().all() else np.inf for s in steps]
    return Finding(
        f"within {_listed([f'{gap:.0f}' for gap in gaps])} steps of each other",
        _verdict([g <= 400 for g in gaps]),
        rests_on=workshop.trained_where,
    )


def best_step(workshop: Workshop) -> Finding:
    """When the mean accuracy over hops first reaches its maximum."""
    best = {
        task: [int(run.metrics.groupby("step")["accuracy"].mean().idxmax()) for run in workshop.training(task)]
        for task in ("number", "letter")
    }
    value = "; ".join(f"{task} {', '.join(str(step) for step in steps)}" for task, steps in best.items())
    near = [0.5 <= step / BEST[task] <= 2 for task, steps in best.items() for step in steps]
    later = min(best["number"]) > max(best["letter"])
    batch = workshop.training("number")[0].run.settings["batch"]
    note = f"P2 prints no batch size; ours is {batch}"
    return Finding(
        value, judged(later and all(near), in_part=later), note=note, rests_on=workshop.trained_where
    )


def _start(run: Dynamics) -> pd.DataFrame:
    table = run.at()
    return table[table["step"] == 0]


def start_uniform(workshop: Workshop) -> Finding:
    runs = [run for task in ("number", "letter") for run in workshop.dynamics(task)]
    lowest = [float(_start(run)[["positional_score", "symbolic_score"]].min().min()) for run in runs]
    value = f"lowest score of any head at step 0: {min(lowest):.3f} over {len(runs)} models"
    return Finding(value, judged(min(lowest) >= 0.95), rests_on=workshop.trained_where)


def entropy_falls(workshop: Workshop) -> Finding:
    runs = [run for task in ("number", "letter") for run in workshop.dynamics(task)]
    drops = []
    for run in runs:
        table = run.at().sort_values("step").groupby(["layer", "head"])["relative_entropy"]
        drops.append((float(table.first().median()), float(table.last().median())))
    first, last = np.mean([a for a, _ in drops]), np.mean([b for _, b in drops])
    return Finding(
        f"median relative entropy {first:.2f} at step 0, {last:.2f} at the end",
        judged(bool(first >= 0.95) and all(b < a - 0.2 for a, b in drops)),
        rests_on=workshop.trained_where,
    )


def _classes(workshop: Workshop, task: str, gamma: float = 0.1) -> list[pd.Series]:
    return [run.pure_from(gamma).set_index("layer")["head_class"] for run in workshop.dynamics(task)]


def _layers(classes: pd.Series, kind: str) -> list[int]:
    return [int(layer) for layer in classes.index[classes == kind]]


def _said(classes: list[pd.Series]) -> str:
    return _listed(
        [f"positional {_layers(c, 'positional')}, symbolic {_layers(c, 'symbolic')}" for c in classes]
    )


def _number_purity(workshop: Workshop, gamma: float, positional: list[int], symbolic: list[int]) -> Finding:
    found = _classes(workshop, "number", gamma)
    exact = [_layers(c, "positional") == positional and _layers(c, "symbolic") == symbolic for c in found]
    alike = [sum(c[:6] == "positional") >= 3 and sum(c[6:] == "symbolic") >= 3 for c in found]
    return Finding(_said(found), judged(all(exact), in_part=all(alike)), rests_on=workshop.trained_where)


def number_purity(workshop: Workshop) -> Finding:
    return _number_purity(workshop, 0.1, [0, 1, 2, 3], list(range(4, 12)))


def number_purity_strict(workshop: Workshop) -> Finding:
    return _number_purity(workshop, 0.05, [1, 2], list(range(5, 12)))


def letter_purity(workshop: Workshop) -> Finding:
    found = _classes(workshop, "letter")
    exact = [_layers(c, "symbolic") == list(range(1, 12)) for c in found]
    alike = [not _layers(c, "positional") and len(_layers(c, "symbolic")) >= 8 for c in found]
    return Finding(_said(found), judged(all(exact), in_part=all(alike)), rests_on=workshop.trained_where)


def letter_depth_order(workshop: Workshop) -> Finding:
    ranks = []
    for run in workshop.dynamics("letter"):
        pure = run.pure_from(0.1).dropna(subset=["first_pure"])
        ranks.append(float(pure["layer"].rank().corr(pure["first_pure"].astype(float).rank())))
    value = f"rank correlation of depth and first pure step {_listed([f'{r:.2f}' for r in ranks])}"
    return Finding(value, _verdict([r >= 0.7 for r in ranks]), rests_on=workshop.trained_where)


def number_waits(workshop: Workshop) -> Finding:
    """Whether h positional heads were pure by the step h hops were learned."""
    shares, said = [], []
    for run in workshop.dynamics("number"):
        table = run.waiting()
        shares.append(float((table["positional_then"] >= table["hops"]).mean()))
        said.append(", ".join(f"{int(row.positional_then)} at {int(row.hops)}" for row in table.itertuples()))
    value = f"pure positional heads when hops are learned: {_listed(list(said))}"
    return Finding(
        value,
        judged(all(s == 1 for s in shares), in_part=all(s >= 0.5 for s in shares)),
        rests_on=workshop.trained_where,
    )


def letter_waits(workshop: Workshop) -> Finding:
    """Whether the letter hops are learned when the last symbolic head becomes pure."""
    late = []
    for run in workshop.dynamics("letter"):
        table = run.waiting()
        known = table[["learned_at", "last_symbolic_at"]].notna().all(axis=None)
        late.append(int(table["last_symbolic_at"].max() - table["learned_at"].max()) if known else np.inf)
    value = f"the last symbolic head follows {_listed([f'{x:.0f}' for x in late])} steps after the last hop is learned"
    return Finding(
        value,
        judged(all(x <= 0 for x in late), in_part=all(x <= 200 for x in late)),
        rests_on=workshop.trained_where,
    )


def alignment(workshop: Workshop) -> Finding:
    found = [
        float(run.alignment().set_index("heads").loc["pure", "rank_correlation"])
        for task in ("number", "letter")
        for run in workshop.dynamics(task)
    ]
    value = f"rank correlation of accuracy and number of pure heads over steps {_listed([f'{x:.2f}' for x in found])}"
    return Finding(
        value,
        judged(all(x >= 0.7 for x in found), in_part=all(x > 0.2 for x in found)),
        rests_on=workshop.trained_where,
    )


def _of_roles(workshop: Workshop, value: str, verdict: str, null: str = "", note: str = "") -> Finding:
    return Finding(value, verdict, null, note, workshop.roles_where)


def index_heads(workshop: Workshop) -> Finding:
    table = workshop.roles("number").table()
    named = table[table["role"] == "Index"]
    value = ", ".join(f"layer {row.layer}: {row.on_pointed:.2f}" for row in named.itertuples()) or "none"
    return _of_roles(
        workshop,
        f"attention on the token pointed at: {value}",
        judged(len(named) >= 4, in_part=len(named) >= 1),
    )


def retrieval_heads(workshop: Workshop) -> Finding:
    table = workshop.roles("letter").table()
    named = table[table["role"] == "Retrieval"]
    value = ", ".join(f"layer {row.layer}: {row.on_pointed:.2f}" for row in named.itertuples()) or "none"
    return _of_roles(
        workshop, f"attention on the matching pair: {value}", judged(len(named) >= 4, in_part=len(named) >= 1)
    )


def reflexive_heads(workshop: Workshop) -> Finding:
    tables = [workshop.roles(task).table() for task in ("number", "letter")]
    named = sum(int((t["role"] == "Reflexive").sum()) for t in tables)
    largest = max(float(t["on_self"].max()) for t in tables)
    deepest = [float(t.set_index("layer")["along_path"].iloc[-1]) for t in tables]
    return _of_roles(
        workshop,
        f"{named} heads; largest share of attention on itself {largest:.2f}",
        judged(named >= 4, in_part=named >= 1),
        note=f"attention of the last layer anywhere along the path: number {deepest[0]:.2f}, letter {deepest[1]:.2f}",
    )


def _flow(workshop: Workshop, task: str) -> Finding:
    found = workshop.roles(task).agreement.groupby("layer")[["agreement", "null_agreement"]].mean()
    inside = found.loc[1:]
    worst = inside["agreement"].min()
    value = f"agreement after each layer {', '.join(f'{x:.2f}' for x in inside['agreement'])}"
    return _of_roles(
        workshop,
        value,
        judged(worst >= 0.95, in_part=float(inside["agreement"].iloc[-1]) >= 0.95),
        f"{inside['null_agreement'].min():.2f} to {inside['null_agreement'].max():.2f}",
    )


def number_flow(workshop: Workshop) -> Finding:
    return _flow(workshop, "number")


def letter_flow(workshop: Workshop) -> Finding:
    return _flow(workshop, "letter")


def hop_order(workshop: Workshop) -> Finding:
    said, found = [], []
    for task in ("number", "letter"):
        one = workshop.roles(task)
        said.append(f"{task}: before layers {', '.join(str(x) for x in one.answer_arrives)}")
        arrives = one.answer_arrives
        reached = bool((arrives <= one.attention["layer"].max() + 1).all())
        found.append(reached and one.in_hop_order() and bool((arrives.diff().dropna() > 0).all()))
    return _of_roles(workshop, "; ".join(said) + " for 1 to 4 hops", judged(all(found), in_part=any(found)))


def shortcuts(workshop: Workshop) -> Finding:
    found = {task: workshop.roles(task).arrivals()["shortcut"] for task in ("number", "letter")}
    value = ", ".join(f"{task}: {of.sum()} of {len(of)} places" for task, of in found.items())
    seen = any(of.any() for of in found.values())
    return _of_roles(workshop, f"answer legible in fewer layers than hops at {value}", judged(seen))


def _table_1(workshop: Workshop, task: str) -> Finding:
    ids = workshop.geometry(task).weighted_ids()
    ours, theirs = ids["product_weighted_id"].to_numpy(), np.array(TABLE_1[task], dtype=float)
    close = np.abs(ours - theirs) <= 5
    same_side = (ours < 16) == (theirs < 16)
    value = ", ".join(f"{x:.0f}" for x in ours)
    note = f"{int(close.sum())} of {len(ours)} layers within 5, {int(same_side.sum())} on the same side of 16; P2 leaves the weights undefined, here softmax of unscaled products"
    verdict = judged(bool(close.all()), in_part=bool(same_side.mean() >= 0.75))
    return Finding(value, verdict, note=note, rests_on=workshop.geometry_where)


def number_table(workshop: Workshop) -> Finding:
    return _table_1(workshop, "number")


def letter_table(workshop: Workshop) -> Finding:
    return _table_1(workshop, "letter")


def index_geometry(workshop: Workshop) -> Finding:
    """In an Index layer all keys point one way, and the query of integer t is turned by t angles."""
    run = workshop.geometry("number")
    layer = int(workshop.roles("number").table().set_index("layer")["on_pointed"].idxmax())
    angle = float(run.weighted_ids().set_index("layer").loc[layer, "dominant_angle"])
    of = run.vectors[run.vectors["layer"] == layer]
    keys = of[of["kind"] == "key"]
    alike = one_way(keys)
    queries = of[(of["kind"] == "query") & of["token"].str.isdigit()].sort_values("token_id")
    phases = np.unwrap(np.arctan2(queries["im"], queries["re"]))
    turn = abs(float(np.polyfit(queries["token"].astype(int), phases, 1)[0]))
    value = f"layer {layer}: keys alike {alike:.2f}, query turned by {turn:.3f} a step (angle {angle:.3f})"
    verdict = judged(alike >= 0.9 and abs(turn - angle) <= 0.05 * angle, in_part=alike >= 0.9)
    return Finding(value, verdict, rests_on=workshop.geometry_where)


CLAIMS = [
    Claim("p2-tasks", "p2", "section 3", "every sequence has exactly one path, and answers are balanced inside each hop class", "by construction", "4,800 sequences of each task, followed step by step, give the stated path; counts of answers differ by at most one", one_path),
    Claim("p2-number-accuracy", "p2", "Fig. 2A", "the number task is learned for 1 to 4 hops", "about 100 %", "at least .995 on 45,600 test sequences for every hop count, every seed", number_accuracy, "gpu"),
    Claim("p2-letter-accuracy", "p2", "Fig. 2A", "the letter task is learned for 1 to 4 hops", "about 100 %", "at least .995 on 45,600 test sequences for every hop count, every seed", letter_accuracy, "gpu"),
    Claim("p2-number-order", "p2", "Fig. 2A", "number hops are learned one after another", "in the order 1, 2, 3, 4", "steps at which 95 % is reached rise with the hops, every seed", number_order, "gpu"),
    Claim("p2-letter-together", "p2", "Fig. 2A", "letter hops are learned all at once", "together", "steps at which 95 % is reached lie within 400, every seed", letter_together, "gpu"),
    Claim("p2-best-step", "p2", "Fig. 2A", "the letter task is mastered before the number task", "best at step 4,800 (number) and 3,400 (letter)", "in this order in every pair of seeds and all within a factor of two; with a difference if only the order", best_step, "gpu"),
    Claim("p2-start", "p2", "Figs. 2B, 6", "all heads begin with both scores high", "(1, 1)", "both scores at least .95 for all heads of all models at step 0", start_uniform, "gpu"),
    Claim("p2-entropy", "p2", "Figs. 2B, 6", "attention begins spread out and becomes focused", "high entropy first", "median relative entropy at least .95 at step 0 and lower by .2 at the end, every model", entropy_falls, "gpu"),
    Claim("p2-number-purity", "p2", "Figs. 2C, 7", "number: the first layers end purely positional, the rest purely symbolic", "layers 0-3 positional, 4-11 symbolic (gamma = .1)", "the same layers; with a difference if at least 3 of layers 0-5 and 3 of 6-11, every seed", number_purity, "gpu"),
    Claim("p2-number-purity-strict", "p2", "Fig. 7", "number: purer heads are fewer", "layers 1-2 positional, 5-11 symbolic (gamma = .05)", "the same layers; with a difference if at least 3 of layers 0-5 and 3 of 6-11, every seed", number_purity_strict, "gpu"),
    Claim("p2-letter-purity", "p2", "Figs. 2C, 7", "letter: no positional head, nearly all purely symbolic", "layers 1-11 symbolic, layer 0 not pure", "the same layers; with a difference if no positional head and at least 8 symbolic, every seed", letter_purity, "gpu"),
    Claim("p2-letter-depth", "p2", "Fig. 2C", "letter: symbolic heads appear in order of depth", "from layer 1 upward", "rank correlation of depth and first pure step at least .7, every seed", letter_depth_order, "gpu"),
    Claim("p2-number-waits", "p2", "section 3.3", "hop h of the number task waits for enough positional heads", "as many as hops", "at least h pure positional heads when h hops are learned; with a difference if for half of the hop counts", number_waits, "gpu"),
    Claim("p2-letter-waits", "p2", "section 3.3", "all letter hops wait for the last symbolic head", "layer 11", "the last pure symbolic head comes no later than the hops; with a difference if within 200 steps", letter_waits, "gpu"),
    Claim("p2-alignment", "p2", "section 3.3", "heads become pure as the model succeeds", "shown", "rank correlation over steps at least .7 in every model; with a difference from .2", alignment, "gpu"),
    Claim("p2-index-heads", "p2", "Fig. 3", "layers of the number model do Index", "one per hop", "at least 4 heads with .9 of their attention on the token pointed at; with a difference from 1", index_heads, "cpu"),
    Claim("p2-retrieval-heads", "p2", "Fig. 3", "layers of the letter model do Retrieval", "one per hop", "at least 4 heads with .9 of their attention on the matching pair; with a difference from 1", retrieval_heads, "cpu"),
    Claim("p2-reflexive-heads", "p2", "Fig. 3", "the remaining layers do Reflexive, symbolically", "identity", "at least 4 heads with .9 of their attention on themselves; with a difference from 1", reflexive_heads, "cpu"),
    Claim("p2-number-flow", "p2", "Fig. 3", "information flows as Index h times, then Reflexive", "shown", "agreement of what can be read with the composition at least .95 after every layer; with a difference if at the end", number_flow, "cpu"),
    Claim("p2-letter-flow", "p2", "Fig. 3", "information flows as Retrieval h times, then Reflexive", "shown", "agreement of what can be read with the composition at least .95 after every layer; with a difference if at the end", letter_flow, "cpu"),
    Claim("p2-hop-order", "p2", "Fig. 3", "the answer arrives in hop order", "one place after another", "blocking experiment: the answer arrives before the last layer, later for more hops and along each path in order, both tasks", hop_order, "cpu"),
    Claim("p2-shortcuts", "p2", "section 3", "some layers do more than one hop", "observed", "an answer legible in fewer layers than hops", shortcuts, "cpu"),
    Claim("p2-number-frequencies", "p2", "Table 1, Fig. 8", "number: fast frequencies in the first layers, slow ones later", "ids 1 2 2 2 10 39 38 38 38 37 37 38", "every layer within 5; with a difference if three quarters lie on the same side of 16", number_table, "cpu"),
    Claim("p2-letter-frequencies", "p2", "Table 1, Fig. 8", "letter: slow frequencies throughout", "ids 18 32 42 37 40 38 41 38 41 39 38 40", "every layer within 5; with a difference if three quarters lie on the same side of 16", letter_table, "cpu"),
    Claim("p2-index-geometry", "p2", "Fig. 4B, 4C", "an Index head has learned the construction: keys alike, queries turned by the integer", "shown", "keys alike to .9, and the query of t turned by t angles to 5 %", index_geometry, "cpu"),
]  # fmt: skip
