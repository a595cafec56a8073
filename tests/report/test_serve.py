"""Runs in a browser: who is let in, what is shown, and that nothing outside the folder ever is."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pytest
from starlette.testclient import TestClient

import rotoscope as rs
from rotoscope.lab.checkpoints import Training
from rotoscope.report import run_index as found
from rotoscope.report.run_list import is_local, listening, named, trusted
from rotoscope.report.server import make_app
from rotoscope.runs.run import Run

ROTOSCOPE = str(Path(sys.executable).with_name("rotoscope"))
TOKEN = "a-token-of-the-tests"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
ODD = "<script>alert(1)<script> \"quoted\" 'so' & 🦩"


@pytest.fixture
def runs(profiles: Path, tmp_path: Path) -> Path:
    """A folder of our own to change, beside a run that must never be shown."""
    shutil.copytree(profiles, tmp_path / "runs")
    shutil.copytree(profiles / "first", tmp_path / "secret")
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path) -> TestClient:
    return let_in(runs)


def let_in(folder: Path) -> TestClient:
    browser = TestClient(make_app(folder, TOKEN), base_url="http://127.0.0.1:8765")
    assert browser.get("/", params={"token": TOKEN}).status_code == 200
    return browser


def training(folder: Path, steps: int = 100) -> Run[Training]:
    """A training run that has just begun."""
    run = Run(Training, {"task": "number", "preset": "mini", "steps": steps, "hops": 2}, folder)
    run.begin()
    return run


def evaluated(folder: Path, step: int, accuracy: float) -> None:
    line = {"step": step, "loss": 1.5, "learning_rate": 1e-3, "accuracy": {"1": accuracy, "2": 0.25}}
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def listed(browser: TestClient) -> dict[str, dict]:
    return {run["path"]: run for run in browser.get("/runs").json()["runs"]}


def test_list_names_every_run(client: TestClient, runs: Path) -> None:
    training(runs / "a" / "b" / "c")
    training(runs / "a" / "b" / "c" / "too-deep")
    training(runs / "first" / "pieces" / "inner")
    page = client.get("/").text
    for link in ("/run/first", "/run/deeper/second", "/run/a/b/c"):
        assert f'href="{link}"' in page
    entries = listed(client)
    assert set(entries) == {"first", "deeper/second", "a/b/c"}
    assert entries["first"]["kind"] == "profile"
    assert entries["first"]["state"] == "finished"
    assert entries["a/b/c"]["state"] == "running"
    assert entries["a/b/c"]["task"] == "number · mini"
    stated = json.loads((runs / "first" / "run.json").read_text())["written"]
    assert entries["first"]["written"] == stated[:19].replace("T", " ")


def test_a_run_that_stopped_long_ago_is_not_called_running(client: TestClient, runs: Path) -> None:
    training(runs / "old")
    for file in (*(runs / "old").rglob("*"), runs / "old"):
        os.utime(file, (1e9, 1e9))
    assert listed(client)["old"]["state"] == "unfinished"


def test_the_folder_may_be_a_run_itself(runs: Path) -> None:
    browser = let_in(runs / "first")
    assert 'href="/run/"' in browser.get("/").text
    assert browser.get("/run/").status_code == 200
    assert browser.get("/data/").json()[0]["kind"] == "profile"


def test_run_page_and_its_data(client: TestClient) -> None:
    page = client.get("/run/deeper/second")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "/data/deeper/second" not in page.text  # it is finished
    (payload,) = client.get("/data/deeper/second").json()
    assert payload["kind"] == "profile"
    assert payload["complete"] is True
    assert payload["settings"]["task"]


def test_compare(client: TestClient, runs: Path) -> None:
    both = {"a": "first", "b": "deeper/second"}
    assert client.get("/compare", params=both).status_code == 200
    assert [p["complete"] for p in client.get("/data", params=both).json()] == [True, True]
    training(runs / "new & odd")
    page = client.get("/compare", params={"a": "first", "b": "new & odd"}).text
    assert re.search(
        r"/data\?a=first(&|\\u0026)b=new\+%26\+odd", page
    )  # one goes on, so both are asked for again
    assert client.get("/compare", params={"a": "first"}).status_code == 400
    assert client.get("/compare", params={"a": "first", "b": "none"}).status_code == 404
    assert client.get("/compare", params={"a": "first", "b": "../secret"}).status_code == 404


def test_thumbnails(client: TestClient, runs: Path) -> None:
    assert client.get("/thumb/first").status_code == 404
    assert "<svg" in client.get("/").text
    (runs / "first" / "other.png").write_bytes(b"other")
    (runs / "first" / "plane.png").write_bytes(PNG)
    picture = client.get("/thumb/first")
    assert picture.content == PNG
    assert picture.headers["content-type"] == "image/png"
    assert '<img src="/thumb/first"' in client.get("/").text


def test_a_figure_that_is_just_being_removed(
    client: TestClient, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rotoscope.report.server.picture", lambda *_: runs / "first" / "gone.png")
    assert client.get("/thumb/first").status_code == 404


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/run/first", "/data/first", "/data", "/compare", "/thumb/first", "/none"]
)
def test_nobody_without_the_token(runs: Path, path: str) -> None:
    stranger = TestClient(make_app(runs, TOKEN), base_url="http://127.0.0.1")
    for address in (path, f"{path}?token=", f"{path}?token=wrong", f"{path}?token={quote('ü')}"):
        answer = stranger.get(address)
        assert answer.status_code == 403
        assert answer.text == "the token is missing or wrong: open the address that rotoscope serve printed\n"
        assert "set-cookie" not in answer.headers
    stranger.cookies.set(f"rotoscope_{'0' * 8}", TOKEN)
    assert stranger.get(path).status_code == 403


def test_the_token_is_kept_in_a_cookie(runs: Path) -> None:
    browser = TestClient(make_app(runs, TOKEN), base_url="http://127.0.0.1")
    first = browser.get("/run/first", params={"token": TOKEN})
    assert first.status_code == 200
    cookie = first.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert browser.get("/run/first").status_code == 200
    assert browser.get("/", params={"token": "wrong"}).status_code == 403
    other = TestClient(make_app(runs, "another"), base_url="http://127.0.0.1", cookies=dict(browser.cookies))
    assert other.get("/").status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", ""])
def test_forged_host(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 400
    assert "first" not in answer.text


def test_both_local_names_are_ours(client: TestClient) -> None:
    for host in ("localhost:1", "127.0.0.1", "LOCALHOST"):
        assert client.get("/", params={"token": TOKEN}, headers={"host": host}).status_code == 200


def test_headers_stand_on_every_answer(client: TestClient) -> None:
    answers = [client.get(path) for path in ("/", "/run/first", "/data/first", "/run/none", "/none")]
    answers += [client.get("/", params={"token": "no"}), client.get("/", headers={"host": "evil"})]
    answers.append(client.post("/"))
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"


def test_a_mistake_of_ours_is_a_sentence(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rotoscope.report.server.side_of", lambda *_: 1 / 0)
    browser = TestClient(make_app(runs, TOKEN), base_url="http://127.0.0.1", raise_server_exceptions=False)
    answer = browser.get("/run/first", params={"token": TOKEN})
    assert answer.status_code == 500
    assert answer.text == "rotoscope made a mistake; the terminal says more\n"
    assert answer.headers["x-frame-options"] == "DENY"


def test_scripts_need_their_nonce(client: TestClient) -> None:
    pages = [client.get("/") for _ in range(2)]
    policies = [page.headers["content-security-policy"] for page in pages]
    nonces = [re.search(r"script-src 'nonce-([^']+)'", policy).group(1) for policy in policies]
    assert nonces[0] != nonces[1]
    for page, nonce in zip(pages, nonces, strict=True):
        assert set(re.findall(r"<(?:script|style)([^>]*)>", page.text)) == {f' nonce="{nonce}"'}
    policy = client.get("/run/first").headers["content-security-policy"]
    scripts = policy.split("script-src ")[1].split(";")[0].split()
    assert scripts
    assert all(script.startswith("'sha256-") for script in scripts)


OUTSIDE = [
    "../secret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "deeper/../../secret",
    "deeper%2f..%2f..%2fsecret",
    "linked",
    "first/../linked",
    "%00",
    "x" * 5000,
    "loop",
]


@pytest.mark.parametrize("kind", ["run", "data", "thumb"])
def test_nothing_outside_the_folder(client: TestClient, runs: Path, kind: str) -> None:
    secret = runs.parent / "secret"
    (secret / "plane.png").write_bytes(PNG)
    (runs / "linked").symlink_to(secret)
    (runs / "loop").symlink_to(runs / "loop")
    (runs / "first" / "plane.png").write_bytes(PNG)
    assert client.get(f"/{kind}/first").status_code == 200
    for path in [*OUTSIDE, f"/{secret}", quote(str(secret), safe="")]:
        assert client.get(f"/{kind}/{path}").status_code == 404, path
        # the path as it is, which a client may tidy up before sending it
        if "%" not in path:
            raw = client.get(f"/{kind}/{path.replace('.', '%2e').replace('/', '%2f')}")
            assert raw.status_code == 404, path
    assert set(listed(client)) == {"first", "deeper/second"}


def test_links_in_a_run_that_lead_outside(client: TestClient, runs: Path) -> None:
    secret = runs.parent / "secret"
    (secret / "plane.png").write_bytes(PNG)
    (runs / "first" / "plane.png").symlink_to(secret / "plane.png")
    assert client.get("/thumb/first").status_code == 404
    (runs / "first" / "heads.parquet").unlink()
    (runs / "first" / "heads.parquet").symlink_to(secret / "heads.parquet")
    assert client.get("/run/first").status_code == 404
    assert listed(client)["first"]["state"] == "damaged"
    (runs / "new").mkdir()
    (runs / "new" / "run.json").symlink_to(secret / "run.json")
    assert client.get("/data/new").status_code == 404
    assert "new" not in listed(client)


def test_a_link_within_the_folder_is_followed(client: TestClient, runs: Path) -> None:
    (runs / "latest").symlink_to(runs / "first")
    assert client.get("/data/latest").json()[0]["complete"] is True


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema": "99.0"}', b"[" * 100_000]
)
def test_damaged_runs_are_shown_as_such(client: TestClient, runs: Path, content: bytes) -> None:
    (runs / "bad").mkdir()
    (runs / "bad" / "run.json").write_bytes(content)
    entries = listed(client)
    assert entries["bad"]["state"] == "damaged"
    assert entries["bad"]["problem"]
    assert entries["first"]["state"] == "finished"
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("name", ["run.json", "prompts.parquet"])
def test_the_page_of_a_damaged_run_says_so(client: TestClient, runs: Path, name: str) -> None:
    (runs / "first" / name).write_text("{", encoding="utf-8")
    for address in ("/run/first", "/data/first", "/compare?a=first&b=deeper/second"):
        answer = client.get(address)
        assert answer.status_code == 409
        assert answer.text.startswith(f"first/{name} is damaged (")
        assert "make the run again with --overwrite" in answer.text
    assert listed(client)["first"]["state"] == "damaged"
    assert name in listed(client)["first"]["problem"]
    assert 'href="/run/first"' not in client.get("/").text
    assert client.get("/run/deeper/second").status_code == 200


def test_odd_settings_do_not_break_the_list(client: TestClient, runs: Path) -> None:
    odd = {"schema": "1.2", "kind": ["x"], "complete": 1, "written": "9" * 50, "settings": {"model": "\ud800"}}
    for name, content in (("odd", odd), ("odder", {**odd, "settings": [], "complete": False, "written": None})):
        (runs / name).mkdir()
        (runs / name / "run.json").write_text(json.dumps(content), encoding="utf-8")
    assert client.get("/").status_code == 200
    assert {"odd", "odder"} <= set(listed(client))
    assert client.get("/run/odd").status_code == 409


def test_empty_and_vanished_folders(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    browser = let_in(tmp_path / "runs")
    assert browser.get("/runs").json()["runs"] == []
    assert "0 runs." in browser.get("/").text
    (tmp_path / "runs").rmdir()
    assert "The folder is gone." in browser.get("/").text
    assert browser.get("/run/x").status_code == 404


def test_too_many_folders_are_said(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "MOST_FOLDERS", 2)
    answer = client.get("/runs").json()
    assert "not all were looked into" in answer["note"]
    assert len(answer["runs"]) < 2


def test_names_are_text(client: TestClient, runs: Path) -> None:
    name = ODD.replace("/", "")
    training(runs / name)
    page = client.get("/").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;script&gt; &quot;quoted&quot;" in page
    assert "🦩" in page
    fresh = client.get("/runs").json()
    assert "<script>" not in fresh["rows"]
    link = re.search(r'href="(/run/%3C[^"]+)"', page).group(1)
    report = client.get(link)
    assert report.status_code == 200
    assert "<script>alert" not in report.text
    assert listed(client)[name]["kind"] == "training"


def test_names_that_are_no_text(client: TestClient, runs: Path) -> None:
    try:
        shutil.copytree(runs / "first", os.fsdecode(os.fsencode(runs) + b"/\xff\xfe"))
    except OSError:
        pytest.skip("this file system refuses such names")
    page = client.get("/")
    assert page.status_code == 200
    assert "??" in page.text
    assert len(client.get("/runs").json()["runs"]) == 3


def test_a_training_run_grows(client: TestClient, runs: Path) -> None:
    run = training(runs / "going")
    seen = [client.get("/data/going").json()]
    evaluated(run.folder, 50, 0.5)
    seen.append(client.get("/data/going").json())
    assert seen[1][0]["progress"][-1]["accuracy"] == {"1": 0.5, "2": 0.25}
    assert seen[1][0]["running"] == ["step 50 of 100; accuracy by hops 1: 0.5, 2: 0.25; loss 1.5"]
    assert seen[1][0]["problems"] == []
    evaluated(run.folder, 100, 1.0)
    with (run.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 150, "accur')  # being written
    seen.append(client.get("/data/going").json())
    assert [row["step"] for row in seen[2][0]["progress"]] == [50, 100]
    assert not any(payload["complete"] for (payload,) in seen)
    assert "/data/going" in client.get("/run/going").text
    assert (listed(client)["going"]["progress"], listed(client)["going"]["share"]) == ("step 100 of 100", 1.0)
    before = client.get("/runs").json()["version"]
    run.add("test", {"test": pd.DataFrame({"hops": [1, 2], "accuracy": [1.0, 0.25]})})
    run.finish()
    (after,) = client.get("/data/going").json()
    assert after["complete"] is True
    assert "progress" not in after
    assert "/data/going" not in client.get("/run/going").text
    assert client.get("/runs").json()["version"] != before
    assert listed(client)["going"]["state"] == "finished"


def test_numbers_that_are_no_json(client: TestClient, runs: Path) -> None:
    run = training(runs / "going")
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "loss": NaN, "accuracy": {"1": 1e999}}\n[]\n3\n')
    (payload,) = client.get("/data/going").json()
    assert payload["progress"] == [{"step": 1, "loss": None, "accuracy": {"1": None}}]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client: TestClient, runs: Path, method: str) -> None:
    before = {file: file.stat().st_mtime_ns for file in runs.rglob("*")}
    for path in ("/", "/runs", "/run/first", "/data/first", "/thumb/first", "/compare", "/data"):
        assert client.request(method, path).status_code == 405
    assert {file: file.stat().st_mtime_ns for file in runs.rglob("*")} == before


def test_which_hosts_are_trusted() -> None:
    assert trusted("127.0.0.1") == ["127.0.0.1", "localhost"]
    assert trusted("10.1.2.3") == ["127.0.0.1", "localhost", "10.1.2.3"]
    assert "[::1]" in trusted("::1")
    assert socket.gethostname() in trusted("0.0.0.0")
    assert [is_local(h) for h in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.1.2.3", "host.example")] == (
        [True, True, True, False, False, False]
    )
    assert named("::1") == "[::1]"
    assert named("0.0.0.0") == socket.gethostname()


def test_another_port_where_the_usual_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("rotoscope.report.run_list.PORT", port)
        with listening("127.0.0.1", None) as bound:
            assert bound.getsockname()[1] not in (0, port)
        with pytest.raises(rs.RotoscopeError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listening("127.0.0.1", port)
