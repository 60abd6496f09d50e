"""The input images, from folders, patterns, lists, COCO files or named one by one, and their ground-truth boxes."""

import glob
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from becausal.core.contracts import Visible
from becausal.core.errors import InputError
from becausal.core.frames import Frame
from becausal.core.text import reason_of
from becausal.images.loading import ENDINGS, list_images

Box = tuple[float, float, float, float, str]  # left, top, width, height in pixels of the original; its category
NoteCode = Literal["label_without_box", "size_mismatch"]  # the latter: the boxes are for an image of another size


@dataclass(frozen=True)
class InputItem:
    """One input image: its path as given, and its ground-truth boxes."""

    image: str
    boxes: tuple[Box, ...] | None = None  # None where the input has no ground truth
    size: tuple[int, int] | None = None  # (width, height) of the image the boxes were drawn on, None if unknown


@dataclass(frozen=True)
class Inputs:
    """The images in order, and the names of all ground-truth categories, in lower case."""

    items: Sequence[InputItem]
    categories: frozenset[str] = frozenset()


def find_inputs(sources: Iterable[str]) -> Inputs:
    """The images of all sources, in order.

    A folder: all images in it, at any depth, sorted by name. A pattern, e.g. 'photos/*.png': the matching files, sorted by
    name. FILE.txt: one path per line, relative to the list's folder. FILE.json: a COCO file, `file_name` relative to its
    folder. Anything else is an image. Raises InputError for a source that does not exist or has no images.
    """
    items: list[InputItem] = []
    categories: set[str] = set()
    for source in sources:
        path, names = Path(source), set[str]()
        if path.is_dir():
            found = [InputItem(name) for name in list_images(path)]
        elif not path.exists():
            if not glob.has_magic(source):
                raise InputError(f"there is no file or folder {source}")
            found = [InputItem(name) for name in sorted(glob.glob(source, recursive=True)) if os.path.isfile(name)]
        elif path.suffix.lower() == ".txt":
            try:
                lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"the list {path} cannot be read: {reason_of(error)}") from None
            found = [InputItem(str(path.parent / line)) for line in lines if line]
        elif path.suffix.lower() == ".json":
            found, names = _read_coco(path)
        else:
            found = [InputItem(source)]
        if not found:
            raise InputError(f"{source} has no images: expected files that end in {', '.join(ENDINGS)}")
        items += found
        categories |= names
    if not items:
        raise InputError("no images given: pass files, a folder, a pattern, a list.txt or a COCO.json")
    for item in items:
        if not item.image.isprintable():  # undecodable names have surrogates, which are not printable
            raise InputError(f"the file name {item.image!r} has characters that cannot be printed: rename the file")
    return Inputs(items, frozenset(categories))


def _read_coco(path: Path) -> tuple[list[InputItem], set[str]]:
    """The images of a COCO file, and the names of its categories, in lower case."""

    def drop_outlines(part: dict[str, Any]) -> dict[str, Any]:
        """Drop outlines while the file is parsed: they are most of it, and only boxes are used."""
        for key in ("segmentation", "amodal_segmentation", "parts"):
            part.pop(key, None)
        return part

    try:
        with path.open(encoding="utf-8") as file:
            data = json.load(file, object_hook=drop_outlines)
        names = {category["id"]: _text(category["name"]) for category in data.get("categories", ())}
        boxes: dict[Any, list[Box]] = {}
        for annotation in data.get("annotations", ()):
            if "bbox" in annotation and not annotation.get("iscrowd"):
                left, top, width, height = box = [float(number) for number in annotation["bbox"]]
                if not all(map(math.isfinite, box)):
                    raise ValueError(f"a box has the numbers {box}")
                name = names.get(annotation.get("category_id"), "")
                boxes.setdefault(annotation["image_id"], []).append((left, top, width, height, name))
        has_truth = bool(boxes)
        items = [
            InputItem(
                str(path.parent / _text(image["file_name"])),
                tuple(boxes.get(image.get("id"), ())) if has_truth else None,
                (int(image["width"]), int(image["height"])) if "width" in image and "height" in image else None,
            )
            for image in data["images"]
        ]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} is not a COCO file: expected an object with images (id, file_name), annotations (image_id, "
            f"category_id, bbox) and categories ({reason_of(error)})"
        ) from None
    return items, {name.casefold() for name in names.values()}


def _text(value: Any) -> str:
    """A name that can be written; a lone surrogate raises UnicodeEncodeError, which is a ValueError."""
    text = str(value)
    text.encode("utf-8")
    return text


@dataclass(frozen=True)
class BoxComparison:
    """An explanation compared with the ground-truth boxes of its label; all None where there are no boxes at all."""

    inside: float | None = None  # share of its pixels whose centre lies in a box; None where there is no box of its label
    by_chance: float | None = None  # share of the view in the boxes, the expected value for a random explanation
    note_code: NoteCode | None = None  # why there is no comparison
    note: str | None = None  # the same for people


def compare_with_boxes(
    visible: Visible, frame: Frame, label: str, item: InputItem, categories: frozenset[str]
) -> BoxComparison:
    """Compare an explanation for `label`, over the view's grid, with the item's boxes on the original image."""
    if item.boxes is None or visible.ndim != 2:
        return BoxComparison()
    height, width = frame.original
    if item.size is not None and item.size != (width, height):
        note = f"the boxes are for an image of {item.size[0]} x {item.size[1]}, this one is {width} x {height}"
        return BoxComparison(note_code="size_mismatch", note=note)
    boxes = boxes_for_label(item.boxes, label, categories)
    if not boxes:
        return BoxComparison(note_code="label_without_box", note=f"the ground truth has no box of {label} in this image")
    on_object = box_mask(boxes, frame)
    return BoxComparison(share_in(visible, on_object), float(on_object.mean()))


def boxes_for_label(boxes: Sequence[Box], label: str, categories: frozenset[str]) -> list[Box]:
    """The boxes of the category that has the label's name, possibly none; all boxes where no category has it."""
    if label.casefold() not in categories:
        return list(boxes)
    return [box for box in boxes if box[4].casefold() == label.casefold()]


def box_mask(boxes: Sequence[Box], frame: Frame) -> Visible:
    """(h, w), True for the pixels of the view whose centre, on the original image, lies in one of the boxes."""
    (down, right), (top, left) = frame.scale, frame.offset
    rows = top + (np.arange(frame.grid[0]) + 0.5) * down
    columns = left + (np.arange(frame.grid[1]) + 0.5) * right
    mask = np.zeros(frame.grid, bool)
    for x, y, w, h, _ in boxes:
        mask |= np.outer((y <= rows) & (rows < y + h), (x <= columns) & (columns < x + w))
    return mask


def share_in(visible: Visible, area: Visible) -> float | None:
    """The share of an explanation in an area over the same grid; None for an empty explanation."""
    count = int(np.count_nonzero(visible))
    return int(np.count_nonzero(visible & area)) / count if count else None
