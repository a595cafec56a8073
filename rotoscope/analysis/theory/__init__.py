"""Every theorem and erratum of the two papers as something one can run."""

from rotoscope.analysis.theory.run import run_theory as run_theory
from rotoscope.analysis.theory.statement import Evidence as Evidence
from rotoscope.analysis.theory.statement import Statement as Statement
from rotoscope.analysis.theory.statements import STATEMENTS as STATEMENTS
