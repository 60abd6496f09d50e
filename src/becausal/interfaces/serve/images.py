"""Images from clients: checked in a process of their own, decoded from memory within limits, and written into HTML.

Every upload is decoded once in a process of its own, so that a hostile file cannot use up the server's time or memory.
`UploadChecks` starts the process, `main` is what runs there.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier
from becausal.core.errors import ImageError
from becausal.core.text import one_line
from becausal.images.loading import InputImage, load_image
from becausal.interfaces.serve.limits import Limits
from becausal.render.pages import data_uri
from becausal.render.painting import COMPRESSION

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # common formats; none of their decoders starts a program
COUNTED_FORMATS = ("TIFF", "GIF")  # formats whose header does not tell the number of frames
ORIENTATION = 0x0112  # the EXIF tag
SMALL_PIXELS = 4_000_000
LOSSLESS_SIDE = 960  # pixels of the longest side of images that are shown without loss
THUMBNAIL_SIDE = 144
_decoding = threading.Lock()  # one at a time: decoding a large image takes a few hundred megabytes

MAX_CHECKS = 3  # at once
MAX_CLIENT_CHECKS = 2  # of one client address, so that nobody can occupy all of them
MAX_GOOD = 1000  # files whose hashes are kept
WALL_FACTOR = 4  # seconds on the clock per second of processor time, on a busy machine
PROGRAM = f"from {__name__} import main; main()"


@dataclass(frozen=True)
class Upload:
    """An image file: uploaded by a client, or one of the examples. `name` is only displayed, never used as a path."""

    name: str
    data: bytes


def clean_name(name: str) -> str:
    """The last component of a file name, printable and at most 60 characters."""
    last = "".join(c if c.isprintable() else " " for c in name).replace("\\", "/").rpartition("/")[2].strip()
    return last if 0 < len(last) <= 60 else (f"{last[:40]}…{last[-16:]}" if last else "image")


# ---------------------------------------------------------------- checks in another process


class UploadChecks:
    """Checks a few uploads at once; those of other clients do not wait for a client with slow ones."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(MAX_CHECKS, thread_name_prefix="becausal-check")
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # of each client with uploads
        self._good: OrderedDict[str, None] = OrderedDict()  # hashes of files that were decoded: the page sends one again

    async def check(self, upload: Upload, client: str) -> None:
        """Decode an upload of a client address; raises ImageError if that fails or takes too long."""
        name = sha256(upload.data).hexdigest()
        if name in self._good:
            return
        async with self._slots.setdefault(client, asyncio.Semaphore(MAX_CLIENT_CHECKS)):
            await asyncio.get_running_loop().run_in_executor(self._pool, check_upload, upload, self._limits)
        self._good[name] = None
        while len(self._good) > MAX_GOOD:
            self._good.popitem(last=False)

    def close(self) -> None:
        """Do not start any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def check_upload(upload: Upload, limits: Limits) -> None:
    """Decode an upload in another process within `limits`; raises ImageError if that fails or takes too long."""
    too_slow = ImageError(f"{upload.name} takes too long or too much memory to decode: save it as a JPEG or PNG file")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, upload.name, json.dumps(asdict(limits))],
            input=upload.data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WALL_FACTOR * limits.decode_seconds,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise too_slow from None
    if done.returncode < 0:  # ended by a limit, or by a fault in a decoder
        raise too_slow
    try:
        reply = json.loads(done.stdout)
    except ValueError:
        raise ImageError(f"{upload.name} could not be checked: the process that decodes images has failed") from None
    if reply["error"] is not None:
        raise ImageError(reply["error"])


def main() -> None:
    """Decode the file on stdin, and print as JSON what is wrong with it."""
    name, limits = sys.argv[1], Limits(**json.loads(sys.argv[2]))
    with suppress(ImportError):  # Windows has no such limits; there only the time is limited
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (limits.decode_seconds, limits.decode_seconds))
        resource.setrlimit(resource.RLIMIT_AS, (limits.decode_bytes, limits.decode_bytes))
    error = None
    try:
        decode_image(Upload(name, sys.stdin.buffer.read()), limits)
    except ImageError as failure:
        error = str(failure)
    except MemoryError:
        error = f"{name} takes too much memory to decode: save it as a JPEG or PNG file"
    print(json.dumps({"error": error}))


# ---------------------------------------------------------------- decoding


def decode_image(upload: Upload, limits: Limits) -> InputImage:
    """Decode an uploaded file; raises ImageError if it is not an image or has too many pixels."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            opened = Image.open(BytesIO(upload.data), formats=FORMATS)
        except Image.DecompressionBombError:
            limit = f"the limit is {limits.pixels / 1e6:.0f} million"
            raise ImageError(f"{upload.name} has far too many pixels (a decompression bomb); {limit}") from None
        except Exception:  # Pillow's decoders raise many types of errors on damaged files
            raise ImageError(f"{upload.name} is not an image: expected a JPEG, PNG, WebP, GIF, BMP or TIFF file") from None
        pixels = opened.width * opened.height
        with opened, _decoding if pixels > SMALL_PIXELS else nullcontext():
            if pixels > limits.pixels:
                raise ImageError(
                    f"{upload.name} has {opened.width:,} x {opened.height:,} pixels; the limit is "
                    f"{limits.pixels / 1e6:.0f} million: reduce its size first"
                )
            frame, notes = _first_frame(opened, upload.name)
            image = load_image(frame)
    return replace(image, name=upload.name, sha256=sha256(upload.data).hexdigest(), notes=(*notes, *image.notes))


