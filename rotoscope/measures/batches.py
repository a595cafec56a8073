"""Prompts that can run through a model together, the query positions to score, and the losses on them."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import pandas as pd
import torch

from rotoscope.errors import TaskError, TooLargeError
from rotoscope.models.devices import check_memory, check_tables, logit_bytes
from rotoscope.models.loading import Subject
from rotoscope.models.weight_check import check_logits
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run, put_together
from rotoscope.scores.blocks import Blocks
from rotoscope.shapes import Float, Int, Tensor
from rotoscope.tasks.prompt import Prompt, Prompts

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
Queries = Literal["last", "all", "task"] | Sequence[int]
T = TypeVar("T")


@runtime_checkable
class BatchSettings(Protocol):
    """Settings that may say how many tokens run through a model together."""

    @property
    def batch_tokens(self) -> int | None: ...


@dataclass(frozen=True)
class Batch:
    """Prompts of one length that share their blocks and queries."""

    first: int
    prompts: tuple[Prompt, ...]
    queries: tuple[int, ...]
    """The positions that are scored."""
    inputs: tuple[int, ...]
    """For each prompt, the number of the first one with the same tokens: queries of one input are one sample."""

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, part: slice) -> Batch:
        """Some of its prompts, which keep their numbers."""
        first = self.first + part.indices(len(self))[0]
        return replace(self, first=first, prompts=self.prompts[part], inputs=self.inputs[part])

    @property
    def length(self) -> int:
        """How many tokens a prompt has."""
        return len(self.prompts[0].tokens)

    @property
    def tokens(self) -> torch.Tensor:
        return torch.tensor([prompt.tokens for prompt in self.prompts])

    @property
    def asked_at(self) -> tuple[int, ...]:
        """The positions at which the task expects an answer."""
        return self.prompts[0].queries if any(a is not None for a in self.prompts[0].answers) else ()

    def blocks_for(self, query: int) -> Blocks:
        blocks = self.prompts[0].blocks
        return Blocks.tokens(query) if blocks is None else blocks.before(query)

    def symbols_for(self, query: int) -> Int[torch.Tensor, "prompts 1 blocks"] | None:
        """The symbols of those blocks in every prompt, alike for all heads; None where no prompt has equal ones."""
        blocks = self.blocks_for(query)
        symbols = [prompt.symbols_of(blocks) for prompt in self.prompts]
        repeated = any(len(set(own)) < len(own) for own in symbols)
        return torch.tensor(symbols)[:, None] if repeated else None

    @property
    def asked(self) -> tuple[int, int] | None:
        """Where the answer stands."""
        prompt = self.prompts[0]
        if prompt.blocks is None or prompt.asked is None:
            return None
        return prompt.blocks.spans[prompt.asked]


class Halving:
    """Work that may not fit the memory of a GPU: as many inputs at a time as fit, found by halving.

    What did not fit is not tried again; a warning says, once, what did.
    """

    def __init__(self, warnings: list[str] | None = None) -> None:
        self.warnings: list[str] = [] if warnings is None else warnings
        self.most: int | None = None
        """Tokens at a time, once there was too little room for all."""
        self._said: int | None = None

    def over(self, batch: Batch, work: Callable[[Batch], Tables]) -> Tables:
        """The tables of a batch, put together where it had to be halved."""
        return put_together(self.each(batch, batch.length, work))

    def each(self, inputs: Any, tokens: int, work: Callable[[Any], T]) -> list[T]:
        """What the work makes of inputs of so many tokens, in order: a batch, or a list of anything."""
        done: list[T] = []
        first, failed = 0, ""
        while first < len(inputs):
            part = inputs[first : first + self._size(len(inputs) - first, tokens)]
            try:
                done.append(work(part))
            except torch.OutOfMemoryError as problem:
                failed = ". ".join(str(problem).split(". ")[:2]).splitlines()[0].rstrip(".")
            else:
                first += len(part)
                continue
            # Only here are the tensors of the failed try gone: an exception that is being handled holds on to them.
            if len(part) == 1:
                raise TooLargeError(
                    f"one input of {tokens:,} tokens does not fit the memory of the GPU ({failed}): use shorter prompts, a "
                    "smaller model or --device cpu"
                )
            torch.cuda.empty_cache()
            self.most = (len(part) + 1) // 2 * tokens
            self._say(len(part), tokens)
        return done

    def _size(self, count: int, tokens: int) -> int:
        return count if self.most is None else max(1, min(count, self.most // tokens))

    def _say(self, count: int, tokens: int) -> None:
        if self._said is None:
            self._said = len(self.warnings)
            self.warnings.append("")
        self.warnings[self._said] = (
            f"{count} inputs of {tokens:,} tokens did not fit the memory of the GPU together: batches were halved, to "
            f"{self._size(count, tokens)} of them"
        )


def most_tokens(subject: Subject, settings: BatchSettings) -> int:
    """How many tokens run through the model together."""
    return settings.batch_tokens or BATCH_TOKENS.get(subject.device.type, BATCH_TOKENS["cpu"])


def scored_queries(prompt: Prompt, queries: Queries) -> tuple[int, ...]:
    """Positions at which a prompt's heads are scored; "all" means all that have two blocks before them."""
    if queries == "last":
        return (max(prompt.queries),)
    if queries == "task":
        return prompt.queries
    spans = (
        prompt.blocks.spans if prompt.blocks is not None else [(p, p + 1) for p in range(len(prompt.tokens))]
    )
    earliest = sorted(stop for _, stop in spans)[1]
    if queries == "all":
        return tuple(range(earliest, len(prompt.tokens)))
    if isinstance(queries, str):
        raise TaskError(f"unknown queries '{queries}'; choose last, all, task or positions")
    n = len(prompt.tokens)
    chosen = tuple(sorted({int(q) % n if -n <= int(q) < n else n for q in queries}))
    if not chosen or chosen[0] < earliest or chosen[-1] >= n:
        raise TaskError(
            f"query positions {list(queries)} in a prompt of {n} tokens: each must lie from {earliest} "
            f"(two blocks come before it) to {n - 1}"
        )
    return chosen


