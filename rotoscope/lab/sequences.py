"""From training settings to what is trained: the sequences of each part, and the sizes of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rotoscope.errors import RunError, TaskError
from rotoscope.lab.gptj import GPTJShape
from rotoscope.lab.settings import TrainSettings, layer_ids
from rotoscope.runs.files import disk_errors
from rotoscope.runs.folder import recover_folder, replaced_folder
from rotoscope.tasks.multihop import MULTIHOP
from rotoscope.tasks.multihop_frames import MultiHops

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


def training_sequences(
    settings: TrainSettings, part: Part, device: str | torch.device = "cpu", count: int | None = None
) -> MultiHops:
    """One of the three parts: rows of one dataset that do not overlap."""
    sizes = {name: int(getattr(settings, f"{name}_sequences")) for name in PARTS}
    first = sum(sizes[name] for name in PARTS[: PARTS.index(part)])
    sizes_of_task = ("letters",) if settings.task == "number" else ("alphabet", "digits")
    samples = MULTIHOP[settings.task](
        sizes[part] if count is None else min(count, sizes[part]),
        hops=settings.hops,
        target=settings.target,
        window=settings.window,
        seed=settings.seed,
        first=first,
        device=device,
        **{name: getattr(settings, name) for name in sizes_of_task},
    )
    return _with_shuffled_answers(samples) if part == "train" and settings.answers == "shuffled" else samples


def _with_shuffled_answers(samples: MultiHops) -> MultiHops:
    """The same sequences with their answers in a random order, so that a path says nothing about its answer."""
    generator = torch.Generator().manual_seed(samples.settings["seed"] * 104_729 + 17)
    order = torch.randperm(len(samples), generator=generator)
    return replace(samples, answer=samples.answer[order.to(samples.answer.device)])


def token_bytes(settings: TrainSettings, part: Part, length: int) -> int:
    """The tokens of one of the parts, each an int64."""
    return 8 * length * int(getattr(settings, f"{part}_sequences"))


def model_shape(settings: TrainSettings, vocabulary: int) -> GPTJShape:
    """The sizes of the model these settings train."""
    head = settings.width // settings.heads
    shape = GPTJShape(
        vocabulary,
        settings.layers,
        settings.heads,
        settings.width,
        head if settings.rotary is None else settings.rotary,
        settings.nope,
        settings.positions,
        settings.dropout,
        settings.base,
    )
    return replace(shape, ids=layer_ids(settings.angles, shape.layers, shape.rotary // 2, shape.nope))


# Multi-hop sequences as a dataset on disk: Parquet files and a card, as `datasets.load_dataset` reads them.


CARD = "README.md"
MADE_BY = "Made by rotoscope: `rs.tasks."
SPLITS = ("train", "validation", "test")
ROWS = 50_000
"""Rows written at a time."""
SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "answer": pa.string(),
        "hops": pa.int8(),
        "path": pa.list_(pa.int16()),
        "token_ids": pa.list_(pa.int16()),
        "answer_id": pa.int16(),
    }
)
RULES = {
    "number": "A window of letters, then integers. An integer t points t tokens back. Follow the pointers from the last "
    "token until you reach a letter: that letter is the answer.",
    "letter": "A window of letter-digit pairs, then letter-letter pairs. The second letter of a pair points to the one "
    "earlier pair that begins with it. Follow the pointers from the last token until you reach a letter-digit pair: "
    "that pair is the answer.",
    "either": "A window of letter-digit pairs, then a letter, whose digit is the answer. Every place of the window has letters of its "
    "own, so that the asked letter also says where its pair stands.",
}


def save_dataset(
    samples: MultiHops, folder: str | Path, *, validation: int, test: int, overwrite: bool
) -> list[Path]:
    """Write sequences as a dataset, the whole folder or nothing; returns the files."""
    train = len(samples) - validation - test
    if validation < 0 or test < 0 or train < 1:
        raise TaskError(
            f"{len(samples)} sequences cannot be split into training, {validation} for validation and {test} for testing; "
            "make more of them"
        )
    ends = (0, train, train + validation, len(samples))
    splits = {
        name: samples[first:last]
        for name, first, last in zip(SPLITS, ends, ends[1:], strict=False)
        if last > first
    }
    files = {name: f"data/{name}-00000-of-00001.parquet" for name in splits}
    out = Path(os.path.abspath(folder))
    with disk_errors(out):
        recover_folder(out, _is_dataset)
        _check_folder(out, overwrite)
        with replaced_folder(out, _is_dataset) as scratch:
            (scratch / "data").mkdir()
            for name, part in splits.items():
                _write(scratch / files[name], part)
            (scratch / CARD).write_text(_card(samples, splits), encoding="utf-8", newline="\n")
    return [Path(folder) / name for name in (*files.values(), CARD)]


def _check_folder(out: Path, overwrite: bool) -> None:
    """Refuse to write where anything but a dataset would be lost."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not _is_dataset(out):
        raise RunError(f"{out} exists and is no dataset of rotoscope, so nothing is written there")
    if not overwrite:
        raise RunError(f"{out} holds a dataset; choose another folder, or overwrite=True to replace it")


