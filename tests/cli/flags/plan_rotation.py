"""`rotoscope plan rotation`: what only this decision has."""

from __future__ import annotations

from tests.cli.flags.effect import Effect, Outcome, Refused, Table, every

PLANES = (
    "plan rotation {model} --sources repeats --length 6 --prompts 2 --planes 2 --plane-budgets 4 --plane-rankings fastest effect "
    "--path-points 1 --no-figures"
)
DRAWN = "plan rotation {model} --sources repeats --length 6 --prompts 2 --planes 2 --plane-budgets 4 --plane-rankings random --no-figures"


def rotating(outcome: Outcome) -> int:
    return int(outcome.result.plan["rotates"].sum())


def draws(outcome: Outcome) -> int:
    return int(outcome.result.frontier["draw"].nunique())


def effects(outcome: Outcome) -> list[float]:
    return outcome.result.scores["effect"].tolist()


FLAGS: Table = {
    "planes": (
        Effect(PLANES, "--planes 3", rotating, 3 * 4),
        Refused(PLANES, "--planes 9", "and a head of model has 8: ask for at most 8 (--planes)"),
    ),
    "plane_budgets": Effect(
        PLANES, "--plane-budgets 1 5", lambda o: sorted(every(o, "frontier", "planes")), [0, 1, 2, 5, 8]
    ),
    "plane_rankings": Effect(
        PLANES, "--plane-rankings norm", lambda o: sorted(every(o, "selection", "ranking")), ["norm"]
    ),
    "plane_draws": Effect(DRAWN, "--plane-draws 2", draws, 3),  # and the ends, which are no draws
    "path_points": Effect(PLANES, "--path-points 3", effects),
}
