"""Libraries that some test files need."""

from importlib.util import find_spec

import pytest


def need(*names: str) -> None:
    """Skip the file unless these are installed; unlike importorskip, import nothing: each process collects all files."""
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'becausal[dev]'", allow_module_level=True)
