"""What breaks when heads lose frequencies, or are silenced?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="gate",
    question="What breaks when heads lose frequencies, or are silenced?",
    command="command:gate",
    kinds=(
        ResultKind(
            name="gating",
            result="result:Gating",
            title="Gating of {name}",
            figures="figures:gate_figures",
            picture="gate_bands",
        ),
    ),
)
