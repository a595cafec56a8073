"""The training tab: heads, their classes and the accuracy over the steps of a training, finished or going on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.experiments.ask.result import OneHopRun
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.writers_result import NOBODY, ONE, READER, writers_in_words
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.profile.across_tasks import Agreement
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.roles.geometry import Geometry
from rotoscope.experiments.roles.result import Roles
from rotoscope.experiments.steering import Steering
from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.experiments.train.restrictions import Restrictions
from rotoscope.report.columns import clean, column, columns, curve, packed, table
from rotoscope.report.plans import plan_tab
from rotoscope.report.reported_run import ReportedRun
from rotoscope.report.sweeps import sweep_tables
from rotoscope.scores.classes import GAMMA, pure_regions, purity_codes
from rotoscope.stats.aggregate import ENDS, LEAST_MASS, SCORES
from rotoscope.sweeps.result import Sweep

Tab = dict[str, Any]
SHOWN_SCORES = (*SCORES, "relative_entropy")


def training_tab(found: ReportedRun) -> Tab | None:
    """Scores of every head at every step, when heads became pure, how far they separated, and the accuracy beside them."""
    scores = found.tables.get("scores")
    accuracy = found.tables.get("accuracy", found.tables.get("metrics"))
    if scores is None and accuracy is None:
        return None
    series = []
    if scores is not None and len(scores):
        run = Dynamics(found.run, found.tables)
        for (queries, tau), rows in scores.groupby(["queries", "tau"], sort=False):
            asked = {"queries": clean(queries), "tau": clean(float(tau), 12)}
            series.append({**asked, **_track(rows), **_became(run, queries, tau)})
    curves = []
    if accuracy is not None and "hops" in accuracy:
        for hops, rows in accuracy.sort_values("step").groupby("hops"):
            curves.append({"hops": int(hops), **columns(rows, ("step", "accuracy"))})
    return {"series": series, "accuracy": curves, "gamma": GAMMA, "pure": pure_regions()}


def _track(rows: pd.DataFrame) -> Tab:
    """Scores packed as [step, head]; of every step one digit per head: the place of its class among all, a space for none."""
    track = rows.set_index(["step", "layer", "head"])
    track = track[~track.index.duplicated()].unstack(["layer", "head"]).sort_index()
    wide = {name: track[name].sort_index(axis=1) for name in SHOWN_SCORES if name in rows}
    first = wide["positional_score"]
    codes = purity_codes(first, wide["symbolic_score"])
    little = {}
    if "swapped_mass" in rows:
        mass = track["swapped_mass"].sort_index(axis=1).to_numpy(dtype=float)
        little["little_at_stake"] = _digits((mass < LEAST_MASS) & (codes >= 0))
    return {
        **{name: packed(t.to_numpy(dtype=float).ravel(), 16) for name, t in wide.items()},
        "head_class": _digits(codes),
        **little,
        "steps": [int(step) for step in first.index],
        "layer": [int(layer) for layer, _ in first.columns],
        "head": [int(head) for _, head in first.columns],
    }


def _digits(codes: np.ndarray) -> list[str]:
    return ["".join(str(code) if code >= 0 else " " for code in step) for step in codes.astype(int).tolist()]


def _became(run: Dynamics, queries: str, tau: float) -> Tab:
    """When each head became pure, in the order of the heads, and by step how far heads and null have separated."""
    pure = run.pure_from(queries=queries, tau=tau).sort_values(["layer", "head"])
    apart = run.separation(queries=queries, tau=tau)
    return columns(pure, ("first_pure", "pure_since")) | {
        "separated": {name: column(apart[name]) for name in apart if name != "step"}
    }


# What each kind of run shows beside its heads.


def depths_tab(found: ReportedRun) -> Tab | None:
    """Both scores of every head at every depth, with intervals, and the heads that turn."""
    run = SwapDepths(found.run, found.tables)
    depths = run.depths
    if not depths:
        return None
    tab: Tab = {"depths": depths, "at": []}
    for tau in run.taus:
        heads = run.by_leaning(tau)[["layer", "head"]]
        curves = run.curves[~run.curves["own"] & (run.curves["tau"] == tau)]
        wide = curves.pivot(index=["layer", "head"], columns="depth")
        wide = wide.reindex(pd.MultiIndex.from_frame(heads))
        one: Tab = {name: column(heads[name]) for name in heads}
        for name in (*SCORES, *ENDS, "covered_share"):
            one[name] = packed(wide[name].reindex(columns=depths).to_numpy(dtype=float).ravel(), 16)
        title = "Heads that follow at their own layer and stay in place below it (positional / symbolic)"
        tab["at"].append(one | {"turning": table(run.turning(tau), title, most=None)})
    return tab


def writers_tab(found: ReportedRun) -> Tab | None:
    """Every positional head that was silenced and every carried head that was asked, with the effect between them."""
    run = SwapDepths(found.run, found.tables)
    if "writers" not in found.tables:
        return None
    summary = run.writers_summary()
    if not len(summary):
        return {"nobody": NOBODY}
    words = writers_in_words(summary)
    single, edges = summary[summary["condition"] == ONE], run.writer_graph()
    names = {"writer": ["layer", "head"], "reader": READER}
    pairs = {
        name: [f"{layer}:{head}" for layer, head in single[keys].to_numpy()] for name, keys in names.items()
    }
    told = set(map(tuple, edges[[*READER, "layer", "head"]].to_numpy()))
    beyond = [tuple(row) in told for row in single[[*READER, "layer", "head"]].to_numpy()]
    title = "What carried heads lose of their place without positional heads below them"
    note = (
        "Effect: what the positional score loses and the symbolic score gains with the prompt permuted, in the mean; 1: the head "
        "follows what was moved. Controls: as many other heads of the same layers, drawn at random."
    )
    return {
        **pairs,
        "effect": column(single["effect"]),
        "beyond": beyond,
        "readers": list(dict.fromkeys(words["reader"])),
        "table": table(words, title, note, most=None),
    }


def lengths_tab(found: ReportedRun) -> Tab:
    """Accuracy by length for every model, what the heads do there, and what was predicted."""
    run = Lengths(found.run, found.tables)
    curves = []
    for (model, task), rows in run.curve().groupby(["model", "task"], sort=False):
        curves.append({"name": clean(model), "group": clean(task), **curve(rows, "length", "accuracy")})
    tables: list[tuple[str, str, Callable[[], Any]]] = [
        ("predicted", "Predicted and measured lengths at which accuracy falls below a level", run.predictions),
        ("heads", "Does the discrepancy of a head decay with length?", run.decay),
        (
            "heads",
            "Per head, the power of the length with which its discrepancy and its gap change",
            run.exponents,
        ),
        (
            "heads",
            "Discrepancy by class at training length: mean, worst query, 10 %, 50 %, 90 % of them",
            run.discrepancies,
        ),
    ]
    made = [(title, make) for need, title, make in tables if need in found.tables]
    return {"curves": curves, "x": "length (tokens)", "tables": _made(found, made)}


def onehop_tab(found: ReportedRun) -> Tab:
    run = OneHopRun(found.run, found.tables)
    accuracy = run.accuracy()
    title = "Accuracy by length; free: the model's own answer, restricted: the likeliest candidate"
    curves = []
    for (task, scoring), rows in accuracy.groupby(["task", "scoring"], sort=False):
        name = f"{task}, {scoring}"
        curves.append({"name": name, "group": clean(task), **curve(rows, "length", "mean")})
    return {
        "curves": curves,
        "x": "length (facts)",
        "tables": [table(accuracy, title)],
    }


def canonical_tab(found: ReportedRun) -> Tab:
    """Final accuracy by angle, and how it grew."""
    run = Canonical(found.run, found.tables)
    final = run.final()
    experiments = []
    for name in run.experiments:
        rows = final[final["experiment"] == name].sort_values("theta", ascending=False)
        grown = run.accuracy[run.accuracy["experiment"] == name]
        wide = grown.pivot_table(index="theta", columns="step", values="accuracy").sort_index(ascending=False)
        experiments.append(
            {
                "name": name,
                "theta": [clean(float(theta), 4) for theta in rows["theta"]],
                **columns(rows, ("mean", "std", "count")),
                "steps": [int(step) for step in wide.columns],
                "step_theta": [clean(float(theta), 4) for theta in wide.index],
                "by_step": clean(wide.to_numpy().tolist()),
            }
        )
    tables: list[tuple[str, Callable[[], pd.DataFrame]]] = []
    if "scores" in found.tables:
        tables.append(("Scores of the trained heads", lambda: run.scores))
    if "positions" in found.tables:
        tables.append(
            ("Does accuracy rise or fall away from the middle? (rank correlations)", run.position_trends)
        )
    return {"experiments": experiments, "tables": _made(found, tables)}


THEORY = ("statements", "Statements", ("name", "verdict", "source", "claim", "figure"))
LEDGER = (
    "ledger",
    "Claims",
    ("id", "verdict", "paper", "place", "statement", "paper_value", "our_value", "null_value"),
)


def verdicts_tab(name: str, title: str, wanted: Sequence[str], found: ReportedRun) -> Tab | None:
    """A table with a verdict in every row, those columns first that one reads first."""
    if name not in found.tables:
        return None
    rows = found.tables[name]
    first = [column for column in wanted if column in rows]
    order = [*first, *(column for column in rows if column not in first)]
    counts = {str(verdict): int(number) for verdict, number in rows["verdict"].value_counts().items()}
    return {"verdicts": counts, "statements": table(rows[order], title, most=None), "front": len(first)}


TABS: dict[str, dict[str, Callable[[ReportedRun], Tab | None]]] = {
    "depths": {"depths": depths_tab, "writers": writers_tab},
    "dynamics": {"training": training_tab},
    "training": {"training": training_tab},
    "lengths": {"lengths": lengths_tab},
    "onehop": {"lengths": onehop_tab},
    "canonical": {"canonical": canonical_tab},
    "cache-plan": {"plan": plan_tab},
    "rotation-plan": {"plan": plan_tab},
    "theory": {"theory": partial(verdicts_tab, *THEORY)},
    "ledger": {"ledger": partial(verdicts_tab, *LEDGER)},
}

SHOWN_ELSEWHERE = {
    "profile": {"heads", "frequencies", "nulls", "prompts", "prompt_frequencies", "null_prompts",
                "null_prompt_frequencies", "traces", "vectors", "queries", "known_heads", "attention", "shown_prompt", "null_known_heads",
                "input_prompts", "null_input_prompts"},
    "depths": {"heads", "turns", "attention", "shown_prompt", "prompts", "null_prompts", "writers"},
    "theory": {"statements"},
    "ledger": {"ledger"},
    "dynamics": {"scores", "accuracy", "points", "null_scores", "weights"},
    "training": {"scores", "metrics"},
    "lengths": {"heads"},
    "cache-plan": {"points"},
    "rotation-plan": {"points"},
    "canonical": {"accuracy", "positions", "vectors", "scores"},
    "sweep": {"items", "heads", "classes"},
}  # fmt: skip


def tables_tab(found: ReportedRun) -> Tab | None:
    """Summaries first, then the tables as they are stored, where no other tab shows them."""
    made = sweep_tables(found) if found.kind == Sweep.kind else _made(found, _summaries(found))
    for name, stored in found.tables.items():
        if name not in SHOWN_ELSEWHERE.get(found.kind, set()) and len(stored):
            shown = found.attempt(f"the table '{name}'", partial(table, stored, name.replace("_", " ")))
            made += [shown] if shown else []
    return {"tables": made} if made else None


KINDS_BY_CLASS = "Heads of known kinds by class, in brackets what shuffled classes give, * beyond that"


def _summaries(found: ReportedRun) -> list[tuple[str, Callable[[], pd.DataFrame]]]:
    run = found.opened()
    have = found.tables
    if isinstance(run, Agreement) and "heads" in have:
        return [("The class of every head on each task", run.classes)]
    if isinstance(run, Gating) and "conditions" in have:
        return [
            ("Loss and accuracy by condition, with 95 % intervals over prompts", lambda: run.summary),
            ("What every gate changes, beside random heads of the same layers", lambda: run.effects),
        ]
    if isinstance(run, Restrictions) and "accuracy" in have:
        return [
            ("Accuracy by hops with some frequencies only, and the heads at the end", run.table),
            ("What fails and what is learned", run.by_hops),
        ]
    if isinstance(run, Steering) and {"accuracy", "heads"} <= set(have):
        return [
            ("Heads and accuracy by the kind that was favoured, means over seeds", run.overview),
            ("Every kind beside none and beside the opposite", run.comparisons),
        ]
    if isinstance(run, Roles) and {"attention", "agreement"} <= set(have):
        return [
            ("What every head does, and the role it has earned", run.table),
            ("When the answer arrives", run.arrivals),
        ]
    if isinstance(run, Geometry) and "use" in have:
        return [("Frequencies every head uses", run.weighted_ids)]
    if isinstance(run, SwapDepths) and "prompts" in have:
        return [("Means over the heads of a layer by depth", run.layers)]
    if isinstance(run, Profile):
        return [
            *(
                [("The model's answers by where the asked fact stands", run.by_position)]
                if "answers" in have
                else []
            ),
            *([(KINDS_BY_CLASS, run.known_overview)] if "known_heads" in have else []),
        ]
    if found.kind in ("dynamics", "training") and len(have.get("scores", ())):
        track = run if isinstance(run, Dynamics) else Dynamics(found.run, have)
        return [("Where every head ends, and since when it has been pure", track.pure_from)]
    return []


def _made(found: ReportedRun, wanted: Sequence[tuple[str, Callable[[], pd.DataFrame]]]) -> list[Tab]:
    """Those tables that can be made and are not empty."""
    tables = []
    for title, make in wanted:
        frame = found.attempt(f"'{title}'", make)
        if frame is not None and len(frame):
            tables.append(table(frame, title))
    return tables
