"""Ours: what heads and layers follow with blocks exchanged at some depth, in language models and in multi-hop models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.ledger.claim import BesideModels, claims
from rotoscope.ledger.claim_runs import ClaimRuns, Runs
from rotoscope.ledger.layer_depths import MODEL, lean
from rotoscope.ledger.verdicts import (
    IN_PART,
    REPRODUCED,
    Finding,
    Outcome,
    beside_draws,
    beyond,
    judged,
    null_verdict,
    rank_correlation,
)
from rotoscope.scores.classes import purity_classes
from rotoscope.stats.aggregate import CLASSED_BY, INDEX, INPUT_SCORES, SCORES, permuted_scores
from rotoscope.stats.verdict import Verdict

POSITIONAL, SYMBOLIC = SCORES
CHOSEN_ON = "0"
"""The training on which layers are chosen; the others are judged."""
MOST = 0.9
"""What counts as nearly all."""
DEALS, RESAMPLES, LEVEL = 10_000, 1000, 0.05
TRAINED, LONGER = 17, (34, 136)
"""Tokens of a training input, and twice to eight times as many."""


# Layers of multi-hop models


def _by_training(runs: Runs, task: str, own: bool) -> dict[str, pd.DataFrame]:
    """The layers of every training's last model, at their own layer or with the prompt permuted."""
    rows = runs.depths().last.query("task == @task and own == @own and (own or depth == 0)")
    return {str(name): table.set_index("layer").sort_index() for name, table in rows.groupby("training")}


def _pure_symbolic(table: pd.DataFrame) -> list[int]:
    """The layers that are pure symbolic where the papers swap."""
    classes = purity_classes(table[POSITIONAL], table[SYMBOLIC])
    return [int(layer) for layer, name in zip(table.index, classes, strict=True) if name == "symbolic"]


def chosen_layers(runs: Runs, task: str) -> list[int]:
    """The layers that are pure symbolic in the training they are chosen on."""
    tables = _by_training(runs, task, own=True)
    return _pure_symbolic(tables[CHOSEN_ON]) if CHOSEN_ON in tables else []


def own_layer(runs: Runs) -> Outcome:
    """Which of the layers chosen on one training of the number task are pure symbolic in the others."""
    layers = chosen_layers(runs, "number")
    texts, counts = [], []
    for training, table in _by_training(runs, "number", own=True).items():
        if training != CHOSEN_ON:
            pure = [layer for layer in _pure_symbolic(table) if layer in layers]
            texts.append(f"seed {training}: {pure}")
            counts.append(len(pure))
    value = f"of layers {layers} of seed {CHOSEN_ON}, pure symbolic at their own layer in {'; '.join(texts)}"
    if not layers or not counts:
        return Outcome(value, False)
    return Outcome(value, min(counts) == len(layers), min(counts) > len(layers) / 2)


def follows(task: str, sign: int, runs: ClaimRuns) -> Finding:
    """In how many layers the score that is claimed is the larger one with the prompt permuted, in every training.

    `sign` is 1 for the place (layers chosen on one training, judged on the others), -1 for the token (all layers).
    """
    layers = chosen_layers(runs, task) if sign > 0 else list(range(12))
    draws = [sign * x for x in _leans_of_null(runs, task, layers)]
    texts, larger, verdicts = [], [], []
    for training, table in _by_training(runs, task, own=False).items():
        if sign < 0 or training != CHOSEN_ON:
            rows = table.reindex(layers)
            leans, error = lean(rows)
            larger.append(int((sign * (rows[POSITIONAL] - rows[SYMBOLIC]) > 0).sum()))
            verdicts.append((sign * leans, null_verdict(sign * leans, error, draws)))
            texts.append(f"seed {training}: {larger[-1]} of {len(layers)} layers, lean {sign * leans:.2f}")
    value = f"follow the {'place' if sign > 0 else 'token'}: {'; '.join(texts)}"
    null = f"lean {min(draws):.2f} to {max(draws):.2f}" if draws else ""
    if not larger or not layers:
        return Finding(value, judged(False), null)
    everywhere, mostly = min(larger) == len(layers), min(larger) > len(layers) / 2
    verdict, reason = beside_draws(mostly, verdicts)
    count = sum(beyond(x, v) for x, v in verdicts)
    value += f"; {count} of {len(verdicts)} beyond random models"
    return Finding(value, IN_PART if verdict == REPRODUCED and not everywhere else verdict, null, reason)


