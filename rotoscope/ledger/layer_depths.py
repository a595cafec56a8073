"""What the layers of multi-hop models follow with tokens exchanged at some depth: means over sequences, of many models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.experiments.depths.run import depths
from rotoscope.lab.checkpoints import load_multihop, sequences_for
from rotoscope.runs.result import SavedRun, Table, Tables
from rotoscope.runs.run import Run
from rotoscope.stats.aggregate import SCORES

FRESH = 4_000_000
"""Sequences that no training, validation or test of these models has."""
SWAPS = 120
"""All swaps of the sixteen tokens before the last."""
MODEL = ["task", "training", "step"]
AT = ["layer", "own", "depth"]


class LayerDepths(SavedRun):
    """Layers of models by depth of the exchange, random models beside them, and how the models do on longer inputs."""

    kind = "layer depths"

    layers = Table(
        "One row per (task, training, step, layer, own, depth): mean scores over sequences, their standard deviations and that "
        "of the lean, positional minus symbolic (missing for checkpoints)."
    )
    null = Table("One row per (task, draw, layer, own, depth): the same means of random models.", optional=True)
    accuracy = Table("One row per (task, training, step, length, hops).", optional=True)

    @property
    def last(self) -> pd.DataFrame:
        """The layers of every training's last model."""
        table = self.layers
        return table[table["step"] == table.groupby(["task", "training"])["step"].transform("max")]


def layer_means(prompts: pd.DataFrame) -> pd.DataFrame:
    """Scores per sequence to scores per layer, with their spread."""
    rows = prompts.assign(lean=prompts[SCORES[0]] - prompts[SCORES[1]])
    groups = rows.groupby(AT)
    spread = groups[[*SCORES, "lean"]].std(ddof=1).add_suffix("_std")
    table = groups[SCORES].mean().join(spread).assign(sequences=groups.size())
    return table.reset_index()


def measure_layer_depths(
    models: Mapping[tuple[str, str, int], Any],
    *,
    sequences: int = 24,
    device: str | None = None,
    out: str | Path | None = None,
) -> LayerDepths:
    """The layers of models, by (task, training, step), at their own layer and with the prompt permuted."""
    marks = {
        " ".join(map(str, name)): load_multihop(source, device).fingerprint for name, source in models.items()
    }
    settings = {
        "models": list(marks),
        "fingerprints": list(marks.values()),
        "sequences": sequences,
        "swaps": SWAPS,
    }
    run = Run(LayerDepths, settings, out)
    if run.finished is not None:
        return run.finished
    for k, (name, source) in enumerate(models.items()):
        about = dict(zip(MODEL, name, strict=True))
        run.piece(f"model-{k}", partial(_layers, source, about, sequences, device))
    return run.finish()


def _layers(source: Any, about: dict[str, Any], sequences: int, device: str | None) -> Tables:
    subject = load_multihop(source, device)
    shown = sequences_for(subject.model.config, sequences, first=FRESH).prompts()
    run = depths(subject, shown, swaps=SWAPS, null="none", show_progress=False)
    return {"layers": layer_means(run.prompts).assign(**about)}


def lean(rows: pd.DataFrame) -> tuple[float, float]:
    """The mean lean of some layers of one model, and its standard error over sequences (at most: as if layers moved
    together)."""
    error = (rows["lean_std"] / np.sqrt(rows["sequences"])).mean()
    return float((rows[SCORES[0]] - rows[SCORES[1]]).mean()), float(error)
