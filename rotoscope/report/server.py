"""Runs in a browser: a small server that reads one folder and changes nothing.

Whoever asks needs a token, from the address at first and from a cookie afterwards. Requests under a name that is not ours
are refused, as are paths that lead outside the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from rotoscope.errors import RotoscopeError, RunError, pip_install

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as _missing:
    raise RotoscopeError(f"showing runs in a browser needs: {pip_install('report')}") from _missing

from rotoscope.experiments.page_data import SERVED
from rotoscope.report.page import Side, asset, hashes, page_style, payloads_of, render_page, side_of
from rotoscope.report.run_index import Found, find_runs, is_recent, picture, progress_of, run_folder
from rotoscope.report.run_list import (
    LOCAL,
    Links,
    badge,
    is_local,
    listening,
    named,
    rows,
    runs_page,
    trusted,
    version_of,
)

STRICT = "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; connect-src 'self'"
HEADERS = {
    "content-security-policy": STRICT,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}


def make_app(folder: Path, token: str, hosts: Sequence[str] = LOCAL) -> Starlette:
    """The server as an application: every run under `folder`, for whoever has the token."""
    pages = _Pages(folder.resolve())
    routes = {
        "/": pages.runs,
        "/runs": pages.runs_data,
        "/run/{path:path}": pages.run,
        "/compare": pages.compare,
        "/data": pages.data_of_two,
        "/data/{path:path}": pages.data,
        "/thumb/{path:path}": pages.thumb,
        "/favicon.ico": pages.icon,
    }
    app = Starlette(
        routes=[Route(path, answer, methods=["GET"]) for path, answer in routes.items()],
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(_Token, token=token),
        ],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
    )
    app.router.redirect_slashes = False
    return app


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    say: Callable[[str], object] = print,
) -> None:
    """Show the runs under a folder until interrupted.

    Without a port, 8765 or another that is free; 0 is any free one. `say` is given the address, and a warning where others
    than this machine can reach it.
    """
    place = Path(folder)
    if not place.is_dir():
        raise RunError(f"no such folder: {place}")
    token = secrets.token_urlsafe(24)
    with listening(host, port) as bound:
        number = bound.getsockname()[1]
        url = f"http://{named(host)}:{number}/?token={token}"
        if not is_local(host):
            say(
                f"warning: {host} can be reached from other machines, and what is sent is not encrypted; "
                "whoever has the address below can read every run in the folder"
            )
        say(f"the runs in {place}: {url}")
        app = make_app(place, token, trusted(host))
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # it would hold the token
            proxy_headers=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(settings).run(sockets=[bound])


class _Pages:
    """What is answered to whom is let in."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def runs(self, request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        found, whole = find_runs(self.root)
        head = f'<style nonce="{nonce}">{page_style()}\n{asset("runs.css")}</style>'
        script = f'<script nonce="{nonce}">{asset("runs.js")}</script>'
        note, body = self._note(len(found), whole), rows((run, _links(run)) for run in found)
        page = runs_page(str(self.root), head, body, note, "/compare", script, live=True)
        allowed = f"{STRICT}; img-src 'self'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
        return HTMLResponse(_sent(page), headers={"content-security-policy": allowed})

    def runs_data(self, request: Request) -> Response:
        found, whole = find_runs(self.root)
        body = rows((run, _links(run)) for run in found)
        note = self._note(len(found), whole)
        return _json(
            {
                "runs": [vars(run) for run in found],
                "note": note,
                "rows": _sent(body).decode(),
                "version": version_of(body),
            }
        )

    def run(self, request: Request) -> Response:
        path = request.path_params["path"]
        return _report(self._payloads(path), f"/data/{quote(path)}")

    def compare(self, request: Request) -> Response:
        a, b = self._two(request)
        return _report(self._payloads(a, b), f"/data?{urlencode({'a': a, 'b': b})}")

    def data(self, request: Request) -> Response:
        return _json(self._payloads(request.path_params["path"]))

    def data_of_two(self, request: Request) -> Response:
        return _json(self._payloads(*self._two(request)))

    def thumb(self, request: Request) -> Response:
        file = picture(self.root, self._folder(request.path_params["path"]))
        try:
            image = file.read_bytes() if file is not None else None
        except OSError:  # removed or being replaced
            image = None
        if image is None:
            raise HTTPException(404, "this run has no figure")
        return Response(image, media_type="image/png")

    def icon(self, request: Request) -> Response:
        return Response(badge("R"), media_type="image/svg+xml")

    def _two(self, request: Request) -> tuple[str, str]:
        a, b = request.query_params.get("a"), request.query_params.get("b")
        if a is None or b is None:
            raise HTTPException(400, "two runs are compared: /compare?a=ONE&b=OTHER")
        return a, b

    def _folder(self, path: str) -> Path:
        folder = run_folder(self.root, path)
        if folder is None:
            raise HTTPException(404, "there is no such run in the folder that is shown")
        return folder

    def _payloads(self, *paths: str) -> list[dict[str, Any]]:
        folders = [self._folder(path) for path in paths]
        try:
            payloads = _payloads_of(tuple((folder, _stamp(folder)) for folder in folders))
        except RunError as damage:
            raise HTTPException(409, str(damage).replace(f"{self.root}/", "")) from damage
        return [
            payload if payload["complete"] else payload | _progress(folder)
            for payload, folder in zip(payloads, folders, strict=True)
        ]

    def _note(self, count: int, whole: bool) -> str:
        if not self.root.is_dir():
            return "The folder is gone."
        if not whole:
            return f"{count} runs; there are too many folders here, and not all were looked into."
        return f"{count} runs." if count != 1 else "1 run."


