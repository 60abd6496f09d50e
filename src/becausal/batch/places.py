"""Parts of an image that explanations are compared with: boxes, masks, a fixed region."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from becausal.batch.index import IndexRow
from becausal.batch.inputs import InputItem, box_mask, boxes_for_label, find_inputs
from becausal.batch.reading import BatchRun
from becausal.core.contracts import Visible
from becausal.core.errors import ImageError, InputError
from becausal.core.frames import Frame
from becausal.images.loading import load_image


@dataclass(frozen=True)
class Place:
    """A part of every image.

    name: what the page calls it. outline: of a run, a row of it and the frame of its view, the part over the view's grid,
    (h, w) bool; None where it is unknown.
    """

    name: str
    outline: Callable[[BatchRun, IndexRow, Frame], Visible | None]


#: The boxes that the run was given.
RUN_BOXES = Place("object", lambda run, row, frame: box_mask(boxes, frame) if (boxes := run.boxes_of(row)) else None)


def box_file(path: Path) -> Place:
    """The boxes of a COCO file, by the name of the image. Raises InputError for a file without boxes."""
    if path.suffix.lower() != ".json":
        raise InputError(f"{path} is not a COCO file: its name does not end in .json")
    inputs = find_inputs([str(path)])
    if not any(item.boxes for item in inputs.items):
        raise InputError(f"{path} has no boxes: expected annotations with bbox")
    items: dict[str, list[InputItem]] = {}
    for item in inputs.items:
        items.setdefault(PurePath(item.image).name, []).append(item)

    def outline(run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        image = PurePath(row["image"])
        found = items.get(image.name, [])
        if len(found) > 1:  # the one whose folder has the same name, too
            found = [item for item in found if PurePath(item.image).parent.name == image.parent.name]
            if len(found) > 1:
                raise InputError(f"{path} has several images {image.parent.name}/{image.name}: their names must differ")
        if not found or len(frame.grid) != 2 or found[0].size not in (None, frame.original[::-1]):
            return None
        boxes = boxes_for_label(found[0].boxes or (), row["label"], inputs.categories)
        return box_mask(boxes, frame) if boxes else None

    return Place("object", outline)


def mask_folder(folder: Path) -> Place:
    """Masks in a folder: of DIR/NAME.jpg the mask DIR/NAME.png or NAME.png. Raises InputError if there is no such folder.

    A mask that is black everywhere counts as none: there is no object to look at.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")

    def outline(run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        image = PurePath(row["image"])
        name, parent = f"{image.stem}.png", image.parent.name
        places = [folder / parent, folder] if parent not in ("", "..") else [folder]
        path = next((place / name for place in places if (place / name).is_file()), None)
        if path is None:
            return None
        mask = read_mask(path, unlike=row["sha256"])
        return mask_over(mask, frame, path) if mask.any() else None

    return Place("object", outline)


def fixed_region(left: int, top: int, width: int, height: int) -> Place:
    """A box for all images, in pixels; a negative left or top counts from the other edge.

    Its outline raises InputError for an image that has no pixel of it.
    """

    def outline(run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        if len(frame.grid) != 2:
            return None
        rows, columns = frame.original
        x, y = left + columns * (left < 0), top + rows * (top < 0)
        if not (x < columns and y < rows and x + width > 0 and y + height > 0):
            region = f"the region {[left, top, width, height]}"
            raise InputError(f"{region} is not on {row['image']}, which has {columns} x {rows} pixels")
        return box_mask([(x, y, width, height, "")], frame)

    return Place("region", outline)


def mask_over(mask: Visible, frame: Frame, path: Path) -> Visible | None:
    """A mask over the view's grid; None for signals and volumes. Raises ImageError for a mask of another size."""
    if len(frame.grid) != 2:
        return None
    if mask.shape != frame.original:
        own, other = (f"{width} x {height}" for height, width in (mask.shape, frame.original))
        raise ImageError(f"the mask {path} has {own} pixels, the image {other}: they must have the same size")
    return np.asarray(frame.from_original(mask), bool)


def read_mask(path: Path, *, unlike: str | None = None) -> Visible:
    """(h, w) bool, True where the mask is not black.

    unlike: hash of the image, which is not its own mask. Raises ImageError for that, and for what is no plain 8-bit image.
    """
    image = load_image(path)
    if image.sha256 == unlike:
        raise ImageError(f"{path} is the image itself, not its mask: give the folder of the masks")
    if image.notes or image.pixels.dtype != np.uint8 or image.pixels.ndim != 3:
        reason = image.notes[0] if image.notes else f"shape {image.pixels.shape}"
        raise ImageError(f"the mask {path} is ambiguous ({reason}): save it as a PNG of 8 bits without transparency")
    return np.asarray(image.pixels.any(axis=2))
