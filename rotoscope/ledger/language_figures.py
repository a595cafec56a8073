"""The figures of one language model that P1's claims are judged by, and the same figures of both nulls.

What is stored of a model is small: a table of figures, one row per (setting, figure, null, draw), and its accuracy in every
setting. A claim reads figures; it never needs the model again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from rotoscope.experiments.gate.result import UNGATED, Gating
from rotoscope.experiments.gate.run import gate
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.run import describe, profile
from rotoscope.ledger.verdicts import rank_correlation
from rotoscope.measures.measure import measure
from rotoscope.measures.null import fresh_model
from rotoscope.models.layer import LayerHeads
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.runs.record import Proof
from rotoscope.runs.result import SavedRun, Table, Tables
from rotoscope.runs.run import Run
from rotoscope.scores.classes import GAMMA, purity_classes
from rotoscope.stats.verdict import Figure, Verdict, verdicts
from rotoscope.tasks.binding import binding
from rotoscope.tasks.repeats import repeats

STORED = Path(__file__).parents[1] / "stored"
"""Runs that come with rotoscope."""
NULLS: tuple[Literal["random", "gaussian"], ...] = ("random", "gaussian")
SUBJECT = "subject"
USUAL = "chat-32"
"""The setting in which frequencies are scored."""
PLACES: dict[str, Any] = {"pairs": 16, "count": 128}
REPEATS: dict[str, Any] = {"length": 32, "count": 8, "blocks": "first"}
SHUFFLES, P_VALUE = 20_000, "shuffled p"
LOOKING = 0.1
"""Heads with less of their attention on the facts are not chosen as the most positional or symbolic one."""
NORM, ALIKE = "plane_norm_", "keys_alike"


@dataclass(frozen=True)
class Setting:
    """Binding prompts that a model is profiled on."""

    pairs: int
    prompts: int = 16
    prefix: Literal["start"] | None = None
    """The model's usual one, or a start token with "Answer:" at the end."""


SETTINGS = {
    "chat-32": Setting(32),
    "chat-64": Setting(64),
    "chat-256": Setting(256),
    "start-32": Setting(32, prefix="start"),
}


class LanguageFigures(SavedRun):
    """Figures of one language model by setting, beside those of random models and of Gaussian keys."""

    kind = "language figures"

    figures = Table(
        "One row per (setting, figure, null, draw): the value; for the subject also its standard error over prompts."
    )
    accuracy = Table("One row per setting: facts, prompts, and the share of right answers.")

    @cached_property
    def _values(self) -> pd.Series:
        rows = self.figures.sort_values("draw")
        return rows.set_index(["setting", "figure", "null"])["value"].sort_index(kind="stable")

    def draws(self, setting: str, figure: str, null: str) -> list[float]:
        """A figure of every draw of a null, in the order of the draws."""
        key = (setting, figure, null)
        return self._values.loc[[key]].tolist() if key in self._values.index else []

    def value(self, setting: str, figure: str) -> float:
        """The subject's figure; NaN where it was not measured."""
        return next(iter(self.draws(setting, figure, SUBJECT)), float("nan"))

    def right(self, setting: str) -> float:
        """The share of right answers in a setting; NaN where it was not measured."""
        rows = self.accuracy.set_index("setting")["accuracy"]
        return float(rows.get(setting, float("nan")))

    @cached_property
    def verdicts(self) -> dict[tuple[str, str, str], Verdict]:
        """What each null says, by (setting, figure, null): all figures beside one null are a family."""
        subject = self.figures[(self.figures["null"] == SUBJECT) & (self.figures["figure"] != P_VALUE)]
        judged: dict[tuple[str, str, str], Verdict] = {}
        for null in self.figures.loc[self.figures["null"] != SUBJECT, "null"].unique():
            rows = [row for row in subject.itertuples() if self.draws(row.setting, row.figure, null)]
            family = [Figure(row.value, row.error, self.draws(row.setting, row.figure, null)) for row in rows]
            for row, verdict in zip(rows, verdicts(family), strict=True):
                judged[row.setting, row.figure, null] = verdict
        return judged