def _links(run: Found) -> Links | None:
    """Where the server has a run; a damaged one has no page, and a name that is no text cannot be asked for."""
    if run.state == "damaged":
        return None
    try:
        link = quote(run.path)
    except UnicodeEncodeError:
        return None
    return Links(run.path, f"/run/{link}", f"/thumb/{link}")


Stamp = tuple[tuple[str, int, int], ...]


def _stamp(folder: Path) -> Stamp:
    """What tells one state of a run from another: its files, and whether it seems to be going on."""
    found = [("", 0, int(is_recent(folder)))]
    for file in sorted(folder.rglob("*")):
        try:
            about = file.stat()
        except OSError:  # a file that has just been renamed or removed
            continue
        found.append((file.name, about.st_mtime_ns, about.st_size))
    return tuple(found)


@lru_cache(maxsize=8)
def _side(folder: Path, stamp: Stamp) -> Side:
    """A run, read again only when one of its files has changed."""
    return side_of(folder, SERVED)


@lru_cache(maxsize=8)
def _payloads_of(runs: tuple[tuple[Path, Stamp], ...]) -> list[dict[str, Any]]:
    return payloads_of([_side(folder, stamp) for folder, stamp in runs])


def _progress(folder: Path) -> dict[str, Any]:
    """What a training run that is not finished has said of itself."""
    steps = progress_of(folder)
    return {"progress": steps} if steps else {}


class _Headers:
    """Headers of every answer, refusals included; a page may bring its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_with)


class _Token:
    """Nobody is let in without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token
        # browsers do not tell ports apart: two servers on one machine need two cookies
        self.cookie = "rotoscope_" + hashlib.sha256(token.encode()).hexdigest()[:8]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there is nothing else here that could be asked for
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        asked = request.query_params.get("token")
        given = request.cookies.get(self.cookie, "") if asked is None else asked
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            answer = PlainTextResponse(
                "the token is missing or wrong: open the address that rotoscope serve printed\n", 403
            )
            await answer(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and asked is not None:
                kept = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("set-cookie", kept)
            await send(message)

        await self.app(scope, receive, send_with_cookie)


async def _refuse(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return PlainTextResponse(f"{problem.detail}\n", problem.status_code, headers=problem.headers)


async def _fail(request: Request, problem: Exception) -> Response:
    return PlainTextResponse("rotoscope made a mistake; the terminal says more\n", 500, headers=HEADERS)


def _report(payloads: list[dict[str, Any]], live: str) -> Response:
    """The report's own page; it asks again as long as a run is not finished."""
    going = any(not payload.get("complete") for payload in payloads)
    page = render_page(payloads, live=live if going else None, home="/")
    return HTMLResponse(_sent(page), headers={"content-security-policy": _allowed(page)})


def _allowed(page: str) -> str:
    """The scripts that stand in the page may run, and no others: neither handlers in attributes nor later additions."""
    scripts = re.findall(r"<script\b[^>]*>(.*?)</script\s*>", page, flags=re.DOTALL | re.IGNORECASE)
    allowed = hashes([script.replace("\r\n", "\n").replace("\r", "\n") for script in scripts]) or "'none'"
    return (
        f"{STRICT}; script-src {allowed}; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src data:; worker-src blob:"
    )


def _json(content: object) -> Response:
    """Everything outside ASCII is escaped, so that odd names cannot break the answer."""
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


def _sent(text: str) -> bytes:
    return text.encode("utf-8", "replace")
