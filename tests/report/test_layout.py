"""What a reader meets on a small screen: nothing lies on top of anything else, nothing is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rotoscope as rs
from tests.report.browser import Watched
from tests.report.test_shown import texts
from tests.tiny_models import tiny, tokens

Visit = Callable[..., Watched]
BOXES = """() => {
  const plot = document.querySelector("#panel .plot"), words = [...plot.querySelectorAll(".annotation-text, .shape-label text, .ytick text, .xtick text")];
  return words.filter((one) => one.textContent).map((one) => { const box = one.getBoundingClientRect(); return [one.textContent, box.left, box.top, box.right, box.bottom]; });
}"""


@pytest.fixture(scope="module")
def permuted() -> rs.Profile:
    """With the prompt permuted, and what every head then attends to."""
    return rs.profile(tiny("llama"), tokens=tokens(2, 16), input_swaps=1000, null="none", show_progress=False)


def overlap(one: list[Any], other: list[Any]) -> bool:
    return bool(one[1] < other[3] and other[1] < one[3] and one[2] < other[4] and other[2] < one[4])


def test_a_small_screen_with_a_head_chosen(visit: Visit, profile: rs.Profile) -> None:
    """The plane is large and fills its place, its words lie apart, no point lies under them, no menu is cut."""
    head = profile.at().nsmallest(1, "positional_score").iloc[0]  # beside the axis and its ticks
    page = visit(profile, hash=f"#head={head['layer']}:{head['head']}", size=(1280, 720)).page
    boxes = page.evaluate(BOXES)
    assert {"stays put", "looks at everything", f"{head['layer']}:{head['head']}", "0.4"} <= {
        box[0] for box in boxes
    }
    clashes = [(a[0], b[0]) for k, a in enumerate(boxes) for b in boxes[k + 1 :] if overlap(a, b)]
    assert not clashes
    wide, figure = page.evaluate(
        "(() => { const p = document.querySelector('#panel .plot'), x = p._fullLayout.xaxis; return [x.l2p(1) - x.l2p(0), p.clientWidth]; })()"
    )
    assert wide > 210
    assert figure < 1.6 * wide
    inside = "[...document.querySelectorAll('#panel select')].every((s) => s.getBoundingClientRect().right <= document.querySelector('#panel').getBoundingClientRect().right)"
    assert page.evaluate(inside)


def test_the_same_swap_in_the_prompt_stands_beside_it(visit: Visit, permuted: rs.Profile) -> None:
    head = permuted.attention.iloc[-1]
    page = visit(permuted, hash=f"#head={head['layer']}:{head['head']}").page
    headings = page.locator("#prompt .side-text h3").all_inner_texts()
    assert headings == ["before", f"swapped at layer {head['layer']}", "swapped in the prompt"]
    assert texts(page, 1) == texts(page, 2)
    assert page.locator("#told-permuted").count() == 1
    drawn = page.evaluate(
        """[...document.querySelectorAll("#side .plot")].find((p) => p.getAttribute("aria-label").startsWith("Attention")).data.at(-1).y"""
    )
    row = permuted.attention_prompt_permuted.iloc[-1]
    assert drawn == pytest.approx(row["attention"].tolist(), abs=0.005)
    page.select_option("#swap", "3")
    assert page.locator("#prompt .side-text").count() == 2
    page.click("#show-permuted")
    assert page.locator("#prompt .side-text").count() == 3


def test_the_headline_says_what_came_out(visit: Visit, profile: rs.Profile, permuted: rs.Profile) -> None:
    said = visit(profile).page.inner_text("#headline")
    count = int((profile.at()["head_class"] == "symbolic").sum())
    assert said.startswith("Of 12 heads, ")
    assert f"{count} follow" in said
    assert "random models" in said
    told = visit(permuted).page.inner_text("#headline")
    assert (
        "With the prompt permuted" in told
        or not permuted.at()["head_class"].isin(["symbolic", "carried"]).any()
    )
    assert "No null was run" in told


def test_words_are_explained_on_hover(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile, hash="#head=0:1").page
    explained = page.eval_on_selector_all("#side abbr[title]", "all => all.map((one) => one.innerText)")
    assert {"positional score", "symbolic score", "attention on what is swapped"} <= set(explained)
    assert all(page.eval_on_selector_all(".chip", "all => all.map((one) => one.title)"))


def test_a_lonely_caution_has_no_bullet(visit: Visit, permuted: rs.Profile) -> None:
    page = visit(permuted, hash="#tab=measured").page
    assert page.evaluate("[...document.querySelectorAll('ul')].every((list) => list.children.length > 1)")


def test_compare_shows_all_its_columns(visit: Visit, changed: tuple[rs.Profile, rs.Profile]) -> None:
    page = visit(*changed, hash="#head=0:0", size=(1280, 720)).page
    page.wait_for_selector("#card-title")
    assert (
        page.evaluate(
            "(() => { const g = document.querySelector('#panel .grid-wrap'); return g.scrollWidth - g.clientWidth; })()"
        )
        <= 0
    )
    assert page.locator("#panel thead th").last.inner_text() == "symbolic"


def test_a_claim_opens_onto_its_rule_its_models_and_its_tables(visit: Visit) -> None:
    import pandas as pd

    from rotoscope.ledger.result import Ledger
    from rotoscope.runs.record import RunRecord

    row = {
        "id": "p2-number-roles", "verdict": "reproduced", "paper": "p2", "kind": "empirical", "statement": "s", "judged": "a rule",
        "our_value": "A (0.60 right): -0.9, beyond; B/x (0.10 right): 0.1; 0.2, undecided", "rests_on": "stored runs (x)",
    }  # fmt: skip
    other = row | {"id": "p2-number-order", "our_value": "1200"}
    page = visit(Ledger(RunRecord(kind="ledger"), {"ledger": pd.DataFrame([row, other])})).page
    page.locator("#panel tbody tr").first.click()
    more = page.inner_text("#panel tr.more")
    assert "a rule" in more
    cells = page.locator("#panel tr.more table").first.locator("tbody tr").all_inner_texts()
    assert [cell.split("\t") for cell in cells] == [
        ["A", "0.60", "-0.9, beyond"],
        ["B/x", "0.10", "0.1; 0.2, undecided"],
    ]
    page.locator("#panel tbody tr:has-text('p2-number-order')").click()
    assert "What each hop waits for" in page.inner_text("#panel tr.more:has-text('waits')")
