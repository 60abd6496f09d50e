"""Images from clients, decoded from memory within limits, and generated examples."""

import threading
import warnings
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier
from becausal.core.errors import ImageError
from becausal.images.loading import InputImage, load_image
from becausal.interfaces.web.limits import Limits
from becausal.render.pages import data_uri
from becausal.scenes import make_scene

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # common formats; none of their decoders starts a program
PREVIEW_SIDE = 720  # pixels of the longest side of the preview
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

    with _decoding, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            opened = Image.open(BytesIO(upload.data), formats=FORMATS)
        except Exception:  # Pillow's decoders raise many types of errors on damaged files
            raise ImageError(f"{upload.name} is not an image: expected a JPEG, PNG, WebP, GIF, BMP or TIFF file") from None
        with opened:
            if opened.width * opened.height > limits.pixels:
                raise ImageError(
                    f"{upload.name} has {opened.width:,} x {opened.height:,} pixels; the limit is "
                    f"{limits.pixels / 1e6:.0f} million: reduce its size first"
                )
            opened.filename = upload.name
            image = load_image(opened)
    return replace(image, name=upload.name, sha256=sha256(upload.data).hexdigest())


def check_image_size(image: InputImage, classifier: Classifier, limits: Limits) -> None:
    """Raise ImageError for a large image and a model that does not resize it: every model call would be slow."""
    h, w = image.grid
    if classifier.info.geometry is None and h * w > limits.unresized_pixels:
        raise ImageError(
            f"{image.name} has {w:,} x {h:,} pixels, and this model does not resize images; the limit is then "
            f"{limits.unresized_pixels / 1e6:g} million: reduce its size first"
        )


def to_pillow(image: InputImage) -> "Image.Image":
    """The image as a Pillow image with its name."""
    from PIL import Image

    pillow = Image.fromarray(image.pixels)
    pillow.filename = image.name  # type: ignore[attr-defined]
    return pillow


def preview_uri(image: InputImage) -> str:
    """The image, reduced to `PREVIEW_SIDE` where it is larger, as a data URI."""
    pillow = to_pillow(image)
    pillow.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    return pillow_uri(pillow, "PNG" if max(image.grid) <= PREVIEW_SIDE else "JPEG")


def thumbnail_uri(upload: Upload, side: int = 144) -> str:
    """A small square version of an example as a data URI."""
    from PIL import Image

    with Image.open(BytesIO(upload.data), formats=FORMATS) as image:
        return pillow_uri(image.convert("RGB").resize((side, side)), "JPEG")


def array_uri(pixels: NDArray[np.uint8], file_format: str = "PNG") -> str:
    """(h, w, 3) colours or (h, w) grey levels as a data URI."""
    from PIL import Image

    return pillow_uri(Image.fromarray(pixels), file_format)


def pillow_uri(image: "Image.Image", file_format: str) -> str:
    """An image as a data URI: no image of a client gets a file or a URL of its own."""
    buffer = BytesIO()
    image.save(buffer, file_format, quality=86)  # used by JPEG only
    return data_uri(buffer.getvalue(), f"image/{file_format.lower()}")


def make_examples(size: int = 256) -> tuple[Upload, ...]:
    """The example images, generated when the server starts."""
    from PIL import Image

    examples = []
    for label, seed in EXAMPLES:
        buffer = BytesIO()
        Image.fromarray(make_scene(seed, label=label, size=size).image).save(buffer, "PNG")
        examples.append(Upload(f"{label}.png", buffer.getvalue()))
    return tuple(examples)
