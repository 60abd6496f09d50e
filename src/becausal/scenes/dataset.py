"""Datasets of scenes on disk (PNG and COCO-style JSON), and contact sheets."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from becausal.core.errors import OutputError
from becausal.core.files import path_inside
from becausal.scenes.scene import LABELS, NOTHING, GroupScene, Scene, box_of, make_group, make_scene
from becausal.scenes.sketch import BoolArray

if TYPE_CHECKING:
    from PIL.Image import Image

Rle = dict[str, list[int]]
AnyScene = Scene | GroupScene


def encode_mask(mask: BoolArray) -> Rle:
    """Encode a mask, (h, w), as COCO run lengths: column by column, starting with a run of zeros."""
    flat = mask.ravel(order="F")
    counts = np.diff([0, *(np.flatnonzero(np.diff(flat)) + 1), flat.size]).tolist()
    starts_inside = bool(flat.size and flat[0])
    return {"size": [int(mask.shape[0]), int(mask.shape[1])], "counts": [0] * starts_inside + counts}


def encode_box(box: Sequence[float]) -> list[float]:
    """Encode a box (left, top, right, bottom) as COCO does: left, top, width, height."""
    left, top, right, bottom = box
    return [left, top, right - left, bottom - top]


def decode_mask(rle: Rle) -> BoolArray:
    """Decode a mask, (h, w), from COCO run lengths.

    Raises:
        ValueError: The runs do not add up to the size.
    """
    height, width = rle["size"]
    counts = np.asarray(rle["counts"], dtype=np.int64)
    if int(counts.sum()) != height * width:
        raise ValueError(
            f"the runs add up to {int(counts.sum())} pixels, expected {height} x {width} = {height * width}; "
            "the mask is truncated or belongs to another image"
        )
    values = np.arange(len(counts)) % 2 == 1
    return np.ascontiguousarray(np.repeat(values, counts).reshape((height, width), order="F"))


def write_scenes(
    count: int,
    seed: int,
    out: str | Path,
    *,
    size: int = 128,
    label: str | None = None,
    occluder: str | None = None,
    cover: float | tuple[float, float] | None = None,
    cut: bool | None = None,
) -> Path:
    """Write scenes with their ground truth: images, masks and a COCO-style JSON file.

    `out/pictures` holds the images and `out/masks` one PNG each for the object, its visible part, the occluder (white is
    inside) and the parts (the value is the number of the part). `out/scenes.json` holds everything at once. If a file
    cannot be written, nothing is left behind.

    Args:
        count: Number of scenes.
        seed: Seed of the first scene; each further scene has the next seed.
        out: Folder to write to; it is created if necessary.
        size: Side of the images in pixels.
        label: See `make_scene`.
        occluder: See `make_scene`.
        cover: See `make_scene`.
        cut: See `make_scene`.

    Returns:
        The path of scenes.json.

    Raises:
        ValueError: An argument is out of range.
        OutputError: A file cannot be written.
    """
    draw = partial(make_scene, label=label, occluder=occluder, cover=cover, cut=cut, size=size)
    return _write(count, seed, out, size, draw)


def write_groups(count: int, seed: int, out: str | Path, *, size: int = 192) -> Path:
    """Write scenes with several objects as `write_scenes` does; the masks are the numbered objects and the occluder.

    Args:
        count: Number of scenes.
        seed: Seed of the first scene; each further scene has the next seed.
        out: Folder to write to; it is created if necessary.
        size: Side of the images in pixels.

    Returns:
        The path of scenes.json.

    Raises:
        ValueError: An argument is out of range.
        OutputError: A file cannot be written.
    """
    return _write(count, seed, out, size, partial(make_group, size=size))


def _write(count: int, seed: int, out: str | Path, size: int, draw: Callable[[int], AnyScene]) -> Path:
    """Draw scenes, write their images and masks, and collect what is known of them in scenes.json."""
    if count < 1:
        raise ValueError(f"the count is {count}, expected 1 or more")
    from PIL import Image

    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    categories = [{"id": k, "name": name, "supercategory": "object"} for k, name in enumerate(LABELS[:-1], start=1)]
    categories.append({"id": len(LABELS), "name": "occluder", "supercategory": "occluder"})
    with _stage(Path(out)) as folder:
        for name in ("pictures", "masks"):
            (folder / name).mkdir()
        for k in range(count):
            scene = draw(seed + k)
            name = f"{k:06d}"
            Image.fromarray(scene.image).save(folder / "pictures" / f"{name}.png")
            facts: dict[str, object] = {"occluder": scene.occluder_kind, "background": scene.background_kind}
            masks = {"occluder": scene.occluder}
            if isinstance(scene, GroupScene):
                facts = {"labels": [each.label for each in scene.objects]} | facts
                numbered, parts = "objects", [each.visible for each in scene.objects]
            else:
                facts = {"label": scene.label} | facts | {"cover": round(scene.cover, 6)}
                masks |= {"object": scene.object, "visible": scene.visible}
                numbered, parts = "parts", list(scene.parts.values())
            numbers = np.zeros((size, size), dtype=np.uint8)
            for number, mask in enumerate(parts, start=1):
                numbers[mask] = number
            values = {kind: mask.astype(np.uint8) * np.uint8(255) for kind, mask in masks.items()} | {numbered: numbers}
            for kind, array in values.items():
                Image.fromarray(array).save(folder / "masks" / f"{name}-{kind}.png")
            place = {"id": k + 1, "file_name": f"pictures/{name}.png", "width": size, "height": size, "seed": scene.seed}
            images.append(place | facts)
            annotations += _annotations(scene, k + 1, len(annotations) + 1)
        truth = {
            "info": {"description": "becausal generated scenes", "first_seed": seed, "count": count},
            "licenses": [{"id": 1, "name": "Apache-2.0"}],
            "images": images,
            "annotations": annotations,
            "categories": categories,
        }
        (folder / "scenes.json").write_bytes((json.dumps(truth, separators=(",", ":")) + "\n").encode())
    return Path(out) / "scenes.json"


@contextmanager
def _stage(out: Path) -> Iterator[Path]:
    """An empty folder whose files are moved to `out` at the end, scenes.json last; if anything fails, they are removed.

    Raises OutputError where it, or a file in it, cannot be written.
    """
    missing = [path for path in (out, *out.parents) if not os.path.lexists(path)]
    made: list[Path] = []
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = out if out.is_dir() else out.parent
        with tempfile.TemporaryDirectory(prefix=".becausal-", dir=place, ignore_cleanup_errors=True) as stage:
            new = Path(stage) / "new"
            new.mkdir()
            yield new
            if not out.is_dir():
                os.rename(new, out)
                return
            files = (path for path in new.rglob("*") if path.is_file())
            for path in sorted(files, key=lambda path: path.name == "scenes.json"):
                goal = path_inside(out, path.relative_to(new))
                goal.parent.mkdir(exist_ok=True)
                if not goal.exists():
                    made.append(goal)
                os.replace(path, goal)
    except BaseException as error:  # an interrupt too
        for goal in made:
            goal.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
        raise
    finally:
        for path in missing:
            with suppress(OSError):  # a folder with files in it stays
                path.rmdir()


def _annotations(scene: AnyScene, image: int, first: int) -> list[dict[str, object]]:
    """The objects and the occluder of a scene as COCO has them, numbered from `first` on."""
    found: list[tuple[BoolArray, int, dict[str, Any]]] = []  # visible mask, category, further facts
    if isinstance(scene, GroupScene):
        for number, each in enumerate(scene.objects, start=1):
            box = {"bbox": encode_box(each.box)}  # of the whole object, not of its visible part
            whole = {"amodal_segmentation": encode_mask(each.mask), "cover": round(each.cover, 6), "number": number}
            found.append((each.visible, each.label_index + 1, box | whole))
    elif scene.label != NOTHING:
        numbered = enumerate(scene.parts.items(), start=1)
        facts = {
            "amodal_segmentation": encode_mask(scene.object),
            "cover": round(scene.cover, 6),
            "pieces": len(scene.piece_sizes),
            "parts": {part: {"number": k, "segmentation": encode_mask(mask)} for k, (part, mask) in numbered},
        }
        found.append((scene.visible, scene.label_index + 1, facts))
    if scene.occluder.any():
        found.append((scene.occluder, len(LABELS), {}))
    regions: list[dict[str, object]] = []
    for number, (mask, category, facts) in enumerate(found, start=first):
        region = {
            "id": number, "image_id": image, "category_id": category, "iscrowd": 0, "area": int(mask.sum()),
            "bbox": encode_box(box_of(mask)), "segmentation": encode_mask(mask),
        }  # fmt: skip
        regions.append(region | facts)
    return regions


def contact_sheet(scenes: Sequence[AnyScene], *, columns: int | None = None, gap: int = 4, truth: bool = False) -> "Image":
    """Arrange scenes of one size in a grid.

    Args:
        scenes: The scenes, at least one.
        columns: Number of columns; by default the grid is about square.
        gap: Space between the images in pixels.
        truth: Whether to outline the visible object and the occluder, or to draw the boxes of several objects.

    Raises:
        ValueError: There are no scenes, or they differ in size.
    """
    from PIL import Image

    if not scenes:
        raise ValueError("there are no scenes to arrange; make at least one with make_scene")
    sizes = {scene.size for scene in scenes}
    if len(sizes) != 1:
        raise ValueError(f"the scenes have sizes {sorted(sizes)}, expected one; make them all with the same size")
    size = sizes.pop()
    wide = math.ceil(math.sqrt(len(scenes))) if columns is None else columns
    if wide < 1:
        raise ValueError(f"the sheet has {wide} columns, expected 1 or more")
    high = math.ceil(len(scenes) / wide)
    sheet = np.full((high * (size + gap) + gap, wide * (size + gap) + gap, 3), 250, dtype=np.uint8)
    for k, scene in enumerate(scenes):
        top, left = gap + (k // wide) * (size + gap), gap + (k % wide) * (size + gap)
        sheet[top : top + size, left : left + size] = _drawn_truth(scene) if truth else scene.image
    return Image.fromarray(sheet)


def _drawn_truth(scene: AnyScene) -> npt.NDArray[np.uint8]:
    """The image with the visible object and the occluder outlined, or with the boxes of several objects."""
    from PIL import Image, ImageDraw

    if isinstance(scene, GroupScene):
        boxed = Image.fromarray(scene.image)
        pen = ImageDraw.Draw(boxed)
        for each in scene.objects:
            left, top, right, bottom = each.box
            pen.rectangle((left, top, right - 1, bottom - 1), outline=(40, 240, 120))
            pen.text((left + 2, top), each.label, fill=(255, 255, 255), stroke_width=1, stroke_fill=(0, 0, 0))
        return np.asarray(boxed)
    image = scene.image.copy()
    for mask, colour in ((scene.occluder, (255, 190, 40)), (scene.visible, (40, 240, 120))):
        padded = np.pad(mask, 1)
        inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        image[mask & ~inner] = np.array(colour, dtype=np.uint8)
    return image
