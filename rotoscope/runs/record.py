"""`run.json`: what was run with every setting, on what, with which versions, how long it took, and what to beware of."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from rotoscope import __version__
from rotoscope.errors import RunError
from rotoscope.runs.files import AGAIN, CHECKSUM, checksum, plain, write_json

SCHEMA = "1.2"
RUN = "run.json"
COMPUTING = ("rotoscope", "torch", "transformers")
"""Packages that a run must not change while it is being made."""
UPGRADE = "upgrade with: pip install -U rotoscope"


def settings_hash(settings: Mapping[str, Any]) -> str:
    """The same settings, or not the same."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def described_checksum(content: Mapping[str, Any]) -> str:
    """Of what a `run.json` says, except this."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"


def versions() -> dict[str, str]:
    """What computed a result."""
    packages = ("torch", "transformers", "numpy", "pandas", "pyarrow")
    return {"python": platform.python_version(), "rotoscope": __version__} | {
        package: _installed(package) for package in packages
    }


def _release(version: str) -> list[str]:
    """Major and minor number: what a result may depend on."""
    return version.split(".")[:2]


@cache
def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class SubjectRecord:
    """The model that was measured."""

    name: str = ""
    fingerprint: str = ""
    architecture: str = ""
    layers: int = 0
    planes: list[int] = field(default_factory=list)
    """Rotation planes by layer."""
    angles: list[float] = field(default_factory=list)
    """Of the first layer's planes."""
    dtype: str = ""
    device: str = ""
    source: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """How closely the model's own attention was rebuilt after a permutation, over so many layers."""

    layers: int = 0
    largest_difference: float | None = None
    way: str | None = None
    """How queries and keys were read, where the run says."""


@dataclass
class RunRecord:
    """One run, described. What only one kind of run has stands in `details`."""

    kind: str = "unknown"
    settings: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA
    complete: bool = False
    written: str = ""
    settings_hash: str = ""
    versions: dict[str, str] = field(default_factory=versions)
    subject: SubjectRecord | None = None
    proof: Proof | None = None
    device: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds."""
    warnings: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Tables and arrays with their checksums."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the run is about: its model, else its task, else its kind."""
        known = self.subject.name if self.subject is not None else ""
        return known or str(self.settings.get("model") or self.settings.get("task") or self.kind)

    @property
    def is_own(self) -> bool:
        """Whether rotoscope wrote this: the hash of the settings is that of the settings."""
        return self.kind != "unknown" and self.settings_hash == settings_hash(self.settings)

    @property
    def cannot_go_on(self) -> str:
        """Why an unfinished run cannot be continued with these versions, and what to do; empty where it can."""
        changed = self._other_versions()
        if self.complete or not changed:
            return ""
        return f"begun with {' and '.join(changed)} and not finished: make it again with --overwrite, or choose another --out"

    def note_versions(self) -> None:
        """Warn of a run that was made with other versions of what computes, once."""
        if changed := self._other_versions():
            sentence = f"this run was made with {' and '.join(changed)}"
            self.warnings = [line for line in self.warnings if line != sentence] + [sentence]

    def _other_versions(self) -> list[str]:
        now = versions()
        return [
            f"{name} {self.versions.get(name, 'of no known version')} ({now[name]} now)"
            for name in COMPUTING
            if _release(self.versions.get(name, "")) != _release(now[name])
        ]

    def write(self, folder: Path) -> None:
        """Put `run.json` into a folder."""
        self.written = datetime.now(UTC).isoformat(timespec="seconds")
        self.settings_hash = settings_hash(self.settings)
        content = {key: value for key, value in dataclasses.asdict(self).items() if key != "details"}
        content = json.loads(json.dumps(content | self.details, default=str))
        write_json(folder / RUN, content | {CHECKSUM: described_checksum(content)})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The record of a finished or unfinished run; anything wrong with it is an error that says what."""
        if not folder.is_dir():
            raise RunError(f"no such run folder: {folder}")
        try:
            content = json.loads(plain(folder / RUN).read_text(encoding="utf-8"))
        except FileNotFoundError as missing:
            raise RunError(f"{folder} is no run folder: it has no {RUN}") from missing
        except (OSError, ValueError, RecursionError) as damage:
            raise RunError(f"{folder / RUN} is damaged ({damage}); {AGAIN}") from damage
        return cls._checked(content, folder)

    @classmethod
    def _checked(cls, content: Any, folder: Path) -> Self:
        """The record with this content; another schema, a wrong checksum or a field of another type is refused."""
        schema = content.get("schema") if isinstance(content, dict) else None
        if not isinstance(schema, str) or not schema:
            raise RunError(f"{folder / RUN} is damaged (it does not name its schema); {AGAIN}")
        if schema != SCHEMA:
            made_with = content.get("versions")
            version = made_with.get("rotoscope") if isinstance(made_with, dict) else None
            raise RunError(
                f"the run in {folder} was made by rotoscope {version or 'of unknown version'} (schema {schema}; this version "
                f"reads {SCHEMA}); {AGAIN}"
            )
        if content.get(CHECKSUM) != described_checksum(content):
            raise RunError(f"{folder / RUN} is damaged (it is not what was written); {AGAIN}")
        record = cls(versions={})
        for field_ in dataclasses.fields(cls):
            name, value = field_.name, content.get(field_.name)
            if name == "details" or value is None:
                continue
            if not _has_type(name, value):
                raise RunError(f"{folder}: the {name} in {RUN} are damaged; {AGAIN}")
            setattr(record, name, _part(_PARTS[name], value) if name in _PARTS else value)
        known = {CHECKSUM, *(field_.name for field_ in dataclasses.fields(cls))}
        record.details = {key: value for key, value in content.items() if key not in known}
        return record

    def damage(self, folder: Path) -> list[str]:
        """What is no longer as it was written: tables and arrays that are missing or have another checksum."""
        damaged = []
        for name, expected in self.files.items():
            file = folder / name
            if not file.is_file():
                damaged.append(f"{name} is missing")
            elif checksum(file) != expected:
                damaged.append(f"{name} is not what was written")
        return damaged


_KINDS: dict[str, type] = {
    "settings": dict,
    "complete": bool,
    "versions": dict,
    "timings": dict,
    "warnings": list,
    "tables": list,
    "files": dict,
}
"""Fields of a record that are no text."""
_PARTS: dict[str, type] = {"subject": SubjectRecord, "proof": Proof}


def _has_type(name: str, value: Any) -> bool:
    """Whether a field has its type, and whether names, sentences and checksums are texts."""
    parts: Any = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict if name in _PARTS else _KINDS.get(name, str)):
        return False
    return name not in ("tables", "warnings", "files", "versions") or all(isinstance(p, str) for p in parts)


def _part(kind: type, value: dict[str, Any]) -> Any:
    """A part with a type of its own; what it does not know is left out."""
    names = {part.name for part in dataclasses.fields(kind)}
    return kind(**{key: inner for key, inner in value.items() if key in names})
