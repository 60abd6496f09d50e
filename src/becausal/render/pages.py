"""Self-contained HTML pages, rendered from the templates in this package."""

import json
import math
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from becausal.render.numbers import format_confidence, format_count, format_share

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, **context: Any) -> str:
    """Render a template of this package; every value is escaped and an undefined name is an error."""
    return _environment().get_template(template).render(context)


def data_uri(content: bytes, media_type: str = "image/png") -> str:
    """The content of a file as a URI that can be embedded in a page."""
    return f"data:{media_type};base64,{b64encode(content).decode('ascii')}"


def format_shape(shape: Iterable[int]) -> str:
    """224 × 224 × 3."""
    return " × ".join(str(side) for side in shape)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def format_value(value: Any) -> str:
        """A setting as text: dictionaries and lists as JSON, NaN as unknown."""
        if isinstance(value, (dict, list)):
            return json.dumps(value, ensure_ascii=False)
        return "unknown" if isinstance(value, float) and math.isnan(value) else str(value)

    @cache
    def read_static(name: str) -> Markup:
        """A CSS or JavaScript file of this package, to be embedded without escaping."""
        return Markup((files("becausal.render") / "static" / name).read_text(encoding="utf-8"))

    environment = Environment(
        loader=PackageLoader("becausal.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    environment.filters |= {
        "share": lambda share: format_share(share).replace(" ", "\N{NO-BREAK SPACE}"),
        "confidence": format_confidence,
        "plural": format_count,
        "number": lambda value: f"{value:,.0f}",
        "plain": format_value,
        "script_hash": lambda script: b64encode(sha256(script.encode()).digest()).decode("ascii"),
    }
    environment.globals["static"] = read_static
    return environment
