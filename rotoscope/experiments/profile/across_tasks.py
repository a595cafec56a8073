"""Where the differences between scores come from: the head, the task, the prompt.

The score of head h on prompt p of task t is taken for a sum of independent random parts,

    score = mean + head_h + task_t + (head x task)_ht + prompt_p(t) + rest_htp,

prompts belonging to their task and seen by every head. Each part has a variance; the mean squares of the balanced table
give an unbiased estimate of it (the estimates of an analysis of variance, which may come out below zero where there is
nothing).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.run import profile, subject_settings
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.models.loading import load
from rotoscope.plotting.palette import AMBER, INK, NULL, ROSE, SKY, VIOLET
from rotoscope.runs.result import SavedRun, SummaryTable, Table, Tables
from rotoscope.runs.run import Run
from rotoscope.shapes import Float
from rotoscope.stats.aggregate import HEAD, SCORES
from rotoscope.stats.intervals import INTERVAL, one_row_per_input
from rotoscope.stats.verdict import holm
from rotoscope.tasks.prompt import Prompts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPONENTS = ("head", "task", "head x task", "prompt", "rest")


def variance_components(scores: Float[np.ndarray, "heads tasks prompts"]) -> dict[str, float]:
    """The variance of each part, from at least two heads, tasks and prompts."""
    heads, tasks, prompts = scores.shape
    if min(scores.shape) < 2:
        raise ValueError(f"components need two heads, tasks and prompts at least, found {scores.shape}")
    mean = scores.mean()
    of_head, of_task = scores.mean((1, 2)), scores.mean((0, 2))
    of_both, of_prompt = scores.mean(2), scores.mean(0)
    interaction = of_both - of_head[:, None] - of_task[None, :] + mean
    rest = scores - of_both[:, :, None] - of_prompt[None] + of_task[None, :, None]
    head_ms = tasks * prompts * np.square(of_head - mean).sum() / (heads - 1)
    task_ms = heads * prompts * np.square(of_task - mean).sum() / (tasks - 1)
    both_ms = prompts * np.square(interaction).sum() / ((heads - 1) * (tasks - 1))
    prompt_ms = heads * np.square(of_prompt - of_task[:, None]).sum() / (tasks * (prompts - 1))
    rest_ms = np.square(rest).sum() / (tasks * (heads - 1) * (prompts - 1))
    return {
        "head": float(head_ms - both_ms) / (tasks * prompts),
        "task": float(task_ms - prompt_ms - both_ms + rest_ms) / (heads * prompts),
        "head x task": float(both_ms - rest_ms) / prompts,
        "prompt": float(prompt_ms - rest_ms) / heads,
        "rest": float(rest_ms),
    }


# Is a class a property of the head or of the prompt? The same heads on several tasks.


SHUFFLES = 2000
COMPONENT_SHUFFLES = 200


class Agreement(SavedRun):
    """Classes and scores of one model's heads on several tasks, at the first tau."""

    kind = "agreement"

    tasks = Table("One row per task: prompts, the model's own accuracy, chance, and the heads of each class.")
    heads = Table("One row per (task, layer, head): both scores and the class.")
    pairs = Table(
        "One row per two tasks: the share of heads with the same class in both, and what labels shuffled among the "
        "heads of a layer give (`null_share`, where 95 % of them lie, `p_value` after Holm's correction)."
    )
    components = Table(
        "One row per (score, component): its variance, its share of all, and the variance that is left when heads are "
        "shuffled within their layer in every task (`null_variance`); empty with fewer than two prompts a task.",
        optional=True,
    )

    def classes(self) -> pd.DataFrame:
        """One row per (layer, head): its class on each task, and whether it is the same on all of them."""
        wide = _classes(self.heads)
        same = wide.notna().all(axis=1) & (wide.nunique(axis=1) == 1)
        return wide.assign(same_on_all=same).rename_axis(columns=None).reset_index()

    def caveats(self) -> list[str]:
        """What a reader must know before trusting the numbers."""
        sentences = []
        if not len(self.components):
            sentences.append(
                "no variance components: they need two heads with scores and two prompts in every task"
            )
        if self.pairs["p_value"].isna().all():
            sentences.append("no null: every layer has one head, and there is nothing to shuffle")
        return sentences

    def summaries(self) -> list[SummaryTable]:
        """How far the tasks agree on the heads' classes."""
        agreement = "Heads with the same class on two tasks; null: labels shuffled within layers"
        variance = "Variance of the scores over heads, tasks and prompts"
        return [
            SummaryTable(agreement, lambda: self.pairs, ("pairs",)),
            SummaryTable("The tasks, and the heads of each class", lambda: self.tasks, ("tasks",)),
            SummaryTable(variance, lambda: self.components, ("components",)),
            SummaryTable("The class of every head on each task", self.classes, ("heads",)),
        ]

    def __repr__(self) -> str:
        pairs = ", ".join(f"{row.task} and {row.other_task} {row.share:.0%}" for row in self.pairs.itertuples())
        return f"Agreement({self.name!r}: heads of one class in {pairs})"


