"""Libraries that some test files need."""

from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import pytest


def need(*names: str) -> None:
    """Skip the file unless these are installed; unlike importorskip, import nothing: each process collects all files."""
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f'{name} is not installed: pip install -e ".[dev]"', allow_module_level=True)


def import_torchvision() -> Any:
    """The real torchvision, or skip the test.

    The one on PyPI is built for CUDA. Beside a CPU build of torch it misses the operators that it declares, does not import,
    and makes transformers fail too, so it is not in the `dev` extra. Where it is installed beside such a build,
    with `--no-deps`, two operators are written here in Python; its modules, and the metadata of its weights, are its own.
    """
    torch = pytest.importorskip("torch")
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed: pip install --no-deps torchvision, of the release that fits torch")
    with suppress(RuntimeError):  # they are there already
        for name in ("nms", "qnms"):
            _OPERATORS.append(library := torch.library.Library("torchvision", "FRAGMENT"))
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    import torchvision

    if not torchvision.extension._has_ops():
        torchvision.ops.nms = torchvision.ops.boxes.nms = _suppress_overlaps
    return torchvision


_OPERATORS: list[Any] = []  # torch forgets them with these objects


def _suppress_overlaps(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    import torch
    from torchvision.ops import box_iou

    overlaps, kept = box_iou(boxes, boxes), list[int]()
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(overlaps[i, j] <= iou_threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)
