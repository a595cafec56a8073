"""Which scaling of the angles a longer input is read with: the same weights under each, at training length and beyond.

Text is read once at the longest length, since what a token is predicted from does not depend on what follows it; a scaling whose
angles depend on the length is read at every length. Repeated tokens fill each length with two copies. From the model as it is, at
training length alone, it is predicted where copying breaks under every scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rotoscope.analysis.batches import Halving
from rotoscope.analysis.plan.judged import hash_of_sources
from rotoscope.analysis.plan.longer_heads import Turns, read_repeats
from rotoscope.analysis.plan.longer_inputs import cut, repeats_of, text_ends, text_losses, text_of
from rotoscope.analysis.plan.scaled_by_plan import PLAN, ContextFile
from rotoscope.analysis.profiling import describe
from rotoscope.analysis.prompts import read_text
from rotoscope.errors import TaskError
from rotoscope.progress import progress_bar
from rotoscope.reading import HeadReader, Subject, load
from rotoscope.reading.scaled import (
    EXTENDED,
    RopeScaling,
    check_scalable,
    pretrained_shorter,
    rope_scaling,
    rotation_tables,
    scaled,
    training_length,
)
from rotoscope.results.context_plan import AS_IT_IS, CONTROL, ContextPlan
from rotoscope.results.record import Proof
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.settings import ContextSettings
from rotoscope.tasks.prompts import Prompts


def context(
    subject: Any,
    settings: ContextSettings | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> ContextPlan:
    """Compare scalings of a model's angles at training length and beyond, and recommend one where the losses tell.

    `settings`, or fields of `ContextSettings` given as keywords, say to which length (`to=8192`) and by which scalings
    (`scaling="yarn"`, or several). The model is left as it was. In the run folder, `plan.json` holds what to write into a
    config.json; `rs.plan.load_context` and `rs.plan.scale` apply it.
    """
    wanted = ContextSettings.make(settings, **changes)
    subject = load(subject)
    work = _Work.of(subject, wanted)
    lengths, scalings = work.lengths, work.scalings
    reader = HeadReader(subject.model)
    reader.check_predicts("a scaling is judged by what the model loses")
    described = {"model": subject.name, "fingerprint": subject.fingerprint, **wanted.stored()}
    described |= {"trained": lengths[0], "lengths": list(lengths), "vocabulary": work.vocabulary}
    described["prompts_hash"] = hash_of_sources(work.longest)
    described["rope"] = {name: _written(scaling) for name, scaling in scalings.items()}
    run = Run(ContextPlan, described, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if wanted.trained is None and pretrained_shorter(subject):
        positions = subject.model.config.max_position_embeddings
        run.record.warnings.append(EXTENDED.format(positions=positions))
    if run.finished is not None:
        return run.finished
    halving = Halving(run.record.warnings)
    with progress_bar("context", work.tokens(), show_progress) as bar:
        for key, tokens, make in work.pieces(halving):
            run.piece(key, make)
            bar.advance(tokens)
    run.beside(PLAN, lambda place: ContextFile.of(run.result).write(place))
    proof = Proof(len(reader.proof), max(reader.proof, default=None), reader.way)
    return run.finish(subject=describe(subject, reader, described["fingerprint"]), proof=proof)


@dataclass(frozen=True)
class _Work:
    """What is read, setting by setting."""

    subject: Subject
    wanted: ContextSettings
    lengths: tuple[int, ...]
    scalings: dict[str, RopeScaling]

    @classmethod
    def of(cls, subject: Subject, wanted: ContextSettings) -> _Work:
        """What settings ask for; a model that cannot be scaled, and lengths that need no scaling, are refused."""
        check_scalable(subject.model)
        trained = wanted.trained or training_length(subject)
        lengths = wanted.all_lengths(trained)
        names = (AS_IT_IS, *wanted.scaling)
        return cls(
            subject,
            wanted,
            lengths,
            {name: rope_scaling(subject.model, name, trained, wanted.to) for name in names},
        )

    @property
    def vocabulary(self) -> int:
        return int(self.subject.model.config.get_text_config().vocab_size)

    @cached_property
    def longest(self) -> dict[str, Prompts]:
        """What is shown at the length that is asked for, by source; one of which that cannot be made is refused."""
        wanted, made = self.wanted, dict[str, Prompts]()
        try:
            if "text" in wanted.sources:
                text = None if wanted.text is None else read_text(wanted.text)
                made["text"] = text_of(
                    self.subject, self.lengths, wanted.asked, wanted.prompts, wanted.seed, text
                )
            if "repeats" in wanted.sources:
                made["repeats"] = repeats_of(self.subject, self.lengths[-1], wanted.prompts, wanted.seed)
        except TaskError as problem:
            raise TaskError(
                f"inputs of {wanted.to:,} tokens (--to) cannot be made ({problem}): ask for a shorter length (--to), or leave that "
                "source out (--sources)"
            ) from problem
        return made

    def text_lengths(self, scaling: RopeScaling) -> tuple[int, ...]:
        """Lengths at which text is read: of angles that do not depend on the length, the longest tells about all others."""
        return self.lengths if scaling.by_length else self.lengths[-1:]

    def readings(self) -> list[tuple[str, str, int]]:
        """Source, setting and length of everything that is read."""
        found: list[tuple[str, str, int]] = []
        for source in sorted(self.wanted.sources, reverse=True):  # text first: the recommendation rests on it
            if source == "repeats":
                found.append((source, CONTROL, self.lengths[0]))
            for name, scaling in self.scalings.items():
                at = self.lengths if source == "repeats" else self.text_lengths(scaling)
                found += [(source, name, n) for n in at]
        return found

    def tokens(self) -> int:
        return self.wanted.prompts * sum(n for _, _, n in self.readings())

    def pieces(self, halving: Halving) -> Iterator[tuple[str, int, Callable[[], Tables]]]:
        """What is to be done: a key, the tokens that it takes, and the work itself."""
        for source, name, n in self.readings():
            made = partial(self._repeats, name, n, halving)
            if source == "text":
                made = partial(self._text, name, n, cut(self.longest["text"], n), halving)
            number = list(self.scalings).index(name) if name in self.scalings else len(self.scalings)
            yield f"{source}-{number}-{n:09d}", n * self.wanted.prompts, made

    def _scaled(self, name: str, n: int) -> Subject:
        scaling = self.scalings[AS_IT_IS if name == CONTROL else name]
        return scaled(self.subject, scaling, n)

    def _text(self, name: str, n: int, prompts: Prompts, halving: Halving) -> Tables:
        ends = {end: many for end, many in text_ends(self.lengths, self.wanted.asked).items() if end <= n}
        found = text_losses(self._scaled(name, n), prompts, ends, halving)
        found = found.assign(setting=name, length=n)
        told = [n] if self.scalings[name].by_length else list(self.lengths)
        losses = (
            found[found["position"].isin(told)].drop(columns="length").rename(columns={"position": "length"})
        )
        return {"positions": found, "losses": losses.assign(source="text")}

    def _repeats(self, name: str, n: int, halving: Halving) -> Tables:
        seed = self.wanted.seed + (name == CONTROL)
        prompts = repeats_of(self.subject, n, self.wanted.prompts, seed)
        as_trained = name == AS_IT_IS and n == self.lengths[0]
        tables = read_repeats(self._scaled(name, n), prompts, halving, self._turns() if as_trained else None)
        found = {
            key: table if key == "predicted" else table.assign(setting=name, length=n)
            for key, table in tables.items()
        }
        found["losses"] = found["losses"].assign(source="repeats")
        if name == CONTROL:
            del found["losses"]
        return found

    def _turns(self) -> Turns:
        """The rotation tables of every setting at every length."""
        return {
            (name, n): rotation_tables(scaled(self.subject, scaling, n).model, n)
            for name, scaling in self.scalings.items()
            for n in self.lengths
        }


def _written(scaling: RopeScaling) -> dict[str, Any]:
    """As it stands in a config.json."""
    return {
        "rope_parameters": scaling.rope_parameters,
        "max_position_embeddings": scaling.max_position_embeddings,
    }
