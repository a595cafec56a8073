"""Figures of canonical runs, gating and the theory show what was computed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments import figures as draw
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.gate.result import Gating
from rotoscope.runs.record import RunRecord
from rotoscope.scores.constructions import positional_target_weight, symbolic_target_weight
from rotoscope.scores.discrepancy import index_worst, retrieval_worst
from rotoscope.tasks.multihop import number
from tests.figures.drawn import bars, footer, image, line, names, points, ticks

THETAS = {"index": (0.0, 0.01, 0.1, 1.0), "induction, two angles": (0.01, 0.1, 1.0)}
SETTINGS = dict.fromkeys(("keys", "symbols", "entities", "seeds", "steps", "batch", "tested"), 2)


@pytest.fixture(scope="module")
def canonical() -> Canonical:
    """Two experiments, one of which leaves NoPE out; the accuracy says which angle and step it is."""
    places = [(name, theta) for name, thetas in THETAS.items() for theta in thetas]
    accuracy = [
        {
            "experiment": name,
            "theta": theta,
            "seed": seed,
            "step": step,
            "accuracy": theta / 2 + step / 100 + seed / 50,
        }
        for name, theta in places
        for seed in (0, 1)
        for step in (0, 10)
    ]
    positions = [
        {"experiment": "index", "theta": theta, "seed": 0, "step": 10, "position": p, "accuracy": 0.5,
         "target_weight": abs(p - 2) * theta}
        for theta in (0.01, 0.1)
        for p in range(5)
    ]  # fmt: skip
    scores = [
        {"experiment": name, "theta": theta, "seed": 0, "positional_score": theta, "symbolic_score": 1 - theta}
        for name, theta in places
    ]
    vectors = [
        {
            "experiment": "index",
            "theta": 0.1,
            "step": step,
            "kind": kind,
            "row": row,
            "re": 2.0,
            "im": 0.0 if kind == "key" else 2.0,
        }
        for step in (0, 10)
        for kind in ("key", "query")
        for row in range(3)
    ]
    tables = {"accuracy": accuracy, "positions": positions, "scores": scores, "vectors": vectors}
    return Canonical(RunRecord(settings=SETTINGS), {name: pd.DataFrame(rows) for name, rows in tables.items()})


def test_accuracy_by_angle(canonical: Canonical) -> None:
    axes = draw.canonical_accuracy(canonical).axes[0]
    found = line(axes, "induction, two angles")
    np.testing.assert_allclose(found, [(theta, theta / 2 + 0.11) for theta in (0.01, 0.1, 1.0)])
    nope = line(axes, "index")[0]
    assert nope == pytest.approx([0.01 / 4, 0.11])  # set apart at the left


def test_every_row_of_steps_stands_at_its_own_angle(canonical: Canonical) -> None:
    """Panels share their axis, so an angle that one experiment leaves out is an empty row there."""
    panels = draw.canonical_steps(canonical).axes[:2]
    for axes, name in zip(panels, THETAS, strict=True):
        assert axes.get_title(loc="left").replace("\n", " ") == name
        grid, marks = image(axes), ticks(axes, "y")
        assert list(marks.values()) == ["NoPE", "0.01", "0.1", "1"]
        for row, mark in marks.items():
            theta = 0.0 if mark == "NoPE" else float(mark)
            expected = [theta / 2 + 0.01, theta / 2 + 0.11] if theta in THETAS[name] else [np.nan, np.nan]
            np.testing.assert_allclose(grid[int(row)], expected)
        assert axes.get_ylim() == (-0.5, 3.5)


def test_positions_scores_and_vectors(canonical: Canonical) -> None:
    axes = draw.canonical_positions(canonical).axes[0]
    assert names(axes) == ("position of the answer", "weight on the target")
    np.testing.assert_allclose(line(axes, "θ = 0.1"), [(p + 1, abs(p - 2) * 0.1) for p in range(5)])
    right = draw.canonical_scores(canonical).axes[1]
    np.testing.assert_allclose(
        line(right, "symbolic score"), [(theta, 1 - theta) for theta in (0.01, 0.1, 1.0)]
    )
    np.testing.assert_allclose(line(right, "positional score"), [(theta, theta) for theta in (0.01, 0.1, 1.0)])
    first = draw.canonical_vectors(canonical).axes[0]
    assert [group.get_label() for group in first.collections] == ["query directions", "key directions"]
    np.testing.assert_allclose(points(first, 0), np.sqrt(0.5))
    assert points(first, 1).tolist() == [[1.0, 0.0]] * 3


def test_random_heads_are_said_to_be_shown_fewer_prompts(gating: Gating) -> None:
    rows = gating.conditions.assign(head_group="symbolic")
    own = pd.concat([rows.assign(prompt=k) for k in range(8)])
    random = rows[rows["first_id"] > 0].assign(control=True)
    drawn = pd.concat([random.assign(prompt=k, draw=draw) for k in range(2) for draw in range(3)])
    run = Gating(gating.run, {"conditions": pd.concat([own, drawn], ignore_index=True)})
    assert "of random heads 95 % of 3 draws, on 2 of the prompts" in footer(draw.gate_bands(run))
    assert "random heads" not in footer(draw.gate_bands(gating))


def test_loss_by_band(gating: Gating) -> None:
    axes = draw.gate_bands(gating).axes
    for panel, action, loss in ((axes[0], "kept", 1.0), (axes[1], "removed", 5.0)):
        assert panel.get_title(loc="left") == f"one band {action}"
        np.testing.assert_allclose(bars(panel), [(1.5, loss + 1), (3.5, loss + 3)])
        assert set(line(panel, "nothing gated")[:, 1]) == {0.5}


def test_the_path_jumps_from_token_to_token() -> None:
    one = number(hops=3, count=1, seed=0)[0]
    axes = draw.hop_path(one).axes[0]
    jumps = [patch._posA_posB for patch in axes.patches]
    assert [(a[0], b[0]) for a, b in jumps] == list(zip(one.path, one.path[1:], strict=False))
    assert [text.get_text() for text in axes.texts][::2] == list(one.tokens)


def test_curves_of_the_theory() -> None:
    left, right = draw.discrepancies(longest=20).axes
    fast, slow = 10_000 ** (-2 / 128), 10_000 ** (-82 / 128)
    lengths = range(3, 21)
    np.testing.assert_allclose(line(left, "worst input"), [(n, index_worst(fast, n)) for n in lengths])
    np.testing.assert_allclose(line(right, "worst input"), [(n, retrieval_worst(8, slow, n)) for n in lengths])
    np.testing.assert_allclose(
        line(right, "worst input, θ = 0"), [(n, retrieval_worst(8, 0.0, n)) for n in lengths]
    )
    left, right = draw.target_weights(keys=8).axes
    np.testing.assert_allclose(line(left, "Nθ = 1π")[:, 1], positional_target_weight(8, np.pi / 8, 5.0))
    np.testing.assert_allclose(line(right, "Nθ = 1π")[:, 1], symbolic_target_weight(8, np.pi / 8, 5.0))


def test_positional_logits_stay_and_symbolic_ones_move() -> None:
    upper, lower = draw.permuted_logits().axes
    np.testing.assert_allclose(line(upper, "before")[:, 1], line(upper, "after")[:, 1])
    order = [int(k) - 1 for k in lower.get_xlabel().split("to ")[1].split()]
    np.testing.assert_allclose(line(lower, "after")[:, 1], line(lower, "before")[order, 1])
    assert not np.allclose(line(lower, "after")[:, 1], line(lower, "before")[:, 1])


def test_arrows_of_the_constructions() -> None:
    left, right = draw.construction_vectors().axes
    assert [text.get_text() for text in left.texts if text.get_text()] == ["keys", *"123456"]
    ends = {text.get_text(): text.get_position() for text in right.texts if text.get_text()}
    angles = [np.arctan2(ends[name][1], ends[name][0]) for name in "ABCDEFGH"]
    np.testing.assert_allclose(np.abs(np.diff(np.unwrap(angles))), 2 * np.pi / 8, atol=0.01)
