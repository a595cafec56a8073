"""What an item of a sweep was made of: checksums of the models, texts and runs that its settings name.

A finished item is skipped only while these are what they were; settings alone do not tell when weights on disk have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rotoscope.reading.hub import cached_commit, hub_name
from rotoscope.reading.loading import EMBEDDED, embedded_file, own_model
from rotoscope.results.files import content_hash
from rotoscope.sweep.commands import OUT, Swept

NO_SOURCES = frozenset({OUT, "task", "name"})
"""Settings whose texts are never a place."""


def input_hashes(words: Sequence[str], hashed: dict[str, str] | None = None) -> dict[str, str]:
    """For a command line, every setting that names something on disk or on the hub, with a checksum of what is there now.

    `hashed` keeps checksums by value, so that a model of many items is read once.
    """
    hashed = {} if hashed is None else hashed
    usual = {key: value for key, value in Swept(words[0]).settings.items() if isinstance(value, str)}
    given: dict[str, list[str]] = {key: [value] for key, value in usual.items()}
    for key in {_key(word) for word in words[1:]}:
        given[key] = [word.partition("=")[2] for word in words[1:] if _key(word) == key]
    hashes: dict[str, str] = {}
    for key in sorted(given.keys() - NO_SOURCES):
        for value in given[key]:
            if value not in hashed:
                hashed[value] = _source_hash(value)
        hashes[key] = "-".join(filter(None, (hashed[value] for value in given[key])))
    return {key: mark for key, mark in hashes.items() if mark}


def _key(word: str) -> str:
    return word.partition("=")[0].removeprefix("--").replace("-", "_")


def _source_hash(value: str) -> str:
    """A checksum of what a text stands for; empty where it is nothing but a text."""
    if not value:
        return ""
    if value in EMBEDDED:
        return content_hash(embedded_file(value))
    own = own_model(value)
    path = own if own is not None else Path(value).expanduser()
    try:
        if path.exists():
            return content_hash(path)
    except OSError:  # too long for a name
        return ""
    named = hub_name(value)
    return cached_commit(named) if named is not None else ""
