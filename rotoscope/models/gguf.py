"""GGUF files: dequantised once, then kept as safetensors in the user's cache folder.

transformers reads GGUF in some twenty seconds; the converted copy opens in one or two. The copy is keyed by the file's hash
and put in place with one rename, so a killed conversion leaves nothing behind that could be mistaken for a model. What it
does leave, the next conversion removes.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from rotoscope.errors import ModelError, pip_install
from rotoscope.models.offloading import scratch_folder
from rotoscope.models.sanitize import read_json, room_for_file
from rotoscope.models.weight_check import cache_folder, check_complete, folded, same_random_numbers
from rotoscope.models.zoo import digest_of, file_hash
from rotoscope.runs.files import disk_errors

CONVERSION = 3  # raise when a newer conversion must not reuse older copies
SIZES = ("block_count", "embedding_length", "attention.head_count")
"""What every GGUF file of a language model says, under its architecture's name."""
CHECKSUMS = "checksums.json"
"""In a copy: the SHA-256 of its weights, by their file."""
INCOMPLETE = "incomplete.json"
"""In a copy of a file that lacks tensors: what is wrong with it. Such copies are made for those who ask for them."""


def converted(file: Path, *, allow_missing: bool = False) -> tuple[Path, list[str]]:
    """The folder with the safetensors copy of a GGUF file, made now if it is not there yet, and what is wrong with it."""
    complete = cache_folder() / "gguf" / f"{file_hash(file)[:24]}-{CONVERSION}"
    partial = complete.with_name(f"{complete.name}-incomplete")
    folder = partial if allow_missing and not (complete / "config.json").exists() else complete
    if not _is_sound(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder = _make(file, complete, partial, allow_missing=allow_missing)
    noted = read_json(folder / INCOMPLETE)["warnings"] if (folder / INCOMPLETE).is_file() else []
    return folder, noted


def _is_sound(folder: Path) -> bool:
    """Whether a copy is there, its weights as they were written."""
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        return all(file_hash(folder / name) == checksum for name, checksum in checksums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _make(file: Path, complete: Path, partial: Path, *, allow_missing: bool) -> Path:
    with scratch_folder(complete.parent) as scratch:
        warnings = _convert(file, scratch, allow_missing=allow_missing)
        if warnings:
            (scratch / INCOMPLETE).write_text(json.dumps({"warnings": warnings}), encoding="utf-8")
        checksums = {weights.name: digest_of(weights) for weights in scratch.glob("*.safetensors")}
        (scratch / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
        folder = partial if warnings else complete
        try:
            scratch.rename(folder)
        except OSError:
            if not _is_sound(folder):  # another process may have been faster
                raise
    return folder


def _convert(file: Path, folder: Path, *, allow_missing: bool) -> list[str]:
    """Write the safetensors copy; what is wrong with the file is refused, or said where that was asked for."""
    try:
        import gguf  # noqa: F401 - transformers needs it, too
    except ImportError as missing:
        raise ModelError(
            f"{file.name} is a GGUF file; reading it needs: {pip_install('gguf')}. 'number' comes with rotoscope: "
            'rs.load("number") works at once'
        ) from missing
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = "model.gguf"
    options: dict[str, Any] = {"gguf_file": name, "trust_remote_code": False}
    with room_for_file(file, name) as room:
        try:
            read = _reader(file)
            _check_layout(read, file)
            tokenizer = AutoTokenizer.from_pretrained(room, **options)
            _set_start_token(tokenizer, read)
            with same_random_numbers():
                model, report = AutoModelForCausalLM.from_pretrained(
                    room, output_loading_info=True, ignore_mismatched_sizes=True, **options
                )
        except ModelError:
            raise
        except Exception as problem:
            raise ModelError(
                f"{file} cannot be read as a GGUF model ({folded(problem)}); "
                "the file may be truncated: compare its size with the original and fetch it again"
            ) from problem
        warnings = check_complete(model, report, file, allow_missing=allow_missing)
        # What was loaded is dequantised, so the note about its former quantisation no longer holds.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.is_quantized = False
        with disk_errors(folder.parent):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return warnings


def _reader(file: Path) -> Any:
    """gguf's reader, which would go on beyond the end of a damaged file, for ever where a count was damaged."""
    import numpy as np
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            values = super()._get(offset, dtype, count, override_order)
            if len(values) < int(count):
                raise ValueError(f"it ends where a value is expected, at byte {int(offset):,}")
            return values

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                count = int(self._get(orig_offs + 4, np.uint64)[0])
                if count > len(self.data) - orig_offs:
                    raise ValueError(f"a list in it has {count:,} entries, more than there is room for")
            return super()._get_field_parts(orig_offs, raw_type)

    return Reader(file)


def _set_start_token(tokenizer: Any, read: Any) -> None:
    """Let a tokenizer put its start token first, or not, where the file says so: transformers passes over that."""
    field = read.fields.get("tokenizer.ggml.add_bos_token")
    if field is not None and tokenizer.bos_token_id is not None:
        tokenizer.add_bos_token = bool(field.contents())


def _check_layout(read: Any, file: Path) -> None:
    """Refuse a file whose numbers would be taken for others.

    Its tensors stand one after the other and fill it, have names that are known, and it says the sizes that transformers
    would otherwise make up.
    """
    from gguf.constants import TENSOR_NAMES

    end = read.data_offset
    for stored in sorted(read.tensors, key=lambda tensor: int(tensor.data_offset)):
        if int(stored.data_offset) != end + -end % read.alignment:
            raise ModelError(
                f"{file} is damaged: {stored.name} is not where the tensor before it ends; fetch it again"
            )
        end = int(stored.data_offset) + int(stored.n_bytes)
        if (
            re.sub(r"\.\d+\.", ".{bid}.", stored.name.rpartition(".")[0] or stored.name)
            not in TENSOR_NAMES.values()
        ):
            raise ModelError(
                f"{file} is damaged, or newer than we know: it has a tensor {stored.name!a}; fetch it again"
            )
    size = file.stat().st_size
    if size not in (end, end + -end % read.alignment):
        raise ModelError(
            f"{file} is damaged: its tensors end after {end:,} bytes, and it has {size:,}; fetch it again"
        )
    known = read.fields.get("general.architecture")
    architecture = None if known is None else known.contents()
    missing = [name for name in SIZES if f"{architecture}.{name}" not in read.fields]
    if missing:
        raise ModelError(
            f"{file} does not say how large its model is: {architecture}.{missing[0]} is missing; fetch the file again"
        )
    stated = read.fields[f"{architecture}.block_count"].contents()
    blocks = len({stored.name.split(".")[1] for stored in read.tensors if stored.name.startswith("blk.")})
    if not isinstance(stated, int) or stated > blocks:  # gguf would make up names for all of them, one by one
        raise ModelError(
            f"{file} is damaged: it says it has {stated} blocks, and there are {blocks}; fetch it again"
        )
