"""The prompt and the attention of heads as the page stores them: what has room, what is missing, what is not to be trusted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.experiments.profile.examples import MOST_SWAPS
from rotoscope.report.page import run_payload


@pytest.mark.slow
def test_attention_that_has_no_room_or_was_not_kept_is_said(profile: rs.Profile) -> None:
    """With less room fewer swaps, then no vectors, then a sentence; runs without it say why."""
    whole = run_payload(profile)["tabs"]["overview"]["shown"]
    assert whole["kept"] == whole["most_kept"] == MOST_SWAPS
    assert whole["all_swaps"] == 19 * 18 // 2
    bare = run_payload(profile, 0)["tabs"]["overview"] | {"shown": None}
    rest = len(json.dumps(bare, separators=(",", ":")))
    for room in (rest + 2_000, rest + 1_200):
        less = run_payload(profile, room)["tabs"]["overview"]["shown"]
        assert 1 <= less["kept"] < whole["kept"]
        assert len(less["attention"] + less["swaps"]) <= min(room - rest + 200, 2 * room // 5)
    assert "rotoscope serve shows more" in run_payload(profile, 0)["tabs"]["overview"]["shown"]["why"]
    bare = {name: table for name, table in profile.tables.items() if name != "attention"}
    assert "no attention" in run_payload(rs.Profile(profile.run, bare))["tabs"]["overview"]["shown"]["why"]
    refused = rs.Profile(replace(profile.run, settings=profile.run.settings | {"examples": False}), bare)
    assert "--no-examples" in run_payload(refused)["tabs"]["overview"]["shown"]["why"]


@pytest.mark.parametrize(
    ("name", "column", "value", "said"),
    [
        ("shown_prompt", "block", 2, "blocks are not numbered"),
        ("shown_prompt", "position", 3, "tokens do not follow"),
        ("shown_prompt", "token", None, "tokens do not follow"),
        ("attention", "attention", [np.nan], "is not a number for each token"),
        ("attention", "moved", [1], "one number for each token that a swap moves"),
        ("attention", "first", [7], "are not between its blocks"),
        ("attention", "layer", 40, "of 12 heads"),
    ],
)
def test_foreign_attention_does_not_reach_the_page(
    profile: rs.Profile, name: str, column: str, value: Any, said: str
) -> None:
    table = profile.page_tables()[name].copy()
    table[column] = [value] * len(table) if isinstance(value, list) else value
    if column == "first":
        table["second"] = table["first"]
    found = run_payload(rs.Profile(profile.run, profile.tables | {name: table}))
    assert found["tabs"]["overview"]["shown"] is None
    assert any(said in problem for problem in found["problems"]), found["problems"]
