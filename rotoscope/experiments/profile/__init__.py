"""Does a head attend by position or by symbol?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="profile",
    question="Score every head of a model: does it attend by position or by symbol?",
    command="command:profile",
    kinds=(
        ResultKind(
            name="profile",
            result="result:Profile",
            title="Heads of {name}",
            figures="figures:profile_figures",
            tabs={"overview": "page:heads_tab"},
            tabled=(
                "heads", "frequencies", "nulls", "prompts", "prompt_frequencies", "null_prompts",
                "null_prompt_frequencies", "traces", "vectors", "queries", "known_heads", "attention", "shown_prompt",
                "attention_prompt_permuted",
                "null_known_heads", "input_prompts", "null_input_prompts",
            ),
            comparison="rotoscope.experiments.compare:HeadScores",
            picture="plane",
            classes="heads",
        ),
        ResultKind(
            name="agreement",
            result="across_tasks:Agreement",
            title="Heads of {name} on several tasks",
            figures="across_tasks:agreement_figures",
            tabled=("pairs", "tasks", "components"),
        ),
    ),
)  # fmt: skip
