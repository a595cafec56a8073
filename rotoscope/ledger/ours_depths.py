"""Ours: what heads and layers follow with blocks exchanged at some depth, in language models and in multi-hop models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.ledger.claim import beside_untrained, claims, rank_correlation
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.depth_runs import MODEL, lean
from rotoscope.ledger.p1_models import banded, further
from rotoscope.ledger.verdicts import Finding, Found, goes_beyond, judged
from rotoscope.scores.classes import purity_classes
from rotoscope.stats.aggregate import CLASSED_BY, INDEX, INPUT_SCORES, SCORES, permuted_scores

POSITIONAL, SYMBOLIC = SCORES
LATE = range(7, 12)
"""Layers of the number model that are pure symbolic at their own layer in all seeds."""
MOST = 0.9
"""What counts as nearly all."""
DEALS, RESAMPLES, LEVEL = 10_000, 1000, 0.05
TRAINED, LONGER = 17, (34, 136)
"""Tokens of a training input, and twice to eight times as many."""


# Layers of multi-hop models


def _by_training(workshop: Workshop, task: str, own: bool) -> dict[str, pd.DataFrame]:
    """The layers of every training's last model, at their own layer or with the prompt permuted."""
    rows = workshop.depths.last.query("task == @task and own == @own and (own or depth == 0)")
    return {str(name): table.set_index("layer").sort_index() for name, table in rows.groupby("training")}


def own_layer(workshop: Workshop) -> Found:
    """Which of the late layers of the number model are pure symbolic where the papers swap."""
    texts, counts = [], []
    for training, table in _by_training(workshop, "number", own=True).items():
        late = table.reindex(list(LATE))
        classes = purity_classes(late[POSITIONAL], late[SYMBOLIC])
        pure = [layer for layer, name in zip(LATE, classes, strict=True) if name == "symbolic"]
        texts.append(f"seed {training}: {pure}")
        counts.append(len(pure))
    value = f"pure symbolic at their own layer: {'; '.join(texts)}"
    return Found(value, min(counts) == len(LATE), min(counts) > len(LATE) / 2)


def follows(task: str, layers: range, sign: int, workshop: Workshop) -> Finding:
    """In how many layers the score that is said is the larger one with the prompt permuted, in every training.

    `sign` is 1 for the place, -1 for the token.
    """
    draws = [sign * x for x in _leans_of_null(workshop, task, layers)]
    texts, there, beyond = [], [], []
    for training, table in _by_training(workshop, task, own=False).items():
        rows = table.reindex(list(layers))
        leans, error = lean(rows)
        there.append(int((sign * (rows[POSITIONAL] - rows[SYMBOLIC]) > 0).sum()))
        beyond.append(goes_beyond(sign * leans, error, draws))
        texts.append(f"seed {training}: {there[-1]} of {len(layers)} layers, lean {sign * leans:.2f}")
    value = f"follow the {'place' if sign > 0 else 'token'}: {'; '.join(texts)}"
    further = f"{sum(beyond)} of {len(beyond)} beyond random models"
    verdict = judged(
        min(there) == len(layers), in_part=min(there) > len(layers) / 2, null=0 if all(beyond) else 2
    )
    return Finding(f"{value}; {further}", verdict, f"lean {min(draws):.2f} to {max(draws):.2f}")


def _leans_of_null(workshop: Workshop, task: str, layers: range) -> list[float]:
    rows = workshop.depths.null.query("task == @task and not own and depth == 0")
    rows = rows[rows["layer"].isin(layers)]
    return [float((draw[POSITIONAL] - draw[SYMBOLIC]).mean()) for _, draw in rows.groupby("draw")]


# How far a model generalises


