"""Where does the place come from that a symbolic head follows?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="depths",
    question="Swap blocks at the input of some layers: where does a head's place come from?",
    command="command:depths",
    kinds=(
        ResultKind(
            name="depths",
            result="result:SwapDepths",
            title="Heads of {name} by depth of the swap",
            figures="figures:depth_figures",
            tabs={
                "overview": "rotoscope.experiments.profile.page:heads_tab",
                "depths": "page:depths_tab",
                "writers": "page:writers_tab",
            },
            tabled=("heads", "turns", "attention", "shown_prompt", "prompts", "null_prompts", "writers"),
            comparison="rotoscope.experiments.compare:HeadScores",
            picture="depth_map",
            classes="turns",
        ),
        ResultKind(
            name="turnover",
            result="turnover:TurnoverStudy",
            title="Where place turns into symbol in {name}",
            figures="turnover_figures:turnover_figures",
            picture="turnover_layers",
            accuracy="tasks",
        ),
    ),
)
