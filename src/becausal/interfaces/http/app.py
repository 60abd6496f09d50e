"""The HTTP API as an ASGI app: its routes, behind the guard that the page has too."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, MissingExtraError
from becausal.interfaces.http.responses import respond_error
from becausal.interfaces.http.rules import (
    DOCS_PATH,
    EXPLAIN_PATH,
    HEALTH_PATH,
    JOBS_PATH,
    METRICS_PATH,
    MODELS_PATH,
    SCHEMA_PATH,
    ApiRules,
)
from becausal.interfaces.http.service import ApiService
from becausal.interfaces.web.guard import Guard, RequestRejected
from becausal.interfaces.web.job_processes import ModelSource
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.listening import LOOPBACK

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest
    from fastapi import Response


def make_api(
    models: Mapping[str, Classifier],
    limits: Limits,
    *,
    sources: Mapping[str, ModelSource] | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    token: str | None = None,
) -> Guard:
    """The API as an ASGI app; raises MissingExtraError if a library it needs is not installed.

    models: by the name clients use, the default one first. sources: how each of them is loaded, by the same names; searches
    then run in processes, which can be ended at any time, and otherwise in threads. hosts: accepted host names; None for
    any. token: what clients must send, if any.
    """
    for library in ("fastapi", "uvicorn", "python_multipart"):
        if find_spec(library) is None:
            raise MissingExtraError(library, "api", "the HTTP API")
    from fastapi import FastAPI

    service = ApiService(models, limits, sources)
    handlers = {
        RequestRejected: _answer_error,
        BecausalError: _answer_error,
        404: _answer_unknown,
        405: _answer_unknown,
        500: _answer_error,
    }
    app = FastAPI(lifespan=service.run, openapi_url=None, docs_url=None, redoc_url=None, exception_handlers=handlers)
    for path, method, handler in (
        (EXPLAIN_PATH, "POST", service.explain),
        (f"{JOBS_PATH}/{{id}}", "GET", service.show_job),
        (f"{JOBS_PATH}/{{id}}", "DELETE", service.stop_job),
        (MODELS_PATH, "GET", service.list_models),
        (f"{MODELS_PATH}/{{name:path}}", "GET", service.show_model),
        (f"{MODELS_PATH}/{{name:path}}", "POST", service.explain_instances),
        (HEALTH_PATH, "GET", service.show_health),
        (METRICS_PATH, "GET", service.show_metrics),
        (DOCS_PATH, "GET", service.show_docs),
        (SCHEMA_PATH, "GET", service.show_schema),
    ):
        app.add_route(path, handler, methods=[method])
    rules = ApiRules(service.limits, token)
    return Guard(
        app, limits=limits, hosts=hosts, rules=rules, connections=service.connections, observe=service.count_response
    )


async def _answer_error(request: "HttpRequest", error: Exception) -> "Response":
    return respond_error(error)


async def _answer_unknown(request: "HttpRequest", error: Exception) -> "Response":
    status = getattr(error, "status_code", 404)
    reason = "there is nothing at this address" if status == 404 else f"{request.method} is not offered at this address"
    return respond_error(RequestRejected(status, f"{reason}; {DOCS_PATH} lists all addresses"))
