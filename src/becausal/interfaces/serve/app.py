"""The server as an ASGI app: the routes of the API and of the page, behind the guard."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, MissingExtraError
from becausal.interfaces.serve import addresses
from becausal.interfaces.serve.api import Api
from becausal.interfaces.serve.guard import Guard, RequestRejected
from becausal.interfaces.serve.job_processes import ModelSource
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.listening import LOOPBACK
from becausal.interfaces.serve.page import Page
from becausal.interfaces.serve.responses import respond_error
from becausal.interfaces.serve.service import Service

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response
    from starlette.routing import Route

LIBRARIES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")


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

    service = Service(models, limits, sources)
    handlers = {
        RequestRejected: _answer_error,
        BecausalError: _answer_error,
        404: _answer_unknown,
        405: _answer_unknown,
        500: _answer_error,
    }
    routes = [*_list_api_routes(Api(service)), *(_list_page_routes(Page(service)) if has_page else ())]
    app = Starlette(routes=routes, lifespan=service.run, exception_handlers=handlers)
    return Guard(
        app,
        limits=limits,
        hosts=hosts,
        token=token,
        has_page=has_page,
        connections=service.connections,
        observe=service.count_response,
    )


def _list_api_routes(api: Api) -> "list[Route]":
    from starlette.routing import Route

    job, model = f"{addresses.JOBS_PATH}/{{id}}", f"{addresses.MODELS_PATH}/{{name:path}}"
    return [
        Route(addresses.EXPLAIN_PATH, api.explain, methods=["POST"]),
        Route(job, api.show_job, methods=["GET"]),
        Route(job, api.stop_job, methods=["DELETE"]),
        Route(addresses.MODELS_PATH, api.list_models, methods=["GET"]),
        Route(model, api.show_model, methods=["GET"]),
        Route(model, api.explain_instances, methods=["POST"]),
        Route(addresses.HEALTH_PATH, api.show_health, methods=["GET"]),
        Route(addresses.METRICS_PATH, api.show_metrics, methods=["GET"]),
        Route(addresses.DOCS_PATH, api.show_docs, methods=["GET"]),
        Route(addresses.SCHEMA_PATH, api.show_schema, methods=["GET"]),
    ]


def _list_page_routes(page: Page) -> "list[Route]":
    from starlette.routing import Route

    search = f"{addresses.SEARCHES_PATH}/{{id}}"
    return [
        Route(addresses.PAGE_PATH, page.show, methods=["GET"]),
        Route(f"{addresses.STATIC_PATH}/{{name}}", page.show_static, methods=["GET"]),
        Route(addresses.LABELS_PATH, page.show_labels, methods=["POST"]),
        Route(addresses.SEARCH_PATH, page.explain, methods=["POST"]),
        Route(addresses.COMPARE_PATH, page.compare, methods=["POST"]),
        Route(search, page.stop, methods=["DELETE"]),
        Route(f"{search}/events", page.watch, methods=["GET"]),
        Route(f"{search}/pixel", page.show_pixel, methods=["GET"]),
        Route(f"{search}/download", page.download, methods=["GET"]),
    ]


async def _answer_error(request: "HttpRequest", error: Exception) -> "Response":
    return respond_error(error)


async def _answer_unknown(request: "HttpRequest", error: Exception) -> "Response":
    status = getattr(error, "status_code", 404)
    reason = "there is nothing at this address" if status == 404 else f"{request.method} is not offered at this address"
    return respond_error(RequestRejected(status, f"{reason}; {addresses.DOCS_PATH} lists all addresses"))
