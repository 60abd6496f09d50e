"""Images from clients, decoded from memory within limits, and generated examples."""

import threading
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier
from becausal.core.errors import ImageError
from becausal.core.text import one_line
from becausal.images.loading import InputImage, load_image
from becausal.interfaces.serve.limits import Limits
from becausal.render.pages import data_uri
from becausal.render.painting import COMPRESSION
from becausal.scenes import make_group, make_scene

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # common formats; none of their decoders starts a program
PREVIEW_SIDE = 720  # pixels of the longest side of the preview
LOSSLESS_SIDE = 960  # the same of images that are shown without loss
COUNTED_FORMATS = ("TIFF", "GIF")  # formats whose header does not tell the number of frames
ORIENTATION = 0x0112  # the EXIF tag
SMALL_PIXELS = 4_000_000
_decoding = threading.Lock()  # one at a time: decoding a large image takes a few hundred megabytes

#: Label and seed of scenes whose object is partly covered and that the bundled classifier gets right.
EXAMPLES = (
    ("bus", 1025),
    ("house", 1002),
    ("sailboat", 1011),
    ("butterfly", 1000),
    ("mug", 1028),
    ("clock", 1005),
    ("umbrella", 1017),
    ("plane", 1008),
)
#: Seeds of scenes with several objects, all of which the bundled detector finds.
GROUP_EXAMPLES = (1055, 1036, 1011, 1050, 1016, 1028, 1044, 1023)


@dataclass(frozen=True)
class Upload:
    """An image file: uploaded by a client, or one of the examples. `name` is only displayed, never used as a path."""

    name: str
    data: bytes


def clean_name(name: str) -> str:
    """The last component of a file name, printable and at most 60 characters."""
    last = "".join(c if c.isprintable() else " " for c in name).replace("\\", "/").rpartition("/")[2].strip()
    return last if 0 < len(last) <= 60 else (f"{last[:40]}…{last[-16:]}" if last else "image")


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


def check_image_size(image: InputImage, classifier: Classifier, limits: Limits) -> None:
    """Raise ImageError for a large image and a model that does not resize it: every model call would be slow."""
    h, w = image.grid
    if classifier.info.geometry is None and h * w > limits.unresized_pixels:
        raise ImageError(
            f"{image.name} has {w:,} x {h:,} pixels, and this model does not resize images; the limit is then "
            f"{limits.unresized_pixels / 1e6:g} million: reduce its size first"
        )


def preview_uri(image: InputImage) -> str:
    """The image as a data URI, reduced to `PREVIEW_SIDE` where it is larger."""
    from PIL import Image

    pillow, file_format = Image.fromarray(image.pixels), "PNG" if max(image.grid) <= PREVIEW_SIDE else "JPEG"
    pillow.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    return data_uri(_encode(pillow, file_format), f"image/{file_format.lower()}")


@lru_cache(32)
def thumbnail_uri(upload: Upload, side: int = 144) -> str:
    """A small square version of an example as a data URI."""
    from PIL import Image

    with Image.open(BytesIO(upload.data), formats=FORMATS) as image:
        return data_uri(_encode(image.convert("RGB").resize((side, side)), "JPEG"), "image/jpeg")


def array_uri(pixels: NDArray[np.uint8]) -> str:
    """(h, w, 3) colours as the data URI of a JPEG file."""
    from PIL import Image

    return data_uri(_encode(Image.fromarray(pixels), "JPEG"), "image/jpeg")


def show_array(pixels: NDArray[np.uint8]) -> str:
    """(h, w, 3) colours as a data URI: PNG where single pixels can be seen, else JPEG."""
    from PIL import Image

    file_format = "PNG" if max(pixels.shape) <= LOSSLESS_SIDE else "JPEG"
    return data_uri(_encode(Image.fromarray(pixels), file_format), f"image/{file_format.lower()}")


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """(h, w, 3) colours or (h, w) grey levels as a PNG file."""
    from PIL import Image

    return _encode(Image.fromarray(pixels), "PNG")


def _encode(image: "Image.Image", file_format: str) -> bytes:
    buffer = BytesIO()
    image.save(buffer, file_format, quality=86, compress_level=COMPRESSION)  # the former for JPEG, the latter for PNG
    return buffer.getvalue()


@cache
def make_examples(size: int = 256) -> tuple[Upload, ...]:
    """The example images, generated when they are first asked for."""
    from PIL import Image

    scenes = ((label, make_scene(seed, label=label, size=size)) for label, seed in EXAMPLES)
    return tuple(Upload(f"{label}.png", _encode(Image.fromarray(scene.image), "PNG")) for label, scene in scenes)


@cache
def make_group_examples() -> tuple[Upload, ...]:
    """The same for the bundled detector."""
    from PIL import Image

    scenes = [make_group(seed) for seed in GROUP_EXAMPLES]
    names = [", ".join(sorted(one.label for one in scene.objects)) for scene in scenes]
    return tuple(Upload(f"{n}.png", _encode(Image.fromarray(s.image), "PNG")) for n, s in zip(names, scenes, strict=True))
