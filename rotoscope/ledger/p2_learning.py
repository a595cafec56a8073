"""P2: the multi-hop tasks, how models learn them, and how their heads become pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.lab.sequences import training_sequences
from rotoscope.lab.settings import TrainSettings
from rotoscope.ledger.claim import Look, beside_untrained, by_itself, claims, rank_correlation
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.verdicts import Found
from rotoscope.scores.classes import GAMMA
from rotoscope.stats.aggregate import SCORES
from rotoscope.tasks.multihop import solve
from rotoscope.tasks.multihop_frames import MultiHops

FOLLOWED = 4800
BEST = {"number": 4800, "letter": 3400}
"""P2's steps of maximal accuracy."""
ALL_RIGHT = 0.995
"""Rounds to 100 %."""
EXPLAINED = 0.7
"""A rank correlation from here on accounts for half of the ranks' variance."""
HOPS = 4
TASKS: tuple[Literal["number", "letter"], ...] = ("number", "letter")
POSITIONAL, SYMBOLIC, NEITHER = "positional", "symbolic", "neither"
NUMBER = {GAMMA: ([0, 1, 2, 3], [*range(4, 12)]), 0.05: ([1, 2], [*range(5, 12)])}
LETTER: tuple[list[int], list[int]] = ([], [*range(1, 12)])
"""The layers that P2 has as purely positional and purely symbolic; of the letter model at gamma = .1."""


def listed(values: Iterable[object]) -> str:
    """By seed."""
    return "; ".join(str(value) for value in values)


def _shown(value: float, form: str = "{:.0f}") -> str:
    """A step that was never reached, or a rank correlation of nothing, is none."""
    return form.format(value) if np.isfinite(value) else "none"


def every_seed(value: str, found: list[bool]) -> Found:
    """Every seed: as said. More than half of them: in part."""
    return Found(value, all(found), sum(found) > len(found) / 2)


def _followed(task: Literal["number", "letter"]) -> MultiHops:
    return training_sequences(TrainSettings(task=task), "test", count=FOLLOWED)


def one_path(workshop: Workshop) -> Found:
    """Sequences of both tasks, followed step by step from their last token."""
    texts, found = [], []
    for task in TASKS:
        made = _followed(task)
        paths = [solve(task, sequence.tokens) for sequence in made]  # refuses a second match
        right = sum(p.answer == m.answer and p.path == m.path for p, m in zip(paths, made, strict=True))
        balance = pd.crosstab(made.hops.numpy(), made.answer.numpy()).to_numpy()
        texts.append(
            f"{task}: {right:,} of {len(made):,} have the stated path, answers differ by at most "
            f"{np.ptp(balance)} inside a hop class"
        )
        found.append(right == len(made) and np.ptp(balance) <= 1)
    return Found("; ".join(texts), all(found))


def balanced_positions(workshop: Workshop) -> Found:
    """Where the answers stand, by hop class."""
    spread = {}
    for task in TASKS:
        made = _followed(task)
        where = made.path.gather(1, made.hops[:, None])[:, 0]
        spread[task] = int(np.ptp(pd.crosstab(made.hops.numpy(), where.numpy()).to_numpy(), axis=1).max())
    value = ", ".join(f"{task} {found}" for task, found in spread.items())
    return Found(f"counts differ by at most {value} inside a hop class", max(spread.values()) <= 1)


def accuracy(task: str, workshop: Workshop) -> Found:
    worst = [float(run.test["accuracy"].min()) for run in workshop.training(task)]
    value = listed(f"{w:.4f}" for w in worst) + " (lowest over 1 to 4 hops, by seed)"
    return every_seed(value, [w >= ALL_RIGHT for w in worst])


def _learned(workshop: Workshop, task: str) -> list[pd.Series]:
    return [run.learned() for run in workshop.training(task)]


def number_order(workshop: Workshop) -> Found:
    steps = _learned(workshop, "number")
    found = [bool(s.notna().all() and s.is_monotonic_increasing and s.is_unique) for s in steps]
    texts = (", ".join("never" if pd.isna(x) else f"{int(x)}" for x in s) for s in steps)
    return every_seed(listed(texts), found)


def letter_together(workshop: Workshop) -> Found:
    """How far apart the hops are learned, in steps, beside the number model's."""
    gaps = {
        task: [float(s.max() - s.min()) if s.notna().all() else np.inf for s in _learned(workshop, task)]
        for task in TASKS
    }
    value = "; ".join(f"{task} within {', '.join(map(_shown, found))}" for task, found in gaps.items())
    pairs = list(itertools.product(gaps["letter"], gaps["number"]))
    half = all(letter <= number / 2 for letter, number in pairs if np.isfinite(letter))
    known = all(np.isfinite(letter) for letter in gaps["letter"])
    return Found(f"{value} steps", known and half, known and all(letter < number for letter, number in pairs))


