"""`rotoscope doctor`: what is installed, which device, is the embedded model there, does the self-check pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from rotoscope.command import command
from rotoscope.errors import pip_install
from rotoscope.progress import says_loading

if TYPE_CHECKING:
    from rich.console import Console

EXTRAS = {
    "gguf": "gguf",
    "figures": "matplotlib",
    "xarray": "xarray",
    "report": "starlette",
    "api": "openai",
    "lightning": "pytorch_lightning",
    "ray": "ray",
}


@command
def doctor(
    run: Path | None = None,
    *,
    device: str | None = None,
    verbose: bool = False,
) -> int:
    """Check this installation, or a run: is everything in its folder as it was written?

    Example: rotoscope doctor

    Parameters
    ----------
    run
        A run folder to check instead.
    device
        Where to run the self-check: cpu, cuda, ... Default: a GPU where there is one.
    verbose
        Also say where every model file comes from, where it is, and its SHA-256.
    """
    with says_loading():
        from rotoscope.terminal import new_console, show_next

    console = new_console()
    if run is not None:
        sound = _run(console, run)
        show_next(console, ["report", run] if sound else ["serve", run.parent])
        return 0 if sound else 1
    checked, sound = _installation(console, device, verbose)
    sizes = ["--pairs", 8] if checked == "smollm2" else []
    first = ["profile", checked, *sizes, "--prompts", 4, "--out", "runs/first"]
    show_next(console, first if checked else ["profile", "number", "--device", "cpu", "--prompts", 4])
    return 0 if sound else 1


def _run(console: Console, folder: Path) -> bool:
    from rich.markup import escape

    from rotoscope.runs.record import RunRecord
    from rotoscope.terminal import say

    record = RunRecord.read(folder)
    damage = record.damage(folder)
    for problem in damage:
        say(console, f"[red]damaged[/]: {escape(problem)}")
    if damage:
        say(console, "make the run again: its command, with --overwrite")
    elif not record.files:
        say(console, "this run has no checksums yet: it is not finished")
    else:
        say(console, f"{len(record.files)} files, all as they were written")
    return not damage


def _installation(console: Console, device: str | None, verbose: bool) -> tuple[str, bool]:
    """The model that passed the self-check, empty where none did, and whether everything that is here works."""
    with says_loading():
        import torch

    from rotoscope.models.weight_check import cache_folder
    from rotoscope.models.zoo import local_file
    from rotoscope.runs.record import versions
    from rotoscope.terminal import say

    say(console, ", ".join(f"{name} {version}" for name, version in versions().items()))
    missing = [extra for extra, module in EXTRAS.items() if importlib.util.find_spec(module) is None]
    say(console, f"extras installed: {', '.join(extra for extra in EXTRAS if extra not in missing) or 'none'}")
    if missing:
        say(console, f"extras not installed: {pip_install(','.join(missing))}", markup=False)
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    say(console, f"GPU: {', '.join(gpus) or 'none'}; CPU threads: {torch.get_num_threads()}")
    say(console, f"cache: {cache_folder()}", markup=False)
    _zoo(console, verbose)
    names = ["number"] if local_file("smollm2") is None or "gguf" in missing else ["smollm2", "number"]
    for k, name in enumerate(names):
        if _self_check(console, name, device):
            return name, k == 0
    return "", False


def _self_check(console: Console, name: str, device: str | None) -> bool:
    """Whether what is read out of a model rebuilds its own attention."""
    from rich.markup import escape

    from rotoscope.errors import RotoscopeError
    from rotoscope.models.loading import load
    from rotoscope.models.reader import HeadReader
    from rotoscope.terminal import say

    try:
        with says_loading():
            reader = HeadReader(load(name, device=device).model)
    except RotoscopeError as problem:
        say(console, f"self-check on {name}: [red]failed[/]: {escape(str(problem))}")
        return False
    say(
        console,
        f"self-check on {name}: [green]passed[/], {reader.layers} layers rebuilt after a permutation, "
        f"largest difference {max(reader.proof):.1e}; queries and keys are read {reader.way}",
    )
    return True


def _zoo(console: Console, verbose: bool) -> None:
    """Which models have short names, and which of them are here; with `verbose` their files."""
    from rotoscope.errors import ModelError
    from rotoscope.models.zoo import FOLDER, OWN, ZOO, checked, local_file, missing_file
    from rotoscope.terminal import Grid, say, show_block

    rows = [[name, "", "comes with rotoscope"] for name in OWN]
    problems = []
    for name, model in ZOO.items():
        path = local_file(name)
        state = "not here" if path is None else "here"
        try:
            if path is not None:
                checked(name, path)
        except ModelError as problem:
            state = "damaged"
            problems.append(str(problem))
        rows.append([name, f"{model.size / 1e6:,.0f} MB", state])
    show_block(
        console,
        [
            Grid(["model", "size", ""], rows),
            f"files are looked for in the folder that {FOLDER} names",
            *problems,
        ],
    )
    for name, model in ZOO.items() if verbose else ():
        origin = f"{model.hub}, {model.revision or 'no pinned revision'}"
        say(console, f"{name}: {model.licence}, {origin}", markup=False)
        say(console, f"  {model.file}, SHA-256 {model.sha256}", markup=False)
        say(console, f"  {local_file(name) or missing_file(name)}", markup=False)
    say(console, "")
