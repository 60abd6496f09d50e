"""The description of the API: an OpenAPI document, and a page made from it that loads nothing from elsewhere.

`static/openapi.json` has all of it but the fields of a `Request`, which are described as on the command line.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from becausal.core.request import Request
from becausal.core.version import __version__
from becausal.images.fills import with_fills
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.rendering import read_static, render

Schema = dict[str, Any]

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}


def make_openapi(limits: Limits) -> Schema:
    """The OpenAPI document of the API; it names no models, so that it can be read without a token."""
    document: Schema = json.loads(read_static("openapi.json"))
    document["info"]["version"] = __version__
    document["components"]["schemas"]["Request"]["properties"] = _request_fields()
    bodies = document["paths"]["/v1/explain"]["post"]["requestBody"]["content"]
    bodies["multipart/form-data"]["schema"]["properties"] |= _request_fields()
    for body in bodies.values():
        body["schema"]["properties"]["wait"]["maximum"] = limits.seconds
    return document


def render_docs(document: Schema) -> str:
    """The page of an OpenAPI document."""
    operations = [
        {"method": method.upper(), "path": path, "parameters": entry.get("parameters", []), **operation}
        for path, entry in document["paths"].items()
        for method, operation in entry.items()
        if method != "parameters"
    ]
    parts = document["components"]
    errors = {f"#/components/responses/{name}": answer for name, answer in parts["responses"].items()}
    schemas = {name: schema for name, schema in parts["schemas"].items() if "properties" in schema}
    return render(
        "docs", info=document["info"], operations=operations, errors=errors, schemas=schemas, describe=describe_type
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
