"""P1's causal experiment: restrict one head to chosen angles and see what it can learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from rotoscope.experiments.canonical.result import Canonical
from rotoscope.lab.toy import ToyHeads, ToySettings
from rotoscope.lab.toy_settings import CanonicalSettings, ToyTraining
from rotoscope.models.devices import check_disk, check_memory, one_thread, pick_device
from rotoscope.progress import Progress, progress_bar
from rotoscope.runs.files import save_arrays
from rotoscope.runs.run import Run
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.swaps import swap_scores
from rotoscope.tasks.canonical import CANONICAL

DRAWN = (1.0, 0.1, 0.01, 0.001)
"""Angles whose vectors are kept along training."""
SCORED_INPUTS = 32
AT_ONCE = 512


def experiments_of(settings: CanonicalSettings) -> dict[str, ToySettings]:
    """The grids behind a task: one angle each, and for induction also (0, theta)."""
    training = {name: getattr(settings, name) for name in ToyTraining.names()}
    experiments: dict[str, ToySettings] = {}
    for name in CANONICAL if settings.task == "all" else (settings.task,):
        experiments[name] = ToySettings(
            task=name, angles=tuple((angle,) for angle in settings.angles), **training
        )
        if name == "induction":
            pairs = tuple((0.0, angle) for angle in settings.angles if angle > 0)
            experiments["induction, two angles"] = ToySettings(task=name, angles=pairs, **training)
    return experiments


def canonical_experiments(
    task: str = "all",
    preset: Literal["quick", "paper"] = "quick",
    *,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Canonical:
    """Train the whole grid of a task (or of all) and measure it; `changes` are fields of `CanonicalSettings`.

    What cannot fit memory or disk is refused.
    """
    settings = CanonicalSettings.preset(preset, task=task, **changes)
    experiments = experiments_of(settings)
    chosen_device = pick_device(device)
    _check_size(experiments, settings, chosen_device, out)
    run = Run(Canonical, {"preset": preset, **settings.stored()}, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    total = sum(experiment.steps for experiment in experiments.values())
    with progress_bar("training", total, show_progress) as bar, one_thread(chosen_device.type == "cpu"):
        for name, experiment in experiments.items():
            _experiment(run, name, ToyHeads(experiment, chosen_device), settings, bar)
    return run.finish(device=chosen_device.type)


def _check_size(
    experiments: dict[str, ToySettings],
    settings: CanonicalSettings,
    device: torch.device,
    out: str | Path | None,
) -> None:
    """Raise TooLargeError where one grid of heads, or the checkpoints of all, cannot fit."""
    largest = max(experiments.values(), key=lambda grid: grid.training_bytes)
    purpose = f"a grid of {largest.models:,} models and a batch of {settings.batch:,} inputs"
    less = "use fewer angles or seeds, or smaller batches"
    check_memory(purpose, largest.training_bytes, device, less)
    saved = settings.evaluations + 1
    needed = saved * sum(grid.state_bytes for grid in experiments.values())
    purpose = f"a checkpoint of {len(experiments)} grids at {saved:,} evaluations"
    check_disk(purpose, needed, out, "use fewer evaluations, angles or seeds")


def _experiment(
    run: Run[Canonical], name: str, heads: ToyHeads, settings: CanonicalSettings, bar: Progress
) -> None:
    """Train one grid, evaluating along the way; a killed run starts again from its last evaluation."""
    optimiser = heads.optimiser()
    stem = name.replace(", ", "-").replace(" ", "-")
    stops = [round(settings.steps * k / settings.evaluations) for k in range(settings.evaluations + 1)]
    keys = {stop: f"{stem}-{stop:06d}" for stop in stops}
    done = -1
    for stop in stops:  # as far as an earlier try got without a gap
        if not run.done(keys[stop]):
            break
        done = stop
    if done > 0:  # before the first step there is nothing to restore
        heads.restore(run.load_arrays(_checkpoint(keys[done])), optimiser)
        bar.advance(done)
    for step in range(max(done, 0), settings.steps + 1):
        if step in keys and step > done:
            last = step == settings.steps
            state = heads.state(optimiser)
            run.beside(_checkpoint(keys[step]), lambda file, state=state: save_arrays(file, state))  # type: ignore[misc]
            run.add(
                keys[step], _evaluate(name, heads, step, settings.tested if last else settings.tested // 16)
            )
        if step < settings.steps:
            heads.step(optimiser, step)
            bar.advance()
    run.piece(f"{stem}-scores", lambda: {"scores": _scores(name, heads)})


def _checkpoint(key: str) -> str:
    """Weights and optimiser state at an evaluation; kept when the run is finished."""
    return f"checkpoints/{key}.safetensors"


def _about(name: str, heads: ToyHeads) -> pd.DataFrame:
    settings = heads.settings
    theta = [planes[-1] for planes in settings.angles for _ in range(settings.seeds)]
    seeds = [settings.first + k for k in range(settings.seeds)] * len(settings.angles)
    return pd.DataFrame({"experiment": name, "theta": theta, "seed": seeds})


@torch.no_grad()
def _evaluate(name: str, heads: ToyHeads, step: int, count: int) -> dict[str, pd.DataFrame]:
    """Accuracy, and accuracy and target weight by position, on fresh samples."""
    settings = heads.settings
    keys = settings.keys
    right, weight = (torch.zeros(settings.models, keys, dtype=torch.float64) for _ in range(2))
    samples_at = torch.zeros(keys, dtype=torch.float64)
    for start in range(0, count, AT_ONCE):
        samples = settings.samples(min(AT_ONCE, count - start), seed=50_000_000 + start, device=heads.device)
        answer_positions = samples.position.cpu()
        correct = (heads.answers(samples).argmax(-1) == samples.answer).double().cpu()
        target = heads.attention(samples)[:, torch.arange(len(samples)), samples.position].double().cpu()
        right.index_add_(1, answer_positions, correct)
        weight.index_add_(1, answer_positions, target)
        samples_at.index_add_(0, answer_positions, torch.ones(len(answer_positions), dtype=torch.float64))
    about = _about(name, heads)
    accuracy = about.assign(step=step, accuracy=(right.sum(1) / samples_at.sum()).numpy())
    measured = samples_at > 0
    positions = about.loc[about.index.repeat(int(measured.sum()))].reset_index(drop=True)
    places = np.flatnonzero(measured.numpy())
    positions = positions.assign(
        step=step,
        position=np.tile(places, settings.models),
        accuracy=(right / samples_at.clamp(min=1))[:, measured].flatten().numpy(),
        target_weight=(weight / samples_at.clamp(min=1))[:, measured].flatten().numpy(),
    )
    return {"accuracy": accuracy, "positions": positions, "vectors": _vectors(name, heads, step)}


@torch.no_grad()
def _vectors(name: str, heads: ToyHeads, step: int) -> pd.DataFrame:
    """Keys and queries in the rotating plane, seed 0, at a few angles."""
    settings = heads.settings
    key, query = (table.detach().cpu() for table in heads.tables())
    asks = settings.symbols if settings.task == "index" else settings.entities + settings.symbols
    rows = []
    for k, planes in enumerate(settings.angles):
        if not any(abs(planes[-1] - angle) < 1e-9 for angle in DRAWN):
            continue
        model = k * settings.seeds
        answers = settings.symbols if settings.task == "index" else settings.entities
        for kind, table, first, last in (("key", key, 0, answers), ("query", query, asks, settings.width)):
            two = table[first:last, model, -1].numpy()
            rows.append(
                pd.DataFrame(
                    {
                        "experiment": name,
                        "theta": planes[-1],
                        "step": step,
                        "kind": kind,
                        "row": np.arange(last - first),
                        "re": two[:, 0],
                        "im": two[:, 1],
                    }
                )
            )
    return (
        pd.concat(rows, ignore_index=True)
        if rows
        else pd.DataFrame(columns=["experiment", "theta", "step", "kind", "row", "re", "im"])
    )


@torch.no_grad()
def _scores(name: str, heads: ToyHeads) -> pd.DataFrame:
    """The swap scores of every trained head, and those of swaps between equal entities alone."""
    settings = heads.settings
    samples = settings.samples(SCORED_INPUTS, seed=90_000_000, device=heads.device)
    blocks = Blocks.tokens(settings.keys)
    rows = []
    for model in range(settings.models):
        logits = heads.counterfactual(samples, model)
        all_swaps = swap_scores(logits, 1e-4, blocks, symbols=samples.entities)
        assert all_swaps.equal_symbols is not None
        equal = all_swaps.equal_symbols
        row = {
            "positional_score": float(all_swaps.positional.mean()),
            "symbolic_score": float(all_swaps.symbolic.mean()),
            "entropy": float(all_swaps.entropy.mean()),
            "equal_symbol_positional_score": float(equal.positional.nanmean()),
            "equal_symbol_symbolic_score": float(equal.symbolic.nanmean()),
        }
        rows.append(row)
    return pd.concat((_about(name, heads), pd.DataFrame(rows)), axis=1)
