"""Datasets made by planting occluders, or a roaming object, into images; every planted pixel is recorded."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from becausal.api import classify
from becausal.core.contracts import Classifier, Pixels, Visible
from becausal.core.errors import ImageError, OptionError, OutputError
from becausal.core.text import one_line
from becausal.images.fills import make_background
from becausal.images.loading import load_image
from becausal.lab.bench.datasets import BOMB_FOLDER, PHOTOBOMBS, SHAPES, read_images
from becausal.lab.bench.shapes import Box, Cutout, bounds, draw_shape, draw_texture, paste, read_boxes, read_cutout
from becausal.models import find_label

PAINTS = ("texture", "cutout")  # in addition to colours
TRIES = 4  # positions tried in an image until it keeps its label
LONGEST = 512  # pixels of the short side; larger images are downsampled first
ROAMING_LIST, ROAMING_FOLDER = "roaming_groundtruth.csv", "roaming_images"
UNREADABLE, LOST = "the image cannot be read", "the label is lost"
NOT_RECOGNISED = "the model does not recognise the object"

Watch = Callable[[int, int], None]  # (images done, images in total)


@dataclass(frozen=True, kw_only=True)
class Planting:
    """The appearance of planted occluders.

    Attributes:
        shapes: Shapes to choose from.
        paint: A colour as in a fill, "texture" for stripes, checks or spots in two random colours, or "cutout" for pieces
            of other images, which keep their outline if they have transparency.
        area: Smallest and largest share of the image.
        seed: Same seed, same images.
    """

    shapes: tuple[str, ...] = SHAPES
    paint: str = "black"
    area: tuple[float, float] = (0.02, 0.15)
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [shape for shape in self.shapes if shape not in SHAPES]
        if unknown or not self.shapes:
            raise OptionError(f"unknown shape {', '.join(unknown) or 'none'}: choose from {', '.join(SHAPES)}")
        low, high = self.area
        if not 0.0 < low <= high <= 0.9:
            raise OptionError(f"the area is a range of shares of the image with 0 < low <= high <= 0.9, not {low}:{high}")
        if self.seed < 0:
            raise OptionError(f"seed must be 0 or more, not {self.seed}")
        if self.paint not in PAINTS:
            make_background(self.paint, np.zeros((4, 4, 3), np.uint8), rng=np.random.default_rng(0))


@dataclass(frozen=True)
class CreatedDataset:
    """A dataset that was written: its folder, the number of images, and the number of excluded images by reason."""

    folder: Path
    count: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class PlantedImage:
    """An image with planted pixels, (h, w, 3), their mask, (h, w), and its line in the list without the name."""

    pixels: Pixels
    mask: Visible
    line: str


Draw = Callable[[Pixels, str, float, np.random.Generator], PlantedImage | None]  # (pixels, name, scale, rng)


def make_photobombs(
    images: Path,
    classifier: Classifier,
    out: Path,
    planting: Planting,
    *,
    cutouts: Path | None = None,
    boxes: Path | None = None,
    watch: Watch | None = None,
) -> CreatedDataset:
    """Plant an occluder into each image of a folder and keep the images that keep their predicted label.

    Writes the published layout, and `masks/` with the planted pixels.

    Args:
        images: Folder of images.
        classifier: The model.
        out: New or empty folder to write to.
        planting: Appearance of the occluders.
        cutouts: Folder of images to cut pieces from; by default the images themselves.
        boxes: File with lines `name x0 y0 x1 y1` in pixels of the image; the occluder is then centred in the box.
        watch: Called with the number of images done and in total.

    Raises:
        OptionError: No image keeps its label, or a file cannot be read.
        OutputError: The folder is not empty, or cannot be written to.
    """
    places = {} if boxes is None else read_boxes(boxes)
    others = [images / s.name for s in read_images(images)] if cutouts is None else _cutout_files(cutouts)

    def draw(pixels: Pixels, name: str, share: float, rng: np.random.Generator) -> PlantedImage | None:
        label = classify(pixels, classifier, top=1)[0][0]
        box = None if name not in places else _scaled(places[name], share)
        for _ in range(TRIES):
            mask, shape, paint = _draw_occluder(pixels, box, planting, others, rng)
            planted = np.where(mask[..., None], paint, pixels).astype(np.uint8)
            if classify(planted, classifier, top=1)[0][0] == label:
                name_of_label = one_line(classifier.info.name_of(label))
                r0, c0, r1, c1 = bounds(mask)
                y0, x0, y1, x1 = box or (0, 0, 0, 0)
                return PlantedImage(
                    planted, mask, f"{r0}({x0}) {c0}({y0}) {r1}({x1}) {c1}({y1}) {label} {name_of_label}, {shape}"
                )
        return None

    about = {"kind": "photobombing", "model": classifier.info.spec, **asdict(planting)}
    return _write_dataset(images, out, BOMB_FOLDER, PHOTOBOMBS, draw, about, LOST, planting.seed, watch)


def make_roaming(
    object_image: Path,
    images: Path,
    classifier: Classifier,
    out: Path,
    *,
    label: str | None = None,
    size: float = 0.44,
    seed: int = 0,
    watch: Watch | None = None,
) -> CreatedDataset:
    """Paste an object at a random position in each image and keep the images in which the model recognises it.

    Args:
        object_image: Image of the object, with transparency.
        images: Folder of images.
        classifier: The model.
        out: New or empty folder to write to.
        label: Label of the object; by default the prediction for the object alone on grey.
        size: Width of the object as a share of the short side of the image.
        seed: Same seed, same images.
        watch: Called with the number of images done and in total.

    Raises:
        OptionError: The model recognises the object in no image, or an argument is out of range.
        OutputError: The folder is not empty, or cannot be written to.
    """
    if not 0.05 <= size <= 1.0:
        raise OptionError(f"the size is a share of the short side of the image, 0.05 to 1, not {size}")
    if seed < 0:
        raise OptionError(f"seed must be 0 or more, not {seed}")
    cutout = read_cutout(object_image)
    wanted = _label_of(cutout, classifier) if label is None else find_label(label, classifier.info.labels, None)

    def draw(pixels: Pixels, name: str, share: float, rng: np.random.Generator) -> PlantedImage | None:
        planted, mask = paste(pixels, cutout, round(size * min(pixels.shape[:2])), rng)
        if classify(planted, classifier, top=1)[0][0] != wanted:
            return None
        return PlantedImage(planted, mask, " ".join(str(n) for n in bounds(mask)))

    about = {"kind": "roaming", "model": classifier.info.spec, "label": wanted, "object": object_image.name, "size": size}
    return _write_dataset(
        images, out, ROAMING_FOLDER, ROAMING_LIST, draw, about | {"seed": seed}, NOT_RECOGNISED, seed, watch
    )


def _write_dataset(
    images: Path, out: Path, subfolder: str, listing: str, draw: Draw, about: dict[str, Any], reason: str, seed: int,
    watch: Watch | None,
) -> CreatedDataset:  # fmt: skip
    """Plant into every image and write the accepted ones; the folder appears complete or not at all."""
    samples = read_images(images)
    lines: list[str] = []
    sources: dict[str, str] = {}
    left_out: dict[str, int] = {}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"cannot write to {out}: it exists and is not empty")
    made = _new_folder(out)
    try:
        for name in (subfolder, "masks"):
            (made / name).mkdir()
        for number, sample in enumerate(samples):
            if watch is not None:
                watch(number, len(samples))
            try:
                pixels, share = _downsample(load_image(images / sample.name).pixels)
                drawn = draw(pixels, sample.name, share, np.random.default_rng([seed, number]))
            except ImageError:
                left_out[UNREADABLE] = left_out.get(UNREADABLE, 0) + 1
                continue
            if drawn is None:
                left_out[reason] = left_out.get(reason, 0) + 1
                continue
            name = f"{len(lines)}.png"
            Image.fromarray(drawn.pixels).save(made / subfolder / name)
            Image.fromarray(drawn.mask.astype(np.uint8) * np.uint8(255)).save(made / "masks" / name)
            lines.append(f"{name} {drawn.line}\n")
            sources[name] = sample.name
        if not lines:
            reasons = "; ".join(f"{why}: {count}" for why, count in left_out.items())
            raise OptionError(f"none of {len(samples):,} images can be used ({reasons})")
        (made / listing).write_text("".join(lines), encoding="utf-8")
        text = json.dumps(about | {"sources": sources}, indent=2)
        (made / "dataset.json").write_text(text + "\n", encoding="utf-8")
        made.chmod(0o755)
        made.replace(out)
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return CreatedDataset(out, len(lines), left_out)


def _new_folder(out: Path) -> Path:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from None


def _scaled(box: Box, share: float) -> Box:
    r0, c0, r1, c1 = (round(side * share) for side in box)
    return r0, c0, r1, c1


def _downsample(pixels: Pixels) -> tuple[Pixels, float]:
    """The image, downsampled if it is large, and the scale."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise ImageError("only RGB images can be used")
    h, w = pixels.shape[:2]
    if min(h, w) <= LONGEST:
        return pixels, 1.0
    share = LONGEST / min(h, w)
    smaller = Image.fromarray(pixels).resize((round(w * share), round(h * share)), Image.Resampling.LANCZOS)
    return np.asarray(smaller), share


