"""Datasets with ground truth: the two published ones, others of their layout, scenes, any folder.

Published layouts (repository theyoucheng/deepcover, folder benchmarks):

- photobombing: `photobombing_groundtruth.txt` with a line `name r0(x0) c0(y0) r1(x1) c1(y1) label text, shape` for each
  image in `photobombing_imgs/`. The numbers in brackets are the box of the object, the others that of the occluder.
- roaming-panda: a `*.csv` file, separated by spaces, with a line `name r0 c0 r1 c1` for each image in the only folder
  next to it.

Other datasets may have in addition `masks/NAME.png` with the pixels of the occluder or the object in white, which take
precedence as ground truth, and `dataset.json` with the label of a roaming object.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np

from becausal.core.contracts import Pixels, Visible
from becausal.core.errors import ImageError, OptionError
from becausal.images.loading import load_image
from becausal.lab.scenes import LABELS, NOTHING, make_scene

Box = tuple[int, int, int, int]  # first row and column, and those after the last

SMALLEST = 50  # pixels; smaller occluders are excluded
PANDA = 387  # ImageNet's class of the lesser panda
SHAPES = ("rectangle", "box", "ellipse", "disk")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FIRST_SCENE = 60_000_000  # seed; the bundled classifier was trained and evaluated on scenes with lower seeds
PHOTOBOMBS, BOMB_FOLDER = "photobombing_groundtruth.txt", "photobombing_imgs"
LINE = re.compile(r"(\S+) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+) (.*), ([\w-]+)\s*$")


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, (h, w, 3) uint8, and its ground-truth masks, (h, w), by name, e.g. occluder or object."""

    pixels: Pixels
    masks: Mapping[str, Visible] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """An image of a dataset, read when needed.

    Attributes:
        name: Its name, unique in the dataset.
        read: Reads it.
        label: Its true label, by id or name, None if unknown.
        facts: Further columns of its rows.
    """

    name: str
    read: Callable[[], AnnotatedImage]
    label: int | str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def occluder_pixels(r0: int, c0: int, r1: int, c1: int, shape: str, grid: tuple[int, int] = (224, 224)) -> Visible:
    """The pixels of a published occluder, derived from the listed box.

    A rectangle is the box; an ellipse is inscribed in it; a box is the square from (r0 + c0) // 2 to (r1 + c1) // 2 on
    both axes; a disk lies around the centre with radius ((r1 - r0) + (c1 - c0)) / 2.

    Raises:
        OptionError: The shape is unknown.
    """
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    down, across = rows - (r0 + r1) / 2, columns - (c0 + c1) / 2
    out = np.zeros(grid, bool)
    match shape:
        case "rectangle":
            out[r0:r1, c0:c1] = True
        case "box":
            low, high = (r0 + c0) // 2, (r1 + c1) // 2
            out[low:high, low:high] = True
        case "ellipse":
            out = (down / max((r1 - r0) / 2, 0.5)) ** 2 + (across / max((c1 - c0) / 2, 0.5)) ** 2 <= 1
        case "disk":
            out = down**2 + across**2 <= (((r1 - r0) + (c1 - c0)) / 2) ** 2
        case _:
            raise OptionError(f"unknown occluder shape {shape!r}: expected {', '.join(SHAPES)}, or a mask file")
    return np.asarray(out, bool)


def read_photobombs(folder: Path) -> list[Sample]:
    """All images of a photobombing folder in the order of its list, with occluders of any size."""
    found = []
    for line in _lines(folder / PHOTOBOMBS, "becausal data get photobombing"):
        match = LINE.match(line)
        if match is None:
            raise OptionError(f"{folder / PHOTOBOMBS} has a line that cannot be read: {line[:80]!r}")
        r0, x0, c0, y0, r1, x1, c1, y1, label = (int(part) for part in match.groups()[1:10])
        path, mask = folder / BOMB_FOLDER / match[1], folder / "masks" / f"{Path(match[1]).stem}.png"
        if path.exists():
            read = partial(_read_photobomb, path, mask, (r0, c0, r1, c1), match[12], (x0, y0, x1, y1))
            found.append(Sample(match[1], read, label, {"shape": match[12]}))
    return found


