"""How well does a language model answer one-hop questions, by length?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.ask.settings import AskSettings
from rotoscope.experiments.commands import end
from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output


@command
def ask(
    model: str | None = None,
    *,
    endpoint: str | None = None,
    settings: Annotated[Given, AskSettings],
    loading: Annotated[Given, ModelSettings],
    output: Annotated[Given, Output],
) -> int:
    """Ask a language model one-hop questions about longer and longer sequences (P2's Table 3).

    Example: rotoscope ask smollm2 --lengths 12 16 24 --runs 1 --out runs/ask

    Example: rotoscope ask --endpoint http://localhost:8080/v1 --model NAME --dry-run

    Parameters
    ----------
    model
        A model to run here: smollm2, a folder, a .gguf file, a hub id. With --endpoint: the name of the model there.
    endpoint
        The base address of an OpenAI-compatible server. The key comes from ROTOSCOPE_API_KEY or OPENAI_API_KEY.
    """
    chosen, written = AskSettings.make(**settings), Output.make(**output)
    if model is None:
        raise RotoscopeError("say what to ask: a model to run here, or --endpoint URL --model NAME")
    case = "a model that runs here" if endpoint is None else "an endpoint"
    chosen.check_meant([*settings, *loading, *output], case)
    with says_loading():
        from rotoscope.experiments.ask.endpoints import BODY, masked, one_hop_endpoint
        from rotoscope.experiments.ask.run import one_hop_local
        from rotoscope.experiments.prompts import read_text
        from rotoscope.models.loading import load
        from rotoscope.tasks.onehop import LENGTHS, ONE_HOP, OneHopPlan
        from rotoscope.terminal import as_flags, new_console, say, show_next

    console = new_console()
    plan = OneHopPlan(
        tasks=ONE_HOP if chosen.task == "both" else (chosen.task,),
        lengths=chosen.lengths or LENGTHS,
        runs=chosen.runs,
        questions=chosen.questions,
        seed=chosen.seed,
        template=None if chosen.template is None else read_text(chosen.template),
    )
    folder = written.folder(Path(model).stem if endpoint is None else model.replace("/", "-"), "ask")
    place: dict[str, Any] = {"out": folder, "overwrite": written.overwrite}
    then = [["reproduce", "p2", "--one-hop", folder]]
    if endpoint is None:
        with says_loading():
            subject = load(model, device=written.device, **loading)
        result = one_hop_local(subject, plan, chat=chosen.chat, **place)
        return end(result, folder, written, then=then)
    requests = place | {"concurrency": chosen.concurrency, "body": _body(chosen.body) or BODY}
    expected = one_hop_endpoint(endpoint, model, plan, dry_run=True, **requests)
    say(console, f"to be asked: {expected}", markup=False)
    if chosen.dry_run:
        say(console, "dry run: nothing was sent")
        show_next(
            console, ["ask", model, "--endpoint", masked(endpoint), *as_flags(settings | output, ["dry_run"])]
        )
        return 0
    answered: Any = one_hop_endpoint(endpoint, model, plan, **requests)
    return end(answered, folder, written, then=then)


def _body(text: str | None) -> dict[str, Any] | None:
    """Fields of a request from a JSON object."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except ValueError as problem:
        raise RotoscopeError(f"--body is no JSON ({problem})") from problem
    if not isinstance(fields, dict) or not fields:
        raise RotoscopeError("--body must be a JSON object, such as '{\"max_tokens\": 16}'")
    return fields


EXPERIMENT = Experiment(
    name="ask",
    question="How well does a language model answer one-hop questions, by length?",
    command=":ask",
    kinds=(
        ResultKind(
            name="onehop",
            result="result:OneHopRun",
            title="One-hop questions to {name}",
            figures="figures:one_hop_figures",
            tabs={"lengths": "rotoscope.experiments.lengths.result:one_hop_tab"},
            picture="one_hop_accuracy",
        ),
    ),
)
