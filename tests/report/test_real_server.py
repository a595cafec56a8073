"""`rotoscope serve` in a process of its own: what it prints, whom it answers, how it ends."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.report.test_serve import training

ROTOSCOPE = str(Path(sys.executable).with_name("rotoscope"))


class Server:
    """`rotoscope serve` in a process of its own."""

    folder: Path

    def __init__(self, folder: Path, *more: str) -> None:
        command = [ROTOSCOPE, "serve", str(folder), "--port", "0", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.printed = []
        while not self.printed or "http://" not in self.printed[-1]:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"no server: {self.process.communicate()[1]}")
            self.printed.append(line)
        self.url = re.search(r"http://\S+", self.printed[-1]).group()
        self.token = self.url.split("token=")[1]
        self.port = urlsplit(self.url).port

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """The path just as it is."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        mark = "&" if "?" in path else "?"
        line.request("GET", f"{path}{mark}token={self.token}", headers=headers)
        answer = line.getresponse()
        body = answer.read().decode()
        line.close()
        return answer.status, body

    def end(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGINT)
        out, problem = self.process.communicate(timeout=20)
        return self.process.returncode, out, problem


@pytest.fixture(scope="module")
def server(profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("served")
    shutil.copytree(profiles, place / "runs")
    shutil.copytree(profiles / "first", place / "secret")
    running = Server(place / "runs")
    running.folder = place / "runs"
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


@pytest.mark.slow
def test_a_real_server(server: Server) -> None:
    assert urlsplit(server.url).hostname == "127.0.0.1"
    assert len(server.token) >= 32
    status, page = server.get("/")
    assert status == 200
    assert 'href="/run/deeper/second"' in page
    assert json.loads(server.get("/data/first")[1])[0]["kind"] == "profile"
    for path in ("/run/../../secret", "/data/../../secret", "/run/%2e%2e/secret", "//etc/passwd", "/run//etc"):
        assert server.get(path)[0] == 404, path
    assert server.get("/", Host="evil.example")[0] == 400
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(server.url.split("?")[0], timeout=10)


def test_in_a_real_browser(server: Server, browser: Any) -> None:
    context = browser.new_context()
    tab = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda printed: errors.append(printed.text) if printed.type == "error" else None)
    tab.on("pageerror", lambda problem: errors.append(str(problem)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(server.url)
    assert tab.locator("tbody tr").count() == 2
    assert "token" not in tab.url
    button = tab.get_by_role("button", name="Compare")
    assert button.is_disabled()
    names = tab.locator("tbody a").all_inner_texts()
    last = names[1]  # ticked first, so it is A, whatever the order of the list
    tab.get_by_label(f"compare {last}").check()
    training(server.folder / "new")
    tab.get_by_role("link", name="new").wait_for(timeout=10_000)  # the list refreshes itself
    assert "running" in tab.locator("tr", has_text="new").inner_text()
    assert tab.get_by_label(f"compare {last}").is_checked()
    tab.get_by_label(f"compare {names[0]}").check()
    assert tab.get_by_label("compare new").is_disabled()
    with tab.expect_navigation():
        button.click()
    assert urlsplit(tab.url).path == "/compare"
    assert parse_qs(urlsplit(tab.url).query) == {"a": [last], "b": [names[0]]}
    tab.wait_for_selector("#tab-compare[aria-selected=true]")
    assert tab.inner_text("#differences").startswith(f"A {last.split('/')[-1]}")
    with tab.expect_navigation():
        tab.click("#home")
    tab.goto(server.url.split("?")[0])  # the cookie is enough now
    with tab.expect_navigation():
        tab.get_by_role("link", name="deeper/second").click()
    assert urlsplit(tab.url).path == "/run/deeper/second"
    tab.wait_for_load_state()
    context.close()
    assert errors == []
    web = [url for url in asked if not url.startswith(("data:", "blob:"))]
    assert {urlsplit(url).netloc for url in web} == {f"127.0.0.1:{server.port}"}


@pytest.mark.slow
def test_a_stopped_server_is_quiet(server: Server) -> None:
    """After the tests that use it: Ctrl-C ends it, and nothing it printed later holds the token."""
    server.get("/run/first")
    code, out, problem = server.end()
    assert code == 0
    assert out == "stopped\n"
    assert problem == ""


@pytest.mark.slow
def test_other_machines_only_with_a_warning(profiles: Path) -> None:
    running = Server(profiles, "--host", "0.0.0.0")
    try:
        assert running.printed[0].startswith("warning: 0.0.0.0 can be reached from other machines")
        assert running.get("/", Host=socket.gethostname())[0] == 200
        assert running.get("/", Host="evil.example")[0] == 400
    finally:
        running.end()


def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from rotoscope.cli import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, sentence in (
            ([str(tmp_path / "none")], f"no such folder: {tmp_path / 'none'}"),
            (
                [str(tmp_path), "--port", port],
                f"cannot listen on 127.0.0.1 port {port} (Address already in use)",
            ),
            ([str(tmp_path), "--port", "70000"], "a port is a number from 0 to 65535, found 70000"),
            ([str(tmp_path), "--host", ""], "the host is empty"),
            ([str(tmp_path), "--host", "x" * 70], "cannot listen on xxx"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(["serve", *arguments])
            assert ended.value.code == 2
            printed = capsys.readouterr().err
            assert printed.startswith(f"rotoscope: {sentence}")
            assert printed.count("\n") == 1


@pytest.mark.slow
def test_without_the_extra(tmp_path: Path) -> None:
    probe = (
        "import sys; sys.modules['starlette'] = sys.modules['starlette.applications'] = None\n"
        f"from rotoscope.cli import main; main(['serve', {str(tmp_path)!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "pip install 'rotoscope[report]'" in ended.stderr
    assert ended.stderr.count("\n") == 1
