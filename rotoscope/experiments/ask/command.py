"""`rotoscope ask`: one-hop questions to a language model, here or behind an endpoint, by length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.ask.settings import AskSettings
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

if TYPE_CHECKING:
    from rotoscope.experiments.ask.result import OneHopRun


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
    ask_settings, written = AskSettings.make(**settings), Output.make(**output)
    if model is None:
        raise RotoscopeError("say what to ask: a model to run here, or --endpoint URL --model NAME")
    case = "a model that runs here" if endpoint is None else "an endpoint"
    ask_settings.check_meant([*settings, *loading, *output], case)
    with says_loading():
        from rotoscope.experiments.ask.endpoints import BODY, masked, one_hop_endpoint
        from rotoscope.experiments.ask.run import one_hop_local
        from rotoscope.experiments.prompts import read_text
        from rotoscope.models.loading import load
        from rotoscope.tasks.onehop import LENGTHS, ONE_HOP, OneHopPlan
        from rotoscope.terminal import as_flags, new_console, say, show_next

    console = new_console()
    plan = OneHopPlan(
        tasks=ONE_HOP if ask_settings.task == "both" else (ask_settings.task,),
        lengths=ask_settings.lengths or LENGTHS,
        runs=ask_settings.runs,
        questions=ask_settings.questions,
        seed=ask_settings.seed,
        template=None if ask_settings.template is None else read_text(ask_settings.template),
    )
    folder = written.folder(Path(model).stem if endpoint is None else model.replace("/", "-"), "ask")
    place: dict[str, Any] = {"out": folder, "overwrite": written.overwrite}
    if endpoint is None:
        with says_loading():
            subject = load(model, device=written.device, **loading)
        result = one_hop_local(subject, plan, chat=ask_settings.chat, **place)
        return _show(console, result, folder, draw=written.figures)
    requests = place | {"concurrency": ask_settings.concurrency, "body": _body(ask_settings.body) or BODY}
    expected = one_hop_endpoint(endpoint, model, plan, dry_run=True, **requests)
    say(console, f"to be asked: {expected}", markup=False)
    if ask_settings.dry_run:
        say(console, "dry run: nothing was sent")
        show_next(
            console, ["ask", model, "--endpoint", masked(endpoint), *as_flags(settings | output, ["dry_run"])]
        )
        return 0
    answered: Any = one_hop_endpoint(endpoint, model, plan, **requests)
    return _show(console, answered, folder, draw=written.figures)


def _show(console: Any, result: OneHopRun, folder: Path, draw: bool) -> int:
    from rotoscope.experiments.paper_tables import beside_table_3
    from rotoscope.experiments.paper_tables import screening as screened
    from rotoscope.experiments.show import end, show_table
    from rotoscope.terminal import say

    title = "accuracy, mean and standard deviation over runs, Wilson's 95 % interval"
    show_table(console, result.accuracy(), title, folder / "accuracy.csv")
    show_table(console, beside_table_3(result), "beside P2's Table 3", folder / "beside_table_3.csv")
    screening = screened(result)
    if screening["selected"] is None:
        verdict = f"not decided: {screening['reason']}"
    else:
        verdict = (
            f"{'selected' if screening['selected'] else 'not selected'}: {screening['accuracy']:.2f} "
            f"[{screening['low']:.2f}, {screening['high']:.2f}] on the letter task at length 16 (the rule asks for 0.85), "
            f"{screening['single_answers']:.0%} single answers"
        )
    say(console, f"\nP2's screening rule: {verdict}", markup=False)
    next_steps = [["reproduce", "p2", "--one-hop", folder]]
    return end(console, result, folder, draw=draw, then=next_steps)


def _body(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except ValueError as problem:
        raise RotoscopeError(f"--body is no JSON ({problem})") from problem
    if not isinstance(parsed, dict) or not parsed:
        raise RotoscopeError("--body must be a JSON object, such as '{\"max_tokens\": 16}'")
    return parsed
