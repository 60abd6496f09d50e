"""Scenes with several objects, and the exact box and mask of each one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from becausal.lab.scenes.backgrounds import make_background
from becausal.lab.scenes.fields import smooth
from becausal.lab.scenes.objects import KINDS, LABELS, draw_pose
from becausal.lab.scenes.occluders import OCCLUDERS, Occluder, make_occluder
from becausal.lab.scenes.palette import between, chance, pick, whole
from becausal.lab.scenes.scene import (
    MOST_COVERED,
    add_grain,
    cast_shadow,
    check_drawing,
    distance_from,
    separating_change,
    shade_object,
    stream,
)
from becausal.lab.scenes.sketch import BoolArray, FloatArray, Layer, draw_sketch

#: Largest share of an object that is covered by objects in front of it.
MOST_OVERLAPPED = 0.3

#: Smallest distance between the centres of two boxes, as a share of the side of the image.
LEAST_DISTANCE = 0.17

#: Border kept free around each object, as a share of the side of the image.
MARGIN = 0.03

#: Smallest and largest extent of an object, by the number of objects.
_EXTENTS = {1: (0.3, 0.55), 2: (0.3, 0.55), 3: (0.28, 0.48), 4: (0.28, 0.4)}

#: The first of two streams of random numbers for each object; the streams before it belong to the scene.
_OBJECT_STREAMS = 20


@dataclass(frozen=True, eq=False, kw_only=True)
class SceneObject:
    """An object of a scene and its ground truth."""

    label: str
    """The label, one of `LABELS` without `nothing`."""
    box: tuple[int, int, int, int]
    """Left, top, right and bottom of the whole object in pixels; right and bottom are exclusive."""
    mask: BoolArray
    """Mask of the whole object (n, n), covered or not."""
    visible: BoolArray
    """Mask of its visible part (n, n): the object without the occluder and the objects in front of it."""

    @property
    def label_index(self) -> int:
        """The position of the label in `LABELS`."""
        return LABELS.index(self.label)

    @property
    def cover(self) -> float:
        """Share of the object that is covered, 0 to 1."""
        return 1.0 - int(self.visible.sum()) / int(self.mask.sum())


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupScene:
    """A generated image of several objects and its ground truth."""

    image: npt.NDArray[np.uint8]
    """The image (n, n, 3), RGB."""
    objects: tuple[SceneObject, ...]
    """The objects, from back to front."""
    occluder: BoolArray
    """Mask of the occluder (n, n)."""
    seed: int
    """The seed of the scene."""
    occluder_kind: str
    """One of `OCCLUDERS`."""
    background_kind: str
    """One of `BACKGROUNDS`."""

    @property
    def size(self) -> int:
        """Side of the image in pixels."""
        return int(self.image.shape[0])


def make_group(
    seed: int, *, count: int | None = None, size: int = 192, occluder: str | None = None, background: str | None = None
) -> GroupScene:
    """Draw a scene with several objects; everything that is not given is determined by the seed.

    Objects may overlap. Others in front cover at most 30 % of an object, and together with the occluder at most 60 %.

    Args:
        seed: Seed of the scene, 0 or more.
        count: Number of objects, 1 to 4; by default 2 to 4.
        size: Side of the image in pixels, 64 or more.
        occluder: One of `OCCLUDERS`.
        background: One of `BACKGROUNDS`.

    Raises:
        ValueError: An argument is out of range, or no occluder was found that leaves enough of every object.
    """
    check_drawing(seed, size, 64, occluder, background)
    if count is not None and count not in _EXTENTS:
        raise ValueError(f"the count is {count}, expected 1 to {max(_EXTENTS)} objects")
    rng = stream(seed, 10)
    any_count, any_kind, plain = whole(rng, 2, 4), pick(rng, OCCLUDERS[1:]), chance(rng, 0.25)
    kind = occluder if occluder is not None else "none" if plain else any_kind
    labels, layers = _place_objects(seed, any_count if count is None else count, size)
    image, ground_kind = make_background(stream(seed, 12), size, kind=background)
    shading = stream(seed, 14)
    for layer in layers:
        image = _set_off(shading, image, layer)
    visible: list[BoolArray] = []
    for layer in layers:
        image = image + (layer.colour - image) * layer.coverage[:, :, None]
        visible = [*(mask & ~layer.mask for mask in visible), layer.mask]
    camera = stream(seed, 15)
    image = smooth(image, max(0.0, between(camera, -0.4, 0.8)) * size / 128.0)
    occluded: BoolArray = np.zeros((size, size), dtype=np.bool_)
    if kind != "none":
        occluded, colours = _cover_one(stream(seed, 13), kind, [layer.mask for layer in layers], visible)
        image = np.where(occluded[:, :, None], colours, image)
    shot = add_grain(camera, image)
    visible = [mask & ~occluded for mask in visible]
    for array in (shot, occluded, *visible, *(layer.mask for layer in layers)):
        array.flags.writeable = False
    objects = tuple(
        SceneObject(label=label, box=_box(layer.mask), mask=layer.mask, visible=mask)
        for label, layer, mask in zip(labels, layers, visible, strict=True)
    )
    return GroupScene(
        image=shot, objects=objects, occluder=occluded, seed=seed, occluder_kind=kind, background_kind=ground_kind
    )


def _place_objects(seed: int, count: int, size: int) -> tuple[list[str], list[Layer]]:
    """Draw the objects of a scene from back to front, each at a place where it leaves enough of those behind it."""
    labels: list[str] = []
    layers: list[Layer] = []
    low, high = _EXTENTS[count]
    for k in range(count):
        rng = stream(seed, _OBJECT_STREAMS + 2 * k)
        label = pick(rng, tuple(KINDS))
        pose = replace(draw_pose(rng, label), extent=between(rng, low, high), reach=min(0.7, 1.5 * high), place=(0.5, 0.5))
        sketch = draw_sketch(rng, KINDS[label].draw)
        placed: Layer | None = None
        while placed is None:
            # An object that fits nowhere is drawn smaller, until it does.
            placed = _place(rng, sketch.render(size, pose), layers)
            pose = replace(pose, extent=pose.extent * 0.85)
        labels.append(label)
        layers.append(shade_object(stream(seed, _OBJECT_STREAMS + 2 * k + 1), placed))
    return labels, layers


def _place(rng: np.random.Generator, layer: Layer, behind: Sequence[Layer]) -> Layer | None:
    """Move an object to a random place where it leaves enough of the objects behind it; None if none was found."""
    size = layer.mask.shape[0]
    border = max(1, round(MARGIN * size))
    left, top, right, bottom = _box(layer.mask)
    boxes = [_box(other.mask) for other in behind]
    for _ in range(40):
        across = whole(rng, border, size - border - (right - left)) - left
        down = whole(rng, border, size - border - (bottom - top)) - top
        centre = (left + right + 2 * across, top + bottom + 2 * down)
        gaps = [max(abs(box[0] + box[2] - centre[0]), abs(box[1] + box[3] - centre[1])) for box in boxes]
        if any(gap < 2 * LEAST_DISTANCE * size for gap in gaps):
            continue
        mask = np.roll(layer.mask, (down, across), axis=(0, 1))
        front = mask.copy()
        for other in reversed(behind):
            if int((other.mask & front).sum()) > MOST_OVERLAPPED * int(other.mask.sum()):
                break
            front |= other.mask
        else:
            # The object lies inside the image before and after, so that nothing is carried around the edges.
            return replace(
                layer,
                colour=np.roll(layer.colour, (down, across), axis=(0, 1)),
                coverage=np.roll(layer.coverage, (down, across), axis=(0, 1)),
                mask=mask,
                part=np.roll(layer.part, (down, across), axis=(0, 1)),
            )
    return None


def _set_off(rng: np.random.Generator, scenery: FloatArray, layer: Layer) -> FloatArray:
    """Add a soft shadow behind an object, and change the brightness around it so that it stands out."""
    left, top, right, bottom = _box(layer.mask)
    extent = max(right - left, bottom - top) / layer.mask.shape[0]
    distance = distance_from(layer.mask, extent * between(rng, 0.55, 0.75))
    scenery = cast_shadow(rng, scenery, distance)
    gain, lift = separating_change(rng, layer, scenery)
    near = np.clip((np.float32(2.4) - distance) * np.float32(0.5), 0.0, 1.0)
    near = near * near * (np.float32(3.0) - np.float32(2.0) * near)
    changed = scenery * np.float32(gain) + np.float32(lift)
    return np.asarray(np.clip(scenery + (changed - scenery) * near[:, :, None], 0.0, 255.0), dtype=np.float32)


def _cover_one(rng: np.random.Generator, kind: str, masks: Sequence[BoolArray], visible: Sequence[BoolArray]) -> Occluder:
    """Draw an occluder over one of the objects that leaves at least 40 % of every object visible."""
    wholes = [int(mask.sum()) for mask in masks]
    for attempt in range(60):
        target = visible[whole(rng, 0, len(visible) - 1)]
        high = MOST_COVERED - 0.5 * attempt / 60
        mask, colours = make_occluder(rng, target, kind, low=0.05, high=high, cut=False)
        left = [int((part & ~mask).sum()) for part in visible]
        if all(rest >= (1.0 - MOST_COVERED) * size for rest, size in zip(left, wholes, strict=True)):
            return mask, colours
    raise ValueError(f"no {kind} occluder leaves 40 % of every object visible; use another seed or occluder")


def _box(mask: BoolArray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
