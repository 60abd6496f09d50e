"""Datasets with ground truth: the two published ones and their download, others of their layout, scenes, any folder.

Published layouts (repository theyoucheng/deepcover, folder benchmarks):

- photobombing: `photobombing_groundtruth.txt` with a line `name r0(x0) c0(y0) r1(x1) c1(y1) label text, shape` for each
  image in `photobombing_imgs/`. The numbers in brackets are the box of the object, the others that of the occluder.
- roaming-panda: a `*.csv` file, separated by spaces, with a line `name r0 c0 r1 c1` for each image in the only folder
  next to it.

Other datasets may have in addition `masks/NAME.png` with the pixels of the occluder or the object in white, which take
precedence as ground truth, and `dataset.json` with the label of a roaming object.
"""

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from http.client import HTTPException
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np

from becausal.core.contracts import Pixels, Visible
from becausal.core.errors import ImageError, NetworkError, OptionError, OutputError
from becausal.core.files import path_inside
from becausal.images.loading import load_image
from becausal.scenes.scene import LABELS, NOTHING, make_scene

Grid = tuple[int, int]
Box = tuple[int, int, int, int]  # first row and column, and those after the last

SMALLEST = 50  # pixels; smaller occluders are excluded
PANDA = 387  # ImageNet's class of the lesser panda
SHAPES = ("rectangle", "box", "ellipse", "disk")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FIRST_SCENE = 60_000_000  # seed; the bundled classifier was trained and evaluated on scenes with lower seeds
PHOTOBOMBS, BOMB_FOLDER = "photobombing_groundtruth.txt", "photobombing_imgs"
LINE = re.compile(r"(\S+) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+)\((\d+)\) (\d+) (.*), ([\w-]+)\s*$")
COMMIT = "4f70b2498ee1dc030b4ded0d4bc57447274b9fe0"
REPOSITORY = "https://github.com/theyoucheng/deepcover"
ADDRESS = f"https://raw.githubusercontent.com/theyoucheng/deepcover/{COMMIT}/benchmarks"
THREADS, TRIES, TIMEOUT = 8, 3, 30.0  # parallel downloads; attempts for each file; seconds to wait for a response


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, (h, w, 3) uint8, and its ground-truth masks, (h, w), by name, e.g. occluder or object."""

    pixels: Pixels
    masks: Mapping[str, Visible] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """An image of a dataset, read when needed."""

    name: str  # unique in the dataset
    read: Callable[[], AnnotatedImage]
    label: int | str | None = None  # the true one, by id or name, None if unknown
    facts: Mapping[str, Any] = field(default_factory=dict)  # further columns of its rows


def occluder_pixels(r0: int, c0: int, r1: int, c1: int, shape: str, grid: Grid = (224, 224)) -> Visible:
    """The pixels of a published occluder, derived from the listed box.

    A rectangle is the box; an ellipse is inscribed in it; a box is the square from (r0 + c0) // 2 to (r1 + c1) // 2 on both
    axes; a disk lies around the centre with radius ((r1 - r0) + (c1 - c0)) / 2. Raises OptionError for any other shape.
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

    def masks(place: Box, shape: str, box: Box, given: Visible | None, grid: Grid) -> dict[str, Visible]:
        occluder = occluder_pixels(*place, shape, grid) if given is None else given
        boxed = occluder_pixels(*box, "rectangle", grid)
        return {"occluder": occluder} | ({"object": boxed & ~occluder} if boxed.any() else {})

    found = []
    for line in _lines(folder / PHOTOBOMBS, "becausal data get photobombing"):
        match = LINE.match(line)
        if match is None:
            raise OptionError(f"{folder / PHOTOBOMBS} has a line that cannot be read: {line[:80]!r}")
        r0, x0, c0, y0, r1, x1, c1, y1, label = (int(part) for part in match.groups()[1:10])
        path, shape = folder / BOMB_FOLDER / match[1], match[12]
        if path.exists():
            truth = partial(masks, (r0, c0, r1, c1), shape, (y0, x0, y1, x1))  # x comes first in this list
            found.append(Sample(match[1], partial(_read, folder, path, truth), label, {"shape": shape}))
    return found


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

    def masks(place: Box, given: Visible | None, grid: Grid) -> dict[str, Visible]:
        return {"object": occluder_pixels(*place, "rectangle", grid) if given is None else given}

    found = []
    for line in _lines(lists[0], "becausal data get roaming-panda"):
        name, *numbers = line.split()
        if len(numbers) != 4 or not all(part.isdigit() for part in numbers):
            raise OptionError(f"{lists[0]} has a line that cannot be read: {line[:80]!r}")
        r0, c0, r1, c1 = map(int, numbers)
        path = folders[0] / name
        if path.exists():
            found.append(Sample(name, partial(_read, folder, path, partial(masks, (r0, c0, r1, c1))), label))
    return found


def _read(folder: Path, path: Path, masks: Callable[[Visible | None, Grid], dict[str, Visible]]) -> AnnotatedImage:
    """An image with its ground truth, which `masks` makes from the mask file, if there is one, and the size."""
    pixels = load_image(path).pixels
    grid = (pixels.shape[0], pixels.shape[1])
    mask, given = folder / "masks" / f"{path.stem}.png", None
    if mask.exists():
        white = load_image(mask).pixels.max(axis=-1)
        if white.shape != grid:
            raise ImageError(f"the mask {mask.name} has shape {white.shape}, but its image has {grid}")
        given = np.asarray(white > 127, bool)
    return AnnotatedImage(pixels, masks(given, grid))


