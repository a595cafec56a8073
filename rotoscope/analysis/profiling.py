"""The profile: every head of a model on a set of prompts, from one forward pass each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.analysis.batches import Batch, batches, prompts_hash
from rotoscope.analysis.examples import examples as telling_examples
from rotoscope.analysis.examples import telling_heads
from rotoscope.analysis.measures import Scoring, score_batch
from rotoscope.analysis.nulls import check_null, make_nulls
from rotoscope.analysis.permutation import input_permutation
from rotoscope.errors import RotoscopeError
from rotoscope.progress import Progress, progress_bar
from rotoscope.reading import HeadReader, Subject, load
from rotoscope.results.profile import Profile
from rotoscope.results.record import Proof, SubjectRecord
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.settings import ProfileSettings
from rotoscope.tasks import MultiHops, Prompts, from_tokens

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}


def profile(
    subject: Any,
    prompts: Prompts | MultiHops | None = None,
    settings: ProfileSettings | None = None,
    *,
    tokens: Any = None,
    blocks: Sequence[Sequence[int]] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Profile:
    """Positional and symbolic scores of every head.

    `subject` is what `rs.load` returns or takes, or a bare model together with `tokens` [prompts, n], a list, an array or
    a tensor; then all token swaps of the last position are scored, or those of the given `blocks`.

    What is measured is said by `settings`, or by fields of `ProfileSettings` given as keywords, such as
    `tau=[1e-4, 1e-2]`, `frequencies=True` (or a list of (layer, head) to score the planes of) or `null="none"`.

    With `out`, results are written as they come and a killed run goes on where it was.
    """
    wanted = ProfileSettings.make(settings, **changes)
    shown = _prompts(prompts, tokens, blocks)
    if wanted.vary and shown.task != "binding":
        raise RotoscopeError(
            f"--vary works on the binding task, and these are prompts of the {shown.task} task"
        )
    subject = load(subject)
    check_null(subject, wanted.null)
    run = Run(Profile, subject_settings(subject, shown) | wanted.stored(), out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished

    run.record.warnings += subject.warnings
    reader = HeadReader(subject.model, prove=wanted.prove)
    read_in = run.seconds
    scoring = Scoring(wanted.tau, _single_frequencies(wanted, subject, reader))
    most = wanted.batch_tokens or BATCH_TOKENS.get(subject.device.type, BATCH_TOKENS["cpu"])
    work = batches(shown, wanted.positions, most)
    passes = 1 + (wanted.null_draws if wanted.null != "none" else 0)
    with progress_bar("profiling", passes * len(shown), show_progress) as bar:
        for batch in work:
            key = f"real-{batch.first:06d}"
            run.piece(key, lambda batch=batch: score_batch(reader, batch, scoring, subject.tokenizer))  # type: ignore[misc]
            bar.advance(len(batch.prompts))
        _null_passes(run, subject, reader, wanted, work, scoring, bar)
    how: dict[str, Any] = {"prompts": shown, "tau": wanted.tau[0], "show_progress": show_progress}
    if wanted.permute == "input":
        run.piece("input-permutation", lambda: {"input_permutation": input_permutation(subject, **how)})
    if wanted.vary:
        from rotoscope.analysis.variation import vary  # which profiles in turn

        run.piece("variations", lambda: {"variations": vary(subject, wanted.vary, **how)})
    if wanted.examples:
        heads = list(telling_heads(run.result).items())
        run.piece("examples", lambda: telling_examples(reader, work[0], heads))
    return run.finish(
        subject=describe(subject, reader),
        proof=Proof(len(reader.proof), max(reader.proof, default=None)),
        timings={"reader_s": read_in},
    )


def _prompts(
    prompts: Prompts | MultiHops | None, tokens: Any, blocks: Sequence[Sequence[int]] | None
) -> Prompts:
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
    work: list[Batch],
    scoring: Scoring,
    bar: Progress,
) -> None:
    """Every draw of the null on the same prompts; draws that an earlier try finished are not made again."""
    keys = [
        [f"{wanted.null}-{draw}-factors", *(f"{wanted.null}-{draw}-{batch.first:06d}" for batch in work)]
        for draw in range(wanted.null_draws if wanted.null != "none" else 0)
    ]
    missing = [draw for draw, pieces in enumerate(keys) if not all(run.done(key) for key in pieces)]
    bar.advance((len(keys) - len(missing)) * sum(len(batch.prompts) for batch in work))
    real = run.result.prompts
    for null in make_nulls(subject, reader, wanted.null, missing, real, work, per_layer=wanted.null_per_layer):
        about = {"null_name": null.name, "draw": null.draw}
        factors = pd.DataFrame([about | {"part": k, "factor": f} for k, f in enumerate(null.factors)])
        first, *others = keys[null.draw]
        run.piece(first, lambda factors=factors: {"null_factors": factors})  # type: ignore[misc]
        again = replace(scoring, transform=null.transform)
        for key, batch in zip(others, work, strict=True):

            def scored(batch: Batch = batch, null: Any = null, again: Scoring = again) -> Tables:
                return _as_null(score_batch(null.reader, batch, again, None), null.name, null.draw)

            run.piece(key, scored)
            bar.advance(len(batch.prompts))


def _as_null(tables: Tables, name: str, draw: int) -> Tables:
    """Scores of a null under names of their own, with the draw they belong to."""
    found = {}
    for table in ("prompts", "prompt_frequencies"):
        if table in tables:
            rows = tables[table]
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
        "model": subject.name,
        "fingerprint": subject.fingerprint,
        "task": prompts.task,
        "task_settings": prompts.settings,
        "prompts": len(prompts),
        "prompts_hash": prompts_hash(prompts),
    }


def describe(subject: Subject, reader: HeadReader) -> SubjectRecord:
    """The subject as it stands in `run.json`."""
    layout = reader.layouts[0]
    return SubjectRecord(
        name=subject.name,
        fingerprint=subject.fingerprint,
        architecture=subject.model.config.model_type,
        layers=reader.layers,
        planes=[layout.planes for layout in reader.layouts],
        angles=layout.angles.tolist(),
        dtype=str(subject.model.dtype).removeprefix("torch."),
        device=subject.device.type,
        source=subject.source,
    )
