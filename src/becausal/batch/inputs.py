"""Finds the input images: in folders, patterns, lists and COCO files with ground-truth boxes, or as single files."""

import glob
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becausal.batch.records import Box, InputItem
from becausal.core.errors import InputError
from becausal.core.text import reason_of
from becausal.images.folders import ENDINGS, list_images


@dataclass(frozen=True)
class Inputs:
    """The images in order, and the names of all ground-truth categories, in lower case."""

    items: Sequence[InputItem]
    categories: frozenset[str] = frozenset()

    @property
    def has_relative_paths(self) -> bool:
        return any(not os.path.isabs(item.image) for item in self.items)


def find_inputs(sources: Iterable[str]) -> Inputs:
    """The images of all sources, in order.

    A folder: all images in it, at any depth, sorted by name. A pattern, e.g. 'photos/*.png': the matching files, sorted by
    name. FILE.txt: one path per line, relative to the list's folder. FILE.json: a COCO file, `file_name` relative to its
    folder. Anything else is an image. Raises InputError for a source that does not exist or has no images.
    """
    items: list[InputItem] = []
    categories: set[str] = set()
    for source in sources:
        found, names = _read(source)
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


def _read(source: str) -> tuple[list[InputItem], set[str]]:
    path = Path(source)
    if path.is_dir():
        return [InputItem(name) for name in list_images(path)], set()
    if not path.exists():
        if glob.has_magic(source):
            return [InputItem(name) for name in sorted(glob.glob(source, recursive=True)) if os.path.isfile(name)], set()
        raise InputError(f"there is no file or folder {source}")
    match path.suffix.lower():
        case ".txt":
            return list(_read_list(path)), set()
        case ".json":
            return _read_coco(path)
    return [InputItem(source)], set()


def _read_list(path: Path) -> Iterator[InputItem]:
    try:
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            if name := line.strip():
                yield InputItem(str(path.parent / name))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list {path} cannot be read: {reason_of(error)}") from None


def _read_coco(path: Path) -> tuple[list[InputItem], set[str]]:
    try:
        with path.open(encoding="utf-8") as file:
            data = json.load(file, object_hook=_drop_outlines)
        names = {category["id"]: _text(category["name"]) for category in data.get("categories", ())}
        boxes: dict[Any, list[Box]] = {}
        for annotation in data.get("annotations", ()):
            if "bbox" in annotation and not annotation.get("iscrowd"):
                left, top, width, height = (_finite(number) for number in annotation["bbox"])
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
    text = value if isinstance(value, str) else str(value)
    text.encode("utf-8")
    return text


def _finite(number: Any) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"a box has the number {value}")
    return value


def _drop_outlines(part: dict[str, Any]) -> dict[str, Any]:
    """Drop outlines while the file is parsed: they are most of it, and only boxes are used."""
    for key in ("segmentation", "amodal_segmentation", "parts"):
        part.pop(key, None)
    return part
