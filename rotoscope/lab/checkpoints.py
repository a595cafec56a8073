"""Checkpoints that anyone can load: a folder with transformers' configuration, safetensors weights and a tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from safetensors.torch import save_file

from rotoscope.errors import ModelError
from rotoscope.lab.gptj import GPTJ
from rotoscope.models.loading import Subject, load
from rotoscope.runs.files import disk_errors
from rotoscope.runs.folder import replaced_folder
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun, Table, Tables
from rotoscope.tasks.multihop import MULTIHOP
from rotoscope.tasks.multihop_frames import PAD, MultiHops

LEARNED = 0.95


class Training(SavedRun):
    """A training run. `model` is the trained model while it is in memory; `rs.load(folder)` loads it again."""

    kind = "training"

    def __init__(self, run: RunRecord, tables: Tables) -> None:
        super().__init__(run, tables)
        self.folder: Path | None = None
        self.model: Any = None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a training run back; `folder` says where its checkpoints are."""
        training = super().open(path)
        training.folder = Path(path)
        return training

    @property
    def task(self) -> str:
        """Which multi-hop task was trained: number or letter."""
        return str(self.run.settings["task"])

    metrics = Table(
        "One row per (step, hops): accuracy on held-out sequences, loss since the evaluation before."
    )
    test = Table("Final accuracy by number of hops on the test sequences.")

    def learned(self, threshold: float = LEARNED) -> pd.Series:
        """For each number of hops, the first step from which accuracy is at least the threshold."""
        return first_above(self.metrics, threshold)

    def caveats(self) -> list[str]:
        """Hops that were not learned."""
        unlearned = self.test[self.test["accuracy"] < LEARNED]
        if unlearned.empty:
            return []
        shares = ", ".join(f"{row.hops} hops {row.accuracy:.0%}" for row in unlearned.itertuples())
        return [f"the model has not learned the whole task ({shares}): its heads show training half-way"]

    def __repr__(self) -> str:
        accuracy = ", ".join(f"{row.hops}: {row.accuracy:.3f}" for row in self.test.itertuples())
        return f"Training({self.task}, {self.run.settings['steps']} steps; accuracy by hops {accuracy})"


def first_above(metrics: pd.DataFrame, threshold: float = LEARNED) -> pd.Series:
    """The first step at which the accuracy of each number of hops reaches a threshold, else NaN."""
    reached = metrics[metrics["accuracy"] >= threshold].groupby("hops")["step"].min()
    return reached.reindex(sorted(metrics["hops"].unique())).rename("learned_at")


def word_tokenizer(vocabulary: Sequence[str]) -> Any:
    """A transformers tokenizer whose tokens are the words of a vocabulary, separated by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(vocabulary)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PAD, clean_up_tokenization_spaces=False)


def save_checkpoint(
    folder: Path,
    model: GPTJ,
    samples: MultiHops,
    *,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a model as a transformers checkpoint, in place of one that is there."""
    with disk_errors(folder), replaced_folder(folder, _is_checkpoint) as scratch:
        config = model.config()
        config.dtype = dtype
        config.rotoscope = {"task": samples.task, **sizes_of(samples)}
        config.save_pretrained(scratch)
        state = {name: weight.to("cpu", dtype) for name, weight in model.state().items()}
        save_file(state, scratch / "model.safetensors", metadata={"format": "pt"})
        word_tokenizer(samples.vocabulary).save_pretrained(scratch)
    return folder


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()


def sizes_of(samples: MultiHops) -> dict[str, Any]:
    """The sizes of a task, without what tells one set of sequences from another."""
    return {
        k: v for k, v in samples.settings.items() if k not in ("count", "first", "seed", "front", "balanced")
    }


def own_task(subject: Any) -> str | None:
    """The multi-hop task a model of ours was trained on; None for any other model."""
    about = getattr(subject.model.config, "rotoscope", None)
    task = about.get("task") if isinstance(about, dict) else None
    return str(task) if task in MULTIHOP else None


def sequences_for(config: Any, count: int, **changes: Any) -> MultiHops:
    """Sequences of the task a checkpoint of ours was trained on, in the sizes it was trained on."""
    about = getattr(config, "rotoscope", None)
    if not isinstance(about, dict) or about.get("task") not in MULTIHOP:
        raise ModelError(
            "the checkpoint does not say which multi-hop task it was trained on (rotoscope in its config.json); "
            "give prompts of your own (on the command line, --task binding or --task repeats)"
        )
    sizes = {k: v for k, v in about.items() if k != "task"}
    return MULTIHOP[about["task"]](count, **{**sizes, **changes})


def describe_multihop(subject: Subject, samples: MultiHops, **settings: Any) -> dict[str, Any]:
    """A multi-hop model and its task, as they stand among a run's settings."""
    about = {"model": subject.name, "fingerprint": subject.fingerprint, "task": samples.task}
    return about | settings


def load_multihop(
    source: Any, device: str | torch.device | None = None, *, allow_missing: bool = False
) -> Subject:
    """A multi-hop GPT-J to measure, in float32; one in memory in another precision is copied, not converted."""
    in_memory = isinstance(source, (Subject, tuple, torch.nn.Module))
    precision = None if in_memory else torch.float32
    subject = load(source, device=device, dtype=precision, allow_missing=allow_missing)
    kind = subject.model.config.model_type
    if kind != "gptj":
        raise ModelError(
            f"{subject.name} is no multi-hop model: this works on GPT-J models, found one of type '{kind}'; language "
            "models are asked one-hop questions instead (rotoscope ask)"
        )
    if subject.model.dtype == torch.float32:
        return subject
    return replace(subject, model=copy.deepcopy(subject.model).float())
