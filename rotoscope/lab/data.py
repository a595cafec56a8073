"""A multi-hop task as a dataset on disk: three Parquet files and a card, as `datasets.load_dataset` reads them.

A dataset that is being written has a note beside it that says which parts are whole; the same command goes on from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rotoscope.errors import RunError
from rotoscope.lab.sequences import PARTS, Part, token_bytes, training_sequences
from rotoscope.reading.memory import check_memory
from rotoscope.results.files import SCRATCH, replace_file, write_json, write_text
from rotoscope.settings import TrainSettings
from rotoscope.tasks.multihop import MultiHops

CARD, NOTE = "README.md", ".unfinished.json"
MADE_BY = "Made by: `rotoscope data "
ROWS = 50_000
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


def export_dataset(
    settings: TrainSettings,
    folder: str | Path,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
) -> list[Path]:
    """Write what a training run with these settings is trained, watched and tested on; returns the files.

    What cannot fit memory is refused.
    """
    place = Path(folder)
    length = training_sequences(settings, "test", count=1).length  # which refuses impossible sizes
    for part in PARTS:
        needed = token_bytes(settings, part, length)
        check_memory(f"the part {part}", needed, torch.device(device), "use fewer or shorter sequences")
    whole = _whole_parts(place, settings, overwrite)
    for left in (*place.glob(SCRATCH), *(place / "data").glob(SCRATCH)):
        left.unlink(missing_ok=True)  # by a process that was killed
    files = [place / "data" / f"{part}-00000-of-00001.parquet" for part in PARTS]
    for part, file in zip(PARTS, files, strict=True):
        if part in whole and file.is_file():
            continue
        write_json(place / NOTE, {"settings": settings.stored(), "whole": whole})
        samples = training_sequences(settings, part, device)
        replace_file(file, lambda scratch, s=samples: _write(scratch, s))  # type: ignore[misc]
        whole.append(part)
    card = place / CARD
    write_text(card, _card(settings, known_sequences(settings, device)))
    (place / NOTE).unlink(missing_ok=True)
    return [*files, card]


@cache
def known_sequences(settings: TrainSettings, device: str | torch.device) -> dict[str, tuple[int, int]]:
    """How many different sequences validation and test have, and how many of those are in training as well.

    No row is in two parts, but where few letters make few sequences, two rows may read the same.
    """

    def different(part: Part) -> set[bytes]:
        tokens = training_sequences(settings, part, device).tokens.cpu().to(torch.int16).numpy()
        return {row.tobytes() for row in tokens}

    trained = different("train")
    parts = {part: different(part) for part in PARTS[1:]}
    return {part: (len(rows), len(rows & trained)) for part, rows in parts.items()}


def _whole_parts(place: Path, settings: TrainSettings, overwrite: bool) -> list[str]:
    """The parts that an interrupted try left whole; a place where nothing may be written is refused."""
    if not os.path.lexists(place):
        return []
    note, card = _read(place / NOTE), _read(place / CARD) or ""
    made = MADE_BY in card
    if note is None and not made and not _is_bare(place):
        raise RunError(f"{place} exists and is no dataset of rotoscope, so nothing is written there")
    try:
        before = json.loads(note or "{}")
        whole = [str(part) for part in before.get("whole", ())]
    except (ValueError, AttributeError, TypeError):  # damaged: nothing of it is believed
        before, whole = {}, []
    if before.get("settings") == json.loads(json.dumps(settings.stored())):
        return whole
    if note is None and _made_by(settings) in card and not overwrite:
        return list(PARTS)  # finished
    if (whole or made) and not overwrite:
        state = "an unfinished dataset with other settings" if whole else "a dataset"
        raise RunError(f"{place} holds {state}; choose another --out, or --overwrite to replace it")
    return []


def _read(file: Path) -> str | None:
    """A text file, as far as there is one."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return None
    except ValueError:
        return ""


def _is_bare(place: Path) -> bool:
    """A folder with nothing in it but what a process leaves that was killed before it had written anything whole."""
    if not place.is_dir():
        return False
    inside = list(place.iterdir())
    if place / "data" in inside and (place / "data").is_dir():
        inside = [one for one in inside if one.name != "data"] + list((place / "data").iterdir())
    return all(one.match(SCRATCH) for one in inside)


def _write(file: Path, samples: MultiHops) -> None:
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for rows in _rows(samples):
            writer.write_table(pa.table(rows, schema=SCHEMA))


def _rows(samples: MultiHops) -> Iterator[dict[str, Any]]:
    words = samples.vocabulary
    for start in range(0, len(samples), ROWS):
        some = samples[start : start + ROWS]
        ids, hops = some.tokens.tolist(), some.hops.tolist()
        yield {
            "text": [" ".join(words[t] for t in row) for row in ids],
            "answer": [words[t] for t in some.answer.tolist()],
            "hops": hops,
            "path": [row[: h + 1] for row, h in zip(some.path.tolist(), hops, strict=True)],
            "token_ids": ids,
            "answer_id": some.answer.tolist(),
        }


RULES = {
    "number": "A window of letters, then integers. An integer t points t tokens back. Follow the pointers from the last "
    "token until you reach a letter: that letter is the answer.",
    "letter": "A window of letter-digit pairs, then letter-letter pairs. The second letter of a pair points to the one "
    "earlier pair that begins with it. Follow the pointers from the last token until you reach a letter-digit pair: "
    "that pair is the answer.",
    "either": "A window of letter-digit pairs, then a letter, whose digit is the answer. Every place of the window has letters of its "
    "own, so that the asked letter also says where its pair stands.",
}


def _made_by(settings: TrainSettings) -> str:
    """The command that writes this dataset."""
    own = (
        f"--letters {settings.letters}"
        if settings.task == "number"
        else f"--alphabet {settings.alphabet} --digits {settings.digits}"
    )
    sizes = " ".join(f"--{part} {getattr(settings, f'{part}_sequences')}" for part in PARTS)
    windows = f"--hops {settings.hops} --target {settings.target} --window {settings.window}"
    return f"{MADE_BY}{settings.task} {windows} {own} {sizes} --seed {settings.seed}`"


def _card(settings: TrainSettings, known: dict[str, tuple[int, int]]) -> str:
    sizes = [getattr(settings, f"{part}_sequences") for part in PARTS]
    splits = "\n".join(f"  - split: {part}\n    path: data/{part}-*.parquet" for part in PARTS)
    return f"""---
license: apache-2.0
pretty_name: Multi-hop {settings.task} task
tags: [synthetic, interpretability, rope]
configs:
- config_name: default
  data_files:
{splits}
---

# Multi-hop {settings.task} task

{RULES[settings.task]}

| split | sequences | different ones | of these also in train |
|---|---|---|---|
| train | {sizes[0]:,} | | |
| validation | {sizes[1]:,} | {known["validation"][0]:,} | {known["validation"][1]:,} |
| test | {sizes[2]:,} | {known["test"][0]:,} | {known["test"][1]:,} |

No row is in two splits; where few letters and short windows make few sequences, the same one can stand in several rows.

{"1 hop" if settings.hops == 1 else f"1 to {settings.hops} hops in equal shares"}; within each, every answer and every answer position equally often. A target window of
{settings.target} tokens, a pointing window of {settings.window}, one token that asks. Every sequence has exactly one path.

Columns: `text` (tokens separated by spaces), `answer`, `hops`, `path` (0-based positions from the last token to the answer),
`token_ids` and `answer_id` (ids of the models trained on this task by rotoscope).

{_made_by(settings)}

The task is from the paper rotoscope calls P2; see its documentation.
"""
