"""The profile: every head of a model on a set of prompts, from one forward pass each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths.swaps import Swapping, null_rows, swap_at_depths, symbolic_heads
from rotoscope.experiments.known_heads import scores_of_heads, usual_prompts
from rotoscope.experiments.profile.examples import examples
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.profile.sizes import check_profile
from rotoscope.measures.batches import (
    Batch,
    Halving,
    batches,
    kept_prompts,
    most_tokens,
    piece_key,
    prompts_hash,
)
from rotoscope.measures.null import Null, calibration_batches, check_null, make_nulls
from rotoscope.measures.scoring import BatchScores, Scoring, score_batch
from rotoscope.models.identity import tokenizer_identity
from rotoscope.models.layer import LayerHeads
from rotoscope.models.loading import Subject, load
from rotoscope.models.offloading import places
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.progress import Progress, progress_bar
from rotoscope.runs.record import Proof, SubjectRecord
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run, put_together
from rotoscope.settings import SEED
from rotoscope.stats.aggregate import permuted_rows
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts, from_tokens


def profile(
    subject: Any,
    prompts: Prompts | MultiHops | None = None,
    settings: ProfileSettings | None = None,
    *,
    tokens: Any = None,
    blocks: Sequence[Sequence[int]] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Profile:
    """Positional and symbolic scores of every head.

    `subject` is what `rs.load` returns or takes, or a bare model together with `tokens` [prompts, n], a list, an array or
    a tensor; then all token swaps of the last position are scored, or those of the given `blocks`.

    What is measured is said by `settings`, or by fields of `ProfileSettings` given as keywords, such as
    `tau=[1e-4, 1e-2]`, `frequencies=True` (or a list of (layer, head) to score the planes of) or `null="none"`. The seeds
    of the null's draws come from `seed`, by default that of the prompts.

    With `out`, results are written as they come and a killed run goes on where it was. What cannot fit memory or disk is
    refused before it begins.
    """
    wanted = ProfileSettings.make(settings, **changes)
    shown = as_prompts(prompts, tokens, blocks)
    subject = load(subject)
    check_null(subject, wanted.null)
    seed = shown.settings.get("seed", 0) if seed is None else seed
    SEED.check("seed", seed)
    described = subject_settings(subject, shown) | wanted.stored() | {"seed": seed}
    run = Run(Profile, described, out, overwrite=overwrite, device=subject.device.type)
    if run.finished is not None:
        return run.finished

    run.record.warnings += subject.caveats
    reader = HeadReader(subject.model, prove=wanted.prove)
    if wanted.known:
        reader.check_predicts("leave --known out")
    if not reader.predicts and any(answer is not None for prompt in shown for answer in prompt.answers):
        run.record.warnings.append(f"no accuracy: {reader.no_answers}")
    read_in = run.seconds
    planes = _single_frequencies(wanted, subject, reader)
    check_profile(reader, shown, wanted, out)
    scoring = Scoring(wanted.tau, planes)
    most = most_tokens(subject, wanted)
    kept = kept_prompts(run, "real")
    missing = batches(shown, wanted.positions, most, [None if k in kept else True for k in range(len(shown))])
    halving = Halving(run.record.warnings)

    def score(part: Batch) -> Tables:
        return score_batch(reader, part, scoring, subject.tokenizer)

    passes = 1 + (wanted.null_draws if wanted.null != "none" else 0)
    with progress_bar("profiling", passes * len(shown), show_progress) as bar:
        bar.advance(len(kept))
        for batch in missing:
            run.piece(piece_key("real", batch), partial(halving.over, batch, score))
            bar.advance(len(batch))
        run.arrange()
        known = usual_prompts(subject, seed) if wanted.known else []
        if known:
            run.piece("known", lambda: {"known_heads": scores_of_heads(reader, known, subject.tokenizer)})
        _null_passes(run, subject, reader, wanted, shown, scoring, seed, bar, known, halving)
        run.arrange()
    if wanted.input_swaps:
        runs, swapping = Reruns(reader), _swapping(wanted, subject, halving)
        with progress_bar("permuting", len(shown), show_progress) as bar:
            for batch in batches(
                shown, wanted.positions, 1
            ):  # prompt by prompt: a stopped run has less to do again
                run.piece(f"input-{batch.first:06d}", partial(_permuted, runs, batch, swapping))
                bar.advance()
    if wanted.examples:
        first = batches(shown[:1], wanted.positions, most)[0]
        run.piece("examples", lambda: examples(reader, first, subject.tokenizer))
    return run.finish(
        subject=describe(subject, reader, described["fingerprint"]),
        proof=Proof(len(reader.proof), max(reader.proof, default=None), reader.way),
        timings={"reader_s": read_in},
    )


def as_prompts(
    prompts: Prompts | MultiHops | None, tokens: Any, blocks: Sequence[Sequence[int]] | None
) -> Prompts:
    """Prompts from whatever a user has: prompts, samples of a multi-hop task, or bare tokens."""
    if prompts is None:
        if tokens is None:
            raise RotoscopeError("give prompts (see rotoscope.tasks) or tokens [prompts, n]")
        prompts = from_tokens(tokens, blocks)
    elif blocks is not None or tokens is not None:
        raise RotoscopeError("prompts bring their own tokens and blocks; give either those or tokens")
    if isinstance(prompts, MultiHops):
        prompts = prompts.prompts()
    if len(prompts) == 0:
        raise RotoscopeError("no prompts were given")
    return prompts


def _null_passes(
    run: Run[Profile],
    subject: Subject,
    reader: HeadReader,
    wanted: ProfileSettings,
    shown: Prompts,
    scoring: Scoring,
    seed: int,
    bar: Progress,
    known: list[Prompts],
    halving: Halving,
) -> None:
    """Every draw of the null on the same prompts; what an earlier try finished is not made again."""
    draws = range(wanted.null_draws if wanted.null != "none" else 0)
    kept = {draw: kept_prompts(run, _null_stem(wanted.null, draw)) for draw in draws}
    permutes = bool(wanted.input_swaps) and wanted.null == "random"
    others = {
        draw: [_factors_key(wanted.null, draw)]
        + ([_permuted_key(draw)] if permutes else [])
        + ([_known_key(wanted.null, draw)] if known else [])
        for draw in draws
    }
    missing = [
        draw for draw in draws if len(kept[draw]) < len(shown) or not all(run.done(key) for key in others[draw])
    ]
    bar.advance(sum(len(prompts) for prompts in kept.values()))
    if not missing:
        return
    most = most_tokens(subject, wanted)
    drawn = make_nulls(
        subject,
        reader,
        wanted.null,
        missing,
        run.result.prompts,
        calibration_batches(shown, wanted.positions, most),
        seed=seed,
        halving=halving,
    )
    # Gaussian keys are put into one reading of the subject, however many draws there are.
    together = [list(drawn)] if wanted.null == "gaussian" else one_by_one(drawn)
    for nulls in together:
        lacking = [
            tuple(null.draw for null in nulls if k not in kept[null.draw]) or None for k in range(len(shown))
        ]
        work = batches(shown, wanted.positions, most, lacking)
        _score_nulls(run, nulls, [(batch, lacking[batch.first] or ()) for batch in work], scoring, bar, halving)
        for null in nulls if known else ():
            run.piece(_known_key(null.name, null.draw), partial(_known_null, subject, known, null))
        if permutes:
            key = _permuted_key(nulls[0].draw)
            swapping = _swapping(wanted, subject, halving)
            everything = batches(shown, wanted.positions, most)
            run.piece(key, partial(_permuted_null, run, nulls[0], everything, swapping, wanted.gamma))
        nulls.clear()  # a random model goes before the next is made


def one_by_one(drawn: Iterator[Null]) -> Iterator[list[Null]]:
    """Each draw in a list of its own, and nowhere else: whoever empties it holds one random model at a time, not two."""
    while one := list(islice(drawn, 1)):
        yield one


def _factors_key(name: str, draw: int) -> str:
    return f"{name}-{draw}-factors"


def _known_key(name: str, draw: int) -> str:
    return f"{name}-{draw}-known"


def _null_stem(name: str, draw: int) -> str:
    return f"{name}-{draw}"


def _permuted_key(draw: int) -> str:
    return f"random-{draw}-input"


def _swapping(wanted: ProfileSettings, subject: Subject, halving: Halving) -> Swapping:
    return Swapping((0,), wanted.input_swaps, wanted.tau, most_tokens(subject, wanted), halving=halving)


def _permuted(runs: Reruns, batch: Batch, swapping: Swapping) -> Tables:
    return {"input_prompts": permuted_rows(swap_at_depths(runs, batch, swapping))}


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
        run.piece(_factors_key(null.name, null.draw), lambda factors=factors: {"null_factors": factors})  # type: ignore[misc]

    for batch, lacking in work:
        chosen = {null.draw: null for null in nulls if null.draw in lacking}
        parts = halving.each(batch, batch.length, partial(score_draws, chosen, scoring))
        for draw, null in chosen.items():
            tables = put_together(part[draw] for part in parts)
            run.add(piece_key(_null_stem(null.name, draw), batch), _as_null(tables, null.name, draw))
        bar.advance(len(batch) * len(lacking))


def score_draws(nulls: dict[int, Null], scoring: Scoring, batch: Batch) -> dict[int, Tables]:
    """The tables of each draw, from one reading of a batch."""
    one = next(iter(nulls.values()))
    scores = {
        draw: BatchScores(batch, replace(scoring, transform=null.transform), one.reader.layers)
        for draw, null in nulls.items()
    }

    def visit(layer: LayerHeads) -> None:
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


def _single_frequencies(
    wanted: ProfileSettings, subject: Subject, reader: HeadReader
) -> bool | frozenset[tuple[int, int]]:
    """Whose planes are scored: those of all heads, of none, or of the listed ones, which must be there."""
    if wanted.single_heads is None:
        return wanted.frequencies
    heads = int(subject.model.config.get_text_config().num_attention_heads)
    for layer, head in wanted.single_heads:
        if not (0 <= layer < reader.layers and 0 <= head < heads):
            raise RotoscopeError(
                f"there is no head {layer}:{head}: layers go from 0 to {reader.layers - 1}, heads from 0 to {heads - 1}"
            )
    return frozenset(wanted.single_heads)


def subject_settings(subject: Subject, prompts: Prompts) -> dict[str, Any]:
    """Which model and which prompts, as they stand among a run's settings."""
    return {
        **subject.settings,
        "tokenizer_hash": tokenizer_identity(subject.tokenizer),
        "task": prompts.task,
        "task_settings": prompts.settings,
        "prompts": len(prompts),
        "prompts_hash": prompts_hash(prompts),
        "chance": prompts.chance,
    }


def describe(subject: Subject, reader: HeadReader, fingerprint: str) -> SubjectRecord:
    """The subject as it stands in `run.json`; `fingerprint` is what it was when the run began."""
    layout = reader.layouts[0]
    return SubjectRecord(
        name=subject.name,
        fingerprint=fingerprint,
        architecture=subject.model.config.model_type,
        layers=reader.layers,
        planes=[layout.planes for layout in reader.layouts],
        angles=layout.angles.tolist(),
        dtype=str(subject.model.dtype).removeprefix("torch."),
        device=", ".join(places(subject.model)),
        source=subject.source,
    )
