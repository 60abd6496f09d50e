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
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from becausal.core.contracts import Geometry, Grid, Pixels
from becausal.core.errors import ImageError, InputError
from becausal.core.files import open_regular
from becausal.core.frames import Frame, plan_frame
from becausal.core.text import one_line, reason_of

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors are printed, beside ours

Channels = Literal["auto", "last", "none"]
Source = str | bytes | os.PathLike[str] | Image.Image | NDArray[np.generic]

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".npy")
_MOST_VALUES = 1 << 30  # of an array
_MOST_PIXELS = 2 * 89_478_485  # twice Pillow's own limit: where Pillow itself refuses
_TOO_BIG = f"has more than {_MOST_PIXELS // 10**6} million pixels: make it smaller first"
_SHOWN_SIDE = 1024  # pixels of the longest side of an original in figures
_BARS = (114, 114, 114)  # the grey beside a letterboxed image that YOLO models are trained with
_MOST_RESIZED = 64_000_000  # beyond this a thin strip is cut before it is resized, not after


@dataclass(frozen=True)
class InputImage:
    """What was given, as an array, channel axis last.

    pixels: (h, w, 3) uint8 for images; (*grid, channels) of any real type for raw arrays.
    sha256: of the file's bytes, or of the array's. notes: what had to be done to read it.
    path: of the file, absolute; None for anything else.
    """

    pixels: Pixels
    name: str
    sha256: str
    notes: tuple[str, ...] = ()
    path: str | None = None

    @property
    def grid(self) -> Grid:
        return tuple(self.pixels.shape[:-1])


@dataclass(frozen=True)
class View:
    """An image as the classifier sees it: (*grid, channels), not normalised, with the way back."""

    pixels: Pixels
    frame: Frame

    @property
    def grid(self) -> Grid:
        return tuple(self.pixels.shape[:-1])


def load_image(source: Source, *, channels: Channels = "auto") -> InputImage:
    """The image in a file (any that Pillow reads, or .npy), in a Pillow image or in an array.

    channels: whether a raw array's last axis is its channels; "auto" tells by the shape, and the notes say how.
    Raises ImageError, one line, for what cannot be read.
    """
    if isinstance(source, np.ndarray):
        pixels, notes = _read_array(source, channels, "the array")
        return InputImage(pixels, "array", hashlib.sha256(np.ascontiguousarray(source).tobytes()).hexdigest(), notes)
    if isinstance(source, Image.Image):
        name = Path(getattr(source, "filename", "") or "image").name
        with _reading(name):
            pixels, notes = _decode(source, name)
        return InputImage(pixels, name, hashlib.sha256(pixels.tobytes()).hexdigest(), notes)
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise ImageError(f"an image is a path, an array or a Pillow image, not {type(source).__name__}")
    path = Path(os.fsdecode(source))
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            file.seek(0)
            magic = file.read(6)
            file.seek(0)
            if size == 0:
                raise ImageError(f"{path} is empty: 0 bytes")
            if magic == b"\x93NUMPY" or path.suffix.lower() == ".npy":
                try:
                    # Mapped first, so that a header that promises more than the file holds costs no memory.
                    array = np.load(path, mmap_mode="r", allow_pickle=False)
                except (OSError, ValueError, EOFError, SyntaxError, TypeError, TokenError) as error:
                    raise ImageError(f"{path} cannot be read as a .npy array: {one_line(error, 200)}") from None
                if not isinstance(array, np.ndarray):
                    raise ImageError(f"{path} holds several arrays: save one with numpy.save")
                pixels, notes = _read_array(array, channels, path.name)
            else:
                with _reading(path.name), Image.open(file) as image:
                    pixels, notes = _decode(image, path.name)
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except ImageError:
        raise
    except InputError as error:  # not a regular file
        raise ImageError(str(error)) from None
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {reason_of(error)}") from None
    return InputImage(pixels, path.name, digest, notes, os.path.abspath(path))


def peek_size(path: Path) -> Grid | None:
    """Height and width of an image file, from its header alone; None for what is not an image, or cannot be read."""
    try:
        with open_regular(path) as file, warnings.catch_warnings(action="ignore"), Image.open(file) as image:
            return image.height, image.width
    except Exception:  # `load_image` says what is wrong
        return None


