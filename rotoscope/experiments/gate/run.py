"""Gating: the papers' causal knob on a real model.

Keep or remove chosen frequencies in chosen heads while the model runs, and see what it does to the task, to plain text
and to the heads themselves. Beside every group of heads chosen by class stand equal numbers drawn at random from the
same layers: what any heads there would do.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.gate.settings import GateSettings
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.run import describe, profile, subject_settings
from rotoscope.experiments.profile.settings import ProfileSettings, head_pairs
from rotoscope.lab.checkpoints import own_task
from rotoscope.measures.batches import Halving, batches
from rotoscope.measures.losses import check_losses, measure_losses
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.gate import Gate, gated, silence
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.progress import progress_bar
from rotoscope.runs.record import settings_hash
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.scores.classes import CLASSES
from rotoscope.tasks.prompt import Prompts
from rotoscope.tasks.text import passages

MOVED_PROMPT = "input_positional_score"
"""A column of profiles that swapped the prompts themselves, which tells carried heads from symbolic ones."""
Head = tuple[int, int]
Planes = str | Sequence[int]
Heads = str | Sequence[Head]


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
        chosen = frozenset(self.planes)
        closed = {}
        for layer, head in self.heads:
            everything = frozenset(range(reader.layouts[layer].planes + 1))
            closed[layer, head] = everything - chosen if self.action == "keep" else everything & chosen
        return Gate(planes=closed)


def parse_planes(planes: Planes, reader: HeadReader) -> tuple[int, ...]:
    """Frequency ids from "all", "none", "1-8,12", "angle 0.01-0.5", or a list of ids."""
    layout = max(reader.layouts, key=lambda layout: layout.planes)
    if not isinstance(planes, str):
        ids = tuple(sorted({int(plane) for plane in planes}))
    elif planes in ("all", "none"):
        ids = tuple(range(layout.planes + 1)) if planes == "all" else ()
    elif planes.startswith("angle"):
        try:
            low, high = (float(end) for end in planes.removeprefix("angle").strip().split("-"))
        except ValueError as problem:
            raise RotoscopeError(f"'{planes}': an angle range is written 'angle 0.01-0.5'") from problem
        ids = tuple(k + 1 for k, angle in enumerate(layout.angles.tolist()) if low <= abs(angle) <= high)
    else:
        # A range cannot reach far beyond the last plane, however large its end: what is beyond is refused below.
        spans = [_span(part, planes) for part in planes.split(",")]
        ids = tuple(
            sorted({k for first, last in spans for k in (*range(first, min(last, layout.planes) + 1), last)})
        )
    if any(not 0 <= k <= layout.planes for k in ids):
        raise RotoscopeError(
            f"frequency ids go from 1 (fastest) to {layout.planes}, 0 is what does not rotate; found {planes}"
        )
    if not ids and isinstance(planes, str) and planes != "none":
        slowest, fastest = layout.angles.abs().min(), layout.angles.abs().max()
        raise RotoscopeError(
            f"'{planes}' holds no frequency of this model, whose angles go from {slowest:.2g} to {fastest:.2g}"
        )
    return ids


def _span(part: str, planes: str) -> tuple[int, int]:
    """The first and the last id of "5" or "1-8"."""
    ends = part.strip().split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() for end in ends):
        raise RotoscopeError(f"'{planes}': frequency ids are written 1-8,12")
    first, last = int(ends[0]), int(ends[-1])
    if first > last:
        raise RotoscopeError(f"'{part.strip()}' holds no frequency: write the smaller id first, {last}-{first}")
    return first, last


def parse_heads(heads: Heads, reader: HeadReader, classes: Profile | None) -> tuple[Head, ...]:
    """Heads from "all", a class name, "12:0,3:4" or a list."""
    everyone = [(layer, head) for layer in range(reader.layers) for head in range(reader.head_counts[layer])]
    if heads == "all":
        return tuple(everyone)
    if isinstance(heads, str) and ":" not in heads:
        if classes is None:
            raise RotoscopeError(f"choosing heads by class ('{heads}') needs a profile of this model")
        rows = classes.at()
        if heads == "carried" and MOVED_PROMPT not in rows:
            raise RotoscopeError(
                "which heads are carried is known where prompts themselves were swapped (k = 0): give a profile made with "
                "--input-swaps 64 (--classes RUN)"
            )
        found = rows[rows["head_class"] == heads]
        if found.empty:
            raise RotoscopeError(
                f"no head of class '{heads}'; there are {sorted(set(rows['head_class'].dropna()))}"
            )
        return tuple((int(layer), int(head)) for layer, head in zip(found["layer"], found["head"], strict=True))
    chosen = tuple(head_pairs(heads))
    for wanted in chosen:
        if wanted not in everyone:
            raise RotoscopeError(f"there is no head {wanted[0]}:{wanted[1]} (layers and heads count from 0)")
    return chosen


def bands(reader: HeadReader, count: int) -> list[tuple[int, ...]]:
    """All frequency ids, fastest first, cut into bands of nearly equal size."""
    planes = max(layout.planes for layout in reader.layouts)
    if not 1 <= count <= planes:
        raise RotoscopeError(f"{planes} planes can be cut into 1 to {planes} bands, not {count}")
    edges = [round(k * planes / count) for k in range(count + 1)]
    return [tuple(range(a + 1, b + 1)) for a, b in itertools.pairwise(edges)]


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
    silences all heads of a class beside five such groups: `effects` of the result says what is lost, and whether it is more.

    Classes come from `classes`, a profile of the model, else from a profile of the same prompts. What cannot fit memory or
    disk is refused.
    """
    wanted = GateSettings.make(settings, **changes)
    if any(answer is None for prompt in prompts for answer in prompt.answers):
        raise TaskError("a gate is judged by what the model answers: say what should come next (--answer)")
    subject = load(subject)
    reader = HeadReader(subject.model)
    reader.check_predicts("a gate is judged by what the model answers")
    one_group = wanted.heads_of_class or wanted.heads
    by_class = set(wanted.groups if wanted.case == "a sweep" else (one_group,)) & set(CLASSES)
    if classes is None and by_class:
        moved = 64 if "carried" in by_class else 0
        plain = ProfileSettings(null="none", examples=False, input_swaps=moved)
        classes = profile(subject, prompts, plain, show_progress=show_progress)
    scored = None
    if wanted.case == "a sweep":
        conditions = list(_sweep(reader, wanted, classes, seed))
    else:
        whole = wanted.silence or wanted.heads_of_class is not None
        action = "silence" if whole else "keep" if wanted.keep is not None else "remove"
        planes = wanted.keep or wanted.remove or "none"
        group = one_group if ":" not in one_group else "listed"
        chosen = parse_heads(one_group, reader, classes)
        name = f"silence {group}" if whole else f"{action} {planes}"
        one = Condition(name, action, group, parse_planes(planes, reader), chosen)
        conditions = [one, *random_controls(one, reader, wanted.controls, seed)]
        scored = one if wanted.scores else None
    shown = {"task": prompts}
    # A model of a multi-hop task knows no prose.
    if own_task(subject) is None and subject.tokenizer is not None:
        shown["text"] = passages(subject, count=6, most_tokens=80)
    check_losses(subject, shown, 1 + len(conditions), out)
    described = subject_settings(subject, prompts) | wanted.stored() | {"seed": seed}
    described["passages"] = len(shown.get("text", ()))
    described["conditions"] = [
        [c.name, c.group, c.draw, sorted(c.planes), len(c.heads), settings_hash({"heads": c.heads})]
        for c in conditions
    ]
    run = Run(Gating, described, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    none = Condition("nothing gated", "remove", "all", (), ())
    halving = Halving(run.record.warnings)
    with progress_bar("gating", 1 + len(conditions), show_progress) as bar:
        for number, condition in enumerate([none, *conditions]):
            run.piece(f"condition-{number:04d}", partial(_measure, subject, reader, condition, shown, halving))
            bar.advance()
    if scored is not None:
        run.piece("scores", lambda: {"gated_heads": _scores(reader, prompts, scored, halving)})
    return run.finish(subject=describe(subject, reader, described["fingerprint"]))


def _sweep(reader: HeadReader, wanted: GateSettings, classes: Profile | None, seed: int) -> Iterator[Condition]:
    """Each band kept alone and removed alone, by group of heads; whole classes silenced; last, nothing left at all."""
    cut = bands(reader, wanted.bands)
    for group in wanted.groups:
        try:
            chosen = parse_heads(group, reader, classes)
        except RotoscopeError:
            continue
        for ids in cut:
            for action in ("keep", "remove"):
                one = Condition(f"{action} {ids[0]}-{ids[-1]}", action, group, ids, chosen)
                yield one
                if action == "keep":
                    yield from random_controls(one, reader, wanted.controls, seed)
        if group != "all":
            whole = Condition(f"silence {group}", "silence", group, (), chosen)
            yield whole
            yield from random_controls(whole, reader, wanted.controls, seed)
    everything = parse_planes("all", reader)
    yield Condition("remove all", "remove", "all", everything, parse_heads("all", reader, None))


def random_controls(condition: Condition, reader: HeadReader, count: int, seed: int) -> Iterator[Condition]:
    """Equal numbers of heads drawn at random from the same layers; none where a layer is taken whole anyway.

    A draw of the very heads that are judged is drawn again: among nine heads, one in nine draws of a single head.
    """
    per_layer: dict[int, int] = {}
    for layer, _ in condition.heads:
        per_layer[layer] = per_layer.get(layer, 0) + 1
    if all(number == reader.head_counts[layer] for layer, number in per_layer.items()):
        return
    for draw in range(count):
        dice = random.Random(f"{seed} {draw} {condition.group}")
        drawn = condition.heads
        while set(drawn) == set(condition.heads):
            drawn = tuple(
                (layer, head)
                for layer, number in sorted(per_layer.items())
                for head in sorted(dice.sample(range(reader.head_counts[layer]), number))
            )
        yield Condition(condition.name, condition.action, condition.group, condition.planes, drawn, draw)


def _measure(
    subject: Subject,
    reader: HeadReader,
    condition: Condition,
    shown: Mapping[str, Prompts],
    halving: Halving,
) -> Tables:
    """Loss and accuracy per prompt under one condition."""
    about = {
        "condition": condition.name,
        "action": condition.action,
        "head_group": condition.group,
        "control": condition.draw is not None,
        "draw": -1 if condition.draw is None else condition.draw,
        "first_id": min(condition.planes, default=0),
        "last_id": max(condition.planes, default=0),
        "gated_heads": len(condition.heads),
    }
    with gated(reader, condition.gate(reader)):
        found = measure_losses(subject, shown, halving)
    return {"conditions": found.assign(**about)[[*about, *found]]}


def _scores(reader: HeadReader, prompts: Prompts, condition: Condition, halving: Halving) -> pd.DataFrame:
    """Both scores of every head before and under the gate."""
    closed = condition.gate(reader)
    found = []
    for one in (Gate(), closed):
        scoring = Scoring((1e-4,), transform=lambda layer, batch, one=one: silence(layer, one))  # type: ignore[misc]
        with gated(reader, one):
            work = batches(prompts, "last", 2048)
            score = lambda part, scoring=scoring: score_batch(reader, part, scoring, None)  # noqa: E731
            rows = pd.concat([halving.over(batch, score)["prompts"] for batch in work])
        found.append(rows.groupby(["layer", "head"])[["positional_score", "symbolic_score", "entropy"]].mean())
    return found[0].join(found[1].add_suffix("_gated")).reset_index()
