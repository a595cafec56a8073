"""Pictures of plans, and what their tables say."""

from __future__ import annotations

import pytest

from rotoscope.experiments.registry import figures_of
from rotoscope.report.page import run_payload
from tests.plans import cache_plan


def test_the_figures_of_a_cache_plan() -> None:
    drawn = dict(figures_of(cache_plan()))
    assert set(drawn) == {"cache_frontier", "cache_map"}
    panels = drawn["cache_frontier"].axes
    assert [axes.get_title(loc="left") for axes in panels] == ["repeats", "lookup", "text"]
    lines = {line.get_label(): line for line in panels[0].get_lines()}
    shares = lines["far task"].get_xdata().tolist()
    assert shares == [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]
    assert lines["random"].get_ydata()[1] > lines["far task"].get_ydata()[1] + 5


def test_the_page_of_a_cache_plan() -> None:
    tab = run_payload(cache_plan())["tabs"]["plan"]
    assert [panel["title"] for panel in tab["panels"]] == ["Loss on repeats", "Loss on lookup", "Loss on text"]
    names = {curve["name"] for curve in tab["panels"][0]["curves"]}
    assert {"plan", "random", "far task"} <= names
    assert "any" not in names
    assert all(curve["x"] == [0, 0.1, 0.25, 0.5, 0.75, 1] for curve in tab["panels"][0]["curves"])
    assert tab["said"][0].startswith("4 of 18 key heads")
    assert len(tab["tables"]) >= 4


@pytest.mark.parametrize("missing", ["heads", "scores"])
def test_a_page_of_a_plan_that_is_not_done(missing: str) -> None:
    plan = cache_plan()
    del plan.tables[missing]
    plan.run.complete = False
    tab = run_payload(plan)["tabs"]["plan"]
    assert tab["panels"]
    assert bool(tab["said"]) == (missing == "scores")
