"""P2: the multi-hop tasks, how models learn them, and how their heads become pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from rotoscope.lab.sequences import training_sequences
from rotoscope.papers.claim import Finding, claims, judged
from rotoscope.papers.workshop import Workshop
from rotoscope.results import Dynamics
from rotoscope.settings import TrainSettings
from rotoscope.tasks.multihop import solve

SOLVED = 4800
BEST = {"number": 4800, "letter": 3400}
"""P2's steps of maximal accuracy."""
TASKS: tuple[Literal["number", "letter"], ...] = ("number", "letter")


def listed(values: Iterable[object]) -> str:
    """By seed."""
    return "; ".join(str(value) for value in values)


def every_seed(found: list[bool]) -> str:
    """Every seed: reproduced. Some: with a difference. None: not."""
    return judged(all(found), in_part=any(found))


def one_path(workshop: Workshop) -> Finding:
    """Sequences of both tasks, followed step by step from their last token."""
    texts, found = [], []
    for task in TASKS:
        made = training_sequences(TrainSettings(task=task), "test", count=SOLVED)
        paths = [solve(task, sequence.tokens) for sequence in made]  # refuses a second match
        right = sum(p.answer == m.answer and p.path == m.path for p, m in zip(paths, made, strict=True))
        balance = pd.crosstab(made.hops.numpy(), made.answer.numpy()).to_numpy()
        texts.append(
            f"{task}: {right:,} of {len(made):,} have the stated path, answers differ by at most "
            f"{np.ptp(balance)} inside a hop class"
        )
        found.append(right == len(made) and np.ptp(balance) <= 1)
    return Finding("; ".join(texts), judged(all(found)))


def accuracy(task: str, workshop: Workshop) -> Finding:
    worst = [float(run.test["accuracy"].min()) for run in workshop.training(task)]
    value = listed(f"{w:.4f}" for w in worst) + " (lowest over 1 to 4 hops, by seed)"
    return Finding(value, every_seed([w >= 0.995 for w in worst]))


def number_order(workshop: Workshop) -> Finding:
    steps = [run.learned() for run in workshop.training("number")]
    found = [s.notna().all() and s.is_monotonic_increasing and s.is_unique for s in steps]
    texts = (", ".join("never" if pd.isna(x) else f"{int(x)}" for x in s) for s in steps)
    return Finding(listed(texts), every_seed(found))


def letter_together(workshop: Workshop) -> Finding:
    steps = [run.learned() for run in workshop.training("letter")]
    gaps = [s.max() - s.min() if s.notna().all() else np.inf for s in steps]
    value = f"within {listed(f'{gap:.0f}' for gap in gaps)} steps of each other"
    return Finding(value, every_seed([gap <= 400 for gap in gaps]))


def best_step(workshop: Workshop) -> Finding:
    """When the mean accuracy over hops first reaches its maximum."""
    best = {
        task: [int(run.metrics.groupby("step")["accuracy"].mean().idxmax()) for run in workshop.training(task)]
        for task in TASKS
    }
    value = "; ".join(f"{task} {', '.join(str(step) for step in steps)}" for task, steps in best.items())
    near = [0.5 <= step / BEST[task] <= 2 for task, steps in best.items() for step in steps]
    later = min(best["number"]) > max(best["letter"])
    batch = workshop.training("number")[0].run.settings["batch"]
    note = f"P2 prints no batch size; ours is {batch}"
    return Finding(value, judged(later and all(near), in_part=later), note=note)


def _of_both(workshop: Workshop) -> list[Dynamics]:
    return [run for task in TASKS for run in workshop.dynamics(task)]


def start_uniform(workshop: Workshop) -> Finding:
    runs = _of_both(workshop)
    lowest = min(
        float(table.loc[table["step"] == 0, ["positional_score", "symbolic_score"]].min().min())
        for table in (run.at() for run in runs)
    )
    value = f"lowest score of any head at step 0: {lowest:.3f} over {len(runs)} models"
    return Finding(value, judged(lowest >= 0.95))


def entropy_falls(workshop: Workshop) -> Finding:
    drops = []
    for run in _of_both(workshop):
        table = run.at().sort_values("step").groupby(["layer", "head"])["relative_entropy"]
        drops.append((float(table.first().median()), float(table.last().median())))
    first, last = np.mean([a for a, _ in drops]), np.mean([b for _, b in drops])
    return Finding(
        f"median relative entropy {first:.2f} at step 0, {last:.2f} at the end",
        judged(bool(first >= 0.95) and all(b < a - 0.2 for a, b in drops)),
    )


