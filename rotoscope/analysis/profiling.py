"""The profile: every head of a model on a set of prompts, from one forward pass each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.batches import Batch, Queries, batches, prompts_from_tokens
from rotoscope.analysis.measures import score_batch
from rotoscope.errors import RotoscopeError
from rotoscope.maths.swaps import check_tau
from rotoscope.progress import progress
from rotoscope.reading import HeadReader, Subject, load
from rotoscope.results.folder import RunFolder, read_table, versions, write_table
from rotoscope.results.profile import Profile
from rotoscope.tasks.prompts import Prompts

__all__ = ["Estimate", "estimate", "profile"]


@dataclass(frozen=True)
class Estimate:
    """What a profile is expected to take."""

    prompts: int
    tokens: int
    gigabytes: float

    def __str__(self) -> str:
        return f"{self.prompts} prompts of up to {self.tokens} tokens, about {self.gigabytes:.1f} GB of memory"


def profile(
    subject: Any,
    prompts: Prompts | None = None,
    *,
    tokens: torch.Tensor | None = None,
    blocks: Sequence[Sequence[int]] | None = None,
    tau: float | Sequence[float] = 1e-4,
    gamma: float = 0.1,
    queries: Queries = "last",
    out: str | Path | None = None,
    overwrite: bool = False,
    prove: bool = True,
    batch_tokens: int | None = None,
    show_progress: bool | None = None,
) -> Profile:
    """Positional and symbolic scores of every head.

    `subject` is what `rs.load` returns or takes, or a bare model together with `tokens` [prompts, n]; then all
    token swaps of the last position are scored, or those of the given `blocks`.

    `tau` may be several temperatures; `gamma` is the tolerance of the purity classes; `queries` are the
    positions scored: "last", "all", "task" (where the task asks) or a list. With `out`, results are written as
    they come and a killed run goes on where it was. `prove=False` skips the check that the model's own
    attention is rebuilt; leave it on unless you time things.
    """
    taus = check_tau(tau)
    who = _subject(subject)
    if prompts is None:
        if tokens is None:
            raise RotoscopeError("give prompts (see rotoscope.tasks) or tokens [prompts, n]")
        prompts = prompts_from_tokens(tokens, blocks)
    elif blocks is not None or tokens is not None:
        raise RotoscopeError("prompts bring their own tokens and blocks; give either those or tokens")
    if len(prompts) == 0:
        raise RotoscopeError("no prompts were given")

    settings = _settings(who, prompts, taus, gamma, queries)
    folder = RunFolder(out, Profile.kind, settings, overwrite=overwrite) if out is not None else None
    if folder is not None and folder.complete:
        return Profile.open(folder.path)

    began = time.perf_counter()
    reader = HeadReader(who.model, prove=prove)
    read_in = time.perf_counter() - began
    if folder is not None:
        folder.begin()
    most = batch_tokens or (16384 if who.device.type == "cuda" else 2048)
    work = batches(prompts, queries, most)
    pieces: list[dict[str, pd.DataFrame]] = []
    with progress("profiling", len(prompts), show_progress) as bar:
        for batch in work:
            pieces.append(_piece(folder, reader, batch, taus, who.tokenizer))
            bar.advance(len(batch.prompts))
    tables = {
        name: pd.concat([piece[name] for piece in pieces], ignore_index=True)
        for name in pieces[0]
        if any(len(piece[name]) for piece in pieces)
    }
    details = {
        "subject": describe(who, reader),
        "proof": {"layers": len(reader.proof), "largest_difference": max(reader.proof, default=None)},
        "timings": {"reader_s": read_in, "total_s": time.perf_counter() - began},
    }
    run = {"settings": settings, "versions": versions(), **details, "warnings": []}
    result = Profile(run, tables)
    run["warnings"] = caveats(result)
    if folder is not None:
        saved = folder.finish({**tables, "heads": result.heads}, **details, warnings=run["warnings"])
        return Profile(saved, tables)
    return result


def estimate(subject: Subject, prompts: Prompts) -> Estimate:
    """Memory before the work starts: weights, one layer's activations, one layer's entries between blocks."""
    config = subject.model.config.get_text_config()
    weights = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    n = prompts.longest
    most = max((len(p.blocks) if p.blocks is not None else n) for p in prompts)
    heads = int(getattr(config, "num_attention_heads", 1))
    wide = int(getattr(config, "intermediate_size", 0) or 4 * config.hidden_size)
    activations = 4 * n * (3 * wide + 8 * int(config.hidden_size))
    entries = 4 * heads * (3 * n * most + 12 * min(most, 128) * most)
    vocabulary = 4 * int(config.vocab_size) * max(len(p.queries) for p in prompts)
    runtime = 0.35e9  # torch and transformers themselves
    return Estimate(len(prompts), n, (weights + activations + entries + vocabulary + runtime) / 1e9)


def _subject(subject: Any) -> Subject:
    if isinstance(subject, torch.nn.Module):
        return load((subject, None))
    return load(subject)


def _settings(
    who: Subject, prompts: Prompts, taus: tuple[float, ...], gamma: float, queries: Queries
) -> dict[str, Any]:
    shown = hashlib.sha256()
    for prompt in prompts:
        spans = prompt.blocks.spans if prompt.blocks is not None else None
        shown.update(repr((prompt.tokens, prompt.queries, spans)).encode())
    return {
        "model": who.name,
        "fingerprint": who.fingerprint,
        "task": prompts.task,
        "task_settings": prompts.settings,
        "prompts": len(prompts),
        "prompts_hash": shown.hexdigest()[:16],
        "tau": list(taus),
        "gamma": gamma,
        "queries": queries if isinstance(queries, str) else list(queries),
    }


def describe(who: Subject, reader: HeadReader) -> dict[str, Any]:
    """The subject as it stands in `run.json`."""
    layout = reader.layouts[0]
    return {
        "name": who.name,
        "fingerprint": who.fingerprint,
        "architecture": who.model.config.model_type,
        "layers": reader.layers,
        "planes": [layout.planes for layout in reader.layouts],
        "angles": layout.angles.tolist(),
        "dtype": str(who.model.dtype).removeprefix("torch."),
        "device": who.device.type,
        "source": who.source,
    }


def caveats(result: Profile) -> list[str]:
    """What a reader must know before trusting the scores."""
    found = []
    accuracy = result.accuracy
    if accuracy is not None and accuracy < 0.5:
        found.append(
            f"the model answers {accuracy:.0%} of these prompts: its heads are profiled on a task it mostly fails"
        )
    heads = result.at()
    low = heads["swapped_mass"].median()
    if low < 0.2:
        found.append(
            f"the median head puts {low:.0%} of its attention on the swapped blocks: the rest (often the first "
            "tokens) is not judged by the scores, and tau acts on what is left"
        )
    few = (heads["effective_swaps"] < 2).mean()
    if few > 0.5:
        found.append(
            f"at tau = {result.taus[0]:g} fewer than two swaps decide the score of {few:.0%} of the heads"
        )
    missing = int(heads["missing_reason"].notna().sum())
    if missing:
        found.append(f"{missing} heads see no swap (a sliding window hides every block) and have no score")
    return found


def _piece(
    folder: RunFolder | None, reader: HeadReader, batch: Batch, taus: tuple[float, ...], tokenizer: Any
) -> dict[str, pd.DataFrame]:
    """The tables of one batch: read back if an earlier try finished it, computed otherwise."""
    names = ("prompts", "queries", "answers")
    if folder is None:
        return score_batch(reader, batch, taus, tokenizer)
    done = {name: folder.piece(f"{batch.first:06d}-{name}.parquet") for name in names}
    if all(file.exists() for file in done.values()):
        return {name: read_table(file) for name, file in done.items()}
    made = score_batch(reader, batch, taus, tokenizer)
    for name in names:
        write_table(done[name], made[name])
    return made