def best_step(workshop: Workshop) -> Found:
    """When the mean accuracy over hops first reaches its maximum."""
    best = {
        task: [int(run.metrics.groupby("step")["accuracy"].mean().idxmax()) for run in workshop.training(task)]
        for task in TASKS
    }
    value = "; ".join(f"{task} {', '.join(str(step) for step in steps)}" for task, steps in best.items())
    near = [0.5 <= step / BEST[task] <= 2 for task, steps in best.items() for step in steps]
    later = min(best["number"]) > max(best["letter"])
    solved = all(s.notna().all() for task in TASKS for s in _learned(workshop, task))
    note = f"P2 prints no batch size; ours is {workshop.training('number')[0].run.settings['batch']}"
    return Found(value, solved and later and all(near), solved and later, note)


def _of_both(workshop: Workshop) -> list[Dynamics]:
    return [run for task in TASKS for run in workshop.dynamics(task)]


def _ends(run: Dynamics) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The heads at the first step and at the last."""
    table = run.at()
    return table[table["step"] == table["step"].min()], table[table["step"] == table["step"].max()]


def separate(workshop: Workshop) -> Found:
    """All heads begin at (1, 1), and leave it."""
    lowest, left = [], []
    for run in _of_both(workshop):
        first, last = _ends(run)
        lowest.append(float(first[SCORES].min().min()))
        left.append(float((last[SCORES].min(axis=1) < 1 - GAMMA).mean()))
    value = (
        f"lowest score of any head at step 0 {min(lowest):.3f}, heads that have left (1, 1) at the end "
        f"{min(left):.2f} to {max(left):.2f} ({len(left)} models)"
    )
    begins = min(lowest) >= 1 - GAMMA
    return Found(value, begins and min(left) == 1.0, begins and min(left) > 0.5)


def entropy_falls(workshop: Workshop) -> Found:
    medians = [[float(end["relative_entropy"].median()) for end in _ends(run)] for run in _of_both(workshop)]
    first, last = np.mean(medians, axis=0)
    halved = [a >= 1 - GAMMA and b <= a / 2 for a, b in medians]
    falls = [a >= 1 - GAMMA and b <= 1 - GAMMA for a, b in medians]
    value = f"median relative entropy {first:.2f} at step 0, {last:.2f} at the end; halved in {sum(halved)} of {len(halved)} models"
    return Found(value, all(halved), all(falls))


def entropy_normalised(workshop: Workshop) -> Found:
    """P2's curves: min-max normalised per layer over training, at step 0 and at the step of maximal accuracy."""
    begins, ends = [], []
    for run in _of_both(workshop):
        assert run.accuracy is not None
        best = run.accuracy.groupby("step")["accuracy"].mean().idxmax()
        curves = run.at().pivot_table(index="step", columns=["layer", "head"], values="entropy")
        lowest, size = curves.min(), (curves.max() - curves.min()).replace(0.0, np.nan)
        begins += ((curves.iloc[0] - lowest) / size).tolist()
        ends += ((curves.loc[best] - lowest) / size).tolist()
    high, low = np.array(begins) >= 1 - GAMMA, np.array(ends) <= 0.5
    value = (
        f"{np.mean(high):.2f} of the layers begin at .9 and more, {np.mean(low):.2f} are at .5 and less when accuracy is "
        "best"
    )
    both = high & low
    return Found(value, bool(both.all()), bool(both.mean() > 0.5))


def _classes(workshop: Workshop, task: str, gamma: float) -> list[pd.Series]:
    return [run.pure_from(gamma).set_index("layer")["head_class"] for run in workshop.dynamics(task)]


def _layers(classes: pd.Series, kind: str) -> list[int]:
    return [int(layer) for layer in classes.index[classes == kind]]


def purity(task: str, gamma: float, positional: list[int], symbolic: list[int], workshop: Workshop) -> Found:
    """How many layers end in the class that P2 has them in, in every seed."""
    found = _classes(workshop, task, gamma)
    texts = (f"positional {_layers(c, POSITIONAL)}, symbolic {_layers(c, SYMBOLIC)}" for c in found)
    printed = [
        POSITIONAL if layer in positional else SYMBOLIC if layer in symbolic else NEITHER for layer in range(12)
    ]
    as_printed = [
        all((c.get(layer) if c.get(layer) in (POSITIONAL, SYMBOLIC) else NEITHER) == kind for c in found)
        for layer, kind in enumerate(printed)
    ]
    value = f"{sum(as_printed)} of 12 layers as printed in every seed: {listed(texts)}"
    return Found(value, all(as_printed), sum(as_printed) > 6)


def letter_depth_order(workshop: Workshop) -> Found:
    ranks = []
    for run in workshop.dynamics("letter"):
        pure = run.pure_from(GAMMA).dropna(subset=["first_pure"])
        ranks.append(rank_correlation(pure["layer"], pure["first_pure"].astype(float)))
    value = f"rank correlation of depth and first pure step {listed(_shown(r, '{:.2f}') for r in ranks)}"
    return every_seed(value, [r >= EXPLAINED for r in ranks])


