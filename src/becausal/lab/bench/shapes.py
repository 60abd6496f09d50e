"""Shapes, textures and cutouts that are planted into images, and boxes for their positions."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from becausal.core.contracts import Pixels, Visible
from becausal.core.errors import ImageError, OptionError

Box = tuple[int, int, int, int]  # r0, c0, r1, c1
Cutout = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # (h, w, 3) colours and (h, w) alpha


def draw_shape(grid: tuple[int, int], shape: str, area: float, rng: np.random.Generator, box: Box | None = None) -> Visible:
    """A mask of about this area in pixels, centred in the box or, without one, anywhere inside the image."""
    h, w = grid
    aspect = 1.0 if shape in ("box", "disk") else float(np.exp(rng.uniform(-0.7, 0.7)))
    round_ones = 4 / np.pi if shape in ("ellipse", "disk") else 1.0
    tall, wide = (min(float(h), (area * round_ones * aspect) ** 0.5), min(float(w), (area * round_ones / aspect) ** 0.5))
    if shape in ("box", "disk"):
        tall = wide = min(tall, wide)
    if box is None:
        down, across = rng.uniform(tall / 2, h - tall / 2), rng.uniform(wide / 2, w - wide / 2)
    else:
        down, across = rng.uniform(box[0], max(box[2], box[0] + 1)), rng.uniform(box[1], max(box[3], box[1] + 1))
    rows, columns = np.mgrid[:h, :w] + 0.5
    y, x = np.abs(rows - down) / max(tall / 2, 0.5), np.abs(columns - across) / max(wide / 2, 0.5)
    return np.asarray((y**2 + x**2 <= 1) if shape in ("ellipse", "disk") else (y <= 1) & (x <= 1), bool)


def draw_texture(grid: tuple[int, int], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Stripes, checks or spots in two random colours, (h, w, 3)."""
    one, two = rng.integers(0, 256, (2, 3))
    period, turn = rng.uniform(6, 24) * max(grid) / 224, rng.uniform(0, np.pi)
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    along = (rows * np.cos(turn) + columns * np.sin(turn)) / period
    across = (columns * np.cos(turn) - rows * np.sin(turn)) / period
    match int(rng.integers(3)):
        case 0:
            is_one = along % 1 < 0.5
        case 1:
            is_one = (along % 1 < 0.5) ^ (across % 1 < 0.5)
        case _:
            is_one = (along % 1 - 0.5) ** 2 + (across % 1 - 0.5) ** 2 < 0.09
    return np.asarray(np.where(is_one[..., None], one, two), np.uint8)


def read_cutout(path: Path) -> Cutout:
    """The colours and the alpha channel of an image; 255 if it has no transparency.

    Raises:
        ImageError: It cannot be read.
    """
    try:
        with Image.open(path) as image:
            whole = np.asarray(image.convert("RGBA"))
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise ImageError(f"{path} cannot be read as an image: {error}") from None
    return whole[..., :3].copy(), whole[..., 3].copy()


def paste(
    pixels: Pixels, cutout: Cutout, width: int, rng: np.random.Generator, *, box: Box | None = None
) -> tuple[Pixels, Visible]:
    """Paste a cutout of this width at a random position, centred in the box if there is one.

    Returns:
        The new image, and the mask of the pasted pixels, (h, w), which are at least half opaque.
    """
    h, w = pixels.shape[:2]
    tall = max(1, round(width * cutout[1].shape[0] / cutout[1].shape[1]))
    if tall > h:
        width, tall = max(1, round(width * h / tall)), h
    size = (width, tall)
    colours = np.asarray(Image.fromarray(cutout[0]).resize(size, Image.Resampling.BILINEAR))
    solid = np.asarray(Image.fromarray(cutout[1]).resize(size, Image.Resampling.BILINEAR)) >= 128
    if box is None:
        top, left = int(rng.integers(0, h - tall + 1)), int(rng.integers(0, max(1, w - width + 1)))
    else:
        middle = int(rng.integers(box[0], max(box[2], box[0] + 1))), int(rng.integers(box[1], max(box[3], box[1] + 1)))
        top = int(np.clip(middle[0] - tall // 2, 0, max(0, h - tall)))
        left = int(np.clip(middle[1] - width // 2, 0, max(0, w - width)))
    out, mask = pixels.copy(), np.zeros((h, w), bool)
    room = (slice(top, top + tall), slice(left, left + width))
    fits = mask[room].shape
    mask[room] = solid[: fits[0], : fits[1]]
    out[room] = np.where(mask[room][..., None], colours[: fits[0], : fits[1]], out[room])
    return out, mask


def bounds(mask: Visible) -> Box:
    """The bounding box of a mask: r0, c0, r1, c1, the last two exclusive; all 0 for an empty mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return (0, 0, 0, 0)
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def read_boxes(path: Path) -> dict[str, Box]:
    """The boxes of objects by image, from lines `name x0 y0 x1 y1` separated by spaces or commas.

    Raises:
        OptionError: The file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the boxes in {path} cannot be read: {error}") from None
    found = {}
    for line in lines:
        parts = line.replace(",", " ").split()
        if not parts:
            continue
        try:
            name, (x0, y0, x1, y1) = parts[0], (int(float(part)) for part in parts[1:])
        except ValueError:
            raise OptionError(f"a line with a box has the form name x0 y0 x1 y1, not {line[:80]!r}") from None
        found[name] = (y0, x0, y1, x1)
    return found
