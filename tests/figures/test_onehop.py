from __future__ import annotations

import numpy as np

from rotoscope.experiments.ask.figures import one_hop_accuracy
from rotoscope.experiments.ask.result import TABLE_3
from rotoscope.plotting.palette import TASK_COLOURS
from tests.figures.drawn import footer
from tests.runs.test_onehop import made


def test_draws_accuracy_chance_and_the_papers_curves() -> None:
    run = made({("number", 12, 0, 1)})
    figure = one_hop_accuracy(run, printed=TABLE_3)
    left, right = figure.axes
    table = run.accuracy().set_index(["task", "length"])
    for ax, task, hue in ((left, "number", TASK_COLOURS["number"]), (right, "letter", TASK_COLOURS["letter"])):
        own = next(bars for bars in ax.containers if bars.get_label() == "own answer")
        assert np.allclose(own.lines[0].get_ydata(), table.loc[task, "mean"])
        assert own.lines[0].get_color() == hue
        lines = {line.get_label(): line for line in ax.lines}
        assert np.allclose(lines["chance"].get_ydata(), table.loc[task, "chance"])
        assert len(lines["GPT 5.4 (P2)"].get_xdata()) == 10
    assert "knows; 2 runs, 8 questions per point" in footer(figure)
