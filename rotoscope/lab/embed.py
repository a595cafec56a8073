"""Turn a finished training run into a model that ships with rotoscope.

    python -m rotoscope.lab.embed runs/number-paper-0 rotoscope/models/number

The weights are stored in bfloat16 (loading computes in float32), beside the tables of the run and a card that says, from
the run itself, how it was made and what it can do.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rotoscope.errors import RunError
from rotoscope.lab.checkpoints import save_checkpoint
from rotoscope.lab.gptj import GPTJ
from rotoscope.lab.training import TrainSettings
from rotoscope.reading.checkpoints import find_checkpoints
from rotoscope.results.folder import read_run, replace_file
from rotoscope.results.training import Training

__all__ = ["embed"]


def embed(source: str | Path, folder: str | Path) -> Path:
    """Write a run's last checkpoint, tables and card as one folder that both `rs.load` and `rs.open` read."""
    run, place = Training.open(source), Path(folder)
    settings = TrainSettings.of(run.run["settings"])
    step, checkpoint = list(find_checkpoints(Path(source)).items())[-1]
    if step != settings.steps:
        raise RunError(f"{source} has no checkpoint of its last step, {settings.steps}")
    samples = settings.sequences("test", count=1)
    model = GPTJ.from_state(
        settings.shape(len(samples.vocabulary)), load_file(checkpoint / "model.safetensors")
    )
    save_checkpoint(place, model, samples, dtype=torch.bfloat16)
    for file in ("run.json", *(f"{name}.parquet" for name in run.run["tables"])):
        shutil.copyfile(Path(source) / file, place / file)
    replace_file(
        place / "README.md", lambda scratch: scratch.write_text(_card(run, read_run(place)), encoding="utf-8")
    )
    return place


def _card(run: Training, described: dict[str, Any]) -> str:
    settings, spent = described["settings"], described["timings"]
    accuracy = "\n".join(
        f"| {row.hops} | {row.accuracy:.4f} | {row.inputs:,} |" for row in run.test.itertuples()
    )
    versions = ", ".join(f"{name} {version}" for name, version in described["versions"].items())
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [interpretability, rope, gptj]
---

# GPT-J on the multi-hop {run.task} task

A GPT-J with {settings["layers"]} layers of {settings["heads"]} head, width {settings["width"]}, {described["parameters"]:,} parameters, trained from scratch to
follow pointers; for studying its heads, not for use. Seed {settings["seed"]}, not chosen among several.

Made by

    rotoscope train {run.task} --preset {settings["preset"]} --seed {settings["seed"]}

on {described["device"]} in {spent["total_s"]:.0f} s ({spent["training_s"]:.0f} s of training, {spent["watching_s"]:.1f} s of scoring heads), then stored in bfloat16 by
`python -m rotoscope.lab.embed`. Settings: `{json.dumps(settings)}`.

| hops | accuracy | test sequences |
|---|---|---|
{accuracy}

(Accuracy of the float32 weights at the end of training.) `scores.parquet` holds the positional and symbolic score of every
head at {run.tables["scores"]["step"].nunique()} steps, `metrics.parquet` the accuracy on held-out sequences. Loads with `rotoscope.load("{run.task}")`, or as any
GPTJForCausalLM; tokens are separated by spaces. Versions: {versions}.
"""


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m rotoscope.lab.embed RUN FOLDER")
    print(embed(*sys.argv[1:]))
