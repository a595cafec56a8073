"""One look at a model in training: every head scored on the same prompts, as often as it is asked for."""

from __future__ import annotations

from functools import partial

import pandas as pd

from rotoscope.errors import TaskError
from rotoscope.experiments.profile.nulls import score_draws
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.profile.sizes import check_one_prompt
from rotoscope.experiments.train.watch import accuracy_of, averaged
from rotoscope.measures.batches import Batch, Halving, batches, most_tokens
from rotoscope.measures.null import calibration_batches, check_null, make_nulls
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.runs.result import Tables
from rotoscope.runs.run import put_together
from rotoscope.scores.classes import AT_ITS_LAYER, GAMMA, purity_classes
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts

PREFIX = "rotoscope/"
"""Before the names of numbers in a trainer's log."""


class Look:
    """Scores models on prompts. A reader is made, and proven, once, and again whenever the model's modules are others."""

    def __init__(self, samples: Prompts | MultiHops, settings: ProfileSettings, seed: int) -> None:
        self.samples, self.settings, self.seed = samples, settings, seed
        self.prompts = samples.prompts() if isinstance(samples, MultiHops) else samples
        self.halving = Halving()
        self.proofs = 0
        """How often a reading was proven."""
        self.reader: HeadReader | None = None
        self._read: tuple[object, ...] = ()

    def check(self, subject: Subject) -> None:
        """Refuse before the training what would fail in its middle: prompts, memory, and a model that cannot be read."""
        reader = self.reader_of(subject)
        longest, most = max(len(prompt.tokens) for prompt in self.prompts), reader.positions
        if most is not None and longest > most:
            raise TaskError(f"a prompt to monitor with has {longest} tokens, and the model's context is {most}")
        words = int(subject.model.config.get_text_config().vocab_size)
        known = range(words)
        unknown = next((one for prompt in self.prompts for one in prompt.tokens if one not in known), None)
        if unknown is not None:
            raise TaskError(
                f"a prompt to monitor with has token {unknown}, and the model knows 0 to {words - 1}"
            )
        check_null(subject, self.settings.null)
        check_one_prompt(reader, self.prompts, self.settings)

    def reader_of(self, subject: Subject) -> HeadReader:
        """A reader of the model as it is now."""
        model = subject.model
        modules = (subject.device, model.dtype, *((name, id(module)) for name, module in model.named_modules()))
        if self.reader is None or self._read != modules:
            self.reader, self._read = HeadReader(model), modules
            self.proofs += 1
        return self.reader

    def __call__(self, subject: Subject, step: int) -> Tables:
        """The tables of a step: scores of all heads, accuracy where the task has answers, scores of the null's heads."""
        reader, wanted = self.reader_of(subject), self.settings
        work = batches(self.prompts, "last", most_tokens(subject, wanted))
        scoring = Scoring(wanted.tau)

        def score(part: Batch) -> Tables:
            return score_batch(reader, part, scoring, subject.tokenizer)

        read = put_together(self.halving.over(batch, score) for batch in work)
        found = {"scores": averaged(read["prompts"], "last", step)}
        if "answers" in read:
            found["accuracy"] = accuracy_of(read["answers"], self.samples, step)
        if wanted.null != "none":
            found["null_scores"] = self._null(subject, reader, read["prompts"], work, scoring, step)
        return found

    def _null(
        self,
        subject: Subject,
        reader: HeadReader,
        real: pd.DataFrame,
        work: list[Batch],
        scoring: Scoring,
        step: int,
    ) -> pd.DataFrame:
        """Fresh models with logits as large as the model's are at this step."""
        parts = []
        draws = range(self.settings.null_draws)
        for null in make_nulls(
            subject,
            reader,
            "random",
            draws,
            real,
            calibration_batches(self.prompts, "last", most_tokens(subject, self.settings)),
            seed=self.seed,
            halving=self.halving,
        ):
            score = partial(score_draws, {null.draw: null}, scoring)
            drawn = [part for batch in work for part in self.halving.each(batch, batch.length, score)]
            rows = put_together(part[null.draw] for part in drawn)["prompts"]
            parts.append(averaged(rows, "last", step).assign(draw=null.draw))
        return pd.concat(parts, ignore_index=True)


def class_counts(tables: Tables) -> dict[str, int]:
    """How many heads of a step are of each class."""
    heads = _heads(tables)
    classes = list(purity_classes(heads["positional_score"], heads["symbolic_score"], GAMMA))
    return {name: classes.count(name) for name in AT_ITS_LAYER}


def scalars(tables: Tables, prefix: str = PREFIX) -> dict[str, float]:
    """A handful of numbers about a step, for a trainer's log."""
    heads, counts = _heads(tables), class_counts(tables)
    found = {
        "positional_score": float(heads["positional_score"].mean()),
        "symbolic_score": float(heads["symbolic_score"].mean()),
        "pure_heads": float(counts["positional"] + counts["symbolic"]),
        **{f"share_{name}": count / len(heads) for name, count in counts.items()},
    }
    if "accuracy" in tables:
        by_hops = tables["accuracy"]
        found["accuracy"] = float((by_hops["accuracy"] * by_hops["inputs"]).sum() / by_hops["inputs"].sum())
    return {f"{prefix}{name}": value for name, value in found.items()}


def _heads(tables: Tables) -> pd.DataFrame:
    """The scores at the first tau."""
    heads = tables["scores"]
    return heads[heads["tau"] == heads["tau"].iloc[0]]
