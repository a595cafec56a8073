"""`rotoscope profile`: score every head of a model on a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rotoscope.errors import RotoscopeError

if TYPE_CHECKING:
    from rich.console import Console

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
    frequencies: Flag = False,
    heads: str | None = None,
    null: Literal["none", "random", "gaussian"] = "random",
    null_draws: int = 1,
    null_per_layer: Flag = False,
    permute: Literal["keys", "input"] = "keys",
    vary: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
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
    frequencies
        Score every rotation plane of every head by itself, too.
    heads
        With --frequencies: only these heads, written layer:head as in 12:0,3:4.
    null
        What stands beside every figure: a randomly initialised model, Gaussian keys, or nothing.
    null_draws
        How often the null is drawn.
    null_per_layer
        Rescale the random null's logits layer by layer instead of by one factor.
    permute
        input: also permute the prompt itself and run the model again, on a sample of swaps, for comparison.
    vary
        binding: also say which conclusions change with prefix, granularity, tau (any of them).
    figures
        Draw the figures.
    out
        Run folder. Default: runs/MODEL-TASK. A killed run goes on where it was.
    overwrite
        Replace a run made with other settings.
    seed
        Seed of the prompts.
    device
        cpu, cuda, cuda:1, ... Default: a GPU where there is one.
    """
    from rotoscope.analysis.profiling import estimate
    from rotoscope.analysis.profiling import profile as run_profile
    from rotoscope.cli.summary import new_console, show_summary, show_written
    from rotoscope.maths.swaps import check_tau
    from rotoscope.reading import load

    console = new_console()
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
    single = parse_pairs(heads) if frequencies and heads else frequencies
    console.print(
        f"[bold]{subject.name}[/] on {subject.device}: {estimate(subject, shown, single)}",
        highlight=False,
        soft_wrap=True,
    )
    result = run_profile(
        subject,
        shown,
        tau=list(taus),
        gamma=gamma,
        queries=_queries(queries),
        frequencies=single,
        null=null,
        null_draws=null_draws,
        null_per_layer=null_per_layer,
        examples=figures,
        out=folder,
        overwrite=overwrite,
    )
    show_summary(console, result)
    if permute == "input":
        _compare_permutation(console, subject, shown, taus[0], folder, seed)
    if vary is not None:
        if task != "binding":
            raise RotoscopeError("--vary works on --task binding")
        _vary(
            console,
            subject,
            vary,
            folder,
            pairs=pairs,
            count=min(prompts, 8),
            seed=seed,
            prefix=prefix,
            tau=taus[0],
        )
    written = [*sorted(folder.glob("*.parquet")), folder / "run.json"]
    if figures:
        written += draw_profile(result, folder)
    show_written(console, written)
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


def parse_pairs(heads: str) -> list[tuple[int, int]]:
    try:
        return [(int(layer), int(head)) for layer, head in (part.split(":") for part in heads.split(","))]
    except ValueError as problem:
        raise RotoscopeError(f"--heads {heads}: heads are written layer:head, as in 12:0,3:4") from problem


def _compare_permutation(
    console: Console, subject: Subject, prompts: Prompts, tau: float, folder: Path, seed: int
) -> None:
    from rotoscope.analysis.permutation import agreement, input_permutation
    from rotoscope.cli.summary import show_table
    from rotoscope.results.folder import write_table

    compared = input_permutation(subject, prompts, tau=tau, seed=seed)
    write_table(folder / "input_permutation.parquet", compared)
    show_table(
        console,
        agreement(compared),
        "permuting the prompt itself against key swaps, on the same sampled swaps, per layer",
    )


def _vary(console: Console, subject: Subject, over: list[str], folder: Path, **settings: Any) -> None:
    from rotoscope.analysis.variation import vary
    from rotoscope.cli.summary import show_table
    from rotoscope.results.folder import write_table

    table = vary(subject, over, **settings)
    write_table(folder / "variations.parquet", table)
    columns = [
        "varied",
        "setting",
        "correlation",
        "early_positional",
        "late_positional",
        "sink_in_block",
        "changes",
    ]
    show_table(console, table[columns], "which conclusions change with the settings")


def draw_profile(result: Profile, folder: Path) -> list[Path]:
    """Every figure this profile has the data for."""
    from rotoscope.figures import all_figures, save_figure

    written = []
    for name, figure in all_figures(result):
        written += save_figure(figure, folder / name)
    return written
