"""An atlas made of many runs: `rs.atlas.make("sweeps/first").save("atlas")`, opened again by `rs.atlas.open("atlas")`.

What is not finished, damaged, of another kind or of another major version of the format stays out; of the same model on the same
prompts with the same settings one run is taken. Whatever was left out is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.progress import progress_bar
from rotoscope.results.atlas import ATLAS, Atlas, check_place
from rotoscope.results.atlas_columns import KEY, SCHEMA, TABLES
from rotoscope.results.atlas_place import Placement
from rotoscope.results.atlas_rows import profile_key, rows_of
from rotoscope.results.atlas_types import stacked
from rotoscope.results.profile import Profile
from rotoscope.results.record import RunRecord
from rotoscope.results.walk import folders_in, holds_run
from rotoscope.settings.atlas import AtlasSettings

__all__ = ["SCHEMA", "TABLES", "Atlas", "Placement", "make", "open", "write"]

SHIPPED = "shipped"
DEPTH = 6
"""How deep under a folder runs are looked for."""
TWICE, UNFINISHED, UNREADABLE = "the same twice", "not finished", "damaged, or of another version"


@dataclass(frozen=True)
class _Candidate:
    """A profile at one tau, before anything but its description is read."""

    folder: Path
    run: RunRecord
    tau: float

    @property
    def key(self) -> str:
        return profile_key(self.run, self.tau)

    @property
    def worth(self) -> tuple[int, bool, str]:
        """Of the same profile twice, the one with more draws of the null is taken, then with known heads, then the later."""
        settings = self.run.settings
        draws = int(settings.get("null_draws") or 0) if settings.get("null") != "none" else 0
        return draws, bool(settings.get("known")), self.run.written


def open(path: str | Path = SHIPPED) -> Atlas:
    """Open an atlas: a folder, or without one the small one that comes with rotoscope. Schema and checksums are checked."""
    if str(path) == SHIPPED and not Path(path).is_dir():
        with resources.as_file(resources.files("rotoscope") / "models" / "atlas") as folder:
            return Atlas.open(folder)
    return Atlas.open(path)


def make(*sources: str | Path, show_progress: bool | None = None) -> Atlas:
    """An atlas of all profiles in some folders: sweeps, folders of runs, runs, or other atlases, which are joined.

    `left_out` of what comes back says what was found and is not in it.
    """
    if not sources:
        raise RotoscopeError("an atlas is made of something: name a sweep, a folder of runs, or another atlas")
    atlases, folders = [], list[Path]()
    for place in map(Path, sources):
        if not place.is_dir():
            raise RunError(f"no such folder: {place}")
        if (place / ATLAS).is_file():
            atlases.append(Atlas.open(place))
        else:
            folders.append(place)
    made = [_of_runs(folders, show_progress)] if folders else []
    first, *others = [*made, *atlases]
    if not others:
        return first
    joined = first.join(*others)
    joined.left_out = [*first.left_out, *joined.left_out]
    return joined


def write(
    *sources: str | Path,
    settings: AtlasSettings | None = None,
    show_progress: bool | None = None,
    **changes: object,
) -> Atlas:
    """Make an atlas of folders and write it: see `make` and `Atlas.save`."""
    wanted = AtlasSettings.make(settings, **changes)
    check_place(wanted.out, overwrite=wanted.overwrite)  # before it takes a while
    found = make(*sources, show_progress=show_progress)
    found.save(wanted.out, name=wanted.name, license=wanted.license, overwrite=wanted.overwrite)
    return found


def _of_runs(places: list[Path], show_progress: bool | None) -> Atlas:
    left_out, counts, chosen = list[str](), Counter[str](), dict[str, _Candidate]()
    for candidate in _candidates(places, left_out, counts):
        before = chosen.get(candidate.key)
        if before is None:
            chosen[candidate.key] = candidate
            continue
        kept, other = sorted((before, candidate), key=lambda one: one.worth, reverse=True)
        chosen[candidate.key] = kept
        counts[TWICE] += 1
        left_out.append(f"{other.folder} is left out: {kept.folder} has the same model, prompts and settings")
    parts: dict[str, list] = {name: [] for name in TABLES}  # type: ignore[type-arg]
    with progress_bar("reading profiles", len(chosen), show=show_progress) as bar:
        for candidate in chosen.values():
            try:
                found = rows_of(Profile.open(candidate.folder), candidate.tau)
            except RotoscopeError as problem:
                counts[UNREADABLE] += 1
                left_out.append(f"{candidate.folder} is left out: {problem}")
            else:
                for name, rows in found.items():
                    parts[name].append(rows)
            bar.advance()
    if not parts["profiles"]:
        why = f" ({left_out[0]})" if left_out else ""
        named = ", ".join(str(place) for place in places)
        raise RunError(
            f"there is no finished profile in {named}{why}; name a sweep of profiles, or a folder that holds some"
        )
    tables = {name: stacked(name, rows) for name, rows in parts.items()}
    order = tables["profiles"].sort_values(["task", "model", "seed", "tau", KEY])[KEY]
    ranks = {key: rank for rank, key in enumerate(order)}
    ordered = {
        name: table.sort_values(KEY, key=lambda keys: keys.map(ranks), kind="stable", ignore_index=True)
        for name, table in tables.items()
    }
    return Atlas(ordered, {"left_out": dict(counts)}, left_out)


def _candidates(places: list[Path], left_out: list[str], counts: Counter[str]) -> Iterator[_Candidate]:
    """Every finished profile in some folders, each once; runs of other kinds are passed over without a word."""
    seen = set[Path]()

    def closed(folder: Path, problem: OSError) -> None:
        counts[UNREADABLE] += 1
        left_out.append(f"{folder} is left out: it cannot be looked into ({problem.strerror or problem})")

    for place in places:
        for folder in folders_in(place, DEPTH, closed):
            if not holds_run(folder) or folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                run = RunRecord.read(folder)
            except RunError as problem:
                counts[UNREADABLE] += 1
                left_out.append(f"{folder} is left out: {problem}")
                continue
            if run.kind != Profile.kind:
                continue
            if not run.complete:
                counts[UNFINISHED] += 1
                left_out.append(f"{folder} is left out: it is not finished")
                continue
            for tau in run.settings.get("tau", ()):
                yield _Candidate(folder, run, float(tau))
