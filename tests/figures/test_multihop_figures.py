"""Figures of training, roles and geometry show the numbers of their results."""

from __future__ import annotations

import numpy as np
import pytest

import rotoscope as rs
from rotoscope import figures as draw
from rotoscope.analysis import find_geometry, find_roles, trace
from rotoscope.maths.purity import CLASSES
from rotoscope.results import Dynamics


@pytest.fixture(scope="module")
def number() -> Dynamics:
    return rs.dynamics("number")


def test_accuracy_curves_are_the_tables(number: Dynamics) -> None:
    axes = draw.training_accuracy(number, rs.dynamics("letter")).axes
    assert [a.get_title() for a in axes] == ["number task", "letter task"]
    curve = next(line for line in axes[0].lines if line.get_label() == "3")
    expected = number.accuracy.query("hops == 3")
    np.testing.assert_allclose(curve.get_ydata(), expected["accuracy"])
    ticks = [float(line.get_xdata()[0]) for line in axes[0].lines if len(line.get_xdata()) == 2]
    assert ticks == number.learned().tolist()


def test_the_plane_at_a_step_shows_that_step(number: Dynamics) -> None:
    axes = draw.plane_over_training(number, steps=[0, 22_500]).axes
    for panel, step in zip(axes, (0, 22_500), strict=False):
        now = number.at().query("step == @step")
        np.testing.assert_allclose(
            panel.collections[0].get_offsets(),
            now[["positional_score", "symbolic_score"]].to_numpy(),
            atol=1e-6,
        )
        assert f"step {step:,}" in panel.get_title()


def test_strips_show_the_class_of_every_head(number: Dynamics) -> None:
    figure = draw.purity_over_training(number, (0.1,))
    mesh = figure.axes[1].collections[0]
    codes = np.asarray(mesh.get_array()).reshape(12, -1)
    final = number.pure_from(0.1)["head_class"].map(CLASSES.index).to_numpy()
    np.testing.assert_array_equal(codes[:, -1], final)
    assert (codes[:, 0] == CLASSES.index("uniform")).all()


def test_every_figure_of_a_run_is_drawn(number: Dynamics, tmp_path) -> None:
    made = dict(draw.training_figures(number))
    assert list(made) == [
        "plane_over_training", "scores_over_training", "purity_over_training", "training_accuracy", "waiting",
    ]  # fmt: skip
    assert len(made["scores_over_training"].axes) == 12
    assert "count from 0" in made["waiting"].get_supxlabel()
    for name, figure in made.items():
        files = draw.save_figure(figure, tmp_path / name)
        assert all(file.stat().st_size > 5000 for file in files)


def test_roles_flow_and_geometry_are_drawn() -> None:
    found = find_roles("letter", inputs=40, fitted=200, device="cpu")
    bars = draw.role_attention(found).axes[0].containers
    np.testing.assert_allclose([bar.get_height() for bar in bars[1]], found.table()["on_pointed"], atol=1e-6)
    curves = draw.answer_arrival(found).axes[3].lines
    expected = found.arrival.query("hops == 4 and path_index == 0")["accuracy"]
    np.testing.assert_allclose(curves[0].get_ydata(), expected)
    grid = draw.legible_flow(found).axes[-2].images[0].get_array()
    assert grid.shape == (13, 5)
    flow = trace("letter", fitted=1000, device="cpu")
    figure = draw.information_flow(flow)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert len(texts) == 13 * 17
    assert texts.count(flow.sequence.answer) >= 13
    shape = find_geometry("letter", inputs=10, device="cpu")
    points = draw.frequency_use(shape).axes[0].lines[0].get_xdata()
    np.testing.assert_allclose(points, shape.weighted_ids()["product_weighted_id"])
    assert len(draw.dominant_planes(shape, layers=[0, 3]).axes) == 6
