"""Do the papers' theorems hold? Every statement, put to the test."""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="theory",
    question="Do the papers' theorems hold? Every statement, put to the test.",
    command="command:theory",
    kinds=(
        ResultKind(
            name="theory",
            result="result:TheoryRun",
            title="Statements of both papers, checked",
            figures="figures:theory_figures",
            tabs={"theory": "result:theory_tab"},
            tabled=("statements",),
        ),
    ),
)
