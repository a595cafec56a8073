"""One-hop questions put to a model behind a server that speaks OpenAI's chat protocol.

The key comes from the environment and goes nowhere but into the request. Every answer is on disk before the next
question is sent from its place, so that a run that is stopped, or whose server dies, goes on with what is missing.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import pandas as pd

from rotoscope.errors import EndpointError, pip_install
from rotoscope.experiments.ask.result import OneHopRun, answer_row, answered_keys, answers_table, question_key
from rotoscope.models.devices import CPU, check_memory
from rotoscope.progress import Progress, progress_bar
from rotoscope.runs.run import Journal, Run
from rotoscope.tasks.onehop import OneHopPlan, Question, read_answer

KEY_VARIABLES = ("ROTOSCOPE_API_KEY", "OPENAI_API_KEY")
NO_KEY = "none"
"""What is sent where no key is set: servers of one's own ask for none."""
BODY: dict[str, Any] = {"max_tokens": 16, "temperature": 0}
FIRST_CONTACT = 10.0
"""Seconds to wait for a server that nothing has been heard of yet."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
TURN_TOKENS = 8
"""What a chat turn adds to its text, about."""
MOST_TOKENS_TOLD = 10**9
"""More tokens than this in one answer are no count."""
HIDDEN = "***"
"""What is written in the place of a key or a password."""
NO_CONNECTION = "no connection"
TOO_LONG = re.compile(r"context[ _](length|size|window)|too long", re.IGNORECASE)


@dataclass(frozen=True)
class Estimate:
    """What a run will send and get back, before it does. Prices are per million tokens, in any currency."""

    questions: int
    prompt_tokens: int
    completion_tokens: int
    """At most: every answer as long as it may be."""
    cost: float | None = None

    def __str__(self) -> str:
        cost = "" if self.cost is None else f", at most about {self.cost:.2f} at these prices"
        return (
            f"{self.questions} questions, about {self.prompt_tokens} tokens in and at most {self.completion_tokens} out"
            + cost
        )


def estimate(
    plan: OneHopPlan,
    *,
    body: Mapping[str, Any] = BODY,
    price_in: float | None = None,
    price_out: float | None = None,
    done: Collection[tuple[Any, ...]] = (),
) -> Estimate:
    """Tokens and cost of the questions that are not done yet. Nothing is sent: tokens are counted by a rule of thumb."""
    left = [question for run, question in plan if question_key(run, question) not in done]
    prompt = sum(count_tokens(question.text) for question in left)
    completion = len(left) * _most_tokens(body)
    cost = None
    if price_in is not None or price_out is not None:
        cost = (prompt * (price_in or 0) + completion * (price_out or 0)) / 1e6
    return Estimate(len(left), prompt, completion, cost)


def count_tokens(text: str) -> int:
    """About as many tokens as the usual tokenizers make of such a text: words, single digits and signs."""
    return len(re.findall(r"[^\W\d]+|\d|[^\w\s]|\n+", text)) + TURN_TOKENS


def one_hop_endpoint(
    endpoint: str,
    model: str,
    plan: OneHopPlan | None = None,
    *,
    body: Mapping[str, Any] = BODY,
    concurrency: int = 4,
    timeout: float = 60.0,
    patience: float = 300.0,
    price_in: float | None = None,
    price_out: float | None = None,
    dry_run: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> OneHopRun | Estimate:
    """Ask the model behind an OpenAI-compatible server every question of a plan.

    `endpoint` is the base address, as in http://localhost:8080/v1; a key is taken from ROTOSCOPE_API_KEY or
    OPENAI_API_KEY. `body` is what a request holds besides model and messages, for servers that want other names or
    settings; it has to limit the answer. `concurrency` questions are under way at a time. A request that meets a rate
    limit, a time-out, a lost connection or a server's own error is sent again after a growing pause, for at most
    `patience` seconds. `dry_run` sends nothing and returns the estimate of what would be sent.
    What cannot fit memory is refused.
    """
    plan = plan or OneHopPlan()
    _check_size(plan)
    address = _address(endpoint)
    _most_tokens(body)
    if concurrency < 1 or timeout <= 0 or patience < 0:
        raise EndpointError(
            "concurrency must be at least 1, the time-out positive and the patience not negative"
        )
    settings = {"model": model, "endpoint": address, "body": dict(body), **plan.settings}
    run = Run(OneHopRun, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return Estimate(0, 0, 0) if dry_run else run.finished

    def expected(journal: Journal) -> Estimate:
        return estimate(
            plan, body=body, price_in=price_in, price_out=price_out, done=answered_keys(journal.rows)
        )

    if dry_run:
        return expected(run.journal("answers", look=True))
    client = _client(endpoint, timeout)
    journal = run.journal("answers")
    before = expected(journal)
    secrets = _secrets(endpoint, client.api_key)
    session = _Session(client, address, model, dict(body), patience, journal, secrets)
    with client, progress_bar("asking", len(plan), show_progress) as bar:
        bar.advance(len(journal))
        try:
            _ask_all(session, plan, concurrency, bar)
        except EndpointError as problem:
            kept_words = (
                f"{len(journal)} of {len(plan)} answers are kept, and the same command goes on from there"
                if run.folder is not None
                else "no answers are kept, because no run folder was given"
            )
            raise EndpointError(f"{problem}; {kept_words}") from None
    answers = answers_table(journal.rows)
    run.add("answers", {"answers": answers})
    return run.finish(estimate=asdict(before), warnings=_warnings(answers, session.retries))


def _check_size(plan: OneHopPlan) -> None:
    """Raise TooLargeError where the questions cannot be held; one of every task and length stands for all."""
    few = replace(plan, runs=1, questions=1)
    needed = sum(sys.getsizeof(question.text) for _, question in few) * (len(plan) // len(few))
    check_memory(f"a plan of {len(plan):,} questions", needed, CPU, "use fewer questions, runs or lengths")


def _most_tokens(body: Mapping[str, Any]) -> int:
    """How long an answer may get; a body that cannot be sent is refused."""
    try:
        json.dumps(dict(body), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise EndpointError(f"the body must be JSON ({problem})") from problem
    reserved = {"model", "messages", "stream", "n"} & set(body)
    if reserved:
        raise EndpointError(f"the body must not set {', '.join(sorted(reserved))}")
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    if not isinstance(most, int) or most < 1:
        raise EndpointError(
            "the body must limit the answer: add max_tokens or max_completion_tokens, a whole number"
        )
    return most


def _address(endpoint: str) -> str:
    """The server's address as it may be written down: without a user's name, password or query."""
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise EndpointError("an endpoint is written with its scheme, as in http://localhost:8080/v1")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def masked(endpoint: str) -> str:
    """The server's address as it may be printed: what `_address` leaves out is hidden."""
    address, parts = _address(endpoint), urlsplit(endpoint)
    if "@" in parts.netloc:
        address = address.replace("://", f"://{HIDDEN}@", 1)
    return f"{address}?{HIDDEN}" if parts.query else address


