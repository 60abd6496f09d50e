"""Images with truth: the two published sets, what `becausal data make` writes, generated scenes, any folder.

Published layouts (repository theyoucheng/deepcover, folder benchmarks):

- photobombing: `photobombing_groundtruth.txt`, a line `name r0(x0) c0(y0) r1(x1) c1(y1) label text, shape` per image
  of `photobombing_imgs/`. Outside the brackets the planted occluder, inside them the object's box.
- roaming-panda: a space-separated `*.csv`, `name r0 c0 r1 c1` per image of the one folder beside it.

What `data make` writes has the same layout, plus `masks/NAME.png` with the planted pixels (white), which are then the
truth, and `dataset.json` with the label of a roaming object.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from becausal.core.contracts import Pixels, Visible
from becausal.core.errors import ImageError, OptionError
from becausal.images.loading import load_image

SMALLEST = 50  # pixels: smaller occluders are left out
PANDA = 387
SHAPES = ("rectangle", "box", "ellipse", "disk")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FIRST_SCENE = 60_000_000  # the bundled classifier learnt from, and was measured on, scenes with lower seeds
PHOTOBOMBS, BOMB_FOLDER = "photobombing_groundtruth.txt", "photobombing_imgs"
LINE = re.compile(r"(\S+) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+) (.*), ([\w-]+)\s*$")


@dataclass(frozen=True)
class Seen:
    """An image, (h, w, 3) uint8, and what is true of its pixels: sets (h, w) by name, such as occluder or object."""

    pixels: Pixels
    truths: Mapping[str, Visible] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One image of a set, read when needed. label: its true label's id or name, None where it is not known.

    facts: what else is known of it; they become columns of the results.
    """

    name: str
    read: Callable[[], Seen]
    label: int | str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def occluder_pixels(r0: int, c0: int, r1: int, c1: int, shape: str, grid: tuple[int, int] = (224, 224)) -> Visible:
    """The true pixels of a published occluder; the listed box is only where they come from.

    rectangle: the box; ellipse: inscribed in it; box: the square from (r0 + c0) // 2 to (r1 + c1) // 2 on both axes;
    disk: around the middle, of radius ((r1 - r0) + (c1 - c0)) / 2. Raises OptionError for another shape.
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
            raise OptionError(f"an occluder is a {', '.join(SHAPES)}, or has a mask beside it; {shape!r} is neither")
    return np.asarray(out, bool)


def read_photobombs(folder: Path) -> list[Sample]:
    """All images of a photobombing folder in the order of its list, whatever the size of the occluder."""
    found = []
    for line in _lines(folder / PHOTOBOMBS, "becausal data get photobombing, or data make photobombing"):
        match = LINE.match(line)
        if match is None:
            raise OptionError(f"a line of {folder / PHOTOBOMBS} cannot be read: {line[:80]!r}")
        r0, x0, c0, y0, r1, x1, c1, y1, label = (int(part) for part in match.groups()[1:10])
        path, mask = folder / BOMB_FOLDER / match[1], folder / "masks" / f"{Path(match[1]).stem}.png"
        if path.exists():
            read = _reads_photobomb(path, mask, (r0, c0, r1, c1), match[12], (x0, y0, x1, y1))
            found.append(Sample(match[1], read, label, {"shape": match[12]}))
    return found


def _reads_photobomb(
    path: Path, mask: Path, place: tuple[int, int, int, int], shape: str, box: tuple[int, int, int, int]
) -> Callable[[], Seen]:
    def read() -> Seen:
        pixels = load_image(path).pixels
        grid = (pixels.shape[0], pixels.shape[1])
        occluder = _read_mask(mask, grid) if mask.exists() else occluder_pixels(*place, shape, grid)
        thing = np.zeros(grid, bool)
        thing[box[1] : box[3], box[0] : box[2]] = True
        return Seen(pixels, {"occluder": occluder, "object": thing & ~occluder} if thing.any() else {"occluder": occluder})

    return read


def read_roaming(folder: Path) -> list[Sample]:
    """All images of a roaming folder in the order of its list."""
    lists = sorted(folder.glob("*.csv"))
    if len(lists) != 1:
        raise OptionError(f"{folder} holds {len(lists)} .csv files, and a roaming set has one: name r0 c0 r1 c1 per line")
    pictures = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != "masks"]
    if len(pictures) != 1:
        raise OptionError(f"{folder} holds {len(pictures)} folders of images, and a roaming set has one")
    label: int | str = PANDA
    if (folder / "dataset.json").exists():
        label = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["label"]
    found = []
    for line in _lines(lists[0], "becausal data get roaming-panda, or data make roaming"):
        parts = line.split()
        if len(parts) != 5 or not all(part.isdigit() for part in parts[1:]):
            raise OptionError(f"a line of {lists[0]} cannot be read: {line[:80]!r}")
        path, mask = pictures[0] / parts[0], folder / "masks" / f"{Path(parts[0]).stem}.png"
        r0, c0, r1, c1 = (int(part) for part in parts[1:])
        if path.exists():
            found.append(Sample(parts[0], _reads_roaming(path, mask, (r0, c0, r1, c1)), label))
    return found


def _reads_roaming(path: Path, mask: Path, place: tuple[int, int, int, int]) -> Callable[[], Seen]:
    def read() -> Seen:
        pixels = load_image(path).pixels
        grid = (pixels.shape[0], pixels.shape[1])
        thing = np.zeros(grid, bool)
        thing[place[0] : place[2], place[1] : place[3]] = True
        return Seen(pixels, {"object": _read_mask(mask, grid) if mask.exists() else thing})

    return read


def read_pictures(folder: Path) -> list[Sample]:
    """All images under a folder, sorted by path, nothing known of them."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise OptionError(f"there are no images in {folder} ({', '.join(ENDINGS)})")
    return [Sample(path.relative_to(folder).as_posix(), _reads_picture(path)) for path in paths]


