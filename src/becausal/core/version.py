"""The versions of the package and of everything that may influence an answer."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


@cache
def versions() -> Mapping[str, str]:
    """The versions of everything that may influence an answer."""
    found = {"becausal": __version__, "python": platform.python_version()}
    for name in ("numpy", "pillow", "onnxruntime", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
