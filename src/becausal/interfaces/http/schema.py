"""The description of the API: an OpenAPI document, and a page made from it that loads nothing from elsewhere."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from becausal.core.request import Request
from becausal.core.version import __version__
from becausal.images.fills import with_fills
from becausal.interfaces.http.bodies import DEFAULT_WAIT, INCLUDABLE, JSON_TYPE, MAX_INSTANCES
from becausal.interfaces.http.forms import FORM_TYPE
from becausal.interfaces.http.rules import (
    DOCS_PATH,
    EXPLAIN_PATH,
    EXPLAIN_VERB,
    HEALTH_PATH,
    JOBS_PATH,
    METRICS_PATH,
    MODELS_PATH,
    OPEN_PATHS,
    SCHEMA_PATH,
)
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.rendering import render

Schema = dict[str, Any]

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
_ERRORS = {
    400: "The image or a field cannot be used.",
    404: "There is no such job or model.",
    413: "The image is too large.",
    415: "The Content-Type is not read.",
    429: "The queue is full; Retry-After says when to try again.",
    500: "The model failed.",
    502: "The model is on another server, which cannot be reached.",
    503: "The server is shutting down, or the job was stopped before a result was found.",
}
_SENT = (400, 413, 415, 429, 500, 502, 503)
_RECORD = {
    "type": "object",
    "description": "The explanation as in explanation.json of `becausal explain`, with `files` where some are included.",
}
_REQUEST, _JOB = {"$ref": "#/components/schemas/Request"}, {"$ref": "#/components/schemas/Job"}


def make_openapi(limits: Limits) -> Schema:
    """The OpenAPI document of the API; it names no models, so that it can be read without a token."""
    paths = _explain_paths(limits) | _job_paths() | _other_paths()
    for path in OPEN_PATHS:
        paths[path]["get"]["security"] = []
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "becausal",
            "version": __version__,
            "description": "Explains image classifiers: minimal sets of pixels that are enough for a label. "
            "Where the server needs a token, send the header Authorization: Bearer TOKEN.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Request": _object(_request_fields()), "Job": _job_schema()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _explain_paths(limits: Limits) -> dict[str, Schema]:
    """Explaining one image, and several in the shape of KServe."""
    image = {"type": "string", "contentEncoding": "base64", "description": "The image file in base64."}
    file = {"type": "string", "format": "binary", "description": "The image file."}
    include = _array({"enum": list(INCLUDABLE)}, "Files to send along, in base64.")
    wait = {"type": "number", "default": DEFAULT_WAIT, "maximum": limits.seconds}
    own = {
        "name": _text("The name of the image in the answer."),
        "model": _text(f"A name from {MODELS_PATH}. Default: the first one."),
        "include": include,
        "wait": wait
        | {"description": "Seconds to wait for the result; then the answer is 202 with the address of the job."},
    }
    form = {"image": file, "request": _text("The fields below as JSON."), **own, **_request_fields()}
    instance = _object({"image": _object({"b64": image}, ["b64"]), "name": own["name"]}, ["image"])
    instances = _array(instance, "The images.") | {"maxItems": MAX_INSTANCES}
    answers = {
        "predictions": _array(_text(""), "The top label of each image."),
        "explanations": _array(_RECORD, "The explanations, in the order of the images."),
    }
    return {
        EXPLAIN_PATH: {
            "post": _operation(
                "Explain an image.",
                {200: ("The explanation.", _RECORD), 202: ("The job; its address is in Location.", _JOB)},
                _SENT,
                {
                    JSON_TYPE: _object({"image": image, "request": _REQUEST, **own}, ["image"]),
                    FORM_TYPE: _object(form, ["image"]),
                },
                [_parameter("Prefer", "header", "respond-async to get the address of the job at once.")],
            )
        },
        f"{MODELS_PATH}/{{name}}{EXPLAIN_VERB}": {
            "parameters": [_parameter("name", "path", "The name of a model.")],
            "post": _operation(
                "Explain images (KServe V1).",
                {200: ("The explanations.", _object(answers))},
                (404, *_SENT),
                {JSON_TYPE: _object({"instances": instances, "request": _REQUEST, "include": include}, ["instances"])},
            ),
        },
    }


def _job_paths() -> dict[str, Schema]:
    stop = "Stop a job: a running one ends with the best result so far, any other is removed."
    return {
        f"{JOBS_PATH}/{{id}}": {
            "parameters": [_parameter("id", "path", "From the answer with status 202.")],
            "get": _operation(
                "The state of a job, and its result once it is done.", {200: ("The state of the job.", _JOB)}, (404,)
            ),
            "delete": _operation(stop, {200: ("The job is removed.", _JOB), 202: ("The job is stopping.", _JOB)}, (404,)),
        }
    }


def _other_paths() -> dict[str, Schema]:
    """Models, and the server itself."""
    ready = _object({"name": _text(""), "ready": {"type": "boolean"}})
    return {
        MODELS_PATH: {"get": _operation("The models.", {200: ("The names.", _object({"models": _array(_text(""))}))})},
        f"{MODELS_PATH}/{{name}}": {
            "parameters": [_parameter("name", "path", "The name of a model.")],
            "get": _operation("Whether a model is ready (KServe V1).", {200: ("It is.", ready)}, (404,)),
        },
        HEALTH_PATH: {"get": _operation("Whether the server runs.", {200: ("It does.", _object({"status": _text("")}))})},
        METRICS_PATH: {"get": _operation("Counts for Prometheus.", {200: ("Text.", None)})},
        DOCS_PATH: {"get": _operation("This description as a page.", {200: ("HTML.", None)})},
        SCHEMA_PATH: {"get": _operation("This description as OpenAPI.", {200: ("JSON.", {"type": "object"})})},
    }


def render_docs(document: Schema) -> str:
    """The page of an OpenAPI document."""
    operations = [
        {"method": method.upper(), "path": path, "parameters": entry.get("parameters", []), **operation}
        for path, entry in document["paths"].items()
        for method, operation in entry.items()
        if method != "parameters"
    ]
    schemas = document["components"]["schemas"]
    package = __name__.rpartition(".")[0]
    return render(
        "docs", package=package, info=document["info"], operations=operations, schemas=schemas, describe=describe_type
    )


def describe_type(schema: Mapping[str, Any]) -> str:
    """The type of a value in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(describe_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    return f"list of {describe_type(schema['items'])}" if kind == "array" else kind


def type_schema(hint: Any) -> Schema | None:
    """The JSON schema of a type; None for one that JSON cannot hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        parts = [part for part in map(type_schema, arguments) if part is not None]
        return {"anyOf": parts} if len(parts) > 1 else parts[0]
    if origin is tuple:
        return {"type": "array", "items": type_schema(arguments[0]) or {}}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    return None


def _request_fields() -> Schema:
    """The fields of `Request`, described as on the command line."""
    hints, found = get_type_hints(Request), {}
    for item in fields(Request):
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        option = item.metadata["option"]
        found[item.name] = {
            **(type_schema(hints[item.name]) or {}),
            "description": with_fills(option.help),
            "default": default,
        }
    return found


def _job_schema() -> Schema:
    return _object(
        {
            "id": _text("The id of the job."),
            "state": {"enum": ["queued", "running", "done", "failed"]},
            "calls": {"type": "integer", "description": "Model calls so far."},
            "max_calls": {"type": ["integer", "null"], "description": "The limit on them, if the request has one."},
            "ahead": {"type": "integer", "description": "Jobs before this one in the queue."},
            "stage": _text("What is being done: search, extract, minimise, backgrounds or verify."),
            "size": {"type": "number", "description": "Share of the view in the smallest sufficient set so far."},
            "error": _text("Why the job failed."),
            "result": _RECORD,
        }
    )


def _operation(
    summary: str,
    answers: Mapping[int, tuple[str, Schema | None]],
    errors: Iterable[int] = (),
    body: Mapping[str, Schema] | None = None,
    parameters: list[Schema] | None = None,
) -> Schema:
    found: Schema = {"summary": summary, "responses": {}}
    for status, (meaning, schema) in answers.items():
        content = {} if schema is None else {"content": {JSON_TYPE: {"schema": schema}}}
        found["responses"][str(status)] = {"description": meaning, **content}
    error = {JSON_TYPE: {"schema": _object({"error": _text("What is wrong, in one sentence.")})}}
    for status in sorted(errors):
        found["responses"][str(status)] = {"description": _ERRORS[status], "content": error}
    if body is not None:
        content = {media_type: {"schema": schema} for media_type, schema in body.items()}
        found["requestBody"] = {"required": True, "content": content}
    if parameters is not None:
        found["parameters"] = parameters
    return found


def _parameter(name: str, place: str, meaning: str) -> Schema:
    return {"name": name, "in": place, "required": place == "path", "description": meaning, "schema": {"type": "string"}}


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _array(items: Schema, meaning: str = "") -> Schema:
    return {"type": "array", "items": items, **({"description": meaning} if meaning else {})}


def _text(meaning: str) -> Schema:
    return {"type": "string", **({"description": meaning} if meaning else {})}
