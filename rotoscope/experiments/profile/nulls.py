"""Every draw of a null on the prompts of a profile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

import pandas as pd

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.depths.swaps import Swapping, null_rows, swap_at_depths, symbolic_heads
from rotoscope.experiments.known_heads import scores_of_heads
from rotoscope.experiments.profile.attention_page import PermutedAttention
from rotoscope.experiments.profile.kept_draws import KeptDraws
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.measures.batches import Batch, Halving, batches, kept_prompts, most_tokens, piece_key
from rotoscope.measures.null import Null, calibration_batches, make_nulls
from rotoscope.measures.scoring import BatchScores, Scoring
from rotoscope.models.devices import one_thread
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.models.weight_check import folded
from rotoscope.progress import Progress
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run, put_together
from rotoscope.stats.aggregate import permuted_rows
from rotoscope.tasks.prompt import Prompts

NULL_PIECES = {
    "": ("null_prompts", "null_prompt_frequencies"),
    "factors": ("null_factors",),
    "known": ("null_known_heads",),
    "input": ("null_input_prompts",),
}
"""The tables of a draw by the ends of the keys under which a run keeps them; without one, by the prompts of a batch."""
QUICK_DRAW = 10**10
"""Weights times tokens of a draw that takes up to about a second."""


def null_passes(
    run: Run[Profile],
    subject: Subject,
    reader: HeadReader,
    wanted: ProfileSettings,
    name: str,
    shown: Prompts,
    scoring: Scoring,
    seed: int,
    bar: Progress,
    known: list[Prompts],
    halving: Halving,
) -> None:
    """Every draw of one null on the same prompts; what an earlier try finished is not made again.

    A draw that fails is left out, with a sentence among the run's warnings.
    """
    draws = range(wanted.null_draws or 0)
    kept = {draw: kept_prompts(run, null_stem(name, draw)) for draw in draws}
    permutes = bool(wanted.input_swaps) and name == "random"
    ends = ["factors"] + ["input"] * permutes + ["known"] * bool(known)
    missing = [
        draw
        for draw in draws
        if len(kept[draw]) < len(shown) or not all(run.done(f"{null_stem(name, draw)}-{end}") for end in ends)
    ]
    bar.advance(sum(len(prompts) for prompts in kept.values()))
    if not missing:
        return
    earlier = (
        KeptDraws.of(subject, shown, wanted, seed, run.result.prompts) if name == "random" else KeptDraws(None)
    )
    for draw in [draw for draw in missing if not kept[draw]]:
        pieces = earlier.read(draw)
        for key, tables in pieces.items():
            run.add(key, tables)
        if pieces:
            missing.remove(draw)
            bar.advance(len(shown))
    most = most_tokens(subject, wanted)
    failed: list[str] = []
    drawn = make_nulls(
        subject,
        reader,
        name,
        missing,
        run.result.prompts,
        calibration_batches(shown, wanted.positions, most),
        seed=seed,
        halving=halving,
        failed=failed,
    )

    def score(nulls: list[Null]) -> None:
        lacking = [
            tuple(null.draw for null in nulls if k not in kept[null.draw]) or None for k in range(len(shown))
        ]
        work = batches(shown, wanted.positions, most, lacking)
        _score_nulls(run, nulls, [(batch, lacking[batch.first] or ()) for batch in work], scoring, bar, halving)
        for null in nulls if known else ():
            key = f"{null_stem(null.name, null.draw)}-known"
            run.piece(key, partial(_known_null, subject, known, null))
        if permutes:
            key = f"{null_stem(name, nulls[0].draw)}-input"
            swapping = swapping_of(wanted, subject, halving)
            everything = batches(shown, wanted.positions, most)
            run.piece(key, partial(_permuted_null, run, nulls[0], everything, swapping, wanted.gamma))
        if name == "random":
            stem = f"{null_stem(name, nulls[0].draw)}-"
            keys = [key for key in run.piece_keys() if key.startswith(stem)]
            earlier.keep(nulls[0].draw, {key: run.piece(key, dict) for key in keys})

    # Gaussian keys are put into one reading of the subject, however many draws there are.
    together = [list(drawn)] if name == "gaussian" else one_by_one(drawn)
    with one_thread(reader.small):
        for nulls in together:
            with leaving_out(failed, len(nulls)):
                score(nulls)
            nulls.clear()  # a random model goes before another is made
    run.record.warnings += failed_draws(name, failed)


@contextmanager
def leaving_out(failed: list[str], draws: int = 1) -> Iterator[None]:
    """Go on where draws fail, and note why; a run that cannot be written ends all the same."""
    try:
        yield
    except RunError:
        raise
    except (RotoscopeError, RuntimeError) as problem:
        failed += [folded(problem)] * draws


def failed_draws(name: str, failed: list[str]) -> list[str]:
    """A sentence about the draws of a null that failed, from the reason of each; nothing where none did."""
    if not failed:
        return []
    draws = "1 draw" if len(failed) == 1 else f"{len(failed)} draws"
    was = "was" if len(failed) == 1 else "were"
    return [f"{draws} of the {name} null failed and {was} left out ({failed[0]})"]


def usual_draws(subject: Subject, prompts: Prompts, passes: int = 1) -> int:
    """39 draws where one, with so many passes of the prompts, takes up to about a second on two cores, by its weights and tokens,
    else 19: fewer decide nothing."""
    weights = sum(weight.numel() for weight in subject.model.parameters())
    tokens = sum(len(prompt.tokens) for prompt in prompts)
    return 39 if weights * tokens * passes <= QUICK_DRAW else 19


def one_by_one(drawn: Iterator[Null]) -> Iterator[list[Null]]:
    """Each draw in a list of its own, and nowhere else: whoever empties it holds one random model at a time, not two."""
    while one := list(islice(drawn, 1)):
        yield one


def null_stem(name: str, draw: int) -> str:
    """What the keys of a draw's pieces begin with."""
    return f"{name}-{draw}"


