"""Planting photobombers, or a roaming object, into images, with every planted pixel recorded."""

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
from becausal.bench.datasets import BOMB_FOLDER, PHOTOBOMBS, SHAPES, read_pictures
from becausal.bench.shapes import Box, Cutout, bounds, draw_shape, draw_texture, paste, read_boxes, read_cutout
from becausal.core.contracts import Classifier, Pixels, Visible
from becausal.core.errors import ImageError, OptionError, OutputError
from becausal.images.fills import make_background
from becausal.images.loading import load_image
from becausal.models import find_label

PAINTS = ("texture", "cutout")  # besides colours
TRIES = 4  # places tried in an image until its label stays
LONGEST = 512  # pixels of an image's short side: larger ones are made smaller first
ROAMING_LIST, ROAMING_FOLDER = "roaming_groundtruth.csv", "roaming_images"
UNREADABLE, LOST, UNSEEN = "the image cannot be read", "the label is lost", "the model does not see the object"

Watch = Callable[[int, int], None]  # (images done, images in all)


@dataclass(frozen=True, kw_only=True)
class Planting:
    """How photobombers look.

    shapes: of them one is drawn each time. paint: a colour as a fill names it, "texture" for stripes, checks or spots in
    two random colours, "cutout" for pieces of other images; where those have transparency, their own outline is the
    shape. area: the least and the largest share of the image. seed: same seed, same images.
    """

    shapes: tuple[str, ...] = SHAPES
    paint: str = "black"
    area: tuple[float, float] = (0.02, 0.15)
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [shape for shape in self.shapes if shape not in SHAPES]
        if unknown or not self.shapes:
            raise OptionError(f"unknown shape {', '.join(unknown) or 'none'}: take some of {', '.join(SHAPES)}")
        low, high = self.area
        if not 0.0 < low <= high <= 0.9:
            raise OptionError(f"an area is a range of shares of the image, 0 < low <= high <= 0.9, not {low}:{high}")
        if self.seed < 0:
            raise OptionError(f"a seed must be 0 or more, not {self.seed}")
        if self.paint not in PAINTS:
            make_background(self.paint, np.zeros((4, 4, 3), np.uint8), rng=np.random.default_rng(0))


@dataclass(frozen=True)
class Made:
    """What was made: the folder, how many images, and how many were left out for which reason."""

    folder: Path
    count: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Drawn:
    """An image with something planted, (h, w, 3), the planted pixels, (h, w), and its line of the list, less the name."""

    pixels: Pixels
    mask: Visible
    line: str


Draw = Callable[[Pixels, str, float, np.random.Generator], Drawn | None]  # the image, its name, how much it was shrunk


def make_photobombs(
    images: Path,
    classifier: Classifier,
    out: Path,
    planting: Planting,
    *,
    cutouts: Path | None = None,
    boxes: Path | None = None,
    watch: Watch | None = None,
) -> Made:
    """Plant a photobomber into each image of a folder and keep those whose label the model still gives.

    The label is the one the model gives without the photobomber. cutouts: a folder of images to cut pieces from; the
    images themselves by default. boxes: a file with lines `name x0 y0 x1 y1`, in pixels of the image; the
    photobomber's middle then lies in the box. Writes the published layout, and masks/ with the planted pixels.
    """
    places = {} if boxes is None else read_boxes(boxes)
    others = [images / s.name for s in read_pictures(images)] if cutouts is None else _cutout_files(cutouts)

    def draw(pixels: Pixels, name: str, share: float, rng: np.random.Generator) -> Drawn | None:
        label = classify(pixels, classifier, top=1)[0][0]
        box = None if name not in places else _scaled(places[name], share)
        for _ in range(TRIES):
            mask, shape, paint = _photobomber(pixels, box, planting, others, rng)
            planted = np.where(mask[..., None], paint, pixels).astype(np.uint8)
            if classify(planted, classifier, top=1)[0][0] == label:
                said = " ".join(classifier.info.name_of(label).split())
                r0, c0, r1, c1 = bounds(mask)
                y0, x0, y1, x1 = box or (0, 0, 0, 0)
                return Drawn(planted, mask, f"{r0}({x0}) {c0}({y0}) {r1}({x1}) {c1}({y1}) {label} {said}, {shape}")
        return None

    about = {"kind": "photobombing", "model": classifier.info.spec, **asdict(planting)}
    return _make(images, out, BOMB_FOLDER, PHOTOBOMBS, draw, about, LOST, planting.seed, watch)


