"""P2: the multi-hop tasks, how models learn them, and how their heads become pure; and what it all cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.lab.checkpoints import Training
from rotoscope.ledger.claim import BesideModels, Look, as_constructed, claims
from rotoscope.ledger.claim_runs import ClaimRuns, Runs
from rotoscope.ledger.verdicts import COST, EXPLAINED, Finding, Outcome, rank_correlation
from rotoscope.scores.classes import GAMMA, purity_classes
from rotoscope.stats.aggregate import SCORES

FOLLOWED = 4800
BEST = {"number": 4800, "letter": 3400}
"""P2's steps of maximal accuracy."""
ALL_RIGHT = 0.995
"""Rounds to 100 %."""
HOPS = 4
TASKS: tuple[Literal["number", "letter"], ...] = ("number", "letter")
POSITIONAL, SYMBOLIC, NEITHER = "positional", "symbolic", "neither"
NUMBER = {GAMMA: ([0, 1, 2, 3], [*range(4, 12)]), 0.05: ([1, 2], [*range(5, 12)])}
LETTER: tuple[list[int], list[int]] = ([], [*range(1, 12)])
"""The layers that P2 has as purely positional and purely symbolic; of the letter model at gamma = .1."""
SECONDS = {"training": 55 * 60.0, "scoring": (10 + 17) * 3600.0}
TERABYTES = 1e12


def listed(values: Iterable[object]) -> str:
    """By seed."""
    return "; ".join(str(value) for value in values)


def _text(value: float, form: str = "{:.0f}") -> str:
    """A step that was never reached, or a rank correlation of nothing, is none."""
    return form.format(value) if np.isfinite(value) else "none"


def every_seed(value: str, met: list[bool]) -> Outcome:
    """Every seed meets the rule; in part more than half of them."""
    return Outcome(value, all(met), sum(met) > len(met) / 2)


# The tasks.


def one_path(runs: Runs) -> Outcome:
    """Sequences of both tasks, followed step by step from their last token."""
    from rotoscope.tasks.multihop import solve

    texts, met = [], []
    for task in TASKS:
        samples = _sequences(task)
        paths = [solve(task, sequence.tokens) for sequence in samples]  # refuses a second match
        right = sum(p.answer == s.answer and p.path == s.path for p, s in zip(paths, samples, strict=True))
        balance = np.ptp(pd.crosstab(samples.hops.numpy(), samples.answer.numpy()).to_numpy())
        texts.append(
            f"{task}: {right:,} of {len(samples):,} have the stated path, answers differ by at most {balance} inside a hop class"
        )
        met.append(right == len(samples) and balance <= 1)
    return Outcome("; ".join(texts), all(met))


def balanced_positions(runs: Runs) -> Outcome:
    """Where the answers stand, by hop class."""
    spread = {}
    for task in TASKS:
        samples = _sequences(task)
        place = samples.path.gather(1, samples.hops[:, None])[:, 0]
        counts = pd.crosstab(samples.hops.numpy(), place.numpy()).to_numpy()
        spread[task] = int(np.ptp(counts, axis=1).max())
    value = ", ".join(f"{task} {most}" for task, most in spread.items())
    return Outcome(f"counts differ by at most {value} inside a hop class", max(spread.values()) <= 1)


def _sequences(task: Literal["number", "letter"]):  # type: ignore[no-untyped-def]
    from rotoscope.lab.sequences import training_sequences
    from rotoscope.lab.settings import TrainSettings

    return training_sequences(TrainSettings(task=task), "test", count=FOLLOWED)


# Accuracy.


def accuracy(task: str, runs: Runs) -> Outcome:
    worst = [float(run.test["accuracy"].min()) for run in runs.training(task)]
    value = listed(f"{w:.4f}" for w in worst) + " (lowest over 1 to 4 hops, by seed)"
    return every_seed(value, [w >= ALL_RIGHT for w in worst])


def _learned(runs: Runs, task: str) -> list[pd.Series]:
    return [run.learned() for run in runs.training(task)]


def _mean_accuracy(run: Training | Dynamics) -> pd.Series:
    """Over hops, by step."""
    table = run.metrics if isinstance(run, Training) else run.accuracy
    assert table is not None
    return table.groupby("step")["accuracy"].mean()


