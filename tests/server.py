"""Servers for the endpoint tests: a scripted one for what goes wrong, and a real one with SmolLM2 behind it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Reply = tuple[int, dict[str, str], str | bytes]


def replied(content: Any, **more: Any) -> Reply:
    """A well-formed chat completion."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return 200, {"content-type": "application/json"}, json.dumps(body | {"usage": usage} | more)


def refused(status: int, message: str = "no", code: str = "", **headers: str) -> Reply:
    body = {"error": {"message": message, "type": "error", "code": code}}
    return status, {"content-type": "application/json"} | headers, json.dumps(body)


class Scripted:
    """A local server that answers with whatever the script says; `asked` holds the requests in order."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    outer.asked.append(request)
                    outer.keys.append(self.headers["authorization"])
                    number = len(outer.asked)
                status, headers, body = script(number, request)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                content = body if isinstance(body, bytes) else body.encode()
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def texts(self) -> list[str]:
        return [request["messages"][0]["content"] for request in self.asked]


@contextmanager
def scripted(script: Callable[[int, dict[str, Any]], Reply]) -> Iterator[Scripted]:
    running = Scripted(script)
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


SERVE = """
import sys
import xllamacpp

settings = xllamacpp.CommonParams()
settings.model.path, settings.hostnames, settings.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
settings.n_ctx, settings.n_parallel, settings.warmup = 2048, 2, False
# One thread: several of them wait for each other by spinning, which takes minutes on a busy machine.
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(settings)
sys.stdin.read()  # until whoever started us is gone
"""


def serve(weights: Path, port: int) -> subprocess.Popen[bytes]:
    """A real model behind a real server, in a process of its own."""
    command = [sys.executable, "-c", SERVE, str(weights), str(port)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_until_ready(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"no server on port {port}")
