"""Sockets and the uvicorn server on them."""

import asyncio
import ctypes
import logging
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from becausal.core.errors import InputError
from becausal.interfaces.serve.connections import KEEP_ALIVE_SECONDS, Connections
from becausal.interfaces.serve.guard import Guard

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is reported at once; raises InputError if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise InputError(f"cannot listen on port {port} of {host}: {reason}; choose another with --port") from None
    return bound


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach a bound socket."""
    return ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def limit_protocol(connections: Connections) -> "type[asyncio.Protocol]":
    """uvicorn's HTTP protocol with these connections registered."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if self.client is not None:
                connections.add(self.client, transport)

        def shutdown(self) -> None:
            connections.is_closing = True
            super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.client is not None:
                connections.remove(self.client)
            super().connection_lost(exc)

    return LimitedProtocol


def make_server(app: Guard, *, shutdown_seconds: int = 1) -> "uvicorn.Server":
    """The server of an app; `run(sockets=[…])` serves until it is interrupted.

    shutdown_seconds: how long it then waits for requests that are still being answered.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=shutdown_seconds,
        http=limit_protocol(app.connections),
    )
    server = uvicorn.Server(config)
    # Every open page holds a connection; closing them on shutdown is not an error worth logging.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    return server


def return_memory() -> None:
    """Give freed memory back to the system; the C library would keep most of it for later. Only with glibc."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
