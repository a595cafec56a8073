"""The prompt, the swap, pins and notes, large panels: in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.experiments.profile.examples import after_swap, blocks_shown
from rotoscope.report.page import run_payload, write_report
from tests.report.browser import Watched, until
from tests.report.test_browser import title
from tests.tiny_models import tiny, tokens

Visit = Callable[..., Watched]
HEATS = """(which) => [...document.querySelectorAll('#prompt .tokens')][which] ? [...[...document.querySelectorAll('#prompt .tokens')][which]
  .querySelectorAll('.token')].map((one) => Number(/([0-9.]+)%/.exec(one.style.backgroundColor)?.[1] || 0)) : []"""


def texts(page: Any, which: int) -> list[str]:
    return page.locator("#prompt .tokens").nth(which).locator(".token").all_inner_texts()


def heat(shares: np.ndarray, top: float) -> np.ndarray:
    return 100 * np.sqrt(np.clip(shares / top, 0, 1))


def test_every_head_shows_its_attention_before_and_after_a_swap(visit: Visit, profile: rs.Profile) -> None:
    """Every one, not only telling ones; the swap that weighs most first, any other when chosen."""
    page, prompt = visit(profile).page, profile.shown_prompt
    assert "Choose a head" in page.inner_text("#told")
    assert texts(page, 0) == prompt["token"].tolist()
    assert page.locator("#prompt .query").inner_text() == prompt["token"].iloc[-1]
    for head in list(profile.attention.itertuples())[:: len(profile.attention) - 1]:
        page.fill("#search", f"{head.layer}:{head.head}")
        page.keyboard.press("Enter")
        for swap in (0, 7):
            page.select_option("#swap", str(swap))
            before, after = np.asarray(head.attention), after_swap(prompt, head, swap)
            top = max(before.max(), after.max())
            for which, shares in ((0, before), (1, after)):
                np.testing.assert_allclose(page.evaluate(HEATS, which), heat(shares, top), atol=2.5)
            first, second = int(head.first[swap]), int(head.second[swap])
            order = blocks_shown(prompt).exchange(first, second, len(prompt))
            assert texts(page, 1) == prompt["token"].iloc[order].tolist()
            drawn = page.evaluate(
                """[...document.querySelectorAll("#side .plot")].find((p) => p.getAttribute("aria-label").startsWith("Attention")).data.map((t) => t.y)"""
            )
            np.testing.assert_allclose(drawn, [before, after], atol=0.005)
        assert page.locator('#side [aria-label^="Query and keys of head"]').count() == 1
    boxes = page.locator("#prompt .tokens").first.locator(".block")
    first, second = sorted((int(head.first[5]), int(head.second[5])))
    boxes.nth(first).click()
    boxes.nth(second).click()
    assert page.inner_text("#prompt h2").startswith("What head 2:3")
    chosen = page.evaluate("document.querySelector('#swap').selectedOptions[0].text")
    assert re.findall(r"(\d+) “", chosen) == [str(first), str(second)]


def test_heads_that_look_at_hardly_anything_else(visit: Visit) -> None:
    """Nearly all attention on what is swapped, and after it elsewhere: what a byte cannot tell is written out."""
    sharp = rs.profile(tiny("llama", sharp=40.0), tokens=tokens(1, 14), null="none")
    kept = run_payload(sharp)["tabs"]["overview"]["shown"]["sharp"]
    assert kept
    page = visit(sharp).page
    for row in list(kept)[:3]:
        head = sharp.attention.iloc[row]
        page.fill("#search", f"{head['layer']}:{head['head']}")
        page.keyboard.press("Enter")
        top = max(head["attention"].max(), head["attention_swapped"].max())
        np.testing.assert_allclose(page.evaluate(HEATS, 1), heat(head["attention_swapped"], top), atol=2.5)


def test_what_a_swap_did_is_said_in_words(visit: Visit, profile: rs.Profile) -> None:
    prompt = profile.shown_prompt
    page = visit(profile).page
    said = set()
    for head in profile.attention.itertuples():
        page.fill("#search", f"{head.layer}:{head.head}")
        page.keyboard.press("Enter")
        before, after = np.asarray(head.attention), after_swap(prompt, head)
        pair = [int(head.first[0]), int(head.second[0])]
        seen, unseen = sorted(pair, key=lambda block: -before[block])
        follows, stays = (
            after[unseen],
            after[seen],
        )  # every token is a block: the content now stands in the other slot
        verdict = page.inner_text("#told-verdict")
        said.add(verdict)
        if before[seen] < 0.04:
            assert verdict == "too little at stake to tell"
        elif before[seen] > 0.06 and follows + stays < 0.45 * before[seen]:
            assert verdict == "it lets go of both"
        elif before[seen] > 0.06 and follows + stays < 0.55 * before[seen]:
            continue  # a byte cannot tell
        elif before[seen] > 0.06 and follows > 2.2 * stays:
            assert verdict == "it follows the token"
        elif before[seen] > 0.06 and stays > 2.2 * follows:
            assert verdict == "it stays put"
    assert len(said) > 1


def test_pins_and_notes_live_in_the_link_and_in_a_file(
    visit: Visit, profile: rs.Profile, tmp_path: Path
) -> None:
    page = visit(profile, hash="#head=1:2").page
    page.click("#pin")
    note = 'odd: </script><img src=x onerror=alert(1)> & "quotes" 🎲'
    page.fill("#note", note)
    link = page.evaluate("location.hash")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    again = visit(profile, hash=link).page
    assert again.evaluate("document.querySelector('#note').value") == note
    again.keyboard.press("Escape")
    until(again, "document.querySelector('#pins')")
    assert note in again.inner_text("#pins")
    assert again.locator("#pins img").count() == 0
    assert "★ 1:2" in again.evaluate(
        "document.querySelectorAll('#panel .plot')[0].layout.shapes.map((a) => a.label?.text).join()"
    )
    with again.expect_download() as kept:
        again.click("#export-pins")
    kept.value.save_as(tmp_path / "pins.json")
    found = json.loads((tmp_path / "pins.json").read_text(encoding="utf-8"))
    assert [(pin["head"], pin["note"]) for pin in found["pins"]] == [("1:2", note)]
    again.click("#pins button")
    again.click("#pin")
    assert "pins=" not in again.evaluate("location.hash")
    broken = visit(profile, hash="#pins=%7B%2299:9%22:%22x%22,%220:0%22:3&head=0:0").page
    assert title(broken) == "Head 0:0"


def test_heads_with_little_at_stake_fade_as_far_as_the_slider_says(visit: Visit, profile: rs.Profile) -> None:
    rows = profile.prompts
    profile = rs.Profile(
        profile.run, profile.tables | {"prompts": rows.assign(swapped_mass=0.1 + 0.2 * rows["head"])}
    )
    page = visit(profile).page
    shades = """document.querySelectorAll('#panel .plot')[0].data.filter((t) => t.type == 'scatter').flatMap((t) => t.marker.opacity)"""
    mass = profile.at()["swapped_mass"]
    for percentage, heads in ((0, 0), (20, 3), (40, 6)):
        page.evaluate(
            f"(() => {{ const s = document.getElementById('mass'); s.value = {percentage}; s.dispatchEvent(new Event('input')); }})()"
        )
        pale = sum(shade < 0.3 for shade in page.evaluate(shades))
        assert pale == (mass < percentage / 100).sum() == heads
        assert page.inner_text("#mass-now") == f"{percentage} %"


def test_corners_in_words_a_square_plane_and_the_null_as_a_shade(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile).page
    words, ranges, kinds = page.evaluate(
        """(() => { const p = document.querySelectorAll('#panel .plot')[0], f = p._fullLayout;
        return [p.layout.annotations.map((a) => a.text), ['xaxis', 'yaxis'].map((a) => Math.abs(f[a].l2p(1) - f[a].l2p(0))), p.data.map((t) => t.type)]; })()"""
    )
    assert words == ["stays put", "looks at everything", "follows the token"]
    assert ranges[0] == pytest.approx(ranges[1], abs=1)
    assert kinds[0] == "heatmap"
    assert "Two tokens of a prompt change places" in page.inner_text("#asked")


def test_a_panel_fills_the_window_and_comes_back(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile).page
    width = page.evaluate("document.querySelectorAll('#panel .plot')[0].clientWidth")
    page.click("#panel .figure .enlarge >> nth=0")
    until(page, f"document.querySelectorAll('#panel .plot')[0]._fullLayout.width > {1.5 * width}")
    page.keyboard.press("Escape")
    until(page, f"Math.abs(document.querySelectorAll('#panel .plot')[0]._fullLayout.width - {width}) < 3")


def test_on_paper_the_legend_and_captions_stay_and_night_is_white(visit: Visit, profile: rs.Profile) -> None:
    page = visit(profile, hash="#head=1:2", color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for kept in (".chip", "#panel figcaption span", "#told"):
        assert page.locator(kept).first.is_visible(), kept
    for left_out in (".tabs", "#search", "#mass", ".enlarge", "figcaption button", "#swap"):
        assert not page.locator(left_out).first.is_visible(), left_out
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelector('#side .further').open")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_commands_can_be_copied(browser: Any, typed: rs.Profile, tmp_path: Path) -> None:
    written = write_report(tmp_path / "typed.html", typed)
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(written.as_uri() + "#head=0:1")
    page.click("#side .next .copy >> nth=0")
    until(page, "document.querySelector('#side .next .copy').textContent == 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == (
        "rotoscope gate 'my models/llama' --task repeats --prompts 4 --prefix none --length 10 --silence --heads 0:1"
    )
    kind = typed.at().query("layer == 0 and head == 1")["head_class"].iloc[0]
    steps = page.locator("#side .next code").all_inner_texts()
    assert steps[1].endswith(f"--length 10 --heads-of-class {kind}")
    assert all(step.startswith("rotoscope ") for step in steps)
    context.close()


def test_runs_without_attention_say_why(visit: Visit, other: rs.Profile) -> None:
    bare = rs.Profile(other.run, {name: t for name, t in other.tables.items() if name != "attention"})
    page = visit(bare, hash="#head=0:1").page
    assert title(page) == "Head 0:1"
    assert "has no attention of every head" in page.inner_text("#no-attention")
    assert "has no attention of every head" in page.inner_text("#prompt")
