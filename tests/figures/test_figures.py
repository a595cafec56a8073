from __future__ import annotations

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.figures import layer_map, plane, save_figure
from tests.models import tiny, tokens


@pytest.fixture(scope="module")
def found() -> rs.Profile:
    return rs.profile(tiny("llama"), tokens=tokens(3, 14))


def test_plane_shows_every_head(found: rs.Profile) -> None:
    axes = plane(found).axes[0]
    drawn = np.concatenate([group.get_offsets() for group in axes.collections])
    expected = found.at()[["positional_score", "symbolic_score"]].to_numpy()
    assert sorted(map(tuple, np.round(drawn, 5))) == sorted(map(tuple, np.round(expected, 5)))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("positional score", "symbolic score")


def test_map_shows_scores_where_heads_stand(found: rs.Profile) -> None:
    left, middle, _ = layer_map(found).axes[:3]
    for axes, column in ((left, "positional_score"), (middle, "symbolic_score")):
        grid = axes.images[0].get_array()
        assert grid.shape == (3, 4)
        row = found.at().query("layer == 2 and head == 1").iloc[0]
        assert grid[2, 1] == pytest.approx(row[column])


def test_caption_says_what_was_measured(found: rs.Profile) -> None:
    text = plane(found).get_supxlabel()
    assert "3 prompts" in text
    assert "τ = 0.0001" in text
    assert "no null" in text


def test_vector_and_pixels(found: rs.Profile, tmp_path) -> None:
    files = save_figure(plane(found), tmp_path / "plane")
    assert [file.suffix for file in files] == [".pdf", ".png"]
    assert files[0].read_bytes().startswith(b"%PDF")
    assert b"/Type3" not in files[0].read_bytes()  # fonts are embedded as TrueType, editable
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_missing_heads_are_left_empty() -> None:
    nothing = rs.profile(tiny("mistral"), tokens=tokens(1, 20), blocks=[(0, 4), (4, 8)])
    assert np.ma.masked_invalid(layer_map(nothing).axes[0].images[0].get_array()).mask.all()
    plane(nothing)