# What is measured of each head beside its scores.


def _centred_norms(heads: LayerHeads) -> torch.Tensor:
    """The norm of every plane's logits over the visible keys, centred: softmax ignores what all keys share."""
    logits, visible = heads.plane_logits, heads.visible[:, None].to(heads.keys.dtype)
    mean = (logits * visible).sum(2, keepdim=True) / visible.sum()
    norms: torch.Tensor = ((logits - mean) * visible).norm(dim=2)
    return norms


@measure
def plane_norms(heads: LayerHeads) -> dict[str, torch.Tensor]:
    """A column for every plane."""
    norms = _centred_norms(heads)
    return {f"{NORM}{plane + 1}": norms[..., plane] for plane in range(norms.shape[-1])}


@measure
def keys_alike(heads: LayerHeads) -> dict[str, torch.Tensor]:
    """How far the swapped keys point one way in the plane whose logits vary most: 1 if they are all alike."""
    plane = _centred_norms(heads).argmax(-1)  # [batch, heads]
    keys = heads.keys[:, :, heads.swapped, : 2 * heads.planes].unflatten(-1, (-1, 2))
    keys = keys.repeat_interleave(heads.query.shape[2], dim=1)  # [batch, heads, positions, planes, 2]
    chosen = plane[:, :, None, None, None].expand(*keys.shape[:3], 1, 2)
    keys = keys.gather(3, chosen)[:, :, :, 0]
    return {ALIKE: torch.nn.functional.normalize(keys, dim=-1).mean(2).norm(dim=-1)}


# From scores to figures.


