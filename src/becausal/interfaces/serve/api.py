"""The HTTP API: what its routes do, and its description as OpenAPI and as a page.

`static/openapi.json` has the addresses and the answers; bodies and the fields of a `Request` follow from their dataclasses,
described as on the command line.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from becausal.core.request import Request
from becausal.core.version import __version__
from becausal.images.fills import with_fills
from becausal.interfaces.serve import bodies
from becausal.interfaces.serve.jobs import BackgroundJob
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.rendering import read_static, render
from becausal.interfaces.serve.service import Service, find_status, read_body, respond
from becausal.interfaces.serve.tasks import ExplainTask

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

Schema = dict[str, Any]

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}


class Api:
    """Every public coroutine answers one route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._document = make_openapi(service.limits)
        self._page = render("docs", document=self._document)

    async def explain(self, request: "HttpRequest") -> "Response":
        """POST /v1/explain."""
        service = self._service
        body = await read_body(request)
        upload, asked, given = bodies.read_explain(request.headers.get("content-type", ""), body, service.limits)
        classifier, model, wait = service.find_model(given.model), given.model, given.wait
        await service.check_upload(request, upload)
        job = service.submit(ExplainTask(upload, classifier, asked, service.limits, given.include), model)
        del body, upload, given  # a few megabytes, while the job is waited for
        wishes = ",".join(request.headers.getlist("prefer")).split(",")  # RFC 7240
        is_waited_for = all(wish.partition(";")[0].strip().lower() != "respond-async" for wish in wishes)
        if is_waited_for and await service.queue.wait(job, wait, service.connections, request.is_disconnected):
            if job.result is None:
                return respond({"error": job.error}, find_status(job.failure))
            return respond(job.result.data)
        name = service.queue.keep(job)  # its address is sent, even if it has ended already
        return respond(describe_job(name, job), 202, location=f"/v1/jobs/{name}")

    async def show_job(self, request: "HttpRequest") -> "Response":
        """GET /v1/jobs/ID: the state of a job, with its result once it is done."""
        name = request.path_params["id"]
        job = self._service.queue.find(name)
        found = describe_job(name, job)
        text = json.dumps(found).encode("utf-8")
        if found["state"] == "done" and job.result is not None:
            text = text[:-1] + b', "result": ' + job.result.data + b"}"
        return respond(text)

    async def stop_job(self, request: "HttpRequest") -> "Response":
        """DELETE /v1/jobs/ID."""
        name = request.path_params["id"]
        job = self._service.queue.stop(name)
        return respond(describe_job(name, job), 200 if job.ended.is_set() else 202)

    async def list_models(self, request: "HttpRequest") -> "Response":
        """GET /v1/models."""
        return respond({"models": list(self._service.models)})

    async def show_health(self, request: "HttpRequest") -> "Response":
        """GET /healthz."""
        return respond({"status": "ok"})

    async def show_metrics(self, request: "HttpRequest") -> "Response":
        """GET /metrics."""
        text, media_type = self._service.metrics.render()
        return respond(text, media_type=media_type)

    async def show_docs(self, request: "HttpRequest") -> "Response":
        """GET /docs."""
        return respond(self._page, media_type="text/html")

    async def show_schema(self, request: "HttpRequest") -> "Response":
        """GET /openapi.json."""
        return respond(self._document)


def describe_job(name: str, job: BackgroundJob) -> dict[str, Any]:
    """The state and progress of a job as JSON can hold it, without its result."""
    progress = job.progress
    found: dict[str, Any] = {"id": name, "state": "queued" if job.state == "waiting" else job.state, "calls": progress.calls}
    if job.state == "waiting":
        found["ahead"] = job.ahead
    if progress.status is not None and job.state == "running":
        found |= {"stage": progress.status.stage, "size": progress.status.size, "max_calls": progress.status.max_calls}
    if job.state == "failed":
        found["error"] = job.error
    return found


# ---------------------------------------------------------------- the description


def make_openapi(limits: Limits) -> Schema:
    """The OpenAPI document of the API; it names no models, so that it can be read without a token."""
    document: Schema = json.loads(read_static("openapi.json"))
    document["info"]["version"] = __version__
    asked, explain = describe_record(Request), describe_record(bodies.ExplainBody)
    explain["properties"]["wait"]["maximum"] = limits.seconds
    form = explain["properties"] | {
        "image": {"type": "string", "format": "binary", "description": "The image file."},
        "request": {"type": "string", "description": "The fields below as JSON."},
    }
    document["components"]["schemas"] = {"Request": asked} | document["components"]["schemas"]
    content = {
        bodies.JSON_TYPE: {"schema": explain},
        bodies.FORM_TYPE: {"schema": explain | {"properties": form | asked["properties"]}},
    }
    document["paths"]["/v1/explain"]["post"]["requestBody"] = {"required": True, "content": content}
    return document


def describe_record(record: type) -> Schema:
    """A dataclass whose fields are options as a JSON schema."""
    hints = get_type_hints(record, include_extras=True)
    properties: Schema = {}
    required = []
    for item in fields(record):
        properties[item.name] = dict(type_schema(hints[item.name]) or {})
        if text := item.metadata["option"].help:
            properties[item.name]["description"] = with_fills(text)
        if item.default is not MISSING:
            properties[item.name]["default"] = list(item.default) if isinstance(item.default, tuple) else item.default
        elif item.default_factory is MISSING:
            required.append(item.name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def type_schema(hint: Any) -> Schema | None:
    """The JSON schema of a type; None for one that JSON cannot hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [part for part in map(type_schema, arguments) if part is not None]
        return {"anyOf": parts} if len(parts) > 1 else parts[0]
    if origin is Annotated:
        return {**(type_schema(arguments[0]) or {}), **arguments[1]}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if is_dataclass(hint) and isinstance(hint, type):
        return describe_record(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": type_schema(arguments[0]) or {}}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    return None