def _read_photobomb(path: Path, mask: Path, place: Box, shape: str, box: Box) -> AnnotatedImage:
    pixels = load_image(path).pixels
    grid = (pixels.shape[0], pixels.shape[1])
    occluder = _read_mask(mask, grid) if mask.exists() else occluder_pixels(*place, shape, grid)
    boxed = _fill_box(grid, (box[1], box[0], box[3], box[2]))  # x comes first in this list
    return AnnotatedImage(pixels, {"occluder": occluder} | ({"object": boxed & ~occluder} if boxed.any() else {}))


def read_roaming(folder: Path) -> list[Sample]:
    """All images of a roaming folder in the order of its list."""
    lists = sorted(folder.glob("*.csv"))
    if len(lists) != 1:
        raise OptionError(
            f"{folder} contains {len(lists)} .csv files, but a roaming dataset has one, with lines: name r0 c0 r1 c1"
        )
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "masks"]
    if len(folders) != 1:
        raise OptionError(f"{folder} contains {len(folders)} folders of images, but a roaming dataset has one")
    label: int | str = PANDA
    if (folder / "dataset.json").exists():
        label = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["label"]
    found = []
    for line in _lines(lists[0], "becausal data get roaming-panda"):
        parts = line.split()
        if len(parts) != 5 or not all(part.isdigit() for part in parts[1:]):
            raise OptionError(f"{lists[0]} has a line that cannot be read: {line[:80]!r}")
        path, mask = folders[0] / parts[0], folder / "masks" / f"{Path(parts[0]).stem}.png"
        r0, c0, r1, c1 = (int(part) for part in parts[1:])
        if path.exists():
            found.append(Sample(parts[0], partial(_read_roaming_image, path, mask, (r0, c0, r1, c1)), label))
    return found


def _read_roaming_image(path: Path, mask: Path, place: Box) -> AnnotatedImage:
    pixels = load_image(path).pixels
    grid = (pixels.shape[0], pixels.shape[1])
    return AnnotatedImage(pixels, {"object": _read_mask(mask, grid) if mask.exists() else _fill_box(grid, place)})


def read_images(folder: Path) -> list[Sample]:
    """All images in a folder and its subfolders, sorted by path, without ground truth."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise OptionError(f"there are no images in {folder} ({', '.join(ENDINGS)})")
    return [Sample(path.relative_to(folder).as_posix(), partial(_read_image, path)) for path in paths]


def _read_image(path: Path) -> AnnotatedImage:
    return AnnotatedImage(load_image(path).pixels)


def read_dataset(folder: Path) -> list[Sample]:
    """The dataset in a folder: photobombing, roaming, or plain images.

    Raises:
        OptionError: There is none, or it cannot be read.
    """
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder}")
    if (folder / PHOTOBOMBS).exists():
        return read_photobombs(folder)
    if any(folder.glob("*.csv")):
        return read_roaming(folder)
    return read_images(folder)


def draw_scenes(
    seed: int, *, cover: tuple[float, float] | None = None, cut: bool | None = None, plain: bool = False
) -> Iterator[Sample]:
    """An endless sequence of scenes, determined by the seed, with all labels in turn; `plain` ones have no occluder.

    Their masks are object, its visible part, and occluder.
    """

    def read(number: int, label: str) -> AnnotatedImage:
        scene = make_scene(number, label=label, cover=cover, cut=cut, occluder="none" if plain else None)
        return AnnotatedImage(scene.image, {"occluder": scene.occluder, "object": scene.visible})

    labels = [label for label in LABELS if label != NOTHING]
    for number, label in zip(count(FIRST_SCENE + 100_000 * seed), cycle(labels), strict=False):  # both are endless
        yield Sample(f"scene-{number}", partial(read, number, label), label)


def _lines(path: Path, instead: str) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error} (to create it: {instead})") from None
    except UnicodeDecodeError:
        raise OptionError(f"{path} is not a text file") from None


def _fill_box(grid: tuple[int, int], box: Box) -> Visible:
    out = np.zeros(grid, bool)
    out[box[0] : box[2], box[1] : box[3]] = True
    return out


def _read_mask(path: Path, grid: tuple[int, int]) -> Visible:
    pixels = load_image(path).pixels
    if pixels.shape[:2] != grid:
        raise ImageError(f"the mask {path.name} has shape {pixels.shape[:2]}, but its image has {grid}")
    return np.asarray(pixels.max(axis=-1) > 127, bool)
