"""Malformed requests to the real server, and two hundred connections at once beside a run that is going on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from urllib.parse import quote

from tests.campaign.damage import HOSTILE, remove
from tests.campaign.kinds import forked, kill, line, run_command
from tests.campaign.runner import Case, Finding, Part, Tally
from tests.campaign.scratch import require

SERVE = "from rotoscope.cli import main; main(['serve', 'runs', '--port', '0'])"
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "",
    "get",
    "G\x00T",
    "X" * 9000,
)
PATHS = (
    "/",
    "/runs",
    "/run/profile",
    "/data/profile",
    "/thumb/profile",
    "/compare?a=profile&b=train",
    "/data?a=profile&b=train",
    "/none",
)
CONNECTIONS = 200
FLAT_MB = 40.0
"""What a server may grow by between the second and third fifth of the time and the last."""


class Server:
    """`rotoscope serve` in a process of its own."""

    def __init__(self, place: Path, stock: Path) -> None:
        self.said = place / "server.txt"
        if not (place / "runs").exists():
            for name in ("profile", "train", "theory"):
                shutil.copytree(stock / name, place / "runs" / name)
        with self.said.open("w") as said:
            self.process = subprocess.Popen([sys.executable, "-c", SERVE], cwd=place, stdout=said, stderr=said)
        until = time.monotonic() + 60
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", self.said.read_text())) is None:
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError(f"no server: {self.said.read_text()[-500:]}")
            time.sleep(0.05)
        self.port, self.token = int(found[1]), found[2]

    def ask(self, request: bytes, *, half: bool = False) -> bytes:
        """Send bytes, and whatever comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=3) as sent:
            with contextlib.suppress(OSError):
                sent.sendall(request)
                if half:
                    sent.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError, TimeoutError):  # it may wait for the rest of a request
                while part := sent.recv(65536):
                    answer += part
            return answer

    def good(self, path: str = "/runs") -> bytes:
        join = "&" if "?" in path else "?"
        return (
            f"GET {path}{join}token={self.token} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n\r\n"
        ).encode()

    @property
    def memory_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()


def prepare(place: Path, stock: Path) -> Case:
    return _Requests(Server(place, stock))


class _Requests:
    def __init__(self, server: Server) -> None:
        self.server, self.close = server, server.close

    def __call__(self, number: int, draw: Random) -> str | None:
        request, half = self._request(draw), draw.random() < 0.3
        answer = self.server.ask(request, half=half or b"close" not in request)
        told = f"{request[:200]!r}"
        if self.server.process.poll() is not None:
            return f"the server ended after {told}"
        status = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
        if answer and status is None:
            return f"no status after {told}: {answer[:100]!r}"
        if status and status[1][:1] == b"5":
            return f"{status[1].decode()} after {told}"
        if b"Traceback" in answer or b"nobody writes here" in answer:
            return f"too much is said after {told}"
        if number % 50 == 0 or not answer:
            if not self.server.ask(self.server.good()).startswith(b"HTTP/1.1 200"):
                return f"no good answer any more after {told}"
            if "Traceback" in self.server.said.read_text():
                return f"the server said: {self.server.said.read_text()[-300:]}"
        return None

    def _request(self, draw: Random) -> bytes:
        server = self.server
        path = draw.choice(PATHS)
        if draw.random() < 0.5:
            odd = draw.choice(
                (*HOSTILE, "..", "%2e%2e%2f", "%00", "\\..\\", "%ff", "x" * 20000, "../../canary.txt")
            )
            path += draw.choice(("/", "?a=", "/../", "#", "")) + (
                quote(odd, errors="replace") if draw.random() < 0.5 else odd
            )
        if draw.random() < 0.6:
            path += ("&" if "?" in path else "?") + f"token={draw.choice((server.token, '', 'wrong', '%00'))}"
        headers = [
            f"Host: {draw.choice((f'127.0.0.1:{server.port}', 'localhost', 'evil.example', '', 'a' * 3000))}"
        ]
        odd_headers = ("Content-Length: -1", "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Cookie: " + "a=b;" * 999,
                       "Range: bytes=0-", "Expect: 100-continue", "Upgrade: websocket", "X: \x00", ": empty", "no colon", "A: " + "b" * 70000,
                       "Accept-Encoding: gzip;q=nan", "Origin: null", "If-None-Match: *")  # fmt: skip
        headers += draw.sample(odd_headers, draw.randrange(3))
        headers += ["Connection: close"]
        method = "GET" if draw.random() < 0.6 else draw.choice(METHODS)
        version = (
            "HTTP/1.1" if draw.random() < 0.8 else draw.choice(("HTTP/1.0", "HTTP/9.9", "HTTP/2", "", "\xff"))
        )
        text = f"{method} {path} {version}\r\n" + "".join(f"{one}\r\n" for one in headers) + "\r\n"
        raw = bytearray(text.encode("utf-8", "replace"))
        if draw.random() < 0.2:
            for _ in range(draw.randrange(1, 5)):
                raw[draw.randrange(len(raw))] = draw.randrange(256)
        return bytes(raw[: draw.randrange(1, len(raw))] if draw.random() < 0.1 else raw)


