"""`rotoscope theory`: every statement of the papers, put to the test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["theory"]

Flag = Annotated[bool, Parameter(negative="")]
COLOURS = {"holds": "green", "holds as corrected": "yellow", "false as printed": "red"}


def theory(
    name: str | None = None,
    *,
    figures: Flag = False,
    number: str | None = None,
    letter: str | None = None,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Run the papers' theorems, constructions and errata as checks over inputs.

    Example: rotoscope theory exclusion

    Parameters
    ----------
    name
        One statement; all of them by default. A wrong name lists them.
    figures
        Also draw paths, vectors of the constructions, discrepancies, shapes and permuted logits.
    number
        With --figures: a number sequence to draw, such as "a b c d 1 2 3".
    letter
        With --figures: a letter sequence to draw, such as "a1 b2 ca dc".
    out
        Run folder. Default: runs/theory, or runs/theory-NAME.
    overwrite
        Replace an earlier run.
    seed
        Seed of the sequences that are drawn.
    device
        Accepted for uniformity; the checks run on the CPU in float64.
    """
    from rich.markup import escape

    from rotoscope.analysis.theory import theory as run_theory
    from rotoscope.cli.summary import new_console, show_written

    console = new_console()
    folder = out or Path("runs") / ("theory" if name is None else f"theory-{name}")
    sequences = _sequences(number, letter, seed) if figures else []
    result = run_theory(name, out=folder, overwrite=overwrite)
    for row in result.statements.to_dict("records"):
        colour = COLOURS[row["verdict"]]
        console.print(
            f"[bold]{row['name']}[/] [{colour}]{row['verdict']}[/] [dim]({row['source']}, {row['seconds']:.1f} s)[/]",
            highlight=False,
        )
        lines = [("claim", row["claim"])]
        if row["verdict"] != "holds":
            state = "checked, holds" if row["correction_holds"] else "checked, FAILS"
            lines += [("against it", row["counterexample"]), (f"instead ({state})", row["correction"])]
        for title, text in (*lines, ("checked", row["checked"]), ("found", row["figure"])):
            console.print(f"  [dim]{title}:[/] {escape(text)}", highlight=False, soft_wrap=True)
    counts = result.statements["verdict"].value_counts()
    console.print("\n" + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()), highlight=False)
    written = [folder / "statements.parquet", folder / "run.json"]
    if figures:
        from rotoscope import figures as draw

        for title, figure in (
            ("hop_path", draw.hop_path(*sequences)),
            ("construction_vectors", draw.construction_vectors()),
            ("discrepancies", draw.discrepancies()),
            ("target_weights", draw.target_weights()),
            ("permuted_logits", draw.permuted_logits(seed)),
        ):
            written += draw.save_figure(figure, folder / title)
    show_written(console, written)
    return 0


def _sequences(number: str | None, letter: str | None, seed: int) -> list:  # type: ignore[type-arg]
    """The sequences to draw: those given, or one drawn at random for each task."""
    from rotoscope.tasks.multihop import MULTIHOP, solve

    made = []
    for task, text in (("number", number), ("letter", letter)):
        made.append(MULTIHOP[task](1, hops=(3,), seed=seed)[0] if text is None else solve(task, text.split()))
    return made
