"""The training tab: heads, their classes and the accuracy over the steps of a training, finished or going on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rotoscope.experiments.compare import sides, taus_of_both
from rotoscope.experiments.page_data import PageRun, Tab, clean, column, columns, packed
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.scores.classes import GAMMA, pure_regions, purity_codes
from rotoscope.stats.aggregate import HEAD, LEAST_MASS, SCORES

SHOWN_SCORES = (*SCORES, "relative_entropy")
UNTESTED = (
    "Both are trainings: heads at their last steps stand side by side, matched by layer and number alone. The scores kept are "
    "means over prompts, so no difference is tested."
)


def training_tab(page_run: PageRun) -> Tab | None:
    """Scores of every head at every step, when heads became pure, how far they separated, and the accuracy beside them."""
    scores = page_run.tables.get("scores")
    accuracy = page_run.tables.get("accuracy", page_run.tables.get("metrics"))
    if scores is None and accuracy is None:
        return None
    series = []
    if scores is not None and len(scores):
        run = Dynamics(page_run.run, page_run.tables)
        for (queries, tau), rows in scores.groupby(["queries", "tau"], sort=False):
            query_and_tau = {"queries": clean(queries), "tau": clean(float(tau), 12)}
            series.append({**query_and_tau, **_track(rows), **_became(run, queries, tau)})
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


@dataclass(frozen=True)
class LastSteps:
    """The heads at the last step of a training by tau, for a comparison with another training."""

    heads: dict[float, pd.DataFrame]

    @classmethod
    def of(cls, page_run: PageRun) -> LastSteps | None:
        """None for a run without scores."""
        if not len(page_run.tables.get("scores", ())):
            return None
        run = Dynamics(page_run.run, page_run.tables)
        taus = run.scores["tau"].unique()
        return cls({float(tau): run.last_step(tau=tau) for tau in taus})

    def beside(self, second: LastSteps) -> Tab:
        """Both trainings' heads side by side at every tau of both."""
        pairs = taus_of_both(self.heads, second.heads)
        return {"at": [self._at(second, *taus) for taus in pairs], "words": [UNTESTED]}

    def _at(self, second: LastSteps, tau: float, other_tau: float) -> Tab:
        ends = {"first": self.heads[tau], "second": second.heads[other_tau]}
        wide = [
            rows.set_index(HEAD)[[*SCORES, "head_class"]]
            .rename(columns={"head_class": "class"})
            .add_prefix(f"{side}_")
            for side, rows in ends.items()
        ]
        heads = wide[0].join(wide[1], how="inner").sort_index().reset_index()
        changed = int((heads["first_class"] != heads["second_class"]).sum())
        alone = sum(map(len, wide)) - 2 * len(heads)
        words = [f"{changed} of {len(heads)} heads end in another class."]
        words += [f"{alone} heads are in one of the runs only."] if alone else []
        tab = sides(heads, tau, other_tau) | {"words": words}
        for side, rows in ends.items():
            tab[side]["step"] = int(rows["step"].iloc[0])
        return tab
