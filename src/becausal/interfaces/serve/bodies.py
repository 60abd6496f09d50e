"""Bodies of requests: JSON or a form with a file, read into images and a `Request`, with the field's name in messages.

A body is data: a field that would make the server read a file or use more than its limits is refused.
"""

import json
import math
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from becausal.api.explanation import FILES
from becausal.core.errors import OptionError
from becausal.core.request import Request
from becausal.core.schema import check_depth, read_fields
from becausal.core.text import one_line
from becausal.images.fills import FILLS
from becausal.interfaces.serve.forms import FORM_TYPE, parse_form, read_one, read_texts
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.images import Upload, clean_name
from becausal.interfaces.serve.limits import Limits
from becausal.methods import make_explainer

JSON_TYPE = "application/json"
DEFAULT_WAIT = 60.0  # seconds until a client gets the address of a job instead of its result
MAX_INSTANCES = 16
MAX_CHARACTERS = 200  # of a text in a request
MAX_FILLS = len(FILLS)
INCLUDABLE = tuple(name for name in FILES if name != "explanation.json")
FILE_FILL = "image:"


@dataclass(frozen=True, kw_only=True)
class ExplainBody:
    """The JSON body of POST /v1/explain; see `schema` for what the fields mean."""

    image: str
    name: str = "image"
    model: str | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    wait: float = DEFAULT_WAIT


@dataclass(frozen=True, kw_only=True)
class BinaryValue:
    """Bytes in a JSON body, as KServe and TensorFlow Serving write them."""

    b64: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One image of a KServe request."""

    image: BinaryValue
    name: str = "image"


@dataclass(frozen=True, kw_only=True)
class InstancesBody:
    """The body of POST /v1/models/NAME:explain."""

    instances: tuple[Any, ...]
    request: Mapping[str, Any] = field(default_factory=dict)
    include: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a client wants to have explained. model: None for the default one. wait: seconds for the result."""

    uploads: tuple[Upload, ...]
    model: str | None
    request: Request
    include: tuple[str, ...]
    wait: float


def read_explain(content_type: str, body: bytes, limits: Limits) -> Order:
    """The order in a body of POST /v1/explain. Raises RequestRejected or OptionError."""
    kind = check_type(content_type, JSON_TYPE, FORM_TYPE)
    if kind == JSON_TYPE:
        given = ExplainBody(**read_fields(ExplainBody, parse_json(body)))
        data = decode_base64(given.image, "image", limits)
        values = read_fields(Request, given.request, "request")
    else:
        given, data, values = read_form(content_type, body)
    if not 0 <= given.wait <= limits.seconds:
        raise OptionError(f"wait is {given.wait:g}, expected 0 to {limits.seconds:g} seconds")
    return Order(
        uploads=(make_upload(given.name, data, limits),),
        model=given.model,
        request=check_request(Request(**values), limits),
        include=check_include(given.include),
        wait=given.wait,
    )


def read_instances(content_type: str, body: bytes, model: str, limits: Limits) -> Order:
    """The order in a body of POST /v1/models/NAME:explain. Raises RequestRejected or OptionError."""
    check_type(content_type, JSON_TYPE)
    given = InstancesBody(**read_fields(InstancesBody, parse_json(body)))
    if not 1 <= len(given.instances) <= MAX_INSTANCES:
        raise OptionError(f"instances has {len(given.instances)} images, expected 1 to {MAX_INSTANCES}")
    uploads = []
    for number, value in enumerate(given.instances):
        where = f"instances[{number}]"
        if isinstance(value, Mapping) and "b64" in value:
            value = {"image": value}
        instance = Instance(**read_fields(Instance, value, where))
        uploads.append(make_upload(instance.name, decode_base64(instance.image.b64, where, limits), limits))
    return Order(
        uploads=tuple(uploads),
        model=model,
        request=check_request(Request(**read_fields(Request, given.request, "request")), limits),
        include=check_include(given.include),
        wait=math.inf,
    )


def check_type(content_type: str, *expected: str) -> str:
    """The content type without its parameters. Raises RequestRejected for one that is not read."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in expected:
        raise RequestRejected(
            415, f"the Content-Type is {one_line(kind, 60) or 'missing'}, expected {' or '.join(expected)}"
        )
    return kind


def parse_json(text: bytes | str, where: str = "the body") -> dict[str, Any]:
    """The object in a JSON text. Raises RequestRejected or OptionError."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        found = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RequestRejected(400, f"{where} is not valid JSON: {one_line(error, 120)}") from None
    if not isinstance(found, dict):
        raise RequestRejected(400, f"{where} is not a JSON object")
    check_depth(found)
    return found


