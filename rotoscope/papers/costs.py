"""P2, appendix I: what it all cost."""

from __future__ import annotations

from rotoscope.papers.claim import Claim, Finding, judged
from rotoscope.papers.workshop import Workshop
from rotoscope.results import Training

__all__ = ["CLAIMS"]

MINUTES, HOURS = 60.0, 3600.0
TERABYTES = 1e12


def _both(workshop: Workshop) -> list[Training]:
    """The runs of seed 0 of the two tasks."""
    return [workshop.training(task)[0] for task in ("number", "letter")]


def _less(value: str, spent: float, paper: float, where: str = "") -> Finding:
    """Reproduced where it takes less here."""
    times = paper / spent
    return Finding(value, judged(spent < paper), note=f"{times:,.0f} times less{where}")


def training_cost(workshop: Workshop) -> Finding:
    runs = _both(workshop)
    spent = sum(run.run.timings["training_s"] for run in runs)
    value = f"{spent / 60:.1f} minutes for both models on {runs[0].run.device}"
    return _less(value, spent, 55 * MINUTES, ", on other hardware")


def scoring_cost(workshop: Workshop) -> Finding:
    runs = _both(workshop)
    spent = sum(run.run.timings["watching_s"] for run in runs)
    steps = sum(run.tables["scores"]["step"].nunique() for run in runs)
    value = f"{spent:.0f} seconds for {steps} scored checkpoints of both models"
    return _less(value, spent, (10 + 17) * HOURS, ", on other hardware and at our choice of checkpoints")


def storage_cost(workshop: Workshop) -> Finding:
    folders = [run.folder for run in _both(workshop) if run.folder is not None]
    stored = sum(file.stat().st_size for folder in folders for file in folder.glob("*.parquet"))
    return _less(f"{stored / 1e6:.2f} MB of scores and accuracies", stored, 2 * TERABYTES)


CLAIMS = [
    Claim(
        id="p2-cost-training",
        paper="p2",
        where="appendix I",
        statement="training both models",
        paper_value="55 minutes (three RTX A5000)",
        rule="takes less here",
        needs="training",
        compute=training_cost,
    ),
    Claim(
        id="p2-cost-scoring",
        paper="p2",
        where="appendix I",
        statement="scoring both models along training",
        paper_value="10 GPU hours and 17 CPU hours",
        rule="takes less here",
        needs="training",
        compute=scoring_cost,
    ),
    Claim(
        id="p2-cost-storage",
        paper="p2",
        where="appendix I",
        statement="what has to be stored",
        paper_value="2.0 TB of attention maps",
        rule="takes less here",
        needs="training",
        compute=storage_cost,
    ),
]