def _leans_of_null(runs: Runs, task: str, layers: list[int]) -> list[float]:
    rows = runs.depths().null.query("task == @task and not own and depth == 0")
    rows = rows[rows["layer"].isin(layers)]
    return [float((draw[POSITIONAL] - draw[SYMBOLIC]).mean()) for _, draw in rows.groupby("draw")]


# How far a model generalises


def generalising(runs: Runs) -> pd.DataFrame:
    """One row per model and checkpoint: mean positional scores of both kinds over layers, accuracy at 17 and at 34 to 136
    tokens; only those that have learned their task."""
    layers, accuracy = runs.depths().layers, runs.depths().accuracy
    ends = layers[layers["own"] | (layers["depth"] == 0)]
    scores = ends.groupby([*MODEL, "own"])[POSITIONAL].mean().unstack("own")
    scores = scores.rename(columns={False: "prompt", True: "own_layer"})
    scores["trained"] = accuracy[accuracy["length"] == TRAINED].groupby(MODEL)["accuracy"].mean()
    scores["longer"] = accuracy[accuracy["length"].between(*LONGER)].groupby(MODEL)["accuracy"].mean()
    return scores[scores["trained"] > MOST].dropna().reset_index()


def told_by(points: pd.DataFrame) -> dict[str, float]:
    """Rank correlations of either score with the accuracy on longer inputs."""
    return {name: rank_correlation(points[name], points["longer"]) for name in ("prompt", "own_layer")}


def length_told(runs: Runs) -> Outcome:
    """Which score ranks models better by how far they generalise."""
    points = generalising(runs)
    trainings = [rows for _, rows in points.groupby(["task", "training"])]
    if len(trainings) < 3:
        return Outcome(f"{len(trainings)} trainings that learned their task", False)
    ranks = told_by(points)
    low, high = _difference(trainings)
    means = pd.DataFrame([rows[["prompt", "own_layer", "longer"]].mean() for rows in trainings])
    p = {name: _dealt(means[name], means["longer"]) for name in ranks}
    value = (
        f"rank correlation pos_0 {ranks['prompt']:.2f} (p = {p['prompt']:.4f}), own layer "
        f"{ranks['own_layer']:.2f} (p = {p['own_layer']:.4f}), difference "
        f"{ranks['prompt'] - ranks['own_layer']:.2f} [{low:.2f}, {high:.2f}]; {len(points)} models and checkpoints of "
        f"{len(trainings)} trainings"
    )
    inside = []
    for task, rows in points.groupby("task"):
        within = told_by(rows)
        inside.append(f"{task} pos_0 {within['prompt']:.2f}, own layer {within['own_layer']:.2f}")
    ranked = p["prompt"] <= LEVEL
    return Outcome(value, bool(ranked and high < 0), bool(ranked), f"within a task: {'; '.join(inside)}")


