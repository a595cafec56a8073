"""The page as text: one file, a strict policy, nothing fetched, no name that becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from benchmarks.page import synthetic
from rotoscope.errors import RotoscopeError, RunError, TooLargeError
from rotoscope.experiments.profile import notebook
from rotoscope.experiments.profile.notebook import profile_html
from rotoscope.plotting import palette
from rotoscope.report.page import render_page, run_payload, write_report
from rotoscope.runs.record import SubjectRecord

EVIL = "</script><script>alert('1')</script> \"quoted\" & <img src=x onerror=alert(2)> 🎲 \u2028"


class Parts(HTMLParser):
    """Elements with their attributes, and what stands inside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style", "title"):
            tag = self.elements[-1][0]
            if self.inside and self.inside[-1][0] == f"{tag}{len(self.elements)}":
                self.inside[-1] = (self.inside[-1][0], self.inside[-1][1] + data)
            else:
                self.inside.append((f"{tag}{len(self.elements)}", data))

    def texts(self, tag: str) -> list[str]:
        return [text for name, text in self.inside if name.startswith(tag) and text.strip()]


@pytest.fixture(scope="module")
def page(profile: rs.Profile) -> str:
    return render_page([run_payload(profile)])


def policy(page: str) -> dict[str, str]:
    content = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert content
    return dict(rule.split(" ", 1) for rule in content[1].split("; "))


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_policy_allows_only_what_is_in_the_file(page: str) -> None:
    rules = policy(page)
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert rules["img-src"] == "data: blob:"
    cleared = rules.pop("style-src-attr")  # an attribute may be cleared, not set
    assert cleared == f"'unsafe-hashes' {digest('')}"
    assert "unsafe" not in " ".join(rules.values())
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page.split("<body>")[0], flags=re.DOTALL)
    assert [digest(text) for text in scripts] == rules["script-src"].split()
    assert [*map(digest, styles), digest("")] == rules["style-src"].split()
    assert len(scripts) == 2


def test_colours_are_those_of_every_figure(page: str) -> None:
    """Written into the page from the palette: no colour and no rule of its own in script or style sheet."""
    parts = Parts(page)
    given = json.loads(next(text for text in parts.texts("script") if text.startswith('{"runs"')))["palette"]
    assert given["classes"] == palette.CLASS_COLOURS
    style = "".join(parts.texts("style"))
    for name, colour in (palette.CLASS_COLOURS | palette.THEMES["light"]).items():
        assert f"--{name}: {colour};" in style.partition("@media")[0]
    for name, colour in palette.THEMES["dark"].items():
        assert style.count(f"--{name}: {colour};") >= 2  # chosen by the system, and by hand
    assets = Path(rs.__file__).parent / "report" / "assets"
    for file in assets.iterdir():
        assert not re.search(r"#[0-9a-fA-F]{6}\b", file.read_text(encoding="utf-8")), file.name
    assert "1 - gamma" not in parts.texts("script")[-1]


def test_only_the_server_itself_may_be_asked(profile: rs.Profile) -> None:
    page = render_page([run_payload(profile)], live="/payload?run=x")
    assert policy(page)["connect-src"] == "'self'"
    assert '"live":"/payload?run=x"' in page


def test_nothing_is_fetched(page: str) -> None:
    for tag, attributes in Parts(page).elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img")
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    own = Parts(page).texts("script")[-1] + "".join(Parts(page).texts("style"))
    addresses = set(re.findall(r"https?://[^\"'\s)]+", own))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "@import" not in own
    assert "url(" not in own
    assert "innerHTML" not in own
    assert "eval(" not in own


def test_names_stay_text(profile: rs.Profile) -> None:
    payload = run_payload(profile)
    payload |= {"name": EVIL, "title": EVIL, "warnings": [EVIL], "problems": [EVIL], "settings": {EVIL: EVIL}}
    parts = Parts(render_page([payload]))
    assert sum(tag == "script" for tag, _ in parts.elements) == 3
    assert not any(tag == "img" for tag, _ in parts.elements)
    content = next(text for text in parts.texts("script") if text.startswith('{"runs"'))
    assert "<" not in content
    assert json.loads(content)["runs"][0]["warnings"] == [EVIL]
    assert parts.texts("title")[0].startswith(EVIL)


