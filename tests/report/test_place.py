"""Where does my model lie? The tab of a page that an atlas makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.report import run_payload, write_page
from rotoscope.report.placed import with_place
from tests.report.browser import Watched, until


@pytest.fixture(scope="module")
def atlas(profile: rs.Profile, other: rs.Profile, tmp_path_factory: pytest.TempPathFactory) -> rs.atlas.Atlas:
    place = tmp_path_factory.mktemp("atlas")
    profile.save(place / "first")
    other.save(place / "other")
    return rs.atlas.make(place, show_progress=False)


def test_a_profile_is_placed_at_every_tau(atlas: rs.atlas.Atlas, profile: rs.Profile) -> None:
    tab = with_place(run_payload(profile), atlas, profile)["tabs"]["place"]
    first, second = tab["at"]
    assert (first["tau"], second["tau"]) == (1e-4, 1e-2)
    assert first["models"] == 1
    assert set(first["others"]["model"]) == {atlas.place(profile).others["model"].iloc[0]}
    assert "where" in first["table"]["names"]
    assert second["models"] == 0
    assert "where" not in second["table"]["names"]
    assert "is this one: nothing is compared" in second["words"][0]


def test_what_is_no_profile_is_said_on_the_page(atlas: rs.atlas.Atlas) -> None:
    folder = Path(rs.__path__[0]) / "models" / "canonical"
    made = with_place(run_payload(folder), atlas, folder)
    assert "place" not in made["tabs"]
    assert "the run is not placed in the atlas" in made["problems"][-1]


def test_the_tab_is_drawn(
    atlas: rs.atlas.Atlas, profile: rs.Profile, visit: Callable[..., Watched], tmp_path: Path
) -> None:
    file = write_page(tmp_path / "placed.html", [with_place(run_payload(profile), atlas, profile)])
    page = visit(profile).page
    page.goto(file.as_uri() + "#tab=place")
    until(page, "document.querySelectorAll('#panel .js-plotly-plot').length === 1")
    assert "Compared with 1 model on the same task" in page.inner_text("#place-words")
    assert page.locator("#panel table.grid tbody tr").count() == len(atlas.place(profile).table)
