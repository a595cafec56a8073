"""`rotoscope lengths`: how far multi-hop models, language models and chat endpoints carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rotoscope.errors import RotoscopeError

if TYPE_CHECKING:
    from rich.console import Console

    from rotoscope.results import OneHopRun
    from rotoscope.tasks import OneHopPlan

__all__ = ["lengths"]

Flag = Annotated[bool, Parameter(negative="")]


def lengths(
    source: str | None = None,
    *,
    endpoint: str | None = None,
    model: str | None = None,
    task: Literal["number", "letter", "both"] = "both",
    lengths: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    runs: int = 5,
    questions: int = 20,
    inputs: int = 400,
    template: Path | None = None,
    chat: bool | None = None,
    body: str | None = None,
    concurrency: int = 4,
    timeout: float = 60.0,
    patience: float = 300.0,
    price_in: float | None = None,
    price_out: float | None = None,
    dry_run: Flag = False,
    figures: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Measure accuracy on longer and longer inputs, of a trained multi-hop model, a language model or an endpoint.

    Example: rotoscope lengths letter --out runs/letter-lengths

    Example: rotoscope lengths smollm2 --lengths 12 16 24 --runs 1 --out runs/lengths

    Example: rotoscope lengths --endpoint http://localhost:8080/v1 --model NAME --dry-run

    Parameters
    ----------
    source
        A multi-hop model: number, letter, a training run or a checkpoint; or a language model to ask one-hop questions:
        smollm2, a folder, a .gguf file, a hub id. "stored" shows the measurements of eight models that come with rotoscope.
    endpoint
        Instead: the base address of an OpenAI-compatible server. The key comes from ROTOSCOPE_API_KEY or OPENAI_API_KEY.
    model
        The name of the model at the endpoint.
    task
        number: the letter so many places back. letter: the item that begins with a letter. Or both.
    lengths
        Lengths of the sequence. Default: 12 to 300 for language models, 17 to 5,000 for multi-hop models.
    runs
        Runs with different questions, over which mean and standard deviation are taken.
    questions
        Questions per task, length and run.
    inputs
        Multi-hop models: most sequences per length, fewer at the long end.
    template
        A text file with {sequence} and {query} in it, instead of our instructions and examples; for one task.
    chat
        Ask a local model as a user's turn in its chat template. Default: where there is one.
    body
        Endpoint: what a request holds besides model and messages, as JSON, such as '{"max_completion_tokens": 16}'.
    concurrency
        Endpoint: questions under way at a time.
    timeout
        Endpoint: seconds until a request is given up and sent again.
    patience
        Endpoint: seconds to go on trying one question before the run stops.
    price_in
        Endpoint: price of a million tokens sent, for the estimate.
    price_out
        Endpoint: price of a million tokens received.
    dry_run
        Endpoint: say what would be sent and what it would cost, and send nothing.
    figures
        Draw accuracy against length.
    out
        Run folder. Default: runs/MODEL-lengths. A killed run goes on where it was.
    overwrite
        Replace a run made with other settings.
    seed
        Shifts all questions.
    device
        cpu, cuda, ... Default: a GPU where there is one.
    """
    from rotoscope.cli.summary import new_console
    from rotoscope.tasks.onehop import LENGTHS, ONE_HOP, OneHopPlan

    console = new_console()
    if source is not None and endpoint is None and (source == STORED or _is_multihop(source)):
        for name, given in (
            ("--model", model),
            ("--body", body),
            ("--template", template),
            ("--dry-run", dry_run or None),
        ):
            if given is not None:
                raise RotoscopeError(f"{name} is for language models; {source} is a multi-hop model")
        return _multihop(
            console,
            source,
            lengths,
            inputs,
            figures,
            out or Path("runs") / f"{Path(source).name}-lengths",
            overwrite,
            seed,
            device,
        )
    if (source is None) == (endpoint is None):
        raise RotoscopeError("say what to ask: a model to run here, or --endpoint URL --model NAME")
    plan = OneHopPlan(
        tasks=ONE_HOP if task == "both" else (task,),
        lengths=LENGTHS if lengths is None else tuple(lengths),
        runs=runs,
        questions=questions,
        seed=seed,
        template=None if template is None else _text(template),
    )
    if source is not None:
        for name, given in (("--model", model), ("--body", body), ("--dry-run", dry_run or None)):
            if given is not None:
                raise RotoscopeError(f"{name} is for an --endpoint only, and {source} is run here")
        folder = out or Path("runs") / f"{Path(source).stem}-lengths"
        result = _language_model(source, plan, chat=chat, device=device, out=folder, overwrite=overwrite)
    else:
        assert endpoint is not None
        if model is None:
            raise RotoscopeError("an endpoint needs the name of its model: --model NAME")
        folder = out or Path("runs") / f"{model.replace('/', '-')}-lengths"
        asked = _endpoint(
            console, endpoint, model, plan, dry_run, body=_body(body), concurrency=concurrency, timeout=timeout,
            patience=patience, price_in=price_in, price_out=price_out, out=folder, overwrite=overwrite,
        )  # fmt: skip
        if asked is None:
            return 0
        result = asked
    _show(console, result, folder, figures)
    return 0


