"""The profile: every head of a model on a set of prompts, from one forward pass each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths.swaps import paired_scores, staying_heads
from rotoscope.experiments.known_heads import scores_of_heads, usual_prompts
from rotoscope.experiments.profile.examples import examples
from rotoscope.experiments.profile.nulls import null_passes, permuted, swapping_of
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
from rotoscope.measures.null import check_null
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.identity import tokenizer_identity
from rotoscope.models.loading import Subject, load
from rotoscope.models.offloading import places
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.progress import progress_bar
from rotoscope.runs.record import Proof, SubjectRecord
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.settings import SEED
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
    reader = HeadReader(subject.model, prove=wanted.prove, identity=described["fingerprint"])
    run.record.warnings += reader.warnings
    if wanted.known:
        reader.check_predicts("leave --known out")
    if not reader.predicts and any(answer is not None for prompt in shown for answer in prompt.answers):
        run.record.warnings.append(f"no accuracy: {reader.no_answers}")
    read_in = run.seconds
    planes = _single_frequencies(wanted, subject, reader)
    check_profile(reader, shown, wanted, out)
    scoring = Scoring(wanted.tau, planes, measures=wanted.own_measures)
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
        null_passes(run, subject, reader, wanted, shown, scoring, seed, bar, known, halving)
        run.arrange()
    if wanted.input_swaps:
        runs, swapping = Reruns(reader), swapping_of(wanted, subject, halving)
        with progress_bar("permuting", len(shown), show_progress) as bar:
            for batch in batches(
                shown, wanted.positions, 1
            ):  # prompt by prompt: a stopped run has less to do again
                run.piece(f"input-{batch.first:06d}", partial(permuted, runs, batch, swapping))
                bar.advance()
            stay = staying_heads(run.result.at())
            for batch in batches(shown, wanted.positions, 1) if stay else []:
                run.piece(f"paired-{batch.first:06d}", partial(paired_scores, runs, batch, swapping, stay))
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
