"""Swaps at depths of a model that never ran: every head does what it is told."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.profile.result import Profile
from rotoscope.runs.record import RunRecord, SubjectRecord
from rotoscope.stats.aggregate import INPUT_SCORES

STAYS, FOLLOWS = (1.0, 0.0), (0.0, 1.0)
CURVES = {
    (0, 0): [STAYS],
    (0, 1): [FOLLOWS],
    (1, 0): [STAYS, STAYS],
    (1, 1): [FOLLOWS, FOLLOWS],
    (2, 0): [STAYS, STAYS, FOLLOWS],  # carried: the place is written between the inputs of layers 1 and 2
    (2, 1): [(0.5, 0.9), FOLLOWS, FOLLOWS],  # symbolic at its layer
    (3, 0): [STAYS, FOLLOWS, FOLLOWS, FOLLOWS],  # carried
    (3, 1): [(0.5, 0.4), (0.4, 0.5), (0.6, 0.6), (0.4, 0.8)],  # mixed
}
"""By (layer, head): both scores at every depth up to the own layer."""
UNCOVERED = (1, 1)
"""A head of whose weight the swaps that were run hold too little."""


def swap_depths(
    *, depths: tuple[int, ...] = (0, 1, 2, 3), one_head: bool = False, null: str = "", writers: bool = False
) -> SwapDepths:
    """Two prompts with the scores above; with `null` = "symbolic" or "all" two draws in which everybody is even.

    With `writers` both carried heads were asked, and 1:0 writes the place that 2:0 reads.
    """
    heads = {head: curve for head, curve in CURVES.items() if not one_head or head[1] == 0}
    tables = {"prompts": pd.concat([_rows(heads, depths, prompt) for prompt in range(2)], ignore_index=True)}
    if null:
        even = {head: [(0.7, 0.6)] * len(curve) for head, curve in heads.items()}
        if null == "symbolic":
            even[(2, 0)] = [(0.7, 0.6), (0.7, 0.6), FOLLOWS]
        drawn = [
            _rows(even, depths, prompt).assign(null_name="random", draw=draw)
            for draw in range(2)
            for prompt in range(2)
        ]
        rows = pd.concat(drawn, ignore_index=True)
        if null == "symbolic":
            rows = rows[rows["own"] | ((rows["layer"] == 2) & (rows["head"] == 0))]
        tables["null_prompts"] = rows.reset_index(drop=True)
    if writers:
        tables["writers"] = _writers()
    settings: dict[str, Any] = {
        "model": "made",
        "task": "tokens",
        "task_settings": {},
        "prompts": 2,
        "at": [*map(str, depths), "own"],
        "swaps": 64,
        "tau": [1e-4],
        "gamma": 0.1,
        "null": "random" if null else "none",
        "null_draws": 2,
        "null_heads": null or "symbolic",
        "seed": 0,
    }
    return SwapDepths(RunRecord(kind="depths", settings=settings, subject=SubjectRecord(name="made")), tables)


def as_profile(*, permuted: bool) -> Profile:
    """The same heads as a profile has them."""
    run = swap_depths()
    own = run.prompts[run.prompts["own"]].drop(columns=["own", "depth", "covered_share"])
    tables = {"prompts": own.assign(effective_swaps=3.0, entropy=1.0, relative_entropy=0.5)}
    if permuted:
        tables["input_prompts"] = run.scored[["prompt", "layer", "head", "tau", *INPUT_SCORES, "covered_share"]]
    run.run.settings["input_swaps"] = 64 if permuted else None
    return Profile(run.run, tables)


def _writers() -> pd.DataFrame:
    rows = []
    for reader, asked in (((2, 0), [(0, 0), (1, 0)]), ((3, 0), [(0, 0)])):
        told: list[tuple[str, int, int, int, float]] = [("none", -1, -1, -1, 0.0)]
        told += [("one", layer, head, -1, float(layer)) for layer, head in asked]
        told += [("one", layer, -1, draw, 0.01 * (draw % 5)) for layer, _ in asked for draw in range(19)]
        told += [("all", -1, -1, -1, float(len(asked) - 1))]
        told += [("all", -1, -1, draw, 0.02 * (draw % 5)) for draw in range(19)]
        for prompt in range(2):
            for condition, layer, head, draw, effect in told:
                score = effect * (1 - 0.1 * prompt)
                about = {"reader_layer": reader[0], "reader_head": reader[1], "condition": condition}
                where = {"layer": layer, "head": head, "draw": draw, "silenced": "0:0", "covered_share": 1.0}
                scores = {"positional_score": 1 - score, "symbolic_score": score}
                rows.append({"prompt": prompt, "input_id": prompt, **about, **where, **scores})
    return pd.DataFrame(rows)


def _rows(heads: dict[tuple[int, int], Any], depths: tuple[int, ...], prompt: int) -> pd.DataFrame:
    rows = []
    for (layer, head), curve in heads.items():
        points = [(depth, False) for depth in depths if depth <= layer]
        for depth, own in [*points, (layer, True)]:
            positional, symbolic = curve[depth]
            covered = 0.4 if (layer, head) == UNCOVERED and not own else 1.0
            rows.append(
                {
                    "prompt": prompt,
                    "input_id": prompt,
                    "layer": layer,
                    "head": head,
                    "tau": 1e-4,
                    "depth": depth,
                    "own": own,
                    "positional_score": positional,
                    "symbolic_score": symbolic,
                    "covered_share": covered,
                    "swapped_mass": 0.9,
                    "block_spread": 1.0,
                }
            )
    return pd.DataFrame(rows)
