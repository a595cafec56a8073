"""The profile: every head of a model on a set of prompts, from one forward pass each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.batches import Batch, Queries, batches, prompts_from_tokens, prompts_hash
from rotoscope.analysis.examples import examples as telling_examples
from rotoscope.analysis.examples import telling_heads
from rotoscope.analysis.measures import TABLES, Asked, score_batch
from rotoscope.analysis.nulls import Null, NullName, check_null, make_nulls
from rotoscope.errors import RotoscopeError
from rotoscope.maths.swaps import check_tau
from rotoscope.progress import Progress, progress
from rotoscope.reading import HeadReader, Subject, load
from rotoscope.results.folder import RunFolder, read_table, versions, write_json, write_table
from rotoscope.results.profile import Profile
from rotoscope.tasks.multihop import MultiHops
from rotoscope.tasks.prompts import Prompts

__all__ = ["Estimate", "estimate", "profile"]

Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Estimate:
    """What a profile is expected to take."""

    prompts: int
    tokens: int
    gigabytes: float
    plane_logits: float = 0.0
    """Logits of single planes per prompt, when frequencies are asked for."""

    def __str__(self) -> str:
        said = f"{self.prompts} prompts of up to {self.tokens} tokens, about {self.gigabytes:.1f} GB of memory"
        if self.plane_logits:
            seconds = self.plane_logits * SECONDS_PER_PLANE_LOGIT
            said += (
                f"; single frequencies: {self.plane_logits / 1e6:.0f} million logits a prompt, "
                f"roughly {seconds:.1f} s each on two CPU cores"
            )
        return said


SECONDS_PER_PLANE_LOGIT = 2.5e-9  # measured on two CPU cores; only for the estimate
Frequencies = bool | Sequence[tuple[int, int]]


def profile(
    subject: Any,
    prompts: Prompts | MultiHops | None = None,
    *,
    tokens: torch.Tensor | None = None,
    blocks: Sequence[Sequence[int]] | None = None,
    tau: float | Sequence[float] = 1e-4,
    gamma: float = 0.1,
    queries: Queries = "last",
    frequencies: Frequencies = False,
    null: NullName = "none",
    null_draws: int = 1,
    null_per_layer: bool = False,
    examples: bool = False,
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
    positions scored: "last", "all", "task" (where the task asks) or a list. `frequencies` scores every rotation
    plane of every head by itself at the last query, or of the listed (layer, head) only. `null` measures beside it
    what a model that learned nothing gives: "random" or "gaussian", `null_draws` times; `null_per_layer` rescales
    each layer of a random null by itself. `examples` also keeps attention before and after a swap, and the vectors
    in the dominant plane, of the most telling heads on the first prompt.

    With `out`, results are written as they come and a killed run goes on where it was. `prove=False` skips the
    check that the model's own attention is rebuilt; leave it on unless you time things.
    """
    taus = check_tau(tau)
    who = _subject(subject)
    if prompts is None:
        if tokens is None:
            raise RotoscopeError("give prompts (see rotoscope.tasks) or tokens [prompts, n]")
        prompts = prompts_from_tokens(tokens, blocks)
    elif blocks is not None or tokens is not None:
        raise RotoscopeError("prompts bring their own tokens and blocks; give either those or tokens")
    if isinstance(prompts, MultiHops):
        prompts = prompts.prompts()
    if len(prompts) == 0:
        raise RotoscopeError("no prompts were given")
    if null_draws < 1:
        raise RotoscopeError(f"a null needs at least one draw, found {null_draws}")
    check_null(who, null)

    settings = _settings(who, prompts, taus, gamma, queries)
    settings["frequencies"] = frequencies if isinstance(frequencies, bool) else sorted(map(list, frequencies))
    settings["null"] = {"name": null} | (
        {"draws": null_draws, "per_layer": null_per_layer} if null != "none" else {}
    )
    settings["examples"] = examples
    folder = RunFolder(out, Profile.kind, settings, overwrite=overwrite) if out is not None else None
    if folder is not None and folder.complete:
        return Profile.open(folder.path)

    began = time.perf_counter()
    reader = HeadReader(who.model, prove=prove)
    read_in = time.perf_counter() - began
    chosen = frequencies if isinstance(frequencies, bool) else _known_heads(frequencies, who, reader)
    if folder is not None:
        folder.begin()
    most = batch_tokens or (16384 if who.device.type == "cuda" else 2048)
    work = batches(prompts, queries, most)
    asked = Asked(taus, chosen)
    passes = 1 + (null_draws if null != "none" else 0)
    with progress("profiling", passes * len(prompts), show_progress) as bar:
        tables = _pass(folder, "real", reader, work, asked, who.tokenizer, bar)
        factors = _null_passes(
            tables,
            folder,
            make_nulls(who, reader, null, null_draws, tables["prompts"], work, per_layer=null_per_layer),
            work,
            asked,
            bar,
        )
    details = {
        "subject": describe(who, reader),
        "proof": {"layers": len(reader.proof), "largest_difference": max(reader.proof, default=None)},
        "timings": {"reader_s": read_in, "total_s": time.perf_counter() - began},
        "null_factors": factors,
    }
    run = {"settings": settings, "versions": versions(), **details, "warnings": []}
    result = Profile(run, tables)
    run["warnings"] = caveats(result)
    if examples:
        tables |= telling_examples(reader, work[0], list(telling_heads(result).items()))
    if folder is not None:
        saved = folder.finish(result.stored_tables(), **details, warnings=run["warnings"])
        return Profile(saved, tables)
    return result


