"""`rotoscope doctor`: what is installed, which device, is the embedded model there, does the self-check pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXTRAS = {
    "gguf": "gguf",
    "figures": "matplotlib",
    "xarray": "xarray",
    "report": "starlette",
    "api": "openai",
}


def doctor(*, out: Path | None = None, seed: int = 0, device: str | None = None) -> int:
    """Check this installation.

    Example: rotoscope doctor

    Parameters
    ----------
    out
        Also write what was said to this file.
    seed
        Seed of the tokens the self-check runs on.
    device
        Where to run the self-check: cpu, cuda, ... Default: a GPU where there is one.
    """
    import torch
    from rich.console import Console

    from rotoscope.errors import RotoscopeError
    from rotoscope.reading import EMBEDDED, HeadReader, load
    from rotoscope.reading.complaints import cache_folder
    from rotoscope.reading.loading import embedded_file
    from rotoscope.results.files import write_text
    from rotoscope.results.record import versions

    console = Console(highlight=False, record=out is not None, soft_wrap=True)
    console.print(", ".join(f"{name} {version}" for name, version in versions().items()))
    for extra, module in EXTRAS.items():
        installed = importlib.util.find_spec(module) is not None
        state = "installed" if installed else f"not installed (pip install 'rotoscope[{extra}]')"
        console.print(f"extra {extra}: {state}")
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    console.print(f"GPU: {', '.join(gpus) or 'none'}; CPU threads: {torch.get_num_threads()}")
    console.print(f"cache: {cache_folder()}")
    sound = True
    for name in EMBEDDED:
        try:
            file = embedded_file(name)
            console.print(f"embedded model {name}: {file.name}, {file.stat().st_size / 1e6:.0f} MB")
            reader = HeadReader(load(name, device=device).model, seed=seed)
            console.print(
                f"self-check on {name}: [green]passed[/], {reader.layers} layers rebuilt after a permutation, "
                f"largest difference {max(reader.proof):.1e}"
            )
        except RotoscopeError as problem:
            sound = False
            console.print(f"embedded model {name}: [red]failed[/]: {problem}")
    if out is not None:
        write_text(out, console.export_text())
        console.print(f"wrote {out}")
    return 0 if sound else 1
