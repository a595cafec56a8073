"""The caption under a figure: what was measured, in one line that fits any of them."""

from __future__ import annotations

from rotoscope.maths.purity import AT_ITS_LAYER, CLASSES
from rotoscope.results.depths import SwapDepths
from rotoscope.results.profile import Profile
from rotoscope.results.summary import class_words


def measured(run: Profile | SwapDepths, tau: float | None = None) -> str:
    """Model, task, sizes and temperature, what was swapped, and how layers and heads are counted."""
    settings = run.run.settings
    task = settings["task_settings"]
    sizes = [f"{task[key]} {key}" for key in ("pairs", "length", "tokens") if key in task]
    if "prefix" in task:
        sizes.append("no prefix" if task["prefix"] == "none" else f"{task['prefix']} prefix")
    about = ", ".join([settings["task"], *sizes])
    tolerances = f"τ = {run.taus[0] if tau is None else tau:g}, γ = {run.gamma:g}"
    return (
        f"{run.name}; {about}; {settings['prompts']} prompts; {tolerances}; {swapped_words(run)}\n"
        f"{null_words(run)}; layers and heads are counted from 0, frequency ids from 1 (fastest)"
    )


def swapped_words(run: Profile | SwapDepths) -> str:
    """Where blocks changed places beside each head's own layer, and in how many swaps of a prompt."""
    settings = run.run.settings
    if isinstance(run, SwapDepths):
        return f"at most {settings['swaps']} swaps of a prompt at every depth"
    if "input_prompts" in run.tables:
        return f"{settings['input_swaps']} swaps of a prompt itself"
    return "the prompt itself was not permuted"


def class_labels(permuted: bool) -> dict[str, str]:
    """The classes that could be told apart, each in words."""
    return {name: name if permuted else class_words(name) for name in (CLASSES if permuted else AT_ITS_LAYER)}


def null_words(run: Profile | SwapDepths) -> str:
    """Which null is drawn, and how often it was drawn."""
    if run.null_name is None:
        return "no null"
    draws = run.null_prompts["draw"].nunique() if isinstance(run, SwapDepths) else run.nulls["draw"].nunique()
    return f"null: {run.null_name}, {draws} draw{'s' if draws > 1 else ''}"
