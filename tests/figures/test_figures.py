"""Figures of a profile show its numbers where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import rotoscope as rs
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.profile.figures import (
    by_position,
    depth,
    layer_map,
    profile_figures,
    swap_traces,
    vectors,
)
from rotoscope.experiments.profile.frequency_figures import (
    frequency_grid,
    frequency_norms,
    frequency_profiles,
    frequency_summary,
    head_paths,
)
from rotoscope.experiments.profile.plane import density, plane
from rotoscope.models.reader import HeadReader
from rotoscope.plotting import style
from rotoscope.plotting.palette import CLASS_COLOURS, MIXED_EDGE, NULL, POSITIONAL, QUERY, SYMBOLIC
from rotoscope.plotting.style import COLUMN_WIDTH, save
from tests.disk import full_disk
from tests.figures.drawn import bars, footer, image, line, names, points, ticks
from tests.figures.legible import faults
from tests.tiny_models import tiny, tokens

SCORES = ["positional_score", "symbolic_score"]


def same_points(drawn: np.ndarray, expected: np.ndarray) -> None:
    """The same points, whatever their order."""
    assert sorted(map(tuple, np.round(drawn, 5))) == sorted(map(tuple, np.round(expected, 5)))


def test_plane_shows_every_head_in_its_colour(found: rs.Profile) -> None:
    axes = plane(found).axes[0]
    assert names(axes) == ("positional score", "symbolic score")
    shown = {name: colour for name, colour in CLASS_COLOURS.items() if name != "carried"}
    for k, (name, colour) in enumerate(shown.items()):
        rows = found.at().query("head_class == @name")
        same_points(points(axes, k), rows[SCORES].to_numpy())
        little = int((rows["swapped_mass"] < 0.05).sum())
        at_its_layer = " at their layer" if name == "symbolic" else ""
        assert axes.collections[k].get_label() == f"{len(rows)} {name} ({little}){at_its_layer}"
        assert to_hex(axes.collections[k].get_facecolor()[0]).upper() == colour if len(rows) else True
    squares = {tuple(np.round(patch.get_bbox().bounds, 6)) for patch in axes.patches}
    assert squares == {(0.9, 0, 0.1, 0.1), (0, 0.9, 0.1, 0.1), (0.9, 0.9, 0.1, 0.1)}


def test_plane_shows_the_null_behind(full: rs.Profile) -> None:
    """As an area, not as dots among dots: nine of ten heads of the null lie in it, half of them in its darker part."""
    axes = plane(full).axes[0]
    outer, inner = axes.collections[0].get_paths()
    null = full.nulls[SCORES].to_numpy()
    dark = inner.contains_points(null)
    light = outer.contains_points(null) & ~dark
    assert dark.mean() >= 0.4
    assert (dark | light).mean() >= 0.85
    corners = [(0.01, 0.01), (0.99, 0.01)]
    assert not (outer.contains_points(corners) | inner.contains_points(corners)).any()
    assert axes.get_legend().get_texts()[0].get_text() == "random null: half of its heads"
    drawn = sum(len(one.get_offsets()) for one in axes.collections[1:])
    assert drawn == len(full.at())


@pytest.mark.parametrize("count", [0, 1, 50])
def test_a_null_in_one_place_is_a_spot_there(count: int) -> None:
    axes = Figure().subplots()
    density(axes, pd.DataFrame([(0.5, 0.25)] * count, columns=SCORES))
    inside = [path.contains_point((0.5, 0.25)) for group in axes.collections for path in group.get_paths()]
    assert any(inside) == (count > 0)


def test_plane_says_what_its_corners_mean_and_is_square(found: rs.Profile) -> None:
    axes = plane(found).axes[0]
    words = {text.get_text().replace("\n", " "): tuple(text.xy) for text in axes.texts}
    assert words == {
        "stays put": pytest.approx((0.88, 0)),
        "follows the fact": pytest.approx((0, 0.88)),
        "looks at everything": pytest.approx((0.88, 1)),
    }
    axes.figure.draw_without_rendering()
    assert axes.bbox.width == pytest.approx(axes.bbox.height)


def test_heads_with_little_at_stake_are_faded_and_mixed_ones_have_an_edge(found: rs.Profile) -> None:
    rows = found.prompts
    rows = rows.assign(swapped_mass=rows["swapped_mass"].where(rows["head"] % 2 == 0, 0.01))
    run = rs.Profile(found.run, {**found.tables, "prompts": rows})
    heads, axes = run.at(), plane(run).axes[0]
    assert heads["little_at_stake"].sum() == 6
    assert "mixed" in set(heads["head_class"])
    for group in axes.collections:
        name = group.get_label().split()[1]
        rows = heads[heads["head_class"] == name]
        faded = np.atleast_1d(group.get_alpha() if len(rows) else []) < 0.5
        np.testing.assert_array_equal(faded, rows["little_at_stake"].astype(bool))
        if len(rows):
            edge = to_hex(group.get_edgecolor()[0]).upper()
            assert edge == (MIXED_EDGE if name == "mixed" else "#FFFFFF")


def test_map_shows_scores_where_heads_stand(found: rs.Profile) -> None:
    left, middle, right = layer_map(found).axes[:3]
    heads = found.at().set_index(["layer", "head"])
    for axes, column in ((left, "positional_score"), (middle, "symbolic_score")):
        np.testing.assert_allclose(image(axes), heads[column].unstack())
        assert axes.get_title(loc="left") == column.replace("_", " ")
    codes = heads["head_class"].map(list(CLASS_COLOURS).index).unstack()
    np.testing.assert_array_equal(image(right), codes)
    assert left.get_ylabel() == "layer"


def test_caption_says_what_was_measured(found: rs.Profile, full: rs.Profile) -> None:
    text = footer(plane(found))
    assert "3 prompts" in text
    assert "τ = 0.0001" in text
    assert "no null" in text
    assert "null: random, 2 draws" in footer(plane(full))


def test_vector_and_pixels(found: rs.Profile, tmp_path: Path, fine_pictures: None) -> None:
    files = save(plane(found), tmp_path / "plane")
    assert [file.suffix for file in files] == [".pdf", ".png"]
    assert files[0].read_bytes().startswith(b"%PDF")
    assert b"/Type3" not in files[0].read_bytes()  # fonts are embedded as TrueType, editable
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_formats_and_no_footer(found: rs.Profile, tmp_path: Path) -> None:
    """Text stays text in SVG, so that what is and is not written can be read there."""
    figure = plane(found, width=COLUMN_WIDTH)
    height = figure.get_figheight()
    files = save(figure, tmp_path / "with", formats=("svg", "pdf"))
    assert [file.name for file in files] == ["with.svg", "with.pdf"]
    [bare] = save(figure, tmp_path / "without", footer=False, formats=("svg",))
    said, unsaid = files[0].read_text(), bare.read_text()
    for words, kept in (("3 prompts", False), ("positional score", True), ("stays put", True)):
        assert words in said
        assert (words in unsaid) == kept
    heights = [float(text.split('height="')[1].split("pt")[0]) for text in (said, unsaid)]
    assert heights[0] == pytest.approx(72 * height)
    assert heights[1] < heights[0] - 20
    assert figure.get_figheight() == height  # and as it was afterwards
    assert "3 prompts" in save(figure, tmp_path / "again", formats=("svg",))[0].read_text()


@pytest.mark.parametrize("formats", [("pdf", "tiff"), ()])
def test_unknown_formats_write_nothing(tmp_path: Path, formats: tuple[str, ...]) -> None:
    with pytest.raises(RotoscopeError, match="expected some of pdf, svg, png"):
        save(Figure(), tmp_path / "dots", formats=formats)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["pdf", "png"])
def test_on_a_full_disk(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib's own error would be one about an attribute that a stream does not have."""
    monkeypatch.setattr(style, "FORMATS", (name,))
    figure = Figure()
    figure.subplots().plot(np.random.default_rng(0).random(200))
    with full_disk(2000), pytest.raises(RunError, match=rf"dots\.{name} cannot be written"):
        save(figure, tmp_path / "dots")
    assert not list(tmp_path.iterdir())