def _first_frame(opened: "ImageFile", name: str) -> tuple["Image.Image", tuple[str, ...]]:
    """The image without its further frames, and notes.

    The number of frames of a TIFF or GIF file is found by reading all of them. That takes minutes for a hostile file, so
    nothing that follows may ask for it: these images are replaced by a copy of the first frame.
    """
    from PIL import Image

    opened.filename = name
    if opened.format not in COUNTED_FORMATS:
        return opened, ()
    try:
        notes = ("several frames: first frame used",) if getattr(opened, "is_animated", False) else ()
        opened.seek(0)
        frame = opened.copy()
        orientation = opened.getexif().get(ORIENTATION, 1)
    except Exception as error:  # see above
        reason = one_line(error, 200)
        raise ImageError(f"{name} cannot be decoded, it may be damaged or cut short: {reason}") from None
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    frame.info["exif"] = exif.tobytes()
    frame.filename = name  # type: ignore[attr-defined]
    return frame, notes


def read_image(upload: Upload, classifier: Classifier, limits: Limits) -> InputImage:
    """The image for a model. Raises ImageError for a large one where the model does not resize it: calls would be slow."""
    image = decode_image(upload, limits)
    h, w = image.grid
    if classifier.info.geometry is None and h * w > limits.unresized_pixels:
        raise ImageError(
            f"{image.name} has {w:,} x {h:,} pixels, and this model does not resize images; the limit is then "
            f"{limits.unresized_pixels / 1e6:g} million: reduce its size first"
        )
    return image


# ---------------------------------------------------------------- images in HTML


def array_uri(pixels: NDArray[np.uint8], file_format: str = "", side: int | None = None) -> str:
    """(h, w, 3) colours or (h, w) grey levels as a data URI; by default PNG where single pixels can be seen, else JPEG.

    side: the longest side to which larger images are reduced.
    """
    kind = file_format or ("PNG" if max(pixels.shape) <= LOSSLESS_SIDE else "JPEG")
    return data_uri(encode(pixels, kind, side), f"image/{kind.lower()}")


@cache
def thumbnail_uri(example: Upload) -> str:
    """A small version of an example as a data URI."""
    return array_uri(decode_image(example, Limits()).pixels, "JPEG", THUMBNAIL_SIDE)


def encode(pixels: NDArray[np.uint8], file_format: str = "PNG", side: int | None = None) -> bytes:
    """The same as an image file."""
    from PIL import Image

    image, buffer = Image.fromarray(pixels), BytesIO()
    if side is not None:
        image.thumbnail((side, side))
    image.save(buffer, file_format, quality=86, compress_level=COMPRESSION)  # the former for JPEG, the latter for PNG
    return buffer.getvalue()