@dataclass(frozen=True)
class HeadArrays:
    """The scores of all heads, and of their planes where those were scored."""

    layer: np.ndarray
    """[heads]"""
    even: np.ndarray
    """Which prompts heads are chosen on; they are judged on the others [prompts]."""
    positional: np.ndarray
    """[prompts, heads], like what follows it"""
    symbolic: np.ndarray
    swapped_mass: np.ndarray
    alike: np.ndarray | None = None
    norms: np.ndarray | None = None
    """[prompts, heads, planes], like what follows it"""
    plane_positional: np.ndarray | None = None
    plane_symbolic: np.ndarray | None = None

    @classmethod
    def of(cls, heads: pd.DataFrame, planes: pd.DataFrame | None) -> HeadArrays:
        """From the tables of a profile, or of one draw of its null."""
        wide = heads.pivot(index="prompt", columns=["layer", "head"])
        prompts, count = len(wide), len(wide["positional_score"].columns)
        arrays: dict[str, Any] = {
            "layer": wide["positional_score"].columns.get_level_values("layer").to_numpy(),
            "even": np.arange(prompts) % 2 == 0,
            "positional": wide["positional_score"].to_numpy(dtype=float),
            "symbolic": wide["symbolic_score"].to_numpy(dtype=float),
            "swapped_mass": wide["swapped_mass"].to_numpy(dtype=float),
        }
        if planes is not None and len(planes):
            by_plane = planes[planes["frequency_id"] > 0].pivot(
                index="prompt", columns=["layer", "head", "frequency_id"]
            )
            shape = (prompts, count, -1)
            norms = [name for name in heads if name.startswith(NORM)]
            norms.sort(key=lambda name: int(name.removeprefix(NORM)))
            arrays |= {
                "alike": wide[ALIKE].to_numpy(dtype=float),
                "norms": np.stack([wide[name].to_numpy(dtype=float) for name in norms], -1),
                "plane_positional": by_plane["positional_score"].to_numpy(dtype=float).reshape(shape),
                "plane_symbolic": by_plane["symbolic_score"].to_numpy(dtype=float).reshape(shape),
            }
        return cls(**arrays)

    def without(self, prompt: int) -> HeadArrays:
        """The same, one prompt left out."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "layer"}
        return replace(self, **{k: np.delete(a, prompt, axis=0) for k, a in arrays.items() if a is not None})


def figures_of(scores: HeadArrays, *, shuffles: bool = True) -> dict[str, float]:
    """Every figure of one model, of a draw of a null, or of a model with a prompt left out."""
    positional, symbolic = scores.positional.mean(0), scores.symbolic.mean(0)
    early = scores.layer < (scores.layer.max() + 1) / 2
    figures = {
        "correlation": float(np.corrcoef(positional, symbolic)[0, 1]),
        "positional decline": float(np.median(positional[early]) - np.median(positional[~early])),
        "symbolic rise": float(np.median(symbolic[~early]) - np.median(symbolic[early])),
    }
    figures |= _chosen_heads(scores)
    if shuffles:
        figures[P_VALUE] = shuffled_p(positional, symbolic)
    if scores.norms is not None:
        figures |= _plane_figures(scores, positional, symbolic)
    return figures


def shuffled_p(positional: np.ndarray, symbolic: np.ndarray, seed: int = 0) -> float:
    """How often scores dealt to other heads at random are at least as anti-correlated."""
    centred, other = positional - positional.mean(), symbolic - symbolic.mean()
    dealt = np.random.default_rng(seed).permuted(np.tile(other, (SHUFFLES, 1)), axis=1) @ centred
    return float((1 + (dealt <= centred @ other + 1e-9).sum()) / (1 + SHUFFLES))


def _chosen_heads(scores: HeadArrays) -> dict[str, float]:
    """The most positional and the most symbolic head by half of the prompts, on the other half.

    In the swap that weighs most the larger weight stays where it was exactly when the positional cosine is the larger one.
    """
    lean = scores.positional - scores.symbolic
    stays, follows, alike = [], [], []
    for chosen in (scores.even, ~scores.even):
        if chosen.all() or not chosen.any():
            continue
        means, mass = lean[chosen].mean(0), scores.swapped_mass[chosen].mean(0)
        looking = mass >= LOOKING if (mass >= LOOKING).any() else np.ones(len(means), dtype=bool)
        positional = int(np.where(looking, means, -np.inf).argmax())
        symbolic = int(np.where(looking, means, np.inf).argmin())
        stays.append(lean[~chosen, positional] > 0)
        follows.append(lean[~chosen, symbolic] < 0)
        if scores.alike is not None:
            alike.append(scores.alike[~chosen, positional])
    means_of = {"peak stays": stays, "peak follows": follows, "keys alike": alike}
    return {name: float(np.concatenate(parts).mean()) for name, parts in means_of.items() if parts}


def _plane_figures(scores: HeadArrays, positional: np.ndarray, symbolic: np.ndarray) -> dict[str, float]:
    """Figures about planes: which are pure, and whether those with large centred norms lean like their head."""
    assert scores.norms is not None
    assert scores.plane_positional is not None
    assert scores.plane_symbolic is not None
    p, s = scores.plane_positional.mean(0), scores.plane_symbolic.mean(0)  # [heads, planes]
    place = np.arange(p.shape[1]) / max(p.shape[1] - 1, 1)  # 0 fastest, 1 slowest
    fast, slow = (place >= 1 / 8) & (place < 1 / 2), place >= 3 / 4
    weight = (scores.norms**2).mean(0)
    planes_lean = ((p - s) * weight).sum(1) / np.maximum(weight.sum(1), 1e-30)
    lean = positional - symbolic
    classes = pd.Series(purity_classes(pd.Series(positional), pd.Series(symbolic)))
    pure = classes.isin(["positional", "symbolic"]).to_numpy()
    fits = np.sign(lean[pure]) == np.sign(planes_lean[pure])
    return {
        "slow planes pure symbolic": float(((s >= 1 - GAMMA) & (p <= GAMMA))[:, slow].mean()),
        "fast planes pure positional": float(((p >= 1 - GAMMA) & (s <= GAMMA))[:, fast].mean()),
        "fastest plane both": float(((p >= 1 - GAMMA) & (s >= 1 - GAMMA))[:, 0].mean()),
        "heads lean like their planes": rank_correlation(pd.Series(lean), pd.Series(planes_lean)),
        "pure heads lean like their planes": float(fits.mean()) if len(fits) else 0.0,
    }


def jackknife(figure: Callable[[HeadArrays], dict[str, float]], scores: HeadArrays) -> dict[str, float]:
    """Standard errors over prompts, each left out once."""
    count = len(scores.even)
    left = pd.DataFrame([figure(scores.without(prompt)) for prompt in range(count)])
    return dict(np.sqrt((count - 1) * left.var(ddof=0))) if count > 1 else {}


# Measuring a model.


def measure_language(
    subject: Any,
    *,
    settings: dict[str, Setting] | None = None,
    draws: int = 19,
    controls: int = 19,
    places: int = PLACES["count"],
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> LanguageFigures:
    """All figures of a language model. A run that was stopped goes on with the setting it was at."""
    settings = SETTINGS if settings is None else settings
    subject = load(subject, device=device)
    about = {"model": subject.name, "draws": draws, "controls": controls, "places": places}
    about |= {"settings": {name: vars(setting) for name, setting in settings.items()}}
    run = Run(LanguageFigures, about | subject.settings, out, overwrite=overwrite, device=subject.device.type)
    if run.finished is not None:
        return run.finished
    reader = HeadReader(subject.model)
    for name, setting in settings.items():
        run.piece(name, partial(setting_figures, subject, name, setting, draws))
    run.piece("places", partial(_place_figures, subject, places))
    run.piece("gating", partial(_gate_figures, subject, controls))
    return run.finish(
        subject=describe(subject, reader, subject.fingerprint),
        proof=Proof(len(reader.proof), max(reader.proof, default=None), reader.way),
    )


def setting_figures(subject: Subject, name: str, setting: Setting, draws: int) -> Tables:
    """The subject and every draw of both nulls on the prompts of a setting."""
    ending: Literal["likes", "answer"] = "likes" if setting.prefix is None else "answer"
    prompts = binding(subject, setting.pairs, setting.prompts, prefix=setting.prefix, ending=ending)
    options: dict[str, Any] = {"examples": False}
    if name == USUAL:
        options |= {"frequencies": True, "measures": [plane_norms, keys_alike]}
    rows: list[dict[str, Any]] = []
    for null in NULLS:
        run = profile(subject, prompts, null=null, null_draws=draws, **options)
        if not rows:
            scores = HeadArrays.of(run.prompts, run.tables.get("prompt_frequencies"))
            errors = jackknife(partial(figures_of, shuffles=False), scores)
            figures = figures_of(scores) | {"share of the exclusion bound": bound_share(run.prompts)}
            rows += figure_rows(name, SUBJECT, -1, figures, errors)
            right = {
                "setting": name,
                "pairs": setting.pairs,
                "prompts": setting.prompts,
                "accuracy": run.accuracy,
            }
        rows += [row for draw in range(draws) for row in _draw_figures(name, run, null, draw)]
    return {"figures": pd.DataFrame(rows), "accuracy": pd.DataFrame([right])}


def bound_share(heads: pd.DataFrame) -> float:
    """The largest share of Theorem 1's bound that the variance of a head's logits takes up on a prompt."""
    bound = (heads["d_pos"] + heads["d_sym"]).clip(lower=1e-12)
    return float((heads["logit_variance"] / bound).max())


def _draw_figures(setting: str, run: Profile, null: str, draw: int) -> list[dict[str, Any]]:
    heads, planes = run.tables["null_prompts"], run.tables.get("null_prompt_frequencies")
    scores = HeadArrays.of(
        heads[(heads["null_name"] == null) & (heads["draw"] == draw)],
        None if planes is None else planes[(planes["null_name"] == null) & (planes["draw"] == draw)],
    )
    return figure_rows(setting, null, draw, figures_of(scores), {})


def figure_rows(
    setting: str, null: str, draw: int, figures: dict[str, float], errors: dict[str, float]
) -> list[dict[str, Any]]:
    """Rows of the table of figures."""
    about = {"setting": setting, "null": null, "draw": draw}
    return [
        about | {"figure": figure, "value": value, "error": errors.get(figure, float("nan"))}
        for figure, value in figures.items()
    ]


def _place_figures(subject: Subject, count: int) -> Tables:
    """Answers by where the asked fact stands, of the model and of the same model with fresh weights."""
    fresh = fresh_model(type(subject.model), subject.model.config, 0, subject.device).to(subject.model.dtype)
    rows = []
    for null, model in ((SUBJECT, subject), ("random", replace(subject, model=fresh, name="fresh weights"))):
        prompts = binding(subject, PLACES["pairs"], count)
        run = profile(model, prompts, null="none", examples=False)
        values, errors = place_figures(run.answers, PLACES["pairs"])
        rows += figure_rows("places", null, -1 if null == SUBJECT else 0, values, errors)
    right = {"setting": "places", "pairs": PLACES["pairs"], "prompts": count, "accuracy": rows[0]["value"]}
    return {"figures": pd.DataFrame(rows), "accuracy": pd.DataFrame([right])}


def place_figures(answers: pd.DataFrame, pairs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracy, and rank correlations with the distance from the middle; errors by Fisher's z."""
    answers = answers.dropna(subset=["asked_block"])
    ends = (answers["asked_block"] / (pairs - 1) - 0.5).abs()
    trends = {name: rank_correlation(ends, answers[name]) for name in ("log_likelihood", "asked_attention")}
    accuracy, count = float(answers["correct"].mean()), len(answers)
    reach = 1 / np.sqrt(max(count - 3, 1))
    errors = {name: (1 - trend**2) * reach for name, trend in trends.items()}
    spread = float(np.sqrt(accuracy * (1 - accuracy) / count))
    return {"accuracy": accuracy, **trends}, {"accuracy": spread, **errors}