def agreement_tables(profiles: Mapping[str, Profile], seed: int = 0) -> Tables:
    """The tables of an `Agreement` from profiles of one model, by the name of their task."""
    if len(profiles) < 2:
        raise RotoscopeError(f"agreement needs profiles on two tasks at least, found {len(profiles)}")
    heads = pd.concat(
        [profile.at()[[*HEAD, *SCORES, "head_class"]].assign(task=task) for task, profile in profiles.items()],
        ignore_index=True,
    )[["task", *HEAD, *SCORES, "head_class"]]
    tables = {
        "tasks": pd.DataFrame([_about(task, profile) for task, profile in profiles.items()]),
        "heads": heads,
        "pairs": class_agreement(heads, seed),
    }
    components = score_components(profiles, seed)
    return tables | ({"components": components} if len(components) else {})


def _about(task: str, profile: Profile) -> dict[str, object]:
    numbers = {
        "prompts": profile.prompts["prompt"].nunique(),
        "accuracy": np.nan if profile.accuracy is None else profile.accuracy,
        "chance": np.nan if profile.chance is None else profile.chance,
    }
    return {"task": task, **numbers, **profile.summary().classes}


def class_agreement(heads: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The share of heads that have the same class on two tasks, for every two of them, beside shuffled labels.

    Labels are shuffled among the heads of a layer, so that two tasks do not agree because both say what depth says. A
    head without a score on either task does not count.
    """
    wide = _classes(heads)
    dice = np.random.default_rng(seed)
    rows = []
    for first, second in itertools.combinations(wide.columns, 2):
        known = wide[[first, second]].dropna()
        a, b = (known[task].to_numpy(dtype=str) for task in (first, second))
        layers = known.index.get_level_values("layer").to_numpy()
        agreed = int((a == b).sum())
        row = {"task": first, "other_task": second, "heads": len(known), "agreed": agreed}
        row |= {"share": agreed / len(known) if len(known) else np.nan}
        rows.append(row | _null(a, b, layers, dice))
    table = pd.DataFrame(rows)
    table["p_value"] = holm(table["p_value"].to_numpy(dtype=float))
    return table


def _classes(heads: pd.DataFrame) -> pd.DataFrame:
    """The class of every head, a column per task in the order given."""
    return heads.pivot(index=HEAD, columns="task", values="head_class")[list(dict.fromkeys(heads["task"]))]


def _null(a: np.ndarray, b: np.ndarray, layers: np.ndarray, dice: np.random.Generator) -> dict[str, float]:
    """What independent labels give; nothing where no layer has two heads."""
    if len(layers) == len(set(layers.tolist())):
        return dict.fromkeys(("null_share", "null_low", "null_high", "p_value"), np.nan)
    shares = np.array([(a == b[shuffled_within(layers, dice)]).mean() for _ in range(SHUFFLES)])
    low, high = np.quantile(shares, INTERVAL)
    beyond = 1 + int((shares >= (a == b).mean()).sum())
    return {
        "null_share": float(shares.mean()),
        "null_low": float(low),
        "null_high": float(high),
        "p_value": beyond / (1 + SHUFFLES),
    }


def shuffled_within(layers: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """For every head, a random one of its layer, each taken once."""
    order = np.empty(len(layers), dtype=int)
    order[np.argsort(layers, kind="stable")] = np.lexsort((dice.random(len(layers)), layers))
    return order


def score_components(profiles: Mapping[str, Profile], seed: int = 0) -> pd.DataFrame:
    """The variance of both scores over head, task and prompt; of every task as many prompts as the fewest have.

    Heads without a score on some prompt are left out. Empty where there are not two of everything.
    """
    rows = []
    for score in SCORES:
        scores, layers = _cube(profiles, score)
        if min(scores.shape) < 2:
            return pd.DataFrame()
        dice = np.random.default_rng(seed)
        variances = variance_components(scores)
        shuffled = [variance_components(_shuffled(scores, layers, dice)) for _ in range(COMPONENT_SHUFFLES)]
        total = sum(max(0.0, value) for value in variances.values())
        for name in COMPONENTS:
            share = max(0.0, variances[name]) / total if total else np.nan
            null = float(np.mean([drawn[name] for drawn in shuffled]))
            rows.append(
                {"score": score, "component": name, "variance": variances[name], "share": share}
                | {"null_variance": null, "heads": len(scores), "prompts": scores.shape[2]}
            )
    return pd.DataFrame(rows)


def _cube(profiles: Mapping[str, Profile], score: str) -> tuple[np.ndarray, np.ndarray]:
    """[heads, tasks, prompts] and the layer of each head."""
    wide = []
    for own in profiles.values():
        rows = one_row_per_input(own.prompts, [*HEAD, "tau"])
        rows = rows[rows["tau"] == own.taus[0]]
        wide.append(rows.pivot(index=HEAD, columns="prompt", values=score).sort_index())
    fewest = min(table.shape[1] for table in wide)
    cut = [table.iloc[:, :fewest].dropna() for table in wide]
    kept = cut[0].index
    for table in cut[1:]:
        kept = kept.intersection(table.index)
    cube = np.stack([table.loc[kept].to_numpy(dtype=float) for table in cut], axis=1)
    return cube, kept.get_level_values("layer").to_numpy()


def _shuffled(scores: np.ndarray, layers: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Every task with heads of its own in each layer's places."""
    return np.stack([scores[shuffled_within(layers, dice), task] for task in range(scores.shape[1])], axis=1)


# The same heads on several tasks: does a class belong to the head, or to the prompt?


def agreement(
    profiles: Sequence[Profile], *, seed: int = 0, out: str | Path | None = None, overwrite: bool = False
) -> Agreement:
    """How far profiles of one model on several tasks agree: classes by pairs of tasks, and variance by its source.

    Profiles on the same task, say with two prefixes, are told apart by a number.
    """
    named = dict(zip(_names([profile.run.settings["task"] for profile in profiles]), profiles, strict=True))
    for key in ("fingerprint", "tau", "gamma", "input_swaps"):
        values = {str(profile.run.settings.get(key) or 0) for profile in profiles}
        if len(values) > 1:
            raise RotoscopeError(
                f"profiles that differ in {key} cannot be compared: {', '.join(sorted(values))}"
            )
    settings = {
        "model": profiles[0].name if profiles else None,
        "tasks": {name: profile.run.settings for name, profile in named.items()},
        "seed": seed,
    }
    run = Run(Agreement, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    run.piece("agreement", lambda: agreement_tables(named, seed))
    return run.finish(subject=profiles[0].run.subject)


def profile_tasks(
    subject: Any,
    prompts: Sequence[Prompts],
    settings: ProfileSettings | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> tuple[dict[str, Profile], Agreement]:
    """Profile a model on several tasks, and say how far they agree (see `agreement`); settings as for `profile`.

    With `out`, every profile is a run of its own in a folder named after its task, and the agreement the run in `out`
    itself; a killed one goes on where it was.
    """
    chosen = ProfileSettings.make(settings, **changes)
    if len(prompts) < 2:
        raise RotoscopeError(f"agreement needs prompts of two tasks at least, found {len(prompts)}")
    subject = load(subject)
    shown = dict(zip(_names([part.task for part in prompts]), prompts, strict=True))
    about = {name: subject_settings(subject, part) for name, part in shown.items()}
    described = {"model": subject.name, "tasks": about} | chosen.stored() | {"seed": seed}
    run = Run(Agreement, described, out, overwrite=overwrite)
    if run.finished is None:
        run.begin()  # the profiles lie in its folder
    options: dict[str, Any] = {"seed": seed, "overwrite": overwrite, "show_progress": show_progress}
    profiles = {
        name: profile(subject, part, chosen, out=None if out is None else Path(out) / name, **options)
        for name, part in shown.items()
    }
    if run.finished is not None:
        return profiles, run.finished
    run.piece("agreement", lambda: agreement_tables(profiles, seed))
    return profiles, run.finish(subject=next(iter(profiles.values())).run.subject)


def _names(tasks: Sequence[str]) -> list[str]:
    """The tasks, told apart by a number where one comes again."""
    return [
        task if tasks[:k].count(task) == 0 else f"{task}-{tasks[:k].count(task) + 1}"
        for k, task in enumerate(tasks)
    ]


# The same heads on several tasks: how many keep their class, and where the differences come from.


COLOURS = dict(zip(COMPONENTS, (ROSE, AMBER, SKY, VIOLET, NULL), strict=True))
SCORE_NAMES = {"positional_score": "positional", "symbolic_score": "symbolic"}


def task_agreement(run: Agreement) -> Figure:
    """Left, the share of heads with the same class on two tasks beside shuffled labels; right, variance by its source."""
    from rotoscope.plotting.style import TEXT_WIDTH, caption, drawing, shared_legend

    pairs, components = run.pairs, run.components
    rows = range(len(pairs))
    with drawing(TEXT_WIDTH, 1.8 + 0.28 * max(4, len(pairs)), 1, 2) as (figure, (left, right)):
        left.hlines(rows, pairs["null_low"], pairs["null_high"], color=NULL, linewidth=6, alpha=0.6)
        left.plot(pairs["share"], rows, "o", color=INK, markersize=5)
        left.set_yticks(rows, [f"{row.task}, {row.other_task}" for row in pairs.itertuples()])
        left.set(xlim=(-0.02, 1.02), xlabel="share of heads with the same class", ylim=(len(pairs) - 0.5, -0.5))
        left.set_title("classes on two tasks", loc="left")
        right.set_title("variance of a score", loc="left")
        right.set(xlim=(0, 1), xlabel="share of the variance")
        if len(components):
            wide = components.pivot(index="score", columns="component", values="share")[list(COMPONENTS)]
            before = 0.0 * wide[COMPONENTS[0]]
            for name, colour in COLOURS.items():
                right.barh(range(len(wide)), wide[name], left=before, color=colour, label=name, height=0.6)
                before = before + wide[name]
            right.set_yticks(range(len(wide)), [SCORE_NAMES[score] for score in wide.index])
            right.set_ylim(1.6, -0.6)
            shared_legend(figure, right, ncols=5)
        else:
            right.remove()
    prompts = ", ".join(f"{row.task} ({row.prompts} prompts)" for row in run.tasks.itertuples())
    return caption(
        figure,
        f"{run.name}; {prompts}\ngrey: where 95 % of labels shuffled among the heads of a layer lie; negative estimates of a "
        "variance are drawn as none",
    )


def agreement_figures(run: Agreement) -> Iterator[tuple[str, Figure]]:
    """Agreement between tasks."""
    yield "task_agreement", task_agreement(run)
