"""A profile on the terminal: the figures, the most telling heads, the caveats."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rotoscope.results import Profile

__all__ = ["show_summary"]

MOST_TELLING = 5
COLOURS = {"positional": "#D55E00", "symbolic": "#0072B2", "uniform": "#8A8A8A", "mixed": "#CC79A7"}


def show_summary(console: Console, profile: Profile) -> None:
    for tau in profile.taus:
        summary = profile.summary(tau)
        r = "undefined" if summary.correlation is None else f"{summary.correlation:.2f}"
        counts = ", ".join(f"[{COLOURS[name]}]{number} {name}[/]" for name, number in summary.classes.items())
        console.print(
            f"\n[bold]{summary.heads} heads at tau = {tau:g}[/] (purity tolerance gamma = {profile.gamma:g}): {counts}",
            highlight=False,
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("")
        for half in ("first half of layers", "second half"):
            table.add_column(half, justify="right")
        table.add_row(
            "median positional score", f"{summary.early_positional:.2f}", f"{summary.late_positional:.2f}"
        )
        table.add_row("median symbolic score", f"{summary.early_symbolic:.2f}", f"{summary.late_symbolic:.2f}")
        console.print(table)
        console.print(f"correlation of the two scores over heads: r = {r}", highlight=False)
    console.print(_extremes(profile))
    accuracy = profile.accuracy
    if accuracy is not None:
        console.print(
            f"the model's own accuracy on these prompts: {accuracy:.0%} of {len(profile.answers)} answers",
            highlight=False,
        )
    proof = profile.run.get("proof", {})
    if proof.get("layers"):
        console.print(
            f"self-check: the model's own attention was rebuilt at {proof['layers']} layers after a permutation, "
            f"largest difference {proof['largest_difference']:.1e}",
            highlight=False,
        )
    for caveat in profile.run.get("warnings", []):
        console.print(f"[yellow]caveat:[/] {caveat}", highlight=False)


def _extremes(profile: Profile) -> Table:
    """The heads that lie deepest in the positional and in the symbolic corner."""
    heads = profile.at().dropna(subset=["positional_score", "symbolic_score"])
    lean = heads["positional_score"] - heads["symbolic_score"]
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for name in ("head (layer:head, from 0)", "positional", "symbolic", "entropy", "on blocks", "class"):
        table.add_column(name, justify="left" if name.startswith("head") or name == "class" else "right")
    for order in (lean.sort_values(ascending=False), lean.sort_values()):
        for index in order.index[:MOST_TELLING]:
            row = heads.loc[index]
            colour = COLOURS[row["head_class"]]
            table.add_row(
                f"{row['layer']}:{row['head']}",
                f"{row['positional_score']:.3f}",
                f"{row['symbolic_score']:.3f}",
                f"{row['entropy']:.2f}",
                f"{row['swapped_mass']:.0%}",
                f"[{colour}]{row['head_class']}[/]",
            )
        table.add_section()
    return table
