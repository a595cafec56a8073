"""Random models in the subject's place: what is called beyond the null about them is an error."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.analysis import calibrate, calibration
from rotoscope.analysis.calibration import random_prompts, random_subject
from rotoscope.errors import RotoscopeError
from rotoscope.results import Calibration, RunRecord
from rotoscope.results.onehop import wilson

QUICK: dict[str, Any] = {
    "repetitions": 2,
    "scales": (0.02,),
    "prompts": (4,),
    "trained": "none",
    "show_progress": False,
}


def made_up(beyond: dict[tuple[float, int], list[int]]) -> Calibration:
    """For each cell how many of two statistics each subject has beyond the null."""
    rows = [
        {"scale": scale, "prompts": prompts, "repetition": r, "statistic": name, "verdict": verdict}
        for (scale, prompts), counts in beyond.items()
        for r, count in enumerate(counts)
        for name, wrong in (("decline", count > 0), ("rise", count > 1))
        for verdict in ["beyond the null" if wrong else "also in the null"]
    ]
    return Calibration(
        RunRecord(settings={"repetitions": 4, "null_draws": 5}), {"subjects": pd.DataFrame(rows)}
    )


def test_errors_are_counted_by_subject_and_by_statistic() -> None:
    found = made_up({(0.02, 6): [0, 2, 0, 0], (0.1, 16): [1, 1, 2, 1]})
    errors = found.errors().set_index(["scale", "prompts"])
    assert errors.loc[(0.02, 6), ["subjects", "beyond", "share"]].tolist() == [4, 1, 0.25]
    assert errors.loc[(0.1, 16), ["low", "high"]].tolist() == pytest.approx(wilson(4, 4))
    each = found.by_statistic().set_index("statistic")
    assert each["beyond"].to_dict() == {"decline": 5, "rise": 2}
    assert each["subjects"].tolist() == [8, 8]
    [caveat] = found.caveats()
    assert "at scale 0.1 and 16 prompts 4 of 4 random subjects are beyond the null" in caveat
    assert repr(found) == "Calibration(5 of 8 random subjects beyond the null)"


def test_random_subjects_are_not_beyond_the_null(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the defaults of every profile; a killed calibration goes on with the subject it was at."""
    judged, seeds = calibration.profile, []

    def limited(*subject: Any, seed: int, **how: Any) -> rs.Profile:
        if len(seeds) == 1 and "resumed" not in seeds:
            raise KeyboardInterrupt
        seeds.append(seed)
        return judged(*subject, seed=seed, **how)

    monkeypatch.setattr(calibration, "profile", limited)
    with pytest.raises(KeyboardInterrupt):
        calibrate(out=tmp_path / "run", **QUICK)
    seeds.append("resumed")
    calibrate(out=tmp_path / "run", **QUICK)
    assert len(seeds) == 3  # one subject before, one after
    assert seeds[0] != seeds[2]
    found = rs.open(tmp_path / "run", Calibration)
    assert found.errors()[["subjects", "beyond"]].to_numpy().tolist() == [[2, 0]]
    assert set(found.subjects["verdict"]) <= {"also in the null", "no verdict"}
    assert (found.subjects["null_draws"] == 5).all()
    values = found.subjects.pivot(index="statistic", columns="repetition", values="null_value")
    assert (values[0] != values[1]).any()  # each with draws of its own


def test_a_random_subject_is_a_draw_with_the_scale_asked_for() -> None:
    subject = random_subject(0.1, 3)
    weights = [w for w in subject.model.parameters() if w.ndim == 2]
    assert torch.cat([w.flatten() for w in weights]).std().item() == pytest.approx(0.1, rel=0.02)
    config = subject.model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (8, 6)
    other = random_subject(0.1, 4)
    assert not torch.equal(weights[0], next(other.model.parameters()))
    prompts = random_prompts(3, 0)
    assert (len(prompts), prompts.longest, len(prompts[0].blocks)) == (3, 50, 12)
    assert prompts[0].tokens != random_prompts(3, 1)[0].tokens


def test_numbers_without_a_verdict_are_refused() -> None:
    with pytest.raises(RotoscopeError, match="prompts must be at least 2.*standard error"):
        calibrate(**{**QUICK, "prompts": (1,)})
    with pytest.raises(RotoscopeError, match="null_draws must be at least 2.*verdict"):
        calibrate(**QUICK, null_draws=1)


@pytest.mark.slow
def test_the_table_of_the_documentation() -> None:
    """At most 4 of 40 at every scale and number of prompts, and the trained model's decline is found."""
    found = calibrate(show_progress=False)
    assert found.errors()["beyond"].max() <= 4
    trained = found.trained.set_index("statistic")
    assert trained.loc["positional decline", "verdict"] == "beyond the null"
    assert trained.loc["positional decline", "value"] > 0.1
