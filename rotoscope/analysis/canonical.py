"""P1's causal experiment: restrict one head to chosen angles and see what it can learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file

from rotoscope.errors import RotoscopeError
from rotoscope.lab.threads import one_thread
from rotoscope.lab.toy import ToyHeads, ToySettings
from rotoscope.maths.blocks import Blocks
from rotoscope.maths.swaps import swap_scores
from rotoscope.progress import Progress, progress
from rotoscope.reading.devices import pick_device
from rotoscope.results.canonical import Canonical
from rotoscope.results.folder import RunFolder, read_table, replace_file, versions, write_table
from rotoscope.tasks.canonical import CANONICAL

__all__ = ["PRESETS", "canonical_experiments", "experiments_of"]

GRID = tuple(10 ** (-k / 4) for k in range(21))
DRAWN = (1.0, 0.1, 0.01, 0.001)
"""Angles whose vectors are kept along training."""
SCORED_INPUTS = 32
AT_ONCE = 512


@dataclass(frozen=True)
class Preset:
    """How long and how large."""

    angles: tuple[float, ...]
    settings: dict[str, Any]
    tested: int
    """Fresh samples at the end; a sixteenth of them along the way."""
    evaluations: int = 10


PRESETS = {
    "quick": Preset(
        (0.0, *GRID[::2]),
        {"seeds": 1, "keys": 16, "symbols": 16, "entities": 16, "steps": 400, "batch": 128},
        tested=2048,
        evaluations=4,
    ),
    "paper": Preset((0.0, *GRID), {"seeds": 3}, tested=16_384),
}


def experiments_of(task: str, angles: Sequence[float], **settings: Any) -> dict[str, ToySettings]:
    """The grids behind a task: one angle each, and for induction also (0, theta)."""
    if task not in (*CANONICAL, "all"):
        raise RotoscopeError(f"unknown canonical task '{task}'; choose {', '.join(CANONICAL)} or all")
    made: dict[str, ToySettings] = {}
    for name in CANONICAL if task == "all" else (task,):
        made[name] = ToySettings(name, tuple((float(a),) for a in angles), **settings)
        if name == "induction":
            pairs = tuple((0.0, float(a)) for a in angles if a > 0)
            made["induction, two angles"] = ToySettings(name, pairs, **settings)
    return made


def canonical_experiments(
    task: str = "all",
    preset: Literal["quick", "paper"] = "paper",
    *,
    angles: Sequence[float] | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Canonical:
    """Train the whole grid of a task (or of all) and measure it; `changes` are fields of `ToySettings`."""
    if preset not in PRESETS:
        raise RotoscopeError(f"unknown preset '{preset}'; choose {' or '.join(PRESETS)}")
    chosen = PRESETS[preset]
    where = pick_device(device)
    grid = chosen.angles if angles is None else tuple(angles)
    experiments = experiments_of(task, grid, **(chosen.settings | changes))
    settings = {
        "task": task,
        "preset": preset,
        "angles": list(grid),
        "tested": chosen.tested,
        "evaluations": chosen.evaluations,
        **{k: v for k, v in asdict(next(iter(experiments.values()))).items() if k not in ("task", "angles")},
    }
    folder = RunFolder(out, Canonical.kind, settings, overwrite=overwrite) if out is not None else None
    if folder is not None and folder.complete:
        return Canonical.open(folder.path)
    if folder is not None:
        folder.begin()
    began = time.perf_counter()
    parts: dict[str, list[pd.DataFrame]] = {}
    with (
        progress("training", sum(one.steps for one in experiments.values()), show_progress) as bar,
        one_thread(where.type == "cpu"),
    ):
        for name, one in experiments.items():
            for table, rows in _experiment(name, one, chosen, where, folder, bar).items():
                parts.setdefault(table, []).append(rows)
    tables = {name: pd.concat(rows, ignore_index=True) for name, rows in parts.items()}
    details = {"timings": {"total_s": time.perf_counter() - began}, "device": where.type}
    if folder is not None:
        return Canonical(folder.finish(tables, **details, warnings=[]), tables)
    return Canonical({"settings": settings, "versions": versions(), **details, "warnings": []}, tables)


def _experiment(
    name: str,
    settings: ToySettings,
    preset: Preset,
    device: torch.device,
    folder: RunFolder | None,
    bar: Progress,
) -> dict[str, pd.DataFrame]:
    """Train one grid, evaluating along the way; a killed run starts again from its last evaluation."""
    heads = ToyHeads(settings, device)
    optimiser = heads.optimiser()
    stops = [round(settings.steps * k / preset.evaluations) for k in range(preset.evaluations + 1)]
    stem = name.replace(", ", "-").replace(" ", "-")
    done = 0
    pieces: list[dict[str, pd.DataFrame]] = []
    if folder is not None:
        done, pieces = _resume(folder, stem, stops, heads, optimiser)
        bar.advance(done)
    for step in range(done, settings.steps + 1):
        if step in stops and (step > done or not pieces):
            made = _evaluate(
                name, heads, step, preset.tested if step == settings.steps else preset.tested // 16
            )
            pieces.append(made)
            if folder is not None:
                _store(folder, stem, step, made, heads, optimiser)
        if step < settings.steps:
            heads.step(optimiser, step)
            bar.advance()
    tables = {table: pd.concat([piece[table] for piece in pieces], ignore_index=True) for table in pieces[0]}
    tables["scores"] = _scores(name, heads)
    return tables


TABLES = ("accuracy", "positions", "vectors")


def _store(
    folder: RunFolder,
    stem: str,
    step: int,
    made: dict[str, pd.DataFrame],
    heads: ToyHeads,
    optimiser: torch.optim.Adam,
) -> None:
    for table in TABLES:
        write_table(folder.piece(f"{stem}-{step:06d}-{table}.parquet"), made[table])
    replace_file(_checkpoint(folder, stem, step), lambda file: save_file(heads.state(optimiser), file))


def _checkpoint(folder: RunFolder, stem: str, step: int) -> Path:
    """Weights and optimiser state at an evaluation; kept when the run is finished."""
    return folder.path / "checkpoints" / f"{stem}-{step:06d}.safetensors"


def _resume(
    folder: RunFolder, stem: str, stops: list[int], heads: ToyHeads, optimiser: torch.optim.Adam
) -> tuple[int, list[dict[str, pd.DataFrame]]]:
    """The last evaluated step that can be read back, with everything measured up to it."""
    reached = [step for step in stops if _checkpoint(folder, stem, step).exists()]
    if not reached or reached[-1] == 0:
        return 0, []
    heads.restore(load_file(_checkpoint(folder, stem, reached[-1])), optimiser)
    pieces = [
        {table: read_table(folder.piece(f"{stem}-{step:06d}-{table}.parquet")) for table in TABLES}
        for step in reached
    ]
    return reached[-1], pieces


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
    seen = torch.zeros(keys, dtype=torch.float64)
    for start in range(0, count, AT_ONCE):
        samples = settings.samples(min(AT_ONCE, count - start), seed=50_000_000 + start, device=heads.device)
        where = samples.position.cpu()
        correct = (heads.answers(samples).argmax(-1) == samples.answer).double().cpu()
        target = heads.attention(samples)[:, torch.arange(len(samples)), samples.position].double().cpu()
        right.index_add_(1, where, correct)
        weight.index_add_(1, where, target)
        seen.index_add_(0, where, torch.ones(len(where), dtype=torch.float64))
    about = _about(name, heads)
    accuracy = about.assign(step=step, accuracy=(right.sum(1) / seen.sum()).numpy())
    asked = seen > 0
    positions = about.loc[about.index.repeat(int(asked.sum()))].reset_index(drop=True)
    places = np.flatnonzero(asked.numpy())
    positions = positions.assign(
        step=step,
        position=np.tile(places, settings.models),
        accuracy=(right / seen.clamp(min=1))[:, asked].flatten().numpy(),
        target_weight=(weight / seen.clamp(min=1))[:, asked].flatten().numpy(),
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
        whole = swap_scores(logits, 1e-4, blocks)
        row = {
            "positional_score": float(whole.positional.mean()),
            "symbolic_score": float(whole.symbolic.mean()),
            "entropy": float(whole.entropy.mean()),
        }
        if settings.task == "induction":
            equal = [
                swap_scores(logits[k], 1e-4, blocks, symbols=samples.entities[k].tolist()).equal_symbols
                for k in range(len(samples))
            ]
            row["equal_symbol_positional_score"] = float(np.mean([float(e.positional) for e in equal if e]))
            row["equal_symbol_symbolic_score"] = float(np.mean([float(e.symbolic) for e in equal if e]))
        rows.append(row)
    return pd.concat((_about(name, heads), pd.DataFrame(rows)), axis=1)