def batches(
    prompts: Prompts, queries: Queries, most_tokens: int, groups: Sequence[Hashable] | None = None
) -> list[Batch]:
    """Consecutive prompts that look alike, up to a number of tokens; the same cut every time.

    `groups` names a group for every prompt: a batch holds prompts of one group, and those of group None are left out.
    """
    cut: list[Batch] = []
    inputs: dict[tuple[int, ...], int] = {}
    open_group: Hashable = None
    for index, prompt in enumerate(prompts):
        positions = scored_queries(prompt, queries)
        first_alike = inputs.setdefault(prompt.tokens, index)
        group = True if groups is None else groups[index]
        last = cut[-1] if cut and open_group == group else None
        open_group = group
        if group is None:
            continue
        if (
            last is not None
            and _shape(last.prompts[0]) == _shape(prompt)
            and last.queries == positions
            and (len(last.prompts) + 1) * len(prompt.tokens) <= most_tokens
        ):
            cut[-1] = Batch(last.first, (*last.prompts, prompt), positions, (*last.inputs, first_alike))
        else:
            cut.append(Batch(index, (prompt,), positions, (first_alike,)))
    return cut


def piece_key(stem: str, batch: Batch) -> str:
    """The key of a piece with the scores of a batch: which prompts it holds."""
    return f"{stem}-{batch.first:06d}-{batch.first + len(batch):06d}"


def kept_prompts(run: Run[Any], stem: str) -> dict[int, str]:
    """The prompts that an earlier try has scored, each with the key of the piece that holds it."""
    kept: dict[int, str] = {}
    for key in run.piece_keys():
        named = re.fullmatch(rf"{re.escape(stem)}-(\d{{6,}})-(\d{{6,}})", key)
        if named and run.done(key):
            kept |= dict.fromkeys(range(int(named[1]), int(named[2])), key)
    return kept


