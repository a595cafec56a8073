"""`rotoscope theory`: every statement of the papers, put to the test."""

from __future__ import annotations

from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.plotting.palette import TERMINAL_VERDICTS
from rotoscope.progress import says_loading
from rotoscope.settings import Output


@command
def theory(
    name: str | None = None,
    *,
    figures: bool = False,
    output: Annotated[Given, Output, "out", "overwrite"],
) -> int:
    """Run the papers' theorems, constructions and errata as checks over inputs, on the CPU in float64.

    Example: rotoscope theory exclusion

    Parameters
    ----------
    name
        One statement; all of them by default. A wrong name lists them.
    figures
        Also draw paths, vectors of the constructions, discrepancies, shapes and permuted logits.
    """
    place = Output.make(**output)
    with says_loading():
        from rich.markup import escape

        from rotoscope.experiments.show import draw_all, show_written
        from rotoscope.experiments.theory.run import run_theory
        from rotoscope.terminal import new_console, say, show_next

    console = new_console()
    folder = place.folder("theory", name or "")
    result = run_theory(name, out=folder, overwrite=place.overwrite)
    for row in result.statements.to_dict("records"):
        colour = TERMINAL_VERDICTS[row["verdict"]]
        say(
            console,
            f"[bold]{row['name']}[/] [{colour}]{row['verdict']}[/] [dim]({row['source']}, {row['seconds']:.1f} s)[/]",
        )
        lines = [("claim", row["claim"])]
        if row["verdict"] != "holds":
            state = "checked, holds" if row["correction_holds"] else "checked, FAILS"
            lines += [("against it", row["counterexample"]), (f"instead ({state})", row["correction"])]
        for title, text in (*lines, ("checked", row["checked"]), ("found", row["figure"])):
            say(console, f"  [dim]{title}:[/] {escape(text)}")
    counts = result.statements["verdict"].value_counts()
    say(console, "\n" + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    written = [folder / "statements.parquet", folder / "run.json"]
    if figures:
        from rotoscope.experiments import figures as draw
        from rotoscope.tasks.multihop import letter, number

        sequences = [task(1, hops=(3,))[0] for task in (number, letter)]
        drawn: dict[str, Any] = {
            "hop_path": lambda: draw.hop_path(*sequences),
            "construction_vectors": draw.construction_vectors,
            "discrepancies": draw.discrepancies,
            "target_weights": draw.target_weights,
            "permuted_logits": lambda: draw.permuted_logits(),
        }
        written += draw_all(((title, draw_figure()) for title, draw_figure in drawn.items()), folder)
    show_written(console, written)
    show_next(
        console,
        ["reproduce"]
        if figures
        else ["theory", *([name] if name else []), "--figures", "--out", f"{folder}-figures"],
    )
    return 0
