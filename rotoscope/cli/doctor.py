"""`rotoscope doctor`: what is installed, which device, is the embedded model there, does the self-check pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from rotoscope.command import command
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
) -> int:
    """Check this installation, or a run: is everything in its folder as it was written?

    Example: rotoscope doctor

    Parameters
    ----------
    run
        A run folder to check instead.
    device
        Where to run the self-check: cpu, cuda, ... Default: a GPU where there is one.
    """
    with says_loading():
        from rotoscope.terminal import new_console, show_next

    console = new_console()
    sound = _installation(console, device) if run is None else _run(console, run)
    first = ["profile", "smollm2", "--pairs", 8, "--prompts", 4, "--out", "runs/first"]
    show_next(console, ["report", run] if run is not None else first if sound else ["doctor"])
    return 0 if sound else 1


def _run(console: Console, folder: Path) -> bool:
    from rich.markup import escape

    from rotoscope.runs.record import RunRecord
    from rotoscope.terminal import say

    record = RunRecord.read(folder)
    damage = record.damage(folder)
    for problem in damage:
        say(console, f"[red]damaged[/]: {escape(problem)}")
    if not record.files:
        say(console, "this run has no checksums yet: it is not finished")
    elif not damage:
        say(console, f"{len(record.files)} files, all as they were written")
    return not damage


def _installation(console: Console, device: str | None) -> bool:
    with says_loading():
        import torch
    from rich.markup import escape

    from rotoscope.errors import RotoscopeError
    from rotoscope.models.loading import load
    from rotoscope.models.reader import HeadReader
    from rotoscope.models.weight_check import cache_folder
    from rotoscope.runs.record import versions
    from rotoscope.terminal import say

    say(console, ", ".join(f"{name} {version}" for name, version in versions().items()))
    for extra, module in EXTRAS.items():
        installed = importlib.util.find_spec(module) is not None
        state = "installed" if installed else f"not installed (pip install 'rotoscope[{extra}]')"
        say(console, f"extra {extra}: {state}", markup=False)
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    say(console, f"GPU: {', '.join(gpus) or 'none'}; CPU threads: {torch.get_num_threads()}")
    say(console, f"cache: {cache_folder()}", markup=False)
    _zoo(console)
    name = "smollm2"
    try:
        with says_loading():
            reader = HeadReader(load(name, device=device).model)
        say(
            console,
            f"self-check on {name}: [green]passed[/], {reader.layers} layers rebuilt after a permutation, "
            f"largest difference {max(reader.proof):.1e}; queries and keys are read {reader.way}",
        )
    except RotoscopeError as problem:
        say(console, f"embedded model {name}: [red]failed[/]: {escape(str(problem))}")
        return False
    return True


def _zoo(console: Console) -> None:
    """Which models have short names, what their files are, and which of them are here."""
    from rotoscope.errors import ModelError
    from rotoscope.models.zoo import FOLDER, OWN, ZOO, checked, local_file
    from rotoscope.terminal import say

    say(console, f"models with short names; their files are looked for in the folder that {FOLDER} names:")
    for name, model in ZOO.items():
        path = local_file(name)
        try:
            state = "not here" if path is None else f"here: {checked(name, path)}"
        except ModelError as problem:
            state = str(problem)
        origin = f"{model.hub}, {model.revision or 'no pinned revision'}"
        say(console, f"  {name}: {model.size / 1e6:,.0f} MB, {model.licence}, {origin}", markup=False)
        say(console, f"    {model.file}, SHA-256 {model.sha256}", markup=False)
        say(console, f"    {state}", markup=False)
    say(console, f"  {', '.join(OWN)}: trained by rotoscope itself, which brings them along", markup=False)