def number_waits(workshop: Workshop) -> Found:
    """Whether h positional heads were pure by the step h hops were learned."""
    texts, missing = [], []
    for run in workshop.dynamics("number"):
        table = run.waiting()
        known = table["learned_at"].notna().all()
        enough = table["positional_then"] >= table["hops"]
        missing.append(int((~enough).sum()) if known else HOPS)
        texts.append(", ".join(f"{int(row.positional_then)} at {int(row.hops)}" for row in table.itertuples()))
    value = f"pure positional heads when hops are learned: {listed(texts)}"
    return Found(value, max(missing) == 0, max(missing) <= 1)


def letter_waits(workshop: Workshop) -> Found:
    """Whether layer 11 ends symbolic and is pure when the letter hops are learned; failing that, the last symbolic head."""
    last, late = [], []
    for run in workshop.dynamics("letter"):
        pure, learned = run.pure_from().set_index("layer"), run.learned().max()
        last.append(str(pure["head_class"].get(11)))
        steps = pure.loc[pure["head_class"] == SYMBOLIC, "first_pure"].astype(float)
        late.append(float(steps.max() - learned) if len(steps) and pd.notna(learned) else np.inf)
    value = (
        f"layer 11 ends {listed(last)}; the last symbolic head is pure {listed(map(_shown, late))} steps after the "
        "last hop is learned"
    )
    in_time = all(x <= 0 for x in late)
    return Found(value, in_time and all(kind == SYMBOLIC for kind in last), in_time)


def _steps_of(run: Dynamics, kind: str) -> list[int]:
    pure = run.pure_from()
    return sorted(int(step) for step in pure.loc[pure["head_class"] == kind, "first_pure"])


def positional_steps(workshop: Workshop) -> Found:
    """Whether positional heads become pure one at a time, each with a hop."""
    steps = [_steps_of(run, POSITIONAL) for run in workshop.dynamics("number")]
    apart = [len(s) >= HOPS and len(set(s)) == len(s) for s in steps]
    value = f"positional heads are pure from steps {listed(', '.join(map(str, s)) or 'never' for s in steps)}"
    return every_seed(value, apart)


def symbolic_early(workshop: Workshop) -> Found:
    """Whether a symbolic head is there to carry on what the first positional one finds, before the next one is."""
    first, second = [], []
    for run in workshop.dynamics("number"):
        positional, symbolic = _steps_of(run, POSITIONAL), _steps_of(run, SYMBOLIC)
        first.append(symbolic[0] if symbolic else np.inf)
        second.append(positional[1] if len(positional) > 1 else -np.inf)
    early = [a <= b for a, b in zip(first, second, strict=True)]
    value = (
        f"first symbolic head pure at {listed(map(_shown, first))}, second positional one at "
        f"{listed(map(_shown, second))}"
    )
    return every_seed(value, early)


def _aligned(run: Dynamics) -> float:
    """Rank correlation of accuracy and number of pure heads over training."""
    assert run.accuracy is not None
    accuracy = run.accuracy.groupby("step")["accuracy"].mean()
    counts = run.purity((GAMMA,)).set_index("step")
    return rank_correlation(counts[POSITIONAL] + counts[SYMBOLIC], accuracy)


def alignment(workshop: Workshop) -> Found:
    found = {task: [_aligned(run) for run in workshop.dynamics(task)] for task in TASKS}
    ranks = "; ".join(f"{task} {', '.join(_shown(x, '{:.2f}') for x in of)}" for task, of in found.items())
    strong = [all(x >= EXPLAINED for x in of) for of in found.values()]
    value = f"rank correlation of accuracy and number of pure heads: {ranks}"
    return Found(value, all(strong), any(strong))


SEQUENCES = claims(
    {"p2-tasks": by_itself(one_path), "p2-answer-positions": by_itself(balanced_positions)}, learned=False
)
TRAINING: dict[str, Look] = {
    "p2-number-accuracy": partial(accuracy, "number"),
    "p2-letter-accuracy": partial(accuracy, "letter"),
    "p2-number-order": number_order,
    "p2-letter-together": letter_together,
    "p2-best-step": best_step,
    "p2-start": separate,
    "p2-entropy": entropy_falls,
    "p2-entropy-normalised": entropy_normalised,
    "p2-number-purity": partial(purity, "number", GAMMA, *NUMBER[GAMMA]),
    "p2-number-purity-strict": partial(purity, "number", 0.05, *NUMBER[0.05]),
    "p2-letter-purity": partial(purity, "letter", GAMMA, *LETTER),
    "p2-letter-purity-strict": partial(purity, "letter", 0.05, *LETTER),
    "p2-letter-depth": letter_depth_order,
    "p2-number-waits": number_waits,
    "p2-letter-waits": letter_waits,
    "p2-positional-steps": positional_steps,
    "p2-symbolic-early": symbolic_early,
    "p2-alignment": alignment,
}
CLAIMS = [*SEQUENCES, *claims({name: beside_untrained(look) for name, look in TRAINING.items()}, learned=True)]
