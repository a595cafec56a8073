"""`rotoscope gate`: keep or remove frequencies, or silence heads, and see what the model loses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rotoscope.errors import RotoscopeError

__all__ = ["gate"]

Flag = Annotated[bool, Parameter(negative="")]


def gate(
    model: str = "smollm2",
    *,
    task: Literal["repeats", "binding"] = "repeats",
    length: int = 32,
    pairs: int = 8,
    prompts: int = 8,
    keep: str | None = None,
    remove: str | None = None,
    silence: Flag = False,
    heads: str = "all",
    bands: int = 8,
    controls: int = 2,
    classes: Path | None = None,
    figures: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Gate frequencies or heads while the model runs, and measure task loss, text loss and the heads' scores.

    Example: rotoscope gate smollm2 --task repeats --keep 1-8 --heads symbolic --out runs/gate

    Without --keep, --remove or --silence, every band is kept alone and removed alone, in all heads and in the heads of
    each class, beside random heads from the same layers.

    Parameters
    ----------
    model
        "smollm2", a folder, a .gguf file, or a hub id.
    task
        repeats: random tokens, repeated (small models can). binding: facts and a question.
    length
        repeats: tokens before they repeat.
    pairs
        binding: facts in a prompt.
    prompts
        How many prompts.
    keep
        Keep only these frequencies in the chosen heads: 1-8,12 or "angle 0.01-0.5" or none.
    remove
        Remove these frequencies from the chosen heads: 1-8,12 or "angle 0.01-0.5" or all.
    silence
        Silence the chosen heads whole.
    heads
        all, a class (positional, symbolic, uniform, mixed), or layer:head as in 12:0,3:4.
    bands
        Sweep: how many bands the frequencies are cut into.
    controls
        Random groups of as many heads from the same layers.
    classes
        A profile run of the same model to take the classes from. Default: the task's own prompts are profiled.
    figures
        Draw the sweep.
    out
        Run folder. Default: runs/MODEL-gate.
    overwrite
        Replace a run made with other settings.
    seed
        Seed of prompts and controls.
    device
        cpu, cuda, ... Default: a GPU where there is one.
    """
    from rotoscope import tasks
    from rotoscope.analysis.gating import gate as run_gate
    from rotoscope.analysis.gating import gate_sweep
    from rotoscope.analysis.profiling import profile
    from rotoscope.cli.summary import new_console, show_table, show_written
    from rotoscope.reading import load
    from rotoscope.results import Profile

    console = new_console()
    subject = load(model, device=device)
    shown = (
        tasks.repeats(subject, length, prompts, seed)
        if task == "repeats"
        else tasks.binding(subject, pairs, prompts, seed)
    )
    known = Profile.open(classes) if classes is not None else None
    if known is not None and known.run["subject"]["fingerprint"] != subject.fingerprint:
        raise RotoscopeError(f"{classes} is a profile of another model ({known.name})")
    folder = out or Path("runs") / f"{Path(model).stem}-gate"
    chosen = [keep is not None, remove is not None, silence]
    if any(chosen):
        if known is None and heads in ("positional", "symbolic", "uniform", "mixed"):
            known = profile(subject, shown)
        result = run_gate(
            subject, shown, keep=keep, remove=remove, silence_heads=silence, heads=heads, classes=known,
            controls=controls, seed=seed, out=folder, overwrite=overwrite,
        )  # fmt: skip
    else:
        result = gate_sweep(
            subject,
            shown,
            band_count=bands,
            classes=known,
            controls=controls,
            seed=seed,
            out=folder,
            overwrite=overwrite,
        )
    columns = ["condition", "head_group", "control", "gated_heads", "source"]
    numbers = ["loss", "loss_low", "loss_high", "accuracy"]
    show_table(console, result.summary[columns + numbers], "loss and accuracy, 95 % intervals over prompts")
    moved = result.gated_heads
    if len(moved):
        for kind in ("positional", "symbolic"):
            before, after = moved[f"{kind}_score"].median(), moved[f"{kind}_score_gated"].median()
            console.print(
                f"median {kind} score over heads: {before:.2f} before, {after:.2f} gated", highlight=False
            )
    written = [*sorted(folder.glob("*.parquet")), folder / "run.json"]
    if figures and not any(chosen):
        from rotoscope.figures import gate_bands, save_figure

        written += save_figure(gate_bands(result), folder / "gate_bands")
    show_written(console, written)
    return 0
