"""Photobombed images of one object or of several, with exact ground truth, one for each seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from becausal.scenes.backgrounds import GROUND_KINDS, grid, make_background, smooth
from becausal.scenes.objects_outdoors import bus, butterfly, fish, plane, sailboat, tree
from becausal.scenes.objects_things import clock, house, key, mug, traffic_light, umbrella
from becausal.scenes.occluders import CUTTERS, OCCLUDERS, PIECE, make_occluder, pieces
from becausal.scenes.sketch import BoolArray, Drawing, Draws, FloatArray, Layer, Pose, draw_sketch

NOTHING = "nothing"

#: How each class is drawn, and its largest rotation in degrees.
KINDS: dict[str, tuple[Drawing, float]] = {
    "bus": (bus, 12.0), "sailboat": (sailboat, 14.0), "house": (house, 10.0), "fish": (fish, 30.0),
    "butterfly": (butterfly, 50.0), "mug": (mug, 16.0), "clock": (clock, 14.0), "umbrella": (umbrella, 32.0),
    "key": (key, 180.0), "plane": (plane, 45.0), "tree": (tree, 9.0), "traffic light": (traffic_light, 14.0),
}  # fmt: skip

# All labels in the order of the bundled classifier's outputs; the last one stands for a scene without an object.
LABELS: tuple[str, ...] = (*KINDS, NOTHING)

TOLERANCE = 0.03  # within which a cover given as one number is met
# Distance of the mean colours of object and background from which on an object stands out: sum of the channels, 0 to 765.
ENOUGH_CONTRAST = 120.0
MIDDLE_GREY = 118.0  # mean brightness; the background of brighter objects is darkened, that of others brightened
MOST_COVERED = 0.6  # of an object, by default
MOST_OVERLAPPED = 0.3  # of an object, by objects in front of it
LEAST_DISTANCE = 0.17  # between the centres of two boxes, as a share of the side of the image
MARGIN = 0.03  # border kept free around each object, as a share of the side of the image
_EXTENTS = {1: (0.3, 0.55), 2: (0.3, 0.55), 3: (0.28, 0.48), 4: (0.28, 0.4)}  # of objects, by their number
_OBJECT_STREAMS = 20  # the first of two streams of random numbers for each object; those before it belong to the scene


@dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """A generated image and its ground truth."""

    image: npt.NDArray[np.uint8]
    """The image (n, n, 3), RGB."""
    label: str
    """The label, one of `LABELS`."""
    object: BoolArray
    """Mask of the whole object (n, n), covered or not; empty for a scene without an object."""
    visible: BoolArray
    """Mask of the visible part of the object (n, n): the object without the occluder."""
    occluder: BoolArray
    """Mask of the occluder (n, n)."""
    parts: Mapping[str, BoolArray]
    """Masks of the parts of the object (n, n), by name; they do not overlap, and together they make up the object."""
    seed: int
    """The seed of the scene."""
    occluder_kind: str
    """One of `OCCLUDERS`."""
    background_kind: str
    """One of `BACKGROUNDS`."""

    @property
    def label_index(self) -> int:
        """The position of the label in `LABELS`."""
        return LABELS.index(self.label)

    @property
    def size(self) -> int:
        """Side of the image in pixels."""
        return int(self.image.shape[0])

    @property
    def cover(self) -> float:
        """Share of the object that is covered, 0 to 1; 0 without an object."""
        whole = int(self.object.sum())
        return 0.0 if whole == 0 else 1.0 - int(self.visible.sum()) / whole

    @property
    def piece_sizes(self) -> tuple[int, ...]:
        """Sizes in pixels of the visible pieces with at least 5 % of the object, largest first."""
        least = PIECE * int(self.object.sum())
        return tuple(count for count in pieces(self.visible)[1] if count >= least)


def make_scene(
    seed: int,
    *,
    label: str | None = None,
    occluder: str | None = None,
    cover: float | tuple[float, float] | None = None,
    cut: bool | None = None,
    size: int = 128,
    background: str | None = None,
    background_seed: int | None = None,
    occluder_seed: int | None = None,
) -> Scene:
    """Draw a scene; everything that is not given is determined by the seed.

    Args:
        seed: Seed of the scene, 0 or more.
        label: One of `LABELS`.
        occluder: One of `OCCLUDERS`.
        cover: Share of the object to cover: a range (low, high), or a number, which is met within 0.03.
        cut: Whether the visible part of the object must consist of at least two pieces.
        size: Side of the image in pixels, 32 or more.
        background: One of `BACKGROUNDS`.
        background_seed: Draws another background behind the same object.
        occluder_seed: Draws another occluder in front of the same object.

    Raises:
        ValueError: An argument is out of range, or no occluder with this cover was found.
    """
    low, high = _check(seed, label, occluder, cover, cut, size, background)
    name, drawn, kind, cutting = _choose(stream(seed, 0), label, occluder, cut, has_cover=cover is not None)
    hand = stream(seed, 1)
    pose = draw_pose(hand, drawn)
    layer = shade_object(stream(seed, 6), draw_sketch(hand, KINDS[drawn][0]).render(size, pose))
    behind = stream(seed if background_seed is None else background_seed, 2)
    scenery, ground_kind = make_background(behind, size, kind=background)
    light = stream(seed, 4)
    # A round shadow whose size does not depend on the class: it shows where an object may be, not which one.
    scenery = set_off(light, scenery, layer, light.between(0.28, 0.42), everywhere=True)
    image = scenery
    if name != NOTHING:
        image = scenery + (layer.colour - scenery) * layer.coverage[:, :, None]
    camera = stream(seed, 5)
    image = smooth(image, max(0.0, camera.between(-0.4, 0.8)) * size / 128.0)
    occluded: BoolArray = np.zeros((size, size), dtype=np.bool_)
    if kind != "none":
        hand = stream(seed if occluder_seed is None else occluder_seed, 3)
        occluded, colours = make_occluder(hand, layer.mask, kind, low=low, high=high, cut=cutting)
        image = np.where(occluded[:, :, None], colours, image)
    shot = add_grain(camera, image)
    whole: BoolArray = layer.mask if name != NOTHING else np.zeros_like(layer.mask)
    parts = {} if name == NOTHING else {part: layer.part == k + 1 for k, part in enumerate(layer.names)}
    visible: BoolArray = whole & ~occluded
    for array in (shot, whole, visible, occluded, *parts.values()):
        array.flags.writeable = False
    return Scene(
        image=shot, label=name, object=whole, visible=visible, occluder=occluded,
        parts=MappingProxyType({part: mask for part, mask in parts.items() if mask.any()}), seed=seed,
        occluder_kind=kind, background_kind=ground_kind,
    )  # fmt: skip


def _choose(
    rng: Draws, label: str | None, occluder: str | None, cut: bool | None, *, has_cover: bool
) -> tuple[str, str, str, bool]:
    """The label, the class to draw, the kind of occluder, and whether it cuts the object.

    All random choices are drawn, needed or not, so that giving one argument does not change the others. For a scene of
    nothing a class is drawn too: the occluder is placed as if an object were there.
    """
    any_label, any_kind = rng.pick(LABELS), rng.pick(OCCLUDERS[1:])
    plain, split, placeholder = rng.chance(0.25), rng.chance(0.2), rng.pick(tuple(KINDS))
    name = any_label if label is None else label
    kind = occluder if occluder is not None else "none" if plain and not has_cover and not cut else any_kind
    if occluder is None and cut and kind not in CUTTERS:
        kind = rng.pick(CUTTERS)
    cutting = (split and kind in CUTTERS and not has_cover) if cut is None else cut
    return name, placeholder if name == NOTHING else name, kind, cutting


def stream(seed: int, index: int) -> Draws:
    """One of the independent streams of random numbers of a seed.

    Each step of a drawing has its own, so that an argument that changes one step leaves the others as they are: 0 choices,
    1 object, 2 background, 3 occluder, 4 shadow and contrast, 5 camera, 6 light on it. `groups` has those from 10 on.
    """
    return Draws(np.random.PCG64([seed, index]))


def draw_pose(rng: Draws, label: str) -> Pose:
    """Draw a random pose; only the rotation depends on the label."""
    share = rng.between(-1.0, 1.0)
    extent = rng.between(0.5, 0.78)
    return Pose(
        extent=extent, angle=math.radians(KINDS[label][1]) * share, flip=rng.chance(0.5),
        stretch=math.exp(rng.between(-0.16, 0.16)), shear=rng.between(-0.1, 0.1), wobble=rng.between(0.0, 0.035),
        phase=(rng.between(0.0, 6.28), rng.between(0.0, 6.28)), place=(rng.between(0.0, 1.0), rng.between(0.0, 1.0)),
    )  # fmt: skip


def shade_object(rng: Draws, layer: Layer) -> Layer:
    """Shade an object as if it were embossed and lit from one side."""
    size = layer.mask.shape[0]
    scale = size / 128.0
    spread = rng.between(1.5, 4.5)
    height = smooth(layer.coverage, spread * scale)
    strength = np.float32(rng.between(0.1, 0.5) * spread * scale)
    toward_x, toward_y = rng.between(-1.0, 1.0), rng.between(0.2, 1.0)
    slope = np.zeros_like(height)
    slope[:, 1:-1] += (height[:, 2:] - height[:, :-2]) * np.float32(toward_x)
    slope[1:-1] += (height[2:] - height[:-2]) * np.float32(toward_y)
    x, y = grid(size)
    fall = (x - np.float32(0.5)) * np.float32(toward_x) + (y - np.float32(0.5)) * np.float32(toward_y)
    light = np.float32(rng.between(0.88, 1.08)) + slope * strength - fall * np.float32(rng.between(0.0, 0.25))
    colour = np.clip(layer.colour * np.clip(light, 0.45, 1.45)[:, :, None], 0.0, 255.0).astype(np.float32)
    return replace(layer, colour=colour)


def set_off(rng: Draws, scenery: FloatArray, layer: Layer, reach: float, *, everywhere: bool) -> FloatArray:
    """Add a soft shadow behind an object, and change the brightness of an image, (n, n, 3), so that the object stands out.

    `reach` is the radius of the shadow as a share of the side; the brightness changes `everywhere` or around the object.
    """
    size = layer.mask.shape[0]
    rows, columns = np.nonzero(layer.mask)
    x, y = grid(size)
    across, down = int(columns.sum()) / len(columns) / size, int(rows.sum()) / len(rows) / size
    wide = np.float32(reach)
    distance = ((x - np.float32(across)) ** 2 + (y - np.float32(down + 0.05)) ** 2) / (wide * wide)  # squared, (n, n)
    depth = np.clip(np.float32(1.0) - distance, 0.0, 1.0) * np.float32(rng.between(0.0, 0.3))
    scenery = np.asarray(scenery * (np.float32(1.0) - depth)[:, :, None], dtype=np.float32)
    own, behind = layer.colour[layer.mask].astype(np.float64), scenery[layer.mask].astype(np.float64)
    gain, lift = 1.0, 0.0
    if float(np.abs(np.round(own.mean(axis=0) - behind.mean(axis=0), 3)).sum()) < ENOUGH_CONTRAST:
        darker = float(own.mean()) > MIDDLE_GREY
        gain, lift = (rng.between(0.55, 0.72), 0.0) if darker else (rng.between(1.35, 1.6), 24.0)
    changed = scenery * np.float32(gain) + np.float32(lift)
    if not everywhere:
        near = np.clip((np.float32(2.4) - distance) * np.float32(0.5), 0.0, 1.0)
        near = near * near * (np.float32(3.0) - np.float32(2.0) * near)
        changed = scenery + (changed - scenery) * near[:, :, None]
    return np.asarray(np.clip(changed, 0.0, 255.0), dtype=np.float32)


def add_grain(rng: Draws, image: FloatArray) -> npt.NDArray[np.uint8]:
    """Add sensor noise to an image, (n, n, 3), and round it to bytes."""
    strength = rng.between(0.0, 6.0)
    grain = rng.standard_normal(image.shape, dtype=np.float32) * np.float32(strength)
    return np.clip(np.round(np.round(image * 64.0) / 64.0 + np.round(grain * 64.0) / 64.0), 0, 255).astype(np.uint8)


def check_drawing(seed: int, size: int, least: int, occluder: str | None, background: str | None) -> None:
    """Refuse arguments that no scene can have; `least` is the smallest side in pixels. Raises ValueError."""
    if seed < 0:
        raise ValueError(f"the seed is {seed}, expected 0 or more")
    if size < least:
        raise ValueError(f"the size is {size} pixels, expected {least} or more; draw a larger scene and downsample it")
    if occluder is not None and occluder not in OCCLUDERS:
        raise ValueError(f"the occluder is {occluder!r}, expected one of {', '.join(OCCLUDERS)}")
    if background is not None and background not in GROUND_KINDS:
        raise ValueError(f"the background is {background!r}, expected one of {', '.join(GROUND_KINDS)}")


def _check(
    seed: int, label: str | None, occluder: str | None, cover: float | tuple[float, float] | None, cut: bool | None,
    size: int, background: str | None,
) -> tuple[float, float]:  # fmt: skip
    check_drawing(seed, size, 32, occluder, background)
    if label is not None and label not in LABELS:
        raise ValueError(f"the label is {label!r}, expected one of {', '.join(LABELS)}")
    if cut and occluder is not None and occluder not in CUTTERS:
        raise ValueError(f"a {occluder} occluder cannot cut an object; expected one of {', '.join(CUTTERS)}")
    if cover is None:
        return (0.08 if cut else 0.05), MOST_COVERED
    low, high = cover if isinstance(cover, tuple) else (max(0.005, cover - TOLERANCE), cover + TOLERANCE)
    if not 0.0 < low < high <= 0.95:
        raise ValueError(f"the cover is {cover}, expected shares with 0 < low < high <= 0.95; for 0 use occluder='none'")
    if occluder == "none":
        raise ValueError(f"the cover is {cover} but the occluder is 'none'; leave out one of them")
    return low, high


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
    any_count, any_kind, plain = rng.whole(2, 4), rng.pick(OCCLUDERS[1:]), rng.chance(0.25)
    kind = occluder if occluder is not None else "none" if plain else any_kind
    labels, layers = _place_objects(seed, any_count if count is None else count, size)
    image, ground_kind = make_background(stream(seed, 12), size, kind=background)
    shading = stream(seed, 14)
    for layer in layers:
        left, top, right, bottom = box_of(layer.mask)
        reach = max(right - left, bottom - top) / size * shading.between(0.55, 0.75)
        image = set_off(shading, image, layer, reach, everywhere=False)
    visible: list[BoolArray] = []
    for layer in layers:
        image = image + (layer.colour - image) * layer.coverage[:, :, None]
        visible = [*(mask & ~layer.mask for mask in visible), layer.mask]
    camera = stream(seed, 15)
    image = smooth(image, max(0.0, camera.between(-0.4, 0.8)) * size / 128.0)
    occluded: BoolArray = np.zeros((size, size), dtype=np.bool_)
    if kind != "none":
        hand = stream(seed, 13)
        for attempt in range(60):
            target = visible[hand.whole(0, len(visible) - 1)]
            high = MOST_COVERED - 0.5 * attempt / 60
            occluded, colours = make_occluder(hand, target, kind, low=0.05, high=high, cut=False)
            least = [(1.0 - MOST_COVERED) * int(layer.mask.sum()) for layer in layers]
            if all(int((part & ~occluded).sum()) >= rest for part, rest in zip(visible, least, strict=True)):
                break
        else:
            raise ValueError(f"no {kind} occluder leaves 40 % of every object visible; use another seed or occluder")
        image = np.where(occluded[:, :, None], colours, image)
    shot = add_grain(camera, image)
    visible = [mask & ~occluded for mask in visible]
    for array in (shot, occluded, *visible, *(layer.mask for layer in layers)):
        array.flags.writeable = False
    objects = tuple(
        SceneObject(label=label, box=box_of(layer.mask), mask=layer.mask, visible=mask)
        for label, layer, mask in zip(labels, layers, visible, strict=True)
    )
    return GroupScene(
        image=shot, objects=objects, occluder=occluded, seed=seed, occluder_kind=kind, background_kind=ground_kind
    )


def box_of(mask: BoolArray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a mask, the last two exclusive; zeros for an empty one."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _place_objects(seed: int, count: int, size: int) -> tuple[list[str], list[Layer]]:
    """Draw the objects of a scene from back to front, each at a place where it leaves enough of those behind it."""
    labels: list[str] = []
    layers: list[Layer] = []
    low, high = _EXTENTS[count]
    for k in range(count):
        rng = stream(seed, _OBJECT_STREAMS + 2 * k)
        label = rng.pick(tuple(KINDS))
        pose = replace(draw_pose(rng, label), extent=rng.between(low, high), reach=min(0.7, 1.5 * high), place=(0.5, 0.5))
        sketch = draw_sketch(rng, KINDS[label][0])
        placed: Layer | None = None
        while placed is None:
            # An object that fits nowhere is drawn smaller, until it does.
            placed = _place(rng, sketch.render(size, pose), layers)
            pose = replace(pose, extent=pose.extent * 0.85)
        labels.append(label)
        layers.append(shade_object(stream(seed, _OBJECT_STREAMS + 2 * k + 1), placed))
    return labels, layers


def _place(rng: Draws, layer: Layer, behind: Sequence[Layer]) -> Layer | None:
    """Move an object to a random place where it leaves enough of the objects behind it; None if none was found."""
    size = layer.mask.shape[0]
    border = max(1, round(MARGIN * size))
    left, top, right, bottom = box_of(layer.mask)
    boxes = [box_of(other.mask) for other in behind]
    for _ in range(40):
        across = rng.whole(border, size - border - (right - left)) - left
        down = rng.whole(border, size - border - (bottom - top)) - top
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
            others = ("colour", "coverage", "part")
            return replace(layer, mask=mask, **{k: np.roll(getattr(layer, k), (down, across), axis=(0, 1)) for k in others})
    return None