def number_order(runs: Runs) -> Outcome:
    steps = _learned(runs, "number")
    ordered = [bool(s.notna().all() and s.is_monotonic_increasing and s.is_unique) for s in steps]
    return every_seed(
        listed(", ".join("never" if pd.isna(x) else f"{int(x)}" for x in s) for s in steps), ordered
    )


def letter_together(runs: Runs) -> Outcome:
    """How far apart the hops are learned, in steps, beside the number model's."""
    gaps = {
        task: [float(s.max() - s.min()) if s.notna().all() else np.inf for s in _learned(runs, task)]
        for task in TASKS
    }
    value = "; ".join(f"{task} within {', '.join(map(_text, steps))}" for task, steps in gaps.items())
    pairs = list(itertools.product(gaps["letter"], gaps["number"]))
    half = all(letter <= number / 2 for letter, number in pairs if np.isfinite(letter))
    known = all(np.isfinite(letter) for letter in gaps["letter"])
    return Outcome(f"{value} steps", known and half, known and all(letter < number for letter, number in pairs))


def best_step(runs: Runs) -> Outcome:
    """When the mean accuracy over hops first reaches its maximum."""
    best = {task: [int(_mean_accuracy(run).idxmax()) for run in runs.training(task)] for task in TASKS}
    value = "; ".join(f"{task} {', '.join(str(step) for step in steps)}" for task, steps in best.items())
    near = [0.5 <= step / BEST[task] <= 2 for task, steps in best.items() for step in steps]
    later = min(best["number"]) > max(best["letter"])
    solved = all(s.notna().all() for task in TASKS for s in _learned(runs, task))
    note = f"P2 prints no batch size; ours is {runs.training('number')[0].run.settings['batch']}"
    return Outcome(value, solved and later and all(near), solved and later, note)


# Heads along training.


def _of_both(runs: Runs) -> list[Dynamics]:
    return [run for task in TASKS for run in runs.dynamics(task)]


def _ends(run: Dynamics) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The heads at the first and at the last step."""
    table = run.at()
    return table[table["step"] == table["step"].min()], table[table["step"] == table["step"].max()]


def separate(runs: Runs) -> Outcome:
    """Whether all heads begin at (1, 1) and leave it."""
    lowest, left = [], []
    for run in _of_both(runs):
        first, last = _ends(run)
        lowest.append(float(first[SCORES].min().min()))
        left.append(float((last[SCORES].min(axis=1) < 1 - GAMMA).mean()))
    value = (
        f"lowest score of any head at step 0 {min(lowest):.3f}, heads that have left (1, 1) at the end "
        f"{min(left):.2f} to {max(left):.2f} ({len(left)} models)"
    )
    begins = min(lowest) >= 1 - GAMMA
    return Outcome(value, begins and min(left) == 1.0, begins and min(left) > 0.5)


def entropy_falls(runs: Runs) -> Outcome:
    medians = [[float(end["relative_entropy"].median()) for end in _ends(run)] for run in _of_both(runs)]
    first, last = np.mean(medians, axis=0)
    halved = [a >= 1 - GAMMA and b <= a / 2 for a, b in medians]
    falls = [a >= 1 - GAMMA and b <= 1 - GAMMA for a, b in medians]
    value = f"median relative entropy {first:.2f} at step 0, {last:.2f} at the end; halved in {sum(halved)} of {len(halved)} models"
    return Outcome(value, all(halved), all(falls))


def entropy_normalised(runs: Runs) -> Outcome:
    """P2's curves: min-max normalised per layer over training, at step 0 and at the step of maximal accuracy."""
    begins, ends = [], []
    for run in _of_both(runs):
        curves = run.at().pivot_table(index="step", columns=["layer", "head"], values="entropy")
        lowest, size = curves.min(), (curves.max() - curves.min()).replace(0.0, np.nan)
        begins += ((curves.iloc[0] - lowest) / size).tolist()
        ends += ((curves.loc[_mean_accuracy(run).idxmax()] - lowest) / size).tolist()
    high, low = np.array(begins) >= 1 - GAMMA, np.array(ends) <= 0.5
    value = f"{high.mean():.2f} of the layers begin at .9 and more, {low.mean():.2f} are at .5 and less when accuracy is best"
    return Outcome(value, bool((high & low).all()), bool((high & low).mean() > 0.5))


