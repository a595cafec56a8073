"""The caption under a figure: what was measured, in one line that fits any of them."""

from __future__ import annotations

from rotoscope.results.profile import Profile


def measured(profile: Profile, tau: float | None = None) -> str:
    """Model, task, sizes and temperature, and how layers and heads are counted."""
    settings = profile.run.settings
    task = settings["task_settings"]
    sizes = [f"{task[key]} {key}" for key in ("pairs", "length", "tokens") if key in task]
    if "prefix" in task:
        sizes.append("no prefix" if task["prefix"] == "none" else f"{task['prefix']} prefix")
    about = ", ".join([settings["task"], *sizes])
    tolerances = f"τ = {profile.tau_or_first(tau):g}, γ = {profile.gamma:g}"
    return (
        f"{profile.name}; {about}; {settings['prompts']} prompts; {tolerances}\n"
        f"{null_words(profile)}; layers and heads are counted from 0, frequency ids from 1 (fastest)"
    )


def null_words(profile: Profile) -> str:
    """Which null is drawn, and how often it was drawn."""
    if profile.null_name is None:
        return "no null"
    draws = profile.nulls["draw"].nunique()
    return f"null: {profile.null_name}, {draws} draw{'s' if draws > 1 else ''}"
