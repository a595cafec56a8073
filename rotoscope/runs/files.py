"""Files that are there whole or not at all: written under another name, then put in place with one rename.

What is written into a run folder is listed in the folder's manifest, and tables and tensors have checksums: damage
shows when they are read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rotoscope.errors import RunError

CHECKSUM = "checksum"
MANIFEST = "manifest.txt"
SCRATCH = ".*.part"
"""Files that are being written, or were when a process was killed."""
AGAIN = "make the run again with --overwrite"
"""What to do about a run that cannot be read."""
WITH_SETTINGS = f"{AGAIN} (its settings are in run.json)"
DEPTH = 4
"""How deep in a run folder a file can lie."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A description as JSON that any reader takes: no NaN, no infinity."""
    write_text(path, json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text in UTF-8, with the line ends it has."""
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def write_table(path: Path, table: pd.DataFrame | pa.Table) -> None:
    """Parquet with zstd: dictionaries on index columns, byte-stream-split on numbers."""
    arrow = table if isinstance(table, pa.Table) else pa.Table.from_pandas(table, preserve_index=False)
    floats = [f.name for f in arrow.schema if pa.types.is_floating(f.type)]
    lists = [f for f in arrow.schema if pa.types.is_list(f.type)]
    others = [f.name for f in arrow.schema if f.name not in floats and f not in lists]
    floats += [f"{f.name}.list.element" for f in lists if pa.types.is_floating(f.type.value_type)]

    def write(file: Path) -> None:
        pq.write_table(
            arrow, file, compression="zstd", use_dictionary=others, use_byte_stream_split=floats or False
        )

    replace_file(path, write)


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Tensors by name, as safetensors."""
    from safetensors.torch import save_file

    about = {CHECKSUM: _arrays_checksum(arrays)}
    replace_file(path, lambda file: save_file(arrays, file, metadata=about))


def read_arrays(path: Path) -> dict[str, Any]:
    """Tensors by name; a file that is missing or damaged is named."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(plain(path), "pt") as file:
            expected = (file.metadata() or {}).get(CHECKSUM)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (OSError, SafetensorError) as damage:
        raise RunError(f"{path} cannot be read ({damage}); {WITH_SETTINGS}") from damage
    if expected is not None and expected != _arrays_checksum(arrays):
        raise RunError(f"{path} is damaged (it is not what was written); {WITH_SETTINGS}")
    return arrays


def _arrays_checksum(arrays: dict[str, Any]) -> str:
    import torch

    checksum = 0
    for name in sorted(arrays):
        flat = arrays[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(flat.numpy().data, zlib.crc32(name.encode(), checksum))
    return f"{checksum:08x}"


def plain(path: Path) -> Path:
    """The same path, unless something else than a file is there: a pipe or a device might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return path


def checksum(path: Path) -> str:
    """Of a file's bytes: enough to notice damage, and cheap."""
    checksum = 0
    with plain(path).open("rb") as file:
        while part := file.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


def content_hash(path: Path) -> str:
    """Of a file's bytes, or of the names and bytes of all files in a folder; hidden files do not count, nor does the place."""
    digest = hashlib.sha256()
    files = [path] if not path.is_dir() else sorted(path.rglob("*"))
    for file in files:
        name = "" if file == path else file.relative_to(path).as_posix()
        if any(part.startswith(".") for part in name.split("/")) or not file.is_file():
            continue
        with file.open("rb") as opened:
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def make_folder(path: Path) -> None:
    """A folder with all those above it, however many: pathlib calls itself once for each."""
    missing, above = [path], path.parent
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    for folder in missing[::-1]:
        folder.mkdir(exist_ok=True)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, then put it in place at once; links and devices are left alone."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise RunError(f"{path} is no plain file, so it is not replaced")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_errors(path):
        make_folder(path.parent)
        enter_in_manifest(path)
        try:
            write(scratch)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


def start_manifest(folder: Path, names: Iterable[str] = ()) -> None:
    """List these files, and from now on what is written into this folder."""
    scratch = folder / f".{MANIFEST}.part"
    try:
        scratch.write_text("".join(f"{name}\n" for name in names), encoding="utf-8", newline="\n")
        scratch.replace(folder / MANIFEST)
    finally:
        scratch.unlink(missing_ok=True)


def listed(folder: Path) -> list[str]:
    """What was written into a run folder, as far as its manifest can be read; never anything outside it."""
    try:
        lines = plain(folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [line for line in lines if line and not Path(line).is_absolute() and ".." not in Path(line).parts]


def enter_in_manifest(*paths: Path) -> None:
    """List files, or all files of folders, in the manifest of the run folder they lie in, if they lie in one."""
    for path in paths:
        home = next((up for up in list(path.parents)[:DEPTH] if (up / MANIFEST).is_file()), None)
        if home is None:
            continue
        files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
        names = [file.relative_to(home).as_posix() for file in files]
        if new := sorted(set(names) - set(listed(home))):
            with (home / MANIFEST).open("a", encoding="utf-8", newline="\n") as manifest:
                manifest.write("".join(f"{name}\n" for name in new))


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into a sentence, also where safetensors or tokenizers pass it on as their own."""
    try:
        yield
    except Exception as problem:
        if not isinstance(problem, OSError) and "(os error " not in str(problem):
            raise
        if getattr(problem, "errno", None) == errno.ENOSPC or "No space left" in str(problem):
            raise RunError(
                f"the disk is full: {path} was not written; what was finished before is kept, and the same "
                "command goes on from there once there is room"
            ) from problem
        reason = getattr(problem, "strerror", None) or problem
        raise RunError(f"{path} cannot be written ({reason})") from problem


def read_table(path: Path, expected: str | None = None) -> pd.DataFrame:
    """A table of a run; one that is missing, damaged, or not what was written is named."""
    if path.is_dir():
        raise RunError(
            f"the run is damaged: {path.name} is missing in {path.parent} (a folder is in its place); {WITH_SETTINGS}"
        )
    table, damage = None, ""
    try:
        if expected is None or checksum(path) == expected:
            table = pq.read_table(plain(path)).to_pandas()
        else:
            damage = "it is not what was written"
    except FileNotFoundError as missing:
        raise RunError(
            f"the run is damaged: {path.name} is missing in {path.parent}; {WITH_SETTINGS}"
        ) from missing
    except Exception as problem:  # arrow and pandas raise anything at all at damaged bytes
        damage = str(problem) or type(problem).__name__
    if table is None:
        raise RunError(f"{path} is damaged ({damage}); {WITH_SETTINGS}")
    return table