def test_missing_heads_are_left_empty() -> None:
    nothing = rs.profile(tiny("mistral"), tokens=tokens(1, 20), blocks=[(0, 4), (4, 8)], null="none")
    assert np.isnan(image(layer_map(nothing).axes[0])).all()
    plane(nothing)


def test_every_figure_of_a_full_profile_can_be_written(full: rs.Profile, tmp_path: Path) -> None:
    made = dict(profile_figures(full))
    assert list(made) == [
        "plane", "layer_map", "depth", "swap_traces", "vectors", "frequency_summary", "frequency_profiles",
        "frequency_norms", "head_paths", "frequency_grid",
    ]  # fmt: skip
    save(made["frequency_grid"], tmp_path / "grid")


@pytest.mark.parametrize("score", SCORES)
def test_depth_shows_the_subject_over_its_null(full: rs.Profile, score: str) -> None:
    axes = depth(full).axes[SCORES.index(score)]
    assert axes.get_title(loc="left") == score.replace("_", " ")
    hue = {"positional_score": POSITIONAL, "symbolic_score": SYMBOLIC}[score]
    for label, heads, colour in ((full.name, full.at(), hue), ("random null", full.nulls, NULL)):
        medians = heads.groupby("layer")[score].median()
        np.testing.assert_allclose(line(axes, label), np.column_stack((medians.index, medians)))
        assert next(one for one in axes.lines if one.get_label() == label).get_color() == colour
    real, null = (line(axes, label)[:, 1] for label in (full.name, "random null"))
    assert not np.allclose(real, null)
    assert names(axes)[0] == "layer"


