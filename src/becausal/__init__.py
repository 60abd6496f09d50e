"""becausal: ask an image classifier why.

import becausal
explanation = becausal.explain("picture.jpg", "model.onnx")
explanation.plot()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from becausal.api import (
        DetectedBox,
        Failure,
        Request,
        Status,
        classify,
        detect,
        explain,
        explain_boxes,
        explain_many,
        verify,
    )
    from becausal.api.explanation import Explanation
    from becausal.api.similar import similar
    from becausal.batch.check import check
    from becausal.core.checks import Checks, Claim
    from becausal.core.errors import BecausalError
    from becausal.core.version import __version__
    from becausal.models import load_model

__all__ = [
    "BecausalError",
    "Checks",
    "Claim",
    "DetectedBox",
    "Explanation",
    "Failure",
    "Request",
    "Status",
    "__version__",
    "check",
    "classify",
    "detect",
    "explain",
    "explain_boxes",
    "explain_many",
    "load_model",
    "similar",
    "verify",
]
_MODULES = {
    "BecausalError": "core.errors",
    "Checks": "core.checks",
    "Claim": "core.checks",
    "Explanation": "api.explanation",
    "__version__": "core.version",
    "check": "batch.check",
    "load_model": "models",
    "similar": "api.similar",
}

if not TYPE_CHECKING:  # a type checker would take any name, with this function

    def __getattr__(name: str) -> Any:
        """Import a public name, or a package, at its first use: the command line has to react to Ctrl-C before that."""
        if name in __all__:
            value = getattr(import_module(f"becausal.{_MODULES.get(name, 'api')}"), name)
        elif name.startswith("_"):
            raise AttributeError(f"module 'becausal' has no attribute {name!r}")
        else:
            try:
                value = import_module(f"becausal.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"becausal.{name}":
                    raise
                raise AttributeError(f"module 'becausal' has no attribute {name!r}") from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
