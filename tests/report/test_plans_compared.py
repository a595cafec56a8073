"""Two plans on one page: losses over each other, what both keep, and tables side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.plan.result import CachePlan
from rotoscope.report.page import payloads_of, render_page, side_of
from rotoscope.report.site import write_site
from tests.plans import cache_plan, planes_plan
from tests.report.browser import Watched

Visit = Callable[..., Watched]


pytestmark = pytest.mark.slow


def two_caches() -> tuple[CachePlan, CachePlan]:
    """The second loses 0.6 more, and keeps two other heads of four."""
    first, second = cache_plan(), cache_plan()
    second.tables["points"]["loss"] += 0.6
    heads = second.tables["heads"]
    kept, streaming = heads.index[~heads["streams"]], heads.index[heads["streams"]]
    heads.loc[kept[:2], "streams"] = True
    heads.loc[streaming[:2], "streams"] = False
    return first, second


def compared(first: Any, second: Any) -> dict[str, Any]:
    found: dict[str, Any] = payloads_of([side_of(first), side_of(second)])[1]["comparison"]
    return found


def columns(table: dict[str, Any], side: str | None = None) -> pd.DataFrame:
    part = table if side is None else table[side]
    return pd.DataFrame(dict(zip(part["names"], part["columns"], strict=True)))


def test_two_cache_plans_over_each_other() -> None:
    first, second = two_caches()
    found = compared(first, second)
    plan = found["plan"]
    assert [panel["title"] for panel in plan["panels"]] == ["Loss on repeats", "Loss on lookup", "Loss on text"]
    for side, run in (("first", first), ("second", second)):
        lines = {line["name"]: line for line in plan["panels"][2][side]}
        assert set(lines) == {"plan", "random"}
        own = run.frontier[(run.frontier["source"] == "text") & (run.frontier["ranking"] == "plan")]
        np.testing.assert_allclose(lines["plan"]["y"], own["loss"], atol=6e-5)
        assert lines["random"]["x"] == [0, 0.1, 0.25, 0.5, 0.75, 1]
    assert found["words"][0] == (
        "Of 6 key heads that keep everything under either plan, 2 (33%) keep everything under both; as many drawn at random would "
        "share 0.9."
    )
    assert "no difference between the two is tested" in found["words"][-1]
    losses, apart = plan["tables"]
    np.testing.assert_allclose(
        columns(losses, "second")["loss"] - columns(losses, "first")["loss"], 0.6, atol=2e-4
    )
    streams = [run.heads.set_index(["layer", "key_head"])["streams"] for run in (first, second)]
    differ = streams[0].index[streams[0] != streams[1]]
    assert columns(apart)[["layer", "key_head"]].to_numpy().tolist() == [list(key) for key in differ]
    kept = [columns(apart, side)["key heads that keep everything"].tolist() for side in ("first", "second")]
    assert kept[0] == [int(not streams[0][key]) for key in differ]
    assert kept[1] == [1 - count for count in kept[0]]


def test_a_plan_beside_itself_has_everything_in_common() -> None:
    plan = cache_plan()
    found = compared(plan, plan)
    assert (
        "Of 4 key heads that keep everything under either plan, 4 (100%) keep everything under both"
        in found["words"][0]
    )
    assert found["plan"]["tables"][1]["rows"] == 0


def test_plans_of_two_models_are_matched_by_number() -> None:
    first, second = cache_plan(), cache_plan(layers=4)
    second.run.settings["fingerprint"] = "another"
    words = compared(first, second)["words"]
    assert words[0].endswith("not the same. Key heads are matched by layer and number alone.")
    assert "6 key heads are in one of the models only." in words


def test_two_rotation_plans() -> None:
    first, second = planes_plan({"effect": 2.0, "norm": 3.0}), planes_plan({"effect": 4.0, "norm": 3.0})
    for plan, kept in ((first, {1, 2}), (second, {2, 7})):
        plan.tables["plan"] = plan.plan.assign(rotates=plan.plan["frequency_id"].isin(kept))
    found = compared(first, second)
    [panel] = found["plan"]["panels"]
    assert [line["y"] for line in panel["first"]] == [[2.05], [5.24]]
    assert [line["y"] for line in panel["second"]] == [[3.05], [5.24]]
    assert found["words"][0].startswith("Of 3 planes that rotate under either plan, 1 (33%) rotate under both")
    assert found["words"][0].endswith("would share 0.5.")
    _, layers = found["plan"]["tables"]
    assert columns(layers).to_dict("records") == [{"layer": 0, "in both": 1}]
    assert columns(layers, "second").to_dict("records") == [{"planes that rotate": 2}]
    assert "chosen by effect" in found["plan"]["said"]["first"]
    assert "chosen by norm" in found["plan"]["said"]["second"]


def test_plans_of_two_kinds_and_unfinished_ones_are_compared_by_their_settings() -> None:
    cache, rotation = cache_plan(), planes_plan({"effect": 2.0})
    for pair in ((cache, rotation), (rotation, cache)):
        found = compared(*pair)
        assert "plan" not in found
        assert "only their settings are compared" in found["words"][0]


@pytest.mark.parametrize("missing", ["heads", "points"])
def test_a_plan_that_lost_a_table_is_compared_by_its_settings(missing: str) -> None:
    whole, damaged = cache_plan(), cache_plan()
    del damaged.tables[missing]
    assert "plan" not in compared(whole, damaged)


def test_nothing_was_chosen_on_either_side() -> None:
    first, second = two_caches()
    for plan in (first, second):
        plan.run.settings["keep"] = 1.0
        plan.tables["heads"]["streams"] = False
    found = compared(first, second)
    assert [table["rows"] for table in found["plan"]["tables"]] == [0, 0]
    assert render_page(payloads_of([side_of(first), side_of(second)]))


SHOWN = "[...document.querySelectorAll('#panel .plot')].map((plot) => plot.data.map((line) => [line.name, line.line.dash]))"


def test_the_page_of_two_plans(visit: Visit) -> None:
    page = visit(*two_caches()).page
    assert page.get_attribute("#tab-compare", "aria-selected") == "true"
    lines = [["A: plan", "solid"], ["A: random", "solid"], ["B: plan", "dot"], ["B: random", "dot"]]
    assert [sorted(plot) for plot in page.evaluate(SHOWN)] == 3 * [lines]
    assert "2 (33%) keep everything under both" in page.inner_text("#differences")
    assert "loss B" in page.inner_text("#panel thead >> nth=0")
    assert page.locator("#panel table >> nth=1").locator("tbody tr").count() == 4


def test_a_site_reads_two_plans_the_other_way_round(browser: Any, tmp_path: Path) -> None:
    first, second = two_caches()
    first.save(tmp_path / "runs" / "first")
    second.save(tmp_path / "runs" / "second")
    site = write_site(tmp_path / "runs", site=tmp_path / "site")
    losses = []
    for pair in ("a=001&b=002", "a=002&b=001"):
        watched = Watched(browser.new_page())
        watched.page.goto(f"{(site / 'compare.html').as_uri()}?{pair}")
        watched.page.wait_for_selector("#differences")
        head = watched.page.locator("#panel table >> nth=0")
        names = head.locator("thead th").all_inner_texts()
        row = head.locator("tbody tr").first.locator("td").all_inner_texts()
        losses.append([row[names.index(f"loss {side}")] for side in "AB"])
        watched.page.context.close()
        assert not watched.errors
    assert losses[0] == losses[1][::-1]
    assert losses[0][0] != losses[0][1]