def _classes(workshop: Workshop, task: str, gamma: float = 0.1) -> list[pd.Series]:
    return [run.pure_from(gamma).set_index("layer")["head_class"] for run in workshop.dynamics(task)]


def _layers(classes: pd.Series, kind: str) -> list[int]:
    return [int(layer) for layer in classes.index[classes == kind]]


def _by_class(classes: list[pd.Series]) -> str:
    return listed(f"positional {_layers(c, 'positional')}, symbolic {_layers(c, 'symbolic')}" for c in classes)


def number_purity(gamma: float, positional: list[int], symbolic: list[int], workshop: Workshop) -> Finding:
    found = _classes(workshop, "number", gamma)
    exact = [_layers(c, "positional") == positional and _layers(c, "symbolic") == symbolic for c in found]
    alike = [sum(c[:6] == "positional") >= 3 and sum(c[6:] == "symbolic") >= 3 for c in found]
    return Finding(_by_class(found), judged(all(exact), in_part=all(alike)))


def letter_purity(workshop: Workshop) -> Finding:
    found = _classes(workshop, "letter")
    exact = [_layers(c, "symbolic") == list(range(1, 12)) for c in found]
    alike = [not _layers(c, "positional") and len(_layers(c, "symbolic")) >= 8 for c in found]
    return Finding(_by_class(found), judged(all(exact), in_part=all(alike)))


def letter_depth_order(workshop: Workshop) -> Finding:
    ranks = []
    for run in workshop.dynamics("letter"):
        pure = run.pure_from(0.1).dropna(subset=["first_pure"])
        ranks.append(float(pure["layer"].rank().corr(pure["first_pure"].astype(float).rank())))
    value = f"rank correlation of depth and first pure step {listed(f'{r:.2f}' for r in ranks)}"
    return Finding(value, every_seed([r >= 0.7 for r in ranks]))


def number_waits(workshop: Workshop) -> Finding:
    """Whether h positional heads were pure by the step h hops were learned."""
    shares, texts = [], []
    for run in workshop.dynamics("number"):
        table = run.waiting()
        shares.append(float((table["positional_then"] >= table["hops"]).mean()))
        texts.append(", ".join(f"{int(row.positional_then)} at {int(row.hops)}" for row in table.itertuples()))
    value = f"pure positional heads when hops are learned: {listed(texts)}"
    return Finding(value, judged(all(s == 1 for s in shares), in_part=all(s >= 0.5 for s in shares)))


def letter_waits(workshop: Workshop) -> Finding:
    """Whether the letter hops are learned when the last symbolic head becomes pure."""
    late = []
    for run in workshop.dynamics("letter"):
        table = run.waiting()
        known = table[["learned_at", "last_symbolic_at"]].notna().all(axis=None)
        late.append(int(table["last_symbolic_at"].max() - table["learned_at"].max()) if known else np.inf)
    steps = listed(f"{x:.0f}" for x in late)
    value = f"the last symbolic head follows {steps} steps after the last hop is learned"
    return Finding(value, judged(all(x <= 0 for x in late), in_part=all(x <= 200 for x in late)))


def alignment(workshop: Workshop) -> Finding:
    found = [
        float(run.alignment().set_index("heads").loc["pure", "rank_correlation"]) for run in _of_both(workshop)
    ]
    ranks = listed(f"{x:.2f}" for x in found)
    value = f"rank correlation of accuracy and number of pure heads over steps {ranks}"
    return Finding(value, judged(all(x >= 0.7 for x in found), in_part=all(x > 0.2 for x in found)))


CLAIMS = claims(
    {
        "p2-tasks": one_path,
        "p2-number-accuracy": partial(accuracy, "number"),
        "p2-letter-accuracy": partial(accuracy, "letter"),
        "p2-number-order": number_order,
        "p2-letter-together": letter_together,
        "p2-best-step": best_step,
        "p2-start": start_uniform,
        "p2-entropy": entropy_falls,
        "p2-number-purity": partial(number_purity, 0.1, [0, 1, 2, 3], [*range(4, 12)]),
        "p2-number-purity-strict": partial(number_purity, 0.05, [1, 2], [*range(5, 12)]),
        "p2-letter-purity": letter_purity,
        "p2-letter-depth": letter_depth_order,
        "p2-number-waits": number_waits,
        "p2-letter-waits": letter_waits,
        "p2-alignment": alignment,
    }
)
