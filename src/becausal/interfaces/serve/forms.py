"""Forms with files (multipart/form-data), and the fields of a `Request` in them, written as on the command line."""

import json
from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from becausal.core.errors import OptionError
from becausal.core.request import Request
from becausal.core.text import one_line
from becausal.interfaces.serve.guard import RequestRejected

FORM_TYPE = "multipart/form-data"
MAX_PARTS = 100


def parse_form(content_type: str, body: bytes) -> tuple[dict[str, list[str]], dict[str, tuple[str, bytes]]]:
    """The texts and the files (name, content) of a form, by field; nothing is written to disk. Raises RequestRejected."""
    from python_multipart.multipart import FormParser, parse_options_header

    texts: dict[str, list[str]] = {}
    files: dict[str, tuple[str, bytes]] = {}

    def decode(value: bytes | None) -> str:
        return (value or b"").decode("utf-8", errors="replace")

    def add_text(part: Any) -> None:
        texts.setdefault(decode(part.field_name), []).append(decode(part.value))
        check_count()

    def add_file(part: Any) -> None:
        part.file_object.seek(0)
        files[decode(part.field_name)] = (decode(part.file_name), part.file_object.read())
        check_count()

    def check_count() -> None:
        if len(files) + sum(map(len, texts.values())) > MAX_PARTS:
            raise RequestRejected(400, f"the form has more than {MAX_PARTS} fields")

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise RequestRejected(400, f"the Content-Type {FORM_TYPE} has no boundary")
    try:
        parser = FormParser(FORM_TYPE, add_text, add_file, boundary=boundary, config={"MAX_MEMORY_FILE_SIZE": len(body) + 1})
        parser.write(body)
        parser.finalize()
    except ValueError as error:  # FormParserError is one
        raise RequestRejected(400, f"the form cannot be read: {one_line(error, 120)}") from None
    return texts, files


def read_texts(name: str, texts: list[str]) -> Any:
    """The value of a field of `Request` from texts, as on the command line. Raises OptionError."""
    described = {f.name: f for f in fields(Request)}.get(name)
    if described is None:
        return texts  # refused later, as an unknown field
    hint = get_type_hints(Request)[name]
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    parse = described.metadata["option"].parse
    if any(isinstance(get_origin(part), type) for part in parts):  # a list or a mapping
        return parse(texts) if parse is not None else texts
    if parse is not None:
        return parse(read_one(name, texts))
    return read_one(name, texts, as_json=str not in parts)


def read_one(name: str, texts: list[str], *, as_json: bool = False) -> Any:
    """The text of a field that may be given once, or the JSON value in it."""
    if len(texts) > 1:
        raise OptionError(f"the form has the field {one_line(name, 40)} {len(texts)} times, expected once")
    if not as_json:
        return texts[0]
    try:
        return json.loads(texts[0])
    except (ValueError, RecursionError):
        return texts[0]  # refused later, with the type that is expected
