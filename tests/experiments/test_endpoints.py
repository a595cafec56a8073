"""Endpoints: everything that can go wrong on the way, and that no answer is lost or asked for twice."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import EndpointError, RunError, pip_install
from rotoscope.experiments.ask import endpoints
from rotoscope.experiments.ask.endpoints import Estimate, count_tokens, estimate, one_hop_endpoint
from rotoscope.experiments.ask.result import OneHopRun, screening
from rotoscope.models.zoo import zoo_file
from rotoscope.tasks.onehop import OneHopPlan
from tests.server import free_port, refused, replied, scripted, serve, wait_until_ready
from tests.waiting import wait_until

PLAN = OneHopPlan(lengths=(12, 16), runs=1, questions=3)
ANSWERS = {question.text: question.answer for _, question in PLAN}
SECRET = "sk-very-secret-key"


def right(_: int, request: dict) -> tuple:
    return replied(ANSWERS[request["messages"][0]["content"]])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, and a key that must not turn up anywhere."""
    monkeypatch.setattr(endpoints, "FIRST_WAIT", 0.02)
    monkeypatch.delenv("ROTOSCOPE_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def test_answers_are_kept_with_their_tokens(tmp_path: Path) -> None:
    with scripted(right) as server:
        run = one_hop_endpoint(server.url, "m", PLAN, out=tmp_path / "run")
    assert isinstance(run, OneHopRun)
    assert run.answers["correct"].all()
    assert sorted(server.texts) == sorted(ANSWERS)
    assert set(run.answers["prompt_tokens"]) == {7}
    request = server.asked[0]
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("m", 16, 0)
    assert set(server.keys) == {f"Bearer {SECRET}"}
    opened = rs.open(tmp_path / "run")
    pd.testing.assert_frame_equal(opened.accuracy(), run.accuracy())
    assert SECRET not in "".join(
        file.read_bytes().decode("latin1") for file in (tmp_path / "run").rglob("*") if file.is_file()
    )


def test_a_finished_run_asks_nothing(tmp_path: Path) -> None:
    with scripted(right) as server:
        one_hop_endpoint(server.url, "m", PLAN, out=tmp_path / "run")
        asked = len(server.asked)
        one_hop_endpoint(server.url, "m", PLAN, out=tmp_path / "run")
        assert len(server.asked) == asked
        with pytest.raises(RunError, match="model: m there, other now"):
            one_hop_endpoint(server.url, "other", PLAN, out=tmp_path / "run")


def test_rotoscope_key_comes_first_and_no_key_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(right) as server:
        monkeypatch.setenv("ROTOSCOPE_API_KEY", "mine")
        one_hop_endpoint(server.url, "m", PLAN)
        assert set(server.keys) == {"Bearer mine"}
        monkeypatch.delenv("ROTOSCOPE_API_KEY")
        monkeypatch.delenv("OPENAI_API_KEY")
        one_hop_endpoint(server.url, "m", PLAN)
        assert server.keys[-1] == "Bearer none"


def test_refused_connection() -> None:
    with pytest.raises(EndpointError, match=r"gave no answer within 0 s .*no connection.*see that it runs"):
        one_hop_endpoint(f"http://127.0.0.1:{free_port()}/v1", "m", PLAN, patience=0.3)


def test_an_absent_server_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be tried for ten minutes otherwise."""
    monkeypatch.setattr(endpoints, "FIRST_CONTACT", 0.3)
    with pytest.raises(EndpointError, match="no connection"):
        one_hop_endpoint(f"http://127.0.0.1:{free_port()}/v1", "m", PLAN, patience=600)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (refused(401, f"Incorrect API key provided: {SECRET}"), r"refuses the key \(401\); set ROTOSCOPE_API_KEY"),
        (refused(403), r"refuses the key \(403\)"),
        (refused(404, "no such model"), "knows no model 'm'"),
        (refused(429, "pay first", "insufficient_quota"), "no credit left"),
        (refused(400, f"max_tokens is unknown, {SECRET}"), r"refuses the request \(400: max_tokens is unknown, \*\*\*"),
    ],
)  # fmt: skip
def test_what_cannot_be_helped_is_said_at_once(reply: tuple, sentence: str, tmp_path: Path) -> None:
    """Two answers come, then the server refuses: they are kept, and the run goes on when it is put right."""

    def script(number: int, request: dict) -> tuple:
        return right(number, request) if number <= 2 else reply

    with scripted(script) as server, pytest.raises(EndpointError, match=sentence) as caught:
        one_hop_endpoint(server.url, "m", PLAN, concurrency=1, out=tmp_path / "run")
    assert "2 of 12 answers are kept, and the same command goes on from there" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert len(server.asked) == 3
    lines = next((tmp_path / "run").rglob("answers.jsonl")).read_text().splitlines()
    assert len(lines) == 2


def test_without_a_folder_the_error_says_that_nothing_is_kept() -> None:
    with scripted(lambda *_: refused(401)) as server, pytest.raises(EndpointError, match="no answers are kept"):
        one_hop_endpoint(server.url, "m", PLAN)


@pytest.mark.slow
def test_rate_limit_then_success() -> None:
    when: dict[str, list[float]] = {}

    def script(number: int, request: dict) -> tuple:
        text = request["messages"][0]["content"]
        when.setdefault(text, []).append(time.monotonic())
        return refused(429, retry_after="0.4") if len(when[text]) == 1 else right(number, request)

    with scripted(script) as server:
        run = one_hop_endpoint(server.url, "m", PLAN)
    assert run.answers["correct"].all()
    assert run.answers["retries"].tolist() == [1] * 12
    assert all(second - first >= 0.4 for first, second in when.values())
    assert run.run.warnings == ["12 requests were sent again (rate limit: 12)"]


def test_a_wait_beyond_the_patience_is_not_begun() -> None:
    sentence = "rate limit and asks to wait 3600 s"
    with (
        scripted(lambda *_: refused(429, retry_after="3600")) as server,
        pytest.raises(EndpointError, match=sentence),
    ):
        one_hop_endpoint(server.url, "m", PLAN, patience=5)


def test_server_errors_and_time_outs_are_survived() -> None:
    seen: Counter[str] = Counter()
    again: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def script(number: int, request: dict) -> tuple:
        text = request["messages"][0]["content"]
        seen[text] += 1
        if seen[text] == 1 and number % 2:
            return refused(503, "loading")
        if seen[text] == 1:
            again[text].wait(30)  # for whoever asks again
        again[text].set()
        return right(number, request)

    with scripted(script) as server:
        run = one_hop_endpoint(server.url, "m", PLAN, timeout=0.6, concurrency=6)
    assert run.answers["correct"].all()
    assert sum(run.answers["retries"]) == len(server.asked) - 12 > 0
    assert "time-out" in run.run.warnings[0]
    assert "server error 503" in run.run.warnings[0]


def test_patience_ends() -> None:
    sentence = "gave no answer within 1 s .*server error 500"
    with scripted(lambda *_: refused(500)) as server, pytest.raises(EndpointError, match=sentence):
        one_hop_endpoint(server.url, "m", PLAN, patience=0.6)
    assert 8 < len(server.asked) < 200


@pytest.mark.parametrize(
    "reply",
    [
        replied(None),
        replied(""),
        replied(["k"]),
        replied("k", choices=[]),
        replied("k", choices=None),
        (200, {"content-type": "application/json"}, "{ not json"),
        (200, {"content-type": "text/html"}, "<html>log in</html>"),
        (200, {"content-type": "application/json"}, "[]"),
        (200, {"content-type": "application/json"}, '{"choices": ' * 100_000 + "1" + "}" * 100_000),
        (200, {"content-type": "application/json"}, b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
        (200, {"content-type": "application/json"}, replied("k")[2].replace('"k"', '"\\ud800"')),
        (200, {"content-type": "application/json"}, replied("k")[2].replace(": 7", ": " + "7" * 5000)),
    ],
)
def test_malformed_answers_are_counted(reply: tuple) -> None:
    with scripted(lambda *_: reply) as server:
        run = one_hop_endpoint(server.url, "m", PLAN)
    assert set(run.answers["status"]) == {"malformed"}
    assert len(server.asked) == 12
    assert (run.accuracy()["mean"] == 0).all()
    assert "12 answers were empty or malformed" in run.run.warnings[0]


@pytest.mark.parametrize(
    "reply",
    [
        refused(400, "This model's maximum context length is 64 tokens", "context_length_exceeded"),
        refused(400, "request (900 tokens) exceeds the available context size (64 tokens)"),
        refused(413, "prompt is too long"),
    ],
)
def test_too_long_is_counted_and_not_sent_again(reply: tuple) -> None:
    long = {question.text for _, question in PLAN if question.length == 16}

    def script(number: int, request: dict) -> tuple:
        return reply if request["messages"][0]["content"] in long else right(number, request)

    with scripted(script) as server:
        run = one_hop_endpoint(server.url, "m", PLAN)
    assert len(server.asked) == 12
    by = run.accuracy().set_index(["task", "length"])
    assert by.loc[("letter", 16), "too_long"] == 3
    assert by.loc[("letter", 12), "mean"] == 1
    assert "6 questions were too long" in run.run.warnings[0]


@pytest.mark.parametrize("told", ["many", -5, 10**30, 2**62, 1.5, float("nan"), float("inf"), True, None, [7]])
def test_tokens_that_are_no_count_are_left_empty(told: object, tmp_path: Path) -> None:
    with scripted(lambda *_: replied("k", usage={"prompt_tokens": told})) as server:
        run = one_hop_endpoint(server.url, "m", PLAN, out=tmp_path / "run")
    assert run.answers["prompt_tokens"].isna().all()
    assert rs.open(tmp_path / "run").answers["prompt_tokens"].isna().all()
    assert set(run.answers["status"]) == {"answered"}


@pytest.mark.parametrize("usage", [None, "lots", [1], 7, {}])
def test_an_answer_without_counts_of_tokens_is_one(usage: object) -> None:
    with scripted(lambda *_: replied("k", usage=usage)) as server:
        run = one_hop_endpoint(server.url, "m", PLAN)
    assert run.answers[["prompt_tokens", "completion_tokens"]].isna().all(axis=None)
    assert set(run.answers["status"]) == {"answered"}


def test_one_answer_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    def script(number: int, request: dict) -> tuple:
        return (200, {"content-type": "application/json"}, b"\xff") if number == 4 else right(number, request)

    with scripted(script) as server:
        run = one_hop_endpoint(server.url, "m", PLAN, concurrency=1, out=tmp_path / "run")
    assert run.answers["correct"].sum() == len(server.asked) - 1 == 11
    assert run.run.warnings[0].startswith("1 answer was empty or malformed; ")


def test_several_words_are_no_answer() -> None:
    def script(_: int, request: dict) -> tuple:
        return replied(f"Let me think: {ANSWERS[request['messages'][0]['content']]}")

    with scripted(script) as server:
        run = one_hop_endpoint(server.url, "m", PLAN)
    assert set(run.answers["status"]) == {"not single"}
    assert not run.answers["correct"].any()
    assert screening(run)["selected"] is False


def test_concurrency_is_a_limit() -> None:
    now, most, lock, three = [0], [0], threading.Lock(), threading.Event()

    def script(number: int, request: dict) -> tuple:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 3:
                three.set()
        three.wait(30)  # nobody is answered before three are waiting
        with lock:
            now[0] -= 1
        return right(number, request)

    with scripted(script) as server:
        one_hop_endpoint(server.url, "m", PLAN, concurrency=3)
    assert most[0] == 3


def test_dry_run_sends_and_writes_nothing(tmp_path: Path) -> None:
    with scripted(right) as server:
        found = one_hop_endpoint(
            server.url, "m", PLAN, dry_run=True, price_in=2.0, price_out=10.0, out=tmp_path / "run"
        )
    assert isinstance(found, Estimate)
    assert (found.questions, found.completion_tokens, server.asked) == (12, 12 * 16, [])
    assert found.cost == pytest.approx((2 * found.prompt_tokens + 10 * found.completion_tokens) / 1e6)
    assert not (tmp_path / "run").exists()
    assert estimate(PLAN, body={"max_completion_tokens": 2}).completion_tokens == 24
    assert estimate(PLAN).cost is None


def test_token_count_is_near_a_real_one(smollm2: rs.Subject) -> None:
    for task in ("number", "letter"):
        for length in (12, 300):
            text = rs.tasks.one_hop(task, length, 1)[0].text
            assert count_tokens(text) == pytest.approx(len(smollm2.tokenizer(text).input_ids), rel=0.1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"endpoint": "localhost:8080/v1"}, "written with its scheme"),
        ({"endpoint": "http://localhost:port/v1"}, "written with its scheme"),
        ({"body": {"max_tokens": "few"}}, "a whole number"),
        ({"body": {"max_tokens": 4, "top_p": float("nan")}}, "must be JSON"),
        ({"body": {"max_tokens": 4, "stop": {"a"}}}, "must be JSON"),
        ({"body": {"temperature": 0}}, "must limit the answer"),
        ({"body": {"max_tokens": 4, "stream": True}}, "must not set stream"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ],
)
def test_wrong_settings(wrong: dict, sentence: str) -> None:
    with pytest.raises(EndpointError, match=sentence):
        one_hop_endpoint(**({"endpoint": "http://127.0.0.1:9/v1", "model": "m", "plan": PLAN} | wrong))


@pytest.mark.parametrize("user", ["me:hid%40den", "hid%40den", ":hid%40den"])
def test_a_password_in_the_address_is_not_written_down(
    user: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with scripted(right) as server:
        url = server.url.replace("http://", f"http://{user}@")
        run = one_hop_endpoint(url, "m", PLAN, out=tmp_path / "run")
    assert run.run.settings["endpoint"] == server.url
    run.report(tmp_path / "run" / "page.html")
    [sent] = {key.removeprefix("Basic ") for key in server.keys}
    assert base64.b64decode(sent).decode() in ("me:hid@den", "hid@den:", ":hid@den")
    written = "".join(
        file.read_bytes().decode("latin1") for file in (tmp_path / "run").rglob("*") if file.is_file()
    )
    for secret in ("hid@den", "hid%40den", sent):
        assert secret not in written + caplog.text


def test_a_password_that_the_server_repeats_is_hidden() -> None:
    sent = base64.b64encode(b"me:hid@den").decode()
    repeated = refused(400, f"unknown: hid@den, hid%40den, me:hid@den, Basic {sent}, token=in-query, {SECRET}")
    with scripted(lambda *_: repeated) as server:
        address = server.url.replace("http://", "http://me:hid%40den@") + "?token=in-query"
        with pytest.raises(EndpointError) as caught:
            one_hop_endpoint(address, "m", PLAN)
    assert "(400: unknown: ***, ***, ***, Basic ***, token=***, ***)" in str(caught.value)


def test_without_the_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(EndpointError, match=re.escape(pip_install("api"))):
        one_hop_endpoint("http://127.0.0.1:9/v1", "m", PLAN, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


KILLED = """
import sys
from rotoscope.experiments.ask.endpoints import one_hop_endpoint
from rotoscope.tasks import OneHopPlan
one_hop_endpoint(sys.argv[1], "m", OneHopPlan(lengths=(12, 16), runs=1, questions=3), concurrency=2, out=sys.argv[2])
"""


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    """SIGKILL after five answers: what came before is not asked for again, and nothing is missing at the end."""
    gate = threading.Event()

    def script(number: int, request: dict) -> tuple:
        if number > 5:
            gate.wait(30)
        return right(number, request)

    out = tmp_path / "run"
    with scripted(script) as server:
        process = subprocess.Popen([sys.executable, "-c", KILLED, server.url, str(out)])
        # Two are asked at a time: when two more are under way, nothing can arrive late.
        wait_until(lambda: len(_lines(out)) >= 5 and len(server.asked) == 7)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = _lines(out)
        assert len(kept) == 5
        journal = next(out.rglob("answers.jsonl"))
        with journal.open("a") as file:
            file.write('{"task": "letter", "len')  # as if it had died while writing
        gate.set()
        before = len(server.asked)
        run = one_hop_endpoint(server.url, "m", PLAN, out=out)
        asked_later = server.texts[before:]
    done = {(row["task"], row["length"], row["run"], row["question"]) for row in kept}
    missing = [q.text for r, q in PLAN if (q.task, q.length, r, q.number) not in done]
    assert sorted(asked_later) == sorted(missing)
    assert len(run.answers) == 12
    assert not run.answers.duplicated(["task", "length", "run", "question"]).any()
    assert run.answers["correct"].all()


def _lines(out: Path) -> list[dict]:
    found = list(out.rglob("answers.jsonl"))
    return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []


@pytest.mark.slow
def test_real_server_killed_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2 behind a real server that dies in the middle of a run and comes back."""
    monkeypatch.setattr(endpoints, "FIRST_WAIT", 0.2)
    monkeypatch.setattr(endpoints, "LONGEST_WAIT", 1.0)
    plan = OneHopPlan(lengths=(12,), runs=1, questions=5)
    weights, port, out = zoo_file("smollm2"), free_port(), tmp_path / "run"
    first = serve(weights, port)
    second: list[subprocess.Popen[bytes]] = []

    def accident() -> None:
        wait_until(lambda: len(_lines(out)) >= 4)
        first.kill()
        first.wait()
        second.append(serve(weights, port))

    try:
        wait_until_ready(port)
        watcher = threading.Thread(target=accident, daemon=True)
        watcher.start()
        run = one_hop_endpoint(
            f"http://127.0.0.1:{port}/v1",
            "smollm2",
            plan,
            concurrency=2,
            body={"max_tokens": 2, "temperature": 0},
            out=out,
        )
        watcher.join(10)
    finally:
        for process in (first, *second):
            process.kill()
            process.communicate()
    assert second
    assert len(run.answers) == 10
    assert not run.answers.duplicated(["task", "length", "run", "question"]).any()
    assert set(run.answers["status"]) <= {"answered", "not single", "malformed"}
    assert run.answers["retries"].sum() > 0
    assert (run.answers["prompt_tokens"] > 100).all()
