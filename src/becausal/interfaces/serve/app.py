"""The server: the routes of the API and of the page, behind the guard, and uvicorn on a socket."""

import logging
import socket
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, InputError, MissingExtraError
from becausal.core.text import one_line
from becausal.interfaces.serve.api import Api
from becausal.interfaces.serve.guard import Guard, RequestRejected
from becausal.interfaces.serve.job_queue import QueueFull
from becausal.interfaces.serve.jobs import ModelSource
from becausal.interfaces.serve.limits import KEEP_ALIVE_SECONDS, Limits
from becausal.interfaces.serve.page import Page
from becausal.interfaces.serve.service import Service, find_status, respond

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

LIBRARIES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
RETRY_SECONDS = 10  # after which a client may try again
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def make_app(
    models: Mapping[str, Classifier],
    limits: Limits,
    *,
    has_page: bool = True,
    sources: Mapping[str, ModelSource] | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    token: str | None = None,
) -> Guard:
    """The server as an ASGI app; raises MissingExtraError if a library it needs is not installed.

    models: by the name clients use, the default one first. has_page: whether there is a page besides the API. sources: how
    each of the models is loaded, by the same names; searches then run in processes, which can be ended at any time, and
    otherwise in threads. hosts: accepted host names; None for any. token: what clients must send, if any.
    """
    for library in LIBRARIES:
        if find_spec(library) is None:
            raise MissingExtraError(library, "serve", "becausal serve")
    from starlette.applications import Starlette
    from starlette.routing import Route

    service = Service(models, limits, sources)
    api, page = Api(service), Page(service)
    routes = [
        Route("/v1/explain", api.explain, methods=["POST"]),
        Route("/v1/jobs/{id}", api.show_job, methods=["GET"]),
        Route("/v1/jobs/{id}", api.stop_job, methods=["DELETE"]),
        Route("/v1/models", api.list_models, methods=["GET"]),
        Route("/healthz", api.show_health, methods=["GET"]),
        Route("/metrics", api.show_metrics, methods=["GET"]),
        Route("/docs", api.show_docs, methods=["GET"]),
        Route("/openapi.json", api.show_schema, methods=["GET"]),
    ]
    if has_page:
        routes += [
            Route("/", page.show, methods=["GET"]),
            Route("/static/{name}", page.show_static, methods=["GET"]),
            Route("/page/labels", page.show_labels, methods=["POST"]),
            Route("/page/explain", page.explain, methods=["POST"]),
            Route("/page/compare", partial(page.explain, is_comparison=True), methods=["POST"]),
            Route("/page/jobs/{id}", page.stop, methods=["DELETE"]),
            Route("/page/jobs/{id}/events", page.watch, methods=["GET"]),
            Route("/page/jobs/{id}/pixel", page.show_pixel, methods=["GET"]),
            Route("/page/jobs/{id}/download", page.download, methods=["GET"]),
        ]

    handlers: dict[Any, Any] = dict.fromkeys((RequestRejected, BecausalError, 404, 405, 500), _answer_error)
    return Guard(
        Starlette(routes=routes, lifespan=service.run, exception_handlers=handlers),
        limits=limits,
        hosts=hosts,
        token=token,
        has_page=has_page,
        connections=service.connections,
        observe=service.metrics.count_response,
    )


async def _answer_error(request: "HttpRequest", error: Exception) -> "Response":
    """A status and one sentence for a request that cannot be served."""
    if isinstance(error, RequestRejected):
        return respond({"error": error.reason}, error.status)
    if isinstance(error, QueueFull):
        return respond({"error": str(error)}, 429, retry_after=str(RETRY_SECONDS))
    if isinstance(error, BecausalError):
        return respond({"error": one_line(error)}, find_status(type(error)))
    if (status := getattr(error, "status_code", None)) is not None:  # of the router: 404 or 405
        reason = "there is nothing" if status == 404 else f"{request.method} is not offered"
        return respond({"error": f"{reason} at this address; /docs lists all addresses"}, status)
    return respond({"error": f"unexpected {type(error).__name__} in the server"}, 500)


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


def make_server(app: Guard, *, shutdown_seconds: int) -> "uvicorn.Server":
    """The server of an app; `run(sockets=[…])` serves until it is interrupted.

    shutdown_seconds: how long it then waits for requests that are still being answered.
    """
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    connections = app.connections

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

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=shutdown_seconds,
        http=LimitedProtocol,
    )
    server = uvicorn.Server(config)
    # Every open page holds a connection; closing them on shutdown is not an error worth logging.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    return server
