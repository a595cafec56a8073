"""Checkpoints that anyone can load: a folder with transformers' configuration, safetensors weights and a tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from rotoscope.errors import ModelError
from rotoscope.lab.gptj import GPTJ
from rotoscope.models.loading import Subject, load
from rotoscope.runs.files import disk_errors
from rotoscope.runs.folder import replaced_folder
from rotoscope.tasks.multihop import MULTIHOP
from rotoscope.tasks.multihop_frames import PAD, MultiHops


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
