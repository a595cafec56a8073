"""What a reader must know before trusting a profile's scores: one sentence each."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import pandas as pd

from rotoscope.experiments.prompt_settings import DRAWN, OWN, PromptSettings
from rotoscope.runs.result import NextStep
from rotoscope.scores.classes import CLASSES
from rotoscope.stats.statistics import Summary
from rotoscope.stats.verdict import ENOUGH_DRAWS
from rotoscope.terminal import NOT_ASKED, Grid, Lines, Screen

if TYPE_CHECKING:
    from rotoscope.experiments.depths.result import SwapDepths
    from rotoscope.experiments.profile.result import Profile
    from rotoscope.runs.record import RunRecord


EXAMPLES = 4
"""Heads that are named of each class."""
INDENT = 2
ENOUGH_PROMPTS = 16
"""How many prompts are advised where there are fewer."""
SHOWN = {
    "share symbolic": "symbolic heads",
    "share positional": "positional heads",
    "carried of symbolic": "of these carried",
    "correlation": "scores correlate",
}
"""Statistics on the screen; the others stand behind --verbose."""
SCORE_OF = {"positional": "positional_score", "symbolic": "symbolic_score", "carried": "input_positional_score"}


def profile_screen(profile: Profile) -> Screen:
    """What a terminal shows of a profile."""
    statistics = [
        (f"Statistics at tau = {tau:g}", lambda tau=tau: profile.statistics(tau)) for tau in profile.taus
    ]
    tables = [(table.title, table.make) for table in profile.available_summaries()]
    return Screen(
        found=score_lines(profile),
        against=null_lines(profile.null_name, profile.statistics()),
        details=[*statistics, *tables],
    )


def score_lines(profile: Profile) -> list[str | Grid]:
    """Answers, classes and the heads with most attention at stake: what is known before any null is drawn."""
    lines: list[str | Grid] = []
    if profile.accuracy is not None:
        chance = "" if profile.chance is None else f" (chance {profile.chance:.0%})"
        right = int(profile.answers["correct"].sum())
        lines.append(f"answers {right}/{len(profile.answers)} right{chance}")
    lines += [class_line(profile.summary()), *unstable_line(profile), ""]
    lines.append("most attention at stake (layer:head, score, attention on what is swapped)")
    return [*lines, examples_grid(profile.at())]


def permuted_lines(profile: Profile) -> list[str | Grid]:
    """What swaps in the prompt itself changed: classes, and the carried heads."""
    heads, counts = profile.at(), profile.summary().classes
    classes = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return [f"prompt swapped: {classes}", examples_grid(heads[heads["head_class"] == "carried"])]


def depths_screen(run: SwapDepths) -> Screen:
    """What a terminal shows of swaps at depths."""
    turning = run.turning()
    carried = "heads that follow at their layer and stay in place below (positional / symbolic)"
    lines: Lines = [class_line(run.summary())]
    lines += [carried, Grid.of(turning)] if len(turning) else []
    return Screen(
        found=lines,
        against=null_lines(run.null_name, run.statistics()),
        details=[
            *((f"Statistics at tau = {tau:g}", lambda tau=tau: run.statistics(tau)) for tau in run.taus),
            *([(carried, lambda: turning)] if len(turning) else []),
            *((table.title, table.make) for table in run.available_summaries()),
        ],
    )


def class_line(summary: Summary) -> str:
    """Heads by class."""
    counts = "   ".join(f"{number} {name}" for name, number in summary.classes.items() if number)
    return f"{summary.heads} heads   {counts or 'none with a score'}"


def unstable_line(profile: Profile) -> list[str]:
    """How many classes hang on the choice of prompts, and with how many prompts fewer would."""
    heads, settings = profile.at(), profile.run.settings
    stable = heads.get("stable", pd.Series(dtype="boolean")).astype("boolean")
    unstable = int((~stable).sum())
    if not unstable:
        return []
    more = max(ENOUGH_PROMPTS, 2 * settings["prompts"])
    advice = f": use --prompts {more}" if settings["task"] in DRAWN else ""
    return [f"{unstable} of them unstable over prompts{advice}"]


def examples_grid(heads: pd.DataFrame) -> Grid:
    """The heads of each class with the largest product of score and attention on what is swapped."""
    rows = []
    for name in CLASSES:
        column = SCORE_OF.get(name, "")
        members = heads[heads["head_class"] == name]
        if column not in heads or members.empty:
            continue
        stake = (members[column] * members["swapped_mass"]).nlargest(EXAMPLES)
        cells = [
            f"{row.layer}:{row.head} {getattr(row, column):.2f} {row.swapped_mass:.0%}"
            for row in members.loc[stake.index].itertuples()
        ]
        rows.append([name, *cells, *[""] * (EXAMPLES - len(cells))])
    return Grid(["", *[""] * EXAMPLES], rows, INDENT)


def null_lines(null_name: str | None, statistics: pd.DataFrame) -> Lines:
    """The statistics on the screen, beside where the next draw of each null would lie."""
    if null_name is None:
        return []
    nulls = {"random": "random", "gaussian": "Gaussian"} if "random_low" in statistics else {"null": null_name}
    rows = []
    for row in statistics[statistics["statistic"].isin(SHOWN)].to_dict("records"):
        number = "{:.0%}".format if row["statistic"].startswith(("share", "carried")) else "{:.2f}".format
        bands = [_band(number, row[f"{null}_low"], row[f"{null}_high"]) for null in nulls]
        p_value = "" if pd.isna(row["p_value"]) else f"{row['p_value']:.2f}"
        rows.append([SHOWN[row["statistic"]], number(row["value"]), *bands, p_value, row["verdict"] or ""])
    draws = int(statistics["null_draws"].max())
    title = f"against {draws} {'draw' if draws == 1 else 'draws'}"
    return [Grid([title, "model", *nulls.values(), "p", ""], rows)]


def _band(number: Callable[[float], str], low: float, high: float) -> str:
    return "" if pd.isna(low) or pd.isna(high) else f"{number(low)} … {number(high)}"


NO_NULL = "no null: nothing here says what a model that learned nothing would give"
ONE_PROMPT = (
    "one prompt: no interval, and nothing says whether classes are the same on the next; give more prompts"
)
FAILS, FEW_SWAPS, LITTLE_MASS, FIRST_TOKENS = 0.5, 2, 0.2, 4
LITTLE_BETTER = 1.5
"""An accuracy of less than so many times chance says little, however high it is."""


def caveats(profile: Profile) -> list[str]:
    """Every caveat of a profile, found in its tables."""
    return list(_caveats(profile))


def with_missing_caveats(noted: Iterable[object], null_name: str | None, heads: pd.DataFrame) -> list[str]:
    """What a run noted when it was finished; one that is being written has noted nothing yet."""
    sentences = [str(caveat) for caveat in noted]
    if null_name is None and NO_NULL not in sentences:
        sentences.insert(0, NO_NULL)
    if not any("resampled" in caveat for caveat in sentences):
        sentences += _unstable(heads)
    return sentences


def _caveats(profile: Profile) -> Iterator[str]:
    if profile.null_name is None:
        yield NO_NULL
    else:
        yield from few_draws(profile.tables["null_prompts"])
    yield from failed(profile.accuracy, profile.chance)
    heads = profile.at()
    if heads["prompts"].max() == 1:
        yield ONE_PROMPT
    mass = heads["swapped_mass"].median()
    if mass < LITTLE_MASS:
        yield (
            f"the median head puts {mass:.0%} of its attention on the swapped blocks: the rest (often the "
            "first tokens) is not judged by the scores, and tau acts on what is left"
        )
    few = (heads["effective_swaps"] < FEW_SWAPS).mean()
    if few > 0.5:
        yield f"at tau = {profile.taus[0]:g} fewer than two swaps decide the score of {few:.0%} of the heads"
    yield from at_their_layer(heads, "--input-swaps 64")
    yield from _sinks(profile.sinks, str(profile.run.settings.get("task")))
    yield from _unstable(heads)
    still = _layers_without_planes(profile)
    if still:
        yield f"layers {still} do not rotate: one row per head, with frequency_id 0"
    missing = int(heads["missing_reason"].notna().sum())
    if missing:
        yield f"{missing} heads see no swap (a sliding window hides every block) and have no score"


def few_draws(null: pd.DataFrame) -> Iterator[str]:
    """Whether there are too few draws for any verdict of *beyond*."""
    draws = int(null.groupby("null_name")["draw"].nunique().min())
    if draws < ENOUGH_DRAWS:
        count = "1 draw" if draws == 1 else f"{draws} draws"
        yield (
            f"{count} of the null: nothing can be called beyond it with fewer than {ENOUGH_DRAWS} (--null-draws 39)"
        )


def failed(accuracy: float | None, chance: float | None) -> Iterator[str]:
    """Whether the model can do what it is profiled on."""
    if accuracy is None or accuracy >= max(FAILS, min(1.0, LITTLE_BETTER * (chance or 0.0))):
        return
    beside = "" if chance is None else f" (chance {chance:.0%})"
    verdict = "it mostly fails" if accuracy < FAILS else "at which it is little better than chance"
    yield f"the model answers {accuracy:.0%} of these prompts{beside}: its heads are profiled on a task {verdict}"


def at_their_layer(heads: pd.DataFrame, flag: str) -> Iterator[str]:
    """Symbolic heads whose symbols may be places. In layer 0 there is nothing below that could have written one."""
    symbolic = int(((heads["head_class"] == "symbolic") & (heads["layer"] > 0)).sum())
    if symbolic and "input_class" not in heads:
        yield f"{NOT_ASKED}do symbolic heads follow the word in the prompt?   {flag}"


def _unstable(heads: pd.DataFrame) -> Iterator[str]:
    """Heads whose class hangs on the choice of prompts; of one prompt nothing is known."""
    stable = heads.get("stable", pd.Series(dtype="boolean")).astype("boolean")
    unstable = int((~stable).sum())
    if unstable:
        yield (
            f"{unstable} of {len(heads)} heads change class when the prompts are resampled, or have it on fewer than "
            "half of them: more prompts, or a wider gamma"
        )


def _sinks(sinks: pd.DataFrame, task: str = "") -> Iterator[str]:
    """Where attention goes whatever stands there, and whether that decides the scores."""
    if not len(sinks):
        return
    inside = sinks[sinks["in_block"]]
    worst = (inside if len(inside) else sinks).sort_values("attention_mass").iloc[-1]
    where = (
        f"position {worst['position']} ({worst['token_text']!r}) draws {worst['attention_mass']:.0%} of all "
        f"attention (up to {worst['largest_layer_mass']:.0%} in a layer)"
    )
    if not len(inside):
        yield f"attention sink outside the blocks: {where}; the scores judge the rest"
        return
    prompts = inside["prompt"].nunique()
    advice = (
        "keep the first tokens outside the blocks (--prefix chat, or --prefix fact)"
        if worst["position"] < FIRST_TOKENS
        else "leave such a word out of the prompts"
    )
    advice = (
        "" if task in OWN else f"; {advice}"
    )  # our own tasks have nothing before the blocks, and fixed words
    yield f"attention sink inside a block in {prompts} prompts: {where} and decides the scores{advice}"


def _layers_without_planes(profile: Profile) -> list[int]:
    """Layers without rotation, when frequencies were asked for."""
    if "prompt_frequencies" not in profile.tables:
        return []
    fastest = profile.tables["prompt_frequencies"].groupby("layer")["frequency_id"].max()
    return sorted(int(layer) for layer in fastest.index[fastest == 0])


# What to run next: the questions that a run leaves open, each with the command that answers it.


EASIER = {"binding": "recall", "groups": "lookup", "lookup": "recall", "recall": "repeats"}
OTHER = EASIER | {"recall": "binding", "repeats": "recall"}
MOST = 3
HEAD, CLASS = "{head}", "{class}"
"""Stand in commands about a head for its name and its class."""


def model_argument(run: RunRecord) -> str | None:
    """The model as a command takes it: a place, a hub id or an embedded name; None for one that was in memory."""
    source = {} if run.subject is None else run.subject.source
    if source.get("place"):
        return str(source["place"])
    name = str(run.settings.get("model") or run.name)
    return ("smollm2" if name.startswith("SmolLM2") else name) if source.get("kind") == "embedded" else None


def asked_again(run: RunRecord, command: str, *more: str) -> str | None:
    """The command for the same model on the same prompts, with something more; None where it cannot be typed."""
    model, settings, task = model_argument(run), run.settings, str(run.settings.get("task") or "")
    if model is None or task not in PromptSettings.meant_for["prompts"]:
        return None
    words = [model] if task == model else [model, "--task", task]  # our own models are asked their own task
    sizes = dict(settings.get("task_settings") or {}) | {"prompts": settings.get("prompts")}
    if sizes.get("equal_length"):  # has no flag
        return None
    for field in fields(PromptSettings):
        meant = PromptSettings.meant_for.get(field.name, (task,))
        value = sizes.get(field.name)
        if value is None or value == field.default or task not in meant or field.name == "task":
            continue
        if field.name in PromptSettings.python_only:
            return None
        flag = "--" + field.name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join(["rotoscope", command, *words, *more])


def head_steps(run: RunRecord) -> list[NextStep]:
    """Commands about one head, whose name and class are to be put in."""
    task, answers = str(run.settings.get("task")), "answers" in run.tables
    gates = {
        "What does the model lose without it?": ("gate", "--silence", "--heads", HEAD),
        f"And without all {CLASS} heads?": ("gate", "--heads-of-class", CLASS),
    }
    wanted = (gates if answers else {}) | {
        "Which of its frequencies decide?": ("profile", "--frequencies", "--heads", HEAD),
        "Where does the place that it follows come from?": ("depths", "--at", "0", "own"),
    }
    steps = [(why, asked_again(run, *words)) for why, words in wanted.items()]
    model = model_argument(run)
    if model is not None and task in OTHER:
        other = shlex.join(["rotoscope", "profile", model, "--task", OTHER[task]])
        steps.insert(-2, ("Is it the same on another task?", other))
    return [
        NextStep(why, command.replace(shlex.quote(HEAD), HEAD).replace(shlex.quote(CLASS), CLASS))
        for why, command in steps
        if command
    ]


def next_steps(profile: Profile, same: Sequence[str] = ()) -> list[NextStep]:
    """The first few questions that a profile leaves open; `same` is the model and the prompts as somebody typed them."""
    return list(_steps(profile, same))[:MOST]


def _steps(profile: Profile, same: Sequence[str]) -> Iterator[NextStep]:
    for why, command, *more in _questions(profile):
        line = (
            shlex.join(["rotoscope", command, *same, *more])
            if same
            else asked_again(profile.run, command, *more)
        )
        model = same[0] if same else model_argument(profile.run)
        if command == "profile" and more[0] == "--task" and model is not None:  # on other prompts
            line = shlex.join(["rotoscope", command, model, *more])
        if line is not None:
            yield NextStep(why, line)


def _questions(profile: Profile) -> Iterator[tuple[str, ...]]:
    """What is open, the command that answers it, and what it takes beside the model and the prompts."""
    heads, task = profile.at(), str(profile.run.settings.get("task"))
    if any(failed(profile.accuracy, profile.chance)) and task in EASIER:
        why = "The model hardly does this task. What do its heads do on one that it does?"
        yield why, "profile", "--task", EASIER[task]
    if profile.null_name is None:
        yield "Would a model that learned nothing give the same?", "profile", "--null", "random"
    classes = heads["head_class"].value_counts()
    if "input_class" not in heads and classes.get("symbolic", 0):
        why = "Do the symbolic heads follow what was moved, or a place that earlier layers wrote into it?"
        yield why, "profile", "--input-swaps", "64"
    if classes.get("carried", 0):
        yield "At which layer is the place written that carried heads follow?", "depths", "--at", "all"
    strongest = [name for name in ("carried", "symbolic", "positional") if classes.get(name, 0)]
    if strongest and len(profile.answers):  # a gate is judged by what the model answers
        yield (
            f"What does the model lose without its {strongest[0]} heads?",
            "gate",
            "--heads-of-class",
            strongest[0],
        )
    if "prompt_frequencies" not in profile.tables:
        yield "Which frequencies of the heads decide?", "profile", "--frequencies"