def test_frequency_summary_shows_the_subject_over_its_null(full: rs.Profile) -> None:
    for axes, score in zip(frequency_summary(full).axes, SCORES, strict=True):
        for label, planes in ((full.name, full.frequencies), ("random null", full.null_frequencies)):
            medians = planes.groupby("frequency_id")[score].median()
            np.testing.assert_allclose(line(axes, label), np.column_stack((medians.index, medians)))


def test_frequency_profile_draws_the_heads_numbers(full: rs.Profile) -> None:
    axes = frequency_profiles(full, {"this one": (1, 2)}).axes[0]
    rows = full.frequencies.query("layer == 1 and head == 2")
    for score in SCORES:
        expected = rows[["frequency_id", score]].to_numpy()
        np.testing.assert_allclose(line(axes, score.replace("_", " ")), expected)
    for band, score in zip(axes.collections, SCORES, strict=True):  # the null's middle 90 %
        ends = full.null_frequencies.groupby("frequency_id")[score].quantile([0.05, 0.95])
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx((ends.min(), ends.max()))


def test_norms_by_layer_and_of_single_heads(full: rs.Profile) -> None:
    left, right = frequency_norms(full, {"this one": (1, 2)}).axes[:2]
    means = full.frequencies.groupby(["layer", "frequency_id"])["logit_norm"].mean().unstack()
    np.testing.assert_allclose(image(left), np.log10(means + 1e-3))
    assert names(left) == ("frequency id (1 = fastest)", "layer")
    assert ticks(left, "x")[0] == "1"
    rows = full.frequencies.query("layer == 1 and head == 2")
    np.testing.assert_allclose(line(right, "1:2, this one"), rows[["frequency_id", "logit_norm"]])


def test_a_path_runs_over_positional_and_symbolic_scores(full: rs.Profile) -> None:
    axes = head_paths(full, {"this one": (1, 2)}).axes[0]
    assert names(axes) == ("positional score", "symbolic score")
    rows = full.frequencies.query("layer == 1 and head == 2")
    np.testing.assert_allclose(points(axes, 0), rows[SCORES])
    np.testing.assert_allclose(np.column_stack(axes.lines[0].get_data()), rows[SCORES])
    np.testing.assert_array_equal(axes.collections[0].get_array(), rows["frequency_id"])
    np.testing.assert_allclose(points(axes, 1), full.at().query("layer == 1 and head == 2")[SCORES])


def test_the_grid_has_every_head_in_its_cell(full: rs.Profile) -> None:
    axes = frequency_grid(full).axes[0]
    positional, symbolic = axes.collections
    assert (positional.get_label(), symbolic.get_label()) == ("positional score", "symbolic score")
    for curves, score in ((positional, SCORES[0]), (symbolic, SCORES[1])):
        curve = curves.get_segments()[4 * 1 + 2]  # layer 1, head 2 of four heads
        rows = full.frequencies.query("layer == 1 and head == 2")
        np.testing.assert_allclose(1 + 0.1 + 0.8 * rows[score], curve[:, 1])
        assert ((curve[:, 0] > 2) & (curve[:, 0] < 3)).all()


