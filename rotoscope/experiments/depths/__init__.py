"""Where does the place come from that a symbolic head follows?"""

from rotoscope.experiments.registry import Experiment, PromptChoice, ResultKind

EXPERIMENT = Experiment(
    name="depths",
    question="Swap blocks at the input of some layers: where does a head's place come from?",
    example="rotoscope depths smollm2 --task binding --pairs 32 --at 0 own --out runs/depths",
    about=(
        "A head that follows the symbol at its own layer may still stay in place when the prompt itself is permuted: then "
        "earlier layers wrote the place into the states that it reads. Depth 0 is the prompt, own is the papers' score. "
        "--writers then silences heads below such heads, to find which of them wrote it."
    ),
    settings="settings:DepthsSettings",
    run="run:depths",
    prompts=PromptChoice(sizes={"prompts": 8}, without=("answer",)),
    kinds=(
        ResultKind(
            name="depths",
            result="result:SwapDepths",
            title="Heads of {name} by depth of the swap",
            figures="figures:depth_figures",
            tabs={
                "overview": "rotoscope.experiments.profile.page:heads_tab",
                "depths": "result:depths_tab",
                "writers": "result:writers_tab",
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
