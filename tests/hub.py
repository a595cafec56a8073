"""A small hub on 127.0.0.1: what the hub's own client asks of one that holds a few models with branches, and no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants


def blob(content: bytes) -> str:
    """The name git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Hub:
    """Models by name, each with a folder for every branch; `asked` is what was asked for, in order."""

    address: str
    models: dict[str, dict[str, Path]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Branches whose weights it does not hand out."""
    larger: dict[str, int] = field(default_factory=dict)
    """What it says of the size of a branch's weights."""

    @property
    def downloads(self) -> list[str]:
        """The files that were handed out, as branch/file."""
        return [path for path in self.asked if path.startswith("GET ") and "/resolve/" in path]

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(f"{method} {path}")
        words = path.strip("/").split("/")
        api = words[:2] == ["api", "models"]
        words = words[2:] if api else words
        name, what, rest = "/".join(words[:2]), words[2] if len(words) > 2 else "", words[3:]
        branches = self.models.get(name)
        if branches is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if what == "refs":
            refs = [
                {"name": one, "ref": f"refs/heads/{one}", "targetCommit": commit(one, place)}
                for one, place in branches.items()
            ]
            return found({"branches": refs, "tags": [], "converts": []})
        names = {commit(one, place): one for one, place in branches.items()} | {one: one for one in branches}
        branch = names.get(unquote(rest[0]) if rest else "")
        if branch is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if what == "revision":
            return found({"id": name, "sha": commit(branch, branches[branch]), "siblings": []})
        if what == "tree":
            return found([self.described(branch, file) for file in sorted(branches[branch].iterdir())])
        file = branches[branch] / rest[1]
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        if branch in self.broken and file.suffix == ".safetensors":
            return 403, {}, b""
        about, content = self.described(branch, file), file.read_bytes()
        tag = about["lfs"]["oid"] if "lfs" in about else about["oid"]
        return 200, {"ETag": f'"{tag}"', "X-Repo-Commit": commit(branch, branches[branch])}, content

    def described(self, branch: str, file: Path) -> dict:
        """A file as a listing has it; weights are large files."""
        content = file.read_bytes()
        size = self.larger.get(branch, len(content)) if file.suffix == ".safetensors" else len(content)
        about = {"type": "file", "path": file.name, "size": size, "oid": blob(content)}
        if file.suffix == ".safetensors":
            about["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 134}
        return about


def commit(branch: str, place: Path) -> str:
    return hashlib.sha1(f"{branch} {place}".encode()).hexdigest()


def found(content: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


@contextmanager
def serving(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the client asks until this ends, and a cache of one's own for what it fetches."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            status, headers, body = hub.answer(self.command, urlsplit(self.path).path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    files = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
