"""What breaks when heads lose frequencies, or are silenced?"""

from rotoscope.experiments.registry import Experiment, PromptChoice, ResultKind

EXPERIMENT = Experiment(
    name="gate",
    question="What breaks when heads lose frequencies, or are silenced?",
    example="rotoscope gate smollm2 --task repeats --keep 1-8 --heads symbolic --out runs/gate",
    about=(
        "Without --keep, --remove or --silence, every band is kept alone and removed alone, in all heads and in the heads "
        "of each class, beside random heads from the same layers. --heads-of-class symbolic silences a class whole. Prompts "
        "are eight, of random tokens repeated, unless you say so."
    ),
    settings="settings:GateSettings",
    run="run:gate",
    prompts=PromptChoice(task="repeats", sizes={"pairs": 8, "prompts": 8}),
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