STORED = "stored"


def _is_multihop(source: str) -> bool:
    """Whether a source is a model trained on the number or letter task, told from its files alone."""
    if source in ("number", "letter"):
        return True
    place = Path(source)
    folders = [place, *place.glob("checkpoint-*")] if place.is_dir() else []
    for folder in folders:
        config = folder / "config.json"
        if config.is_file():
            try:
                return "rotoscope" in json.loads(config.read_text(encoding="utf-8"))
            except ValueError:
                return False
    return False


def _multihop(
    console: Console,
    source: str,
    wanted: list[int] | None,
    inputs: int,
    figures: bool,
    folder: Path,
    overwrite: bool,
    seed: int,
    device: str | None,
) -> int:
    from rotoscope.analysis.lengths import lengths as measure
    from rotoscope.analysis.lengths import stored_lengths
    from rotoscope.cli.summary import show_table, show_written

    if source == STORED:
        result = stored_lengths()
        result.save(folder, overwrite=overwrite)
    else:
        result = measure(
            source,
            lengths=wanted,
            inputs=inputs,
            seed=seed,
            device=device,
            out=folder,
            overwrite=overwrite,
        )
    curve = result.curve().pivot(index="length", columns="model", values="accuracy").reset_index()
    show_table(console, curve.rename_axis(columns=None), "accuracy by length, all hop counts together")
    show_table(
        console,
        result.predictions(),
        "lengths at which accuracy falls below a level: foretold from training length, and measured",
    )
    show_table(
        console,
        result.exponents(),
        "power of the length with which discrepancy and gap change, with 95 % intervals",
    )
    show_table(
        console,
        result.decay(),
        '"decays for positional, stays for symbolic": heads by class at training length',
    )
    written = [folder / "run.json", *sorted(folder.glob("*.parquet"))]
    if figures:
        from rotoscope import figures as draw

        for title, figure in (
            ("length_accuracy", draw.length_accuracy(result)),
            ("length_discrepancy", draw.length_discrepancy(result)),
            ("length_attention", draw.length_attention(result)),
            ("length_prediction", draw.length_prediction(result)),
        ):
            written += draw.save_figure(figure, folder / title)
    show_written(console, written)
    return 0


def _language_model(
    source: str, plan: OneHopPlan, *, chat: bool | None, device: str | None, out: Path, overwrite: bool
) -> OneHopRun:
    from rotoscope.analysis.onehop import one_hop_local
    from rotoscope.reading import load

    return one_hop_local(load(source, device=device), plan, chat=chat, out=out, overwrite=overwrite)


def _endpoint(
    console: Console, endpoint: str, model: str, plan: OneHopPlan, dry_run: bool, **settings: Any
) -> OneHopRun | None:
    """Say what it will take, then ask; a dry run stops there."""
    from rotoscope.analysis.endpoints import one_hop_endpoint
    from rotoscope.results import OneHopRun

    expected = one_hop_endpoint(endpoint, model, plan, dry_run=True, **settings)
    console.print(f"to be asked: {expected}", highlight=False, soft_wrap=True)
    if dry_run:
        console.print("dry run: nothing was sent", highlight=False)
        return None
    found = one_hop_endpoint(endpoint, model, plan, **settings)
    assert isinstance(found, OneHopRun)
    return found


def _show(console: Console, result: OneHopRun, folder: Path, figures: bool) -> None:
    from rotoscope.cli.summary import show_table, show_written

    show_table(
        console, result.accuracy(), "accuracy, mean and standard deviation over runs, Wilson's 95 % interval"
    )
    show_table(console, result.beside_paper(), "beside P2's Table 3")
    screening = result.screening()
    if screening["selected"] is None:
        verdict = f"not decided: {screening['reason']}"
    else:
        verdict = (
            f"{'selected' if screening['selected'] else 'not selected'}: {screening['accuracy']:.2f} "
            f"[{screening['low']:.2f}, {screening['high']:.2f}] on the letter task at length 16 (the rule asks for 0.85), "
            f"{screening['single_answers']:.0%} single answers"
        )
    console.print(f"\nP2's screening rule: {verdict}", highlight=False, soft_wrap=True, markup=False)
    for caveat in result.run.get("warnings", []):
        console.print(f"[yellow]caveat:[/] {caveat}", highlight=False, soft_wrap=True)
    written = [*sorted(folder.glob("*.parquet")), folder / "run.json"]
    if figures:
        from rotoscope.figures import one_hop_accuracy, save_figure

        written += save_figure(one_hop_accuracy(result), folder / "one_hop_accuracy")
    show_written(console, written)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise RotoscopeError(f"the template {file} cannot be read ({problem})") from problem


def _body(given: str | None) -> dict[str, Any]:
    from rotoscope.analysis.endpoints import BODY

    if given is None:
        return dict(BODY)
    try:
        found = json.loads(given)
    except ValueError as problem:
        raise RotoscopeError(f"--body is no JSON ({problem})") from problem
    if not isinstance(found, dict):
        raise RotoscopeError("--body must be a JSON object, such as '{\"max_tokens\": 16}'")
    return found
