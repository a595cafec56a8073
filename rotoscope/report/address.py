"""Where the server listens, and the names it answers to."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

from rotoscope.errors import RotoscopeError

LOCAL = ("127.0.0.1", "localhost")
PORT = 8765


def listening(host: str, port: int | None) -> socket.socket:
    """A socket bound before anything is promised."""
    if port is not None and not 0 <= port <= 65535:
        raise RotoscopeError(f"a port is a number from 0 to 65535, found {port}")
    if not host:
        raise RotoscopeError("the host is empty; give a name or an address")
    try:
        return _bound(host, PORT if port is None else port)
    except (OSError, UnicodeError) as taken:
        if port is None:
            return listening(host, 0)
        why = getattr(taken, "strerror", None) or taken
        raise RotoscopeError(
            f"cannot listen on {host} port {port} ({why}); choose another --port or --host"
        ) from taken


def _bound(host: str, port: int) -> socket.socket:
    choices = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(choices, key=lambda choice: choice[0] != socket.AF_INET)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def trusted(host: str) -> list[str]:
    """The names we answer to: local ones, the one asked for, and this machine's own where that is every address."""
    address = _address(host)
    names = [*LOCAL, f"[{host}]" if address is not None and address.version == 6 else host]
    if address is not None and address.is_unspecified:
        names += [socket.gethostname(), socket.getfqdn()]
        with contextlib.suppress(OSError):
            own = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
            names += [str(found[4][0]) for found in own]
    return list(dict.fromkeys(names))


def named(host: str) -> str:
    """The host as it stands in an address a browser can open."""
    address = _address(host)
    if address is None:
        return host
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if address.version == 6 else host