def crowd(place: Path, stock: Path, seconds: float, seed: int, connections: int = CONNECTIONS) -> Tally:
    """So many connections for so long, each asking again and again, beside runs that are made one after the other."""
    require()
    place.mkdir(parents=True)
    os.chdir(place)
    for name in ("train", "model"):
        shutil.copytree(stock / name, place / name)
    server = Server(place, stock)
    try:
        return ask_all_at_once(server, seconds, seed, connections)
    finally:
        server.close()


def ask_all_at_once(server: Server, seconds: float, seed: int, connections: int) -> Tally:
    """The answers of a server whose folder is this process's own."""
    until, tally = time.monotonic() + seconds, Tally()
    worker = forked(lambda: _busy(until))
    asked, problems, memory = asyncio.run(_connections(server, connections, until))
    kill(worker)
    os.waitpid(worker, 0)
    tally.cases, tally.seconds = asked, seconds
    tally.findings += [Finding("crowd", 0, seed, what) for what in problems[:20]]
    fifth = max(1, len(memory) // 5)
    settled, last = max(memory[fifth : 3 * fifth] or memory), max(memory[-fifth:])
    grown = last - settled
    if grown > FLAT_MB and seconds > 60:  # before that, the first pages are still being made
        tally.findings.append(
            Finding("crowd", 0, seed, f"memory grew by {grown:.0f} MB: {[round(m) for m in memory]}")
        )
    if "Traceback" in server.said.read_text():
        tally.findings.append(Finding("crowd", 0, seed, f"the server said: {server.said.read_text()[-500:]}"))
    print(
        f"crowd: {connections} connections, {asked:,} answers in {seconds:.0f} s, memory {memory[0]:.0f} MB at first, at "
        f"most {settled:.0f} MB in the second and third fifth, {last:.0f} MB in the last",
        flush=True,
    )
    return tally


def _busy(until: float) -> int:
    """Runs in the served folder, one after the other."""
    while time.monotonic() < until:
        for name in ("train", "profile", "theory"):
            run_command([*line(name, f"runs/busy-{name}"), "--overwrite"])
            remove(Path(f"runs/busy-{name}"))
    return 0


async def _connections(server: Server, count: int, until: float) -> tuple[int, list[str], list[float]]:
    problems: list[str] = []
    memory = [server.memory_mb]
    asked = 0

    async def one(number: int) -> None:
        nonlocal asked
        draw = Random(number)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            while time.monotonic() < until:
                path = draw.choice(
                    ("/runs", "/", "/data/theory", "/run/theory", "/none") if number % 5 else ("/runs",)
                )
                request = server.good(path).replace(b"Connection: close\r\n", b"")
                writer.write(request)
                await writer.drain()
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                status = int(head.split()[1])
                if status not in (200, 404 if path == "/none" else 200):
                    problems.append(f"{path}: {status}")
                length = re.search(rb"content-length: (\d+)", head.lower())
                await asyncio.wait_for(reader.readexactly(int(length[1]) if length else 0), 60)
                asked += 1
            writer.close()
        except Exception as problem:
            problems.append(f"a connection broke: {type(problem).__name__}: {problem}")

    async def watch() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(0.5)
            memory.append(server.memory_mb)

    await asyncio.gather(watch(), *(one(number) for number in range(count)))
    return asked, problems, memory


PART = Part("requests", prepare, share=0.05, limit_s=60)