def _reads_picture(path: Path) -> Callable[[], Seen]:
    return lambda: Seen(load_image(path).pixels)


def read_set(folder: Path) -> list[Sample]:
    """Whatever set a folder holds: photobombing, roaming, or just images. Raises OptionError."""
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder}")
    if (folder / PHOTOBOMBS).exists():
        return read_photobombs(folder)
    if any(folder.glob("*.csv")):
        return read_roaming(folder)
    return read_pictures(folder)


def draw_scenes(
    seed: int, *, cover: tuple[float, float] | None = None, cut: bool | None = None, plain: bool = False
) -> Iterator[Sample]:
    """Generated scenes without end, every label in turn, as a seed's own stream. plain: without an occluder."""
    from becausal.scenes import LABELS, NOTHING

    labels = [label for label in LABELS if label != NOTHING]
    first = FIRST_SCENE + 100_000 * seed
    number = 0
    while True:
        yield draw_scene(first + number, labels[number % len(labels)], cover=cover, cut=cut, plain=plain)
        number += 1


def draw_scene(
    seed: int, label: str, *, cover: tuple[float, float] | None = None, cut: bool | None = None, plain: bool = False
) -> Sample:
    """One scene as a sample: object is what can be seen of it, occluder what stands in front."""
    from becausal.scenes import make_scene

    def read() -> Seen:
        scene = make_scene(seed, label=label, cover=cover, cut=cut, occluder="none" if plain else None)
        return Seen(scene.picture, {"occluder": scene.occluder, "object": scene.visible})

    return Sample(f"scene-{seed}", read, label)


def _lines(path: Path, instead: str) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error} (see: {instead})") from None
    except UnicodeDecodeError:
        raise OptionError(f"{path} is no text file") from None


def _read_mask(path: Path, grid: tuple[int, int]) -> Visible:
    pixels = load_image(path).pixels
    if pixels.shape[:2] != grid:
        raise ImageError(f"the mask {path.name} has shape {pixels.shape[:2]}; the image it belongs to has {grid}")
    return np.asarray(pixels.max(axis=-1) > 127, bool)