def generalising(workshop: Workshop) -> pd.DataFrame:
    """One row per model and checkpoint: mean positional scores of both kinds over layers, accuracy at 17 and at 34 to 136
    tokens; only those that have learned their task."""
    layers, accuracy = workshop.depths.layers, workshop.depths.accuracy
    ends = layers[layers["own"] | (layers["depth"] == 0)]
    scores = ends.groupby([*MODEL, "own"])[POSITIONAL].mean().unstack("own")
    scores = scores.rename(columns={False: "prompt", True: "own_layer"})
    scores["trained"] = accuracy[accuracy["length"] == TRAINED].groupby(MODEL)["accuracy"].mean()
    scores["longer"] = accuracy[accuracy["length"].between(*LONGER)].groupby(MODEL)["accuracy"].mean()
    return scores[scores["trained"] > MOST].dropna().reset_index()


def told_by(points: pd.DataFrame) -> dict[str, float]:
    """Rank correlations of either score with the accuracy on longer inputs."""
    return {name: rank_correlation(points[name], points["longer"]) for name in ("prompt", "own_layer")}


def length_told(workshop: Workshop) -> Found:
    """Which score ranks models better by how far they generalise."""
    points = generalising(workshop)
    trainings = [rows for _, rows in points.groupby(["task", "training"])]
    if len(trainings) < 3:
        return Found(f"{len(trainings)} trainings that learned their task", False)
    found = told_by(points)
    low, high = _difference(trainings)
    means = pd.DataFrame([rows[["prompt", "own_layer", "longer"]].mean() for rows in trainings])
    p = {name: _dealt(means[name], means["longer"]) for name in found}
    value = (
        f"rank correlation pos_0 {found['prompt']:.2f} (p = {p['prompt']:.4f}), own layer "
        f"{found['own_layer']:.2f} (p = {p['own_layer']:.4f}), difference "
        f"{found['prompt'] - found['own_layer']:.2f} [{low:.2f}, {high:.2f}]; {len(points)} models and checkpoints of "
        f"{len(trainings)} trainings"
    )
    inside = []
    for task, rows in points.groupby("task"):
        told = told_by(rows)
        inside.append(f"{task} pos_0 {told['prompt']:.2f}, own layer {told['own_layer']:.2f}")
    ranks = p["prompt"] <= LEVEL
    return Found(value, bool(ranks and high < 0), bool(ranks), f"within a task: {'; '.join(inside)}")


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
    found: np.ndarray = (np.cumsum(count) - (count - 1) / 2)[place]
    return found


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
    found = {"layer": purity_classes(means[POSITIONAL], means[SYMBOLIC], gamma)}
    permuted = permuted_scores({name: means[name] for name in columns})
    if permuted is not None:
        found["prompt"] = purity_classes(*permuted, gamma)
    return pd.DataFrame(found, index=means.index)


def _leaning(rows: pd.DataFrame, gamma: float) -> int:
    """How many heads that are pure symbolic at their layer follow the place more than the fact in the prompt."""
    heads = _classes(rows, gamma)
    seen = heads[(heads["layer"] == "symbolic") & heads["prompt"].notna()].index
    means = rows.groupby(INDEX)[INPUT_SCORES].mean().loc[seen]
    return int((means[INPUT_SCORES[0]] > means[INPUT_SCORES[1]]).sum())


def _share(rows: pd.DataFrame, gamma: float, at_layer: str, in_prompt: str) -> tuple[int, int, int]:
    """How many heads have a class at their layer, of how many of them the prompt says something, and how many are so there."""
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


def _more_than_random(run: SwapDepths, kind: str) -> tuple[bool, str]:
    """Whether more heads are of a class at their layer than in random models, and how many there are in those."""

    def share(rows: pd.DataFrame) -> float:
        return float((_classes(rows[[*INDEX, *SCORES]], run.gamma)["layer"] == kind).mean())

    null = run.null_prompts
    draws = [share(rows) for _, rows in null[null["own"]].groupby("draw")]
    error, _ = _interval(run.scored, share)
    heads = len(run.scored.groupby(INDEX).size())
    counts = ", ".join(f"{round(x * heads)}" for x in draws)
    return goes_beyond(share(run.scored), error, draws), f"{counts} such heads of {heads}"


def _carried_row(run: SwapDepths) -> pd.Series:
    return run.statistics().set_index("statistic").loc["carried of symbolic"]


