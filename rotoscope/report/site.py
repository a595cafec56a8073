"""Runs as a folder of static pages, which any web space can serve and a browser can open from disk.

    index.html                       the list of runs
    run-001-NAME.html                one page per run
    compare.html?a=001&b=002         any two of them
    data/ pictures/ assets/          what the pages load; plotly is there once
    site.json                        says that this is a site, and what belongs to it

Files on disk cannot be fetched by a page, but scripts can be loaded: so data are scripts. The policy in every page allows
files of the same place and nothing else.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from rotoscope import __version__
from rotoscope.errors import RunError
from rotoscope.progress import progress_bar
from rotoscope.report.page import (
    EMPTY,
    PALETTE,
    WAITING,
    Side,
    asset,
    comparison,
    embedded_json,
    hashes,
    page_script,
    page_style,
    plotly_script,
    side_of,
    spared,
)
from rotoscope.report.run_index import Found, find_runs, picture, run_folder
from rotoscope.report.run_list import Links, rows, runs_page
from rotoscope.runs.files import disk_errors, plain
from rotoscope.runs.folder import recover_folder, replaced_folder

MARK, KIND = "site.json", "rotoscope site"
MOST_COMPARED = 40
"""Runs of which every two are compared: the last written ones."""
MOST_PICTURE_BYTES = 4_000_000
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class _Entry:
    """A run of the site. Its files are called after its number, so that no name can lead anywhere."""

    found: Found
    root: Path
    number: str

    @property
    def folder(self) -> Path | None:
        """Where the run is; nothing where a file in it leads outside."""
        return run_folder(self.root, self.found.path)

    @property
    def page(self) -> str:
        plain_name = self.found.name.lower().encode("ascii", "ignore").decode()
        slug = re.sub("[^a-z0-9]+", "-", plain_name).strip("-")[:40].rstrip("-")
        return f"run-{self.number}-{slug}.html" if slug else f"run-{self.number}.html"


def write_site(
    *runs: str | Path,
    site: str | Path = "site",
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Path:
    """Write run folders, or all runs in folders, as a folder of static pages; returns it.

    The folder is written whole or not at all. `overwrite` replaces a site, never anything else.
    """
    folder = Path(site)
    out = Path(os.path.abspath(folder))
    with disk_errors(folder):
        recover_folder(out, _is_site)
        _check(out, folder, overwrite=overwrite)
        entries = _entries([Path(run) for run in runs])
        with replaced_folder(out, _is_site) as scratch:
            _write(scratch, out.name, entries, show_progress)
            _check(out, folder, overwrite=overwrite)  # it took a while
    return folder


def _entries(places: Sequence[Path]) -> list[_Entry]:
    """Every run once, the last written first; runs of one name are told apart."""
    found: dict[Path, tuple[Found, Path]] = {}
    for place in places:
        if not place.is_dir():
            raise RunError(f"no such folder: {place}")
        root = place.resolve()
        runs, whole = find_runs(root)
        if not runs:
            raise RunError(f"there is no run in {place}; name run folders, or folders that hold some")
        if not whole:
            raise RunError(f"there are too many folders in {place}; name the runs, or folders nearer to them")
        for run in runs:
            found.setdefault((root / run.path).resolve(), (run, root))
    ordered = sorted(found.values(), key=lambda one: (one[0].written, one[0].path), reverse=True)
    digits, taken, entries = max(3, len(str(len(ordered)))), set(), []
    for number, (run, root) in enumerate(ordered, 1):
        names = (run.name, f"{root.name}/{run.path}", f"{run.name} (run {number})")
        name = next((name for name in names if name not in taken), names[-1])
        taken.add(name)
        entries.append(_Entry(dataclasses.replace(run, name=name), root, f"{number:0{digits}d}"))
    return entries


def _write(place: Path, title: str, entries: list[_Entry], show_progress: bool | None) -> None:
    made: dict[str, bytes] = {
        "assets/page.css": page_style().encode(),
        "assets/runs.css": asset("runs.css").encode(),
        "assets/runs.js": asset("runs.js").encode(),
        "assets/load.js": asset("load.js").encode(),
        "assets/page.js": page_script().encode(),
        "assets/plotly.js": plotly_script().encode(),
    }
    files: list[str] = []

    def keep(name: str, content: bytes) -> None:
        file = place / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        files.append(name)

    for name, content in made.items():
        keep(name, content)
    sides: dict[str, Side] = {}
    listed: list[Found] = []
    pairs = min(len(entries), MOST_COMPARED)
    with progress_bar("site", len(entries) + pairs * (pairs - 1) // 2, show_progress) as progress:
        for entry in entries:
            image = _picture(entry)
            one, problem = _side(entry)
            shown = dataclasses.replace(entry.found, picture=image is not None)
            if problem:
                shown = dataclasses.replace(shown, state="damaged", problem=problem)
            listed.append(shown)
            if one is not None:
                one.payload["name"] = entry.found.name
                keep(f"data/{entry.number}.js", _data(entry.number, one.payload))
                scripts = (f"data/{entry.number}.js", "assets/plotly.js", "assets/page.js")
                keep(entry.page, _page(str(one.payload["title"]), [entry.number], [], scripts))
                if image is not None:
                    keep(f"pictures/{entry.number}.png", image)
                sides[entry.number] = dataclasses.replace(one, payload={})
            progress.advance()
        compared = list(sides)[:MOST_COMPARED]
        for a, b in itertools.combinations(compared, 2):
            keep(f"data/{a}-{b}.js", _data(f"{a}-{b}", comparison(sides[a], sides[b])))
            progress.advance()
    keep("compare.html", _page("Two runs", [], compared, ("assets/load.js",)))
    keep("index.html", _list(title, entries, listed, set(sides)).encode("utf-8", "replace"))
    about = {"kind": KIND, "version": __version__, "written": _now(), "files": sorted(files)}
    (place / MARK).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _side(entry: _Entry) -> tuple[Side | None, str]:
    """What the page of a run is made from, or why it has none."""
    folder = entry.folder
    try:
        return (None if folder is None else side_of(folder)), ""
    except RunError as damage:
        return None, str(damage).replace(f"{folder}/", "").replace(str(folder), entry.found.name)


def _data(name: str, content: dict[str, Any]) -> bytes:
    """JSON as a script. It is parsed as JSON, not read as a program, in which some names mean something."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return f"(window.rotoscopeData ||= {{}})[{json.dumps(name)}] = JSON.parse({json.dumps(text)});\n".encode()


