"""Figures of training, roles, geometry and lengths show the numbers of their results."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex

import rotoscope as rs
from rotoscope.experiments import figures as draw
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.roles.result import TABLE_1, Geometry, Roles
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.experiments.train.figures import training_figures
from rotoscope.plotting.palette import CLASS_COLOURS, LINE_COLOURS, TASK_COLOURS
from rotoscope.scores.classes import AT_ITS_LAYER
from tests.figures.drawn import footer, image, line, names, points, ticks

pytestmark = pytest.mark.slow

SCORES = ["positional_score", "symbolic_score"]


def test_accuracy_curves_are_the_tables(number: Dynamics) -> None:
    axes = draw.training_accuracy(number, rs.dynamics("letter")).axes
    assert [a.get_title() for a in axes] == ["number task", "letter task"]
    expected = number.accuracy.query("hops == 3")
    np.testing.assert_allclose(line(axes[0], "3"), expected[["step", "accuracy"]])
    marks = [float(one.get_xdata()[0]) for one in axes[0].lines if len(one.get_xdata()) == 2]
    assert marks == number.learned().tolist()


def test_the_plane_at_a_step_shows_that_step(number: Dynamics) -> None:
    axes = draw.plane_over_training(number, steps=[0, 22_500]).axes
    for panel, step in zip(axes, (0, 22_500), strict=False):
        now = number.at().query("step == @step")
        np.testing.assert_allclose(points(panel), now[SCORES], atol=1e-6)
        np.testing.assert_array_equal(panel.collections[0].get_array(), now["layer"])
        assert f"step {step:,}" in panel.get_title()
        assert names(axes[0]) == ("positional score", "symbolic score")


def test_every_head_has_its_curves(number: Dynamics) -> None:
    axes = draw.scores_over_training(number).axes
    assert [a.get_title() for a in axes] == [f"{layer}:0" for layer in range(12)]
    track = number.at().query("layer == 7").sort_values("step")
    for label, column in (
        ("positional", SCORES[0]),
        ("symbolic", SCORES[1]),
        ("entropy", "relative_entropy"),
    ):
        np.testing.assert_allclose(line(axes[7], label), track[["step", column]], atol=1e-6)


def test_strips_show_the_class_of_every_head(number: Dynamics) -> None:
    figure = draw.purity_over_training(number, (0.1,))
    mesh = figure.axes[1].collections[0]
    codes = np.asarray(mesh.get_array()).reshape(12, -1)
    final = number.pure_from(0.1)["head_class"].map(AT_ITS_LAYER.index).to_numpy()
    np.testing.assert_array_equal(codes[:, -1], final)
    assert (codes[:, 0] == AT_ITS_LAYER.index("uniform")).all()
    assert [to_hex(mesh.cmap(k)).upper() for k in range(4)] == [CLASS_COLOURS[name] for name in AT_ITS_LAYER]


def test_waiting_marks_when_heads_became_pure(number: Dynamics) -> None:
    axes = draw.waiting(number).axes[0]
    pure = number.pure_from().dropna(subset=["first_pure"])
    marks = {
        (float(one.get_xdata()[0]), float(one.get_ydata()[0]), one.get_marker())
        for one in axes.lines
        if len(one.get_xdata()) == 1
    }
    signs = {"positional": "s", "symbolic": "o"}
    assert marks == {(row.first_pure, row.layer, signs[row.head_class]) for row in pure.itertuples()}
    hops = [float(one.get_xdata()[0]) for one in axes.lines if len(one.get_xdata()) == 2]
    assert hops == number.learned().tolist()
    assert not axes.yaxis_inverted()


def test_an_axis_that_changes_its_scale_is_marked_there(number: Dynamics) -> None:
    for figure in (draw.scores_over_training(number), draw.purity_over_training(number, (0.1,))):
        for axes in figure.axes:
            [mark] = [text for text in axes.texts if text.get_text() == "//"]
            assert mark.get_position() == (2000, 0)
            assert axes.get_xscale() == "symlog"
        assert "linear up to 2,000, logarithmic from there" in footer(figure)
    early = {name: table[table["step"] <= 2000] for name, table in number.tables.items()}
    short = draw.scores_over_training(Dynamics(number.run, early))
    assert short.axes[0].get_xscale() == "linear"
    assert not short.axes[0].texts


def test_a_run_in_which_nothing_happened_has_no_panels_without_a_point(number: Dynamics) -> None:
    """As long as nothing is learned and no head has moved, there is nothing to wait for and one picture of the plane."""
    first = {name: table[table["step"] <= 100] for name, table in number.tables.items()}
    run = Dynamics(number.run, first)
    made = dict(training_figures(run))
    assert "waiting" not in made
    assert len(made["plane_over_training"].axes) == 2  # and the bar of colours
    assert "no number of hops learned" in draw.waiting(run).axes[0].texts[0].get_text()


def test_every_figure_of_a_run_has_its_name(number: Dynamics) -> None:
    assert [name for name, _ in training_figures(number)] == [
        "plane_over_training", "scores_over_training", "purity_over_training", "separation_over_training",
        "training_accuracy", "waiting",
    ]  # fmt: skip


def test_bars_are_shares_of_attention(roles: Roles) -> None:
    axes = draw.role_attention(roles).axes[0]
    table = roles.table()
    bars = {bar.get_label(): np.array([one.get_height() for one in bar]) for bar in axes.containers}
    np.testing.assert_allclose(bars["itself"], table["on_self"], atol=1e-6)
    np.testing.assert_allclose(bars["token pointed at"], table["on_pointed"], atol=1e-6)
    np.testing.assert_allclose(sum(bars.values()), 1, atol=1e-6)
    named = {int(text.get_position()[0]): text.get_text() for text in axes.texts}
    assert named == {k: role[:3] for k, role in enumerate(table["role"]) if role != "none"}


def test_arrival_and_what_is_decodable(roles: Roles) -> None:
    axes = draw.answer_arrival(roles).axes[3]
    assert axes.get_title() == "4 hops"
    for label, place in (("last token", 0), ("1 hop on", 1), ("3 hops on", 3)):
        rows = roles.arrival.query(f"hops == 4 and path_index == {place}")
        np.testing.assert_allclose(line(axes, label), rows[["layer", "accuracy"]])
    panels = {axes.get_title(): axes for axes in draw.decodable_flow(roles).axes}
    for title, place in (("last token", 0), ("3 hops on", 3)):
        rows = roles.flow.query(f"hops == 4 and path_index == {place}").set_index(["layer", "ahead"])
        np.testing.assert_allclose(image(panels[title]), rows["accuracy"].unstack())
        assert list(ticks(panels[title], "x").values())[:2] == ["itself", "+1"]


def test_information_flow_labels_states_and_draws_attention(flow: SimpleNamespace) -> None:
    one, last = flow.sequence, len(flow.sequence.tokens) - 1
    axes = draw.information_flow(flow).axes[0]
    texts = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    assert texts[(0, 1)] == "?"
    assert texts[(last, 2)] == one.tokens[last]
    (arrow,) = [patch for patch in axes.patches if hasattr(patch, "get_arrowstyle")]
    assert arrow._posA_posB == [(float(one.path[1]), 1.3), (last, 1.7)]
    assert "right" in axes.get_title()


def test_frequency_use_and_planes(shape: Geometry) -> None:
    axes = draw.frequency_use(shape, printed=TABLE_1).axes[0]
    grid = shape.use.set_index(["layer", "frequency_id"])["max_logit"].unstack() / 3
    np.testing.assert_allclose(image(axes), grid)
    assert line(axes, "weighted average").tolist() == [[1 + k % 4, k] for k in range(12)]
    assert line(axes, "P2 Table 1").tolist() == [[x, k] for k, x in enumerate(TABLE_1["letter"])]
    assert len(draw.frequency_use(shape).axes[0].lines) == 1
    alike = Geometry(
        shape.run,
        shape.tables
        | {
            "use": shape.use.assign(
                weight=shape.use["layer"].eq(0) * shape.use["weight"] + shape.use["layer"].ne(0) * 0.25
            )
        },
    )
    assert line(draw.frequency_use(alike).axes[0], "weighted average").tolist() == [[1, 0]]
    queries, keys = draw.dominant_planes(shape, layers=[3]).axes[:2]
    assert points(queries).tolist() == [[2.0, 0.5]]  # what looks for a letter
    assert points(keys).tolist() == [[1.0, 0.5], [2.0, 0.5]]
    assert "layer 3, id 4" in queries.get_title()
    assert [text.get_text() for text in queries.texts] == ["b"]
    assert [text.get_text() for text in keys.texts] == ["a"]
    bars = draw.dominant_planes(shape, layers=[3]).axes[2:]
    assert [list(ticks(bar, "y").values()) for bar in bars] == [["b"], ["a"]]


def test_accuracy_by_length(lengths: Lengths) -> None:
    axes = draw.length_accuracy(lengths).axes[0]
    for task, model in (("number", "number-0-22500"), ("letter", "letter-0-22500")):
        curve = lengths.curve().query(f"model == '{model}'")
        np.testing.assert_allclose(line(axes, task), curve[["length", "accuracy"]])
        drawn = next(one for one in axes.lines if one.get_label() == task)
        assert drawn.get_color() == TASK_COLOURS[task]
    assert ticks(axes, "x")[850.0] == "850"


def test_training_budgets_are_told_apart(lengths: Lengths) -> None:
    """Where a run holds trainings of several lengths, the legend names each."""
    models = lengths.classes["model"].unique()
    steps = lengths.classes["model"].map({model: 100 * (k + 1) for k, model in enumerate(models)})
    run = Lengths(lengths.run, lengths.tables | {"classes": lengths.classes.assign(trained_steps=steps)})
    labels = [text.get_text() for text in draw.length_accuracy(run).legends[0].get_texts()]
    assert len(labels) == len(models)
    assert all(label.endswith("00 steps)") for label in labels)


def test_discrepancy_attention_and_prediction_by_length(lengths: Lengths) -> None:
    panel = draw.length_discrepancy(lengths).axes[0]
    gaps = lengths.gaps().query("task == 'number'").sort_values("length")
    kinds = lengths.classes.set_index(["model", "layer"])["head_class"]
    for drawn, layer in zip(panel.lines, range(12), strict=False):
        rows = gaps[gaps["layer"] == layer]
        np.testing.assert_allclose(drawn.get_ydata(), rows["discrepancy"] / rows["discrepancy"].iloc[0])
        assert drawn.get_color() == LINE_COLOURS[kinds[("number-0-22500", layer)]]
    attention, lost = draw.length_attention(lengths, "number-0-22500").axes[:2]
    for axes, column in ((attention, "attention"), (lost, "gap_loss")):
        np.testing.assert_allclose(image(axes), gaps.set_index(["layer", "length"])[column].unstack())
    axes = draw.length_prediction(lengths).axes[0]
    assert names(axes) == ("measured length", "length predicted from training length alone")
    drawn_points = {tuple(np.concatenate(bars.lines[0].get_data())) for bars in axes.containers}
    table = lengths.predictions().query("measured < inf and predicted < inf")
    key = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert key[:4] == ["number task", "letter task", "accuracy below 50 %", "accuracy below 90 %"]
    assert {"positional head", "symbolic head", "mixed head"} <= {
        text.get_text() for text in panel.figure.legends[0].get_texts()
    }
    assert drawn_points == set(table[["measured", "predicted"]].itertuples(index=False, name=None))