def swapping_of(wanted: ProfileSettings, subject: Subject, halving: Halving) -> Swapping:
    return Swapping(
        (0,), wanted.input_swaps, taus=wanted.tau, most_tokens=most_tokens(subject, wanted), halving=halving
    )


def permuted(runs: Reruns, batch: Batch, swapping: Swapping, examples: bool = False) -> Tables:
    """Scores with the prompt permuted; with examples, also the attention of every head after its heaviest swap."""
    shown = PermutedAttention()
    if examples:
        swapping = replace(swapping, on_swaps=shown.note)
    rows = permuted_rows(swap_at_depths(runs, batch, swapping))
    return {"input_prompts": rows} | ({"attention_prompt_permuted": shown.table()} if examples else {})


def _permuted_null(
    run: Run[Profile], null: Null, work: list[Batch], swapping: Swapping, gamma: float
) -> Tables:
    """The null's heads that are pure symbolic at their layer; no other can be carried."""
    scored = run.result.tables["null_prompts"]
    chosen = symbolic_heads(scored[scored["draw"] == null.draw], swapping.taus[0], gamma)
    if not chosen:
        return {}
    rows = pd.concat(null_rows(null, work, replace(swapping, heads=chosen)), ignore_index=True)
    return {"null_input_prompts": permuted_rows(rows)}


def _score_nulls(
    run: Run[Profile],
    nulls: list[Null],
    work: list[tuple[Batch, tuple[int, ...]]],
    scoring: Scoring,
    bar: Progress,
    halving: Halving,
) -> None:
    """Draws that share a reader, on batches with the draws that lack them; every batch is read once."""
    for null in nulls:
        about = {"null_name": null.name, "draw": null.draw}
        factors = pd.DataFrame([about | {"part": k, "factor": f} for k, f in enumerate(null.factors)])
        run.piece(f"{null_stem(null.name, null.draw)}-factors", partial(dict, null_factors=factors))

    for batch, lacking in work:
        chosen = {null.draw: null for null in nulls if null.draw in lacking}
        parts = halving.each(batch, batch.length, partial(score_draws, chosen, scoring))
        for draw, null in chosen.items():
            tables = put_together(part[draw] for part in parts)
            run.add(piece_key(null_stem(null.name, draw), batch), _as_null(tables, null.name, draw))
        bar.advance(len(batch) * len(lacking))


def score_draws(nulls: dict[int, Null], scoring: Scoring, batch: Batch) -> dict[int, Tables]:
    """The tables of each draw, from one reading of a batch."""
    one = next(iter(nulls.values()))
    scores = {
        draw: BatchScores(batch, replace(scoring, transform=null.transform), one.reader.layers)
        for draw, null in nulls.items()
    }

    def visit(layer: LayerReading) -> None:
        for each in scores.values():
            each.visit(layer)

    one.read(batch, visit)
    return {draw: found.tables() for draw, found in scores.items()}


def _known_null(subject: Subject, known: list[Prompts], null: Null) -> Tables:
    scores = scores_of_heads(null.reader, known, subject.tokenizer, null.transform)
    return {"null_known_heads": scores.assign(null_name=null.name, draw=null.draw)}


def _as_null(tables: Tables, name: str, draw: int) -> Tables:
    """Scores of a null under names of their own, with the draw they belong to."""
    found = {}
    for table in ("prompts", "prompt_frequencies"):
        rows = tables[table]
        if len(rows):
            rows.insert(0, "draw", draw)
            rows.insert(0, "null_name", name)
            found[f"null_{table}"] = rows
    return found
