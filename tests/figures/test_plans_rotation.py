"""A rotation plan, drawn and on its page."""

from __future__ import annotations

from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.experiments.plan.figures import plan_frontier, rotation_map
from rotoscope.experiments.plan.result import RotationPlan
from rotoscope.experiments.registry import figures_of
from rotoscope.report.page import run_payload, write_report
from tests.experiments.test_rotation_plan import SMALL, random_subject


@pytest.fixture(scope="module")
def plan() -> RotationPlan:
    how = SMALL | {"rankings": ("effect", "fastest", "random"), "budgets": (4,), "random_draws": 2}
    how |= {"sources": ("repeats", "text"), "passage": 12, "prompts": 2}
    return rs.plan.rotation(random_subject(), text=_text(), **how)


def _text() -> Path:
    file = Path("words")
    file.write_text(" ".join(f"w{3 + k % 50}" for k in range(400)))
    return file.resolve()


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("plan"))
        yield


def test_lines_are_the_losses(plan: RotationPlan) -> None:
    figure = plan_frontier(plan)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["repeats", "text"]
    for axes, source in zip(figure.axes, ("repeats", "text"), strict=True):
        lines = {line.get_label().split(" (")[0]: line for line in axes.lines}
        for ranking in ("effect", "fastest", "random"):
            rows = plan.frontier[plan.frontier["ranking"].isin((ranking, "any"))]
            expected = rows[rows["source"] == source].sort_values("planes")["loss"].tolist()
            assert lines[ranking].get_ydata().tolist() == pytest.approx(expected)
            assert lines[ranking].get_xdata().tolist() == [0, 2, 4, 8]


def test_the_map_counts_key_heads(plan: RotationPlan) -> None:
    image = rotation_map(plan).axes[0].images[0].get_array()
    assert image.shape == (2, 8)
    for row in plan.plan.itertuples():
        same = plan.plan[(plan.plan["layer"] == row.layer) & (plan.plan["frequency_id"] == row.frequency_id)]
        assert image[row.layer, row.frequency_id - 1] == same["rotates"].sum()
    assert [name for name, _ in figures_of(plan)] == ["rotation_frontier", "rotation_map"]


def test_the_page_has_a_tab(plan: RotationPlan, tmp_path: Path) -> None:
    payload = run_payload(plan)
    assert payload["problems"] == []
    assert payload["title"] == "Planes of tiny that rotate"
    tab = payload["tabs"]["plan"]
    assert [panel["title"] for panel in tab["panels"]] == ["Loss on repeats", "Loss on text"]
    curve = tab["panels"][0]["curves"][0]
    assert (curve["name"], curve["x"]) == ("effect", [0, 2, 4, 8])
    assert {"y", "low", "high"} <= curve.keys()
    assert tab["said"] == plan.sentences()
    assert len(tab["tables"]) == len(plan.overview())
    assert "rotating, chosen by" in write_report(tmp_path / "one.html", plan).read_text(encoding="utf-8")
    assert write_report(tmp_path / "two.html", plan, plan).is_file()