def _page(title: str, runs: list[str], compared: list[str], scripts: Sequence[str]) -> bytes:
    content = {
        "runs": runs,
        "compared": compared,
        "home": "index.html",
        "version": __version__,
        "palette": PALETTE,
    }
    page = Template(asset("site.html")).substitute(
        policy=_policy(f"{hashes([EMPTY])}; style-src-attr 'unsafe-hashes' {hashes([EMPTY])}"),
        title=html.escape(title),
        spared="\n".join(spared(plotly_script())),
        waiting=WAITING.replace("inside", "beside"),
        content=embedded_json(content),
        scripts="\n".join(f'<script src="{script}"></script>' for script in scripts),
    )
    return page.encode("utf-8", "replace")


def _list(title: str, entries: list[_Entry], listed: list[Found], with_page: set[str]) -> str:
    styles = "".join(f'<link rel="stylesheet" href="assets/{name}">' for name in ("page.css", "runs.css"))
    head = f'<meta http-equiv="Content-Security-Policy" content="{_policy()}"><link rel="icon" href="data:,">{styles}'
    note = f"{len(listed)} run{'' if len(listed) == 1 else 's'}, as of {_now()} UTC"
    links = (
        Links(entry.number, entry.page, f"pictures/{entry.number}.png") if entry.number in with_page else None
        for entry in entries
    )
    body = rows(zip(listed, links, strict=True))
    script = '<script src="assets/runs.js"></script>'
    return runs_page(title, head, body, note, "compare.html", script, live=False)


def _policy(styles: str = "") -> str:
    """Files of the same place, and nothing else."""
    return (
        "default-src 'none'; script-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'self'; "
        f"style-src 'self' {styles}"
    ).strip()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def _picture(entry: _Entry) -> bytes | None:
    """The figure that stands for a run, if it is one."""
    folder = entry.folder
    try:
        file = None if folder is None else picture(entry.root, folder)
        if file is None or plain(file).stat().st_size > MOST_PICTURE_BYTES:
            return None
        content = file.read_bytes()
    except OSError:
        return None
    return content if content.startswith(PNG) else None


def _listed(folder: Path) -> set[str] | None:
    """The files of a site; nothing where the folder is none."""
    try:
        content = json.loads(plain(folder / MARK).read_text(encoding="utf-8"))
        if content["kind"] == KIND:
            return {MARK, *map(str, content["files"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _is_site(folder: Path) -> bool:
    return _listed(folder) is not None


def _check(out: Path, named: Path, *, overwrite: bool) -> None:
    """Refuse every place where something would be lost."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise RunError(f"{named} is no folder, so it is not replaced; choose another folder")
    if not out.exists() or not any(out.iterdir()):
        return
    ours = _listed(out)
    if ours is None:
        raise RunError(f"{named} exists and is no site, so nothing is written there; choose another folder")
    if not overwrite:
        raise RunError(f"{named} holds a site already; choose another folder, or --overwrite to replace it")
    there = {
        file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_symlink() or not file.is_dir()
    }
    if strange := sorted(there - ours):
        raise RunError(
            f"{named} holds {strange[0]}, which is no part of the site, so it is not replaced; move it away, "
            "or choose another folder"
        )
