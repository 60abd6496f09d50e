"""The photobombing images in their published layout, with the pixels of each occluder.

rex.py needs them in an environment without becausal, so this does not use `becausal.lab.datasets`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 224
SMALLEST = 50  # pixels; smaller occluders are excluded
LINE = re.compile(r"(\S+) (\d+)\(\d+\) (\d+)\(\d+\) (\d+)\(\d+\) (\d+)\(\d+\) (\d+) (.*), (\w+)\s*$")


@dataclass(frozen=True)
class Photobomb:
    """An image, its true label, and the masks of its occluder and, if known, of its object."""

    name: str
    pixels: NDArray[np.uint8]
    label_id: int
    occluder: NDArray[np.bool_]
    object: NDArray[np.bool_] | None = None


def occluder_pixels(r0: int, c0: int, r1: int, c1: int, shape: str) -> NDArray[np.bool_]:
    """The mask of an occluder, derived from the listed box."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    out = np.zeros((SIDE, SIDE), bool)
    middle = ((r0 + r1) / 2, (c0 + c1) / 2)
    if shape == "rectangle":
        out[r0:r1, c0:c1] = True
    elif shape == "box":
        low, high = (r0 + c0) // 2, (r1 + c1) // 2
        out[low:high, low:high] = True
    elif shape == "ellipse":
        radii = max((r1 - r0) / 2, 0.5), max((c1 - c0) / 2, 0.5)
        out = ((rows - middle[0]) / radii[0]) ** 2 + ((columns - middle[1]) / radii[1]) ** 2 <= 1
    elif shape == "disk":
        radius = ((r1 - r0) + (c1 - c0)) / 2
        out = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 <= radius**2
    else:
        raise ValueError(f"unknown occluder shape {shape!r}: expected rectangle, box, ellipse or disk")
    return out


def read_photobombs(folder: Path) -> list[Photobomb]:
    """All images of a folder with an occluder of at least 50 pixels, in the order of the list."""
    found = []
    for line in (folder / "photobombing_groundtruth.txt").read_text().splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        occluder = occluder_pixels(*(int(match[i]) for i in (2, 3, 4, 5)), match[8])
        path = folder / "photobombing_imgs" / match[1]
        if occluder.sum() < SMALLEST or not path.exists():
            continue
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        found.append(Photobomb(match[1], pixels, int(match[6]), occluder))
    return found


def choose(eligible: list[Photobomb], *, reported: bool, count: int = 100) -> list[Photobomb]:
    """The 100 evenly spaced images that results are reported on, or 128 of the others, for tuning."""
    chosen = np.linspace(0, len(eligible) - 1, 100).round().astype(int)
    if not reported:
        others = np.setdiff1d(np.arange(len(eligible)), chosen)
        chosen = others[np.linspace(0, len(others) - 1, 128).round().astype(int)]
    return [eligible[i] for i in chosen[:count]]
