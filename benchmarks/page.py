"""The report of a large model in a real browser: its size, how long it loads and how fast it answers a click."""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measure import Report
from rotoscope.experiments.profile.result import Profile
from rotoscope.report.page import write_report
from rotoscope.runs.record import RunRecord, SubjectRecord

LAYERS, HEADS, PLANES, PROMPTS = 80, 64, 64, 2
MOST_MEGABYTES, MOST_LOAD, MOST_CLICK = 10.0, 3.0, 0.3
FACTS, FACT, AROUND = 32, 6, 20
"""Facts in the prompt, tokens in a fact, and tokens before and after all of them."""


@dataclass(frozen=True)
class Found:
    megabytes: float
    load: float
    click: float
    """The slowest of a few clicks, until the card shows the head and its pictures are drawn."""


def synthetic(
    layers: int = LAYERS, heads: int = HEADS, planes: int = PLANES, prompts: int = PROMPTS, seed: int = 0
) -> Profile:
    """A profile of random numbers, as large as that of a large model."""
    dice = np.random.default_rng(seed)
    settings = {"model": "synthetic", "task": "none", "tau": [1e-4], "gamma": 0.1}
    run = RunRecord("profile", settings, subject=SubjectRecord("synthetic"))
    tables = {
        "prompts": _scores(dice, layers, heads, prompts),
        "prompt_frequencies": _frequencies(dice, layers, heads, planes, prompts),
        "null_prompts": _of_null(_scores(dice, layers, heads, prompts)),
        "null_prompt_frequencies": _of_null(_frequencies(dice, layers, heads, planes, 1)),
        "shown_prompt": _prompt(),
        "attention": _attention(dice, layers, heads, planes),
    }
    return Profile(run, tables)


def _prompt() -> pd.DataFrame:
    n = FACTS * FACT + 2 * AROUND
    block = np.full(n, -1)
    block[AROUND:-AROUND] = np.repeat(np.arange(FACTS), FACT)
    words = [f" word{p}" for p in range(n)]
    return pd.DataFrame(
        {
            "position": np.arange(n),
            "token": words,
            "block": block,
            "is_asked": block == 3,
            "is_query": np.arange(n) == n - 1,
        }
    )


def _attention(dice: np.random.Generator, layers: int, heads: int, planes: int) -> pd.DataFrame:
    """All swaps of every head, in an order of its own."""
    n, pairs = FACTS * FACT + 2 * AROUND, np.array(list(itertools.combinations(range(FACTS), 2)))
    rows = []
    for layer, head in itertools.product(range(layers), range(heads)):
        order = dice.permutation(len(pairs))
        keys = dice.normal(size=(2, FACTS * FACT))
        rows.append(
            {
                "layer": layer,
                "head": head,
                "attention": dice.dirichlet(np.full(n, 0.1)),
                "first": pairs[order, 0],
                "second": pairs[order, 1],
                "attention_swapped": dice.dirichlet(np.full(n, 0.1)),
                "sink": 0.0,
                "moved": dice.integers(0, 60, size=len(pairs) * 2 * FACT, dtype=np.uint8),
                "frequency_id": int(dice.integers(1, planes + 1)),
                "angle": 0.1,
                "query_re": 1.0,
                "query_im": 0.5,
                "key_re": keys[0],
                "key_im": keys[1],
            }
        )
    return pd.DataFrame(rows)


def _of_null(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(null_name="random", draw=0)


def _index(**sizes: int) -> pd.DataFrame:
    grids = np.meshgrid(*(np.arange(size) for size in sizes.values()), indexing="ij")
    return pd.DataFrame({name: grid.ravel() for name, grid in zip(sizes, grids, strict=True)})


def _scores(dice: np.random.Generator, layers: int, heads: int, prompts: int) -> pd.DataFrame:
    table = _index(prompt=prompts, layer=layers, head=heads).assign(tau=1e-4)
    lean = dice.beta(0.4, 0.4, size=(layers, heads))[table["layer"], table["head"]]
    noise = dice.normal(0, 0.02, size=(2, len(table)))
    return table.assign(
        positional_score=np.clip(lean + noise[0], 0, 1),
        symbolic_score=np.clip(1 - lean + noise[1], 0, 1),
        entropy=dice.uniform(0, 4, len(table)),
        relative_entropy=dice.uniform(0, 1, len(table)),
        swapped_mass=dice.uniform(0, 1, len(table)),
        effective_swaps=dice.uniform(1, 40, len(table)),
    )


def _frequencies(dice: np.random.Generator, layers: int, heads: int, planes: int, prompts: int) -> pd.DataFrame:
    table = _index(prompt=prompts, layer=layers, head=heads, frequency_id=planes).assign(tau=1e-4)
    table["frequency_id"] += 1
    size = len(table)
    return table.assign(
        angle=10_000.0 ** (-(table["frequency_id"] - 1) / planes),
        positional_score=dice.uniform(0, 1, size),
        symbolic_score=dice.uniform(0, 1, size),
        effective_swaps=dice.uniform(1, 40, size),
        entropy=dice.uniform(0, 4, size),
        logit_norm=dice.gamma(2, 2, size),
        max_logit=dice.normal(0, 1, size),
    )


def measured(profile: Profile, clicks: int = 5) -> Found:
    """Write the report, open it from its file, click on heads in the plane."""
    from playwright.sync_api import sync_playwright

    from tests.report.browser import SETTINGS, chromium

    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        file = write_report(Path(place) / "report.html", profile)
        browser = play.chromium.launch(executable_path=chromium(), **SETTINGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        began = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("#panel .plot .heatmaplayer image, #panel .plot .heatmaplayer path")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
        load = time.perf_counter() - began
        slowest = max(page.evaluate(CLICK, k) for k in range(clicks))
        browser.close()
        return Found(file.stat().st_size / 1e6, load, slowest / 1000)


CLICK = """(k) => new Promise((done) => {
  const plot = document.querySelectorAll("#panel .plot")[1];
  const axes = plot._fullLayout, box = plot.getBoundingClientRect();
  const x = box.left + axes.xaxis._offset + axes.xaxis.l2p(3 + k), y = box.top + axes.yaxis._offset + axes.yaxis.l2p(10 + 7 * k);
  const target = plot.querySelector(".nsewdrag");
  const send = (type) => target.dispatchEvent(new MouseEvent(type, { bubbles: true, clientX: x, clientY: y, view: window }));
  send("mousemove");
  setTimeout(() => {
    const began = performance.now();
    send("mousedown"); send("mouseup"); send("click");
    const wait = () => {
      const title = document.getElementById("card-title");
      if (title && title.textContent === `Head ${10 + 7 * k}:${3 + k}` && document.querySelector("#side .plot .barlayer path")) {
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
      } else if (performance.now() - began > 5000) done(1e6);
      else setTimeout(wait, 1);
    };
    wait();
  }, 150);
})"""


def main() -> None:
    found = measured(synthetic())
    report = Report(f"Report of {LAYERS} layers x {HEADS} heads x {PLANES} frequencies", "what", "measured")
    for what, value, unit, most in (
        ("size", found.megabytes, "MB", MOST_MEGABYTES),
        ("loading", found.load, "s", MOST_LOAD),
        ("slowest click", found.click, "s", MOST_CLICK),
    ):
        report.row(what, f"{value:.2f} {unit}", target=f"at most {most:g} {unit}", met=value <= most)
    report.show()
