"""The cache plan: which key heads keep all their keys and values, and which may stream.

Rankings are made on prompts of their own, the plan takes the one that loses least on a second set, and everything that is shown
was measured on a third.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.experiments.plan.cache_result import NOTHING, RANDOM, CachePlan
from rotoscope.experiments.plan.plan_file import layer_numbers, write_exports
from rotoscope.experiments.plan.prompts import OutOfSight, Sizes, hash_of_sources, judged_prompts
from rotoscope.experiments.plan.rankings import Ranked, Rankings
from rotoscope.experiments.plan.settings import CacheSettings
from rotoscope.experiments.profile.run import describe
from rotoscope.measures.batches import Halving
from rotoscope.measures.losses import check_losses, measure_losses
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.models.stream import Streaming, streaming
from rotoscope.progress import progress_bar
from rotoscope.runs.record import Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.tasks.prompt import Prompts

ALL = -1
"""The draw of a ranking that is not drawn."""
MOST_TOKENS = {"cpu": 1024, "cuda": 16384}
"""That run through the model together."""


def cache(
    subject: Any,
    settings: CacheSettings | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> CachePlan:
    """Which key heads need the whole key-value cache: a plan, and what it costs beside other ways to choose.

    What is kept and how heads are ranked is said by `settings`, or by fields of `CacheSettings` given as keywords, such as
    `keep=0.25`, `window=256`, `sinks=4`. With `out`, the run goes on where it was killed, and `plan.json` and the files for other
    programs lie in it.
    """
    wanted = CacheSettings.make(settings, **changes)
    subject = load(subject)
    few = _few(subject, wanted)
    shown = _prompts(subject, wanted)
    described = {**subject.settings, **wanted.stored()}
    described["task_settings"] = {source: prompts.settings for source, prompts in few.items()}
    described["prompts_hash"] = hash_of_sources(shown)
    described["vocabulary"] = int(subject.model.config.get_text_config().vocab_size)
    run = Run(CachePlan, described, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    reader = HeadReader(subject.model)
    reader.check_predicts("a plan is judged by what the model says next")
    return _Planning(run, subject, reader, wanted, shown).plan(show_progress)


def _prompts(subject: Subject, wanted: CacheSettings) -> dict[str, Prompts]:
    """Three sets of every source in one: for ranking, for choosing, for judging."""
    long = max(128, 2 * wanted.window)
    usual = Sizes(length=long, pairs=8, passage=long)
    return judged_prompts(subject, wanted, usual, times=3, out_of_sight=OutOfSight(wanted.window, wanted.sinks))


def _few(subject: Subject, wanted: CacheSettings) -> dict[str, Prompts]:
    """A few prompts that stand for all; settings under which no head would forget anything are refused."""
    found = _prompts(subject, replace(wanted, prompts=1))
    _check_window(found, wanted)
    return found


def _check_window(shown: dict[str, Prompts], wanted: CacheSettings) -> None:
    """A head that forgets nothing of what is asked cannot be judged; lines are looked up out of sight, as they are made."""
    if "repeats" in shown:
        out_of_sight, back = OutOfSight(wanted.window, wanted.sinks), shown["repeats"].settings["length"] - 1
        queries = shown["repeats"][0].queries
        seen = sum(not out_of_sight.hides(query, query - back) for query in queries)
        if seen > len(queries) / 2:
            raise TaskError(
                f"{seen} of {len(queries)} tokens that repeats ask for, {back} tokens back, stand among the last {wanted.window} or the "
                f"first {wanted.sinks}, so no head would forget them: use longer prompts (--length), a smaller --window or --sinks, or "
                "other --sources"
            )
    if "text" in shown:
        shortest = min(len(prompt.tokens) for prompt in shown["text"])
        if wanted.window + wanted.sinks >= shortest:
            raise TaskError(
                f"a window of {wanted.window} tokens and {wanted.sinks} first ones hold all of a prompt of {shortest} (text), so no head "
                "would forget anything: use longer stretches (passage=), a smaller --window, or other --sources"
            )


def kept_heads(share: float, everyone: int) -> int:
    """How many key heads a share of them is."""
    return round(share * everyone)


class _Planning:
    """A cache plan in the making."""

    def __init__(
        self,
        run: Run[CachePlan],
        subject: Subject,
        reader: HeadReader,
        wanted: CacheSettings,
        shown: dict[str, Prompts],
    ) -> None:
        self.run, self.subject, self.reader, self.wanted = run, subject, reader, wanted
        count = wanted.prompts
        self.choosing: dict[str, Prompts] = {
            wanted.task: shown[wanted.task][count : count + max(1, count // 2)]
        }
        self.judging = {source: prompts[2 * count :] for source, prompts in shown.items()}
        self.rankings = Rankings(subject, reader, wanted, shown[wanted.task][:count])
        self.halving = Halving(run.record.warnings)

    def plan(self, show_progress: bool | None) -> CachePlan:
        run, wanted = self.run, self.wanted
        names = [
            (name, draw)
            for name in wanted.rankings
            for draw in (range(wanted.random_draws) if name == RANDOM else (ALL,))
        ]
        shares = self._shares
        ends = {kept: shares.pop(kept) for kept in (0, len(self.rankings.everyone))}
        if not shares:
            raise RotoscopeError(
                f"at no share would some of the {len(self.rankings.everyone)} key heads keep everything and others stream, so rankings "
                "could not be compared: give another --keep or --frontier"
            )
        points = len(ends) + len(names) * len(shares)
        check_losses(self.subject, self.judging, points, run.folder)
        total = points + len(names)
        with progress_bar("planning", total, show_progress) as bar:
            for kept, share in ends.items():
                run.piece(f"any-{kept}", partial(self._point, NOTHING, ALL, None, share, kept))
                bar.advance()
            for name, draw in names:
                made = run.piece(f"ranking-{name}-{draw + 1}", partial(self._ranking, name, draw))
                ranked = Ranked.read(made["scores"])
                bar.advance()
                for kept, share in shares.items():
                    key = f"point-{name}-{draw + 1}-{kept}"
                    run.piece(key, partial(self._point, name, draw, ranked, share, kept))
                    bar.advance()
        run.piece("plan", self._decided)
        write_exports(run, layer_numbers(self.reader))
        reader = self.reader
        proof = Proof(len(reader.proof), max(reader.proof, default=None), reader.way)
        return run.finish(
            subject=describe(self.subject, reader, run.record.settings["fingerprint"]), proof=proof
        )

    @property
    def _shares(self) -> dict[int, float]:
        """The shares at which rankings are compared, by the heads that keep everything, none and all among them.

        Of shares that keep as many heads there is one, and that which was asked for is there.
        """
        everyone, wanted = len(self.rankings.everyone), self.wanted
        found = {kept_heads(share, everyone): share for share in sorted(wanted.frontier)}
        found |= {0: 0.0, everyone: 1.0}
        found[kept_heads(wanted.keep, everyone)] = wanted.keep
        return dict(sorted(found.items()))

    def _ranking(self, name: str, draw: int) -> Tables:
        return {"scores": self.rankings.make(name, draw).table(name, draw)}

    def _point(self, name: str, draw: int, ranked: Ranked | None, share: float, kept: int) -> Tables:
        """Loss and accuracy with the heads that a ranking puts last streaming."""
        streams = frozenset(self.rankings.everyone[kept:]) if ranked is None else ranked.streaming(kept)
        plan = Streaming(streams, self.wanted.window, self.wanted.sinks)
        most = MOST_TOKENS.get(self.reader.device.type, MOST_TOKENS["cpu"])
        parts = []
        with self.reader.ready(), streaming(self.reader, plan):
            for purpose, shown in (("judging", self.judging), ("choosing", self.choosing)):
                if purpose == "judging" or name not in (NOTHING, RANDOM):
                    parts.append(
                        measure_losses(self.subject, shown, self.halving, most).assign(purpose=purpose)
                    )
        found = pd.concat(parts, ignore_index=True)
        about = {"ranking": name, "draw": draw, "kept_share": share, "kept_heads": kept}
        return {"points": found.assign(**about)[[*about, "purpose", "source", "prompt", "loss", "accuracy"]]}

    def _decided(self) -> Tables:
        """Who streams, at the share that was asked for."""
        result, everyone = self.run.result, self.rankings.everyone
        kept = kept_heads(self.wanted.keep, len(everyone))
        if kept in (0, len(everyone)):
            ranked = Ranked(tuple(everyone), dict.fromkeys(everyone, 0.0))
        else:
            ranked = Ranked.read(result.scores[result.scores["ranking"] == result.ranking])
        streams = ranked.streaming(kept)
        rows = [
            {"layer": layer, "key_head": head, "streams": (layer, head) in streams, "place": place}
            for place, (layer, head) in enumerate(ranked.heads)
        ]
        return {"heads": pd.DataFrame(rows).sort_values(["layer", "key_head"], ignore_index=True)}