def test_traces_draw_attention_before_and_after_the_swap(full: rs.Profile) -> None:
    """After the swap means what the counterfactual logits give when the two blocks change places."""
    rows = full.traces[full.traces["example"] == "most symbolic"]
    layer, head, first, second = (
        int(rows[name].iloc[0]) for name in ("layer", "head", "first_block", "second_block")
    )
    axes = next(ax for ax in swap_traces(full).axes if "most symbolic" in ax.get_title(loc="left"))
    moved = [
        rows["token"][rows["block"] == block].item() for block in (first, second)
    ]  # every token is a block
    assert axes.get_title(loc="left") == f"{layer}:{head}, most symbolic: “{moved[0]}” and “{moved[1]}” swapped"
    grids: list[np.ndarray] = []
    HeadReader(tiny("llama")).read(
        tokens(3, 14)[:1],
        (13,),
        lambda one: grids.append(one.at(0).logits()[0, head].numpy()) if one.layer == layer else None,
    )
    order = np.arange(14)
    order[[first, second]] = second, first
    for label, contents in (("before", np.arange(14)), ("after the swap", order)):
        weights = np.exp(grids[0][np.arange(14), contents])
        np.testing.assert_allclose(line(axes, label)[:, 1], weights / weights.sum(), rtol=1e-4)
    assert not np.allclose(line(axes, "before"), line(axes, "after the swap"), atol=1e-3)


def test_traces_show_the_whole_prompt_as_text(full: rs.Profile) -> None:
    rows = full.traces
    words = ["<|im_start|>", "\n", *(f" w{k}" for k in range(2, 13)), "颜"]
    run = rs.Profile(
        full.run, {**full.tables, "traces": rows.assign(token=[words[k] for k in rows["position"]])}
    )
    for axes in swap_traces(run).axes:
        assert line(axes, "before")[:, 0].tolist() == list(range(14))
        shown = ticks(axes, "x")
        assert list(shown.values()) == ["<|im_sta…", "⏎", *(f"w{k}" for k in range(2, 13)), "□"]
        colours = [label.get_color() for label in axes.get_xticklabels()]
        assert [k for k, colour in enumerate(colours) if colour == QUERY] == [13]


def test_runs_without_tokens_show_positions(full: rs.Profile) -> None:
    older = full.traces.drop(columns="token")
    axes = swap_traces(rs.Profile(full.run, {**full.tables, "traces": older})).axes[-1]
    first, second = (older[name].iloc[-1] for name in ("first_block", "second_block"))
    assert axes.get_title(loc="left").endswith(f": blocks {first} and {second} swapped")
    assert (axes.get_xlabel(), ticks(axes, "x")[10.0]) == ("position", "10")


def test_where_there_is_no_room_the_tokens_of_the_swap_come_first(full: rs.Profile) -> None:
    rows = full.traces.assign(position=full.traces["position"] * 9, token="w")
    table = pd.concat([rows.assign(position=rows["position"] + k) for k in range(9)])
    for axes, (_, one) in zip(
        swap_traces(rs.Profile(full.run, {**full.tables, "traces": table})).axes,
        table.groupby("example", sort=False),
        strict=True,
    ):
        shown = sorted(ticks(axes, "x"))
        assert np.diff(shown).min() > 1
        swapped = one[one["block"].isin([one["first_block"].iloc[0], one["second_block"].iloc[0]])]
        assert {swapped["position"].min(), one["position"].max()} <= set(shown)


def test_attention_above_all_blocks_is_cut_and_said(full: rs.Profile) -> None:
    rows = full.traces.copy()
    outside = rows["position"] == 0
    rows.loc[outside, ["block", "attention", "attention_swapped"]] = -1, 7.5, 7.5
    axes = swap_traces(rs.Profile(full.run, {**full.tables, "traces": rows})).axes[0]
    assert [text.get_text() for text in axes.texts] == ["7.50 ↑"]
    assert axes.get_ylim()[1] < 2
    rows.loc[~outside, ["attention", "attention_swapped"]] = 0.0  # a head that looks at nothing else
    axes = swap_traces(rs.Profile(full.run, {**full.tables, "traces": rows})).axes[0]
    assert axes.get_ylim() == (0, 0.05 * 7.5)


