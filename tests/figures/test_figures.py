from __future__ import annotations

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.figures import all_figures, frequency_profiles, layer_map, plane, save_figure, swap_traces
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


def test_vector_and_pixels(found: rs.Profile, tmp_path, fine_pictures: None) -> None:
    files = save_figure(plane(found), tmp_path / "plane")
    assert [file.suffix for file in files] == [".pdf", ".png"]
    assert files[0].read_bytes().startswith(b"%PDF")
    assert b"/Type3" not in files[0].read_bytes()  # fonts are embedded as TrueType, editable
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_missing_heads_are_left_empty() -> None:
    nothing = rs.profile(tiny("mistral"), tokens=tokens(1, 20), blocks=[(0, 4), (4, 8)])
    assert np.ma.masked_invalid(layer_map(nothing).axes[0].images[0].get_array()).mask.all()
    plane(nothing)


@pytest.fixture(scope="module")
def full() -> rs.Profile:
    return rs.profile(
        tiny("llama"), tokens=tokens(3, 14), frequencies=True, null="random", null_draws=2, examples=True
    )


def test_every_figure_of_a_full_profile(full: rs.Profile, tmp_path) -> None:
    names = []
    for name, figure in all_figures(full):
        save_figure(figure, tmp_path / name)
        names.append(name)
    assert names == [
        "plane", "layer_map", "depth", "swap_traces", "vectors", "frequency_summary", "frequency_profiles",
        "frequency_norms", "head_paths", "frequency_grid",
    ]  # fmt: skip
    assert "null: random, 2 draws" in plane(full).get_supxlabel()


def test_frequency_profile_draws_the_heads_numbers(full: rs.Profile) -> None:
    axes = frequency_profiles(full, {"this one": (1, 2)}).axes[0]
    rows = full.frequencies.query("layer == 1 and head == 2")
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert np.allclose(drawn["positional score"], rows["positional_score"])
    assert np.allclose(drawn["symbolic score"], rows["symbolic_score"])
    assert len(axes.collections) == 2  # the null's bands


def test_traces_draw_attention_before_and_after(full: rs.Profile) -> None:
    rows = full.traces[full.traces["example"] == "most symbolic"]
    drawn = next(ax for ax in swap_traces(full).axes if "most symbolic" in ax.get_title(loc="left"))
    assert np.allclose(drawn.lines[0].get_ydata(), rows[rows["block"] >= 0]["attention"])
    assert np.allclose(drawn.lines[1].get_ydata(), rows[rows["block"] >= 0]["attention_swapped"])
    whole = full.traces.groupby("example")[["attention", "attention_swapped"]].sum()
    assert np.allclose(whole, 1, atol=1e-5)
