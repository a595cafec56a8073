"""Figures of a monitored language model: no hops, many heads, few steps, a null."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from rotoscope.experiments import figures as draw
from rotoscope.experiments.train.figures import training_figures
from tests.figures.drawn import footer, line, ticks
from tests.monitored import monitored

SELDOM = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def test_separation_beside_accuracy_and_null() -> None:
    run = monitored([0, 300, 600], draws=19)
    figure = draw.separation_over_training(run)
    accuracy, apart, pure = figure.axes
    found = run.separation()
    np.testing.assert_allclose(line(accuracy, "0")[:, 1], run.accuracy["accuracy"])
    np.testing.assert_allclose(line(apart, "heads"), found[["step", "separation"]])
    np.testing.assert_allclose(line(pure, "heads"), found[["step", "pure_share"]])
    (band,) = [one for one in apart.collections if isinstance(one, PolyCollection)]
    ends = band.get_paths()[0].vertices[:, 1]
    assert ends.min() == pytest.approx(found["separation_null_low"].min())
    assert ends.max() == pytest.approx(found["separation_null_high"].max())
    assert "6 heads" in footer(figure)
    assert "null: 19 draws" in footer(figure)
    bare = draw.separation_over_training(monitored([0, 300], accuracy=False))
    assert len(bare.axes) == 2
    assert "no null" in footer(bare)


def test_of_many_heads_those_that_moved_furthest() -> None:
    run = monitored([0, 300, 600], 9, 3)
    still = {(layer, head) for layer in range(9) for head in range(3) if (3 * layer + head) % 3 == 2}
    figure = draw.scores_over_training(run)
    shown = [tuple(map(int, axes.get_title().split(":"))) for axes in figure.axes]
    assert len(shown) == 24
    assert shown == sorted(shown)
    assert len(still & set(shown)) == 6  # 18 of 27 move, so three that stay are left out
    assert "24 of 27 heads: those that moved furthest from where they began" in footer(figure)
    assert "moved" not in footer(draw.scores_over_training(monitored([0, 300])))


def test_accuracy_without_hops_is_on_the_prompts() -> None:
    figure = draw.training_accuracy(monitored([0, 300, 600]))
    (axes,) = figure.axes
    assert axes.get_ylabel() == "accuracy on the prompts"
    assert figure.legends == []
    assert footer(figure).startswith("8 prompts;")
    assert draw.purity_over_training(monitored([0, 300, 600]), (0.1,)).axes[0].get_legend() is None


def test_figures_there_are() -> None:
    names = lambda run: [name for name, _ in training_figures(run)]  # noqa: E731
    some = ["plane_over_training", "scores_over_training", "purity_over_training", "separation_over_training"]
    assert names(monitored([0, 300], 1, 3)) == [*some, "training_accuracy"]
    assert names(monitored([0, 300], 1, 3, accuracy=False)) == some
    assert names(monitored([300], 1, 3)) == some[:1]


def test_steps_looked_at_more_and_more_seldom() -> None:
    figure = draw.training_accuracy(monitored(SELDOM))
    assert figure.axes[0].get_xscale() == "symlog"
    assert ticks(figure.axes[0], "x") == {0: "0", 1: "1", 10: "10", 100: "100", 1000: "1k"}
    assert "linear up to 1, logarithmic from there" in footer(figure)
    evenly = draw.training_accuracy(monitored([*range(0, 50_000, 1000)], 1, 1))
    assert evenly.axes[0].get_xscale() == "linear"
    assert "logarithmic" not in footer(evenly)


def test_many_heads_fit_a_page() -> None:
    assert draw.purity_over_training(monitored([0, 300], 30, 1)).get_figheight() <= 9.0
