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

from rotoscope.analysis.batches import Halving
from rotoscope.analysis.losses import measure_losses
from rotoscope.analysis.plan.exports import layer_numbers, write_exports
from rotoscope.analysis.plan.judged import Sizes, judged_prompts
from rotoscope.analysis.plan.rankings import Ranked, Rankings
from rotoscope.analysis.profiling import describe
from rotoscope.errors import TaskError
from rotoscope.progress import progress_bar
from rotoscope.reading import HeadReader, Subject, load
from rotoscope.reading.cost import Cost, forward_seconds, size_of
from rotoscope.reading.streaming import Streaming, streaming
from rotoscope.results.cache_plan import NOTHING, RANDOM, CachePlan
from rotoscope.results.record import Proof
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.settings import CacheSettings
from rotoscope.tasks.prompts import Prompts

ALL = -1
"""The draw of a ranking that is not drawn."""
MOST_TOKENS = {"cpu": 1024, "cuda": 16384}
"""That run through the model together."""
GRADIENT, ASKED = 12.0, 1.5
"""Forward passes that a path gradient takes, and that a look at heads takes; for the estimate."""


def cache(
    subject: Any,
    settings: CacheSettings | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    force: bool = False,
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
    cache_cost(subject, wanted, few).check(subject.device, force=force)
    described = {"model": subject.name, "fingerprint": subject.fingerprint, **wanted.stored()}
    described["task_settings"] = {source: prompts.settings for source, prompts in few.items()}
    run = Run(CachePlan, described, out, overwrite=overwrite)
    run.record.warnings += subject.warnings
    if run.finished is not None:
        return run.finished
    reader = HeadReader(subject.model)
    reader.check_predicts("a plan is judged by what the model says next")
    return _Planning(run, subject, reader, wanted, _prompts(subject, wanted), force).plan(show_progress)


def _prompts(subject: Subject, wanted: CacheSettings) -> dict[str, Prompts]:
    """Three sets of every source in one: for ranking, for choosing, for judging."""
    w = wanted.window
    usual = Sizes(length=max(128, 2 * w), pairs=max(8, min(w // 4, 64)), passage=max(128, 2 * w))
    return judged_prompts(subject, wanted, usual, times=3)


def _few(subject: Subject, wanted: CacheSettings) -> dict[str, Prompts]:
    """A few prompts that stand for all; settings under which no head would forget anything are refused."""
    found = _prompts(subject, replace(wanted, prompts=1))
    _check_window(found, wanted)
    return found


def _check_window(shown: dict[str, Prompts], wanted: CacheSettings) -> None:
    """A head that forgets nothing cannot be judged."""
    size = {"repeats": "--length", "lookup": "--pairs", "text": "--passage"}
    for source, prompts in shown.items():
        shortest = min(len(prompt.tokens) for prompt in prompts)
        if wanted.window + wanted.sinks >= shortest:
            raise TaskError(
                f"a window of {wanted.window} tokens and {wanted.sinks} first ones hold all of a prompt of {shortest} ({source}), "
                f"so no head would forget anything: use longer prompts ({size[source]}), a smaller --window, or other --sources"
            )


def _shares(wanted: CacheSettings) -> list[float]:
    """The shares between none and all at which rankings are compared."""
    return sorted({share for share in (*wanted.frontier, wanted.keep) if 0 < share < 1})


def cache_cost(subject: Subject, wanted: CacheSettings, few: dict[str, Prompts] | None = None) -> Cost:
    """All rankings, and all of them at all shares; a few prompts stand for all."""
    shown = few or _few(subject, wanted)
    lengths = {source: len(prompts[0].tokens) for source, prompts in shown.items()}
    once = {
        source: wanted.prompts * forward_seconds(subject.model, n, subject.device)
        for source, n in lengths.items()
    }
    drawn = wanted.random_draws if RANDOM in wanted.rankings else 0
    rankings = len(wanted.rankings) - (RANDOM in wanted.rankings)
    points = 2 + len(_shares(wanted)) * (rankings + drawn)
    gradients = sum(
        name.startswith("gradient") * (5 if name.endswith("rounds") else 1) for name in wanted.rankings
    )
    seconds = points * sum(once.values()) + len(_shares(wanted)) * rankings * once[wanted.task] / 2
    seconds += once[wanted.task] * (gradients * GRADIENT + rankings * ASKED)
    memory = 12.0 * MOST_TOKENS["cpu"] * size_of(subject.model.config.get_text_config(), "vocab_size")
    what = f"{points} points of {wanted.prompts} prompts of up to {max(lengths.values()):,} tokens each, from {len(shown)} sources"
    return Cost(
        what, memory / 1e9, seconds, "use fewer or shorter prompts, fewer rankings or a shorter frontier"
    )


class _Planning:
    """A cache plan in the making."""

    def __init__(
        self,
        run: Run[CachePlan],
        subject: Subject,
        reader: HeadReader,
        wanted: CacheSettings,
        shown: dict[str, Prompts],
        force: bool,
    ) -> None:
        self.run, self.subject, self.reader, self.wanted = run, subject, reader, wanted
        count = wanted.prompts
        ranked_on = {source: prompts[:count] for source, prompts in shown.items()}
        self.choosing: dict[str, Prompts] = {
            wanted.task: shown[wanted.task][count : count + max(1, count // 2)]
        }
        self.judging = {source: prompts[2 * count :] for source, prompts in shown.items()}
        self.rankings = Rankings(subject, reader, wanted, ranked_on, force)
        self.halving = Halving(run.record.warnings)

    def plan(self, show_progress: bool | None) -> CachePlan:
        run, wanted = self.run, self.wanted
        names = [
            (name, draw)
            for name in wanted.rankings
            for draw in (range(wanted.random_draws) if name == RANDOM else (ALL,))
        ]
        shares = _shares(wanted)
        total = 2 + len(names) * (1 + len(shares))
        with progress_bar("planning", total, show_progress) as bar:
            for share in (0.0, 1.0):
                run.piece(f"any-{share:.4f}".replace(".", "_"), partial(self._point, NOTHING, ALL, None, share))
                bar.advance()
            for name, draw in names:
                made = run.piece(f"ranking-{name}-{draw + 1}", partial(self._ranking, name, draw))
                ranked = Ranked.read(made["scores"])
                bar.advance()
                for share in shares:
                    key = f"point-{name}-{draw + 1}-{share:.4f}".replace(".", "_")
                    run.piece(key, partial(self._point, name, draw, ranked, share))
                    bar.advance()
        run.piece("plan", self._decided)
        write_exports(run, layer_numbers(self.reader))
        reader = self.reader
        proof = Proof(len(reader.proof), max(reader.proof, default=None), reader.way)
        return run.finish(subject=describe(self.subject, reader), proof=proof)

    def _ranking(self, name: str, draw: int) -> Tables:
        return {"scores": self.rankings.make(name, draw).table(name, draw)}

    def _point(self, name: str, draw: int, ranked: Ranked | None, share: float) -> Tables:
        """Loss and accuracy with the heads that a ranking puts last streaming."""
        everyone = self.rankings.everyone
        kept = round(share * len(everyone))
        streams = frozenset(everyone[kept:]) if ranked is None else ranked.streaming(kept)
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
        name = result.ranking
        if name == NOTHING:  # all or none
            ranked = Ranked(tuple(everyone), dict.fromkeys(everyone, 0.0))
        else:
            ranked = Ranked.read(result.scores[result.scores["ranking"] == name])
        streams = ranked.streaming(round(self.wanted.keep * len(everyone)))
        rows = [
            {"layer": layer, "key_head": head, "streams": (layer, head) in streams, "place": place}
            for place, (layer, head) in enumerate(ranked.heads)
        ]
        return {"heads": pd.DataFrame(rows).sort_values(["layer", "key_head"], ignore_index=True)}