def _null_of_carried(row: pd.Series) -> str:
    """Of the draws that have heads pure symbolic at their layer, the share of these that stays."""
    draws = int(row["null_draws"])
    if not draws:
        return "no draw has a symbolic head"
    share = banded(row, "null_") if draws > 1 else f"{row['null_value']:.2f}"
    return f"of symbolic heads {share} carried, in {draws} draw{'s' * (draws > 1)} with such heads"


def carried(workshop: Workshop) -> Finding:
    """What becomes of heads that are pure symbolic at their layer when the prompt is permuted."""
    run = workshop.carried

    def share(rows: pd.DataFrame) -> float:
        _, known, there = _share(rows, run.gamma, "symbolic", "positional")
        return there / known if known else 0.0

    heads, known, there = _share(run.scored, run.gamma, "symbolic", "positional")
    _, reach = _interval(run.scored, share)
    value = share(run.scored)
    low, high = np.clip([value - reach, value + reach], 0, 1)
    row = _carried_row(run)
    text = (
        f"{there} of {known} carried, {value:.2f} [{low:.2f}, {high:.2f}] ({_leaning(run.scored, run.gamma)} follow the place "
        "more than the fact)"
    )
    beyond = further(row)
    verdict = judged(beyond and low > 0.5, in_part=beyond)
    return Finding(text, verdict, _null_of_carried(row), _asked(workshop, heads - known))


def _asked(workshop: Workshop, unknown: int) -> str:
    asked = workshop.asked_of()
    return asked + (f"; of {unknown} more the swaps hold too little" if unknown else "")


def none_symbolic(workshop: Workshop) -> Finding:
    run = workshop.carried
    heads, known, there = _share(run.scored, run.gamma, "symbolic", "symbolic")
    return _counted(workshop, "symbolic", heads, known, there, there == 0, there <= (1 - MOST) * known)


def positional_stay(workshop: Workshop) -> Finding:
    run = workshop.carried
    heads, known, there = _share(run.scored, run.gamma, "positional", "positional")
    return _counted(workshop, "positional", heads, known, there, there == known, there >= MOST * known)


def _counted(
    workshop: Workshop, kind: str, heads: int, known: int, there: int, as_said: bool, in_part: bool
) -> Finding:
    beyond, null = _more_than_random(workshop.carried, kind)
    text = f"{there} of {known} heads pure {kind} at their layer are pure {kind} in the prompt"
    verdict = judged(known > 0 and as_said, in_part=known > 0 and in_part, null=0 if beyond else 2)
    return Finding(text, verdict, null, _asked(workshop, heads - known))


def carry_depth(workshop: Workshop) -> Finding:
    """How many positional heads the layers hold that can have written the place, beside layers dealt anew."""
    run = workshop.curves
    heads = run.at()
    row = _carried_row(run)
    null = _null_of_carried(row)
    carried = heads[heads["head_class"] == "carried"]
    if carried["carry_depth"].isna().all():
        return Finding(
            "no carried head whose carry depth was located", judged(False), null, workshop.asked_of()
        )
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
    null = f"layers dealt anew {dealt.mean():.2f} [{ends[0]:.2f}, {ends[1]:.2f}]; {null}"
    return Finding(text, judged(p <= LEVEL), null, workshop.asked_of())


def _near(layers: np.ndarray, at: np.ndarray) -> float:
    """How many heads there are at depths and in the layers right below them, on average."""
    below = np.where(at > 0, layers[at - 1], 0.0)
    return float((layers[at] + below).mean())


COMPUTED: dict[str, Callable[[Workshop], Finding]] = {
    "ours-number-own-layer": beside_untrained(own_layer),
    "ours-number-place": partial(follows, "number", LATE, 1),
    "ours-letter-fact": partial(follows, "letter", range(12), -1),
    "ours-length": beside_untrained(length_told),
}
LANGUAGE = claims(
    {
        "ours-carried": carried,
        "ours-none-symbolic": none_symbolic,
        "ours-positional-stay": positional_stay,
        "ours-carry-depth": carry_depth,
    },
    learned=True,
)
CLAIMS = [*claims(COMPUTED, learned=True), *LANGUAGE]
