"""`rotoscope reproduce`: the ledger of both papers' claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.plotting.palette import TERMINAL_VERDICTS
from rotoscope.progress import says_loading
from rotoscope.settings import Output

SHOWN = {
    "claim": "statement",
    "paper": "paper_value",
    "ours": "our_value",
    "null": "null_value",
    "judged": "judged",
    "why": "reason",
    "note": "note",
    "rests on": "rests_on",
    "again": "command",
    "recompute": "recompute",
}

LISTED = 8
"""Claims on the screen; all of them with --verbose."""


@command
def reproduce(
    which: str | None = None,
    *,
    cost: Literal["quick", "cpu", "gpu"] = "quick",
    model: str = "smollm2",
    one_hop: tuple[Path, ...] = (),
    output: Annotated[Given, Output, "out", "overwrite", "device", "verbose"],
) -> int:
    """Judge the claims of both papers, or those you name, and write the ledger.

    Example: rotoscope reproduce p2 --cost quick --out runs/ledger

    Parameters
    ----------
    which
        p1, p2, ours (what this project found) or the id of a claim. Default: all.
    cost
        quick: from the embedded models and stored runs, minutes. cpu: in full what a CPU can. gpu: also trains the models.
    model
        The language model P1's claims are put to: gemma-2, qwen-2 or llama-3 where you have them.
    one_hop
        Finished runs of `rotoscope ask --endpoint`, which P2's Table 3 is then judged on.
    """
    place = Output.make(**output)
    with says_loading():
        from rotoscope.ledger.judge import reproduce as judge
        from rotoscope.terminal import Grid, Screen, new_console, say, show_next, show_place, show_screen

    console = new_console()
    folder = place.folder("ledger", which or "all", cost)
    options: Any = {"out": folder, "device": place.device, "overwrite": place.overwrite}
    ledger = judge(which, cost, subject=model, one_hop=list(one_hop), **options)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in ledger.counts().items())
    in_full = place.verbose or len(ledger.rows) == 1
    claims = ledger.rows[["id", "verdict", "paper", "place"]]
    listed = [] if in_full else [Grid.of(claims.assign(paper=claims["paper"].str.upper()), LISTED)]
    show_screen(console, Screen([counts, *listed]), ledger.run.warnings, verbose=place.verbose)
    for row in ledger.rows.itertuples() if in_full else ():
        colour = TERMINAL_VERDICTS.get(row.verdict, "dim")
        say(console, f"[bold]{row.id}[/] [{colour}]{row.verdict}[/] [dim]{row.paper.upper()}, {row.place}[/]")
        for title, column in SHOWN.items():
            if text := getattr(row, column):
                say(console, f"  {title}: {text}", markup=False)
    show_place(console, folder, sorted(folder.glob("*")))
    more = {"quick": "cpu", "cpu": "gpu"}.get(cost)
    again = ["reproduce", *([which] if which else []), "--cost", more]
    show_next(console, again if more else ["report", folder])
    return 0