def _is_dataset(folder: Path) -> bool:
    """Whether a folder holds a dataset of ours and nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
    expected = {CARD, "data", *(f"data/{split}-00000-of-00001.parquet" for split in SPLITS)}
    try:
        return names <= expected and MADE_BY in (folder / CARD).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _write(file: Path, samples: MultiHops) -> None:
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for rows in _rows(samples):
            writer.write_table(pa.table(rows, schema=SCHEMA))


def _rows(samples: MultiHops) -> Iterator[dict[str, Any]]:
    words = samples.vocabulary
    for start in range(0, len(samples), ROWS):
        batch = samples[start : start + ROWS]
        ids, hops = batch.tokens.tolist(), batch.hops.tolist()
        yield {
            "text": [" ".join(words[t] for t in row) for row in ids],
            "answer": [words[t] for t in batch.answer.tolist()],
            "hops": hops,
            "path": [row[: h + 1] for row, h in zip(batch.path.tolist(), hops, strict=True)],
            "token_ids": ids,
            "answer_id": batch.answer.tolist(),
        }


def repeated_sequences(splits: dict[str, MultiHops]) -> dict[str, tuple[int, int]]:
    """Of each split: how many different sequences it has, and how many of those are in train as well."""
    different = {name: {row.tobytes() for row in part.tokens.cpu().numpy()} for name, part in splits.items()}
    return {name: (len(rows), len(rows & different["train"])) for name, rows in different.items()}


def _card(samples: MultiHops, splits: dict[str, MultiHops]) -> str:
    configs = "\n".join(f"  - split: {name}\n    path: data/{name}-*.parquet" for name in splits)
    repeated = repeated_sequences(splits)
    rows = "\n".join(
        f"| {name} | {len(part):,} | {repeated[name][0]:,} | {'' if name == 'train' else f'{repeated[name][1]:,}'} |"
        for name, part in splits.items()
    )
    settings = samples.settings
    hops = ", ".join(map(str, settings["hops"]))
    call = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"""---
license: apache-2.0
pretty_name: Multi-hop {samples.task} task
tags: [synthetic, interpretability, rope]
configs:
- config_name: default
  data_files:
{configs}
---

# Multi-hop {samples.task} task

{RULES[samples.task]}

| split | sequences | different ones | of these also in train |
|---|---|---|---|
{rows}

No row is in two splits; where few letters and short windows make few sequences, the same one can stand in several rows.

Hops: {hops}, in equal shares; within each, every answer and every answer position equally often. A target window of
{settings["target"]} tokens, a pointing window of {settings["window"]}, one token that asks. Every sequence has exactly one path.

Columns: `text` (tokens separated by spaces), `answer`, `hops`, `path` (0-based positions from the last token to the answer),
`token_ids` and `answer_id` (ids of the models trained on this task by rotoscope).

{MADE_BY}{samples.task}({call})`

The task is from the paper rotoscope calls P2; see its documentation.
"""
