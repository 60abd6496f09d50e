"""What the rules of a check see: an image of the run with its row and its pixels, and parts of it as rules state them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Protocol

import numpy as np

from becausal.batch.differences import overlap_between
from becausal.batch.inputs import find_inputs
from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.records import InputItem
from becausal.batch.rows import box_mask, boxes_for_label, compare_with_boxes
from becausal.core.contracts import Visible
from becausal.core.errors import ImageError, InputError
from becausal.core.frames import Frame
from becausal.images.loading import load_image


@dataclass(frozen=True)
class Evidence:
    """One image of the run, explained or not.

    Pixels are read when a rule needs them, at most once; then OutputError is raised if they cannot be read. places: the
    files of the rules. earlier: the row of the same image in the baseline, None if there is none.
    """

    run: BatchRun
    row: IndexRow
    places: "Places"
    baseline: BatchRun | None = None
    earlier: IndexRow | None = None

    @property
    def is_explained(self) -> bool:
        return bool(self.row["state"] == "done")

    @property
    def why_not_explained(self) -> str:
        """Why there is no explanation: the error, or that the image was not tried."""
        if self.row["error"] is not None:
            return str(self.row["error"])
        limit = self.run.limit
        is_left_out = limit is not None and self.row["id"] >= limit * self.run.per_image
        return f"left out by --limit {limit}" if is_left_out else "not explained yet"

    @property
    def is_explained_twice(self) -> bool:
        """Whether the baseline has an explanation as well."""
        return self.is_explained and self.earlier is not None and self.earlier["state"] == "done"

    @cached_property
    def pixels(self) -> tuple[Visible, Frame]:
        """The explanation, (*grid,) bool, and the frame of its view."""
        return self.run.load_visible(self.row["id"])

    @property
    def overlap(self) -> float | None:
        """Intersection over union with the baseline's explanation; None where they cannot be compared."""
        if self.baseline is None or self.earlier is None:
            return None
        return overlap_between(self.pixels, self.baseline.load_visible(self.earlier["id"]))

    def share_in(self, area: Visible) -> float | None:
        """The share of the explanation in an area over the view's grid; None for an empty explanation."""
        visible, _ = self.pixels
        count = int(np.count_nonzero(visible))
        return int(np.count_nonzero(visible & area)) / count if count else None


class Place(Protocol):
    """A part of every image; name: what the page calls it."""

    @property
    def name(self) -> str: ...

    def share(self, image: Evidence) -> float | None:
        """The share of the explanation in this part; None where the part is unknown."""
        ...

    def outline(self, run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        """The part over the view's grid, (h, w) bool; None where it is unknown."""
        ...


class Places:
    """The files of rules, each read once: a file of boxes may be large. folder: for relative paths."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[tuple[Callable[[Path], Place], str], Place] = {}

    def open(self, kind: Callable[[Path], Place], name: str) -> Place:
        """The place that a file or folder states. Raises InputError if it cannot be read."""
        if (kind, name) not in self._opened:
            self._opened[kind, name] = kind(self._folder / name)
        return self._opened[kind, name]


class RunBoxes:
    """The boxes that the run was given: the share is in its index."""

    name = "object"

    def share(self, image: Evidence) -> float | None:
        inside: float | None = image.row["inside"]
        return inside

    def outline(self, run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        boxes = run.boxes_of(row)
        return box_mask(boxes, frame) if boxes else None


class BoxFile:
    """The boxes of a COCO file, by the name of the image. Raises InputError for a file without boxes."""

    name = "object"

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".json":
            raise InputError(f"{path} is not a COCO file: its name does not end in .json")
        inputs = find_inputs([str(path)])
        if not any(item.boxes for item in inputs.items):
            raise InputError(f"{path} has no boxes: expected annotations with bbox")
        self._path, self._categories = path, inputs.categories
        self._items: dict[str, list[InputItem]] = {}
        for item in inputs.items:
            self._items.setdefault(PurePath(item.image).name, []).append(item)

    def share(self, image: Evidence) -> float | None:
        if (item := self._find(image.row)) is None:
            return None
        visible, frame = image.pixels
        return compare_with_boxes(visible, frame, image.row["label"], item, self._categories).inside

    def outline(self, run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        item = self._find(row)
        return None if item is None else box_mask(boxes_for_label(item.boxes or (), row["label"], self._categories), frame)

    def _find(self, row: IndexRow) -> InputItem | None:
        """The image of the same name; of several, the one whose folder has the same name, too."""
        image = PurePath(row["image"])
        found = self._items.get(image.name, [])
        if len(found) > 1:
            found = [item for item in found if PurePath(item.image).parent.name == image.parent.name]
            if len(found) > 1:
                raise InputError(
                    f"{self._path} has several images {image.parent.name}/{image.name}: their names must differ"
                )
        return found[0] if found else None


class MaskFolder:
    """Masks in a folder: of DIR/NAME.jpg the mask DIR/NAME.png or NAME.png. Raises InputError if there is no such folder.

    A mask that is black everywhere counts as none: there is no object to look at.
    """

    name = "object"

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        self._folder = folder

    def share(self, image: Evidence) -> float | None:
        return _share_in(image, self)

    def outline(self, run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        image = PurePath(row["image"])
        name, parent = f"{image.stem}.png", image.parent.name
        places = [self._folder / parent, self._folder] if parent not in ("", "..") else [self._folder]
        path = next((place / name for place in places if (place / name).is_file()), None)
        if path is None:
            return None
        mask = read_mask(path, unlike=row["sha256"])
        return mask_over(mask, frame, path) if mask.any() else None


class MaskImage:
    """One mask for all images. Raises ImageError if it cannot be read, or is black everywhere."""

    name = "region"

    def __init__(self, path: Path) -> None:
        self._path, self._mask = path, read_mask(path)
        if not self._mask.any():
            raise ImageError(f"the mask {path} is black everywhere: the region must not be black")

    def share(self, image: Evidence) -> float | None:
        return _share_in(image, self)

    def outline(self, run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        return mask_over(self._mask, frame, self._path)


class FixedRegion:
    """A box for all images: left, top, width, height in pixels; a negative left or top counts from the other edge."""

    name = "region"

    def __init__(self, left: int, top: int, width: int, height: int) -> None:
        self._box = left, top, width, height

    def share(self, image: Evidence) -> float | None:
        return _share_in(image, self)

    def outline(self, run: BatchRun, row: IndexRow, frame: Frame) -> Visible | None:
        """As above. Raises InputError for an image that has no pixel of the region."""
        if len(frame.grid) != 2:
            return None
        left, top, width, height = self._box
        rows, columns = frame.original
        x, y = left + columns * (left < 0), top + rows * (top < 0)
        if not (x < columns and y < rows and x + width > 0 and y + height > 0):
            raise InputError(f"the region {list(self._box)} is not on {row['image']}, which has {columns} x {rows} pixels")
        return box_mask([(x, y, width, height, "")], frame)


def _share_in(image: Evidence, place: Place) -> float | None:
    area = place.outline(image.run, image.row, image.pixels[1])
    return None if area is None else image.share_in(area)


def mask_over(mask: Visible, frame: Frame, path: Path) -> Visible | None:
    """A mask over the view's grid; None for signals and volumes. Raises ImageError for a mask of another size."""
    if len(frame.grid) != 2:
        return None
    if mask.shape != frame.original:
        own, other = (f"{width} x {height}" for height, width in (mask.shape, frame.original))
        raise ImageError(f"the mask {path} has {own} pixels, the image {other}: they must have the same size")
    area: Visible = frame.from_original(mask)
    return area


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
