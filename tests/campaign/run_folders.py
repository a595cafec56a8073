"""Run folders of every kind, damaged: what is damaged is said, or the numbers are exactly those that were written."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.damage import damaged_bytes, damaged_json, remove, replace_by_another_kind
from tests.campaign.kinds import made, run_command, where
from tests.campaign.runner import Case, Part

WHOLE_COMMAND = 400
"""One case in so many goes through the commands themselves."""
PAYLOAD = 20
"""And one in so many is made into the content of a page."""


def prepare(place: Path, stock: Path) -> Case:
    kinds: dict[str, _Kind] = {}
    for name in made(stock):
        folder = place / name
        remove(folder)
        shutil.copytree(stock / name, folder)
        for deeper in [folder, *(one.parent for one in folder.glob("*/run.json"))]:
            if (deeper / "run.json").exists():
                kinds[str(deeper.relative_to(place))] = _Kind(deeper)
    names = sorted(kinds)

    def case(number: int, draw: Random) -> str | None:
        kind = kinds[draw.choice(names)]
        told, forged = kind.damage(draw, others=[kinds[name] for name in names])
        try:
            found = kind.judge(
                forged=forged, by_command=number % WHOLE_COMMAND == 0, draw_payload=number % PAYLOAD == 0
            )
        finally:
            kind.restore()
        return None if found is None else f"{kind.folder.name}, {told}: {found}"

    return case


class _Kind:
    """A run folder as it was written, and what is read from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plain = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        self.files = {
            file: file.read_bytes() for file in plain if file.parent == folder or "checkpoint" in file.parts[-2]
        }
        self.opened = self._open()
        self._changed: list[Path] = []

    def _open(self) -> Any:
        from rotoscope.experiments.registry import open as open_run

        return open_run(self.folder)

    def damage(self, draw: Random, others: list[_Kind]) -> tuple[str, bool]:
        """Do something to one file, or exchange two; says what, and whether the description was forged to fit."""
        file = draw.choice(sorted(self.files))
        if draw.random() < 0.3:
            file = self.folder / "run.json"
        content = self.files[file]
        self._changed = [file]
        kind = draw.random()
        if kind < 0.06:
            told = replace_by_another_kind(draw, file, sorted(self.files))
            return f"{told} in place of {file.name}", False
        if kind < 0.1:
            other = draw.choice(sorted(self.files))
            self._changed.append(other)
            file.write_bytes(self.files[other])
            other.write_bytes(content)
            return f"{file.name} and {other.name} exchanged", False
        if file.name == "run.json" and kind < 0.8:
            forged = kind > 0.6
            changed = damaged_json(draw, json.loads(content))
            text = _forge(changed) if forged else json.dumps(changed)
            file.write_bytes(text.encode("utf-8", "surrogatepass"))
            return "run.json edited", forged
        strangers = [bytes_ for kind_ in others for bytes_ in kind_.files.values()]
        file.write_bytes(damaged_bytes(draw, content, strangers))
        return f"{file.name} damaged", False

    def restore(self) -> None:
        for file in self._changed:
            remove(file)
            file.write_bytes(self.files[file])

    def judge(self, *, forged: bool, by_command: bool, draw_payload: bool) -> str | None:
        """What is wrong with how the damage was answered. A forged description may change what it likes, quietly."""
        from rotoscope.errors import RotoscopeError
        from rotoscope.report.page import page_run, run_payload
        from rotoscope.runs.record import RunRecord

        try:
            found = self._open()
            if not forged and (told := self._differs(found)):
                return f"silently changed: {told}"
        except (RotoscopeError, OSError):
            pass
        except Exception as problem:
            return f"opening, traceback: {where(problem)}"
        same = all(_same_bytes(file, self.files[file]) for file in self._changed)
        try:
            record = RunRecord.read(self.folder)
            damage = record.damage(self.folder)
            named = {self.folder / name for name in record.files}
            changed = {file for file in self._changed if not _same_bytes(file, self.files[file])}
            if not forged and (damage if not changed else not damage and named & changed):
                return f"doctor says {damage}"
        except (RotoscopeError, OSError):
            if same:
                return "doctor complains of a run that is whole"
        except Exception as problem:
            return f"doctor, traceback: {where(problem)}"
        try:
            reported = page_run(self.folder)
            if not forged and not reported.problems and (told := self._differs(reported)):
                return f"report, silently changed: {told}"
            if by_command or draw_payload:
                json.dumps(run_payload(self.folder), allow_nan=False)
        except (RotoscopeError, OSError):
            pass
        except Exception as problem:
            return f"report, traceback: {where(problem)}"
        return self._by_command() if by_command else None

    def _by_command(self) -> str | None:
        page = self.folder.parent / "page.html"
        for tokens in (
            ["doctor", str(self.folder)],
            ["report", str(self.folder), "--out", str(page), "--overwrite"],
        ):
            if wrong := run_command(tokens).wrong(1, 2):
                return f"{tokens[0]}, {wrong}"
        return None

    def _differs(self, found: Any) -> str | None:
        before, after = dataclasses.asdict(self.opened.run), dataclasses.asdict(found.run)
        if before != after:
            return "the description"
        for name, table in self.opened.tables.items():
            if name not in found.tables or not table.equals(found.tables[name]):
                return f"the table {name}"
        return None


def _same_bytes(file: Path, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        return file.is_file() and file.read_bytes() == content
    return False


def _forge(changed: Any) -> str:
    """A description with a checksum that fits it."""
    from rotoscope.runs.record import described_checksum

    if isinstance(changed, dict):
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            changed = changed | {"checksum": described_checksum(changed)}
    return json.dumps(changed)


PART = Part("run_folders", prepare, share=0.32, limit_s=20, counts="damaged files")
