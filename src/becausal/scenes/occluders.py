"""Occluders (photobombers): what stands between the camera and the object.

A shape is a field over the image. The occluder covers the pixels whose value is below a threshold, chosen so that the
wanted share of the object is covered. Masks are hard: occluder pixels are not blended.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from becausal.core.regions import components
from becausal.scenes.backgrounds import along, blend, grid, noise, rough, waves
from becausal.scenes.props import PROPS, STANDING
from becausal.scenes.sketch import BoolArray, Draws, FloatArray, Pose, draw_sketch, mix, shade

Field = Callable[[Draws, int, tuple[float, float]], FloatArray]
Occluder = tuple[BoolArray, FloatArray]

OCCLUDERS: tuple[str, ...] = ("none", "black", "flat", "texture", "strips", "prop", "dirt")
CUTTERS: tuple[str, ...] = ("black", "flat", "texture", "strips")  # kinds that can cut an object into separate pieces
PIECE = 0.05  # smallest share of the object that counts as a visible piece


def _from(size: int, centre: tuple[float, float], angle: float) -> tuple[FloatArray, FloatArray]:
    x, y = centre[0] - 0.5, centre[1] - 0.5
    across = along(size, angle) - np.float32(x * math.cos(angle) + y * math.sin(angle))
    down = along(size, angle + math.pi / 2) - np.float32(y * math.cos(angle) - x * math.sin(angle))
    return across.astype(np.float32), down.astype(np.float32)


def _box(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    angle = 0.0 if rng.chance(0.5) else rng.between(-0.8, 0.8)
    across, down = _from(size, centre, angle)
    aspect = np.float32(math.exp(rng.between(-0.8, 0.8)))
    return np.asarray(np.maximum(np.abs(across) * aspect, np.abs(down) / aspect), dtype=np.float32)


def _disc(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    across, down = _from(size, centre, rng.between(0.0, 3.14))
    aspect = np.float32(math.exp(rng.between(-0.5, 0.5)))
    return np.asarray((across * aspect) ** 2 + (down / aspect) ** 2, dtype=np.float32)


def _blob(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    across, down = _from(size, centre, 0.0)
    bumps = (noise(rng, size, rng.whole(3, 6)) - np.float32(0.5)) * np.float32(0.3)
    return np.asarray(np.sqrt(across * across + down * down) + bumps, dtype=np.float32)


def _edge(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    angle = rng.pick((0.0, 0.5, 1.0, 1.5)) * math.pi + rng.between(-0.4, 0.4)
    bumps = (noise(rng, size, rng.whole(3, 7)) - np.float32(0.5)) * np.float32(rng.between(0.0, 0.15))
    return np.asarray(along(size, angle) + bumps, dtype=np.float32)


def _strip(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    across, _ = _from(size, centre, rng.between(0.0, math.pi))
    return np.asarray(np.abs(across), dtype=np.float32)


def _strips(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    angle = rng.pick((0.0, math.pi / 2, rng.between(0.0, math.pi)))
    across, down = _from(size, centre, angle + rng.between(-0.06, 0.06))
    step = rng.between(0.14, 0.32)
    bars = np.float32(1.0) - waves(across / np.float32(step) + np.float32(0.5))
    # sometimes a second, wider set of strips makes a lattice
    if rng.chance(0.3):
        cross = np.float32(1.0) - waves(down / np.float32(step * rng.between(1.2, 2.0)) + np.float32(0.5))
        bars = np.minimum(bars, cross * np.float32(1.5))
    return np.asarray(bars, dtype=np.float32)


def _specks(rng: Draws, size: int, centre: tuple[float, float]) -> FloatArray:
    x, y = grid(size)
    field = np.full((size, size), 9.0, dtype=np.float32)
    for k in range(rng.whole(7, 16)):
        spread = 0.16 if k < 5 else 0.45
        at = (centre[0] + rng.between(-spread, spread), centre[1] + rng.between(-spread, spread))
        weight = 1.0 / rng.between(0.4, 1.6)
        distance = np.sqrt((x - np.float32(at[0])) ** 2 + (y - np.float32(at[1])) ** 2) * np.float32(weight)
        field = np.minimum(field, distance)
    return np.asarray(field + (rough(rng, size, 12) - np.float32(0.5)) * np.float32(0.08), dtype=np.float32)


_SHAPES: tuple[Field, ...] = (_box, _box, _disc, _blob, _edge, _strip)


def _cover(field: FloatArray, target: BoolArray, low: float, high: float, share: float) -> BoolArray | None:
    # Rounded to multiples of 2**-16, so that rounding differences between platforms cannot change a pixel.
    steps = np.round(field * np.float32(65536.0)).astype(np.int64)
    inside = np.sort(steps[target])
    count = len(inside)
    at = inside[min(count - 1, max(0, round(share * count) - 1))]
    for limit in (at, at - 1, inside[min(count - 1, int(np.searchsorted(inside, at, side="right")))]):
        covered = int(np.searchsorted(inside, limit, side="right")) / count
        if low <= covered <= high:
            return np.asarray(steps <= limit)
    return None


def _paint(rng: Draws, size: int, kind: str) -> FloatArray:
    if kind == "strips":
        kind = rng.pick(("black", "flat", "texture"))
    if kind == "black":
        return np.zeros((size, size, 3), dtype=np.float32)
    colour = rng.paint()
    if kind == "flat":
        return blend(np.zeros((size, size), dtype=np.float32), colour, colour)
    if kind == "dirt":
        dirt = rng.pick(((74, 58, 46), (104, 92, 78), (58, 58, 58), (168, 158, 142), (128, 112, 88)))
        return blend(rough(rng, size, 10), shade(dirt, 0.7), shade(dirt, 1.15))
    other = rng.paint(unlike=colour) if rng.chance(0.5) else shade(colour, rng.pick((0.7, 1.35)))
    angle, step = rng.between(0.0, math.pi), np.float32(rng.between(7.0, 16.0))
    across, down = along(size, angle) * step, along(size, angle + math.pi / 2) * step
    pattern = rng.whole(0, 4)
    if pattern == 0:
        field = (waves(across) > 0.5).astype(np.float32)
    elif pattern == 1:
        field = ((np.floor(across) + np.floor(down)) % 2).astype(np.float32)
    elif pattern == 2:
        field = ((waves(across) - 0.5) ** 2 + (waves(down) - 0.5) ** 2 < 0.05).astype(np.float32)
    elif pattern == 3:
        field = (rough(rng, size, rng.whole(5, 12)) - np.float32(0.5)) * np.float32(2.4) + np.float32(0.5)
    else:
        field = waves(across) * np.float32(0.5) + waves(down) * np.float32(0.5)
    return blend(field.astype(np.float32), colour, mix(colour, other, rng.between(0.6, 1.0)))


def _prop(rng: Draws, target: BoolArray, low: float, high: float, share: float) -> Occluder | None:
    size = target.shape[0]
    rows, columns = np.nonzero(target)
    centre = (int(rows.sum()) // len(rows), int(columns.sum()) // len(columns))
    draw = rng.pick(PROPS)
    stands = draw in STANDING
    area = len(rows) / (size * size)
    extent = min(1.1, math.sqrt(area) * rng.between(0.95, 1.5) * (1.25 if stands else 1.0))
    pose = Pose(
        extent=extent, angle=rng.between(-0.25, 0.25) if stands else rng.between(-0.6, 0.6),
        flip=rng.chance(0.5), stretch=rng.between(0.85, 1.2), wobble=rng.between(0.0, 0.03), reach=1.6, margin=-0.4,
    )  # fmt: skip
    layer = draw_sketch(rng, draw).render(size, pose)
    way = rng.between(0.9, 2.2) if stands else rng.between(0.0, 2.0 * math.pi)
    cosine, sine = round(math.cos(way), 5), round(math.sin(way), 5)
    count = len(rows)
    middle = size // 2
    best: tuple[float, int, int] | None = None
    for step in range(int(size * 0.9), -1, -2):
        down = centre[0] - middle + round(step * sine)
        right = centre[1] - middle + round(step * cosine)
        inside_rows, inside_columns = rows - down, columns - right
        kept = (inside_rows >= 0) & (inside_rows < size) & (inside_columns >= 0) & (inside_columns < size)
        covered = int(layer.mask[inside_rows[kept], inside_columns[kept]].sum()) / count
        if low <= covered <= high and (best is None or abs(covered - share) < best[0]):
            best = (abs(covered - share), down, right)
        if covered > high:
            break
    if best is None:
        return None
    # The prop is moved from the middle to the best place; what leaves the image is lost.
    _, down, right = best
    mask, colour = np.zeros_like(layer.mask), np.zeros_like(layer.colour)
    into = (slice(max(0, down), size + min(0, down)), slice(max(0, right), size + min(0, right)))
    take = (slice(max(0, -down), size - max(0, down)), slice(max(0, -right), size - max(0, right)))
    if abs(down) < size and abs(right) < size:
        mask[into], colour[into] = layer.mask[take], layer.colour[take]
    return mask, colour


def _strip_across(rng: Draws, target: BoolArray, low: float, high: float, share: float, wide: bool) -> BoolArray | None:
    size = target.shape[0]
    angle = rng.between(0.0, math.pi)
    field = along(size, angle)
    # the centre line of the strip leaves 25 to 75 % of the object on each side
    line = float(np.sort(field[target])[int(rng.between(0.25, 0.75) * int(target.sum()))])
    across = np.abs(field - np.float32(line))
    if wide:
        gap = rng.between(0.16, 0.3)
        across = np.minimum(across, np.abs(np.abs(field - np.float32(line)) - np.float32(gap)))
    mask = _cover(across, target, low, high, share)
    if mask is None or len([n for n in pieces(target & ~mask)[1] if n >= PIECE * int(target.sum())]) < 2:
        return None
    return mask


def make_occluder(rng: Draws, target: BoolArray, kind: str, *, low: float, high: float, cut: bool) -> Occluder:
    """Draw an occluder over a target.

    rng: random numbers. target: (n, n), the mask of the object. kind: one of `OCCLUDERS`. low: smallest share of the target
    to cover. high: largest share of the target to cover. cut: whether the visible part of the target must consist of at
    least two pieces. Returns the mask of the occluder, (n, n), and its colours, (n, n, 3). Raises ValueError where no such
    occluder was found.
    """
    size = target.shape[0]
    rows, columns = np.nonzero(target)
    for attempt in range(60):
        share = rng.between(low, high)
        mask: BoolArray | None
        if cut:
            mask = _strip_across(rng, target, low, high, share, wide=kind == "strips" and attempt < 30)
        elif kind == "prop" and attempt < 40:
            found = _prop(rng, target, low, high, share)
            if found is not None:
                return found
            continue
        else:
            at = rng.whole(0, len(rows) - 1)
            centre = ((int(columns[at]) + 0.5) / size, (int(rows[at]) + 0.5) / size)
            shape = _strips if kind == "strips" else _specks if kind == "dirt" else rng.pick(_SHAPES)
            mask = _cover(shape(rng, size, centre), target, low, high, share)
        if mask is not None:
            return mask, _paint(rng, size, "flat" if kind == "prop" else kind)
    raise ValueError(
        f"no {kind} occluder covers {low:.2f} to {high:.2f} of this object{' and cuts it' if cut else ''} at size "
        f"{size}; ask for a wider range of cover, another occluder or a larger size"
    )


def pieces(mask: BoolArray) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Number the connected pieces of a mask, the largest first and equally large ones by their first pixel.

    mask: (h, w); pixels that touch at a corner are connected. Returns the piece of every pixel, (h, w), 0 outside and 1 in
    the largest piece; and the sizes of the pieces in pixels.
    """
    _, piece, sizes = np.unique(components(mask, corners=True)[mask], return_inverse=True, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(1, len(order) + 1)
    numbered = np.zeros(mask.shape, np.int32)
    numbered[mask] = number[piece]
    return numbered, sizes[order].tolist()
