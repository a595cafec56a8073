"""Five questions that people have, each answered from the page alone within three interactions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.cli import app
from rotoscope.experiments.profile.examples import after_swap
from rotoscope.report.page import write_report
from rotoscope.report.site import write_site
from tests.report.browser import Watched


class Reader:
    """Somebody before a page, who may act three times."""

    def __init__(self, page: Any) -> None:
        self.page, self.acted = page, 0

    def act(self, what: str, *words: str) -> None:
        self.acted += 1
        assert self.acted <= 3, "that takes too many interactions"
        getattr(self.page, what)(*words)

    def reads(self, where: str) -> str:
        return str(self.page.inner_text(where))


@pytest.fixture
def reader(browser: Any, profile: rs.Profile, written: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    watched = Watched(context.new_page())

    def before(file: Path) -> Reader:
        watched.page.goto(file.as_uri())
        watched.page.wait_for_selector(".tabs [aria-selected=true], #rows")
        return Reader(watched.page)

    yield before
    context.close()
    assert not watched.errors
    assert not watched.outside


def test_which_heads_follow(reader: Any, written: Path, profile: rs.Profile) -> None:
    page = reader(written)
    heads = profile.at().query("head_class == 'symbolic'")
    names = {f"{row.layer}:{row.head}" for row in heads.itertuples()}
    assert names
    assert "follows the token at its layer" in page.reads("#which")
    assert set(page.page.locator('#which dd[data-class="symbolic"] button').all_inner_texts()) == names
    assert page.acted == 0


def test_what_did_head_x_look_at(reader: Any, written: Path, profile: rs.Profile) -> None:
    page, head = reader(written), next(profile.attention[profile.attention["layer"] == 1].itertuples())
    page.act("fill", "#search", f"L1H{head.head}")
    page.act("press", "#search", "Enter")
    seen = max((int(head.first[0]), int(head.second[0])), key=lambda block: head.attention[block])
    token = profile.shown_prompt["token"].iloc[seen]
    told = page.reads("#told")
    gets = re.match(rf"“{re.escape(token)}” gets ([\d.]+) % of the attention", told)
    assert gets
    assert float(gets[1]) == pytest.approx(100 * head.attention[seen], abs=0.6)
    left = re.search(r"its old place gets ([\d.]+) %", told)
    assert left
    assert float(left[1]) == pytest.approx(100 * after_swap(profile.shown_prompt, head)[seen], abs=0.6)


def test_is_that_more_than_chance(reader: Any, written: Path, profile: rs.Profile) -> None:
    """Of the model in its figures, of a head on its card."""
    page, figures = reader(written), profile.statistics()
    for row in figures.itertuples():
        shown = page.page.locator(
            f'table[aria-label="Summary figures"] tr:has(abbr:text-is("{row.statistic}"))'
        )
        assert row.verdict in shown.inner_text()
    page.act("click", '#which dd[data-class="symbolic"] button >> nth=0')
    assert re.fullmatch(
        r"above (all|none|under 1 %|\d+ %) of their heads", page.reads('[data-null="symbolic_score"]')
    )


def test_how_do_two_runs_differ(reader: Any, changed: tuple[rs.Profile, rs.Profile], tmp_path: Path) -> None:
    for name, run in zip(("before", "after"), changed, strict=True):
        run.save(tmp_path / "runs" / name)
    page = reader(write_site(tmp_path / "runs", site=tmp_path / "site") / "index.html")
    page.act("check", 'input[aria-label="compare before"]')
    page.act("check", 'input[aria-label="compare after"]')
    page.act("click", "#go")
    page.page.wait_for_selector("#differences")
    told = page.reads("#differences")
    assert "A before" in told
    assert re.search(r"1 of 12 heads? differs? in a score", told)
    assert page.reads("#panel tbody tr:first-child td:first-child") == "2:1"  # the head that was changed


def test_what_should_i_run_next(reader: Any, typed: rs.Profile, tmp_path: Path) -> None:
    page = reader(write_report(tmp_path / "typed.html", typed))
    commands = page.page.locator("#next code").all_inner_texts()
    assert commands
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "rotoscope"
        app().parse_args(words, print_error=False, exit_on_error=False)
    assert page.acted == 0


def test_a_model_that_learned_nothing_is_not_said_to_be_more(reader: Any, tmp_path: Path) -> None:
    """The same page of random weights beside their own null: no figure is called beyond it."""
    from tests.tiny_models import tiny, tokens

    random = rs.profile(tiny("llama", seed=7), tokens=tokens(4, 16), null="random", null_draws=5)
    page = reader(write_report(tmp_path / "random.html", random))
    assert "beyond the null" not in page.reads('table[aria-label="Summary figures"]')
