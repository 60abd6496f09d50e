"""Exports a run as a folder that FiftyOne loads as a `FiftyOneDataset`: one sample per explanation.

The form is FiftyOne's plain one, without the documents of its database: `samples.json`, `metadata.json` without a version,
and images below `fields/`. `filepath` is the original image, which is not copied.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.api.explanation import Explanation
from becausal.batch.index import IndexRow, corners_of
from becausal.batch.reading import BatchRun
from becausal.batch.settings import DIRECTORY
from becausal.core.errors import BecausalError, OptionError, OutputError
from becausal.core.files import path_inside, write_file
from becausal.images.loading import encode_png

#: Columns that become fields, besides those about random backgrounds.
_KEPT = ("level", "core_size", "against_size", "against_gain", "sufficient", "necessary", "inside", "calls", "stopped_by",
         "note", "truth")  # fmt: skip
_MASK, _MAP, _CORE, _AGAINST = "explanation", "heat_map", "core", "against"  # fields with an image file


def write_fiftyone(run: BatchRun, folder: Path) -> int:
    """Write the folder; returns the number of samples. Explanations that cannot be read are noted in `run.unreadable`.

    Raises OutputError where it holds other files, OptionError for runs over signals or volumes.
    """
    _make_folders(folder)
    samples: list[dict[str, Any]] = []
    others = 0
    for row in run.rows("state = 'done'"):
        try:
            explanation = run.load(row["id"])
        except BecausalError as error:
            run.skip(row["id"], error)
            continue
        if explanation.visible.ndim != 2:
            others += 1
            continue
        masks = {_MASK: explanation.visible}
        masks |= {_CORE: explanation.levels[0].visible} if len(explanation.levels) > 1 else {}
        masks |= {} if explanation.against is None else {_AGAINST: explanation.against.visible}
        samples.append(_describe(row, explanation, run.settings.get(DIRECTORY), list(masks)))
        pictures = {field: explanation.on_original(mask) * np.uint8(255) for field, mask in masks.items()}
        pictures[_MAP] = _as_grey(explanation.on_original(explanation.responsibility))
        for field, pixels in pictures.items():
            write_file(path_inside(folder, _file_of(field, row)), encode_png(pixels))
    if others and not samples:
        raise OptionError("the format fiftyone is for images only: export signals and volumes as csv or parquet")
    info = {"description": "explanations by becausal", "run": run.settings}
    _write_json(path_inside(folder, "metadata.json"), {"media_type": "image", "info": info})
    _write_json(path_inside(folder, "samples.json"), {"samples": samples})
    return len(samples)


def _make_folders(folder: Path) -> None:
    """Make the folder; an earlier export may be there."""
    try:
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "samples.json").is_file():
            raise OutputError(f"{folder} has other files: give a new folder")
        for field in (_MASK, _MAP, _CORE, _AGAINST):
            (folder / "fields" / field).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error


def _describe(row: IndexRow, explanation: Explanation, directory: str | None, masks: list[str]) -> dict[str, Any]:
    """A sample: the image, what the model says of it, the masks, and columns of the index.

    directory: where paths of images that are not absolute start. masks: the fields of the sets that it has.
    """
    said = {"label": row["label"], "confidence": row["confidence"]}
    prediction: dict[str, Any] = {"_cls": "Classification", **said}
    if (corners := corners_of(row)) is not None:
        h, w = explanation.frame.original[:2]
        left, top, right, bottom = corners
        box = [left / w, top / h, (right - left) / w, (bottom - top) / h]
        prediction = {"_cls": "Detections", "detections": [{"_cls": "Detection", **said, "bounding_box": box}]}
    return {
        "filepath": os.path.abspath(os.path.join(directory or "", row["image"])),
        "tags": [],
        "prediction": prediction,
        **{field: {"_cls": "Segmentation", "mask_path": _file_of(field, row)} for field in masks},
        _MAP: {"_cls": "Heatmap", "map_path": _file_of(_MAP, row), "range": [0, 255]},
        "share": row["size"],
        **{name: value for name, value in row.items() if value is not None and (name in _KEPT or "backgrounds" in name)},
    }


def _file_of(field: str, row: IndexRow) -> str:
    """The path of a field's image inside the folder."""
    return f"fields/{field}/{row['id']:06d}.png"


def _as_grey(values: NDArray[Any]) -> NDArray[np.uint8]:
    """A map as grey values, 255 for its largest value; what speaks against the label is 0."""
    top = max(float(values.max()), np.finfo(float).tiny)
    grey: NDArray[np.uint8] = np.round(np.clip(values / top, 0.0, 1.0) * 255).astype(np.uint8)
    return grey


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_file(path, (json.dumps(content, allow_nan=False) + "\n").encode("utf-8"))