def decode_base64(text: str, where: str, limits: Limits) -> bytes:
    """The bytes of an image. Raises RequestRejected where they are not base64, or too many."""
    if len(text) > -(-limits.upload_bytes * 4 // 3) + 4:
        raise RequestRejected(413, f"{where} is too large: the limit is {limits.upload_bytes / 1e6:.3g} MB")
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise RequestRejected(400, f"{where} is not valid base64") from None


def make_upload(name: str, data: bytes, limits: Limits) -> Upload:
    """An image file that is not decoded yet. Raises RequestRejected if it is empty or too large."""
    upload = Upload(clean_name(name), data)
    if not data:
        raise RequestRejected(400, f"{upload.name} is empty")
    if len(data) > limits.upload_bytes:
        raise RequestRejected(413, f"{upload.name} is too large: the limit is {limits.upload_bytes / 1e6:.3g} MB")
    return upload


def check_include(names: tuple[str, ...]) -> tuple[str, ...]:
    """The files to send along, each once. Raises OptionError for a name that is not offered."""
    for name in names:
        if name not in INCLUDABLE:
            raise OptionError(f"include has {one_line(name, 40)!r}, expected {', '.join(INCLUDABLE)}")
    return tuple(dict.fromkeys(names))


def check_request(request: Request, limits: Limits) -> Request:
    """The same request. Raises OptionError for one that reads files or exceeds the limits of the server."""
    _check_values(request.record(), limits)
    if any(fill.lower().startswith(FILE_FILL) for fill in request.fills):
        raise OptionError(f"a fill {FILE_FILL}FILE is not allowed: the server reads no files for clients")
    if request.backgrounds is not None:
        raise OptionError("backgrounds from a folder are not allowed: the server reads no files for clients")
    if len(request.fills) > MAX_FILLS:
        raise OptionError(f"fills has {len(request.fills)} fills, expected at most {MAX_FILLS}")
    if request.max_calls is not None and request.max_calls > limits.max_calls:
        raise OptionError(f"max_calls is {request.max_calls}, expected at most {limits.max_calls} on this server")
    if isinstance(request.method, str):
        make_explainer(request.method, request.options)
    return request


def _check_values(record: Mapping[str, Any], limits: Limits) -> None:
    """Raise OptionError for long texts, and for options of a method that are beyond the number of calls."""
    pending: list[tuple[str, Any, bool]] = [(name, value, name == "options") for name, value in record.items()]
    while pending:
        where, value, is_option = pending.pop()
        if isinstance(value, str) and len(value) > MAX_CHARACTERS:
            raise OptionError(f"{where} has {len(value)} characters, expected at most {MAX_CHARACTERS}")
        if isinstance(value, Mapping):
            pending += [(f"{where}.{one_line(key, 40)}", inner, is_option) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [(where, inner, is_option) for inner in value]
        elif is_option and _as_number(value) > limits.max_calls:  # they decide how much memory a method takes
            raise OptionError(f"{where} is {one_line(value, 40)}, expected at most {limits.max_calls} on this server")


def _as_number(value: Any) -> float:
    """The size of a number, also of one written as text; 0 for anything else."""
    try:
        return abs(float(value)) if isinstance(value, (int, float, str)) else 0.0
    except (ValueError, OverflowError):
        return float("inf") if isinstance(value, int) else 0.0


def read_form(content_type: str, body: bytes) -> tuple[ExplainBody, bytes, dict[str, Any]]:
    """The body, the image file and the fields of the request in a form. Raises RequestRejected or OptionError."""
    texts, files = parse_form(content_type, body)
    if set(files) != {"image"}:
        wrong = next((name for name in files if name != "image"), None)
        problem = "has no file" if wrong is None else f"has a file {one_line(wrong, 40)!r}, expected one"
        raise RequestRejected(400, f"the form {problem} named image, e.g. curl -F image=@photo.jpg")
    name, data = files["image"]
    own: dict[str, Any] = {"image": "", "name": name}
    for key in ("name", "model", "wait"):
        if key in texts:
            own[key] = read_one(key, texts.pop(key), as_json=key == "wait")
    own["include"] = texts.pop("include", [])
    values: dict[str, Any] = {}
    if "request" in texts:
        values = read_fields(Request, parse_json(read_one("request", texts.pop("request")), "request"), "request")
    values |= read_fields(Request, {key: read_texts(key, found) for key, found in texts.items()})
    return ExplainBody(**read_fields(ExplainBody, own)), data, values
