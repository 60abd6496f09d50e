"""Files, Pillow images and arrays read as images, and images turned into views.

An `InputImage` is what was given: upright, 8 bits, three channels; or a raw array, whose channel axis is last and of size
one where it had none. A `View` is the image as the classifier sees it, with the `Frame` that maps it back.
"""

import hashlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from becausal.core.contracts import Geometry, Grid, Pixels
from becausal.core.errors import ImageError, InputError
from becausal.core.files import open_regular
from becausal.core.frames import Frame, plan_frame
from becausal.core.text import one_line, reason_of
from becausal.images.arrays import Channels, read_array, read_npy, to_rgb

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors are printed, beside ours

__all__ = ["Channels", "Frame", "InputImage", "Source", "View", "load_image", "make_view"]

Source = str | bytes | os.PathLike[str] | Image.Image | NDArray[np.generic]

_MOST_PIXELS = 2 * 89_478_485  # twice Pillow's own limit: where Pillow itself refuses
_SHOWN_SIDE = 1024  # pixels of the longest side of an original in figures
_BARS = (114, 114, 114)  # the grey beside a letterboxed image that YOLO models are trained with
_MOST_RESIZED = 64_000_000  # beyond this a thin strip is cut before it is resized, not after


@dataclass(frozen=True)
class InputImage:
    """What was given, as an array, channel axis last.

    pixels: (h, w, 3) uint8 for images; (*grid, channels) of any real type for raw arrays.
    sha256: of the file's bytes, or of the array's. notes: what had to be done to read it.
    squeeze: the original had no channel axis. path: of the file, absolute; None for anything else.
    """

    pixels: Pixels
    name: str
    sha256: str
    notes: tuple[str, ...] = ()
    squeeze: bool = False
    path: str | None = None

    @property
    def grid(self) -> Grid:
        return tuple(self.pixels.shape[:-1])


@dataclass(frozen=True)
class View:
    """An image as the classifier sees it: (*grid, channels), not normalised, with the way back."""

    pixels: Pixels
    frame: Frame
    squeeze: bool = False

    @property
    def grid(self) -> Grid:
        return tuple(self.pixels.shape[:-1])


def load_image(source: Source, *, channels: Channels = "auto") -> InputImage:
    """The image in a file (any that Pillow reads, or .npy), in a Pillow image or in an array.

    channels: whether a raw array's last axis is its channels; "auto" tells by the shape, and the notes say how.
    Raises ImageError, one line, for what cannot be read.
    """
    if isinstance(source, np.ndarray):
        pixels, squeeze, notes = read_array(source, channels, "the array")
        return InputImage(pixels, "array", _digest(np.ascontiguousarray(source).tobytes()), notes, squeeze)
    if isinstance(source, Image.Image):
        name = Path(getattr(source, "filename", "") or "image").name
        with _reading(name):
            pixels, notes = _decode(source, name)
        return InputImage(pixels, name, _digest(pixels.tobytes()), notes)
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise ImageError(f"an image is a path, an array or a Pillow image, not {type(source).__name__}")
    path = Path(os.fsdecode(source))
    return replace(_load_file(path, channels), path=os.path.abspath(path))


def peek_size(path: Path) -> Grid | None:
    """Height and width of an image file, from its header alone; None for what is not an image, or cannot be read."""
    try:
        with open_regular(path) as file, warnings.catch_warnings(action="ignore"), Image.open(file) as image:
            return image.height, image.width
    except Exception:  # `load_image` says what is wrong
        return None


def make_view(image: InputImage, geometry: Geometry | None, *, channels: int | None = 3) -> View:
    """The image as a model with this geometry sees it.

    geometry None: as it is. channels: of the view the model wants; any number but 3 takes a raw array that fits
    exactly. An image that needs no resizing passes bit for bit. Raises ImageError for what does not fit.
    """
    if geometry is None:
        return View(image.pixels, Frame.identity(image.grid), image.squeeze)
    if channels not in (None, 3):
        wanted = (*geometry.grid, channels)
        if image.pixels.shape != wanted:
            raise ImageError(f"{image.name} has shape {image.pixels.shape}; the model takes exactly {wanted}")
        return View(image.pixels, Frame.identity(image.grid), image.squeeze)
    pixels = to_rgb(image.pixels, image.name)
    frame = plan_frame((pixels.shape[0], pixels.shape[1]), geometry)
    if frame.is_identity:
        return View(pixels, frame)
    padding = _BARS if geometry.resize == "letterbox" else (0, 0, 0)
    return View(_resize_and_cut(pixels, frame, geometry.interpolation, padding), frame)


def read_like(view: Pixels, path: str, *, geometry: Geometry | None, channels: int | None) -> Pixels:
    """An image file in the shape of a view; without a geometry, it is resized and cropped to the size of the view.

    Raises:
        ImageError: It cannot be read, or does not fit.
    """
    if geometry is None and view.ndim == 3:
        geometry = Geometry((view.shape[0], view.shape[1]))
    return make_view(load_image(path), geometry, channels=channels).pixels