def _draw_occluder(
    pixels: Pixels, box: Box | None, planting: Planting, others: list[Path], rng: np.random.Generator
) -> tuple[Visible, str, Pixels]:
    """The mask of an occluder, (h, w), its shape, and its colours, (h, w, 3)."""
    h, w = pixels.shape[:2]
    area = rng.uniform(*planting.area) * h * w
    if planting.paint == "cutout":
        cutout = read_cutout(others[int(rng.integers(len(others)))])
        if (cutout[1] < 128).any():
            share = max(0.02, float((cutout[1] >= 128).mean()) * cutout[1].shape[0] / cutout[1].shape[1])
            planted, mask = paste(pixels, cutout, max(2, min(w, round((area / share) ** 0.5))), rng, box=box)
            return mask, "cutout", planted
    shape = planting.shapes[int(rng.integers(len(planting.shapes)))]
    mask = draw_shape((h, w), shape, area, rng, box)
    match planting.paint:
        case "cutout":
            return mask, shape, np.asarray(Image.fromarray(cutout[0]).resize((w, h), Image.Resampling.BILINEAR))
        case "texture":
            return mask, shape, draw_texture((h, w), rng)
    return mask, shape, make_background(planting.paint, pixels, rng=rng)


def _cutout_files(folder: Path) -> list[Path]:
    return [folder / sample.name for sample in read_images(folder)]


def _label_of(cutout: Cutout, classifier: Classifier) -> int:
    """The predicted label of the object alone, on grey."""
    colours, alpha = cutout
    side = max(colours.shape[:2])
    canvas = np.full((side, side, 3), 128, np.uint8)
    top, left = (side - colours.shape[0]) // 2, (side - colours.shape[1]) // 2
    room = canvas[top : top + colours.shape[0], left : left + colours.shape[1]]
    room[alpha >= 128] = colours[alpha >= 128]
    return classify(canvas, classifier, top=1)[0][0]
