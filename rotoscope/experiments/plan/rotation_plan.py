"""Which planes of every key head must rotate: rankings at equal numbers of planes, and the one that loses least.

The planes of a key head that do not rotate are stopped, for the key and for all query heads of its group: they go on existing, without a
position (p-RoPE). Planes are ranked on prompts of their own, the ranking is chosen on others, and what is reported is measured on a
third set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import NoRotaryError, RotoscopeError
from rotoscope.experiments.plan.plane_rankings import plane_scores, random_scores, ranks
from rotoscope.experiments.plan.prompts import Sizes, hash_of_sources, judged_prompts
from rotoscope.experiments.plan.rotation_file import PLANES_FILE, RotatingPlanes
from rotoscope.experiments.plan.rotation_result import ALL, NONE, RANDOM, RotationPlan
from rotoscope.experiments.plan.settings import RotationSettings
from rotoscope.experiments.profile.run import describe
from rotoscope.measures.batches import Halving
from rotoscope.measures.losses import check_losses, measure_losses
from rotoscope.models.loading import Subject, load
from rotoscope.models.partial_rope import Which, check_turns_back, stopped
from rotoscope.models.reader import HeadReader
from rotoscope.progress import progress_bar
from rotoscope.runs.record import Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.tasks.prompt import Prompts

USUAL = Sizes(length=32, pairs=8, passage=128)
RANKED, SELECTED, JUDGED = 0, 1, 2
"""Thirds of the prompts: those that planes are ranked on, that the ranking is chosen on, and that are reported."""


def rotation(
    subject: Any,
    settings: RotationSettings | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> RotationPlan:
    """Choose the planes of every key head that go on rotating, and judge the choice beside others of as many planes.

    What is decided is said by `settings`, or by fields of `RotationSettings` given as keywords, such as `planes=8`,
    `plane_rankings=("effect", "norm", "random")` or `sources=("text",)`. The plan follows the ranking that loses least on prompts of
    its own. With `out` the folder holds `rotation.safetensors` as well: ranks that `rs.plan.load_rotation` reads and
    `rs.plan.stop_planes` applies.
    """
    wanted = RotationSettings.make(settings, **changes)
    subject = load(subject)
    shown = judged_prompts(subject, wanted, USUAL, times=3)
    ranked, selected, judged = (_third(shown, place) for place in (RANKED, SELECTED, JUDGED))
    reader = HeadReader(subject.model)
    reader.check_predicts("a plan is judged by what the model answers")
    check_turns_back(reader)
    total = max(layout.planes for layout in reader.layouts)
    if not total:
        raise NoRotaryError(f"no layer of {subject.name} rotates: there are no planes to choose from")
    if wanted.planes > total:
        raise RotoscopeError(
            f"planes is {wanted.planes}, and a head of {subject.name} has {total}: ask for at most {total} (--planes)"
        )
    described = wanted.stored() | {
        **subject.settings,
        "prompts_hash": hash_of_sources(shown),
        "vocabulary": int(subject.model.config.get_text_config().vocab_size),
        "lengths": {source: max(len(p.tokens) for p in prompts) for source, prompts in judged.items()},
    }
    run = Run(RotationPlan, described, out, overwrite=overwrite, device=subject.device.type)
    if run.finished is not None:
        return run.finished
    budgets = sorted({b for b in wanted.plane_budgets if 0 < b < total} | ({wanted.planes} - {0, total}))
    drawn = wanted.plane_draws if RANDOM in wanted.plane_rankings else 0
    rankings = len(set(wanted.plane_rankings) - {RANDOM}) + drawn
    check_losses(subject, judged, 2 + rankings * len(budgets), out)
    run.record.warnings += subject.caveats
    halving = Halving(run.record.warnings)
    scores = run.piece("scores", lambda: {"scores": plane_scores(subject, reader, ranked, wanted, halving)})[
        "scores"
    ]
    orders = list(_orders(scores, wanted))
    work = len(orders) * (1 + len(budgets)) + 2
    measure = partial(_measure, subject, reader, scores, halving)
    with progress_bar("judging planes", work, show_progress) as bar:
        for ranking, draw, order in orders:
            key = f"selected-{ranking}-{draw + 1}"
            run.piece(key, partial(measure, "selection", selected, ranking, draw, order, wanted.planes))
            bar.advance()
        for ranking, planes in ((NONE, 0), (ALL, total)):
            order = ranks(scores, -scores["frequency_id"])
            run.piece(f"judged-{planes}", partial(measure, "frontier", judged, ranking, -1, order, planes))
            bar.advance()
        for ranking, draw, order in orders:
            for planes in budgets:
                key = f"judged-{ranking}-{draw + 1}-{planes}"
                run.piece(key, partial(measure, "frontier", judged, ranking, draw, order, planes))
                bar.advance()
    chosen = run.result.chosen
    order = next(order for ranking, _, order in orders if ranking == chosen)
    run.piece("plan", lambda: {"plan": _plan(scores, order, wanted.planes)})
    run.beside(PLANES_FILE, RotatingPlanes.of(run.result).save)
    return run.finish(
        subject=describe(subject, reader, described["fingerprint"]),
        proof=Proof(len(reader.proof), max(reader.proof, default=None), reader.way),
        ranking=chosen,
    )


def _third(shown: Mapping[str, Prompts], place: int) -> dict[str, Prompts]:
    """One of three equal parts of the prompts of every source."""
    sizes = {source: len(prompts) // 3 for source, prompts in shown.items()}
    return {
        source: prompts[place * sizes[source] : (place + 1) * sizes[source]]
        for source, prompts in shown.items()
    }


def _orders(scores: pd.DataFrame, wanted: RotationSettings) -> Iterator[tuple[str, int, pd.Series]]:
    """Every ranking with the ranks it gives; random ones draw by draw."""
    for ranking in wanted.plane_rankings:
        if ranking == RANDOM:
            for draw in range(wanted.plane_draws):
                yield ranking, draw, ranks(scores, random_scores(scores, wanted.seed, draw))
        else:
            yield ranking, -1, ranks(scores, scores[ranking])


def stopped_by(table: pd.DataFrame, order: pd.Series, planes: int) -> Which:
    """The planes that are stopped where each key head keeps so many, by their ranks."""
    gone = table[order >= planes]
    return {
        (int(layer), int(head)): frozenset(int(k) for k in rows["frequency_id"])
        for (layer, head), rows in gone.groupby(["layer", "key_head"])
    }


def _measure(
    subject: Subject,
    reader: HeadReader,
    scores: pd.DataFrame,
    halving: Halving,
    table: str,
    shown: Mapping[str, Prompts],
    ranking: str,
    draw: int,
    order: pd.Series,
    planes: int,
) -> Tables:
    """Losses with so many planes of every key head rotating."""
    with stopped(reader, stopped_by(scores, order, planes)):
        found = measure_losses(subject, shown, halving)
    about = {"ranking": ranking, "draw": draw, "planes": planes}
    return {table: found.assign(**about)[[*about, *found]]}


def _plan(scores: pd.DataFrame, order: pd.Series, planes: int) -> pd.DataFrame:
    table = scores[["layer", "key_head", "frequency_id", "angle"]]
    return table.assign(rank=order.astype(int), rotates=order < planes)
