"""Figures of swaps at depths show every head at every depth, and what was not measured as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths.figures import (
    WIDEST,
    depth_curves,
    depth_ends,
    depth_map,
    telling_heads,
    writer_graph,
)
from rotoscope.experiments.depths.writers import empty_writers
from rotoscope.experiments.profile.figures import layer_map
from rotoscope.experiments.profile.plane import plane
from rotoscope.experiments.registry import figures_of
from rotoscope.plotting.palette import CARRIED, POSITIONAL, SYMBOLIC
from tests.figures.drawn import footer, image, line, names, points, ticks
from tests.swap_depths import CURVES, as_profile, swap_depths

EMPTY = np.nan


def test_map_shows_what_every_head_does_at_every_depth() -> None:
    """Layers upward; in a layer, heads that stay in place below those that follow."""
    figure = depth_map(swap_depths())
    left, own, kinds = figure.axes[:3]
    rows = [
        [1, EMPTY, EMPTY, EMPTY],
        [-1, EMPTY, EMPTY, EMPTY],
        [1, 1, EMPTY, EMPTY],
        [EMPTY, EMPTY, EMPTY, EMPTY],  # too little of its weight was run
        [1, 1, -1, EMPTY],
        [-0.4, -1, -1, EMPTY],
        [0.1, -0.1, 0.0, -0.4],
        [1, -1, -1, -1],
    ]
    np.testing.assert_allclose(image(left), rows, atol=1e-12)
    np.testing.assert_allclose(image(own)[:, 0], [1, -1, 1, -1, -1, -1, -0.4, -1], atol=1e-12)
    classes = ["positional", "symbolic", "positional", "symbolic", "carried", "symbolic", "mixed", "carried"]
    codes = ["positional", "symbolic", "carried", "uniform", "mixed"]
    assert [codes[int(code)] for code in image(kinds)[:, 0]] == classes
    assert left.images[0].origin == "lower"
    colours = [to_hex(left.images[0].cmap(left.images[0].norm(value))).upper() for value in (-1.0, 1.0)]
    assert colours == [SYMBOLIC, POSITIONAL]
    thin = np.isfinite(np.ma.filled(left.images[1].get_array().astype(float), np.nan))
    assert np.argwhere(thin).tolist() == [[3, 0], [3, 1]]
    assert ticks(left, "x") == {0.0: "0", 1.0: "1", 2.0: "2", 3.0: "3"}
    assert ticks(left, "y") == {0.5: "0", 2.5: "1", 4.5: "2", 6.5: "3"}
    marks = left.collections[0].get_segments()
    # Carry depths 1 of head 2:0 and 0 of heads 3:1 and 3:0, at the right edge of their cells.
    found = {(float(one[0][0]), float(one[:, 1].mean())) for one in marks}
    assert found == {(1.5, 4.0), (0.5, 6.0), (0.5, 7.0)}
    assert [text.get_text() for text in kinds.texts] == ["2:0", "3:0"]
    assert {text.get_color() for text in kinds.texts} == {CARRIED}
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"symbolic", "carried", "carry depth", "under half of its weight run"} <= labels


def test_a_map_without_the_prompt_permuted_says_so() -> None:
    labels = [text.get_text() for text in depth_map(swap_depths(depths=(1, 2))).legends[0].get_texts()]
    assert "symbolic at its layer" in labels
    assert "carried" not in labels


def test_curves_go_up_to_the_heads_own_layer() -> None:
    figure = depth_curves(swap_depths(), [(2, 0), (1, 1)])
    turning, thin = figure.axes
    assert turning.get_title(loc="left") == "2:0 carried, carry depth 1"
    for k, label in enumerate(("positional score", "symbolic score")):
        np.testing.assert_allclose(line(turning, label), [(d, CURVES[2, 0][d][k]) for d in range(3)])
    assert line(turning, "its own layer")[:, 0].tolist() == [2, 2]
    assert names(turning) == ("depth k of the swap", "score")
    # Of head 1:1 too little was run below its own layer: no points there.
    assert thin.get_title(loc="left") == "1:1 symbolic at its layer"
    assert np.isnan(line(thin, "symbolic score")[:, 1]).tolist() == [True, False]


def test_no_line_between_depths_that_were_not_run() -> None:
    run = swap_depths(depths=(0, 1))
    axes = depth_curves(run, [(3, 0)]).axes[0]
    assert np.isnan(line(axes, "positional score")[:, 1]).tolist() == [False, False, True, False]
    assert axes.get_title(loc="left") == "3:0 carried, carry depth 0"
    few = swap_depths(depths=(0,))
    assert depth_curves(few, [(2, 0)]).axes[0].get_title(loc="left") == "2:0 carried, carry depth not located"
    assert few.turning()["carry depth"].tolist() == ["not located"] * 3


def test_curves_show_the_null_only_where_all_of_it_was_run() -> None:
    whole = depth_curves(swap_depths(null="all"), [(2, 0)]).axes[0]
    bands = {one.get_label(): one.get_paths()[0].vertices for one in whole.collections if one.get_hatch()}
    for name, value in (("positional", 0.7), ("symbolic", 0.6)):
        assert set(np.round(bands[f"95 % of the null's heads, {name}"][:, 1], 6)) == {value}
    part = depth_curves(swap_depths(null="symbolic"), [(2, 0)]).axes[0]
    assert not any(one.get_hatch() for one in part.collections)


def test_telling_heads_and_heads_that_are_not_there() -> None:
    run = swap_depths()
    assert telling_heads(run) == [(0, 0), (0, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    with pytest.raises(RotoscopeError, match="no head 9:1 in this run"):
        depth_curves(run, [(9, 1)])


def test_ends_lead_from_the_own_layer_to_the_prompt() -> None:
    run = swap_depths(null="symbolic")
    axes = depth_ends(run).axes[0]
    drawn = {one.get_label(): np.asarray(one.get_offsets()) for one in axes.collections}
    assert np.unique(drawn.pop("the null's pure symbolic heads"), axis=0).tolist() == [[0.7, 0.6]]
    assert {label: rows.tolist() for label, rows in drawn.items()} == {
        "2 carried": [[1, 0], [1, 0]],
        "1 symbolic, also in the prompt": [[0, 1]],
        "1 symbolic at their layer alone": [[0.5, 0.9]],
        "1 without a verdict": [],
    }
    lines = {(tuple(one.xyann), tuple(one.xy)) for one in axes.texts if not one.get_text()}
    assert lines == {((0, 1), (1, 0)), ((0, 1), (0, 1)), ((0, 1), (0.5, 0.9))}
    assert names(axes) == ("positional score", "symbolic score")


def test_ends_of_models_with_one_head_a_layer_go_by_layer() -> None:
    own, permuted = depth_ends(swap_depths(one_head=True, null="all")).axes
    assert line(own, "symbolic score").tolist() == [[0, 0], [1, 0], [2, 1], [3, 1]]
    assert line(permuted, "symbolic score").tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    bands = {one.get_label(): set(one.get_paths()[0].vertices[:, 1]) for one in permuted.collections}
    assert bands == {"null's draws, positional": {0.7}, "null's draws, symbolic": {0.6}}
    some = depth_ends(swap_depths(one_head=True, null="symbolic")).axes
    assert [len(axes.collections) for axes in some] == [2, 0]  # nothing is known of the other heads of the null


def test_ends_need_the_prompt_permuted() -> None:
    with pytest.raises(RotoscopeError, match="the prompt itself was not permuted"):
        depth_ends(swap_depths(depths=(1,)))


def test_every_figure_of_a_run_can_be_written(tmp_path: Path) -> None:
    made = dict(figures_of(swap_depths()))
    assert list(made) == ["depth_map", "depth_curves", "depth_ends"]
    assert list(dict(figures_of(swap_depths(depths=(2,))))) == ["depth_map", "depth_curves"]
    assert not list(figures_of(swap_depths(depths=())))  # the own layers alone
    assert "at most 64 swaps of a prompt at every depth" in footer(made["depth_map"])
    rs.figures.save(made["depth_map"], tmp_path / "map")


def test_a_writer_and_its_reader_are_joined_by_a_line_as_wide_as_the_effect() -> None:
    run = swap_depths(writers=True)
    axes = writer_graph(run).axes[0]
    lines = {line.get_gid(): line for line in axes.lines}
    assert set(lines) == {"1:0 to 2:0"}  # no line without a verdict
    told = lines["1:0 to 2:0"]
    assert (told.get_color(), told.get_xydata().tolist()) == (POSITIONAL, [[0, 1], [3, 2]])
    assert told.get_linewidth() == pytest.approx(WIDEST * 0.95)
    writers, readers = (np.asarray(one.get_offsets()).tolist() for one in axes.collections)
    assert (writers, readers) == ([[0, 0], [0, 1]], [[3, 2], [3, 3]])
    assert [text.get_text() for text in axes.texts] == [
        "1:0",
        "2:0: all 1 below 0.95 (controls 0.04, beyond)",
        "3:0: all 1 below 0.00 (controls 0.04)",
    ]
    assert list(dict(figures_of(run)))[-1] == "writer_graph"


def test_a_graph_of_writers_needs_somebody_who_was_asked() -> None:
    run = swap_depths()
    with pytest.raises(RotoscopeError, match="who writes a place was not asked"):
        writer_graph(run)
    run.tables["writers"] = empty_writers()
    with pytest.raises(RotoscopeError, match="nobody could be asked"):
        writer_graph(run)


def test_plane_and_map_of_a_profile_know_carried_heads() -> None:
    measured = as_profile(permuted=True)
    axes = plane(measured).axes[0]
    labels = [one.get_label() for one in axes.collections]
    assert labels == [
        "2 positional (0)",
        "3 symbolic (0) at their layer: 1 follows the word in the prompt, 1 not tested enough",
        "2 carried (0)",
        "0 uniform (0)",
        "1 mixed (0)",
    ]
    assert points(axes, 2).tolist() == [[0, 1], [0, 1]]
    assert to_hex(axes.collections[2].get_facecolor()[0]).upper() == CARRIED
    assert [text.get_text() for text in layer_map(measured).legends[0].get_texts()][1:3] == [
        "symbolic",
        "carried",
    ]
    assert "64 swaps of a prompt itself" in footer(plane(measured))
    assert "2 carried" in {one.get_label() for one in depth_ends(measured).axes[0].collections}


def test_without_the_prompt_permuted_heads_are_symbolic_at_their_layer() -> None:
    unmeasured = as_profile(permuted=False)
    assert [one.get_label() for one in plane(unmeasured).axes[0].collections][
        1
    ] == "5 symbolic (0) at their layer"
    labels = [text.get_text() for text in layer_map(unmeasured).legends[0].get_texts()]
    assert labels == ["positional", "symbolic at its layer", "uniform", "mixed"]
    assert "the prompt itself was not permuted" in footer(plane(unmeasured))
