"""How do heads become positional or symbolic in training?"""

from rotoscope.experiments.registry import Experiment, ResultKind

EXPERIMENT = Experiment(
    name="train",
    question="How do heads become positional or symbolic in training?",
    command="command:train",
    kinds=(
        ResultKind(
            name="training",
            result="dynamics:WatchedTraining",
            title="Training on the {task} task",
            figures="figures:figures_of_training",
            tabs={"training": "page:training_tab"},
            tabled=("scores", "metrics"),
            comparison="page:LastSteps",
            picture="plane_over_training",
            classes="scores",
            accuracy="metrics",
            by_step=True,
        ),
        ResultKind(
            name="restrictions",
            result="restrictions:Restrictions",
            title="Models whose heads have some frequencies only",
            figures="restrictions:restriction_figures",
        ),
        ResultKind(
            name="steering",
            result="rotoscope.experiments.steering:Steering",
            title="Models that were trained to have heads of a kind",
            figures="rotoscope.experiments.steering:steering_figures",
        ),
    ),
)

DYNAMICS = Experiment(
    name="dynamics",
    question="When in training do heads become what they are, and what does each layer do in the end?",
    command="command:dynamics",
    kinds=(
        ResultKind(
            name="dynamics",
            result="dynamics:Dynamics",
            title="Heads over training, {task} task",
            figures="figures:training_figures",
            tabs={"training": "page:training_tab"},
            tabled=("scores", "accuracy", "points", "null_scores", "weights"),
            comparison="page:LastSteps",
            picture="plane_over_training",
            classes="scores",
            accuracy="accuracy",
            by_step=True,
        ),
        ResultKind(
            name="roles",
            result="rotoscope.experiments.roles.result:Roles",
            figures="rotoscope.experiments.roles.figures:role_figures",
            title="What the layers do, {task} task",
        ),
        ResultKind(
            name="geometry",
            result="rotoscope.experiments.roles.result:Geometry",
            figures="rotoscope.experiments.roles.figures:geometry_figures",
            title="Frequencies and planes, {task} task",
        ),
    ),
)