def shown_original(image: InputImage, frame: Frame) -> NDArray[np.uint8] | None:
    """The image for figures, (h, w, 3), reduced if it is large; None where the view is the image."""
    if frame.is_identity:
        return None
    reduced = Image.fromarray(to_rgb(image.pixels, image.name))
    reduced.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE), Image.Resampling.BILINEAR)
    return np.asarray(reduced, np.uint8).copy()


def _load_file(path: Path, channels: Channels) -> InputImage:
    try:
        with open_regular(path) as file:
            return _read_file(file, path, channels)
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except ImageError:
        raise
    except InputError as error:  # not a regular file
        raise ImageError(str(error)) from None
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {reason_of(error)}") from None


def _read_file(file: BufferedReader, path: Path, channels: Channels) -> InputImage:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.tell()
    file.seek(0)
    magic = file.read(6)
    file.seek(0)
    if size == 0:
        raise ImageError(f"{path} is empty: 0 bytes")
    if magic == b"\x93NUMPY" or path.suffix.lower() == ".npy":
        pixels, squeeze, notes = read_npy(path, channels)
        return InputImage(pixels, path.name, digest, notes, squeeze)
    with _reading(path.name), Image.open(file) as image:
        pixels, notes = _decode(image, path.name)
    return InputImage(pixels, path.name, digest, notes)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Whatever goes wrong in Pillow becomes an ImageError; its warnings of size and metadata are not passed on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ImageError:
            raise
        except Image.DecompressionBombError:
            raise ImageError(_too_big(name)) from None
        except UnidentifiedImageError:
            raise ImageError(
                f"{name} is no image that Pillow knows: give a JPEG, PNG, WebP, GIF, BMP, TIFF or .npy file"
            ) from None
        except MemoryError:
            raise ImageError(f"{name} is too large for the memory: make it smaller first") from None
        except Exception as error:  # Pillow's readers raise whatever they trip over in a damaged file
            reason = one_line(error, 200)
            raise ImageError(f"{name} cannot be decoded, it may be damaged or cut short: {reason}") from error


def _decode(image: Image.Image, name: str) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """The first frame, upright, in 8-bit RGB over white: (h, w, 3) uint8, and what was done to get there."""
    if image.width * image.height > _MOST_PIXELS:
        raise ImageError(_too_big(name))
    notes = []
    if getattr(image, "is_animated", False):  # without counting: a file may have very many frames
        image.seek(0)
        notes.append("several frames: first frame used")
    image.load()
    upright = ImageOps.exif_transpose(image)
    rgb, more = _as_rgb(upright)
    if upright.size != image.size or image.getexif().get(0x0112, 1) not in (0, 1):
        notes.append("turned upright by its EXIF orientation")
    return rgb, (*notes, *more)


def _as_rgb(image: Image.Image) -> tuple[NDArray[np.uint8], list[str]]:
    notes: list[str] = []
    if image.mode.startswith("I") or image.mode == "F":
        return _grey_of_many_bits(image)
    if image.mode in ("CMYK", "YCbCr", "HSV"):
        notes.append(f"{image.mode} converted to RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if np.asarray(image.getchannel("A")).min() < 255:
            notes.append("alpha composited over white")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"), np.uint8).copy(), notes


def _grey_of_many_bits(image: Image.Image) -> tuple[NDArray[np.uint8], list[str]]:
    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise ImageError("the image holds NaN or infinite numbers")
    low, high = float(values.min()), float(values.max())
    if image.mode == "F":
        if low < 0 or high > 255 or 0 < high <= 1:
            raise ImageError(
                f"a float image of {low:g}..{high:g} has no known scale: save it as 0..255, or give the array as .npy"
            )
        grey, note = np.rint(values), "float grey rounded to 8 bits"
    elif low < 0 or high > 65535:
        raise ImageError(f"a 32-bit image of {low:g}..{high:g} has no known scale: save it with 8 or 16 bits")
    else:
        grey, note = np.rint(values / 257), "16-bit scaled to 8"
    return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2), [note]


def _resize_and_cut(
    pixels: NDArray[np.uint8], frame: Frame, interpolation: str, padding: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """(h, w, 3) resized and cut as the frame says; of the colour `padding` where the cut is larger than the image."""
    image = Image.fromarray(pixels)
    how = Image.Resampling[interpolation.upper()]
    (rows, columns), (top, left), (h, w) = frame.resized, frame.origin, frame.grid
    if rows * columns > _MOST_RESIZED:
        return np.asarray(image.resize((w, h), how, box=_box_on_original(frame)), np.uint8).copy()
    if (columns, rows) != image.size:
        image = image.resize((columns, rows), how)
    cut = Image.new("RGB", (w, h), padding)
    cut.paste(image, (-left, -top))  # what lies beyond the cut is left out
    return np.asarray(cut, np.uint8).copy()


def _box_on_original(frame: Frame) -> tuple[float, float, float, float]:
    (top, left), (down, right) = frame.offset, frame.scale
    bottom = min(top + frame.grid[0] * down, frame.original[0])
    return (max(left, 0), max(top, 0), min(left + frame.grid[1] * right, frame.original[1]), bottom)


def _too_big(name: str) -> str:
    return f"{name} has more than {_MOST_PIXELS // 10**6} million pixels: make it smaller first"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