def _basic(endpoint: str) -> str | None:
    """A name and a password in an address, as HTTP's basic authentication sends them."""
    user, at, _ = urlsplit(endpoint).netloc.rpartition("@")
    name, _, password = user.partition(":")
    return base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode() if at else None


def _secrets(endpoint: str, key: str) -> tuple[str, ...]:
    """What must not be repeated from a server's answer: the key, and what the address holds besides the server."""
    parts = urlsplit(endpoint)
    user = parts.netloc.rpartition("@")[0]
    in_address = [user, user.partition(":")[2] or user, *(value for _, value in parse_qsl(parts.query))]
    secrets = {key, _basic(endpoint) or "", *in_address, *map(unquote, in_address)} - {NO_KEY, ""}
    return tuple(sorted(secrets, key=len, reverse=True))


def _client(endpoint: str, timeout: float) -> Any:
    try:
        import openai
    except ImportError as missing:
        raise EndpointError(f"endpoints need: {pip_install('api')}") from missing
    name = next((name for name in KEY_VARIABLES if os.environ.get(name, "").strip()), None)
    key = os.environ[name].strip() if name else NO_KEY
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(f"the key in {name} holds characters that cannot be sent; copy it again")
    basic, parts = _basic(endpoint), urlsplit(endpoint)
    # In a header and not in the address, which the client writes into its log.
    headers = None if basic is None else {"Authorization": f"Basic {basic}"}
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return openai.OpenAI(api_key=key, base_url=url, timeout=timeout, max_retries=0, default_headers=headers)


@dataclass(frozen=True)
class _Again:
    """A request that is worth another try."""

    reason: str
    after: float = 0.0
    """Seconds the server asks to wait."""


