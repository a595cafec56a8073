"""Write what the stored turnover runs say into docs/turnover.md: python docs/turnover_page.py"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import rotoscope as rs
from rotoscope.experiments.depths.turnover import TurnoverStudy

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "turnover.md"
STORED = ROOT / "rotoscope" / "stored" / "turnover"


def filled(page: str, text: str) -> str:
    """The page with the text between its markers replaced."""
    start, end = "<!-- turnover -->", "<!-- end of turnover -->"
    front, _, rest = page.partition(start)
    return f"{front}{start}\n{text.strip()}\n{end}{rest.partition(end)[2]}"


def results(folder: Path = STORED) -> str:
    """The tables of all stored runs."""
    runs = [rs.open(path.parent, TurnoverStudy) for path in sorted(folder.glob("*/run.json"))]
    return "\n\n".join(map(model_section, runs)) if runs else "No run is stored yet."


def model_section(run: TurnoverStudy) -> str:
    """One model: accuracy first, then the turnover layer and the claims."""
    answers = run.tasks[run.tasks["task"] == "binding"].sort_values("size")
    accuracy = ", ".join(f"{row.accuracy:.2f} at {row.size}" for row in answers.itertuples())
    lines = [f"### {run.name}", "", f"Accuracy by the number of facts: {accuracy}.", ""]
    if not run.answered:
        lines += [
            "The model answers less than half at every length: nothing below is about a model that does the task.",
            "",
        ]
    lines += [
        "| facts | prompts | symbolic heads | follow | turnover layer [95 %] | strength | p shuffled, random, Gaussian | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in run.turnovers.to_dict("records"):
        layer = "none"
        if row["turnover_layer"] == row["turnover_layer"]:
            ends = f"{row['layer_low']:.0f}, {row['layer_high']:.0f}"
            layer = f"{row['turnover_layer']:.0f} of {run.layers} [{ends}]"
        p_values = ", ".join(_p_words(row, name) for name in ("shuffled", "random", "gaussian"))
        cells = (
            row["size"],
            row["prompts"],
            row["symbolic_heads"],
            row["follow"],
            layer,
            f"{row['strength']:.2f}" if row["strength"] == row["strength"] else "none",
        )
        lines.append("| " + " | ".join(map(str, (*cells, p_values, row["verdict"]))) + " |")
    claims = [row for row in run.claims().itertuples(index=False) if row.verdict != "not asked"]
    lines += ["", "| claim | value | verdict |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in claims]
    size = run.sizes[0]
    layers = run.by_layer(size)
    if len(layers):
        shares = ", ".join(f"{row.layer}: {row.follows}/{row.heads}" for row in layers.itertuples())
        lines += [
            "",
            f"Layer: heads that follow the fact / symbolic heads, at {size} facts. {shares}.",
        ]
    return "\n".join(lines)


def _p_words(row: dict[Hashable, Any], null: str) -> str:
    """The p-value beside a null; the draws that have too few symbolic heads to be compared with."""
    if f"p_{null}" not in row or row.get(f"{null}_draws") != row.get(f"{null}_draws"):
        return "not asked"
    p_value, undefined = row[f"p_{null}"], row.get(f"{null}_undefined", 0)
    words = [] if p_value != p_value else [f"{p_value:.4f}"]
    words += [f"{undefined:.0f} of {row[f'{null}_draws']:.0f} draws without such heads"] if undefined else []
    return " and ".join(words) or "none"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8"), results()), "utf-8")
