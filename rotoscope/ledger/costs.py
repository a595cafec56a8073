"""P2, appendix I: what it all cost."""

from __future__ import annotations

from rotoscope.lab.result import Training
from rotoscope.ledger.claim import claims
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.verdicts import COST, Finding

MINUTES, HOURS = 60.0, 3600.0
TERABYTES = 1e12


def _both(workshop: Workshop) -> list[Training]:
    """The runs of seed 0 of the two tasks."""
    return [workshop.training(task)[0] for task in ("number", "letter")]


def _less(value: str, spent: float, paper: float, where: str = "") -> Finding:
    """A comparison, which nobody claims."""
    return Finding(value, COST, note=f"{paper / spent:,.0f} times less{where}")


def training_cost(workshop: Workshop) -> Finding:
    runs = _both(workshop)
    spent = sum(run.run.timings["training_s"] for run in runs)
    as_one = runs[0].run.details.get("trained_as_one")
    among = f" of {as_one} trained as one" if as_one else ""
    value = f"{spent / 60:.1f} minutes for both models{among} on {runs[0].run.device}"
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


CLAIMS = claims(
    {
        "p2-cost-training": training_cost,
        "p2-cost-scoring": scoring_cost,
        "p2-cost-storage": storage_cost,
    },
    learned=False,
)
