"""Names of models on the hub: telling them from paths, and getting what they stand for."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rotoscope.errors import ModelError
from rotoscope.reading.clean_room import TEMPLATES
from rotoscope.reading.complaints import folded

CERTAIN = "hf:"
"""In front of a name, says that it is one of the hub."""
ORGANISATION_AND_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ONE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
WANTED = [
    "config.json", "generation_config.json", "adapter_config.json", "model.safetensors", "model-*.safetensors",
    "model.safetensors.index.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt",
    "*.model", "*.tiktoken", "tekken.json", "chat_template*", f"{TEMPLATES}/*.jinja",
]  # fmt: skip
"""What is fetched of a model; code and pickled weights are not."""


def hub_name(text: str) -> str | None:
    """The hub's name for what a user wrote, or None: where the first part of org/name is a folder here, it is a path."""
    if text.startswith(CERTAIN):
        name = text.removeprefix(CERTAIN)
        if not (ORGANISATION_AND_NAME.fullmatch(name) or ONE_NAME.fullmatch(name)):
            raise ModelError(f"'{name}' is no name of a model on the hub; they are written {CERTAIN}org/name")
        return name
    if not ORGANISATION_AND_NAME.fullmatch(text) or os.path.isdir(text.partition("/")[0]):
        return None
    return text


def no_such_path(text: str) -> str | None:
    """What to say of a name that can only be a path, and leads nowhere; None where it may be something else."""
    path = Path(os.path.expanduser(text))
    if path.parent == Path(".") and not text.startswith((".", "~")) and os.sep not in text:
        return None
    try:
        beside = [one.name for one in path.parent.iterdir()]
    except OSError:
        beside = []
    close = difflib.get_close_matches(path.name, beside, n=1)
    hint = f"; did you mean {path.parent / close[0]}?" if close else ""
    if not hint and ORGANISATION_AND_NAME.fullmatch(text):
        hint = f"; a model of that name on the hub is {CERTAIN}{text}"
    return f"no such folder: {text}{hint}"


def fetched(name: str) -> Path:
    """The folder that holds a model of the hub on this machine, fetched now if it is not there yet."""
    from huggingface_hub import is_offline_mode, snapshot_download

    offline = is_offline_mode()
    try:
        with _bars_on_a_terminal_only():
            return Path(snapshot_download(name, allow_patterns=WANTED, local_files_only=offline))
    except Exception as problem:
        if offline:
            raise ModelError(
                f"'{name}' was not fetched from the hub before, and HF_HUB_OFFLINE says not to ask it; "
                "give a folder, or unset HF_HUB_OFFLINE"
            ) from problem
        raise ModelError(
            f"'{name}' could not be loaded from the hub ({folded(problem)}); check the name and the connection, "
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
