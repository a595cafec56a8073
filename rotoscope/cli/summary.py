"""A profile on the terminal: the figures, the most telling heads, the caveats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rotoscope.palette import CLASS_COLOURS
from rotoscope.results import Profile, SwapDepths
from rotoscope.results.saved import SavedRun
from rotoscope.results.summary import class_words
from rotoscope.results.verdict import BEYOND

MOST_TELLING = 5


def new_console() -> Console:
    """The terminal as it is; wide enough for our tables where there is none."""
    found = Console()
    return found if found.is_terminal else Console(width=112)


def say(console: Console, sentence: str, *, markup: bool = True) -> None:
    """A sentence as it is: no colours by guess, no line ends but its own."""
    console.print(sentence, highlight=False, soft_wrap=True, markup=markup)


def show_statistics(console: Console, result: Profile | SwapDepths, tau: float) -> None:
    """How many heads there are of each class, and the figures about all of them beside the null's."""
    summary = result.summary(tau)
    counts = ", ".join(f"[{CLASS_COLOURS[name]}]{words}[/]" for name, words in summary.counted.items())
    say(
        console,
        f"\n[bold]{summary.heads} heads at tau = {tau:g}[/] (purity tolerance gamma = {result.gamma:g}): {counts}; "
        f"{summary.stake_words}",
    )
    found = result.statistics(tau)
    console.print(_statistics(result.null_name, found))
    for reason in dict.fromkeys(found.get("reason", [])):
        if reason not in ("", "undefined"):
            say(console, f"[dim]{reason}[/]")


def show_summary(console: Console, profile: Profile) -> None:
    for tau in profile.taus:
        show_statistics(console, profile, tau)
    console.print(_extremes(profile))
    accuracy = profile.accuracy
    if accuracy is not None:
        chance = "" if profile.chance is None else f", chance {profile.chance:.0%}"
        say(
            console,
            f"the model's own accuracy on these prompts: {accuracy:.0%} of {len(profile.answers)} answers{chance}",
        )
    proof = profile.run.proof
    if proof is not None and proof.layers:
        say(
            console,
            f"self-check: the model's own attention was rebuilt at {proof.layers} layers after a permutation, "
            f"largest difference {proof.largest_difference:.1e}"
            + ("" if proof.way is None else f"; queries and keys were read {proof.way}"),
        )


def end(
    console: Console,
    result: SavedRun,
    folder: Path,
    *,
    draw: bool = True,
    beside: Iterable[Path] = (),
    printed: pd.DataFrame | None = None,
) -> int:
    """How every command that makes a run ends: its caveats, its figures, and the files that were written.

    `printed` is a paper's table that the figures show beside the run.
    """
    for caveat in result.run.warnings:
        say(console, f"[yellow]caveat:[/] {escape(caveat)}")
    written = [*sorted(folder.glob("*.json*")), *sorted(folder.glob("*.parquet")), *beside]
    show_written(console, written + (drawn(result, folder, printed) if draw else []))
    return 0


def drawn(result: SavedRun, folder: Path, printed: pd.DataFrame | None = None) -> list[Path]:
    """The files of the figures of a run, drawn into a folder."""
    from rotoscope.figures import save
    from rotoscope.figures.gallery import figures_of

    return [file for name, figure in figures_of(result, printed) for file in save(figure, folder / name)]


def _draws(found: pd.DataFrame) -> str:
    count = int(found["null_draws"].max())
    return "1 draw" if count == 1 else f"{count} draws"


def _statistics(null_name: str | None, found: pd.DataFrame) -> Table:
    """The figures with their intervals, and where the null's next draw would lie where there is a null."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("over heads", no_wrap=True)
    table.add_column("value \\[95 %]", justify="right", no_wrap=True)
    if null_name:
        table.add_column(f"{null_name} null, {_draws(found)}", justify="right", no_wrap=True)
        table.add_column("")
    for row in found.to_dict("records"):
        little = row["little_at_stake"]
        part = "" if little is None or math.isnan(little) else f" ({little:.2f} little at stake)"
        cells = [f"{row['statistic']}{part}", _with_band(row["value"], row["low"], row["high"])]
        if null_name:
            colour = "green" if row["verdict"] == BEYOND else "dim"
            cells += [
                _with_band(row["null_value"], row["null_low"], row["null_high"]),
                f"[{colour}]{row['verdict'] or ''}[/]",
            ]
        table.add_row(*cells)
    return table


def _with_band(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "undefined"
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} \\[{low:.2f}, {high:.2f}]"


def show_table(console: Console, table: pd.DataFrame, title: str) -> None:
    """Any table of results, rounded for reading."""
    say(console, f"\n[bold]{escape(title)}[/]")
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for k, name in enumerate(table):
        shown.add_column(escape(str(name).replace("_", " ")), overflow="fold", no_wrap=k == 0)
    for row in table.itertuples(index=False):
        shown.add_row(*(escape(_cell(x)) for x in row))
    console.print(shown)


def show_written(console: Console, files: list[Path]) -> None:
    """Every command ends by naming the files it wrote."""
    console.print("\nwrote")
    for file in files:
        say(console, f"  {file}", markup=False)


def _cell(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.1e}"


def _extremes(profile: Profile) -> Table:
    """The heads that lie deepest in the positional and in the symbolic corner."""
    heads = profile.at().dropna(subset=["positional_score", "symbolic_score"])
    lean = heads["positional_score"] - heads["symbolic_score"]
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    names = (
        "head (layer:head, from 0)",
        "positional",
        "symbolic",
        "entropy",
        "on blocks",
        "class",
        "on prompts",
    )
    for name in names:
        table.add_column(name, justify="left" if name.startswith("head") or name == "class" else "right")
    for order in (lean.sort_values(ascending=False), lean.sort_values()):
        for index in order.index[:MOST_TELLING]:
            row = heads.loc[index]
            colour = CLASS_COLOURS[row["head_class"]]
            table.add_row(
                f"{row['layer']}:{row['head']}",
                f"{row['positional_score']:.3f}",
                f"{row['symbolic_score']:.3f}",
                f"{row['entropy']:.2f}",
                f"{row['swapped_mass']:.0%}",
                f"[{colour}]{class_words(row['head_class'], row.get('input_class'))}[/]"
                + (", little at stake" if row["little_at_stake"] else ""),
                "" if math.isnan(row["class_share"]) else f"{row['class_share']:.0%}",
            )
        table.add_section()
    return table
