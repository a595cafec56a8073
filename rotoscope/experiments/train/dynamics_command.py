"""`rotoscope dynamics`: heads along training, and what the trained model does with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rotoscope.command import command
from rotoscope.experiments.commands import end
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.experiments.train.settings import SeriesSettings
from rotoscope.lab.settings import WatchSettings
from rotoscope.progress import progress_bar, says_loading
from rotoscope.settings import SEED, Output

PAIRS, INPUTS = 16, 200


@command
def dynamics(
    source: str,
    *,
    task: Literal["number", "letter", "binding", "repeats"] | None = None,
    queries: Literal["last", "path", "all"] | None = None,
    inputs: int | None = None,
    roles: bool = True,
    seed: int = 0,
    chosen: SeriesSettings,
    output: Output,
) -> int:
    """Score all heads along training, then say which layer does what in the trained model.

    Example: rotoscope dynamics number --out runs/dynamics-number

    Parameters
    ----------
    source
        A training run, number or letter (the embedded models), a folder of checkpoint-N or step-N, or a model on the hub,
        org/name, with --revisions.
    task
        number, letter: make sure that the checkpoints are of this task. binding, repeats: what checkpoints of language
        models are shown.
    queries
        Positions scored: last, path, all. By default what was watched in training; for checkpoints, or with --inputs or
        --most, last.
    inputs
        Held-out sequences, or prompts, to score the heads on: 200. Given, checkpoints are scored again.
    roles
        Also find roles (Index, Retrieval, Reflexive), the way of the answer, and the frequencies in use.
    seed
        Of prompts, and of the sequences that roles and frequencies are measured on.
    """
    SEED.check("seed", seed)
    WatchSettings.bounds["inputs"].check("inputs", inputs)
    with says_loading():
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.experiments.train.dynamics import measure_dynamics
        from rotoscope.experiments.train.series import Series, find_series
        from rotoscope.lab.checkpoints import own_task
        from rotoscope.models.loading import load
        from rotoscope.terminal import new_console, say

    queries = queries or ("last" if inputs is not None or chosen != SeriesSettings() else None)
    inputs = INPUTS if inputs is None else inputs
    console = new_console()
    folder = output.folder("dynamics", Path(source).name)
    scored: str | Series = source
    last: Callable[..., Any] = partial(load, source)
    if chosen.revisions or task in ("binding", "repeats"):
        scored = find_series(source, chosen)
        last = scored.load_last
    prompts = None
    if chosen.revisions and task is None and own_task(last(device="cpu")) is None:
        task = "repeats"
        say(console, "a language model, scored on repeated random tokens (--task repeats; or --task binding)")
    if task in ("binding", "repeats"):  # in the words of the last checkpoint's tokenizer
        sizes, queries = PromptSettings(task=task, pairs=PAIRS, prompts=inputs, seed=seed), queries or "last"
        subject = last(device="cpu")
        prompts, task = make_prompts(subject, sizes), None
    result = measure_dynamics(
        scored,
        task=task,
        prompts=prompts,
        queries=queries,
        inputs=inputs,
        most=chosen.most,
        device=output.device,
        out=folder if queries is not None else None,
        overwrite=output.overwrite,
    )
    if queries is None:
        result.save(folder, overwrite=output.overwrite)
    parts = _roles(last, folder, seed, output) if roles else {}
    return end(result, folder, output, parts=parts, then=[["lengths", source]] if parts else [])


def _roles(last: Callable[..., Any], folder: Path, seed: int, output: Output) -> dict[Path, Any]:
    """Roles and geometry of the trained model by their folders; nothing for models that are not ours."""
    from rotoscope.experiments.commands import can_draw, save_figures
    from rotoscope.experiments.roles.geometry import find_geometry
    from rotoscope.experiments.roles.run import find_roles, trace
    from rotoscope.lab.checkpoints import own_task
    from rotoscope.terminal import new_console, say

    subject = last(device=output.device)
    if own_task(subject) is None:
        say(
            new_console(),
            "roles are found in models trained on the multi-hop tasks; this one says nothing of them",
        )
        return {}
    if output.figures and can_draw():
        from rotoscope.experiments.roles.figures import information_flow

        with progress_bar("following the answer", None):
            flow = trace(subject, seed=seed)
        save_figures([("information_flow", information_flow(flow))], folder)
    place: dict[str, Any] = {"seed": seed, "overwrite": output.overwrite}
    roles = find_roles(subject, out=folder / "roles", **place)
    with progress_bar("finding the frequencies in use", None):
        geometry = find_geometry(subject, out=folder / "geometry", **place)
    return {folder / "roles": roles, folder / "geometry": geometry}