@dataclass
class _Session:
    """What all threads share."""

    client: Any
    address: str
    model: str
    body: dict[str, Any]
    patience: float
    journal: Journal
    secrets: tuple[str, ...] = ()
    retries: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)
    heard: bool = False
    """Whether the server has answered anything yet."""

    def ask(self, run: int, question: Question) -> None:
        """Ask until there is an answer, and keep it; give up when the run is stopped."""
        began, tries = time.monotonic(), 0
        while not self.stop.is_set():
            reply = self._once(question)
            if not isinstance(reply, _Again):
                self.journal.append(answer_row(run, question, **reply, retries=tries))
                return
            pause = max(reply.after, _pause(tries))
            unheard = reply.reason == NO_CONNECTION and not self.heard
            patience = min(self.patience, FIRST_CONTACT) if unheard else self.patience
            if time.monotonic() + pause - began > patience:
                raise EndpointError(self._given_up(reply, patience))
            tries += 1
            self.retries[reply.reason] += 1
            self.stop.wait(pause)

    def _given_up(self, last: _Again, patience: float) -> str:
        asks = f" and asks to wait {last.after:.0f} s" if last.after > patience else ""
        return (
            f"the server at {self.address} gave no answer within {patience:.0f} s (the last reason: {last.reason}{asks}); "
            "see that it runs and is not overloaded"
        )

    def _once(self, question: Question) -> dict[str, Any] | _Again:
        """One request: the columns of its answer, or why to send it again; what cannot be helped is an error."""
        import openai

        try:
            reply = self.client.chat.completions.with_raw_response.create(
                model=self.model, messages=question.messages, extra_body=self.body
            )
        except openai.APITimeoutError:
            return _Again("time-out")
        except openai.APIConnectionError:
            return _Again(NO_CONNECTION)
        except openai.APIStatusError as refusal:
            self.heard = True
            return self._refused(refusal)
        self.heard = True
        try:
            completion = reply.parse()
        except (openai.APIResponseValidationError, ValueError, RecursionError):
            completion = None  # no JSON, no UTF-8, or nested too deeply
        answered, status = read_answer(_content(completion))
        usage = getattr(completion, "usage", None)
        return {
            "answered": answered,
            "status": status,
            "prompt_tokens": _token_count(getattr(usage, "prompt_tokens", None)),
            "completion_tokens": _token_count(getattr(usage, "completion_tokens", None)),
        }

    def _refused(self, refusal: Any) -> dict[str, Any] | _Again:
        code, message = refusal.status_code, self._message(refusal)
        if code in (401, 403):
            raise EndpointError(
                f"the server at {self.address} refuses the key ({code}); set {' or '.join(KEY_VARIABLES)} to one it accepts"
            )
        if code == 404:
            raise EndpointError(
                f"the server at {self.address} knows no model '{self.model}' (404), or the address is not its base, "
                "which mostly ends in /v1"
            )
        if code == 402 or "insufficient_quota" in str(refusal.body):
            raise EndpointError(f"the account at {self.address} has no credit left ({code})")
        if code in (408, 409, 425, 429) or code >= 500:
            reason = "rate limit" if code == 429 else f"server error {code}"
            return _Again(reason, _retry_after(refusal.response.headers))
        if code in (400, 413, 422) and TOO_LONG.search(f"{message} {refusal.body}"):
            return {"answered": "", "status": "too long"}
        raise EndpointError(
            f"the server at {self.address} refuses the request ({code}: {message}); if it wants other settings, give "
            "them as the body"
        )

    def _message(self, refusal: Any) -> str:
        """What the server said, on one line and without the key or a password."""
        body = refusal.body
        message = body.get("message", body) if isinstance(body, dict) else body or refusal.message
        text = str(message).encode(errors="replace").decode()
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return " ".join(text.split())[:300]


def _ask_all(session: _Session, plan: OneHopPlan, concurrency: int, bar: Progress) -> None:
    """Every question that is not done yet; when one fails, those under way are still kept."""
    done = answered_keys(session.journal.rows)

    def answer_question(run: int, question: Question) -> None:
        try:
            session.ask(run, question)
        except BaseException:
            session.stop.set()
            raise
        bar.advance()

    pool = ThreadPoolExecutor(concurrency)
    try:
        under_way = [
            pool.submit(answer_question, run, question)
            for run, question in plan
            if question_key(run, question) not in done
        ]
        for future in wait(under_way, return_when=FIRST_EXCEPTION).done:
            future.result()
    finally:
        session.stop.set()
        pool.shutdown(cancel_futures=True)


def _pause(tries: int) -> float:
    """Twice as long every time, up to a limit, and never the same for all threads."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(tries, 16))


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:
        return 0.0


def _content(message: Any) -> str | None:
    """The text of an answer, or None where the server sent something else, or half a character."""
    try:
        content = message.choices[0].message.content
        content.encode()
    except (AttributeError, IndexError, TypeError, UnicodeEncodeError):
        return None
    return content if isinstance(content, str) else None


def _token_count(reported: object) -> int | None:
    """A count of tokens as the server tells it, or None where that is no count."""
    return reported if type(reported) is int and 0 <= reported <= MOST_TOKENS_TOLD else None


def _warnings(answers: pd.DataFrame, retries: Counter[str]) -> list[str]:
    counts = answers["status"].value_counts()
    warnings = []
    if retries:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in retries.most_common())
        warnings.append(f"{retries.total()} requests were sent again ({reasons})")
    if "malformed" in counts:
        answers_were = "1 answer was" if counts["malformed"] == 1 else f"{counts['malformed']} answers were"
        warnings.append(
            f"{answers_were} empty or malformed; a model that thinks before it answers may need a "
            "higher limit of tokens, or its thinking turned off"
        )
    if "too long" in counts:
        warnings.append(
            f"{counts['too long']} questions were too long for the model and are left out of the accuracy"
        )
    return warnings