def _lines(path: Path, instead: str) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error} (to create it: {instead})") from None
    except UnicodeDecodeError:
        raise OptionError(f"{path} is not a text file") from None


def read_dataset(folder: Path) -> list[Sample]:
    """The dataset in a folder: photobombing, roaming, or plain images.

    Raises OptionError where there is none, or it cannot be read.
    """
    if not folder.is_dir():
        raise OptionError(f"there is no folder {folder}")
    if (folder / PHOTOBOMBS).exists():
        return read_photobombs(folder)
    if any(folder.glob("*.csv")):
        return read_roaming(folder)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise OptionError(f"there are no images in {folder} ({', '.join(ENDINGS)})")

    def read(path: Path) -> AnnotatedImage:
        return AnnotatedImage(load_image(path).pixels)

    return [Sample(path.relative_to(folder).as_posix(), partial(read, path)) for path in paths]


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


@dataclass(frozen=True)
class PublishedDataset:
    """A published dataset, named after its folder: the list and the folder of its images, and its `tree_hash`."""

    listing: str
    images: str
    files: int
    sha256: str


SETS = {
    "photobombing": PublishedDataset(
        PHOTOBOMBS, BOMB_FOLDER, 2061, "3142725cbe8db3f0685530d5d5c17ae32df99acbe6805ab34ac8ad210ac2dcc8",
    ),
    "roaming-panda": PublishedDataset(
        "roaming_panda_groundtruth_vgg16_mobilenet.csv", "roaming_panda_images_vgg16_mobilenet", 2895,
        "9337c4bc50f2a7965d027d527b5d8c7608d76d347b4bcdb601687d1c983956f2",
    ),
}  # fmt: skip

Watch = Callable[[int, int], None]  # (files done, files in total)


def fetch_dataset(name: str, out: Path, *, address: str | None = None, watch: Watch | None = None) -> Path:
    """Download a published dataset and check it; files that exist already are not downloaded again.

    name: one of `SETS`. out: the folder to write to. address: of a mirror with the same layout. watch: called with how many
    files are done, and how many there are. Raises OptionError for an unknown dataset, or an address that is not of the web;
    NetworkError where a file cannot be downloaded; OutputError where one cannot be written, or is not the published one.
    """
    published = SETS.get(name)
    if published is None:
        raise OptionError(f"unknown dataset {name!r}: choose one of {', '.join(SETS)}")
    if address is not None and not re.match(r"https?://[^/\s]", address):
        raise OptionError(f"the address of a mirror starts with https:// or http://, {address!r} does not")
    base = f"{(address or ADDRESS).rstrip('/')}/{name}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            _fetch(f"{base}/{published.listing}", out / published.listing, name, out)
        except NetworkError:
            with suppress(OSError):
                out.rmdir()  # only if it is empty
            raise
        path_inside(out, published.images).mkdir(exist_ok=True)
        text = (out / published.listing).read_text(encoding="utf-8", errors="replace")
        names = list(dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip()))
        for image in names:
            if not re.fullmatch(r"\w[\w.-]*", image):
                raise OutputError(f"{out / published.listing} lists an image {image!r}, which is not a file name")
        paths = [f"{published.images}/{image}" for image in names]
        with ThreadPoolExecutor(THREADS) as pool:
            jobs = [pool.submit(_fetch, f"{base}/{path}", out / path, name, out) for path in paths]
            try:
                for done, job in enumerate(jobs, start=1):
                    job.result()
                    if watch is not None:
                        watch(done, len(jobs))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from None
    files = [published.listing, *paths]
    if len(files) != published.files or tree_hash(out, files) != published.sha256:
        raise OutputError(
            f"the {len(files):,} files in {out} are not those that were published ({published.files:,}, sha256 "
            f"{published.sha256[:12]}…): delete the folder and download it again"
        )
    return out


def tree_hash(folder: Path, paths: list[str]) -> str:
    """The sha256 of the text with a line `sha256␠␠path` for each file, sorted by path."""
    lines = [f"{sha256((folder / path).read_bytes()).hexdigest()}  {path}\n" for path in sorted(paths)]
    return sha256("".join(lines).encode()).hexdigest()


def _fetch(url: str, path: Path, name: str, out: Path) -> None:
    """Download a file under a temporary name, then rename it; a partial download is continued."""
    if path.exists() and path.stat().st_size:
        return
    advice = (
        f"without a network: copy the folder benchmarks/{name} of {REPOSITORY} to {out}, or run becausal bench "
        "scenes, which needs no data"
    )
    part = path_inside(out, path.relative_to(out).with_name(f".{path.name}.part"))
    for attempt in range(TRIES):
        try:
            offset = part.stat().st_size if part.exists() else 0
            request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                continued = answer.status == 206  # a server that ignores the range sends the whole file
                with part.open("ab" if continued else "wb") as file:
                    while block := answer.read(1 << 16):
                        file.write(block)
                wanted = answer.headers.get("Content-Length")
            got = part.stat().st_size - (offset if continued else 0)
            if wanted is not None and got != int(wanted):
                raise ConnectionError(f"{got} of {wanted} bytes were received")
            os.replace(part, path)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # the part is longer than the file: start again
                part.unlink(missing_ok=True)
            elif error.code < 500:
                raise NetworkError(f"{url}: {error.code} {error.reason}; {advice}") from None
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", error) or error)
        time.sleep(0.2 * attempt)
    raise NetworkError(f"cannot reach {url} ({reason}); {advice}")
