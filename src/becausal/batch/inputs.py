"""Which images: a folder, a pattern, a list, a COCO file with truth boxes, or the files themselves."""

import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becausal.batch.records import Box, Item
from becausal.core.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".npy")


@dataclass(frozen=True)
class Inputs:
    """The images in their order, and the names of all truth categories, in lower case."""

    items: Sequence[Item]
    categories: frozenset[str] = frozenset()

    @property
    def has_relative_paths(self) -> bool:
        return any(not os.path.isabs(item.image) for item in self.items)


def find_inputs(sources: Iterable[str]) -> Inputs:
    """The images behind what was given on the command line.

    A folder: all images in it, at any depth, by name. A pattern, as 'shots/*.png': what matches, by name. FILE.txt: one
    path per line, relative to the list's own folder. FILE.json: a COCO file, `file_name` relative to its folder. Anything
    else is an image. Raises InputError for what does not exist, or holds no images.
    """
    items: list[Item] = []
    categories: set[str] = set()
    for source in sources:
        found, names = _read(source)
        if not found:
            raise InputError(f"{source}: no images in it (looked for {', '.join(ENDINGS)})")
        items += found
        categories |= names
    if not items:
        raise InputError("no images were given: name files, a folder, a pattern, a list.txt or a COCO.json")
    for item in items:
        if not item.image.isprintable():  # undecodable names hold surrogates, which are not printable
            raise InputError(f"the name {item.image!r} holds characters that cannot be written down: rename the file")
    return Inputs(items, frozenset(categories))


def _read(source: str) -> tuple[list[Item], set[str]]:
    path = Path(source)
    if path.is_dir():
        return [Item(name) for name in _walk(path)], set()
    if not path.exists():
        if glob.has_magic(source):
            return [Item(name) for name in sorted(glob.glob(source, recursive=True)) if os.path.isfile(name)], set()
        raise InputError(f"there is no file or folder {source}")
    match path.suffix.lower():
        case ".txt":
            return list(_read_list(path)), set()
        case ".json":
            return _read_coco(path)
    return [Item(source)], set()


def _walk(folder: Path) -> Iterator[str]:
    """All images below a folder, by name, folder by folder; hidden ones are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield str(Path(place) / name)


def _read_list(path: Path) -> Iterator[Item]:
    try:
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            if name := line.strip():
                yield Item(str(path.parent / name))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list {path} cannot be read: {error}") from None


def _read_coco(path: Path) -> tuple[list[Item], set[str]]:
    try:
        with path.open(encoding="utf-8") as file:
            data = json.load(file, object_hook=_lighten)
        names = {category["id"]: str(category["name"]) for category in data.get("categories", ())}
        boxes: dict[Any, list[Box]] = {}
        for mark in data.get("annotations", ()):
            if "bbox" in mark and not mark.get("iscrowd"):
                left, top, width, height = (float(number) for number in mark["bbox"])
                name = names.get(mark.get("category_id"), "")
                boxes.setdefault(mark["image_id"], []).append((left, top, width, height, name))
        has_truth = bool(boxes)
        items = [
            Item(
                str(path.parent / image["file_name"]),
                tuple(boxes.get(image.get("id"), ())) if has_truth else None,
                (int(image["width"]), int(image["height"])) if "width" in image and "height" in image else None,
            )
            for image in data["images"]
        ]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no COCO file: expected an object with images (id, file_name), annotations (image_id, "
            f"category_id, bbox) and categories; {type(error).__name__}: {error}"
        ) from None
    return items, {name.casefold() for name in names.values()}


def _lighten(part: dict[str, Any]) -> dict[str, Any]:
    """A part of the file as it is read, without the outlines: they are most of it, and boxes are all that is used."""
    for key in ("segmentation", "amodal_segmentation", "parts"):
        part.pop(key, None)
    return part
