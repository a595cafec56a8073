"""One-hop questions put to a model that we run ourselves.

Each question is scored twice: by the answer the model writes on its own, and by which of the candidates it finds most
likely. The second asks less: it does not punish a model for wordiness, and chance is one in the number of candidates.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import TaskError
from rotoscope.experiments.ask.result import OneHopRun, answer_row, answered_keys, answers_table, question_key
from rotoscope.lab.checkpoints import own_task
from rotoscope.models.devices import CPU, check_memory
from rotoscope.models.identity import tokenizer_identity
from rotoscope.models.loading import Subject, load
from rotoscope.models.offloading import places
from rotoscope.models.weight_check import check_logits
from rotoscope.progress import progress_bar
from rotoscope.runs.record import SubjectRecord
from rotoscope.runs.run import Run
from rotoscope.tasks.onehop import OneHopPlan, Question, read_answer
from rotoscope.tasks.prompt import tokenised

AT_ONCE = 8192
"""Most tokens, rows × length, that candidates are scored with at once."""


@dataclass(frozen=True)
class _Tokenised:
    """A question of a run, as the tokens the model is shown."""

    run: int
    question: Question
    tokens: list[int]


def one_hop_local(
    subject: Any,
    plan: OneHopPlan | None = None,
    *,
    chat: bool | None = None,
    answer_tokens: int = 8,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> OneHopRun:
    """Ask a local model every question of a plan.

    `chat` puts the question as a user's turn in the model's own template: by default where the tokenizer has one. The
    model's own answer is greedy, at most `answer_tokens` long; without a template only its first line counts, because a
    model that is no chat model writes on. Lengths that do not fit the model's context are left out, with a warning.
    What cannot fit memory is refused.
    """
    subject = load(subject)
    plan = plan or OneHopPlan()
    if (own := own_task(subject)) is not None:
        raise TaskError(
            f"{subject.name} knows only the words of its {own} task; follow it with rotoscope lengths instead"
        )
    if not subject.model.can_generate():
        raise TaskError(f"{type(subject.model).__name__} writes no text, so it cannot be asked anything")
    turns = bool(getattr(subject.tokenizer, "chat_template", None)) if chat is None else chat
    if turns and not getattr(subject.tokenizer, "chat_template", None):
        raise TaskError("this tokenizer has no chat template; ask with chat=False")
    _check_size(subject, plan, turns)
    settings = {
        **subject.settings,
        "tokenizer_hash": tokenizer_identity(subject.tokenizer),
        "chat": turns,
        "answer_tokens": answer_tokens,
        **plan.settings,
    }
    run = Run(OneHopRun, settings, out, overwrite=overwrite, device=subject.device.type)
    if run.finished is not None:
        return run.finished
    tokenised, warnings = _fitting(subject, plan, turns, answer_tokens)
    journal = run.journal("answers")
    done = answered_keys(journal.rows)
    with progress_bar("asking", len(tokenised), show_progress) as bar, torch.inference_mode():
        bar.advance(len(done))
        for task in plan.tasks:
            of_task = [entry for entry in tokenised if entry.question.task == task]
            left = [entry for entry in of_task if question_key(entry.run, entry.question) not in done]
            if not left:
                continue
            front = _Front(subject, [entry.tokens for entry in of_task])
            for entry in left:
                journal.append(_answer(subject, front, entry, turns, answer_tokens))
                bar.advance()
    run.add("answers", {"answers": answers_table(journal.rows)})
    about = SubjectRecord(
        subject.name,
        settings["fingerprint"],
        dtype=str(subject.model.dtype).removeprefix("torch."),
        source=subject.source,
        device=", ".join(places(subject.model)),
    )
    return run.finish(subject=about, warnings=[*subject.caveats, *warnings])


def _check_size(subject: Subject, plan: OneHopPlan, chat: bool) -> None:
    """Raise TooLargeError where the tokens of all questions cannot be held; one question of every task and length stands for all."""
    few = replace(plan, runs=1, questions=1)
    lengths = [len(_encode(subject, _prompt(subject, question, chat), chat)) for _, question in few]
    needed = 8 * sum(lengths) * (len(plan) // len(few))
    purpose = f"a plan of {len(plan):,} questions of up to {max(lengths):,} tokens"
    check_memory(purpose, needed, CPU, "use fewer questions, runs or lengths")


def _fitting(
    subject: Subject, plan: OneHopPlan, chat: bool, answer_tokens: int
) -> tuple[list[_Tokenised], list[str]]:
    """Every question as tokens, without the lengths that do not fit the model."""
    most = getattr(subject.model.config.get_text_config(), "max_position_embeddings", None)
    tokenised = [
        _Tokenised(run, question, _encode(subject, _prompt(subject, question, chat), chat))
        for run, question in plan
    ]
    longest: dict[tuple[str, int], int] = {}
    for entry in tokenised:
        key = (entry.question.task, entry.question.length)
        longest[key] = max(longest.get(key, 0), len(entry.tokens) + answer_tokens)
    too_long = {key for key, tokens in longest.items() if most is not None and tokens > most}
    if too_long == set(longest):
        raise TaskError(
            f"no length fits: the shortest prompt and its answer need {min(longest.values())} tokens, and {subject.name} "
            f"has a context of {most}; ask for shorter lengths or give a shorter template"
        )
    warnings = [
        f"the {task} task at length {length} was left out: its prompts need {longest[task, length]} tokens, and the "
        f"model has a context of {most}"
        for task, length in sorted(too_long)
    ]
    return [
        entry for entry in tokenised if (entry.question.task, entry.question.length) not in too_long
    ], warnings


def _prompt(subject: Subject, question: Question, chat: bool) -> str:
    if not chat:
        return question.text
    try:
        rendered: str = subject.tokenizer.apply_chat_template(
            question.messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except Exception as problem:
        raise TaskError(
            f"the tokenizer's chat template cannot be used ({problem}); ask with chat=False"
        ) from problem
    return rendered


def _encode(subject: Subject, text: str, chat: bool) -> list[int]:
    """Token ids; a chat template writes its own start token."""
    ids: list[int] = tokenised(subject.tokenizer, text, add_special_tokens=not chat)["input_ids"]
    return ids


class _Front:
    """What all prompts of a task begin with, computed once."""

    def __init__(self, subject: Subject, prompts: Sequence[list[int]]) -> None:
        # A prompt keeps at least one token of its own, whose logits are asked for.
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        shared = len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))
        self.subject = subject
        self.tokens = prompts[0][:shared]
        self.cache = _forward(subject, [self.tokens], None, last=True)[1] if shared else None

    def read(self, prompt: list[int]) -> tuple[torch.Tensor, Any]:
        """Logits after the prompt [vocabulary], and the cache to go on from."""
        logits, cache = _forward(
            self.subject, [prompt[len(self.tokens) :]], copy.deepcopy(self.cache), last=True
        )
        return logits[0, -1], cache


def _forward(
    subject: Subject, rows: list[list[int]], cache: Any, last: bool = False
) -> tuple[torch.Tensor, Any]:
    """Logits [rows, tokens, vocabulary] and the cache, which is changed in place; `last` computes the last ones only."""
    options: dict[str, Any] = {}
    if last and "logits_to_keep" in inspect.signature(subject.model.forward).parameters:
        options["logits_to_keep"] = 1
    tokens = torch.tensor(rows, device=subject.device)
    output = subject.model(tokens, past_key_values=cache, use_cache=True, **options)
    return check_logits(output.logits.float(), subject.model), output.past_key_values


def _answer(
    subject: Subject, front: _Front, entry: _Tokenised, chat: bool, answer_tokens: int
) -> dict[str, Any]:
    """Both scores of one question."""
    logits, cache = front.read(entry.tokens)
    likely = _log_likelihoods(subject, entry, logits, cache, chat)
    written = _greedy(subject, logits, copy.deepcopy(cache), answer_tokens)
    text = subject.tokenizer.decode(written, skip_special_tokens=True)
    answered, status = read_answer(text if chat else text.lstrip().split("\n")[0])
    return answer_row(
        entry.run,
        entry.question,
        answered,
        status,
        ranked=max(likely, key=lambda candidate: likely[candidate]),
        prompt_tokens=len(entry.tokens),
        completion_tokens=len(written),
    )


def _greedy(subject: Subject, logits: torch.Tensor, cache: Any, most: int) -> list[int]:
    """The most likely token, again and again, until the model ends its turn."""
    ends = subject.model.generation_config.eos_token_id if subject.model.generation_config is not None else None
    stops = {subject.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
    written: list[int] = []
    while len(written) < most:
        token = int(logits.argmax())
        if token in stops:
            break
        written.append(token)
        if len(written) < most:
            logits = _forward(subject, [[token]], cache)[0][0, -1]
    return written


def _log_likelihoods(
    subject: Subject, entry: _Tokenised, logits: torch.Tensor, cache: Any, chat: bool
) -> dict[str, float]:
    """Total log-likelihood of every candidate after the prompt.

    The first token is known from the prompt's own logits; the rest of a candidate is read after its other tokens, all
    candidates that begin alike in one row, copies of the prompt's cache.
    """
    ids = _candidate_tokens(subject, entry, chat)
    first = logits.log_softmax(-1)
    total = {candidate: float(first[tokens[0]]) for candidate, tokens in ids.items()}
    longest = max(len(tokens) for tokens in ids.values()) - 1
    starts = sorted({tuple(tokens[:-1]) for tokens in ids.values() if len(tokens) > 1})
    size = max(1, AT_ONCE // len(entry.tokens))
    for k in range(0, len(starts), size):
        chunk = starts[k : k + size]
        copies = copy.deepcopy(cache)
        copies.batch_repeat_interleave(len(chunk))
        # What fills a row up stands after its own tokens, which do not see it.
        rows = [[*start, *[start[-1]] * (longest - len(start))] for start in chunk]
        log_probabilities = _forward(subject, rows, copies)[0].log_softmax(-1)
        for row, start in enumerate(chunk):
            for candidate, tokens in ids.items():
                if tuple(tokens[:-1]) == start:
                    total[candidate] += sum(
                        float(log_probabilities[row, t, token]) for t, token in enumerate(tokens[1:])
                    )
    return total


def _candidate_tokens(subject: Subject, entry: _Tokenised, chat: bool) -> dict[str, list[int]]:
    """The tokens each candidate adds to the prompt."""
    prompt = _prompt(subject, entry.question, chat)
    lead = "" if chat or prompt[-1:].isspace() else " "
    candidates = {}
    for candidate in entry.question.candidates:
        full_text = _encode(subject, prompt + lead + candidate, chat)
        kept = full_text[: len(entry.tokens)] == entry.tokens
        alone = subject.tokenizer(lead + candidate, add_special_tokens=False)["input_ids"]
        candidates[candidate] = full_text[len(entry.tokens) :] if kept else alone
    return candidates