def _at_best(run: Dynamics, gamma: float) -> pd.Series:
    """The class of every layer's head at the step of best accuracy, which is where P2 draws it."""
    table = run.at()
    steps = table["step"].unique()
    best = steps[np.abs(steps - _mean_accuracy(run).idxmax()).argmin()]
    rows = table[table["step"] == best].set_index("layer").sort_index()
    return pd.Series(purity_classes(rows[SCORES[0]], rows[SCORES[1]], gamma), index=rows.index)


def purity(task: str, gamma: float, positional: list[int], symbolic: list[int], runs: Runs) -> Outcome:
    """How many layers have, when accuracy is best, the class that P2 draws, in every seed."""
    classes = [_at_best(run, gamma) for run in runs.dynamics(task)]
    texts, agreeing = [], []
    for seed in classes:
        layers = {kind: [int(k) for k in seed.index[seed == kind]] for kind in (POSITIONAL, SYMBOLIC)}
        texts.append(f"positional {layers[POSITIONAL]}, symbolic {layers[SYMBOLIC]}")
        agreeing.append(
            [
                _class_in(layers, k) == _class_in({POSITIONAL: positional, SYMBOLIC: symbolic}, k)
                for k in range(12)
            ]
        )
    everywhere = np.all(agreeing, axis=0)
    value = f"{int(everywhere.sum())} of 12 layers as printed in every seed: {listed(texts)}"
    pure = any((seed.isin([POSITIONAL, SYMBOLIC])).any() for seed in classes)
    return Outcome(value, bool(everywhere.all()), bool(pure and everywhere.sum() > 6))


def _class_in(layers: dict[str, list[int]], layer: int) -> str:
    return next((kind for kind, members in layers.items() if layer in members), NEITHER)


def letter_depth_order(runs: Runs) -> Outcome:
    ranks = []
    for run in runs.dynamics("letter"):
        pure = run.pure_from(GAMMA).dropna(subset=["first_pure"])
        ranks.append(rank_correlation(pure["layer"], pure["first_pure"].astype(float)))
    value = f"rank correlation of depth and first pure step {listed(_text(r, '{:.2f}') for r in ranks)}"
    return every_seed(value, [r >= EXPLAINED for r in ranks])


def number_waits(runs: Runs) -> Outcome:
    """The pure positional heads there are when h hops are learned; the stored scores mix sequences of all hops."""
    texts = []
    for run in runs.dynamics("number"):
        table = run.waiting()
        texts.append(", ".join(f"{int(row.positional_then)} at {int(row.hops)}" for row in table.itertuples()))
    never = all(s.isna().all() for s in _learned(runs, "number"))
    value = f"pure positional heads when hops are learned: {listed(texts)}"
    return Outcome(value, False, undecided="" if never else "scores are not stored by hop")


def letter_waits(runs: Runs) -> Outcome:
    """Whether layer 11 ends symbolic and is pure when the letter hops are learned; in part the last symbolic head."""
    last, late = [], []
    for run in runs.dynamics("letter"):
        pure, learned = run.pure_from().set_index("layer"), run.learned().max()
        last.append(str(pure["head_class"].get(11)))
        steps = pure.loc[pure["head_class"] == SYMBOLIC, "first_pure"].astype(float)
        late.append(float(steps.max() - learned) if len(steps) and pd.notna(learned) else np.inf)
    value = f"layer 11 ends {listed(last)}; the last symbolic head is pure {listed(map(_text, late))} steps after the last hop is learned"
    in_time = all(x <= 0 for x in late)
    return Outcome(value, in_time and all(kind == SYMBOLIC for kind in last), in_time)


def _steps_of(run: Dynamics, kind: str) -> list[int]:
    pure = run.pure_from()
    return sorted(int(step) for step in pure.loc[pure["head_class"] == kind, "first_pure"])