def test_vectors_meet_after_turning_by_their_distance(full: rs.Profile) -> None:
    rows = full.vectors[full.vectors["example"] == "most positional"]
    column = list(full.vectors["example"].unique()).index("most positional")
    figure = vectors(full)
    upper, lower = figure.axes[column], figure.axes[column + full.vectors["example"].nunique()]
    keys, query = rows[rows["kind"] == "key"], rows[rows["kind"] == "query"].iloc[0]
    still = keys["re"].to_numpy() + 1j * keys["im"].to_numpy()
    distance = keys["position"].to_numpy(dtype=float) - float(query["position"])
    met = still * np.exp(1j * distance * float(query["angle"]))
    np.testing.assert_allclose(points(upper), np.column_stack((still.real, still.imag)), rtol=1e-5)
    np.testing.assert_allclose(points(lower), np.column_stack((met.real, met.imag)), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(upper.collections[0].get_array(), keys["position"])


def test_answers_by_place_are_the_tables(found: rs.Profile) -> None:
    asked = np.arange(24)
    answers = pd.DataFrame(
        {
            "correct": (asked < 6).astype(float),
            "asked_block": asked.astype(float),
            "log_likelihood": -0.1 * asked,
            "asked_attention": 0.01 * asked,
        }
    )
    run = rs.Profile(found.run, {**found.tables, "answers": answers})
    table = run.by_position(4)
    for axes, column in zip(
        by_position(run, 4).axes, ("accuracy", "log_likelihood", "asked_attention"), strict=True
    ):
        np.testing.assert_allclose(bars(axes), table[["place", column]])
    assert table["accuracy"].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(("name", "panels"), [("plane", 1), ("depth", 2), ("layer_map", 3)])
def test_figures_are_drawn_into_axes_of_ones_own(name: str, panels: int, full: rs.Profile) -> None:
    figure = Figure()
    axes = figure.subplots(1, 3)
    own = axes[:panels] if panels > 1 else axes[0]
    assert getattr(rs.figures, name)(full, ax=own) is figure
    assert [bool(ax.collections or ax.images or ax.lines) for ax in axes] == [k < panels for k in range(3)]
    with pytest.raises(RotoscopeError, match=f"this figure has {panels} panel"):
        getattr(rs.figures, name)(full, ax=[axes[0]] * (panels + 1))


HEADS = {"this one": (1, 2), "that one": (0, 3)}


@pytest.mark.parametrize(
    ("name", "panels", "given"),
    [("swap_traces", 3, ()), ("vectors", 6, ()), ("frequency_profiles", 2, (HEADS,)), ("frequency_norms", 2, (HEADS,)),
     ("head_paths", 2, (HEADS,)), ("frequency_grid", 1, ())],
)  # fmt: skip
def test_other_figures_of_a_profile_are_drawn_into_axes_of_ones_own(
    name: str, panels: int, given: tuple[Any, ...], full: rs.Profile
) -> None:
    figure = Figure()
    axes = figure.subplots(1, panels, squeeze=False)[0]
    assert getattr(rs.figures, name)(full, *given, ax=axes) is figure
    assert all(ax.has_data() for ax in axes)
    assert not figure.legends
    assert not figure.texts


def test_what_was_measured_stands_under_medians_by_depth(full: rs.Profile) -> None:
    for draw in (rs.figures.depth, rs.figures.frequency_summary):
        assert "3 prompts" in footer(draw(full))


def test_the_legend_stands_beside_the_plane_where_there_is_room(full: rs.Profile) -> None:
    """And under it in a paper's column; in both nothing is cut."""
    for width, is_beside in ((None, True), (COLUMN_WIDTH, False)):
        figure = plane(full) if width is None else plane(full, width=width)
        figure.draw_without_rendering()
        [axes] = figure.axes
        panel, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
        assert (legend.x0 > panel.x1, legend.y1 < panel.y0) == (is_beside, not is_beside)
        assert faults(figure) == []


def test_commas_are_not_labelled(full: rs.Profile) -> None:
    rows = full.traces
    words = [",", " red", ".", " blue", "\n", "2"]
    rows = rows.assign(token=[words[position % len(words)] for position in rows["position"]])
    figure = rs.figures.swap_traces(rs.Profile(full.run, {**full.tables, "traces": rows}))
    labels = {label for axes in figure.axes for label in ticks(axes, "x").values()}
    assert {"red", "blue", "2"} <= labels
    assert not {",", "."} & labels
