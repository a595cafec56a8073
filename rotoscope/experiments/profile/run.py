"""The profile: every head of a model on a set of prompts, from one forward pass each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rotoscope.errors import ModelError, RotoscopeError, TaskError, TooLargeError
from rotoscope.experiments.depths.swaps import paired_scores, staying_heads
from rotoscope.experiments.known_heads import scores_of_heads, usual_prompts
from rotoscope.experiments.profile.attention_page import pairs_of
from rotoscope.experiments.profile.examples import examples
from rotoscope.experiments.profile.more_draws import open_run
from rotoscope.experiments.profile.nulls import null_passes, permuted, swapping_of, usual_draws
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
from rotoscope.tasks.text import chats, is_chat, text


def profile(
    subject: Any,
    prompts: Any = None,
    settings: ProfileSettings | None = None,
    *,
    tokens: Any = None,
    blocks: Any = None,
    tokenizer: Any = None,
    seed: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    on_scores: Callable[[Profile], None] | None = None,
    **changes: Any,
) -> Profile:
    """Positional and symbolic scores of every head.

    `subject` is what `rs.load` returns or takes: a name, a model, or a pair (model, tokenizer). `prompts` come from
    `rs.tasks`, or are a text, several, or a chat, with the `tokenizer` of a bare model. Instead of prompts, `tokens` [prompts, n]
    are a list, an array or a tensor, or what a tokenizer returns. All token swaps before the last position are scored, or those
    of the `blocks`: for texts also "sentence", "line" or a number of tokens.

    `settings`, or fields of `ProfileSettings` as keywords, say what is measured: `tau=[1e-4, 1e-2]`, `frequencies=True` (or
    a list of (layer, head)), `measures=[previous_token]`, `null="random"` for random models beside every figure, drawn with
    seeds from `seed`, by default that of the prompts.

    With `out`, results are written as they come and a killed run goes on where it was. A finished run that has fewer draws of
    its nulls than are asked for, or no null, is given those that are missing; one that has more is returned as it is. What cannot
    fit memory or disk is refused before it begins. `on_scores` is called with the profile so far when the model has been scored, before nulls.
    """
    chosen = ProfileSettings.make(settings, **changes)
    subject = load((subject, tokenizer) if tokenizer is not None else subject)
    shown = as_prompts(prompts, tokens, blocks, subject)
    nulls, refused = _possible_nulls(subject, chosen)
    if nulls and chosen.null_draws is None:
        chosen = replace(chosen, null_draws=usual_draws(subject, shown))
    seed = shown.settings.get("seed", 0) if seed is None else seed
    SEED.check("seed", seed)
    described = subject_settings(subject, shown) | chosen.stored() | {"seed": seed}
    run = open_run(described, out, overwrite=overwrite, device=subject.device.type, prompts=len(shown))
    if run.finished is not None:
        return run.finished
    reader = _proven_reader(run, subject, shown, chosen, described["fingerprint"])
    run.record.warnings += refused
    read_in, halving = run.seconds, Halving(run.record.warnings)
    scoring = Scoring(chosen.tau, _single_frequencies(chosen, subject, reader), measures=chosen.own_measures)
    check_profile(reader, shown, chosen, out)
    _score_prompts(run, subject, reader, chosen, shown, scoring, halving, show_progress)
    if on_scores is not None:
        on_scores(run.result)
        run.arrange()  # what the result made of its tables is made again once there are more
    known = usual_prompts(subject, seed) if chosen.known else []
    if known:
        run.piece("known", lambda: {"known_heads": scores_of_heads(reader, known, subject.tokenizer)})
    run.drop_other_devices("random-")  # another device draws other random models from the same seeds
    work = len(nulls) * (chosen.null_draws or 0) * len(shown)
    with progress_bar("drawing nulls", work, show_progress, once=True) as bar:
        for null in nulls:
            bar.doing(null)
            null_passes(run, subject, reader, chosen, null, shown, scoring, seed, bar, known, halving)
            run.arrange()
    if chosen.input_swaps:
        _permute_prompts(run, subject, reader, chosen, shown, halving, show_progress)
    if chosen.examples:
        _add_examples(run, subject, reader, chosen, shown, described["fingerprint"])
    return run.finish(
        subject=describe(subject, reader, described["fingerprint"]),
        proof=Proof(len(reader.proof), max(reader.proof, default=None), reader.way),
        timings={"reader_s": read_in},
    )


def _possible_nulls(subject: Subject, settings: ProfileSettings) -> tuple[list[str], list[str]]:
    """The nulls that can be made, and why others cannot; one that was asked for by itself is refused."""
    nulls, refused = [], []
    for name in settings.nulls:
        try:
            check_null(subject, name)
            nulls.append(name)
        except (ModelError, TooLargeError) as problem:
            if len(settings.nulls) == 1:
                raise
            refused.append(f"no {name} null: {problem}")
    return nulls, refused


def _proven_reader(
    run: Run[Profile], subject: Subject, shown: Prompts, chosen: ProfileSettings, fingerprint: str
) -> HeadReader:
    """A reader of the subject whose reading is proven; what cannot be measured is refused."""
    reader = subject.reader(prove=chosen.prove, identity=fingerprint)
    run.record.warnings += [*subject.caveats, *reader.warnings]
    if chosen.known:
        reader.check_predicts("leave --known out")
    if not reader.predicts and any(answer is not None for prompt in shown for answer in prompt.answers):
        run.record.warnings.append(f"no accuracy: {reader.no_answers}")
    return reader


def _score_prompts(
    run: Run[Profile],
    subject: Subject,
    reader: HeadReader,
    chosen: ProfileSettings,
    shown: Prompts,
    scoring: Scoring,
    halving: Halving,
    show_progress: bool | None,
) -> None:
    """Every prompt that an earlier try has not scored, batch by batch."""
    kept = kept_prompts(run, "real")
    groups = [None if k in kept else True for k in range(len(shown))]

    def score(part: Batch) -> Tables:
        return score_batch(reader, part, scoring, subject.tokenizer)

    with progress_bar("profiling", len(shown), show_progress) as bar:
        bar.advance(len(kept))
        for batch in batches(shown, chosen.positions, most_tokens(subject, chosen), groups):
            run.piece(piece_key("real", batch), partial(halving.over, batch, score))
            bar.advance(len(batch))
    run.arrange()


def _permute_prompts(
    run: Run[Profile],
    subject: Subject,
    reader: HeadReader,
    chosen: ProfileSettings,
    shown: Prompts,
    halving: Halving,
    show_progress: bool | None,
) -> None:
    """Run the model on prompts with their own blocks permuted, prompt by prompt: a stopped run has less to do again."""
    runs, swapping = Reruns(reader), swapping_of(chosen, subject, halving)
    with progress_bar("permuting", len(shown), show_progress) as bar:
        for batch in batches(shown, chosen.positions, 1):
            examples = chosen.examples and batch.first == 0
            run.piece(f"input-{batch.first:06d}", partial(permuted, runs, batch, swapping, examples))
            bar.advance()
    stay = staying_heads(run.result.at())
    for batch in batches(shown, chosen.positions, 1) if stay else []:
        run.piece(f"paired-{batch.first:06d}", partial(paired_scores, runs, batch, swapping, stay))


def _add_examples(
    run: Run[Profile],
    subject: Subject,
    reader: HeadReader,
    chosen: ProfileSettings,
    shown: Prompts,
    fingerprint: str,
) -> None:
    """Attention on the first prompt: written with a run that is kept, else made when a page or figure needs it."""
    first = batches(shown[:1], chosen.positions, most_tokens(subject, chosen))[0]

    def make() -> Tables:
        if run.folder is None and subject.fingerprint != fingerprint:
            raise RotoscopeError(
                "the weights of the model have changed since it was profiled, so its attention is not what was scored: "
                "profile it again, or keep the run with out="
            )
        also = pairs_of(run.result.tables.get("attention_prompt_permuted"))
        return examples(reader, first, subject.tokenizer, also=also)

    if run.folder is not None:
        run.piece("examples", make)
    else:
        run.result.later_examples = make


def as_prompts(prompts: Any, tokens: Any = None, blocks: Any = None, subject: Any = None) -> Prompts:
    """Prompts from whatever a user has: prompts, samples of a multi-hop task, texts, or bare tokens."""
    if isinstance(prompts, MultiHops):
        prompts = prompts.prompts()
    texts = [prompts] if isinstance(prompts, str) else prompts
    if isinstance(texts, list | tuple) and texts and all(isinstance(part, str) for part in texts):
        prompts, blocks = _texts(subject, list(texts), blocks), None
    elif is_chat(texts):
        prompts = chats(subject, texts)
    elif hasattr(prompts, "shape") or (isinstance(prompts, list | tuple | Mapping) and not tokens):
        prompts, tokens = None, prompts
    if prompts is None:
        if tokens is None:
            raise RotoscopeError(
                "give prompts (see rotoscope.tasks), a text with a tokenizer, or tokens [prompts, n]"
            )
        prompts = from_tokens(tokens, blocks)
    elif blocks is not None or tokens is not None:
        raise RotoscopeError("prompts bring their own tokens and blocks; give either those or tokens")
    if not isinstance(prompts, Prompts):
        raise RotoscopeError(
            f"prompts are made by rotoscope.tasks, or are a text, several texts or token ids; found {type(prompts).__name__}"
        )
    if len(prompts) == 0:
        raise RotoscopeError("no prompts were given")
    return prompts


def _texts(subject: Any, texts: list[str], blocks: Any) -> Prompts:
    """Texts cut into the blocks, by default into tokens; of a text of two tokens the start token is one of those."""
    if getattr(subject, "tokenizer", None) is None:
        raise TaskError(
            "a text needs the model's tokenizer: write rs.profile(model, text, tokenizer=tokenizer), or give tokens"
        )
    return text(subject, texts, "token" if blocks is None else blocks)


def _single_frequencies(
    chosen: ProfileSettings, subject: Subject, reader: HeadReader
) -> bool | frozenset[tuple[int, int]]:
    """Whose planes are scored: those of all heads, of none, or of the listed ones, which must be there."""
    if chosen.single_heads is None:
        return chosen.frequencies
    heads = int(subject.model.config.get_text_config().num_attention_heads)
    for layer, head in chosen.single_heads:
        if not (0 <= layer < reader.layers and 0 <= head < heads):
            raise RotoscopeError(
                f"there is no head {layer}:{head}: layers go from 0 to {reader.layers - 1}, heads from 0 to {heads - 1}"
            )
    return frozenset(chosen.single_heads)


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
