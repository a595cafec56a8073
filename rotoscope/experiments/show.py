"""A profile on the terminal: the figures, the most telling heads, the caveats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_float_dtype
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.profile.result import Profile
from rotoscope.plotting.palette import CLASS_COLOURS
from rotoscope.progress import progress_bar
from rotoscope.runs.files import write_text
from rotoscope.runs.result import SavedRun
from rotoscope.stats.statistics import class_words
from rotoscope.stats.verdict import BEYOND, NO_VERDICT
from rotoscope.terminal import Column, say, show_columns, show_next

MOST_TELLING = 5
MOST_ROWS = 24
"""Rows of a table that are shown; of a longer one all are in a file."""
ASKED = ("tau", "theta", "level")
"""Columns of numbers that say what a row is about."""


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
    _show_statistics(console, result.null_name, found)
    for reason in dict.fromkeys(found.get("reason", [])):
        if reason not in ("", "undefined"):
            say(console, f"[dim]{reason}[/]")


def show_summary(console: Console, profile: Profile) -> None:
    for tau in profile.taus:
        show_statistics(console, profile, tau)
    _show_extremes(console, profile)
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
    then: Sequence[Sequence[object]] = (),
) -> int:
    """How every command that makes a run ends: its caveats, its figures, the files that were written, and what to type next.

    `then` are commands that go on from it.
    """
    for caveat in result.run.warnings:
        say(console, f"[yellow]caveat:[/] {escape(caveat)}")
    written = [
        file for kind in ("json*", "parquet", "csv", "safetensors") for file in sorted(folder.glob(f"*.{kind}"))
    ]
    show_written(console, [*written, *beside, *(drawn(result, folder) if draw else [])])
    show_next(console, ["report", folder], *then)
    return 0


def drawn(result: SavedRun, folder: Path) -> list[Path]:
    """The files of the figures of a run, drawn into a folder."""
    from rotoscope.experiments.registry import figures_of

    return draw_all(figures_of(result), folder)


def draw_all(figures: Iterable[tuple[str, Any]], folder: Path) -> list[Path]:
    """Figures and their names, as files; how far that is is shown."""
    from rotoscope.plotting.style import save

    written = []
    with progress_bar("drawing figures", None) as bar:
        for name, figure in figures:
            written += save(figure, folder / name)
            bar.advance()
    return written


def _draws(found: pd.DataFrame) -> str:
    count = int(found["null_draws"].max())
    return "1 draw" if count == 1 else f"{count} draws"


def _show_statistics(console: Console, null_name: str | None, found: pd.DataFrame) -> None:
    """The figures with their intervals, and where the null's next draw would lie where there is a null."""
    rows = found.to_dict("records")
    columns = [
        Column("over heads", [Text(row["statistic"] + _little(row["little_at_stake"])) for row in rows]),
        Column("value [95 %]", _bands(rows, "value", "low", "high"), wraps=False, right=True),
    ]
    if null_name:
        verdicts = [Text(_judged(row), style="green" if row["verdict"] == BEYOND else "dim") for row in rows]
        for name in ("random", "gaussian") if "random_value" in found else ("null",):
            title = f"{null_name if name == 'null' else name} null, {_draws(found)}"
            bands = _bands(rows, f"{name}_value", f"{name}_low", f"{name}_high")
            columns.append(Column(title, bands, wraps=False, right=True))
        columns.append(Column("verdict", verdicts))
    show_columns(console, columns)


def _judged(row: Mapping[Any, Any]) -> str:
    """The verdict with its p-value."""
    if row["verdict"] == NO_VERDICT or math.isnan(row["p_value"]):
        return str(row["verdict"])
    return f"{row['verdict']}, p = {row['p_value']:.2g}"


def _little(share: float | None) -> str:
    return "" if share is None or math.isnan(share) else f" ({share:.2f} little at stake)"


def _bands(rows: list[Any], *names: str) -> list[Text]:
    return [Text(_with_band(*(row[name] for name in names))) for row in rows]


def _with_band(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "undefined"
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def show_table(console: Console, table: pd.DataFrame, title: str, file: Path) -> None:
    """Any table of results, rounded for reading; all of one that is too long to read goes into a CSV file."""
    say(console, f"\n{title}", markup=False)
    shown = {str(name): [_cell(value) for value in table[name].head(MOST_ROWS)] for name in table}
    for low in [name for name in shown if name.endswith("low")]:
        _with_interval(shown, low.removesuffix("low"))
    columns = [
        Column(name.replace("_", " "), [Text(cell) for cell in cells], wraps=not _is_number(cells))
        for name, cells in shown.items()
    ]
    measured = [is_float_dtype(table[name]) and name not in ASKED for name in table]
    show_columns(console, columns, keys=[*measured, True].index(True))
    if len(table) > MOST_ROWS:
        write_text(file, table.to_csv(index=False))
        say(console, f"all {len(table):,} rows: {file}", markup=False)


def _with_interval(shown: dict[str, list[str]], prefix: str) -> None:
    """The two ends of an interval in the column of the value they belong to, where that is known by its name."""
    low, high, names = f"{prefix}low", f"{prefix}high", list(shown)
    bare = ["mean", "effect", "value"]
    named = [prefix.rstrip("_"), f"{prefix}value", f"{prefix}exponent"] if prefix else bare
    base = next((name for name in named if name in shown), None)
    if base is not None and names[names.index(low) + 1 :][:1] == [high]:
        ends = zip(shown[base], shown.pop(low), shown.pop(high), strict=True)
        shown[base] = [f"{value} [{a}, {b}]" if a and b else value for value, a, b in ends]


def _is_number(cells: list[str]) -> bool:
    """Whether a column holds numbers, with their intervals: they are not taken apart."""
    return all(cell[:1] in "-+.0123456789" for cell in cells)


def show_written(console: Console, files: list[Path]) -> None:
    """Every command names the files it wrote."""
    say(console, "\nwrote")
    for file in files:
        say(console, f"  {file}", markup=False)


def _cell(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.1e}"


def _show_extremes(console: Console, profile: Profile) -> None:
    """The heads that lie deepest in the positional and in the symbolic corner."""
    heads = profile.at().dropna(subset=["positional_score", "symbolic_score"])
    lean = heads["positional_score"] - heads["symbolic_score"]
    most = [*lean.nlargest(MOST_TELLING).index, *lean.nsmallest(MOST_TELLING).index]
    rows = heads.loc[most].to_dict("records")

    def column(title: str, words: Sequence[str], *, right: bool = True) -> Column:
        return Column(title, [Text(word) for word in words], wraps=False, right=right)

    classes = [
        Text(class_words(row["head_class"], row.get("input_class")), style=CLASS_COLOURS[row["head_class"]])
        + Text(", little at stake" if row["little_at_stake"] else "")
        for row in rows
    ]
    shares = ["" if math.isnan(row["class_share"]) else f"{row['class_share']:.0%}" for row in rows]
    show_columns(
        console,
        [
            column("head (layer:head, from 0)", [f"{row['layer']}:{row['head']}" for row in rows], right=False),
            column("positional", [f"{row['positional_score']:.3f}" for row in rows]),
            column("symbolic", [f"{row['symbolic_score']:.3f}" for row in rows]),
            column("entropy", [f"{row['entropy']:.2f}" for row in rows]),
            column("on blocks", [f"{row['swapped_mass']:.0%}" for row in rows]),
            Column("class", classes),
            column("on prompts", shares),
        ],
    )
