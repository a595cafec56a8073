"""The training tab: what a page is given of a training, and what is seen of it, also while it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.report.page import page_run, run_payload
from rotoscope.report.run_index import RECENT_S, find_runs, how_far, is_recent, so_far
from rotoscope.runs.run import Run
from tests.monitored import SETTINGS, monitored, point
from tests.report.browser import Watched, until
from tests.report.test_payload import strict, unpacked
from tests.report.test_real_server import Server

Visit = Callable[..., Watched]
OVER = "document.querySelectorAll('#panel .plot')[1]"
WHERE = """([y, name]) => {
  const plot = document.querySelectorAll("#panel .plot")[1], box = plot.getBoundingClientRect(), axes = plot._fullLayout;
  const trace = plot.data.find((one) => (one.customdata || []).includes(name) && one.yaxis === y), i = trace.customdata.indexOf(name);
  const axis = axes["yaxis" + y.slice(1)];
  return [box.left + axes.xaxis._offset + axes.xaxis.d2p(trace.x[i]), box.top + axis._offset + axis.d2p(trace.y[i])];
}"""


def tab_of(run: Any) -> dict[str, Any]:
    return strict(run_payload(run))["tabs"]["training"]


def test_pure_heads_and_the_null_are_those_of_the_run() -> None:
    run = monitored([0, 300, 600, 900], draws=19)
    (series,) = tab_of(run)["series"]
    pure = run.pure_from()
    assert series["first_pure"] == [None if pd.isna(step) else step for step in pure["first_pure"]]
    assert series["pure_since"] == [None if pd.isna(step) else step for step in pure["pure_since"]]
    assert sum(step is not None for step in series["first_pure"]) == 4
    found = run.separation()
    for name, values in series["separated"].items():
        np.testing.assert_allclose(values, found[name], atol=6e-5)
    assert "separation_null_high" in series["separated"]
    assert "separation_null_high" not in tab_of(monitored([0, 300], draws=18))["series"][0]["separated"]


def test_a_language_model_stays_small() -> None:
    run = monitored([*range(0, 2_000, 100)], 30, 9)
    payload = strict(run_payload(run))
    assert len(json.dumps(payload["tabs"]["training"])) < 12 * 20 * 270
    (series,) = payload["tabs"]["training"]["series"]
    scores = unpacked(series["symbolic_score"]).reshape(20, 270)
    last = run.at()[lambda rows: rows["step"] == 1_900]
    np.testing.assert_allclose(scores[-1], last["symbolic_score"], atol=2e-5)


def test_how_far_a_run_is_and_what_it_says(tmp_path: Path) -> None:
    run = Run(Dynamics, SETTINGS, tmp_path / "run")
    run.add("step-00000300", point(300, 0.5))
    folder = run.folder
    assert folder is not None
    assert how_far(folder, SETTINGS) == ("1 part finished", None)
    assert how_far(folder, {"steps": [100, 200, 300, 400]}) == ("1 of 4 steps finished", 0.25)
    log = {"step": 300, "accuracy": {"0": 0.5}, "loss": None, "classes": {"positional": 3, "mixed": 3}}
    run.log(log)
    assert (
        so_far(folder, SETTINGS) == "step 300 of 900; accuracy on the prompts 0.5; heads: 3 positional, 3 mixed"
    )
    for steps, words, share in (
        ([100, 300, 1200], "step 300 of 1200", 0.25),
        (None, "step 300 of ?", None),
        ([], "step 300 of ?", None),
        (["step300", True], "step 300 of ?", None),
    ):
        assert how_far(folder, {"steps": steps}) == (words, share)
    run.log(log | {"of": 600})
    assert how_far(folder, {}) == ("step 300 of 600", 0.5)


def test_the_list_counts_heads_while_a_run_grows_and_afterwards(tmp_path: Path) -> None:
    run = Run(Dynamics, SETTINGS, tmp_path / "run")
    for step, grown in ((0, 0.0), (300, 1.0)):
        run.add(f"step-{step:08d}", point(step, grown))
    odd = {"positional": 2, "mixed": 4, "uniform": -1, "carried": True, "<b>": 3}
    run.log({"step": 300, "classes": odd})
    going, done = find_runs(tmp_path)[0], (run.finish(), find_runs(tmp_path)[0])[1]
    assert [(one.state, one.classes) for one in (*going, *done)] == [
        ("running", {"positional": 2, "mixed": 4}),
        ("finished", {"positional": 2, "symbolic": 2, "mixed": 2}),
    ]
    assert done[0].accuracy == pytest.approx(0.9)


def test_a_slow_training_is_given_time(tmp_path: Path) -> None:
    """An hour between two points: after another hour it may still be going on, after four it is not."""
    run = Run(Dynamics, SETTINGS, tmp_path / "run")
    for step in (0, 300):
        run.add(f"step-{step:08d}", point(step, 0.0))
    assert run.folder is not None
    now = max(file.stat().st_mtime for file in run.folder.rglob("*"))

    def aged(hours: float) -> bool:
        for file in [run.folder, *run.folder.rglob("*")]:
            earlier = 3600 if "step-00000000" in file.name else 0
            os.utime(file, (now - 3600 * hours - earlier,) * 2)
        return is_recent(run.folder)

    assert RECENT_S < 3600
    assert [aged(hours) for hours in (0, 1, 4)] == [True, True, False]


def test_finished_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces are gone when they are to be read: the tables are there instead."""
    run = Run(Dynamics, SETTINGS, tmp_path / "run")
    run.add("step-00000300", point(300, 0.5))
    from rotoscope.report import page as module

    real = module.unfinished_tables
    monkeypatch.setattr(module, "unfinished_tables", lambda *given: (run.finish(), real(*given))[1])
    found = page_run(tmp_path / "run")
    assert found.complete
    assert len(found.tables["scores"]) == 6
    assert found.problems == []


