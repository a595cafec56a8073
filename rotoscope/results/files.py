"""Files that are there whole or not at all: written under another name, then put in place with one rename."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rotoscope.errors import RunError


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A description as JSON that any reader takes: no NaN, no infinity."""
    write_text(path, json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text in UTF-8, with the line ends it has."""
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Parquet with zstd: dictionaries on index columns, byte-stream-split on numbers."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    floats = [f.name for f in arrow.schema if pa.types.is_floating(f.type)]
    others = [name for name in arrow.column_names if name not in floats]

    def write(file: Path) -> None:
        pq.write_table(
            arrow, file, compression="zstd", use_dictionary=others, use_byte_stream_split=floats or False
        )

    replace_file(path, write)


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Tensors by name, as safetensors."""
    from safetensors.torch import save_file

    replace_file(path, lambda file: save_file(arrays, file))


def read_arrays(path: Path) -> dict[str, Any]:
    """Tensors by name; a file that is missing or damaged is named."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as damage:
        raise RunError(f"{path} cannot be read ({damage}); make the run again") from damage


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, then put it in place at once."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(scratch)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into a sentence."""
    try:
        yield
    except OSError as problem:
        if problem.errno == errno.ENOSPC or "No space left" in str(problem):
            raise RunError(
                f"the disk is full: {path} was not written; what was finished before is kept, and the same "
                "command goes on from there once there is room"
            ) from problem
        raise RunError(f"{path} cannot be written ({problem.strerror or problem})") from problem


def read_table(path: Path) -> pd.DataFrame:
    """A table of a run; one that is missing or damaged is named."""
    try:
        return pq.read_table(path).to_pandas()
    except FileNotFoundError as missing:
        raise RunError(f"the run is incomplete: {path.name} is missing in {path.parent}") from missing
    except (pa.ArrowInvalid, OSError) as damage:
        raise RunError(f"{path} is damaged ({damage}); make the run again") from damage
