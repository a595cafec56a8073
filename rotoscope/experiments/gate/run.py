"""Gating: the papers' causal knob on a real model.

Keep or remove chosen frequencies in chosen heads while the model runs, and see what it does to the task, to plain text
and to the heads themselves. Beside every group of heads chosen by class stand equal numbers drawn at random from the
same layers: what any heads of these layers would do.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.experiments.gate.result import UNGATED, Gating
from rotoscope.experiments.gate.settings import GateSettings
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.run import describe, profile, subject_settings
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.selection import Head, control_sets, parse_heads, parse_planes
from rotoscope.lab.checkpoints import own_task
from rotoscope.measures.batches import Halving, batches, check_losses, measure_losses
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.interventions import Gate, gated, silence
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.progress import progress_bar
from rotoscope.runs.record import settings_hash
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.scores.classes import CLASSES
from rotoscope.tasks.prompt import Prompts
from rotoscope.tasks.text import passages

INPUT_SWAPS = 64
"""Swaps of the prompts themselves, by which carried heads are told."""
SCORE_TOKENS = 2048


@dataclass(frozen=True)
class Condition:
    """One setting of the knob."""

    name: str
    action: str
    """keep, remove (planes), or silence (whole heads)."""
    group: str
    """Whose heads: all, listed, or a class."""
    planes: tuple[int, ...]
    heads: tuple[Head, ...]
    draw: int | None = None
    """Which random control this is; None for the group itself."""

    def gate(self, reader: HeadReader) -> Gate:
        if self.action == "silence":
            return Gate(heads=frozenset(self.heads))
        chosen, closed = frozenset(self.planes), {}
        for layer, head in self.heads:
            all_planes = frozenset(range(reader.layouts[layer].planes + 1))
            closed[layer, head] = all_planes - chosen if self.action == "keep" else all_planes & chosen
        return Gate(planes=closed)

    @property
    def described(self) -> list[Any]:
        """What tells it from another, for the settings of a run."""
        heads = settings_hash({"heads": self.heads})
        return [self.name, self.group, self.draw, sorted(self.planes), len(self.heads), heads]


def gate(
    subject: Any,
    prompts: Prompts,
    settings: GateSettings | None = None,
    *,
    classes: Profile | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Gating:
    """Keep or remove frequencies in chosen heads, or silence the heads, and measure task, text and heads.

    What is gated is said by `settings`, or by fields of `GateSettings` given as keywords, such as `keep="1-8"`,
    `remove="angle 0.01-0.5"`, `silence=True`, `heads="symbolic"`. Without keep, remove or silence this is a sweep: each
    band is kept alone and removed alone, in all heads and in the heads of each class, and whole classes are silenced.
    Unless all heads are gated, random groups of as many heads from the same layers stand beside them. `heads_of_class="symbolic"`
    silences all heads of a class: `effects` of the result says what is lost, and whether it is more than random groups lose.

    Classes come from `classes`, a profile of the model, else from a profile of the same prompts. What cannot fit memory or
    disk is refused.
    """
    settings = GateSettings.make(settings, **changes)
    check_answers(prompts)
    subject = load(subject)
    reader = subject.reader(identity=subject.fingerprint)
    reader.check_predicts("a gate is judged by what the model answers")
    classes = _classes(subject, prompts, settings, show_progress) if classes is None else classes
    make = one_gate if settings.case == "one gate" else sweep
    conditions = list(make(reader, settings, classes, seed))
    sources = {"task": prompts, **text_prompts(subject)}
    check_losses(subject, sources, 1 + len(conditions), out)
    described = subject_settings(subject, prompts) | settings.stored() | {"seed": seed}
    described["passages"] = len(sources.get("text", ()))
    described["conditions"] = [condition.described for condition in conditions]
    run = Run(Gating, described, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    halving = Halving(run.record.warnings)
    with progress_bar("gating", 1 + len(conditions), show_progress) as bar:
        for number, condition in enumerate([Condition(UNGATED, "remove", "all", (), ()), *conditions]):
            measured = (
                control_prompts(sources)
                if settings.case == "a sweep" and condition.draw is not None
                else sources
            )
            run.piece(
                f"condition-{number:04d}", partial(_measure, subject, reader, condition, measured, halving)
            )
            bar.advance()
    if settings.case == "one gate" and settings.scores and settings.heads_of_class is None:
        run.piece("scores", lambda: {"gated_heads": _scores(reader, prompts, conditions[0], halving)})
    return run.finish(subject=describe(subject, reader, described["fingerprint"]))


def check_answers(prompts: Prompts) -> None:
    """Refuse prompts that do not say what comes next."""
    if any(answer is None for prompt in prompts for answer in prompt.answers):
        raise TaskError("a gate is judged by what the model answers: say what should come next (--answer)")


def _classes(
    subject: Subject, prompts: Prompts, settings: GateSettings, show_progress: bool | None
) -> Profile | None:
    """The profile that was named, else one of the prompts where heads are chosen by class."""
    if settings.classes is not None:
        named = Profile.open(settings.classes)
        if named.run.subject is not None and named.run.subject.fingerprint != subject.fingerprint:
            raise RotoscopeError(f"{settings.classes} is a profile of another model ({named.name})")
        return named
    groups = settings.groups if settings.case == "a sweep" else (settings.heads_of_class or settings.heads,)
    if not set(groups) & set(CLASSES):
        return None
    input_swaps = INPUT_SWAPS if "carried" in groups else 0
    plain = ProfileSettings(null="none", examples=False, input_swaps=input_swaps)
    return profile(subject, prompts, plain, show_progress=show_progress)


def text_prompts(subject: Subject) -> dict[str, Prompts]:
    """Plain text; a model of a multi-hop task knows no prose."""
    if own_task(subject) is not None or subject.tokenizer is None:
        return {}
    return {"text": passages(subject, count=6, most_tokens=80)}


def control_prompts(sources: Mapping[str, Prompts]) -> dict[str, Prompts]:
    """The prompts of a sweep's random controls: a quarter, at least two."""
    return {source: prompts[: max(2, len(prompts) // 4)] for source, prompts in sources.items()}


def one_gate(
    reader: HeadReader, settings: GateSettings, classes: Profile | None, seed: int
) -> Iterator[Condition]:
    """The gate that was asked for, beside random heads of the same layers."""
    action, planes = settings.action or "", settings.keep or settings.remove or "none"
    heads = settings.heads_of_class or settings.heads
    group = heads if heads == "all" or heads in CLASSES else "listed"
    name = f"silence {group}" if action == "silence" else f"{action} {planes}"
    chosen = parse_heads(heads, reader, classes)
    yield from with_controls(
        Condition(name, action, group, parse_planes(planes, reader), chosen), reader, settings.controls, seed
    )


def sweep(
    reader: HeadReader, settings: GateSettings, classes: Profile | None, seed: int
) -> Iterator[Condition]:
    """Each band kept alone and removed alone, by group of heads; whole classes silenced; last, nothing left at all."""
    for group in settings.groups:
        try:
            heads = parse_heads(group, reader, classes)
        except RotoscopeError:
            continue
        gates = [
            Condition(f"{action} {ids[0]}-{ids[-1]}", action, group, ids, heads)
            for ids in bands(reader, settings.bands)
            for action in ("keep", "remove")
        ]
        if group != "all":
            gates.append(Condition(f"silence {group}", "silence", group, (), heads))
        for condition in gates:
            yield from with_controls(condition, reader, settings.controls, seed)
    all_planes = parse_planes("all", reader)
    yield Condition("remove all", "remove", "all", all_planes, parse_heads("all", reader, None))


def bands(reader: HeadReader, count: int) -> list[tuple[int, ...]]:
    """All frequency ids, fastest first, cut into bands of nearly equal size."""
    planes = max(layout.planes for layout in reader.layouts)
    if not 1 <= count <= planes:
        raise RotoscopeError(f"{planes} planes can be cut into 1 to {planes} bands, not {count}")
    edges = [round(k * planes / count) for k in range(count + 1)]
    return [tuple(range(first + 1, last + 1)) for first, last in itertools.pairwise(edges)]


def with_controls(condition: Condition, reader: HeadReader, count: int, seed: int) -> Iterator[Condition]:
    """A condition, then different sets of as many heads drawn at random from the same layers, never the condition's own.

    There are no controls where layers are taken whole, and fewer where heads are few: a single head of nine has eight. Below
    nineteen the verdict is undecided or as in the null, never beyond.
    """
    yield condition
    dice = random.Random(f"{seed} {condition.group}")
    for draw, heads in enumerate(control_sets(condition.heads, reader.head_counts, count, dice)):
        yield replace(condition, heads=tuple(sorted(heads)), draw=draw)


def labels_of(condition: Condition) -> dict[str, Any]:
    """The columns that tell a condition."""
    return {
        "condition": condition.name,
        "action": condition.action,
        "head_group": condition.group,
        "control": condition.draw is not None,
        "draw": -1 if condition.draw is None else condition.draw,
        "first_id": min(condition.planes, default=0),
        "last_id": max(condition.planes, default=0),
        "gated_heads": len(condition.heads),
    }


def _measure(
    subject: Subject, reader: HeadReader, condition: Condition, sources: Mapping[str, Prompts], halving: Halving
) -> Tables:
    """Loss and accuracy per prompt under one condition."""
    labels = labels_of(condition)
    with gated(reader, condition.gate(reader)):
        rows = measure_losses(subject, sources, halving)
    return {"conditions": rows.assign(**labels)[[*labels, *rows]]}


def _scores(reader: HeadReader, prompts: Prompts, condition: Condition, halving: Halving) -> pd.DataFrame:
    """Scores of every head before and under the gate."""
    before, after = (_gated_scores(reader, prompts, gate, halving) for gate in (Gate(), condition.gate(reader)))
    return before.join(after.add_suffix("_gated")).reset_index()


def _gated_scores(reader: HeadReader, prompts: Prompts, closed: Gate, halving: Halving) -> pd.DataFrame:
    scoring = Scoring((1e-4,), transform=lambda layer, batch: silence(layer, closed))
    with gated(reader, closed):
        parts = [
            halving.over(batch, lambda part: score_batch(reader, part, scoring, None))["prompts"]
            for batch in batches(prompts, "last", SCORE_TOKENS)
        ]
    return pd.concat(parts).groupby(["layer", "head"])[["positional_score", "symbolic_score", "entropy"]].mean()