def test_two_trainings_side_by_side() -> None:
    from rotoscope.report.page import payloads_of, side_of

    first, second = monitored([0, 300], 2, 3), monitored([0, 300, 600], 3, 3)
    first.tables["scores"] = first.scores[first.scores["step"] == 0]
    told = payloads_of([side_of(first), side_of(second)])[1]["comparison"]
    (at,) = told["at"]
    assert (at["first"]["step"], at["second"]["step"]) == (0, 600)
    assert at["words"] == ["4 of 6 heads end in another class.", "3 heads are in one of the runs only."]
    assert "no difference is tested" in told["words"][0]
    last = second.at()[lambda rows: (rows["step"] == 600) & (rows["layer"] < 2)]
    np.testing.assert_allclose(at["second"]["symbolic_score"], last["symbolic_score"], atol=6e-5)
    assert "differs" not in at


def test_two_trainings_on_one_page(visit: Visit) -> None:
    page = visit(rs.dynamics("number"), rs.dynamics("letter")).page
    assert page.get_attribute("#tab-compare", "aria-selected") == "true"
    told = page.inner_text("#differences")
    assert "8 of 12 heads end in another class." in told
    assert "A at step 22500, B at step 22500." in told
    assert page.locator("#panel tbody tr").count() == 12
    assert "differs" not in page.inner_text("#panel thead")
    page.locator("#panel tbody tr", has_text="4:0").click()
    assert "head=4:0" in page.evaluate("location.hash")


def test_marks_lead_to_their_head_and_step(visit: Visit) -> None:
    run = monitored([0, 300, 600, 900], draws=19)
    page = visit(run).page
    assert page.inner_text("output") == "step 900"
    names = page.evaluate(f"{OVER}.data.filter((one) => one.showlegend !== false).map((one) => one.name)")
    assert names == [
        "accuracy on the prompts",
        "least to most of the null's draws (no verdict)",
        "mean |positional − symbolic|",
    ]
    stacked = page.evaluate(f"{OVER}.data.filter((one) => one.stackgroup).map((one) => [one.name, one.y])")
    counts = run.purity((0.1,))
    assert stacked == [[name, counts[name].tolist()] for name in ("positional", "symbolic", "uniform", "mixed")]
    first = run.pure_from().set_index(["layer", "head"])["first_pure"]
    x, y = page.evaluate(WHERE, ["y3", "1:1"])
    page.mouse.move(x - 2, y - 2)
    page.mouse.move(x, y)
    until(page, f"{OVER}._hoverdata?.length")
    told = page.evaluate(f"{OVER}.querySelector('.hoverlayer').textContent")
    assert told.startswith(f"1:1 symbolic: first pure at step {first[1, 1]}")
    page.mouse.click(x, y)
    until(page, "location.hash.includes('head=1:1')")
    assert page.inner_text("output") == f"step {first[1, 1]}"
    assert page.evaluate(f"{OVER}.layout.yaxis4.title.text") == "head 1:1"
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('head')")
    assert page.evaluate(f"{OVER}.layout.yaxis4 === undefined")


