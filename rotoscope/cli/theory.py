"""`rotoscope theory`: every statement of the papers, put to the test."""

from __future__ import annotations

from typing import Annotated, Any

from rotoscope.cli.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.palette import TERMINAL_VERDICTS
from rotoscope.progress import says_loading
from rotoscope.settings import Output
from rotoscope.settings.bounds import SEED


@command
def theory(
    name: str | None = None,
    *,
    figures: bool = False,
    number: str | None = None,
    letter: str | None = None,
    seed: int | None = None,
    output: Annotated[Given, Output, "out", "overwrite", "device"],
) -> int:
    """Run the papers' theorems, constructions and errata as checks over inputs, on the CPU in float64.

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
    seed
        With --figures: seed of the sequences that are drawn.
    """
    place = Output.make(**output)
    if place.device not in (None, "cpu"):
        raise RotoscopeError(
            f"--device {place.device} means nothing for theory: its checks run on the CPU in float64"
        )
    for flag, given in (("number", number), ("letter", letter), ("seed", seed)):
        if given is not None and not figures:
            raise RotoscopeError(f"--{flag} says what is drawn: give --figures too")
    SEED.check("seed", seed)
    with says_loading():
        from rich.markup import escape

        from rotoscope.analysis.theory import run_theory
        from rotoscope.cli.summary import draw_all, show_written
        from rotoscope.cli.terminal import new_console, say, show_next

    console = new_console()
    folder = place.folder("theory", name or "")
    sequences = _sequences(number, letter, seed or 0) if figures else []
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
        from rotoscope import figures as draw

        made: dict[str, Any] = {
            "hop_path": lambda: draw.hop_path(*sequences),
            "construction_vectors": draw.construction_vectors,
            "discrepancies": draw.discrepancies,
            "target_weights": draw.target_weights,
            "permuted_logits": lambda: draw.permuted_logits(seed or 0),
        }
        written += draw_all(((title, one()) for title, one in made.items()), folder)
    show_written(console, written)
    show_next(
        console,
        ["reproduce"]
        if figures
        else ["theory", *([name] if name else []), "--figures", "--out", f"{folder}-figures"],
    )
    return 0


def _sequences(number: str | None, letter: str | None, seed: int) -> list:  # type: ignore[type-arg]
    """The sequences to draw: those given, or one drawn at random for each task."""
    from rotoscope.tasks.multihop import MULTIHOP, solve

    made = []
    for task, text in (("number", number), ("letter", letter)):
        made.append(MULTIHOP[task](1, hops=(3,), seed=seed)[0] if text is None else solve(task, text.split()))
    return made
