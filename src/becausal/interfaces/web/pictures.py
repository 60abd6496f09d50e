"""Images that clients send: read from memory, within limits, never from a path; and drawn ones for a start."""

import threading
import warnings
from base64 import b64encode
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from becausal.core.contracts import Classifier
from becausal.core.errors import ImageError
from becausal.images.loading import InputImage, load_image
from becausal.interfaces.web.limits import Limits
from becausal.scenes import make_scene

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # what a browser's user has; no reader that starts a program
PREVIEW = 720  # pixels of the longest side of what is shown back
_decoding = threading.Lock()  # one at a time: a large image takes a few hundred megabytes while it is decoded


@dataclass(frozen=True)
class Upload:
    """An image's file as a client sent it, or one that was drawn here, with a name to show."""

    name: str
    data: bytes


def clean_name(name: str) -> str:
    """The last part of a name in printable characters, short enough to show; it never becomes a path."""
    last = "".join(c if c.isprintable() else " " for c in name).replace("\\", "/").rpartition("/")[2].strip()
    return last if 0 < len(last) <= 60 else (f"{last[:40]}…{last[-16:]}" if last else "picture")


def read_picture(upload: Upload, limits: Limits) -> InputImage:
    """The decoded image. Raises ImageError, one line, for what is none or has too many pixels."""
    with _decoding, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(BytesIO(upload.data), formats=FORMATS)
        except Exception:  # Pillow's readers raise whatever they trip over in a damaged file
            raise ImageError(f"{upload.name} is no image: give a JPEG, PNG, WebP, GIF, BMP or TIFF file") from None
        with image:
            if image.width * image.height > limits.pixels:
                raise ImageError(
                    f"{upload.name} has {image.width:,} x {image.height:,} pixels; this page takes at most "
                    f"{limits.pixels / 1e6:.0f} million: make it smaller first"
                )
            image.filename = upload.name
            picture = load_image(image)
    return replace(picture, name=upload.name, sha256=sha256(upload.data).hexdigest())


def check_fits(picture: InputImage, classifier: Classifier, limits: Limits) -> None:
    """Refuse a large image for a model that would take it as it is: each call would cost as much."""
    h, w = picture.grid
    if classifier.info.geometry is None and h * w > limits.loose_pixels:
        raise ImageError(
            f"{picture.name} has {w:,} x {h:,} pixels, and this model takes images as they are: "
            f"this page gives it at most {limits.loose_pixels / 1e6:g} million"
        )


def as_image(picture: InputImage) -> Image.Image:
    """The image as Pillow has it, under its name."""
    image = Image.fromarray(picture.pixels)
    image.filename = picture.name  # type: ignore[attr-defined]
    return image


def preview(picture: InputImage) -> str:
    """The image, no larger than needed, as a data URI."""
    image = Image.fromarray(picture.pixels)
    image.thumbnail((PREVIEW, PREVIEW))
    return as_uri(image, "PNG" if max(picture.grid) <= PREVIEW else "JPEG")


def thumbnail(upload: Upload, side: int = 144) -> str:
    """A small square of an example, as a data URI."""
    with Image.open(BytesIO(upload.data), formats=FORMATS) as image:
        return as_uri(image.convert("RGB").resize((side, side)), "JPEG")


def as_uri(image: Image.Image, kind: str) -> str:
    """An image as a data URI, so that no image of a client is ever a file or an address of its own."""
    buffer = BytesIO()
    image.save(buffer, kind, quality=86)  # only JPEG heeds the quality
    return file_uri(buffer.getvalue(), kind.lower())


def file_uri(data: bytes, kind: str = "png") -> str:
    """The bytes of an image file as a data URI."""
    return f"data:image/{kind};base64,{b64encode(data).decode('ascii')}"


def array_uri(pixels: NDArray[np.uint8], kind: str = "PNG") -> str:
    """(h, w, 3) colours or (h, w) grey levels as a data URI."""
    return as_uri(Image.fromarray(pixels), kind)


#: Seeds of scenes with something in front of the object, one label each, that the bundled classifier names right.
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


def draw_examples(size: int = 256) -> tuple[Upload, ...]:
    """The images to begin with, drawn when the server starts."""
    drawn = []
    for label, seed in EXAMPLES:
        buffer = BytesIO()
        Image.fromarray(make_scene(seed, label=label, size=size).picture).save(buffer, "PNG")
        drawn.append(Upload(f"{label}.png", buffer.getvalue()))
    return tuple(drawn)
