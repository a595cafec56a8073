"""`rotoscope dynamics`: heads along training, and what the trained model does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

__all__ = ["dynamics"]

Flag = Annotated[bool, Parameter(negative="")]
PAIRS = 16


def dynamics(
    source: str,
    *,
    task: Literal["number", "letter", "binding", "repeats"] | None = None,
    queries: Literal["last", "path", "all"] | None = None,
    inputs: int = 200,
    roles: bool = True,
    sequence: str | None = None,
    figures: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Score all heads along training, then say which layer does what in the trained model.

    Example: rotoscope dynamics number --out runs/dynamics-number

    Parameters
    ----------
    source
        A training run, number or letter (the embedded models), or a folder of checkpoint-N or step-N.
    task
        number, letter: make sure that the checkpoints are of this task. binding, repeats: what checkpoints of language
        models are shown.
    queries
        Positions asked: last, path, all. Default: what was watched in training; for checkpoints, last.
    inputs
        Held-out sequences, or prompts, to score the heads on.
    roles
        Also find roles (Index, Retrieval, Reflexive), the way of the answer, and the frequencies in use.
    sequence
        An input of your own, tokens separated by spaces, whose information flow is drawn.
    figures
        Draw the figures.
    out
        Run folder. Default: runs/dynamics-NAME.
    overwrite
        Replace a run made with other settings.
    seed
        Of the sequences that roles and frequencies are measured on.
    device
        cpu, cuda, ... Default: a GPU where there is one.
    """
    from rotoscope.analysis.dynamics import dynamics as along_training
    from rotoscope.cli.summary import new_console, show_written
    from rotoscope.cli.train import show_dynamics

    console = new_console()
    folder = out or Path("runs") / f"dynamics-{Path(source).name}"
    prompts = None
    if task in ("binding", "repeats"):
        queries = queries or "last"
        prompts, task = _prompts(source, task, inputs, seed), None
    result = along_training(
        source, task=task, prompts=prompts, queries=queries, inputs=inputs, device=device,
        out=folder if queries is not None else None, overwrite=overwrite,
    )  # fmt: skip
    if queries is None:
        result.save(folder, overwrite=overwrite)
    show_dynamics(console, result)
    for caveat in result.run.get("warnings", []):
        console.print(f"[yellow]caveat:[/] {caveat}", highlight=False, soft_wrap=True)
    written = [folder / "run.json", *sorted(folder.glob("*.parquet"))]
    if figures:
        from rotoscope import figures as draw

        for title, figure in draw.training_figures(result):
            written += draw.save_figure(figure, folder / title)
    if roles:
        written += _roles(console, source, folder, sequence, figures, overwrite, seed, device)
    show_written(console, written)
    return 0


def _prompts(source: str, task: str, count: int, seed: int) -> Any:
    """Prompts in the words of the last checkpoint's tokenizer."""
    from rotoscope import tasks
    from rotoscope.reading import load

    subject = load(source, device="cpu")
    if task == "binding":
        return tasks.binding(subject, pairs=PAIRS, count=count, seed=seed)
    return tasks.repeats(subject, count=count, seed=seed)


def _roles(
    console: Any,
    source: str,
    folder: Path,
    sequence: str | None,
    figures: bool,
    overwrite: bool,
    seed: int,
    device: str | None,
) -> list[Path]:
    """Roles, arrival, flow and geometry of the trained model; nothing for models that are not ours."""
    from rotoscope.analysis.geometry import geometry
    from rotoscope.analysis.roles import roles as find_roles
    from rotoscope.analysis.roles import trace
    from rotoscope.cli.summary import show_table
    from rotoscope.reading import load

    subject = load(source, device=device)
    if not getattr(subject.model.config, "rotoscope", None):
        console.print(
            "\nroles are found in models trained on the multi-hop tasks; this one says nothing of them"
        )
        return []
    found = find_roles(subject, seed=seed, out=folder / "roles", overwrite=overwrite)
    show_table(
        console,
        found.table(),
        "where every head looks from positions that point on, and the role it has earned",
    )
    order = "in hop order" if found.in_hop_order() else "NOT in hop order"
    show_table(
        console,
        found.arrivals(),
        f"where the answer is along the path ({order}); path index 0 is the last token",
    )
    shape = geometry(subject, seed=seed, out=folder / "geometry", overwrite=overwrite)
    show_table(console, shape.weighted_ids(), "frequencies in use (ids count from 1), beside P2's Table 1")
    written = [folder / "roles" / "run.json", folder / "geometry" / "run.json"]
    if figures:
        from rotoscope import figures as draw

        flow = trace(subject, sequence, seed=seed)
        for title, figure in (
            ("role_attention", draw.role_attention(found)),
            ("answer_arrival", draw.answer_arrival(found)),
            ("legible_flow", draw.legible_flow(found)),
            ("information_flow", draw.information_flow(flow)),
            ("frequency_use", draw.frequency_use(shape)),
            ("dominant_planes", draw.dominant_planes(shape)),
        ):
            written += draw.save_figure(figure, folder / title)
    return written
