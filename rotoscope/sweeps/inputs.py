"""What the items of a sweep are made of: checksums of the models, texts and runs that their settings name.

A finished item is skipped only while these are what they were; settings alone do not tell when weights on disk have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.measures.measure import measure_file
from rotoscope.models.hub import cached_commit, hub_name
from rotoscope.models.zoo import ZOO, own_model
from rotoscope.runs.files import content_hash
from rotoscope.sweeps.commands import OUT, Swept
from rotoscope.sweeps.items import Item
from rotoscope.sweeps.result import FAILED, FINISHED, Outcome, outcome_of

MEASURES = "measures"
"""The setting whose values are functions in files or modules."""
NO_SOURCES = frozenset({OUT, "task", "name"})
"""Settings whose values are never a place."""


def items_to_run(items: Sequence[Item], folder: Path, *, retry: bool) -> list[Item]:
    """The items that are not finished, those that failed only with `retry`; finished ones whose inputs have changed."""
    outcomes = {item.name: outcome_of(folder / item.name) for item in items}
    changed = changed_inputs(items, outcomes)
    _check_overwritten(items, changed)
    skipped = (FINISHED,) if retry else (FINISHED, FAILED)
    return [item for item in items if item.name in changed or outcomes[item.name].state not in skipped]


def changed_inputs(items: Sequence[Item], outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Finished items by name whose inputs have changed, each with the settings that name those."""
    changed: dict[str, str] = {}
    hashed: dict[str, str] = {}
    for item in items:
        if outcomes[item.name].state != FINISHED:
            continue
        now, before = input_hashes(item.line(Path(OUT)), hashed), outcomes[item.name].inputs
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if names:
            changed[item.name] = " and ".join(names)
    return changed


def _check_overwritten(items: Sequence[Item], changed: Mapping[str, str]) -> None:
    """Raise RunError where an item whose inputs have changed may not be overwritten."""
    refused = [item for item in items if item.name in changed and not item.given.get("overwrite")]
    if refused:
        first, more = refused[0], f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise RunError(
            f"the item {first.name}{more} was made of something else than is there now: {changed[first.name]} has changed. To have it "
            "made again, put overwrite = true into [settings]; to keep it, choose another --out"
        )


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
                file = measure_file(value) if key == MEASURES else None
                hashed[value] = _source_hash(value if file is None else str(file))
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
    try:
        path = own if own is not None else Path(value).expanduser()
        if path.exists():
            return content_hash(path)
    except (OSError, RuntimeError):  # too long for a name, or in the home of a user that there is not
        return ""
    name = hub_name(value)
    return cached_commit(name) if name is not None else ""
