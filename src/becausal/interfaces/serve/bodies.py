"""Bodies of requests: JSON or a form with a file, read into images and a `Request`, with the field's name in messages.

A body is data: a field that would make the server read a file or use more than its limits is refused. The dataclasses are
the schema of the bodies, for reading and for the description of the API; `Annotated` adds what a type does not say.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, NoReturn, get_type_hints

from becausal.api.explanation import FILES
from becausal.core.errors import OptionError
from becausal.core.options import Option, list_options, option
from becausal.core.request import Request
from becausal.core.schema import check_depth, read_fields, read_text
from becausal.core.text import one_line
from becausal.images.fills import FILLS
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.images import Upload, clean_name
from becausal.interfaces.serve.limits import Limits
from becausal.methods import make_explainer

JSON_TYPE, FORM_TYPE = "application/json", "multipart/form-data"
MAX_PARTS = 100  # of a form
MAX_CHARACTERS = 200  # of a text in a request
INCLUDABLE = tuple(name for name in FILES if name != "explanation.json")
FILE_FILL = "image:"


@dataclass(frozen=True, kw_only=True)
class ExplainBody:
    """The JSON body of POST /v1/explain."""

    image: Annotated[str, {"contentEncoding": "base64"}] = option(MISSING, "The image file in base64.")
    request: Annotated[Mapping[str, Any], {"$ref": "#/components/schemas/Request"}] = field(
        default_factory=dict, metadata={"option": Option("What is asked of the explanation.")}
    )
    name: str = option("image", "The name of the image in the answer.")
    model: str | None = option(None, "A name from /v1/models. Default: the first one.")
    include: Annotated[tuple[str, ...], {"items": {"enum": list(INCLUDABLE)}}] = option(
        (), "Files to send along, in base64."
    )
    wait: float = option(60.0, "Seconds to wait for the result; then the answer is 202 with the address of the job.")


def read_explain(content_type: str, body: bytes, limits: Limits) -> tuple[Upload, Request, ExplainBody]:
    """The image, what is asked, and the rest of a body of POST /v1/explain. Raises RequestRejected or OptionError."""
    if check_type(content_type, JSON_TYPE, FORM_TYPE) == JSON_TYPE:
        given = ExplainBody(**read_fields(ExplainBody, parse_json(body)))
        if len(given.image) > -(-limits.upload_bytes * 4 // 3) + 4:
            raise RequestRejected(413, f"image is too large: the limit is {limits.upload_bytes / 1e6:.3g} MB")
        try:
            data = b64decode(given.image, validate=True)
        except ValueError:
            raise RequestRejected(400, "image is not valid base64") from None
        values = read_fields(Request, given.request, "request")
    else:
        given, data, values = read_form(content_type, body)
    if not 0 <= given.wait <= limits.seconds:
        raise OptionError(f"wait is {given.wait:g}, expected 0 to {limits.seconds:g} seconds")
    upload, request = make_upload(given.name, data, limits), check_request(Request(**values), limits)
    for name in given.include:
        if name not in INCLUDABLE:
            raise OptionError(f"include has {one_line(name, 40)!r}, expected {', '.join(INCLUDABLE)}")
    return upload, request, given


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


def make_upload(name: str, data: bytes, limits: Limits) -> Upload:
    """An image file that is not decoded yet. Raises RequestRejected if it is empty or too large."""
    upload = Upload(clean_name(name), data)
    if not data:
        raise RequestRejected(400, f"{upload.name} is empty")
    if len(data) > limits.upload_bytes:
        raise RequestRejected(413, f"{upload.name} is too large: the limit is {limits.upload_bytes / 1e6:.3g} MB")
    return upload


def check_request(request: Request, limits: Limits) -> Request:
    """The same request. Raises OptionError for one that reads files or exceeds the limits of the server."""
    # Options of a method decide how much memory it takes, so that none may be beyond the number of calls.
    pending: list[tuple[str, Any, bool]] = [(name, value, name == "options") for name, value in request.record().items()]
    while pending:
        where, value, is_option = pending.pop()
        if isinstance(value, str) and len(value) > MAX_CHARACTERS:
            raise OptionError(f"{where} has {len(value)} characters, expected at most {MAX_CHARACTERS}")
        if isinstance(value, Mapping):
            pending += [(f"{where}.{one_line(key, 40)}", inner, is_option) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [(where, inner, is_option) for inner in value]
        elif is_option and _as_number(value) > limits.max_calls:
            raise OptionError(f"{where} is {one_line(value, 40)}, expected at most {limits.max_calls} on this server")
    if any(fill.lower().startswith(FILE_FILL) for fill in request.fills):
        raise OptionError(f"a fill {FILE_FILL}FILE is not allowed: the server reads no files for clients")
    if request.backgrounds is not None:
        raise OptionError("backgrounds from a folder are not allowed: the server reads no files for clients")
    if len(request.fills) > len(FILLS):
        raise OptionError(f"fills has {len(request.fills)} fills, expected at most {len(FILLS)}")
    if request.max_calls is not None and request.max_calls > limits.max_calls:
        raise OptionError(f"max_calls is {request.max_calls}, expected at most {limits.max_calls} on this server")
    if isinstance(request.method, str):
        make_explainer(request.method, request.options)
    return request


def _as_number(value: Any) -> float:
    """The size of a number, also of one written as text; 0 for anything else."""
    try:
        return abs(float(value)) if isinstance(value, (int, float, str)) else 0.0
    except (ValueError, OverflowError):
        return float("inf") if isinstance(value, int) else 0.0


# ---------------------------------------------------------------- forms


def read_form(content_type: str, body: bytes) -> tuple[ExplainBody, bytes, dict[str, Any]]:
    """The body, the image file and the fields of the request in a form. Raises RequestRejected or OptionError."""
    texts, files = parse_form(content_type, body)
    if set(files) != {"image"}:
        wrong = next((name for name in files if name != "image"), None)
        problem = "has no file" if wrong is None else f"has a file {one_line(wrong, 40)!r}, expected one"
        raise RequestRejected(400, f"the form {problem} named image, e.g. curl -F image=@photo.jpg")
    name, data = files["image"]
    own: dict[str, Any] = {"image": "", "name": name, "include": texts.pop("include", [])}
    for key in ("name", "model", "wait"):
        if key in texts:
            own[key] = read_one(key, texts.pop(key))
    if "wait" in own:
        own["wait"] = read_text(own["wait"], float, "wait")
    values: dict[str, Any] = {}
    if "request" in texts:
        values = read_fields(Request, parse_json(read_one("request", texts.pop("request")), "request"), "request")
    values |= read_fields(Request, {key: read_texts(key, found) for key, found in texts.items()})
    return ExplainBody(**read_fields(ExplainBody, own)), data, values


def parse_form(content_type: str, body: bytes) -> tuple[dict[str, list[str]], dict[str, tuple[str, bytes]]]:
    """The texts and the files (name, content) of a form, by field; nothing is written to disk. Raises RequestRejected."""
    from python_multipart.multipart import File, FormParser, parse_options_header

    parts: list[Any] = []

    def add(part: Any) -> None:
        parts.append(part)
        if len(parts) > MAX_PARTS:
            raise RequestRejected(400, f"the form has more than {MAX_PARTS} fields")

    def decode(value: bytes | None) -> str:
        return (value or b"").decode("utf-8", errors="replace")

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise RequestRejected(400, f"the Content-Type {FORM_TYPE} has no boundary")
    try:
        parser = FormParser(FORM_TYPE, add, add, boundary=boundary, config={"MAX_MEMORY_FILE_SIZE": len(body) + 1})
        parser.write(body)
        parser.finalize()
    except ValueError as error:  # FormParserError is one
        raise RequestRejected(400, f"the form cannot be read: {one_line(error, 120)}") from None
    texts: dict[str, list[str]] = {}
    files: dict[str, tuple[str, bytes]] = {}
    for part in parts:
        if isinstance(part, File):
            part.file_object.seek(0)
            files[decode(part.field_name)] = (decode(part.file_name), part.file_object.read())
        else:
            texts.setdefault(decode(part.field_name), []).append(decode(part.value))
    return texts, files


def read_texts(name: str, texts: list[str]) -> Any:
    """The value of a field of `Request` from texts, as on the command line. Raises OptionError."""
    option = {each.name: each for each in list_options(Request)}.get(name)
    if option is None:
        return texts  # refused later, as an unknown field
    if option.parse is not None:
        return option.parse(texts if option.takes_many else read_one(name, texts))
    text = read_one(name, texts)
    return text if str in option.types else read_text(text, get_type_hints(Request)[name], name)


def read_one(name: str, texts: list[str]) -> str:
    """The text of a field that may be given once."""
    if len(texts) > 1:
        raise OptionError(f"the form has the field {one_line(name, 40)} {len(texts)} times, expected once")
    return texts[0]