def test_trainings_of_one_step_without_accuracy_and_on_a_logarithmic_axis(visit: Visit) -> None:
    runs = monitored([500]), monitored([0, 1, 2, 4, 8, 16, 32, 64], accuracy=False)
    page = visit(*runs, hash="#run=1&tab=training").page
    above = f"{OVER}.layout.yaxis.title.text"
    assert (page.inner_text("output"), page.evaluate(above)) == ("step 500", "accuracy, separation")
    assert page.evaluate(f"{OVER}.data.filter((one) => one.type === 'bar').map((one) => one.y)") == [
        [0],
        [0],
        [0],
        [6],
    ]
    page.select_option('select[aria-label="Run"]', "1")
    until(page, f"{OVER}?.layout?.xaxis.type === 'log'")
    assert (page.inner_text("output"), page.evaluate(above)) == ("step 64", "separation")
    page.select_option('select[aria-label="steps"]', label="linear")
    until(page, f"{OVER}.layout.xaxis.type === 'linear'")


@pytest.mark.slow
def test_a_language_model_of_270_heads_at_100_steps(visit: Visit) -> None:
    run = monitored([*range(0, 50_000, 500)], 30, 9)
    page = visit(run).page
    marks = page.evaluate(
        f"{OVER}.data.filter((one) => one.yaxis === 'y3').flatMap((one) => one.customdata || [])"
    )
    assert len(marks) == run.pure_from()["first_pure"].notna().sum()
    page.fill("#search", "29:8")
    page.keyboard.press("Enter")
    assert page.evaluate(f"{OVER}.layout.yaxis4.title.text") == "head 29:8"


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[Run[Dynamics], Server]]:
    """A run that has just begun, and a server in a process of its own that shows it."""
    run = Run(Dynamics, SETTINGS, tmp_path / "runs" / "growing")
    run.begin()
    server = Server(tmp_path / "runs")
    yield run, server
    server.process.kill()
    server.process.communicate()


def grow(run: Run[Dynamics], step: int) -> None:
    run.add(f"step-{step:08d}", point(step, min(step / 200, 1)))
    run.log({"step": step, "accuracy": {"0": 0.5}, "loss": None, "classes": {"mixed": 6}})


def test_a_run_is_seen_to_grow(browser: Any, growing: tuple[Run[Dynamics], Server]) -> None:
    """Followed at the end, left alone elsewhere; head, zoom and place stay, half-written pieces do not matter."""
    run, server = growing
    assert run.folder is not None
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watched = Watched(context.new_page())
    page = watched.page
    page.goto(server.url)
    page.get_by_role("link", name="growing").click()
    page.wait_for_selector("#tab-measured[aria-selected=true]")  # there is nothing else yet
    grow(run, 0)
    grow(run, 100)
    page.wait_for_selector("#tab-training[aria-selected=true]")
    until(page, "document.querySelector('output').textContent === 'step 100'")
    (listed,) = json.loads(server.get("/runs")[1])["runs"]
    assert (listed["state"], listed["progress"], listed["share"]) == ("running", "step 100 of 900", 100 / 900)
    page.fill("#search", "L1H2")
    page.keyboard.press("Enter")
    page.mouse.move(300, 400)  # a part of the plane is made large
    page.mouse.down()
    page.mouse.move(450, 550, steps=4)
    page.mouse.up()
    zoom = "document.querySelector('#panel .plot')._fullLayout.xaxis.range.join()"
    until(page, f"{zoom} !== '-0.05,1.2'")
    zoomed = page.evaluate(zoom)

    pieces = next((run.folder / "pieces").iterdir())
    (pieces / "step-00000150.scores.parquet").write_bytes(b"PAR1 half")
    (pieces / "step-00000160.done.json").write_text('{"tables": {"scores": "0000"}}')
    (pieces / "step-00000170.done.json").write_text('{"tab')
    grow(run, 200)
    until(page, "document.querySelector('output').textContent === 'step 200'")
    assert "step 200 of 900" in page.inner_text("#notes")
    assert page.evaluate(zoom) == zoomed
    assert "head=1:2" in page.evaluate("location.hash")
    assert page.evaluate(f"{OVER}.layout.yaxis4.title.text") == "head 1:2"

    page.focus("#step")
    page.keyboard.press("Home")
    grow(run, 300)
    until(page, "document.getElementById('step').max === '3'")
    assert page.inner_text("output") == "step 0"
    assert page.evaluate("document.activeElement.id") == "step"
    run.finish()
    until(page, "!document.querySelector('.top .what').textContent.includes('running')")
    assert page.inner_text("output") == "step 0"
    assert page.evaluate(zoom) == zoomed
    assert page.get_attribute("#tab-training", "aria-selected") == "true"
    context.close()
    assert watched.errors == []
