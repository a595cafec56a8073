"""What the items of a sweep are made of: checksums of the models, texts and runs that their settings name.

A finished item is skipped only while these are what they were; settings alone do not tell when weights on disk have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.models.hub import cached_commit, hub_name
from rotoscope.models.zoo import ZOO, own_model
from rotoscope.runs.files import content_hash
from rotoscope.sweeps.commands import OUT, Swept
from rotoscope.sweeps.items import Item
from rotoscope.sweeps.result import FAILED, FINISHED, Outcome, outcome_of

NO_SOURCES = frozenset({OUT, "task", "name"})
"""Settings whose values are never a place."""


def items_to_run(items: Sequence[Item], folder: Path, *, retry: bool) -> list[Item]:
    """The items that are not finished, those that failed only with `retry`; finished ones whose inputs have changed."""
    outcomes = {item.name: outcome_of(folder / item.name) for item in items}
    changed = _changed([item for item in items if outcomes[item.name].state == FINISHED], outcomes)
    skipped = (FINISHED,) if retry else (FINISHED, FAILED)
    return [item for item in items if item.name in changed or outcomes[item.name].state not in skipped]


def _changed(items: Sequence[Item], outcomes: Mapping[str, Outcome]) -> set[str]:
    """Finished items whose inputs have changed; raises RunError unless they may be overwritten."""
    changed: dict[str, str] = {}
    hashed: dict[str, str] = {}
    for item in items:
        now, before = input_hashes(item.line(Path(OUT)), hashed), outcomes[item.name].inputs
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if names:
            changed[item.name] = " and ".join(names)
    refused = [item for item in items if item.name in changed and not item.given.get("overwrite")]
    if refused:
        first, more = refused[0], f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise RunError(
            f"the item {first.name}{more} was made of something else than is there now: {changed[first.name]} has changed. To have it "
            "made again, put overwrite = true into [settings]; to keep it, choose another --out"
        )
    return set(changed)


def input_hashes(words: Sequence[str], hashed: dict[str, str] | None = None) -> dict[str, str]:
    """For a command line, every setting that names something on disk or on the hub, with a checksum of what is there now.

    `hashed` keeps checksums by value, so that a model of many items is read once.
    """
    hashed = {} if hashed is None else hashed
    usual = {key: value for key, value in Swept(words[0]).settings.items() if isinstance(value, str)}
    values: dict[str, list[str]] = {key: [value] for key, value in usual.items()}
    for key in {_key(word) for word in words[1:]}:
        values[key] = [word.partition("=")[2] for word in words[1:] if _key(word) == key]
    hashes: dict[str, str] = {}
    for key in sorted(values.keys() - NO_SOURCES):
        for value in values[key]:
            if value not in hashed:
                hashed[value] = _source_hash(value)
        hashes[key] = "-".join(filter(None, (hashed[value] for value in values[key])))
    return {key: checksum for key, checksum in hashes.items() if checksum}


def _key(word: str) -> str:
    return word.partition("=")[0].removeprefix("--").replace("-", "_")


def _source_hash(value: str) -> str:
    """A checksum of the file, folder or model that a text names; empty where it names nothing."""
    if not value:
        return ""
    if value in ZOO:
        return ZOO[value].sha256
    own = own_model(value)
    path = own if own is not None else Path(value).expanduser()
    try:
        if path.exists():
            return content_hash(path)
    except OSError:  # too long for a name
        return ""
    name = hub_name(value)
    return cached_commit(name) if name is not None else ""
