"""`rotoscope profile`: score every head of a model on a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rotoscope.errors import RotoscopeError

if TYPE_CHECKING:
    from rotoscope.reading import Subject
    from rotoscope.results import Profile
    from rotoscope.tasks import Prompts

__all__ = ["profile"]

Flag = Annotated[bool, Parameter(negative="")]


def profile(
    model: str = "smollm2",
    *,
    task: Literal["binding", "repeats", "text"] = "binding",
    pairs: int = 32,
    prompts: int = 16,
    prefix: Literal["chat", "start", "fact", "none"] | None = None,
    granularity: str = "fact",
    equal_length: Flag = False,
    length: int = 32,
    text: Path | None = None,
    blocks: str = "sentence",
    answer: str | None = None,
    tau: Annotated[list[float] | None, Parameter(consume_multiple=True)] = None,
    gamma: float = 0.1,
    queries: str = "last",
    figures: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Score every head of a model: does it attend by position or by symbol?

    Example: rotoscope profile smollm2 --task binding --pairs 32 --prompts 16 --out runs/first

    Parameters
    ----------
    model
        "smollm2", a folder, a .gguf file, or a hub id such as org/name (which goes to the network).
    task
        binding: facts and a question. repeats: random tokens, repeated. text: your own prompt (--text).
    pairs
        binding: facts in a prompt.
    prompts
        How many prompts to average over.
    prefix
        What stands before the blocks: chat, start (token), fact (a throwaway one) or none. Default: chat where
        the tokenizer has a template, else fact.
    granularity
        binding: what is swapped whole: fact, symbol, token, or a number of facts.
    equal_length
        Demand blocks of one length; centred scores need them.
    length
        repeats: tokens before they repeat.
    text
        text: a file with the prompt; the last token is the query.
    blocks
        text: sentence, line, token, a number of tokens, or spans such as 1:5,5:9 (token positions).
    answer
        text: what should come next, for the model's own accuracy.
    tau
        Temperature of the swap weights; several are possible. Default: 1e-4, as in the papers' code.
    gamma
        Tolerance of the purity classes.
    queries
        Positions that are scored: last, all, task, or positions such as 20,31.
    figures
        Draw the plane and the layer x head map.
    out
        Run folder. Default: runs/MODEL-TASK. A killed run goes on where it was.
    overwrite
        Replace a run made with other settings.
    seed
        Seed of the prompts.
    device
        cpu, cuda, cuda:1, ... Default: a GPU where there is one.
    """
    from rich.console import Console

    from rotoscope.analysis.profiling import estimate
    from rotoscope.analysis.profiling import profile as run_profile
    from rotoscope.cli.summary import show_summary
    from rotoscope.maths.swaps import check_tau
    from rotoscope.reading import load

    console = Console()
    taus = check_tau(tau or [1e-4])
    if task == "text" and text is None:
        raise RotoscopeError("--task text needs --text FILE")
    subject = load(model, device=device)
    shown = _prompts(
        subject,
        task,
        pairs=pairs,
        count=prompts,
        prefix=prefix,
        granularity=granularity,
        equal_length=equal_length,
        length=length,
        file=text,
        blocks=blocks,
        answer=answer,
        seed=seed,
    )
    folder = out or Path("runs") / f"{Path(model).stem}-{task}"
    console.print(f"[bold]{subject.name}[/] on {subject.device}: {estimate(subject, shown)}", highlight=False)
    result = run_profile(
        subject,
        shown,
        tau=list(taus),
        gamma=gamma,
        queries=_queries(queries),
        out=folder,
        overwrite=overwrite,
    )
    written = [*sorted(folder.glob("*.parquet")), folder / "run.json"]
    if figures:
        written += _draw(result, folder)
    show_summary(console, result)
    console.print("\nwrote")
    for file in written:
        console.print(f"  {file}", highlight=False, soft_wrap=True)
    return 0


def _prompts(subject: Subject, task: str, *, count: int, seed: int, **settings: Any) -> Prompts:
    from rotoscope import tasks

    if task == "binding":
        grain = settings["granularity"]
        return tasks.binding(
            subject,
            settings["pairs"],
            count,
            seed,
            prefix=settings["prefix"],
            granularity=int(grain) if grain.isdigit() else grain,
            equal_length=settings["equal_length"],
        )
    if task == "repeats":
        prefix = settings["prefix"]
        if prefix not in (None, "start", "none"):
            raise RotoscopeError(f"--task repeats knows the prefixes start and none, not {prefix}")
        return tasks.repeats(subject, settings["length"], count, seed, prefix=prefix)
    file: Path = settings["file"]
    try:
        words = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise RotoscopeError(f"{file} cannot be read as text ({problem})") from problem
    return tasks.text(
        subject,
        words,
        _cut(settings["blocks"]),
        answer=settings["answer"],
        equal_length=settings["equal_length"],
    )


def _cut(blocks: str) -> Any:
    if blocks.isdigit():
        return int(blocks)
    if ":" not in blocks:
        return blocks
    try:
        return [tuple(int(end) for end in span.split(":", 1)) for span in blocks.split(",")]
    except ValueError as problem:
        raise RotoscopeError(f"--blocks {blocks}: spans are written start:stop,start:stop") from problem


def _queries(queries: str) -> Any:
    if queries in ("last", "all", "task"):
        return queries
    try:
        return [int(position) for position in queries.split(",")]
    except ValueError as problem:
        raise RotoscopeError(
            f"--queries {queries}: choose last, all, task or positions such as 20,31"
        ) from problem


def _draw(result: Profile, folder: Path) -> list[Path]:
    from rotoscope.figures import layer_map, plane, save_figure

    return save_figure(plane(result), folder / "plane") + save_figure(layer_map(result), folder / "layer_map")
