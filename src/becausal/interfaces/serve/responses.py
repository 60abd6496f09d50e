"""Responses of the server, and for every error a status and one sentence."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from becausal.core.errors import BecausalError, NetworkError
from becausal.core.text import one_line
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.job_queue import BackgroundJob, QueueFull
from becausal.interfaces.serve.tasks import kind_of

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

RETRY_SECONDS = 10  # after which a client may try again
STATUSES = {"input": 400, "model": 500, "stopped": 503, "internal": 500}


async def read_body(request: "HttpRequest") -> bytes:
    """The body of a request, which the request does not keep."""
    return b"".join([chunk async for chunk in request.stream()])


def respond(
    content: bytes | str | Mapping[str, Any], status: int = 200, media_type: str = "application/json", **headers: str
) -> "Response":
    """A response that no cache keeps. content: a mapping is written as JSON. headers: with underscores for dashes."""
    from starlette.responses import Response

    body = json.dumps(content) if isinstance(content, Mapping) else content
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, {"cache-control": "no-store", **lines}, media_type)


def respond_error(error: Exception) -> "Response":
    """The response to a request that cannot be served."""
    if isinstance(error, RequestRejected):
        return respond({"error": error.reason}, error.status)
    if isinstance(error, QueueFull):
        return respond({"error": str(error)}, 429, retry_after=str(RETRY_SECONDS))
    if isinstance(error, BecausalError):
        return respond({"error": one_line(error)}, find_status(type(error)))
    return respond({"error": f"unexpected {type(error).__name__} in the server"}, 500)


def respond_failure(job: BackgroundJob[Any], where: str = "") -> "Response":
    """The response to a client whose job has ended without a result. where: which of several images it was."""
    return respond({"error": f"{where}: {job.error}" if where else job.error}, find_status(job.failure))


def find_status(failure: type[BaseException] | None) -> int:
    """The status for an error; None for a job that was stopped."""
    if failure is not None and issubclass(failure, NetworkError):
        return 502
    return STATUSES[kind_of(failure)]
