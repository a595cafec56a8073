"""The same heads on several tasks: does a class belong to the head, or to the prompt?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rotoscope.analysis.profiling import profile, subject_settings
from rotoscope.errors import RotoscopeError
from rotoscope.reading import load
from rotoscope.results.agreement import Agreement, agreement_tables
from rotoscope.results.profile import Profile
from rotoscope.results.run import Run
from rotoscope.settings import ProfileSettings
from rotoscope.tasks import Prompts


def agreement(
    profiles: Sequence[Profile], *, seed: int = 0, out: str | Path | None = None, overwrite: bool = False
) -> Agreement:
    """How far profiles of one model on several tasks agree: classes by pairs of tasks, and variance by its source.

    Profiles on the same task, say with two prefixes, are told apart by a number.
    """
    named = dict(zip(_names([one.run.settings["task"] for one in profiles]), profiles, strict=True))
    for key in ("fingerprint", "tau", "gamma", "input_swaps"):
        found = {str(one.run.settings.get(key) or 0) for one in profiles}
        if len(found) > 1:
            raise RotoscopeError(
                f"profiles that differ in {key} cannot be compared: {', '.join(sorted(found))}"
            )
    settings = {
        "model": profiles[0].name if profiles else None,
        "tasks": {name: one.run.settings for name, one in named.items()},
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
    wanted = ProfileSettings.make(settings, **changes)
    if len(prompts) < 2:
        raise RotoscopeError(f"agreement needs prompts of two tasks at least, found {len(prompts)}")
    subject = load(subject)
    shown = dict(zip(_names([one.task for one in prompts]), prompts, strict=True))
    about = {name: subject_settings(subject, one) for name, one in shown.items()}
    described = {"model": subject.name, "tasks": about} | wanted.stored() | {"seed": seed}
    run = Run(Agreement, described, out, overwrite=overwrite)
    if run.finished is None:
        run.begin()  # the profiles lie in its folder
    how: dict[str, Any] = {"seed": seed, "overwrite": overwrite, "show_progress": show_progress}
    found = {
        name: profile(subject, one, wanted, out=None if out is None else Path(out) / name, **how)
        for name, one in shown.items()
    }
    if run.finished is not None:
        return found, run.finished
    run.piece("agreement", lambda: agreement_tables(found, seed))
    return found, run.finish(subject=next(iter(found.values())).run.subject)


def _names(tasks: Sequence[str]) -> list[str]:
    """The tasks, told apart by a number where one comes again."""
    return [
        task if tasks[:k].count(task) == 0 else f"{task}-{tasks[:k].count(task) + 1}"
        for k, task in enumerate(tasks)
    ]
