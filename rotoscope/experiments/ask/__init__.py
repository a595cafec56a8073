"""How well does a language model answer one-hop questions, by length?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="ask",
    question="How well does a language model answer one-hop questions, by length?",
    command="command:ask",
    kinds=(
        ResultKind(
            name="onehop",
            result="result:OneHopRun",
            title="One-hop questions to {name}",
            figures="figures:one_hop_figures",
            tabs={"lengths": "rotoscope.experiments.lengths.page:one_hop_tab"},
            picture="one_hop_accuracy",
        ),
    ),
)
