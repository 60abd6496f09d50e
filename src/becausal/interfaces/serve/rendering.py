"""HTML fragments from jinja2 templates, and the page's CSS and JavaScript, all read from this package."""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from becausal.render.wording import format_confidence, format_share

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = "becausal.interfaces.serve"
NBSP = "\N{NO-BREAK SPACE}"


def render(template: str, **values: Any) -> str:
    """Render `templates/<template>.html`; all values are escaped, and an undefined name is an error."""
    return _environment().get_template(f"{template}.html").render(values)


@cache
def read_static(name: str) -> str:
    """The text of a file in `static/`."""
    return (files(PACKAGE) / "static" / name).read_text(encoding="utf-8")


def format_share_nbsp(share: float) -> str:
    """A share in per cent, without a line break before the sign."""
    return format_share(share).replace(" ", NBSP)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": format_share_nbsp, "confidence": format_confidence}
    return environment
