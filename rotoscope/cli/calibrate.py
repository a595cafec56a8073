"""`rotoscope calibrate`: how often a verdict is wrong."""

from __future__ import annotations

from typing import Any

from rotoscope.cli.command import command
from rotoscope.progress import says_loading
from rotoscope.settings import CalibrateSettings, Output

TRAINED = ["statistic", "value", "low", "high", "null_value", "null_low", "null_high", "p_value", "verdict"]


@command
def calibrate(*, settings: CalibrateSettings, output: Output) -> int:
    """Put models that learned nothing in the subject's place: how often is one called beyond the null?

    Example: rotoscope calibrate --repetitions 40
    """
    with says_loading():
        from rotoscope.analysis.calibration import calibrate as judge
        from rotoscope.cli.summary import end, show_table
        from rotoscope.cli.terminal import new_console

    console = new_console()
    folder = output.folder("calibration")
    place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    result = judge(settings, device=output.device, **place)
    title = "random subjects with any statistic beyond the null: at most 5 % should have one (95 % intervals)"
    show_table(console, result.errors(), title, folder / "errors.csv")
    title = "the same for every statistic by itself, over all of them"
    show_table(console, result.by_statistic(), title, folder / "by_statistic.csv")
    if len(result.trained):
        title = f"{settings.trained}, which learned something"
        show_table(console, result.trained[TRAINED], title, folder / "trained.csv")
    return end(console, result, folder, draw=output.figures)
