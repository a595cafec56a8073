"""Small real runs, written once, and one browser for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.cli import main
from rotoscope.report.page import write_report
from rotoscope.stats.aggregate import SCORES
from tests.report.browser import SETTINGS, Watched, chromium
from tests.tiny_models import tiny, tokens


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small profiles, one of them deeper down."""
    place = tmp_path_factory.mktemp("profiles")
    for seed, where in enumerate(("first", "deeper/second")):
        rs.profile(
            tiny("llama", seed=seed), tokens=tokens(1, 12), out=place / where, show_progress=False, null="none"
        )
    return place


@pytest.fixture(scope="session")
def profile() -> rs.Profile:
    """Three layers of four heads, two taus, with everything a profile can have."""
    torch.manual_seed(0)
    return rs.profile(
        tiny("llama", sharp=7.0),
        tokens=tokens(4, 20),
        tau=[1e-4, 1e-2],
        gamma=0.3,
        null="random",
        null_draws=2,
        examples=True,
        frequencies=True,
        known=True,
    )


@pytest.fixture(scope="session")
def other() -> rs.Profile:
    """The same heads with other weights, without a null."""
    torch.manual_seed(0)
    return rs.profile(tiny("llama", seed=1), tokens=tokens(4, 20), tau=1e-4, gamma=0.3, null="none")


@pytest.fixture(scope="session")
def changed(profile: rs.Profile) -> tuple[rs.Profile, rs.Profile]:
    """A run on eight prompts with some noise, and again with head 2:1 made positional."""
    dice = np.random.default_rng(0)
    four = profile.prompts[profile.prompts["tau"] == 1e-4]
    rows = pd.concat([four, four.assign(prompt=four["prompt"] + 4, input_id=four["input_id"] + 4)])
    made = []
    for name in ("before", "after"):
        scores = np.clip(rows[SCORES] + dice.normal(0, 0.01, (len(rows), 2)), 0, 1)
        if name == "after":
            scores[(rows["layer"] == 2) & (rows["head"] == 1)] = [1.0, 0.0]
        settings = {**profile.run.settings, "tau": [1e-4], "least_mass": 0.1 if made else 0.05}
        made.append(rs.Profile(replace(profile.run, settings=settings), {"prompts": rows.assign(**scores)}))
    return made[0], made[1]


@pytest.fixture(scope="session")
def typed(profile: rs.Profile) -> rs.Profile:
    """The same as if it came from the command line: of a model in a folder, on a task with a name."""
    assert profile.run.subject is not None
    subject = replace(profile.run.subject, source={"kind": "folder", "place": "my models/llama"})
    settings = profile.run.settings | {"task": "repeats", "task_settings": {"length": 10, "prefix": "none"}}
    run = replace(profile.run, settings=settings, subject=subject, tables=["answers"])
    answers = pd.DataFrame({"prompt": range(4), "correct": [True, True, True, False]})
    return rs.Profile(run, profile.tables | {"answers": answers})


@pytest.fixture(scope="session")
def saved(profile: rs.Profile, place: Path) -> Path:
    return profile.save(place / "tiny")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    found = chromium()
    if found is None:
        pytest.skip("no Chromium on this machine: install one, or name it in ROTOSCOPE_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, **SETTINGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def written(place: Path, profile: rs.Profile) -> Path:
    """The report most tests look at."""
    return write_report(place / "written.html", profile)


@pytest.fixture
def visit(browser: Any, tmp_path: Path, profile: rs.Profile, written: Path) -> Iterator[Callable[..., Watched]]:
    """Open the report of runs from its file. At the end nothing outside was asked and nothing went wrong."""
    seen: list[Watched] = []
    contexts: list[Any] = []

    def go(*runs: Any, hash: str = "", size: tuple[int, int] = (1440, 900), **options: Any) -> Watched:
        known = len(runs) == 1 and runs[0] is profile
        file = written if known else write_report(tmp_path / "report.html", *runs)
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        contexts.append(context)
        watched = Watched(context.new_page())
        seen.append(watched)
        watched.page.goto(file.as_uri() + hash)
        watched.page.wait_for_selector(".tabs [aria-selected=true]")
        return watched

    yield go
    errors = [error for watched in seen for error in watched.errors]
    outside = [url for watched in seen for url in watched.outside]
    for context in contexts:
        context.close()
    assert not errors
    assert not outside


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    return call


QUICK_IN_A_BROWSER = (
    "test_click_opens_the_card_with_the_numbers_of_the_table",
    "test_compare",
    "test_names_show_as_text",
    "test_the_file_is_enough",
    "test_depths_in_a_browser",
    "test_every_head_shows_its_attention_before_and_after_a_swap",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in a browser as slow, but for a handful."""
    for item in items:
        if (
            "browser" in getattr(item, "fixturenames", ())
            and item.name.partition("[")[0] not in QUICK_IN_A_BROWSER
        ):
            item.add_marker(pytest.mark.slow)