def _null_passes(
    tables: Tables,
    folder: RunFolder | None,
    nulls: Iterable[Null],
    work: list[Batch],
    asked: Asked,
    bar: Progress,
) -> list[list[float]]:
    """Score every draw of the null on the same prompts, and add its tables to those of the subject."""
    found: dict[str, list[pd.DataFrame]] = {}
    factors = []
    for null in nulls:
        again = replace(asked, transform=null.transform)
        drawn = _pass(folder, f"{null.name}-{null.draw}", null.reader, work, again, None, bar)
        for name in ("prompts", "prompt_frequencies"):
            if name in drawn:
                table = drawn[name]
                table.insert(0, "draw", null.draw)
                table.insert(0, "null_name", null.name)
                found.setdefault(f"null_{name}", []).append(table)
        factors.append(null.factors)
    tables |= {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}
    return factors


def _pass(
    folder: RunFolder | None,
    title: str,
    reader: HeadReader,
    work: list[Batch],
    asked: Asked,
    tokenizer: Any,
    bar: Progress,
) -> Tables:
    """All batches through one model; what an earlier try finished is read back."""
    pieces = []
    for batch in work:
        pieces.append(_piece(folder, f"{title}-{batch.first:06d}", reader, batch, asked, tokenizer))
        bar.advance(len(batch.prompts))
    return {
        name: pd.concat(parts, ignore_index=True)
        for name in TABLES
        if (parts := [piece[name] for piece in pieces if len(piece.get(name, ()))])
    }


def _piece(
    folder: RunFolder | None, stem: str, reader: HeadReader, batch: Batch, asked: Asked, tokenizer: Any
) -> Tables:
    if folder is None:
        return score_batch(reader, batch, asked, tokenizer)
    marker = folder.piece(f"{stem}.done.json")
    if marker.exists():
        names = json.loads(marker.read_text(encoding="utf-8"))["tables"]
        return {name: read_table(folder.piece(f"{stem}-{name}.parquet")) for name in names}
    made = {name: table for name, table in score_batch(reader, batch, asked, tokenizer).items() if len(table)}
    for name, table in made.items():
        write_table(folder.piece(f"{stem}-{name}.parquet"), table)
    write_json(marker, {"tables": sorted(made)})
    return made


def estimate(subject: Subject, prompts: Prompts, frequencies: Frequencies = False) -> Estimate:
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
    planes = 0.0
    if frequencies:
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        count = heads * config.num_hidden_layers if frequencies is True else len(frequencies)
        planes = float(count * (width // 2) * n * most)
    return Estimate(len(prompts), n, (weights + activations + entries + vocabulary + runtime) / 1e9, planes)


def _known_heads(
    wanted: Sequence[tuple[int, int]], who: Subject, reader: HeadReader
) -> frozenset[tuple[int, int]]:
    heads = int(who.model.config.get_text_config().num_attention_heads)
    for layer, head in wanted:
        if not (0 <= layer < reader.layers and 0 <= head < heads):
            raise RotoscopeError(
                f"there is no head {layer}:{head}: layers go from 0 to {reader.layers - 1}, heads from 0 to {heads - 1}"
            )
    return frozenset((int(layer), int(head)) for layer, head in wanted)


def _subject(subject: Any) -> Subject:
    if isinstance(subject, torch.nn.Module):
        return load((subject, None))
    return load(subject)


def _settings(
    who: Subject, prompts: Prompts, taus: tuple[float, ...], gamma: float, queries: Queries
) -> dict[str, Any]:
    return {
        "model": who.name,
        "fingerprint": who.fingerprint,
        "task": prompts.task,
        "task_settings": prompts.settings,
        "prompts": len(prompts),
        "prompts_hash": prompts_hash(prompts),
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


def heads_without_planes(result: Profile) -> set[int]:
    """Layers without rotation, when frequencies were asked for."""
    if "prompt_frequencies" not in result.tables:
        return set()
    fastest = result.tables["prompt_frequencies"].groupby("layer")["frequency_id"].max()
    return {int(layer) for layer in fastest.index[fastest == 0]}


FIRST_TOKENS = 4


def sink_caveats(sinks: pd.DataFrame) -> list[str]:
    """Where attention goes whatever stands there, and whether that decides the scores."""
    if not len(sinks):
        return []
    inside = sinks[sinks["in_block"]]
    worst = (inside if len(inside) else sinks).sort_values("attention_mass").iloc[-1]
    where = (
        f"position {worst['position']} ({worst['token_text']!r}) draws {worst['attention_mass']:.0%} of all attention "
        f"(up to {worst['largest_layer_mass']:.0%} in a layer)"
    )
    if len(inside):
        share = inside["prompt"].nunique()
        advice = (
            "keep the first tokens outside the blocks (--prefix chat, or --prefix fact)"
            if worst["position"] < FIRST_TOKENS
            else "leave such a word out of the prompts"
        )
        return [f"attention sink inside a block in {share} prompts: {where} and decides the scores; {advice}"]
    return [f"attention sink outside the blocks: {where}; the scores judge the rest"]


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
    found += sink_caveats(result.sinks)
    unstable = int((~heads["stable"]).sum())
    if unstable:
        found.append(
            f"{unstable} of {len(heads)} heads change class when the prompts are resampled: more prompts, or a wider gamma"
        )
    still = sorted(heads_without_planes(result))
    if still:
        found.append(f"layers {still} do not rotate: one row per head, with frequency_id 0")
    missing = int(heads["missing_reason"].notna().sum())
    if missing:
        found.append(f"{missing} heads see no swap (a sliding window hides every block) and have no score")
    return found
