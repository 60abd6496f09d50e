"""Datasets of scenes on disk (PNG and COCO-style JSON), and contact sheets."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from becausal.core.errors import OutputError
from becausal.core.files import path_inside
from becausal.lab.scenes.groups import GroupScene, make_group
from becausal.lab.scenes.objects import LABELS, NOTHING
from becausal.lab.scenes.scene import Scene, make_scene
from becausal.lab.scenes.sketch import BoolArray

if TYPE_CHECKING:
    from PIL.Image import Image

Rle = dict[str, list[int]]
AnyScene = Scene | GroupScene


def encode_mask(mask: BoolArray) -> Rle:
    """Encode a mask, (h, w), as COCO run lengths: column by column, starting with a run of zeros."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    bounds = np.concatenate([[0], edges, [flat.size]])
    counts = np.diff(bounds).tolist()
    if flat.size and flat[0]:
        counts = [0, *counts]
    return {"size": [int(mask.shape[0]), int(mask.shape[1])], "counts": counts}


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

    def draw(number: int) -> Scene:
        return make_scene(number, label=label, occluder=occluder, cover=cover, cut=cut, size=size)

    return _write(count, seed, out, size, draw)


def write_groups(count: int, seed: int, out: str | Path, *, size: int = 192) -> Path:
    """Write scenes with several objects, their boxes and masks: images, masks and a COCO-style JSON file.

    `out/pictures` holds the images and `out/masks` two PNGs for each: the visible objects (the value is the number of the
    object) and the occluder (white is inside). `out/scenes.json` holds everything at once. If a file cannot be written,
    nothing is left behind.

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
    return _write(count, seed, out, size, lambda number: make_group(number, size=size))


def _write(count: int, seed: int, out: str | Path, size: int, draw: Callable[[int], AnyScene]) -> Path:
    """Draw scenes, write their images and masks, and collect what is known of them in scenes.json."""
    if count < 1:
        raise ValueError(f"the count is {count}, expected 1 or more")
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    with _stage(Path(out)) as folder:
        for name in ("pictures", "masks"):
            (folder / name).mkdir()
        for k in range(count):
            scene = draw(seed + k)
            name = f"{k:06d}"
            _write_png(folder / "pictures" / f"{name}.png", scene.image)
            for kind, mask in _masks(scene).items():
                _write_png(folder / "masks" / f"{name}-{kind}.png", mask)
            images.append({"id": k + 1, "file_name": f"pictures/{name}.png", "width": size, "height": size, **_facts(scene)})
            annotations += _annotations(scene, k + 1, len(annotations) + 1)
        truth = {
            "info": {"description": "becausal generated scenes", "first_seed": seed, "count": count},
            "licenses": [{"id": 1, "name": "Apache-2.0"}],
            "images": images,
            "annotations": annotations,
            "categories": _categories(),
        }
        (folder / "scenes.json").write_bytes((json.dumps(truth, separators=(",", ":")) + "\n").encode())
    return Path(out) / "scenes.json"


@contextmanager
def _stage(out: Path) -> Iterator[Path]:
    """An empty folder whose files are moved to `out` at the end; if anything fails, they are removed.

    Raises:
        OutputError: It, or a file in it, cannot be written.
    """
    missing = [path for path in (out, *out.parents) if not os.path.lexists(path)]
    stage = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".becausal-", dir=out if out.is_dir() else out.parent))
        new = stage / "new"
        new.mkdir()
        yield new
        if out.is_dir():
            _move_files(new, out)
        else:
            os.rename(new, out)
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        for path in missing:
            with suppress(OSError):  # a folder with files in it stays
                path.rmdir()


def _move_files(start: Path, end: Path) -> None:
    """Move all files to another folder, over older ones, scenes.json last; on failure the new ones are removed again."""
    made: list[Path] = []
    try:
        for path in sorted(
            (path for path in start.rglob("*") if path.is_file()), key=lambda path: path.name == "scenes.json"
        ):
            goal = path_inside(end, path.relative_to(start))
            goal.parent.mkdir(exist_ok=True)
            if not goal.exists():
                made.append(goal)
            os.replace(path, goal)
    except BaseException:
        for goal in made:
            goal.unlink(missing_ok=True)
        raise


def _facts(scene: AnyScene) -> dict[str, object]:
    kinds = {"occluder": scene.occluder_kind, "background": scene.background_kind}
    if isinstance(scene, GroupScene):
        return {"seed": scene.seed, "labels": [each.label for each in scene.objects], **kinds}
    return {"seed": scene.seed, "label": scene.label, **kinds, "cover": round(scene.cover, 6)}


def _categories() -> list[dict[str, object]]:
    objects = enumerate((label for label in LABELS if label != NOTHING), start=1)
    categories: list[dict[str, object]] = [{"id": k, "name": name, "supercategory": "object"} for k, name in objects]
    return [*categories, {"id": len(LABELS), "name": "occluder", "supercategory": "occluder"}]


def _masks(scene: AnyScene) -> dict[str, npt.NDArray[np.uint8]]:
    """The mask files of a scene: white is inside, or the value is the number of the part or object."""
    if isinstance(scene, GroupScene):
        return {
            "objects": _numbered([each.visible for each in scene.objects], scene.size),
            "occluder": _white(scene.occluder),
        }
    masks = {"object": scene.object, "visible": scene.visible, "occluder": scene.occluder}
    return {kind: _white(mask) for kind, mask in masks.items()} | {
        "parts": _numbered(list(scene.parts.values()), scene.size)
    }


def _white(mask: BoolArray) -> npt.NDArray[np.uint8]:
    return mask.astype(np.uint8) * np.uint8(255)


def _numbered(masks: Sequence[BoolArray], size: int) -> npt.NDArray[np.uint8]:
    numbered = np.zeros((size, size), dtype=np.uint8)
    for number, mask in enumerate(masks, start=1):
        numbered[mask] = number
    return numbered


def _write_png(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    from PIL import Image

    Image.fromarray(pixels).save(path)


def _annotations(scene: AnyScene, image: int, first: int) -> list[dict[str, object]]:
    """The objects and the occluder of a scene, numbered from `first` on."""
    found = [*_objects(scene)]
    if scene.occluder.any():
        found.append((scene.occluder, len(LABELS), {}))
    return [_region(mask, image, first + k, category) | facts for k, (mask, category, facts) in enumerate(found)]


def _objects(scene: AnyScene) -> Iterator[tuple[BoolArray, int, dict[str, Any]]]:
    """The visible mask, the category and further facts of each object."""
    if isinstance(scene, GroupScene):
        for number, each in enumerate(scene.objects, start=1):
            left, top, right, bottom = each.box
            box = {"bbox": [left, top, right - left, bottom - top]}  # of the whole object, not of its visible part
            whole = {"amodal_segmentation": encode_mask(each.mask), "cover": round(each.cover, 6), "number": number}
            yield each.visible, each.label_index + 1, box | whole
    elif scene.label != NOTHING:
        numbered = enumerate(scene.parts.items(), start=1)
        yield (
            scene.visible,
            scene.label_index + 1,
            {
                "amodal_segmentation": encode_mask(scene.object),
                "cover": round(scene.cover, 6),
                "pieces": len(scene.piece_sizes),
                "parts": {part: {"number": k, "segmentation": encode_mask(mask)} for k, (part, mask) in numbered},
            },
        )


def _region(mask: BoolArray, image: int, number: int, category: int) -> dict[str, object]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = [0, 0, 0, 0]
    if len(rows):
        left, top = int(columns[0]), int(rows[0])
        box = [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]
    return {
        "id": number, "image_id": image, "category_id": category, "iscrowd": 0, "area": int(mask.sum()), "bbox": box,
        "segmentation": encode_mask(mask),
    }  # fmt: skip


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
        shown = scene.image if not truth else _boxed(scene) if isinstance(scene, GroupScene) else _outlined(scene)
        sheet[top : top + size, left : left + size] = shown
    return Image.fromarray(sheet)


def _outlined(scene: Scene) -> npt.NDArray[np.uint8]:
    image = scene.image.copy()
    for mask, colour in ((scene.occluder, (255, 190, 40)), (scene.visible, (40, 240, 120))):
        padded = np.pad(mask, 1)
        inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        image[mask & ~inner] = np.array(colour, dtype=np.uint8)
    return image


def _boxed(scene: GroupScene) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    image = Image.fromarray(scene.image)
    pen = ImageDraw.Draw(image)
    for each in scene.objects:
        left, top, right, bottom = each.box
        pen.rectangle((left, top, right - 1, bottom - 1), outline=(40, 240, 120))
        pen.text((left + 2, top), each.label, fill=(255, 255, 255), stroke_width=1, stroke_fill=(0, 0, 0))
    return np.asarray(image)
