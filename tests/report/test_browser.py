"""The page in a real browser, from its file. Every visit also checks: no error, no request to anywhere."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from benchmarks import page as benchmark
from rotoscope.experiments.profile.result import Profile
from rotoscope.report.page import render_page, run_payload, write_report
from rotoscope.runs.record import SubjectRecord
from rotoscope.stats.aggregate import SCORES
from tests.report.browser import Watched, chromium, until
from tests.report.test_page import EVIL
from tests.tiny_models import tiny, tokens

Visit = Callable[..., Watched]

POINT = """([k, layer, head]) => {
  const plot = document.querySelectorAll("#panel .plot")[k], axes = plot._fullLayout, box = plot.getBoundingClientRect();
  let x = head, y = layer;
  if (k === 0) for (const trace of plot.data) (trace.text || []).forEach((text, i) => {
    if (text.startsWith(layer + ":" + head + " ")) { x = trace.x[i]; y = trace.y[i]; }
  });
  return [box.left + axes.xaxis._offset + axes.xaxis.l2p(x), box.top + axes.yaxis._offset + axes.yaxis.l2p(y)];
}"""


def click_head(page: Any, where: int, layer: int, head: int) -> None:
    """Click on a head in the plane (0) or in the map (1)."""
    x, y = page.evaluate(POINT, [where, layer, head])
    hovered = f"document.querySelectorAll('#panel .plot')[{where}]._hoverdata"
    page.evaluate(f"{hovered} = undefined")
    page.mouse.move(x - 3, y - 2)
    page.mouse.move(x, y)
    until(page, f"{hovered}?.length")
    page.mouse.click(x, y)
    page.wait_for_selector("#card-title")


def title(page: Any) -> str | None:
    found = page.query_selector("#card-title")
    return found.inner_text() if found else None


def lone_head(profile: rs.Profile) -> Any:
    """The head that stands furthest from its neighbours in the plane, so that a click can only mean it."""
    heads = profile.at()
    x, y = heads["positional_score"].to_numpy(), heads["symbolic_score"].to_numpy()
    apart = ((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2) + (x[:, None] == x) * (y[:, None] == y) * 9
    return heads.iloc[int(apart.min(1).argmax())]


@pytest.mark.parametrize("where", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["plane", "map"])
def test_click_opens_the_card_with_the_numbers_of_the_table(
    visit: Visit, profile: rs.Profile, where: int
) -> None:
    page = visit(profile).page
    row = lone_head(profile)
    click_head(page, where, int(row["layer"]), int(row["head"]))
    assert title(page) == f"Head {row['layer']}:{row['head']}"
    page.click("#side .further summary")
    value = lambda name: page.inner_text(f'#side [data-value="{name}"]')  # noqa: E731
    assert float(value("positional_score")) == pytest.approx(row["positional_score"], abs=6e-5)
    assert float(value("symbolic_score")) == pytest.approx(row["symbolic_score"], abs=6e-5)
    assert value("head_class") == row["head_class"]
    assert value("swapped_mass") == f"{row['swapped_mass']:.0%}".replace("%", " %")
    assert float(value("effective_swaps")) == pytest.approx(row["effective_swaps"], abs=6e-3)
    known = profile.known_heads.set_index(["layer", "head"]).loc[(row["layer"], row["head"])]
    assert float(value("induction")) == pytest.approx(known["induction"], abs=6e-3)
    assert page.locator("#side .next code").count() == 0  # of a model in memory nothing can be typed
    below = (profile.nulls_at(1e-4)["positional_score"] < round(row["positional_score"], 4)).mean()
    words = (
        "all"
        if below == 1
        else "none"
        if below == 0
        else f"{int(100 * below)} %"
        if below >= 0.01
        else "under 1 %"
    )
    assert page.inner_text('[data-null="positional_score"]') == f"above {words} of their heads"
    plot = '#side [aria-label^="Positional and symbolic score of every frequency"]'
    drawn = page.evaluate(f"document.querySelector('{plot}').data.map((trace) => [trace.name, trace.y])")
    planes = profile.frequencies.set_index(["tau", "layer", "head"]).loc[(1e-4, row["layer"], row["head"])]
    bars = page.evaluate(
        f"document.querySelector('{plot}').data.find((t) => t.name == 'symbolic').error_y.array"
    )
    reach = planes["symbolic_score_high"] - planes["symbolic_score"]
    assert bars == pytest.approx(reach.tolist(), abs=1e-4)
    low, high = (row[f"renormalised_positional_score_{end}"] for end in ("low", "high"))
    assert f"[{low:.3f}, {high:.3f}]" in value("renormalised_scores")
    assert dict(drawn)["symbolic"] == pytest.approx(planes["symbolic_score"].tolist(), abs=1e-4)
    assert page.evaluate("document.querySelectorAll('#panel .plot')[0].layout.shapes.length") == 5


def test_every_band_of_the_summary_is_named_after_its_null(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"null": "both", "null_draws": 2, "examples": False, "show_progress": False}
    run = rs.profile(tiny("llama"), tokens=tokens(3, 12), **how)
    table = run.statistics()
    table["null_name"] = np.resize(["gaussian", "random"], len(table))
    monkeypatch.setattr(Profile, "statistics", lambda *_: table)
    page = visit(run).page
    shown = page.eval_on_selector_all("[data-beside]", "all => all.map((one) => one.textContent)")
    assert shown == [f" (grey: {name})" for name in table["null_name"]]
    assert "further draws of the null named beside it" in page.inner_text("body")


def test_how_much_is_little_at_stake_is_said_as_a_plain_number(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile).page
    assert (
        " ".join(page.inner_text("#fade").split()) == "faded, and in brackets: under 5 % of attention at stake"
    )


def test_keyboard(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile).page
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    for written in ("0.3", "L2H1", " l1 h2 ", "1:2"):
        page.fill("#search", written)
        page.keyboard.press("Enter")
        first, second = (sign for sign in written if sign.isdigit())
        assert title(page) == f"Head {first}:{second}"
        page.keyboard.press("/")
    page.keyboard.press("Enter")  # from here the arrows walk
    for key, name in (
        ("ArrowRight", "1:3"),
        ("ArrowDown", "0:3"),
        ("ArrowDown", "0:3"),
        ("ArrowRight", "1:0"),
        ("ArrowUp", "2:0"),
        ("ArrowLeft", "1:3"),
    ):
        page.keyboard.press(key)
        assert title(page) == f"Head {name}", key
    page.keyboard.press("Escape")
    assert title(page) is None
    assert "The model in figures" in page.inner_text("#side")
    page.keyboard.press("/")
    page.keyboard.type("99:99")
    page.keyboard.press("Enter")
    assert page.get_attribute("#search", "aria-invalid") == "true"
    assert title(page) is None
    page.focus("#tab-overview")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-tables", "aria-selected") == "true"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_permalink(visit: Visit, profile: rs.Profile) -> None:
    watched = visit(profile, hash="#head=2:1&tau=1e-2&tab=overview")
    page = watched.page
    assert title(page) == "Head 2:1"
    row = profile.at(1e-2).query("layer == 2 and head == 1").iloc[0]
    assert float(page.inner_text('[data-value="positional_score"]')) == pytest.approx(
        row["positional_score"], abs=6e-5
    )
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == "#head=2:2&tau=1e-2&tab=overview"
    page.select_option('select[aria-label="tau"]', label="1e-4")
    assert page.evaluate("location.hash") == "#head=2:2&tau=1e-4&tab=overview"
    page.click("#tab-measured")
    assert page.evaluate("location.hash") == "#head=2:2&tau=1e-4&tab=measured"
    assert "out of the forward pass" in page.inner_text("#panel")
    page.evaluate("location.hash = '#head=0:1&tau=0.01&tab=overview'")
    page.wait_for_selector("text=Head 0:1")
    page.evaluate("location.hash = '#head=<script>&tau=x&tab=nowhere&run=9'")
    page.wait_for_selector("#tab-overview[aria-selected=true]")
    assert title(page) is None


def test_filters_and_counts(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile).page
    heads = profile.at()
    points = "document.querySelectorAll('#panel .plot')[0].data.filter((t) => t.text).reduce((n, t) => n + t.x.length, 0)"
    assert page.evaluate(points) == 12
    page.fill('[aria-label="Last layer shown"]', "1")
    page.keyboard.press("Enter")
    assert page.inner_text("#count") == "8 of 12 heads"
    assert page.evaluate(points) == 8
    page.click('[data-class="mixed"]')
    rest = int(((heads["layer"] <= 1) & (heads["head_class"] != "mixed")).sum())
    assert page.evaluate(points) == rest
    assert page.get_attribute('[data-class="mixed"]', "aria-pressed") == "false"
    page.select_option('select[aria-label="What the map shows"]', "symbolic_score")
    z = page.evaluate("document.querySelectorAll('#panel .plot')[1].data[0].z.flat().filter((v) => v !== null)")
    kept = heads[(heads["layer"] <= 1) & (heads["head_class"] != "mixed")]["symbolic_score"]
    assert sorted(z) == pytest.approx(sorted(kept), abs=6e-5)


def test_pictures_follow_their_place(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile).page
    height = "document.querySelector('#panel .plot')._fullLayout.height"
    before = page.evaluate(height)
    page.click("#notes summary")
    until(page, f"{height} < {before - 10}")
    assert page.evaluate("document.querySelector('#panel figcaption').getBoundingClientRect().bottom") <= 900
    page.set_viewport_size({"width": 1200, "height": 800})
    until(page, "document.querySelector('#panel .plot')._fullLayout.width < 400")


def test_overview_fits_a_laptop_and_a_telephone(visit: Visit, profile: rs.Profile) -> None:
    size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    page = visit(profile).page
    assert page.evaluate(size) == [1440, 900]
    narrow = visit(profile, hash="#head=1:1", size=(390, 844)).page
    for tab in narrow.eval_on_selector_all(".tabs button", "all => all.map((one) => one.id)"):
        narrow.click(f"#{tab}")
        assert narrow.evaluate(size)[0] == 390, tab


def test_compare(visit: Visit, changed: tuple[rs.Profile, rs.Profile]) -> None:
    """Two runs open on Compare: words first, strong arrows for what differs, heads in order of their difference."""
    before, after = changed
    page = visit(before, after).page
    assert page.get_attribute("#tab-compare", "aria-selected") == "true"
    both = before.at().merge(after.at(), on=["layer", "head"], suffixes=("_a", "_b"))
    both["moved"] = np.hypot(*(both[f"{score}_b"] - both[f"{score}_a"] for score in SCORES))
    heads = {f"{r.layer}:{r.head}": r for r in both.itertuples()}
    told = page.inner_text("#differences")
    assert "They differ in least mass: 0.05 → 0.1." in told
    other_class = int((both["head_class_a"] != both["head_class_b"]).sum())
    assert f"{other_class} of 12 heads changed class" in told
    assert "1 of 12 heads differ" in told
    assert "paired over 8 prompts" in told
    rows = page.eval_on_selector_all(
        "#panel tbody tr", "rows => rows.map((row) => [...row.cells].slice(0, 6).map((c) => c.innerText))"
    )
    assert {row[0] for row in rows} == set(heads)
    assert [row[4:] for row in rows] == [
        [heads[row[0]].head_class_a, heads[row[0]].head_class_b] for row in rows
    ]
    moved = [float(row[1]) for row in rows]
    assert moved == pytest.approx([heads[row[0]].moved for row in rows], abs=6e-4)
    assert moved == sorted(moved, reverse=True)
    assert [row[0] for row in rows if row[3] == "yes"] == ["2:1"]
    drawn = page.evaluate(
        """document.querySelector("#panel .plot").data.filter((t) => t.mode === "markers").map((t) => [t.name, t.customdata, t.marker.opacity])"""
    )
    assert [(name, heads) for name, heads, opacity in drawn if opacity > 0.9] == [("1 to positional", ["2:1"])]
    faint = next(heads for name, heads, opacity in drawn if opacity < 0.5)
    assert sorted([*faint, "2:1"]) == sorted(row[0] for row in rows)
    rings = "document.querySelector('#panel .plot').layout.shapes.filter((one) => one.type === 'circle').map((one) => [one.xanchor, one.yanchor])"
    assert page.evaluate(rings) == []
    page.click("#panel tbody tr")
    assert title(page) == "Head 2:1"
    assert page.evaluate(rings) == [[1, 0]]
    page.select_option('select[aria-label="Run"]', "1")
    page.click("#tab-overview")
    assert page.inner_text(".top .what").split(" · ")[1] == "llama"


def test_compare_says_what_it_cannot_say(visit: Visit, profile: rs.Profile, other: rs.Profile) -> None:
    told = visit(profile, other).page.inner_text("#differences")
    assert "paired over 4 prompts; too few to tell any difference from chance" in told
    assert "The models are not the same: heads are matched by layer and number alone." in told
    page = visit(profile, rs.dynamics("number")).page
    assert page.get_attribute("#tab-compare", "aria-selected") == "true"
    assert "Not both runs have heads, so only their settings are compared." in page.inner_text("#differences")
    page.click("#differences summary")
    assert "kind: profile → dynamics" in page.inner_text("#differences")


def test_dark_and_light(visit: Visit, profile: rs.Profile) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#panel .plot')._fullLayout.font.color"
    dark = visit(profile, color_scheme="dark").page
    assert dark.evaluate(paper) == "rgb(20, 23, 27)"
    assert dark.evaluate(ink) == "#e8eaed"
    dark.click("#theme")
    assert dark.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.evaluate(ink) == "#1b1f24"


def test_other_tabs(visit: Visit, tmp_path: Path) -> None:
    run = rs.dynamics("number")
    page = visit(run).page
    assert page.eval_on_selector_all(".tabs button", "all => all.map((one) => one.innerText)")[0] == "Training"
    page.focus('[aria-label="Training step"]')
    page.keyboard.press("Home")
    assert page.inner_text("output") == "step 0"
    first = run.at()[lambda t: t["step"] == 0]
    shown = page.evaluate(
        "document.querySelector('#panel .plot').data.filter((t) => t.mode.includes('markers')).flatMap((t) => t.x)"
    )
    assert sorted(shown) == pytest.approx(sorted(first["positional_score"]), abs=6e-5)
    page.keyboard.press("ArrowRight")
    assert page.inner_text("output") == "step 50"
    assert "step=50" in page.evaluate("location.hash")
    page.click("#tab-measured")
    assert "Citing" in page.inner_text("#panel")
    assert "settings" in page.inner_text("#panel").lower()


def test_downloads(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile, accept_downloads=True).page

    def downloaded(button: str) -> bytes:
        with page.expect_download() as coming:
            page.click(f"#panel figcaption button:has-text('{button}')")
        return Path(coming.value.path()).read_bytes()

    rows = list(csv.DictReader(io.StringIO(downloaded("CSV").decode())))
    scores = [float(row["symbolic_score"]) for row in rows]
    assert scores == pytest.approx(profile.at()["symbolic_score"].tolist(), abs=6e-5)
    assert [row["head_class"] for row in rows] == profile.at()["head_class"].tolist()
    assert downloaded("SVG").startswith(b"<svg")
    assert downloaded("PNG").startswith(b"\x89PNG")


def test_names_show_as_text(visit: Visit, profile: rs.Profile) -> None:
    settings = {**profile.run.settings, EVIL: EVIL}
    changed = replace(profile.run, subject=SubjectRecord(EVIL), warnings=[EVIL], settings=settings)
    page = visit(Profile(changed, profile.tables)).page
    assert page.inner_text("h1").startswith("Heads of </script><script>alert('1')</script>")
    page.click("#tab-measured")
    assert "<img src=x onerror=alert(2)> 🎲" in page.inner_text("#panel")
    assert page.query_selector("img") is None


def test_a_live_page_renews_itself(browser: Any, profile: rs.Profile, other: rs.Profile) -> None:
    payloads = {"now": [{**run_payload(profile), "complete": False}]}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            import json

            live = self.path == "/payload"
            text = json.dumps(payloads["now"]) if live else render_page(payloads["now"], live="/payload")
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if live else "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}"
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watched = Watched(context.new_page())
    try:
        watched.page.goto(f"{home}/#head=1:1")
        watched.page.wait_for_selector("#card-title")
        watched.page.evaluate("document.getElementById('card-title').dataset.old = 'yes'")
        for _ in range(2):  # when it is asked again, it has dealt with the answer before
            watched.page.wait_for_event("response", lambda response: response.url.endswith("/payload"))
        assert watched.page.query_selector("[data-old]"), "nothing changed, so nothing is drawn again"
        payloads["now"] = [run_payload(other)]
        watched.page.wait_for_selector("#card-title:not([data-old])", timeout=5000)
        row = other.at().query("layer == 1 and head == 1").iloc[0]
        assert float(watched.page.inner_text('[data-value="symbolic_score"]')) == pytest.approx(
            row["symbolic_score"], abs=6e-5
        )
    finally:
        context.close()
        server.shutdown()
        server.server_close()
    assert not watched.errors
    assert all(url.startswith((home, "data:", "blob:")) for url in watched.requests)


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine")
def test_a_large_model_loads_and_answers_fast() -> None:
    found = benchmark.measured(benchmark.synthetic())
    assert found.megabytes <= benchmark.MOST_MEGABYTES
    assert found.load <= benchmark.MOST_LOAD
    assert found.click <= benchmark.MOST_CLICK


@pytest.mark.slow
def test_the_file_is_enough(browser: Any, profile: rs.Profile, tmp_path: Path) -> None:
    """Offline, under a name with spaces and signs, with nothing beside it."""
    file = write_report(tmp_path / "a b #1 é.html", profile)
    context = browser.new_context(offline=True)
    watched = Watched(context.new_page())
    watched.page.goto(file.as_uri())
    watched.page.wait_for_selector("#panel .plot .scatterlayer path")
    context.close()
    assert not watched.errors
    assert not watched.outside


def test_the_ledger_has_a_tab(visit: Visit, tmp_path: Path) -> None:
    from rotoscope.ledger.judge import reproduce

    ledger = reproduce("p2-number-order", out=tmp_path / "ledger", device="cpu")
    page = visit(ledger).page
    assert page.inner_text("h1") == "The ledger of both papers"
    assert page.inner_text("[role=tab][aria-selected=true]") == "Ledger"
    assert f"1 {ledger.rows['verdict'][0]}" in page.inner_text(".chip")
    assert ledger.rows["our_value"][0] in page.inner_text("#panel table")
    row = page.locator("#panel tbody tr").first
    assert ledger.rows["command"][0] not in page.inner_text("#panel table")
    row.click()
    assert ledger.rows["command"][0] in page.inner_text("#panel tr.more")
    row.press("Enter")
    assert page.locator("#panel tr.more").count() == 0


def test_the_page_in_a_notebooks_frame(browser: Any, profile: rs.Profile, tmp_path: Path) -> None:
    html = profile.show()._repr_html_()
    assert len(html) < 3_000_000
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{html}", encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    watched = Watched(page)
    page.goto((tmp_path / "notebook.html").as_uri())
    page.frame_locator("iframe").locator("#panel .plot").first.wait_for()
    assert not watched.errors
    assert not watched.outside
    page.close()
