"""Models and checkpoints by name: telling hub names from paths, and getting what they stand for."""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rotoscope.errors import ModelError
from rotoscope.models.devices import free_disk
from rotoscope.models.sanitize import TEMPLATES
from rotoscope.models.weight_check import folded

NAME = re.compile(
    r"(?:stage-?(?P<stage>\d+)[-_](?:ingredient-?\d+[-_])?)?"
    r"(?:checkpoint|step|global_step)[-_]?(?P<step>\d+)"
    r"(?:[-_]tokens-?[\d.]+[KMBT]?)?"
)
"""Names of trainers (checkpoint-500, global_step500), of Pythia (step1000), of OLMo (step1000-tokens4B,
stage2-ingredient1-step1000-tokens3B) and of SmolLM (step-125000, stage1-step-40000)."""


@dataclass(frozen=True)
class Checkpoint:
    """A model at one step of its training."""

    step: int
    name: str
    """Of the folder, or of the branch or tag."""
    source: str | Path
    """What `rs.load` takes."""
    revision: str | None = None
    """The branch or tag, on the hub."""


def named_step(name: str) -> int | None:
    """The step that a name means within its stage; None where it names none."""
    match = NAME.fullmatch(name)
    return int(match["step"]) if match else None


def named_steps(names: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """The step of every name that means one, and what has to be said about stages.

    Steps of a later stage are taken as they stand where they go on from those of the stage before; where they begin again, they
    count on from the last one that is named.
    """
    stages: dict[int, dict[str, int]] = {}
    for name in names:
        if match := NAME.fullmatch(name):
            stages.setdefault(int(match["stage"] or 0), {})[name] = int(match["step"])
    steps: dict[str, int] = {}
    notes: list[str] = []
    for stage in sorted(stages):
        last = max(steps.values(), default=-1)
        again = min(stages[stage].values()) <= last
        if again:
            notes.append(
                f"the steps of stage {stage} begin again at {min(stages[stage].values())}: they count on from {last}, the last "
                "step that is named before"
            )
        steps |= {name: step + last * again for name, step in stages[stage].items()}
    return steps, notes


def in_order(checkpoints: Iterable[Checkpoint], place: str) -> list[Checkpoint]:
    """By step; two of the same step are refused."""
    by_step: dict[int, Checkpoint] = {}
    for current in sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.name)):
        if other := by_step.get(current.step):
            raise ModelError(
                f"{other.name} and {current.name} of {place} are both step {current.step}, and may be of two trainings; "
                "leave one of them out"
            )
        by_step[current.step] = current
    return list(by_step.values())


def log_spaced(checkpoints: Sequence[Checkpoint], most: int | None) -> list[Checkpoint]:
    """At most so many, in order: the first, the last, and then again and again the one farthest from those chosen, by the
    logarithm of its step. More of them are therefore always the same and others."""
    if most is None or len(checkpoints) <= most:
        return list(checkpoints)
    places = [math.log1p(checkpoint.step) for checkpoint in checkpoints]
    chosen = [len(checkpoints) - 1, 0][:most]
    while len(chosen) < most:
        rest = [k for k in range(len(checkpoints)) if k not in chosen]
        chosen.append(max(rest, key=lambda k: min(abs(places[k] - places[c]) for c in chosen)))
    return [checkpoints[k] for k in sorted(chosen)]


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """Training step -> checkpoint, for folders called checkpoint-N, step-N or the like, in order."""
    return {checkpoint.step: Path(checkpoint.source) for checkpoint in checkpoints_in(folder)[0]}