def positional_steps(runs: Runs) -> Outcome:
    """Whether positional heads become pure one at a time; two at one evaluation cannot be told apart."""
    steps = [_steps_of(run, POSITIONAL) for run in runs.dynamics("number")]
    enough = all(len(seed) >= HOPS for seed in steps)
    apart = [len(seed) >= HOPS and len(set(seed)) == len(seed) for seed in steps]
    value = f"positional heads are pure from steps {listed(', '.join(map(str, s)) or 'never' for s in steps)}"
    tied = "several heads are pure from the same evaluation on, and evaluations are 50 steps apart"
    return Outcome(value, all(apart), undecided=tied if enough and not all(apart) else "")


def symbolic_early(runs: Runs) -> Outcome:
    """Whether a symbolic head is there to carry on what the first positional one finds, before the next one is."""
    first, second = [], []
    for run in runs.dynamics("number"):
        positional, symbolic = _steps_of(run, POSITIONAL), _steps_of(run, SYMBOLIC)
        first.append(symbolic[0] if symbolic else np.inf)
        second.append(positional[1] if len(positional) > 1 else -np.inf)
    early = [a <= b for a, b in zip(first, second, strict=True)]
    value = f"first symbolic head pure at {listed(map(_text, first))}, second positional one at {listed(map(_text, second))}"
    return every_seed(value, early)


def _aligned(task: str, run: Dynamics) -> float:
    """Rank correlation of accuracy and number of pure heads, up to P2's own step of best accuracy."""
    counts = run.purity((GAMMA,)).set_index("step")
    counts, means = counts[counts.index <= BEST[task]], _mean_accuracy(run)
    return rank_correlation(counts[POSITIONAL] + counts[SYMBOLIC], means)


def alignment(runs: Runs) -> Outcome:
    ranks = {task: [_aligned(task, run) for run in runs.dynamics(task)] for task in TASKS}
    texts = "; ".join(
        f"{task} {', '.join(_text(x, '{:.2f}') for x in values)}" for task, values in ranks.items()
    )
    strong = [all(x >= EXPLAINED for x in values) for values in ranks.values()]
    return Outcome(f"rank correlation of accuracy and number of pure heads: {texts}", all(strong), any(strong))


# What it cost.


def spent(cost: str, runs: ClaimRuns) -> Finding:
    """Seconds of training or scoring, or bytes stored, beside the paper's: a comparison, which nobody claims."""
    trainings = [runs.training(task)[0] for task in TASKS]
    caveat = ", on other hardware"
    if cost == "storage":
        folders = [run.folder for run in trainings if run.folder is not None]
        stored = sum(file.stat().st_size for folder in folders for file in folder.glob("*.parquet"))
        value, times, caveat = f"{stored / 1e6:.2f} MB of scores and accuracies", 2 * TERABYTES / stored, ""
    elif cost == "training":
        seconds = sum(run.run.timings["training_s"] for run in trainings)
        among = trainings[0].run.details.get("trained_as_one")
        together = f" of {among} trained as one" if among else ""
        value = f"{seconds / 60:.1f} minutes for both models{together} on {trainings[0].run.device}"
        times = SECONDS[cost] / seconds
    else:
        seconds = sum(run.run.timings["watching_s"] for run in trainings)
        steps = sum(run.tables["scores"]["step"].nunique() for run in trainings)
        value, times = (
            f"{seconds:.0f} seconds for {steps} scored checkpoints of both models",
            SECONDS[cost] / seconds,
        )
        caveat += " and at our choice of checkpoints"
    return Finding(value, COST, note=f"{times:,.0f} times less{caveat}")


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
    "p2-letter-depth": letter_depth_order,
    "p2-number-waits": number_waits,
    "p2-letter-waits": letter_waits,
    "p2-positional-steps": positional_steps,
    "p2-symbolic-early": symbolic_early,
    "p2-alignment": alignment,
}
CLAIMS = claims(
    {
        "p2-tasks": as_constructed(one_path),
        "p2-answer-positions": as_constructed(balanced_positions),
        **{name: BesideModels(look, twins=True) for name, look in TRAINING.items()},
        **{f"p2-cost-{cost}": partial(spent, cost) for cost in ("training", "scoring", "storage")},
    }
)
