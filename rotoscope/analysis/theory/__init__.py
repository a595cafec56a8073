"""Every theorem and erratum of the two papers as something one can run."""

from rotoscope.analysis.theory.run import run_theory
from rotoscope.analysis.theory.statement import Evidence, Statement
from rotoscope.analysis.theory.statements import STATEMENTS

__all__ = ["STATEMENTS", "Evidence", "Statement", "run_theory"]