def checkpoints_in(folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints of a folder in order, and what has to be said about their stages."""
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}")
    steps, notes = named_steps(place.name for place in folder.iterdir() if (place / "config.json").is_file())
    if not steps:
        raise ModelError(
            f"{folder} holds no checkpoints: folders called checkpoint-N or step-N, each with a config.json, are wanted"
        )
    return in_order((Checkpoint(step, name, folder / name) for name, step in steps.items()), str(folder)), notes


CERTAIN = "hf:"
"""In front of a name, says that it is one of the hub."""
ORGANISATION_AND_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ONE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
AT = "@"
"""Between a name of the hub and one of its branches, tags or commits."""
WANTED = [
    "config.json", "generation_config.json", "adapter_config.json", "model.safetensors", "model-*.safetensors",
    "model.safetensors.index.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt",
    "*.model", "*.tiktoken", "tekken.json", "chat_template*", f"{TEMPLATES}/*.jinja",
]  # fmt: skip
"""What is fetched of a model; code and pickled weights are not."""


def hub_name(text: str) -> str | None:
    """The hub's name for what a user wrote, or None: where the first part of org/name is a folder here, it is a path.

    `@revision` may stand after it, and stays there.
    """
    name = text.removeprefix(CERTAIN).partition(AT)[0]
    if text.startswith(CERTAIN):
        if not (ORGANISATION_AND_NAME.fullmatch(name) or ONE_NAME.fullmatch(name)):
            raise ModelError(f"'{name}' is no name of a model on the hub; they are written {CERTAIN}org/name")
        return text.removeprefix(CERTAIN)
    if not ORGANISATION_AND_NAME.fullmatch(name) or os.path.isdir(name.partition("/")[0]):
        return None
    return text


def no_such_path(text: str) -> str | None:
    """What to say of a name that can only be a path, and leads nowhere; None where it may be something else."""
    path = Path(os.path.expanduser(text))
    if path.parent == Path(".") and not text.startswith((".", "~")) and os.sep not in text:
        return None
    try:
        beside = [neighbour.name for neighbour in path.parent.iterdir()]
    except OSError:
        beside = []
    close = difflib.get_close_matches(path.name, beside, n=1)
    hint = f"; did you mean {path.parent / close[0]}?" if close else ""
    if not hint and ORGANISATION_AND_NAME.fullmatch(text):
        hint = f"; a model of that name on the hub is {CERTAIN}{text}"
    return f"no such folder: {text}{hint}"


def fetched(called: str) -> Path:
    """The folder that holds a model of the hub, `org/name` or `org/name@revision`, on this machine; what is not there yet
    is fetched now."""
    from huggingface_hub import is_offline_mode, snapshot_download

    name, _, revision = called.partition(AT)
    with _asking(called), _bars_on_a_terminal_only():
        folder = snapshot_download(
            name, revision=revision or None, allow_patterns=WANTED, local_files_only=is_offline_mode()
        )
    return Path(folder)


def cached_commit(called: str) -> str:
    """The commit of `org/name` or `org/name@revision` that was fetched last; empty where nothing of it is on this machine."""
    name, _, revision = called.partition(AT)
    try:
        return (_kept(name) / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except OSError:
        return revision  # itself a commit, or not fetched yet


def revisions(name: str) -> list[str]:
    """The branches and tags of a model of the hub; offline, those that were fetched before."""
    from huggingface_hub import HfApi, is_offline_mode

    with _asking(name):
        if is_offline_mode():
            refs = _kept(name) / "refs"
            names = {ref.relative_to(refs).as_posix() for ref in refs.rglob("*") if ref.is_file()}
            if not names:
                raise FileNotFoundError(refs)
        else:
            listed = HfApi().list_repo_refs(name)
            names = {ref.name for ref in (*listed.branches, *listed.tags)}
    return sorted(names)


def lacking(name: str, revisions: Iterable[str]) -> tuple[list[str], int]:
    """Which of these revisions are not whole on this machine, and how many bytes of them would be fetched.

    A revision about which the hub does not answer is left to whoever fetches it.
    """
    from huggingface_hub import HfApi, is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    incomplete: list[str] = []
    sizes: dict[str, int] = {}
    for revision in () if is_offline_mode() else revisions:
        tree: list[Any] = []
        with _asking(name), suppress(HfHubHTTPError):
            tree = list(HfApi().list_repo_tree(name, recursive=True, revision=revision))
        files = {file.path: file for file in tree if isinstance(file, RepoFile)}
        needed = [files[path] for path in filter_repo_objects(files, allow_patterns=WANTED)]
        blobs = {file.lfs.sha256 if file.lfs else file.blob_id: file.size for file in needed}
        missing = {blob: size for blob, size in blobs.items() if not (_kept(name) / "blobs" / blob).is_file()}
        incomplete += [revision] * bool(missing)
        sizes |= missing
    return incomplete, sum(sizes.values())


def room() -> tuple[int, Path]:
    """The bytes that are free where models of the hub are kept."""
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    return free_disk(place), place


def _kept(name: str) -> Path:
    """Where the hub's own library keeps a model."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


@contextmanager
def _asking(called: str) -> Iterator[None]:
    """What the hub's own library complains of, in our words."""
    from huggingface_hub import is_offline_mode

    try:
        yield
    except Exception as problem:
        if is_offline_mode():
            raise ModelError(
                f"'{called}' was not fetched from the hub before, and HF_HUB_OFFLINE says not to ask it; "
                "give a folder, or unset HF_HUB_OFFLINE"
            ) from problem
        raise ModelError(
            f"'{called}' could not be loaded from the hub ({folded(problem)}); check the name and the connection, "
            "or download it and give the folder"
        ) from problem


@contextmanager
def _bars_on_a_terminal_only() -> Iterator[None]:
    """Fetching may take long, and its bars are worth seeing; in a log they are noise."""
    from huggingface_hub import utils

    if sys.stderr.isatty() or utils.are_progress_bars_disabled():  # type: ignore[attr-defined]
        yield
        return
    utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        utils.enable_progress_bars()  # type: ignore[attr-defined]