def _shape(prompt: Prompt) -> tuple[object, ...]:
    return len(prompt.tokens), prompt.blocks, prompt.queries, prompt.asked


def prompts_hash(prompts: Prompts) -> str:
    """A checksum of what prompts hold: tokens, queries, answers, blocks and symbols. Not where they came from."""
    digest = hashlib.sha256()
    for prompt in prompts:
        spans = prompt.blocks.spans if prompt.blocks is not None else None
        content = (prompt.tokens, prompt.queries, prompt.answers, spans, prompt.symbols, prompt.asked)
        digest.update(repr(content).encode())
    return digest.hexdigest()[:16]


MOST_TOKENS = 512
"""Tokens that run through the model together."""
LOSS_ROW = 24
"""Bytes of a row's prompt, loss and accuracy."""


@contextmanager
def answering(model: Any) -> Iterator[None]:
    """The model without dropout and gradients: what it loses is its own, also in the middle of a training. It is left as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def check_losses(subject: Subject, shown: Mapping[str, Prompts], times: int, out: str | Path | None) -> None:
    """Raise TooLargeError where the logits of one prompt, or so many losses of every prompt, cannot fit."""
    answers = max(len(prompt.queries) for prompts in shown.values() for prompt in prompts)
    subject_words = f"one prompt with {answers:,} answers"
    less = "use prompts with fewer answers or a smaller model"
    check_memory(subject_words, logit_bytes(subject.model, answers), subject.device, less)
    count = sum(map(len, shown.values()))
    subject_words = f"a table of {times:,} losses for each of {count:,} prompts"
    check_tables(
        subject_words, LOSS_ROW * times * count, out, "use fewer prompts (--prompts) or fewer conditions"
    )


def measure_losses(
    subject: Subject, shown: Mapping[str, Prompts], halving: Halving, most_tokens: int = MOST_TOKENS
) -> pd.DataFrame:
    """One row per source and prompt: mean negative log-likelihood and accuracy of its answers."""
    rows = []
    with answering(subject.model):
        for source, prompts in shown.items():
            for batch in batches(prompts, "task", most_tokens):
                parts = halving.each(batch, batch.length, partial(_losses, subject))
                for k, (loss, accuracy) in enumerate(itertools.chain(*parts)):
                    rows.append(
                        {"source": source, "prompt": batch.first + k, "loss": loss, "accuracy": accuracy}
                    )
    return pd.DataFrame(rows)


def answer_logits(subject: Subject, batch: Batch) -> Float[Tensor, "prompts queries vocabulary"]:
    """The model's logits where the prompts of a batch ask."""
    queries = list(batch.prompts[0].queries)
    options: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(subject.model.forward).parameters:
        options["logits_to_keep"] = torch.tensor(queries, device=subject.device)
    logits = subject.model(batch.tokens.to(subject.device), use_cache=False, **options).logits.float()
    return check_logits(logits if options else logits[:, queries], subject.model)


def token_losses(
    subject: Subject, batch: Batch
) -> tuple[Float[Tensor, "prompts queries"], Float[Tensor, "prompts queries"]]:
    """Negative log-likelihood of every answer of a batch, and 1 where it is what the model would say."""
    return answer_losses(answer_logits(subject, batch), batch)


def answer_losses(
    logits: Float[Tensor, "prompts queries vocabulary"], batch: Batch
) -> tuple[Float[Tensor, "prompts queries"], Float[Tensor, "prompts queries"]]:
    """The same from the logits there."""
    expected = torch.tensor([prompt.answers for prompt in batch.prompts], device=logits.device)
    right = logits.gather(2, expected[..., None])[..., 0]
    return logits.logsumexp(-1) - right, (right == logits.amax(-1)).float()


def _losses(subject: Subject, batch: Batch) -> list[tuple[float, float]]:
    loss, accuracy = (values.mean(1).tolist() for values in token_losses(subject, batch))
    return list(zip(loss, accuracy, strict=True))
