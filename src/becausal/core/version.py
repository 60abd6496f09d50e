"""The versions of the package and of everything that may influence an answer."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


@cache
def _versions() -> dict[str, str]:
    found = {"becausal": __version__, "python": platform.python_version()}
    for name in ("numpy", "pillow", "onnxruntime", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def versions() -> dict[str, str]:
    """The versions of everything that may influence an answer."""
    return dict(_versions())
