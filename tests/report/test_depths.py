"""Swaps at depths on the page: both ends of a head on its card, all heads against depth, the curves of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rotoscope.experiments.depths.writers import NOBODY, empty_writers
from rotoscope.report.page import run_payload
from rotoscope.report.run_index import find_runs
from rotoscope.scores.classes import CLASSES
from tests.report.browser import Watched, until
from tests.swap_depths import as_profile, swap_depths

Visit = Callable[..., Watched]
ROW = """(row) => {
  const plot = document.querySelector("#panel .plot"), axes = plot._fullLayout, box = plot.getBoundingClientRect();
  return [box.left + axes.xaxis._offset + axes.xaxis.l2p(0), box.top + axes.yaxis._offset + axes.yaxis.l2p(row)];
}"""


def test_the_page_has_both_ends_of_every_head(tmp_path: Path) -> None:
    run = swap_depths(null="all")
    found = run_payload(run.save(tmp_path / "run"))
    assert not found["problems"]
    assert found["title"] == "Heads of made by depth of the swap"
    assert list(found["tabs"]) == ["overview", "depths", "tables"]
    tab, heads = found["tabs"]["overview"], run.at()
    now = tab["at"][0]
    assert tab["permuted"]
    assert [CLASSES[code] for code in now["head_class"]] == heads["head_class"].tolist()
    assert now["input_positional_score"] == [None if x != x else x for x in heads["input_positional_score"]]
    assert now["covered_share"] == heads["covered_share"].tolist()
    assert now["carry_depth"] == [None, None, None, None, 1, None, 0, 0]
    assert now["at_its_layer"] == [False, False, False, True, False, True, False, False]
    assert now["input_class"][3] == -1
    assert now["null_heads"] == 16
    depths = found["tabs"]["depths"]
    assert depths["depths"] == [0, 1, 2, 3]
    assert depths["at"][0]["head"] == [0, 1, 0, 1, 0, 1, 1, 0]  # in layer 3 the second head stays in place more
    assert depths["at"][0]["turning"]["columns"][0] == ["2:0", "3:0", "3:1"]
    (listed,), _ = find_runs(tmp_path)
    assert (listed.kind, listed.state, listed.model, listed.task) == ("depths", "finished", "made", "tokens")
    assert listed.classes == heads["head_class"].value_counts().to_dict()


def test_the_page_has_who_writes_the_place() -> None:
    run = swap_depths(writers=True)
    found = run_payload(run)
    assert not found["problems"]
    assert list(found["tabs"]) == ["overview", "depths", "writers", "tables"]
    tab = found["tabs"]["writers"]
    lines = list(zip(tab["writer"], tab["reader"], tab["effect"], tab["beyond"], strict=True))
    assert lines == [("0:0", "2:0", 0, False), ("1:0", "2:0", 0.95, True), ("0:0", "3:0", 0, False)]
    assert tab["readers"] == ["2:0", "3:0"]
    assert tab["table"]["columns"][1] == ["all below", "1:0", "0:0", "all below", "0:0"]
    assert "writers" not in [one["title"] for one in found["tabs"]["tables"]["tables"]]
    run.tables["writers"] = empty_writers()
    assert run_payload(run)["tabs"]["writers"] == {"nobody": NOBODY}


def test_own_layers_alone_have_no_tab_of_depths() -> None:
    found = run_payload(swap_depths(depths=()))
    assert not found["problems"]
    assert list(found["tabs"]) == ["overview", "tables"]


def test_an_unmeasured_prompt_is_not_said_to_be_followed() -> None:
    found = run_payload(as_profile(permuted=False))["tabs"]["overview"]
    assert not found["permuted"]
    assert found["at"][0]["at_its_layer"] == [False, True, False, True, True, True, True, False]
    assert "input_class" not in found["at"][0]


@pytest.mark.slow
def test_depths_in_a_browser(visit: Visit) -> None:
    page = visit(swap_depths(), size=(1440, 900)).page
    assert page.inner_text("[role=tab][aria-selected=true]") == "Depths"
    assert page.inner_text("#depth-title") == "Head 2:0: carried, carry depth 1"
    z = page.evaluate("document.querySelector('#panel .plot').data[0].z")
    assert z[4] == [1, 1, -1, None]
    assert z[3] == [None] * 4  # too little of head 1:1 was run
    x, y = page.evaluate(ROW, 7)
    page.mouse.move(x - 3, y - 2)
    page.mouse.move(x, y)
    until(page, "document.querySelector('#panel .plot')._hoverdata?.length")
    page.mouse.click(x, y)
    page.wait_for_selector("#card-title")
    assert page.inner_text("#card-title") == "Head 3:0"
    assert page.inner_text("#depth-title") == "Head 3:0: carried, carry depth 0"
    curves: Any = page.evaluate(
        "document.querySelectorAll('#panel .plot')[1].data.map((t) => [t.name, t.x, t.y])"
    )
    assert curves == [["positional", [0, 1, 2, 3], [1, 0, 0, 0]], ["symbolic", [0, 1, 2, 3], [0, 1, 1, 1]]]
    value = lambda name: page.inner_text(f'#side [data-value="{name}"]')  # noqa: E731
    assert [value(name) for name in ("head_class", "carry_depth", "input_class")] == [
        "carried",
        "0",
        "positional",
    ]
    assert float(value("input_positional_score")) == 1
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#card-title") == "Head 2:0"
    assert page.evaluate("location.hash") == "#head=2:0&tau=1e-4&tab=depths"
    page.click("#panel tbody tr:has-text('3:1')")
    assert page.inner_text("#depth-title") == "Head 3:1: mixed, carry depth 0"
    page.keyboard.press("/")
    page.keyboard.type("1:1")
    page.keyboard.press("Enter")
    assert value("head_class") == "symbolic at its layer"
    assert value("covered_share") == "40 %, no verdict"
    page.click("#tab-overview")
    assert page.inner_text("#card-title") == "Head 1:1"
    chips = page.eval_on_selector_all(".chip", "all => all.map((one) => one.innerText)")
    assert "3 symbolic (0)" in chips
    assert "With the prompt permuted, 1 still follows, 2 stay (carried)" in page.inner_text("#headline")
    assert "2 carried (0)" in chips
    page.set_viewport_size({"width": 390, "height": 844})
    page.click("#tab-depths")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_writers_in_a_browser(visit: Visit) -> None:
    page = visit(swap_depths(writers=True), hash="#tab=writers").page
    assert page.inner_text("[role=tab][aria-selected=true]") == "Writers"
    lines: Any = page.evaluate(
        "document.querySelector('#panel .plot').data.filter((t) => t.mode === 'lines').map((t) => [t.x, t.y, t.line.width])"
    )
    assert lines == [[[0, 3], [0, 2], 0.5], [[0, 3], [0, 3], 0.5], [[0, 3], [1, 2], pytest.approx(6.65)]]
    page.click("#panel tbody tr:has-text('3:0')")
    assert page.inner_text("#card-title") == "Head 3:0"
    nobody = swap_depths()
    nobody.tables["writers"] = empty_writers()
    page = visit(nobody, hash="#tab=writers", size=(390, 844)).page
    assert page.inner_text("#panel .hint").startswith("Nobody could be asked who writes a place")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("permuted", [True, False])
def test_the_card_of_a_profile(visit: Visit, permuted: bool) -> None:
    page = visit(as_profile(permuted=permuted), hash="#head=2:0").page
    assert (page.query_selector("#tab-depths"), page.query_selector('[data-class="carried"]') is not None) == (
        None,
        permuted,
    )
    assert page.inner_text('[data-value="head_class"]') == ("carried" if permuted else "symbolic at its layer")
    assert (page.query_selector('[data-value="covered_share"]') is not None) is permuted


@pytest.mark.parametrize(("stays", "covered", "said"), [(0.8, 0.9, True), (0.6, 0.9, False), (0.8, 0.4, False)])
def test_a_head_that_mostly_stays_in_the_prompt_is_not_just_said_to_follow(
    visit: Visit, stays: float, covered: float, said: bool
) -> None:
    """Short of the class carried, with enough of its swaps run; no such words for one that does both, or of which little is known."""
    profile = as_profile(permuted=True)
    rows = profile.tables["input_prompts"]
    chosen = (rows["layer"] == 2) & (rows["head"] == 0)
    rows.loc[chosen, ["input_positional_score", "input_symbolic_score", "covered_share"]] = [
        stays,
        1 - stays,
        covered,
    ]
    page = visit(profile, hash="#head=2:0").page
    assert page.inner_text('[data-value="head_class"]') == "symbolic at its layer"
    words = page.inner_text("#in-words")
    assert words.startswith("follows the ")
    assert ("but mostly stays with the prompt permuted" in words) is said