def test_odd_text_can_be_written(profile: rs.Profile, tmp_path: Path) -> None:
    payload = run_payload(profile) | {"name": "half \ud83d of a pair"}
    render_page([payload]).encode("utf-8")
    render_page([])


def test_written_at_once(profile: rs.Profile, other: rs.Profile, tmp_path: Path) -> None:
    file = write_report(tmp_path / "deep" / "x.html", profile, other)
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [f.name for f in file.parent.iterdir()] == ["x.html"]
    assert profile.report(tmp_path / "y.html").stat().st_size < 7e6
    with pytest.raises(RotoscopeError, match="one run or two"):
        write_report(tmp_path / "z.html")
    with pytest.raises(RotoscopeError, match="is a folder"):
        write_report(tmp_path, profile)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written"):
        write_report(tmp_path / "file" / "z.html", profile)


@pytest.mark.slow
def test_size_of_a_model_like_smollm2() -> None:
    assert len(render_page([run_payload(synthetic(30, 9, 32))]).encode()) <= 7e6


@pytest.mark.slow
def test_command(run: Any, folder: Path, tmp_path: Path) -> None:
    code, output, _ = run("report", folder)
    assert code == 0
    assert str(folder / "report.html") in output
    assert run("report", folder)[0] == 0  # its own page is replaced
    assert rs.open(folder).name == "llama"  # and does not disturb the run
    assert run("report", folder, folder, "--out", tmp_path / "two.html")[0] == 0
    code, _, problem = run("report", folder, "--out", tmp_path / "two.html")
    assert (code, "there already" in problem) == (2, True)
    assert run("report", folder, "--out", tmp_path / "two.html", "--overwrite")[0] == 0
    (folder / "nulls.parquet").write_bytes(b"x")
    code, _, problem = run("report", folder, "--out", tmp_path / "three.html")
    assert (code, problem.count("\n"), (tmp_path / "three.html").exists()) == (2, 1, False)
    assert (
        "nulls.parquet is damaged (it is not what was written); make the run again with --overwrite" in problem
    )


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_command_refuses_what_is_no_run(run: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    code, _, problem = run("report", tmp_path / name)
    assert code == 2
    assert problem.count("\n") == 1
    assert not (tmp_path / name / "report.html").exists()


def test_notebook_summary(profile: rs.Profile, other: rs.Profile) -> None:
    shown = profile_html(profile)
    parts = Parts(shown)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in parts.elements}
    assert "http" not in shown
    heads = profile.at()
    assert sum(tag == "circle" for tag, _ in parts.elements) == len(heads)
    for name, number in heads["head_class"].value_counts().items():
        assert f"{number} {name}" in shown
    assert f"correlation of the two scores: {profile.summary().correlation:.2f}" in shown
    assert profile.run.warnings[0] in shown
    assert "no null" not in shown
    assert "no null" in profile_html(other)
    named = replace(profile.run, subject=SubjectRecord(EVIL), warnings=[EVIL])
    evil = rs.Profile(named, profile.tables)
    assert "<script" not in profile_html(evil)


def test_a_notebook_shows_the_page_where_it_is_not_too_large(
    profile: rs.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the small plane, with how to get the page; `show` refuses unless more is asked for."""
    page = profile._repr_html_()
    assert [tag for tag, _ in Parts(page).elements] == ["iframe"]
    assert len(page) < 3_000_000
    with pytest.raises(
        TooLargeError, match=r"more than 0\.1: profile\.show\(most_mb=None\) shows it all the same"
    ):
        profile.show(most_mb=0.1)
    assert profile.show(most_mb=None)._repr_html_() == page
    monkeypatch.setattr(notebook, "MOST_MB", 0.1)
    small = profile._repr_html_()
    assert small.startswith(profile_html(profile))
    assert "profile.report(&quot;page.html&quot;) writes it to a file" in small


def test_a_notebook_without_the_package_of_the_page(
    profile: rs.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise RotoscopeError("the page needs plotly")

    monkeypatch.setattr(notebook, "notebook_frame", missing)
    assert profile._repr_html_() == f"{profile_html(profile)}<p>the page needs plotly</p>"
