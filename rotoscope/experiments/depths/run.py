"""Where the place comes from: every head with blocks exchanged at the prompt, at its own layer and anywhere between."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import ModelError, TooLargeError
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.settings import CARRY, DepthsSettings
from rotoscope.experiments.depths.swaps import (
    Head,
    Swapping,
    null_scores,
    paired_scores,
    staying_heads,
    swap_at_depths,
)
from rotoscope.experiments.depths.writers import (
    Writers,
    empty_writers,
    plan_gates,
    positional_heads,
    readers_of,
)
from rotoscope.experiments.profile.examples import examples
from rotoscope.experiments.profile.nulls import failed_draws, leaving_out, usual_draws
from rotoscope.experiments.profile.run import as_prompts, describe, subject_settings
from rotoscope.measures.batches import Batch, Halving, batches, most_tokens
from rotoscope.measures.null import calibration_batches, check_null, make_nulls
from rotoscope.models.devices import check_memory, check_tables
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.progress import progress_bar
from rotoscope.runs.record import Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.settings import SEED
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts

SWAP_NUMBERS = 2
"""Positional and symbolic score of a single swap; its weight comes for every tau."""
ROW_BYTES = 63
"""Of a table's row: five scores of 8 bytes, and 23 bytes that say of what."""


def depths(
    subject: Any,
    prompts: Prompts | MultiHops | None = None,
    settings: DepthsSettings | None = None,
    *,
    tokens: Any = None,
    blocks: Any = None,
    seed: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> SwapDepths:
    """What every head follows when two blocks change places at the input of some layer.

    `at` names the depths: 0 is the prompt itself, "own" each head's own layer (the papers' score), "all" every layer. The
    most telling `swaps` of each prompt are run, and for heads that stay in the prompt also paired swaps, which tell a place
    from the block before. With `writers` the carried heads are then asked who writes the place they read:
    positional heads below them are silenced, and random ones beside (`writers_summary` and `writer_graph` of the result).
    Other settings are fields of `DepthsSettings`; everything else is as for `rs.profile`.
    """
    chosen = DepthsSettings.make(settings, **changes)
    shown = as_prompts(prompts, tokens, blocks)
    subject = load(subject)
    refused = _refused(subject, chosen.null)
    if chosen.null == "random" and chosen.null_draws is None:
        chosen = replace(chosen, null_draws=usual_draws(subject, shown, 1 + chosen.swaps))
    layers = int(subject.model.config.get_text_config().num_hidden_layers)
    depths_below = chosen.depths(layers)
    seed = shown.settings.get("seed", 0) if seed is None else seed
    SEED.check("seed", seed)
    described = subject_settings(subject, shown) | chosen.stored() | {"seed": seed}
    run = Run(SwapDepths, described, out, overwrite=overwrite, device=subject.device.type)
    if run.finished is not None:
        return run.finished
    run.record.warnings += [*subject.caveats, *refused]
    reader = HeadReader(subject.model, identity=described["fingerprint"])
    run.record.warnings += reader.warnings
    _check_size(reader, shown, chosen, out)
    locates = CARRY in chosen.at
    runs = Reruns(reader, enters=any(depths_below) or locates)
    most = most_tokens(subject, chosen)
    halving = Halving(run.record.warnings)
    swapping = Swapping(depths_below, chosen.swaps, taus=chosen.tau, most_tokens=most, halving=halving)
    work = batches(shown, "last", most)
    draws = range(0 if refused or chosen.null == "none" else chosen.null_draws or 0)
    single = batches(shown, "last", 1)  # prompt by prompt: a stopped run has less to do again
    with progress_bar("swapping", (1 + len(draws)) * len(shown), show_progress) as bar:
        for batch in single:
            run.piece(f"real-{batch.first:06d}", partial(_scores, runs, batch, swapping))
            bar.advance()
        stay = staying_heads(run.result.at()) if 0 in depths_below else frozenset()
        for batch in single if stay else []:
            run.piece(f"paired-{batch.first:06d}", partial(paired_scores, runs, batch, swapping, stay))
        if locates:
            _locate(run, runs, single, swapping)
        missing = [draw for draw in draws if not run.done(f"random-{draw}")]
        bar.advance((len(draws) - len(missing)) * len(shown))
        real = run.result.prompts
        first = calibration_batches(shown, "last", most)
        failed: list[str] = []
        for null in make_nulls(
            subject,
            reader,
            chosen.null,
            missing,
            real[real["own"]],
            first,
            seed=seed,
            halving=halving,
            failed=failed,
        ):
            with leaving_out(failed):
                rows = null_scores(
                    null, work, swapping, gamma=chosen.gamma, everyone=chosen.null_heads == "all"
                )
                run.add(f"random-{null.draw}", {"null_prompts": pd.concat(rows, ignore_index=True)})
            bar.advance(len(shown))
        run.record.warnings += failed_draws(chosen.null, failed)
        run.arrange()
    run.piece("examples", lambda: examples(reader, work[0], subject.tokenizer))
    if chosen.writers:
        _ask_writers(run, reader, work, chosen, swapping, seed, show_progress)
    return run.finish(
        subject=describe(subject, reader, described["fingerprint"]),
        proof=Proof(len(reader.proof), max([*reader.proof, runs.proof])),
    )


def _refused(subject: Subject, null: str) -> list[str]:
    """Why there is no null of this model, in a sentence; nothing where there is one."""
    try:
        check_null(subject, null)
    except (ModelError, TooLargeError) as problem:
        return [f"no {null} null: {problem}"]
    return []


def _scores(runs: Reruns, batch: Batch, swapping: Swapping) -> Tables:
    return {"prompts": swap_at_depths(runs, batch, swapping)}


def _locate(run: Run[SwapDepths], runs: Reruns, work: list[Batch], swapping: Swapping) -> None:
    """Halve the depths between which carried heads turn, for all of them at once, until these are neighbours."""
    tried: set[tuple[int, Head]] = set()
    while True:
        halves: dict[int, set[Head]] = {}
        for head, (low, high) in run.result.brackets().items():
            middle = (low + high) // 2
            if (middle, head) not in tried:
                halves.setdefault(middle, set()).add(head)
        if not halves:
            return
        number = len(tried)
        for depth, heads in sorted(halves.items()):
            tried |= {(depth, head) for head in heads}
            at_depth = replace(swapping, depths=(depth,), heads=frozenset(heads))
            for batch in work:
                key = f"carry-{number:04d}-{depth:03d}-{batch.first:06d}"
                run.piece(key, partial(_below, runs, batch, at_depth))


def _below(runs: Reruns, batch: Batch, swapping: Swapping) -> Tables:
    rows = swap_at_depths(runs, batch, swapping)
    return {"prompts": rows[~rows["own"]]}


def _ask_writers(
    run: Run[SwapDepths],
    reader: HeadReader,
    work: list[Batch],
    chosen: DepthsSettings,
    swapping: Swapping,
    seed: int,
    show_progress: bool | None,
) -> None:
    """Who writes the place of the carried heads that have been found; a piece of the run for every gate."""
    measured = run.result
    readers, positional = readers_of(measured, chosen.readers), positional_heads(measured)
    gates = plan_gates(readers, positional, reader.head_counts, chosen.controls, seed)
    if not gates:
        run.add("writers-00000", {"writers": empty_writers()})
        return
    at_the_prompt = replace(swapping, depths=(0,), swaps=chosen.writer_swaps, taus=chosen.tau[:1])
    writers = Writers(reader, work, gates, at_the_prompt)
    with progress_bar("silencing", len(gates), show_progress) as bar:
        for _ in writers.measure(run):
            bar.advance()


def _check_size(reader: HeadReader, prompts: Prompts, chosen: DepthsSettings, out: str | Path | None) -> None:
    """Raise TooLargeError where all swaps of one prompt, or the tables, cannot fit."""
    blocks = max(len(prompt.tokens) - 1 if prompt.blocks is None else len(prompt.blocks) for prompt in prompts)
    swaps = blocks * (blocks - 1) // 2
    needed = 4 * max(reader.head_counts) * swaps * (SWAP_NUMBERS + len(chosen.tau))
    less = "use prompts with fewer blocks"
    check_memory(f"one prompt with {swaps:,} swaps", needed, reader.device, less)
    depths = chosen.depths(reader.layers)
    own = sum(reader.head_counts)
    rows = own + sum(
        heads * sum(depth <= layer for depth in depths) for layer, heads in enumerate(reader.head_counts)
    )
    if chosen.null == "random":
        rows += (chosen.null_draws or 0) * (rows if chosen.null_heads == "all" else own)
    table_name = f"a table of {len(prompts):,} prompts at {len(depths)} depths"
    less = "use fewer prompts (--prompts), depths (--at) or draws (--null-draws)"
    check_tables(table_name, ROW_BYTES * len(chosen.tau) * len(prompts) * rows, out, less)
