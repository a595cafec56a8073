"""Which task can one head learn at which frequency?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="canonical",
    question="Which task can one head learn at which frequency?",
    command="command:canonical",
    kinds=(
        ResultKind(
            name="canonical",
            result="result:Canonical",
            title="One-head models at single frequencies",
            figures="figures:canonical_figures",
            tabs={"canonical": "page:canonical_tab"},
            tabled=("accuracy", "positions", "vectors", "scores"),
            picture="accuracy",
        ),
    ),
)
