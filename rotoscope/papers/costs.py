"""P2, appendix I: what it all cost."""

from __future__ import annotations

from rotoscope.papers.claim import Claim, Finding, judged
from rotoscope.papers.workshop import Workshop
from rotoscope.results import Training

__all__ = ["CLAIMS"]

HOURS = 3600.0


def _both(workshop: Workshop) -> list[Training]:
    """The runs of seed 0 of the two tasks."""
    return [workshop.training(task)[0] for task in ("number", "letter")]


def training_cost(workshop: Workshop) -> Finding:
    runs = _both(workshop)
    spent = sum(run.run.timings["training_s"] for run in runs)
    paper = 55 * 60.0
    value = f"{spent / 60:.1f} minutes for both models on {runs[0].run.device}"
    return Finding(
        value,
        judged(spent < paper),
        note=f"{paper / spent:.0f} times less, on other hardware",
        rests_on=workshop.trained_where,
    )


def scoring_cost(workshop: Workshop) -> Finding:
    runs = _both(workshop)
    spent = sum(run.run.timings["watching_s"] for run in runs)
    paper = (10 + 17) * HOURS
    steps = sum(run.tables["scores"]["step"].nunique() for run in runs)
    value = f"{spent:.0f} seconds for {steps} scored checkpoints of both models"
    return Finding(
        value,
        judged(spent < paper),
        note=f"{paper / spent:,.0f} times less, on other hardware and at our choice of checkpoints",
        rests_on=workshop.trained_where,
    )


def storage_cost(workshop: Workshop) -> Finding:
    runs = _both(workshop)
    stored = sum(
        f.stat().st_size for run in runs if run.folder is not None for f in run.folder.glob("*.parquet")
    )
    return Finding(
        f"{stored / 1e6:.2f} MB of scores and accuracies",
        judged(stored < 2e12),
        note=f"{2e12 / stored:,.0f} times less",
        rests_on=workshop.trained_where,
    )


CLAIMS = [
    Claim("p2-cost-training", "p2", "appendix I", "training both models", "55 minutes (three RTX A5000)", "takes less here", training_cost, "gpu"),
    Claim("p2-cost-scoring", "p2", "appendix I", "scoring both models along training", "10 GPU hours and 17 CPU hours", "takes less here", scoring_cost, "gpu"),
    Claim("p2-cost-storage", "p2", "appendix I", "what has to be stored", "2.0 TB of attention maps", "takes less here", storage_cost, "gpu"),
]  # fmt: skip