def _gate_figures(subject: Subject, controls: int) -> Tables:
    """Repeated tokens, with the fast or the slow half of the frequencies taken from the symbolic heads."""
    run = gate(subject, repeats(subject, **REPEATS), bands=2, groups=("symbolic",), controls=controls)
    rows, right = gate_figures(run)
    accuracy = {"setting": "gating", "pairs": 0, "prompts": REPEATS["count"], "accuracy": right}
    return {"figures": pd.DataFrame(rows), "accuracy": pd.DataFrame([accuracy])}


def gate_figures(run: Gating) -> tuple[list[dict[str, Any]], float]:
    """The share of the loss there is to lose that goes without either half, of the heads and of every random group.

    Random groups are shown fewer prompts, and prompts differ a lot: all figures are those of the prompts that all were shown.
    """
    table = run.conditions[run.conditions["source"] == "task"]
    right = float(table.loc[table["condition"] == UNGATED, "accuracy"].mean())
    shown = table.loc[table["control"], "prompt"].unique()
    table = table[table["prompt"].isin(shown)] if len(shown) else table
    plain = table[~table["control"]]
    losses = {name: rows.set_index("prompt")["loss"] for name, rows in plain.groupby("condition")}
    intact, nothing = losses[UNGATED], losses["remove all"]
    kept = sorted(plain.loc[plain["action"] == "keep", "condition"].unique(), key=_first_id)
    rows: list[dict[str, Any]] = []
    if len(kept) == 2:
        for figure, condition in zip(("loss without slow half", "loss without fast half"), kept, strict=True):
            for draw, group in table[table["condition"] == condition].groupby("draw"):
                lost = (group.set_index("prompt")["loss"] - intact) / (nothing.mean() - intact.mean())
                null = SUBJECT if draw < 0 else "other heads"
                error = {figure: float(lost.std(ddof=1) / np.sqrt(len(lost)))} if draw < 0 else {}
                rows += figure_rows("gating", null, int(draw), {figure: float(lost.mean())}, error)
    return rows, right


def _first_id(condition: str) -> int:
    return int(condition.split()[1].split("-")[0])
