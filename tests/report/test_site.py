"""A site: whole or not at all, nothing replaced that is no site, names that stay text; and its pages in a real browser."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.report import site as site_module
from rotoscope.report.page import run_payload
from rotoscope.report.site import write_site
from rotoscope.runs.record import described_checksum
from tests.report.browser import Watched, until
from tests.report.test_page import policy
from tests.report.test_serve import ODD, PNG, evaluated, training

EVIL = "<img src=x onerror=alert(1)>"


def files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


def data_of(site: Path, name: str) -> Any:
    """What a browser makes of a data script."""
    text = (site / "data" / f"{name}.js").read_text(encoding="ascii")
    found = re.fullmatch(r'\(window\.rotoscopeData \|\|= \{\}\)\["([\d-]+)"\] = JSON\.parse\((".*")\);\n', text)
    assert found
    assert found[1] == name
    return json.loads(json.loads(found[2]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, changed: tuple[rs.Profile, rs.Profile]) -> Path:
    """Two runs to compare, one of a name already there, one of an odd name, one that goes on, and a damaged one."""
    place = tmp_path_factory.mktemp("runs")
    changed[0].save(place / "before")
    changed[1].save(place / "after")
    shutil.copytree(place / "before", place / "deeper" / "before")
    shutil.copytree(place / "before", place / EVIL)
    going = training(place / "going")
    evaluated(going.folder, 50, 0.5)
    (place / "bad").mkdir()
    (place / "bad" / "run.json").write_text("{")
    (place / "before" / "plane.png").write_bytes(PNG)
    (place / "after" / "plane.png").write_bytes(b"<svg onload=alert(1)>")
    return place


@pytest.fixture(scope="module")
def site(runs: Path) -> Path:
    return write_site(runs, site=runs.parent / f"{runs.name}-site")


@pytest.fixture(scope="module")
def numbers(site: Path) -> dict[str, str]:
    """The number of every run by its name."""
    return {
        data_of(site, number)["name"]: number
        for number in map("{:03d}".format, range(1, 7))
        if (site / "data" / f"{number}.js").exists()
    }


def test_what_is_in_a_site(site: Path, runs: Path, numbers: dict[str, str]) -> None:
    assert set(numbers) == {"before", "after", "deeper/before", EVIL, "going"}
    there = set(files(site))
    assert there - {"site.json"} == set(json.loads((site / "site.json").read_text())["files"])
    assert {f"run-{numbers['deeper/before']}-deeper-before.html", "index.html", "compare.html"} <= there
    assert sum(name.startswith("data/") for name in there) == 5 + 10
    assert {name for name in there if name.startswith("pictures/")} == {f"pictures/{numbers['before']}.png"}
    assert {name.rsplit("/", 1)[-1].rsplit(".", 1)[-1] for name in there} == {
        "html",
        "js",
        "css",
        "json",
        "png",
    }
    assert not [name for name in there if re.search("[^A-Za-z0-9./-]", name)]
    assert sum(len(content) > 1_000_000 for content in files(site).values()) == 1  # plotly, once
    one = run_payload(runs / "after") | {"running": []}
    assert data_of(site, numbers["after"]) == json.loads(json.dumps(one))
    listed = (site / "index.html").read_text(encoding="utf-8")
    assert "run.json is damaged" in listed
    assert str(runs) not in listed
    assert not [file for file in site.parent.iterdir() if file.name.startswith(f".{site.name}")]


def test_pages_allow_only_their_own_place(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        rules = policy(text)
        assert (rules["default-src"], rules["script-src"]) == ("'none'", "'self'")
        assert "connect-src" not in rules
        assert "unsafe-inline" not in text
        assert re.findall(r"<script>", text) == []
        assert "//" not in "".join(re.findall(r'(?:src|href|action)="([^"]*)"', text))
        assert str(site.parent) not in text
        assert "<img src=x" not in text


def visit(browser: Any, address: str, **options: Any) -> Watched:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
    watched = Watched(context.new_page())
    watched.page.goto(address)
    return watched


def test_list_compare_and_back_from_disk(browser: Any, site: Path, numbers: dict[str, str]) -> None:
    watched = visit(browser, (site / "index.html").as_uri(), offline=True)
    page = watched.page
    assert page.locator("tbody tr").count() == 6
    assert "running step 50 of 100" in page.inner_text("tbody")
    assert page.locator(".state.damaged").count() == 1
    assert page.locator("tr", has_text="before").first.locator("svg.classes rect").count() > 1
    assert page.locator("img").count() == 1
    button = page.locator("#go")
    assert button.is_disabled()
    order = [name for name in page.locator("tbody a").all_inner_texts() if name in ("after", "deeper/before")]
    for first, second in (order, order[::-1]):
        for name in (first, second):
            page.get_by_label(f"compare {name}", exact=True).check()
        assert button.inner_text() == "Compare A with B"
        button.click()
        page.wait_for_selector("#tab-compare[aria-selected=true]")
        told = page.inner_text("#differences")
        assert told.startswith(f"A {first} (llama, tokens) → B {second}")
        values = ("0.05", "0.1") if second == "after" else ("0.1", "0.05")
        assert f"They differ in least mass: {values[0]} → {values[1]}." in told
        cells = page.eval_on_selector_all(
            "#panel tbody tr:first-child td", "all => all.map((c) => c.innerText)"
        )
        positional = cells[6].split(" → ")[second == "after"]  # in the run in which it was made so
        assert (cells[0], cells[3], positional) == ("2:1", "yes", "1.00")
        page.click("#home")
        page.wait_for_selector("#rows")
        page.evaluate("document.querySelectorAll('input').forEach((box) => { box.checked = false; })")
        page.evaluate("document.getElementById('compare').dispatchEvent(new Event('change'))")
    page.get_by_role("link", name=EVIL).click()
    page.wait_for_selector("#panel .plot .scatterlayer path")
    assert page.inner_text(".top .what").split(" · ")[1] == EVIL
    page.goto((site / f"run-{numbers['going']}-going.html").as_uri())
    page.wait_for_selector(".notes .running")
    assert page.inner_text("#notes").startswith("Running: step 50 of 100; accuracy by hops")
    assert "Missing" not in page.inner_text("#notes")
    page.context.close()
    assert not watched.errors
    assert not watched.outside


@pytest.fixture
def web_space(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_any_web_space_serves_it(browser: Any, web_space: str, numbers: dict[str, str]) -> None:
    watched = visit(browser, web_space, color_scheme="dark")
    page = watched.page
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(20, 23, 27)"
    page.click("#theme")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.querySelector('tbody tr')).display") == "grid"
    page.set_viewport_size({"width": 1440, "height": 900})
    pair = f"a={numbers['before']}&b={numbers['after']}"
    page.goto(f"{web_space}compare.html?{pair}")
    page.wait_for_selector("#tab-compare[aria-selected=true]")
    for odd in ("", "?a=1", "?a=001&b=001", "?a=../x&b=002", f"?a=001&b={EVIL}"):
        page.goto(f"{web_space}compare.html{odd}")
        until(page, "document.querySelector('.waiting').textContent.startsWith('Two runs are compared')")
    page.context.close()
    assert not watched.errors
    assert {url.split("/")[2] for url in watched.requests if url.startswith("http")} == {
        web_space.split("/")[2]
    }


def test_pairs_beyond_the_most_are_said(
    browser: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "MOST_COMPARED", 1)
    site = write_site(runs / "before", runs / "after", site=tmp_path / "site")
    assert {name for name in files(site) if name.startswith("data/")} == {"data/001.js", "data/002.js"}
    watched = visit(browser, f"{(site / 'compare.html').as_uri()}?a=002&b=001")
    watched.page.wait_for_selector("#differences")
    assert "These two were not compared when the site was made." in watched.page.inner_text("#differences")
    watched.page.context.close()
    assert not watched.errors


def test_whole_or_not_at_all(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "site"
    write_site(runs / "before", site=out)
    before = files(out)
    real, shown = site_module.side_of, []

    def fail(folder: Path) -> Any:
        shown.append(folder)
        if len(shown) == 2:
            raise OSError(28, "No space left on device")
        return real(folder)

    monkeypatch.setattr(site_module, "side_of", fail)
    with pytest.raises(RunError, match="the disk is full"):
        write_site(runs, site=out, overwrite=True)
    assert files(out) == before
    shown.clear()
    with pytest.raises(RunError, match="the disk is full"):
        write_site(runs, site=tmp_path / "new")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["site"]


def test_killed_while_the_old_one_was_aside(runs: Path, tmp_path: Path) -> None:
    out = write_site(runs / "before", site=tmp_path / "site")
    before = files(out)
    out.rename(tmp_path / ".site.replaced")
    with pytest.raises(RunError, match="holds a site already"):
        write_site(runs / "after", site=out)
    assert files(out) == before
    write_site(runs / "after", site=out, overwrite=True)
    assert data_of(out, "001")["name"] == "after"
    assert [file.name for file in tmp_path.iterdir()] == ["site"]


@pytest.mark.parametrize("state", ["a folder", "a run", "a strange file", "a link", "a file", "a false mark"])
def test_what_is_no_site_is_never_replaced(runs: Path, tmp_path: Path, state: str) -> None:
    out = tmp_path / "site"
    match state:
        case "a folder":
            (out / "letters").mkdir(parents=True)
            (out / "letters" / "mine").write_text("a letter")
        case "a run":
            shutil.copytree(runs / "before", out)
        case "a strange file":
            write_site(runs / "before", site=out)
            (out / "CNAME").write_text("my.example")
        case "a link":
            write_site(runs / "before", site=tmp_path / "real")
            out.symlink_to(tmp_path / "real")
        case "a file":
            out.write_text("a letter")
        case "a false mark":
            out.mkdir()
            (out / "site.json").write_text('{"kind": "something else", "files": ["site.json"]}')
    before = files(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(RunError, match="is no site|no part of the site|already|is no folder"):
            write_site(runs / "after", site=out, overwrite=overwrite)
    with pytest.raises(RunError, match="is no site|no part of the site|is no folder"):
        write_site(runs / "after", site=out, overwrite=True)
    assert files(tmp_path) == before


def test_names_lead_nowhere(runs: Path, tmp_path: Path) -> None:
    """Two runs of one name, odd signs, no ASCII at all, links out of the folder, and a setting called __proto__."""
    place = tmp_path / "runs"
    for name in (ODD.replace("/", ""), "a..%2f..%2fetc", "日本語", "n" * 200, "CON"):
        shutil.copytree(runs / "before", place / name)
    shutil.copytree(runs / "before", tmp_path / "other" / "CON")
    content = json.loads((runs / "before" / "run.json").read_text())
    content["settings"]["__proto__"] = {"polluted": "yes"}
    content["settings"][EVIL] = "</script>"
    (place / "CON" / "run.json").write_text(json.dumps(content | {"checksum": described_checksum(content)}))
    leads = Path(shutil.copytree(runs / "before", place / "leads"))
    (leads / "prompts.parquet").unlink()
    (leads / "prompts.parquet").symlink_to(runs / "after" / "prompts.parquet")
    site = write_site(place, tmp_path / "other", place / "CON", site=tmp_path / "site")
    listed = (site / "index.html").read_text(encoding="utf-8")
    assert len(list(site.glob("run-*.html"))) == 6
    assert listed.count("<tr>") == 8  # and the titles
    assert "other/CON" in listed or "runs/CON" in listed
    assert "a file in it is a link that leads outside" in listed
    assert "<script>alert" not in listed
    names = [data_of(site, file.name[4:7])["name"] for file in site.glob("run-*.html")]
    assert len(set(names)) == 6
    (proto,) = [
        one
        for file in site.glob("run-*.html")
        if "__proto__" in (one := data_of(site, file.name[4:7]))["settings"]
    ]
    assert proto["settings"]["__proto__"] == {"polluted": "yes"}
    assert not [name for name in files(site) if re.search("[^A-Za-z0-9./-]", name)]
    assert sorted(os.listdir(tmp_path)) == ["other", "runs", "site"]


def test_places_without_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        write_site(tmp_path / "none", site=tmp_path / "site")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="there is no run in"):
        write_site(tmp_path / "empty", site=tmp_path / "site")
    assert os.listdir(tmp_path) == ["empty"]


def test_the_command_line_writes_a_page_or_a_site(
    run: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # the first line is compared whole
    before, after, site = runs / "before", runs / "after", tmp_path / "site"
    code, told, _ = run("report", before, after, "--site", site)
    assert (code, told.splitlines()[0]) == (0, f"wrote {site}: 2 runs")
    code, _, problem = run("report", before, "--site", site)
    assert code == 2
    assert "or --overwrite to replace it" in problem
    assert run("report", before, "--site", site, "--overwrite")[0] == 0
    assert len(list(site.glob("run-*.html"))) == 1
    for line, sentence in (
        ((before, "--site", site, "--out", site / "page.html"), "leave it out"),
        ((), "a page is about one run or two, not 0; --site DIR"),
        ((before, after, before), "a page is about one run or two, not 3; --site DIR"),
    ):
        code, _, problem = run("report", *line)
        assert code == 2
        assert sentence in problem
