"""Sets of scenes on disk (PNG and COCO-style JSON) and contact sheets."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from becausal.scenes.objects import LABELS, NOTHING
from becausal.scenes.scene import Scene, make_scene
from becausal.scenes.sketch import BoolArray

Rle = dict[str, list[int]]


def encode_mask(mask: BoolArray) -> Rle:
    """Write a mask (h, w) as COCO run lengths: down the columns, and the first run is of zeros."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    bounds = np.concatenate([[0], edges, [flat.size]])
    counts = np.diff(bounds).tolist()
    if flat.size and flat[0]:
        counts = [0, *counts]
    return {"size": [int(mask.shape[0]), int(mask.shape[1])], "counts": counts}


def decode_mask(rle: Rle) -> BoolArray:
    """Read a mask (h, w) from COCO run lengths."""
    height, width = rle["size"]
    counts = np.asarray(rle["counts"], dtype=np.int64)
    if int(counts.sum()) != height * width:
        raise ValueError(
            f"the runs add up to {int(counts.sum())} pixels, expected {height} x {width} = {height * width}; "
            "the mask belongs to another image or was cut short"
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
    """Write the scenes of the seeds from seed on, with all their truth; returns the path of scenes.json.

    out/pictures holds the images, out/masks one PNG each of the object, its visible part and the occluder
    (white is inside) and of the parts (the value is the part's number), out/scenes.json everything at once.
    """
    if count < 1:
        raise ValueError(f"the count is {count}, expected 1 or more")
    folder = Path(out)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    (folder / "masks").mkdir(exist_ok=True)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for k in range(count):
        scene = make_scene(seed + k, label=label, occluder=occluder, cover=cover, cut=cut, size=size)
        name = f"{k:06d}"
        _write_pictures(scene, folder, name)
        images.append(
            {
                "id": k + 1,
                "file_name": f"pictures/{name}.png",
                "width": size,
                "height": size,
                "seed": scene.seed,
                "label": scene.label,
                "occluder": scene.occluder_kind,
                "background": scene.background_kind,
                "cover": round(scene.cover, 6),
            }
        )
        annotations += _annotations(scene, k + 1, len(annotations) + 1)
    categories = [{"id": k + 1, "name": each, "supercategory": "object"} for k, each in enumerate(LABELS) if each != NOTHING]
    categories.append({"id": len(LABELS), "name": "occluder", "supercategory": "occluder"})
    truth = {
        "info": {"description": "becausal generated scenes", "first_seed": seed, "count": count},
        "licenses": [{"id": 1, "name": "Apache-2.0"}],
        "images": images,
        "annotations": annotations,
        "categories": categories,
    }
    path = folder / "scenes.json"
    path.write_text(json.dumps(truth, separators=(",", ":")) + "\n", encoding="utf-8")
    return path


def _write_pictures(scene: Scene, folder: Path, name: str) -> None:
    Image.fromarray(scene.picture).save(folder / "pictures" / f"{name}.png")
    masks = {"object": scene.object, "visible": scene.visible, "occluder": scene.occluder}
    for kind, mask in masks.items():
        Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(folder / "masks" / f"{name}-{kind}.png")
    numbered = np.zeros(scene.object.shape, dtype=np.uint8)
    for number, mask in enumerate(scene.parts.values(), start=1):
        numbered[mask] = number
    Image.fromarray(numbered).save(folder / "masks" / f"{name}-parts.png")


def _annotations(scene: Scene, image: int, first: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    if scene.label != NOTHING:
        found.append(
            {
                **_region(scene.visible, image, first, scene.label_index + 1),
                "amodal_segmentation": encode_mask(scene.object),
                "cover": round(scene.cover, 6),
                "pieces": len(scene.piece_sizes),
                "parts": {
                    part: {"number": k, "segmentation": encode_mask(mask)}
                    for k, (part, mask) in enumerate(scene.parts.items(), start=1)
                },
            }
        )
    if scene.occluder.any():
        found.append(_region(scene.occluder, image, first + len(found), len(LABELS)))
    return found


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


def contact_sheet(scenes: Sequence[Scene], *, columns: int | None = None, gap: int = 4, truth: bool = False) -> Image.Image:
    """Lay scenes of one size out in rows on a light sheet; truth outlines the visible object and the occluder."""
    if not scenes:
        raise ValueError("there are no scenes to lay out; make at least one with make_scene")
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
        sheet[top : top + size, left : left + size] = _outlined(scene) if truth else scene.picture
    return Image.fromarray(sheet)


def _outlined(scene: Scene) -> npt.NDArray[np.uint8]:
    picture = scene.picture.copy()
    for mask, colour in ((scene.occluder, (255, 190, 40)), (scene.visible, (40, 240, 120))):
        padded = np.pad(mask, 1)
        inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        picture[mask & ~inner] = np.array(colour, dtype=np.uint8)
    return picture
