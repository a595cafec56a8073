"""GGUF files: dequantised once, then kept as safetensors in the user's cache folder.

transformers reads GGUF in some twenty seconds; the converted copy opens in one or two. The copy is keyed by
the file's hash and put in place with one rename, so a killed conversion leaves nothing behind that could be
mistaken for a model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from rotoscope.errors import ModelError

CONVERSION = 1  # raise when a newer conversion must not reuse older copies


def cache_folder() -> Path:
    """`ROTOSCOPE_CACHE`, or the platform's usual place for what can be made again."""
    if chosen := os.environ.get("ROTOSCOPE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rotoscope"


def converted(file: Path) -> Path:
    """The folder with the safetensors copy of a GGUF file, made now if it is not there yet."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    folder = cache_folder() / "gguf" / f"{digest[:24]}-{CONVERSION}"
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    try:
        _convert(file, scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "config.json").exists():  # another process may have been faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _convert(file: Path, folder: Path) -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as missing:
        raise ModelError(
            f"{file.name} is a GGUF file; reading it needs: pip install 'rotoscope[gguf]'"
        ) from missing
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as problem:
        raise ModelError(
            f"{file} cannot be read as a GGUF model ({type(problem).__name__}: {problem}); "
            "the file may be truncated: compare its size with the original and fetch it again"
        ) from problem
    # What was loaded is dequantised, so the note about its former quantisation no longer holds.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
