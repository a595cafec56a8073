"""How far do models generalise to longer inputs?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="lengths",
    question="How far do models generalise to longer inputs?",
    command="command:lengths",
    kinds=(
        ResultKind(
            name="lengths",
            result="result:Lengths",
            title="How far models generalise",
            figures="figures:length_figures",
            tabs={"lengths": "page:lengths_tab"},
            tabled=("heads",),
        ),
    ),
)
