"""Photobombed images with exact ground truth, one for each seed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from becausal.lab.scenes.backgrounds import GROUND_KINDS, make_background
from becausal.lab.scenes.fields import grid, smooth
from becausal.lab.scenes.masks import pieces
from becausal.lab.scenes.objects import KINDS, LABELS, NOTHING, draw_pose
from becausal.lab.scenes.occluders import CUTTERS, OCCLUDERS, PIECE, make_occluder
from becausal.lab.scenes.palette import between, chance, pick
from becausal.lab.scenes.sketch import BoolArray, FloatArray, Layer, draw_sketch

#: A cover given as one number is met within this tolerance.
TOLERANCE = 0.03

#: Distance of the mean colours of object and background from which on an object stands out: sum of the channels, 0 to 765.
ENOUGH_CONTRAST = 120.0

#: Mean brightness, 0 to 255; the background of brighter objects is darkened, that of others brightened.
MIDDLE_GREY = 118.0

#: Largest share of an object that is covered by default.
MOST_COVERED = 0.6


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
    layer = _object_layer(seed, drawn, size)
    scenery, ground_kind = make_background(
        stream(seed if background_seed is None else background_seed, 2), size, kind=background
    )
    scenery = _separate_background(stream(seed, 4), scenery, layer)
    image = scenery
    if name != NOTHING:
        image = scenery + (layer.colour - scenery) * layer.coverage[:, :, None]
    camera = stream(seed, 5)
    image = smooth(image, max(0.0, between(camera, -0.4, 0.8)) * size / 128.0)
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
    rng: np.random.Generator, label: str | None, occluder: str | None, cut: bool | None, *, has_cover: bool
) -> tuple[str, str, str, bool]:
    """The label, the class to draw, the kind of occluder, and whether it cuts the object.

    All random choices are drawn, needed or not, so that giving one argument does not change the others. For a scene of
    nothing a class is drawn too: the occluder is placed as if an object were there.
    """
    any_label, any_kind = pick(rng, LABELS), pick(rng, OCCLUDERS[1:])
    plain, split, placeholder = chance(rng, 0.25), chance(rng, 0.2), pick(rng, tuple(KINDS))
    name = any_label if label is None else label
    kind = occluder if occluder is not None else "none" if plain and not has_cover and not cut else any_kind
    if occluder is None and cut and kind not in CUTTERS:
        kind = pick(rng, CUTTERS)
    cutting = (split and kind in CUTTERS and not has_cover) if cut is None else cut
    return name, placeholder if name == NOTHING else name, kind, cutting


def stream(seed: int, index: int) -> np.random.Generator:
    """One of the independent streams of random numbers of a seed.

    Each step of a drawing has its own, so that an argument that changes one step leaves the others as they are: 0 choices,
    1 object, 2 background, 3 occluder, 4 shadow and contrast, 5 camera, 6 light on it. `groups` has those from 10 on.
    """
    return np.random.Generator(np.random.PCG64([seed, index]))


def _object_layer(seed: int, name: str, size: int) -> Layer:
    rng = stream(seed, 1)
    pose = draw_pose(rng, name)
    return shade_object(stream(seed, 6), draw_sketch(rng, KINDS[name].draw).render(size, pose))


def shade_object(rng: np.random.Generator, layer: Layer) -> Layer:
    """Shade an object as if it were embossed and lit from one side."""
    size = layer.mask.shape[0]
    scale = size / 128.0
    spread = between(rng, 1.5, 4.5)
    height = smooth(layer.coverage, spread * scale)
    strength = np.float32(between(rng, 0.1, 0.5) * spread * scale)
    toward_x, toward_y = between(rng, -1.0, 1.0), between(rng, 0.2, 1.0)
    slope = np.zeros_like(height)
    slope[:, 1:-1] += (height[:, 2:] - height[:, :-2]) * np.float32(toward_x)
    slope[1:-1] += (height[2:] - height[:-2]) * np.float32(toward_y)
    x, y = grid(size)
    fall = (x - np.float32(0.5)) * np.float32(toward_x) + (y - np.float32(0.5)) * np.float32(toward_y)
    light = np.float32(between(rng, 0.88, 1.08)) + slope * strength - fall * np.float32(between(rng, 0.0, 0.25))
    colour = np.clip(layer.colour * np.clip(light, 0.45, 1.45)[:, :, None], 0.0, 255.0).astype(np.float32)
    return replace(layer, colour=colour)


def _separate_background(rng: np.random.Generator, scenery: FloatArray, layer: Layer) -> FloatArray:
    """Adjust the brightness of the background so that the object stands out, and add a soft shadow behind it."""
    # A round shadow whose size does not depend on the class: it shows where an object may be, not which one.
    distance = distance_from(layer.mask, between(rng, 0.28, 0.42))
    scenery = cast_shadow(rng, scenery, distance)
    gain, lift = separating_change(rng, layer, scenery)
    scenery = scenery * np.float32(gain) + np.float32(lift)
    return np.asarray(np.clip(scenery, 0.0, 255.0), dtype=np.float32)


def distance_from(mask: BoolArray, reach: float) -> FloatArray:
    """Squared distance of every pixel from just below the centre of a mask, (n, n), in units of `reach` image sides."""
    size = mask.shape[0]
    rows, columns = np.nonzero(mask)
    x, y = grid(size)
    across, down = int(columns.sum()) / len(columns) / size, int(rows.sum()) / len(rows) / size
    wide = np.float32(reach)
    distance = ((x - np.float32(across)) ** 2 + (y - np.float32(down + 0.05)) ** 2) / (wide * wide)
    return np.asarray(distance, dtype=np.float32)


def cast_shadow(rng: np.random.Generator, scenery: FloatArray, distance: FloatArray) -> FloatArray:
    """Darken an image, (n, n, 3), where the squared distance, (n, n), is below 1."""
    depth = np.clip(np.float32(1.0) - distance, 0.0, 1.0) * np.float32(between(rng, 0.0, 0.3))
    return np.asarray(scenery * (np.float32(1.0) - depth)[:, :, None], dtype=np.float32)


def separating_change(rng: np.random.Generator, layer: Layer, scenery: FloatArray) -> tuple[float, float]:
    """The gain and the offset of the background that make an object stand out; 1 and 0 where it stands out already."""
    own, behind = layer.colour[layer.mask], scenery[layer.mask]
    gap = np.round((own.astype(np.float64).mean(axis=0) - behind.astype(np.float64).mean(axis=0)), 3)
    if float(np.abs(gap).sum()) >= ENOUGH_CONTRAST:
        return 1.0, 0.0
    darker = float(own.astype(np.float64).mean()) > MIDDLE_GREY
    return (between(rng, 0.55, 0.72), 0.0) if darker else (between(rng, 1.35, 1.6), 24.0)


def add_grain(rng: np.random.Generator, image: FloatArray) -> npt.NDArray[np.uint8]:
    """Add sensor noise to an image, (n, n, 3), and round it to bytes."""
    strength = between(rng, 0.0, 6.0)
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