def _difference(trainings: list[pd.DataFrame], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of pos_0's rank correlation minus the other's, trainings resampled with all their checkpoints."""
    dice = np.random.default_rng(seed)
    values = [rows[["prompt", "own_layer", "longer"]].to_numpy(dtype=float) for rows in trainings]
    drawn = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([values[k] for k in dice.integers(len(values), size=len(values))])
        prompt, own, longer = (_ranks(column) for column in chosen.T)
        if min(prompt.std(), own.std(), longer.std()) > 0:  # one training, drawn again and again, ranks nothing
            drawn.append(np.corrcoef(prompt, longer)[0, 1] - np.corrcoef(own, longer)[0, 1])
    low, high = np.quantile(drawn, (0.025, 0.975)) if drawn else (np.nan, np.nan)
    return float(low), float(high)


def _ranks(values: np.ndarray) -> np.ndarray:
    """From one on; what is equal shares its mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def _dealt(score: pd.Series, accuracy: pd.Series, seed: int = 0) -> float:
    """How often accuracies dealt to other trainings are ranked as well (as negatively) by a score."""
    x, y = _ranks(score.to_numpy()), _ranks(accuracy.to_numpy())
    dealt = np.random.default_rng(seed).permuted(np.tile(y, (DEALS, 1)), axis=1)
    products, real = dealt @ (x - x.mean()), y @ (x - x.mean())
    return float((1 + (products <= real + 1e-9).sum()) / (1 + DEALS))


# Heads of a language model


def _classes(rows: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """By head, from scores per prompt: the class at its layer and in the permuted prompt (none where too little is covered)."""
    columns = [name for name in CLASSED_BY if name in rows]
    means = rows.groupby(INDEX)[columns].mean()
    classes = {"layer": purity_classes(means[POSITIONAL], means[SYMBOLIC], gamma)}
    permuted = permuted_scores({name: means[name] for name in columns})
    if permuted is not None:
        classes["prompt"] = purity_classes(*permuted, gamma)
    return pd.DataFrame(classes, index=means.index)


def _leaning(rows: pd.DataFrame, gamma: float) -> int:
    """How many heads that are pure symbolic at their layer follow the place more than the fact in the prompt."""
    heads = _classes(rows, gamma)
    covered = heads[(heads["layer"] == "symbolic") & heads["prompt"].notna()].index
    means = rows.groupby(INDEX)[INPUT_SCORES].mean().loc[covered]
    return int((means[INPUT_SCORES[0]] > means[INPUT_SCORES[1]]).sum())


def _count(rows: pd.DataFrame, gamma: float, at_layer: str, in_prompt: str) -> tuple[int, int, int]:
    """Heads with a class at their layer, those of them that the prompt's swaps cover, and those with a class in the prompt."""
    heads = _classes(rows, gamma)
    heads = heads[heads["layer"] == at_layer]
    return len(heads), int(heads["prompt"].notna().sum()), int((heads["prompt"] == in_prompt).sum())


def _interval(rows: pd.DataFrame, figure: Callable[[pd.DataFrame], float]) -> tuple[float, float]:
    """A figure's standard error over prompts (jackknife), and how far its 95 % interval reaches."""
    from scipy.special import stdtrit  # t quantiles; not needed to ask a command for help

    prompts = rows["prompt"].unique()
    left = np.array([figure(rows[rows["prompt"] != out]) for out in prompts])
    error = float(np.sqrt((len(left) - 1) / len(left) * ((left - left.mean()) ** 2).sum()))
    return error, float(error * stdtrit(len(left) - 1, 0.975))


def _more_than_random(run: SwapDepths, kind: str) -> tuple[float, Verdict, str]:
    """The share of heads of a class at their layer, what random models say of it, and how many they have."""

    def share(rows: pd.DataFrame) -> float:
        return float((_classes(rows[[*INDEX, *SCORES]], run.gamma)["layer"] == kind).mean())

    null = run.null_prompts
    draws = [share(rows) for _, rows in null[null["own"]].groupby("draw")]
    error, _ = _interval(run.scored, share)
    heads = len(run.scored.groupby(INDEX).size())
    counts = ", ".join(f"{round(x * heads)}" for x in draws)
    value = share(run.scored)
    return value, null_verdict(value, error, draws), f"{counts} such heads of {heads}"


def carried(runs: ClaimRuns) -> Finding:
    """What becomes of heads that are pure symbolic at their layer when the prompt is permuted."""
    run = runs.carried()

    def share(rows: pd.DataFrame) -> float:
        _, known, carried = _count(rows, run.gamma, "symbolic", "positional")
        return carried / known if known else 0.0

    heads, known, count = _count(run.scored, run.gamma, "symbolic", "positional")
    value = share(run.scored)
    error, reach = _interval(run.scored, share)
    low, high = np.clip([value - reach, value + reach], 0, 1)
    null_draws = run.null_scored.groupby("draw") if len(run.null_prompts) else []
    draws = [_count(rows, run.gamma, "symbolic", "positional") for _, rows in null_draws]
    shares = [carried / covered if covered else np.nan for _, covered, carried in draws]
    verdict, reason = beside_draws(bool(known and high > 0.5), [(value, null_verdict(value, error, shares))])
    if verdict == REPRODUCED and low <= 0.5:
        verdict = IN_PART
    words = f"{count} of {known} carried, {value:.2f} [{low:.2f}, {high:.2f}]"
    words += f" ({_leaning(run.scored, run.gamma)} follow the place more than the fact)"
    carried_there, covered_there = sum(draw[2] for draw in draws), sum(draw[1] for draw in draws)
    null = (
        f"{carried_there} of {covered_there} pure symbolic heads carried, in the {np.isfinite(shares).sum()} of {len(draws)} "
        "random models that have any"
    )
    return Finding(words, verdict, null, _note(run, heads - known, reason))


def _note(run: SwapDepths, uncovered: int, reason: str = "") -> str:
    covered = f"of {uncovered} more the swaps hold too little" if uncovered else ""
    return "; ".join(filter(None, (reason, f"on {run.name}", covered)))


def none_symbolic(runs: ClaimRuns) -> Finding:
    run = runs.carried()
    heads, known, count = _count(run.scored, run.gamma, "symbolic", "symbolic")
    return _counted(run, "symbolic", (heads, known, count), count == 0, count <= (1 - MOST) * known)


def positional_stay(runs: ClaimRuns) -> Finding:
    run = runs.carried()
    heads, known, count = _count(run.scored, run.gamma, "positional", "positional")
    return _counted(run, "positional", (heads, known, count), count == known, count >= MOST * known)


def _counted(run: SwapDepths, kind: str, counts: tuple[int, int, int], met: bool, in_part: bool) -> Finding:
    """The verdict on what heads of a class do, of which there must be more than in random models."""
    heads, known, count = counts
    value, null, text = _more_than_random(run, kind)
    verdict, reason = beside_draws(bool(known and (met or in_part)), [(value, null)])
    if verdict == REPRODUCED and not met:
        verdict = IN_PART
    words = f"{count} of {known} heads pure {kind} at their layer are pure {kind} in the prompt"
    return Finding(words, verdict, text, _note(run, heads - known, reason))


def carry_depth(runs: ClaimRuns) -> Finding:
    """How many positional heads the layers hold that can have written the place, beside layers dealt anew."""
    run = runs.curves()
    heads = run.at()
    carried = heads[heads["head_class"] == "carried"].dropna(subset="carry_depth")
    if carried.empty:
        return Finding("no carried head whose carry depth was located", judged(False), "", _note(run, 0))
    counts = heads[heads["head_class"] == "positional"].groupby("layer").size()
    at = carried["carry_depth"].dropna().to_numpy(dtype=int)
    layers = counts.reindex(range(int(carried["layer"].max())), fill_value=0).to_numpy(dtype=float)
    value = _near(layers, at)
    dice = np.random.default_rng(0)
    dealt = np.array([_near(dice.permutation(layers), at) for _ in range(DEALS)])
    p = float((1 + (dealt >= value).sum()) / (1 + DEALS))
    ends = np.quantile(dealt, (0.025, 0.975))
    text = (
        f"{value:.2f} positional heads at and right below {len(at)} carry depths (median {np.median(at):.1f}; positional heads: "
        f"median layer {np.median(np.repeat(counts.index, counts)):.1f}), p = {p:.4f}"
    )
    share, random, text_of_random = _more_than_random(run, "symbolic")
    verdict, reason = beside_draws(p <= LEVEL, [(share, random)])
    null = f"layers dealt anew {dealt.mean():.2f} [{ends[0]:.2f}, {ends[1]:.2f}]; {text_of_random}"
    return Finding(text, verdict, null, _note(run, 0, reason))


def _near(layers: np.ndarray, at: np.ndarray) -> float:
    """How many heads there are at depths and in the layers right below them, on average."""
    below = np.where(at > 0, layers[at - 1], 0.0)
    return float((layers[at] + below).mean())


CLAIMS = claims(
    {
        "ours-number-own-layer": BesideModels(own_layer),
        "ours-number-place": partial(follows, "number", 1),
        "ours-letter-fact": partial(follows, "letter", -1),
        "ours-length": BesideModels(length_told),
        "ours-carried": carried,
        "ours-none-symbolic": none_symbolic,
        "ours-positional-stay": positional_stay,
        "ours-carry-depth": carry_depth,
    }
)