def make_roaming(
    thing: Path,
    images: Path,
    classifier: Classifier,
    out: Path,
    *,
    label: str | None = None,
    size: float = 0.44,
    seed: int = 0,
    watch: Watch | None = None,
) -> Made:
    """Paste an object, an image with transparency, somewhere on each image; keep those on which the model sees it.

    label: what the object is; by default what the model says of it alone on grey. size: its width as a share of the
    image's short side.
    """
    if not 0.05 <= size <= 1.0:
        raise OptionError(f"the size is a share of the image's short side, 0.05 to 1, not {size}")
    if seed < 0:
        raise OptionError(f"a seed must be 0 or more, not {seed}")
    cutout = read_cutout(thing)
    wanted = _label_of(cutout, classifier) if label is None else find_label(label, classifier.info.labels, None)

    def draw(pixels: Pixels, name: str, share: float, rng: np.random.Generator) -> Drawn | None:
        planted, mask = paste(pixels, cutout, round(size * min(pixels.shape[:2])), rng)
        if classify(planted, classifier, top=1)[0][0] != wanted:
            return None
        return Drawn(planted, mask, " ".join(str(n) for n in bounds(mask)))

    about = {"kind": "roaming", "model": classifier.info.spec, "label": wanted, "object": thing.name, "size": size}
    return _make(images, out, ROAMING_FOLDER, ROAMING_LIST, draw, about | {"seed": seed}, UNSEEN, seed, watch)


def _make(
    images: Path, out: Path, pictures: str, listing: str, draw: Draw, about: dict[str, Any], reason: str, seed: int,
    watch: Watch | None,
) -> Made:  # fmt: skip
    """Draw on every image and write what stands; the folder appears whole or not at all."""
    samples = read_pictures(images)
    lines: list[str] = []
    sources: dict[str, str] = {}
    left_out: dict[str, int] = {}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"cannot write to {out}: it is there already, and not empty")
    made = _new_folder(out)
    try:
        for sub in (pictures, "masks"):
            (made / sub).mkdir()
        for number, sample in enumerate(samples):
            if watch is not None:
                watch(number, len(samples))
            try:
                pixels, share = _smaller(load_image(images / sample.name).pixels)
                drawn = draw(pixels, sample.name, share, np.random.default_rng([seed, number]))
            except ImageError:
                left_out[UNREADABLE] = left_out.get(UNREADABLE, 0) + 1
                continue
            if drawn is None:
                left_out[reason] = left_out.get(reason, 0) + 1
                continue
            name = f"{len(lines)}.png"
            Image.fromarray(drawn.pixels).save(made / pictures / name)
            Image.fromarray(drawn.mask.astype(np.uint8) * np.uint8(255)).save(made / "masks" / name)
            lines.append(f"{name} {drawn.line}\n")
            sources[name] = sample.name
        if not lines:
            reasons = "; ".join(f"{why}: {count}" for why, count in left_out.items())
            raise OptionError(f"of {len(samples):,} images none can be used ({reasons})")
        (made / listing).write_text("".join(lines), encoding="utf-8")
        text = json.dumps(about | {"sources": sources}, indent=2)
        (made / "dataset.json").write_text(text + "\n", encoding="utf-8")
        made.chmod(0o755)
        made.replace(out)
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Made(out, len(lines), left_out)


def _new_folder(out: Path) -> Path:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from None


def _scaled(box: Box, share: float) -> Box:
    r0, c0, r1, c1 = (round(side * share) for side in box)
    return r0, c0, r1, c1


def _smaller(pixels: Pixels) -> tuple[Pixels, float]:
    """The image, small enough, and the share of its sides that is left."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise ImageError("only images can be planted into")
    h, w = pixels.shape[:2]
    if min(h, w) <= LONGEST:
        return pixels, 1.0
    share = LONGEST / min(h, w)
    smaller = Image.fromarray(pixels).resize((round(w * share), round(h * share)), Image.Resampling.LANCZOS)
    return np.asarray(smaller), share


def _photobomber(
    pixels: Pixels, box: Box | None, planting: Planting, others: list[Path], rng: np.random.Generator
) -> tuple[Visible, str, Pixels]:
    """Where it lies, (h, w), what it is called, and a whole image of its colours."""
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
    return [folder / sample.name for sample in read_pictures(folder)]


def _label_of(cutout: Cutout, classifier: Classifier) -> int:
    """What the model says of the object alone, on grey."""
    colours, alpha = cutout
    side = max(colours.shape[:2])
    canvas = np.full((side, side, 3), 128, np.uint8)
    top, left = (side - colours.shape[0]) // 2, (side - colours.shape[1]) // 2
    room = canvas[top : top + colours.shape[0], left : left + colours.shape[1]]
    room[alpha >= 128] = colours[alpha >= 128]
    return classify(canvas, classifier, top=1)[0][0]