def list_images(folder: Path) -> Iterator[str]:
    """All images below a folder, sorted by name within each folder; hidden files and folders are skipped."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield str(Path(root) / name)


def digest_file(path: str | Path) -> str:
    """The sha256 of a regular file. Raises OSError or InputError where it cannot be read."""
    state = os.stat(path)
    return _digest_file(os.path.abspath(path), state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=10_000)  # read again only if its state has changed: a run over many images asks for each background
def _digest_file(path: str, *_state: int) -> str:
    with open_regular(Path(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_view(image: InputImage, geometry: Geometry | None, *, channels: int | None = 3) -> View:
    """The image as a model with this geometry sees it.

    geometry None: as it is. channels: of the view the model wants; any number but 3 takes a raw array that fits
    exactly. An image that needs no resizing passes bit for bit. Raises ImageError for what does not fit.
    """
    if geometry is None or channels not in (None, 3):
        if geometry is not None and image.pixels.shape != (*geometry.grid, channels):
            wanted = (*geometry.grid, channels)
            raise ImageError(f"{image.name} has shape {image.pixels.shape}; the model takes exactly {wanted}")
        return View(image.pixels, Frame.identity(image.grid))
    pixels = to_rgb(image.pixels, image.name)
    frame = plan_frame((pixels.shape[0], pixels.shape[1]), geometry)
    if frame.is_identity:
        return View(pixels, frame)
    resized, how = Image.fromarray(pixels), Image.Resampling[geometry.interpolation.upper()]
    (rows, columns), (top, left), (h, w) = frame.resized, frame.origin, frame.grid
    if rows * columns > _MOST_RESIZED:
        (above, beside), (down, across) = frame.offset, frame.scale
        right, bottom = min(beside + w * across, frame.original[1]), min(above + h * down, frame.original[0])
        cut = resized.resize((w, h), how, box=(max(beside, 0), max(above, 0), right, bottom))
    else:
        if (columns, rows) != resized.size:
            resized = resized.resize((columns, rows), how)
        cut = Image.new("RGB", (w, h), _BARS if geometry.resize == "letterbox" else (0, 0, 0))
        cut.paste(resized, (-left, -top))  # what lies beyond the cut is left out
    return View(np.asarray(cut, np.uint8).copy(), frame)


def read_like(view: Pixels, source: Source, *, geometry: Geometry | None, channels: int | None) -> Pixels:
    """An image in the shape of a view; without a geometry, it is resized and cropped to the size of the view."""
    if geometry is None and view.ndim == 3:
        geometry = Geometry((view.shape[0], view.shape[1]))
    return make_view(load_image(source), geometry, channels=channels).pixels


def shown_original(image: InputImage, frame: Frame) -> NDArray[np.uint8] | None:
    """The image for figures, (h, w, 3), reduced if it is large; None where the view is the image."""
    if frame.is_identity:
        return None
    reduced = Image.fromarray(to_rgb(image.pixels, image.name))
    reduced.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE), Image.Resampling.BILINEAR)
    return np.asarray(reduced, np.uint8).copy()


def to_rgb(pixels: Pixels, name: str) -> NDArray[np.uint8]:
    """An image array of 0..255 as (h, w, 3) uint8: grey repeated, alpha composited over white.

    Raises ImageError for what is no image, or has no known scale.
    """
    if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[-1] == 3:
        return pixels
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4):
        raise ImageError(
            f"{name} has shape {pixels.shape}; this model takes images, (h, w) or (h, w, 3): "
            "for signals and volumes give a python: function"
        )
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype != np.uint8 and (low < 0 or high > 255 or 0 < high <= 1):
        raise ImageError(f"{name} holds {low:g}..{high:g}; this model takes images of 0..255: rescale it first")
    if pixels.shape[-1] == 4:
        colour, alpha = pixels[..., :3].astype(np.float64), pixels[..., 3:].astype(np.float64) / 255
        pixels = colour * alpha + 255 * (1 - alpha)
    values = np.rint(pixels).astype(np.uint8) if pixels.dtype != np.uint8 else pixels
    return np.repeat(values, 3, axis=2) if values.shape[-1] == 1 else values


def _read_array(array: NDArray[Any], channels: Channels, name: str) -> tuple[Pixels, tuple[str, ...]]:
    """Pixels (*grid, channels), and the reading taken, in words.

    auto: (n,) is a signal, (h, w) a grid; (h, w, c) with c of 1, 3 or 4 and smaller than both is an image, as is any
    (h, w, 3) of uint8, any other 3-D array a volume; a 4-D array is a volume with channels. Raises ImageError for
    anything else.
    """
    if array.dtype.kind not in "buif":
        raise ImageError(f"{name} holds {array.dtype}; expected real numbers")
    if array.ndim == 0 or array.size == 0 or array.size > _MOST_VALUES:
        raise ImageError(f"{name} has shape {array.shape}; expected one to four axes, none empty")
    if array.ndim > 4:
        raise ImageError(f"{name} has {array.ndim} axes; expected one to four: give one image, not a batch")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ImageError(f"{name} holds NaN or infinite numbers: replace them first")
    shape = array.shape
    is_rgb = array.dtype == np.uint8 and shape[-1] == 3
    is_image = len(shape) == 3 and (is_rgb or (shape[2] in (1, 3, 4) and min(shape[:2]) > shape[2]))
    has_channels = is_image or len(shape) == 4 if channels == "auto" else channels == "last"
    if has_channels and array.ndim == 1:
        raise ImageError(f"{name} has one axis and so no channels: give channels='none'")
    # A plain copy in this machine's byte order: nothing below need know of maps, strides or types of other machines.
    plain = np.array(array, dtype=np.uint8 if array.dtype == np.bool_ else array.dtype.newbyteorder("="), order="C")
    pixels = plain if has_channels else plain[..., None]
    grid = pixels.shape[:-1]
    names = {1: "a signal", 3: "a volume"}
    kind = "an image" if has_channels and len(grid) == 2 else names.get(len(grid), "a grid")
    tail = f" with {pixels.shape[-1]} channels last" if has_channels else " without channels"
    return pixels, (f"array read as {kind} of {'x'.join(str(n) for n in grid)}{tail}, {pixels.dtype}",)


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
            raise ImageError(f"{name} {_TOO_BIG}") from None
        except UnidentifiedImageError:
            raise ImageError(
                f"{name} is no image in a known format: give a JPEG, PNG, WebP, GIF, BMP, TIFF or .npy file"
            ) from None
        except MemoryError:
            raise ImageError(f"{name} is too large for the memory: make it smaller first") from None
        except Exception as error:  # Pillow's readers raise whatever they trip over in a damaged file
            reason = one_line(error, 200)
            raise ImageError(f"{name} cannot be decoded, it may be damaged or cut short: {reason}") from error


def _decode(image: Image.Image, name: str) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """The first frame, upright, in 8-bit RGB over white: (h, w, 3) uint8, and what was done to get there."""
    if image.width * image.height > _MOST_PIXELS:
        raise ImageError(f"{name} {_TOO_BIG}")
    notes = []
    if getattr(image, "is_animated", False):  # without counting: a file may have very many frames
        image.seek(0)
        notes.append("several frames: first frame used")
    image.load()
    upright = ImageOps.exif_transpose(image)
    if upright.size != image.size or image.getexif().get(0x0112, 1) not in (0, 1):
        notes.append("turned upright by its EXIF orientation")
    if upright.mode.startswith("I") or upright.mode == "F":
        values = np.asarray(upright)
        if not np.isfinite(values).all():
            raise ImageError("the image holds NaN or infinite numbers")
        low, high = float(values.min()), float(values.max())
        if upright.mode == "F":
            if low < 0 or high > 255 or 0 < high <= 1:
                raise ImageError(
                    f"a float image of {low:g}..{high:g} has no known scale: save it as 0..255, or give the array as .npy"
                )
            notes.append("float grey rounded to 8 bits")
        elif low < 0 or high > 65535:
            raise ImageError(f"a 32-bit image of {low:g}..{high:g} has no known scale: save it with 8 or 16 bits")
        else:
            values = values / 257
            notes.append("16-bit scaled to 8")
        return np.repeat(np.rint(values).astype(np.uint8)[:, :, None], 3, axis=2), tuple(notes)
    if upright.mode in ("CMYK", "YCbCr", "HSV"):
        notes.append(f"{upright.mode} converted to RGB")
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        if np.asarray(upright.getchannel("A")).min() < 255:
            notes.append("alpha composited over white")
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
    return np.asarray(upright.convert("RGB"), np.uint8).copy(), tuple(notes)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """The content of a PNG file with these pixels, (h, w) grey or (h, w, 3)."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
