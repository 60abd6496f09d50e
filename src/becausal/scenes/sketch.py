"""Drawings made of filled outlines, rendered at any size with exact masks; their colours and random draws.

Outlines are filled here in numpy, not by an imaging library, so that the same seed gives the same pixels whatever
library versions are installed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar, final

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]
Points = npt.NDArray[np.float64]
Outline = Sequence[tuple[float, float]]
Colour = tuple[int, int, int]
Item = TypeVar("Item")

WHITE: Colour = (246, 244, 238)
INK: Colour = (34, 36, 44)

#: Colours of objects, props and occluders; all classes share this list.
PAINTS: tuple[Colour, ...] = (
    (200, 62, 54), (226, 109, 84), (238, 150, 74), (240, 189, 86), (214, 166, 46), (148, 158, 66),
    (94, 142, 82), (48, 112, 84), (46, 138, 136), (92, 172, 186), (72, 138, 196), (50, 88, 150),
    (44, 58, 104), (98, 84, 152), (146, 96, 152), (196, 96, 134), (228, 146, 158), (140, 84, 58),
    (178, 130, 92), (232, 220, 196), (242, 240, 232), (160, 164, 168), (104, 110, 120), (58, 60, 68),
)  # fmt: skip

#: Softer background colours, shared by all classes, so that no background reveals the label.
GROUNDS: tuple[Colour, ...] = (
    (214, 206, 190), (196, 204, 206), (176, 196, 214), (150, 180, 204), (122, 152, 176), (186, 198, 170),
    (142, 164, 124), (108, 134, 104), (200, 178, 146), (176, 146, 116), (138, 116, 98), (214, 188, 178),
    (196, 156, 148), (168, 158, 184), (126, 122, 150), (92, 104, 124), (70, 82, 92), (96, 86, 82),
    (230, 226, 218), (158, 158, 154), (120, 124, 122), (224, 206, 160), (104, 142, 150), (60, 66, 78),
)  # fmt: skip

#: Sub-samples per pixel and axis.
OVERSAMPLE = 3


@final
class Draws(np.random.Generator):
    """A stream of random numbers, with the draws that all drawings use."""

    def between(self, low: float, high: float) -> float:
        """A number from [low, high)."""
        return low + (high - low) * float(self.random())

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return float(self.random()) < probability

    def whole(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.integers(low, high + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[int(self.integers(0, len(items)))]

    def paint(self, *, unlike: Colour | None = None) -> Colour:
        """An object colour with a small jitter, clearly different from `unlike`."""
        for _ in range(8):
            colour = self._jitter(self.pick(PAINTS), 14.0)
            if unlike is None or sum(abs(a - b) for a, b in zip(colour, unlike, strict=True)) > 110:
                break
        return colour

    def ground(self) -> Colour:
        """A background colour with a small jitter."""
        return self._jitter(self.pick(GROUNDS), 16.0)

    def _jitter(self, colour: Colour, spread: float) -> Colour:
        common = self.between(-spread, spread)
        own = [self.between(-spread, spread) * 0.6 for _ in range(3)]
        return _byte(colour[0] + common + own[0]), _byte(colour[1] + common + own[1]), _byte(colour[2] + common + own[2])


@dataclass(frozen=True, kw_only=True)
class Pose:
    """How a sketch is placed in the image."""

    extent: float = 0.6  # geometric mean of the sides of the bounding box, as a share of the side of the image
    angle: float = 0.0  # rotation in radians
    flip: bool = False  # mirrored left and right
    stretch: float = 1.0  # factor applied to the aspect ratio (width over height)
    shear: float = 0.0  # horizontal
    wobble: float = 0.0  # strength of a smooth distortion of the outline
    phase: tuple[float, float] = (0.0, 0.0)  # of the distortion, in radians
    place: tuple[float, float] = (0.5, 0.5)  # of the bounding box within the free space, 0 to 1 across and down
    reach: float = 0.92  # longest allowed side of the bounding box, as a share of the side of the image
    margin: float = 0.03  # border kept free around the bounding box; a negative one lets it leave the image


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A rendered sketch: colour (n, n, 3) in 0..255, coverage (n, n) in 0..1, part number (n, n) with 0 for none."""

    colour: FloatArray
    coverage: FloatArray
    mask: BoolArray
    part: npt.NDArray[np.uint8]
    names: tuple[str, ...]


@dataclass
class Sketch:
    """Outlines in drawing order; x points right and y down, in units of half the size of the object."""

    _outlines: list[Points] = field(default_factory=list)
    _values: list[int] = field(default_factory=list)
    _colours: list[Colour] = field(default_factory=lambda: [(0, 0, 0)])
    _parts: list[int] = field(default_factory=lambda: [0])
    _names: list[str] = field(default_factory=list)

    def polygon(self, points: Outline | Points, colour: Colour, part: str) -> None:
        """Fill a closed outline."""
        self._add(points, self._value(colour, part))

    def erase(self, points: Outline | Points) -> None:
        """Cut a hole into everything drawn so far."""
        self._add(points, 0)

    def box(
        self, left: float, top: float, right: float, bottom: float, colour: Colour, part: str, radius: float = 0.0
    ) -> None:
        """Fill an axis-aligned rectangle with rounded corners."""
        self.polygon(rounded(left, top, right, bottom, radius), colour, part)

    def ellipse(self, x: float, y: float, rx: float, ry: float, colour: Colour, part: str, turn: float = 0.0) -> None:
        """Fill an ellipse rotated by `turn` radians."""
        self.polygon(oval(x, y, rx, ry, turn=turn), colour, part)

    def discs(self, x: float, y: float, part: str, *rings: tuple[float, Colour]) -> None:
        """Fill circles around one centre, by radius and colour, the lowest first."""
        for radius, colour in rings:
            self.ellipse(x, y, radius, radius, colour, part)

    def stroke(self, points: Outline | Points, width: float, colour: Colour, part: str, *, ends: bool = True) -> None:
        """Draw a line of the given width through the points, with round joints and, if `ends`, round caps."""
        value = self._value(colour, part)
        line = np.asarray(points, dtype=np.float64)
        half = width / 2.0
        for start, stop in pairwise(line):
            along = stop - start
            length = math.hypot(float(along[0]), float(along[1]))
            if length == 0.0:
                continue
            side = np.array([-along[1], along[0]]) * (half / length)
            self._add(np.array([start + side, stop + side, stop - side, start - side]), value)
        for x, y in line if ends else line[1:-1]:
            self._add(oval(float(x), float(y), half, half, count=12), value)

    def _value(self, colour: Colour, part: str) -> int:
        if part not in self._names:
            self._names.append(part)
        index = self._names.index(part) + 1
        for value, known in enumerate(self._colours):
            if value and known == colour and self._parts[value] == index:
                return value
        if len(self._colours) > 255:
            raise ValueError("a sketch holds at most 255 pairs of colour and part; use fewer shades")
        self._colours.append(colour)
        self._parts.append(index)
        return len(self._colours) - 1

    def _add(self, points: Outline | Points, value: int) -> None:
        self._outlines.append(np.asarray(points, dtype=np.float64))
        self._values.append(value)

    def render(self, size: int, pose: Pose) -> Layer:
        """Render the sketch in an image of `size` x `size` pixels."""
        index = np.zeros((size * OVERSAMPLE, size * OVERSAMPLE), dtype=np.uint8)
        for points, value in zip(self._placed(size * OVERSAMPLE, pose), self._values, strict=True):
            fill(index, points, value)
        table = np.array(self._colours, dtype=np.uint16)
        table[0] = 0
        part_of = np.array(self._parts, dtype=np.uint8)
        # Only the window with something in it is reduced.
        found = [np.flatnonzero(index.any(axis=axis)) // OVERSAMPLE for axis in (1, 0)]
        rows, columns = (slice(int(at[0]), min(size, int(at[-1]) + 1)) if len(at) else slice(0, 0) for at in found)
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        total = np.zeros((*shape, 3), dtype=np.uint16)
        votes = np.zeros((len(self._names) + 1, *shape), dtype=np.uint8)
        for i in range(OVERSAMPLE):
            for j in range(OVERSAMPLE):
                sample = index[i::OVERSAMPLE, j::OVERSAMPLE][rows, columns]
                total += table[sample]
                owner = part_of[sample]
                for k in range(1, len(self._names) + 1):
                    votes[k] += owner == k
        hits = votes[1:].sum(axis=0, dtype=np.uint8)
        samples = OVERSAMPLE * OVERSAMPLE
        mask = np.zeros((size, size), dtype=np.bool_)
        mask[rows, columns] = hits * 2 >= samples
        colour = np.zeros((size, size, 3), dtype=np.float32)
        colour[rows, columns] = total.astype(np.float32) / np.maximum(hits, 1).astype(np.float32)[:, :, None]
        part = np.zeros((size, size), dtype=np.uint8)
        part[rows, columns] = np.where(mask[rows, columns], votes.argmax(axis=0), 0)
        coverage = np.zeros((size, size), dtype=np.float32)
        coverage[rows, columns] = hits.astype(np.float32) / np.float32(samples)
        return Layer(colour=colour, coverage=coverage, mask=mask, part=part, names=tuple(self._names))

    def _placed(self, side: int, pose: Pose) -> list[Points]:
        cut = np.cumsum([len(points) for points in self._outlines])[:-1]
        every = np.concatenate(self._outlines) * np.array([-1.0 if pose.flip else 1.0, 1.0])
        x, y = every[:, 0], every[:, 1]
        if pose.wobble:
            x, y = (x + pose.wobble * np.sin(2.3 * y + pose.phase[0]), y + pose.wobble * np.sin(2.9 * x + pose.phase[1]))
        x = (x + pose.shear * y) * math.sqrt(pose.stretch)
        y = y / math.sqrt(pose.stretch)
        cosine, sine = math.cos(pose.angle), math.sin(pose.angle)
        x, y = cosine * x - sine * y, sine * x + cosine * y
        solid = np.repeat([value > 0 for value in self._values], [len(points) for points in self._outlines])
        left, right = float(x[solid].min()), float(x[solid].max())
        top, bottom = float(y[solid].min()), float(y[solid].max())
        wide, high = right - left, bottom - top
        scale = min(pose.extent / math.sqrt(wide * high), pose.reach / max(wide, high))
        room_x = 1.0 - 2.0 * pose.margin - wide * scale
        room_y = 1.0 - 2.0 * pose.margin - high * scale
        x = (pose.margin + room_x * pose.place[0] + (x - left) * scale) * side
        y = (pose.margin + room_y * pose.place[1] + (y - top) * scale) * side
        return list(np.split(np.stack([x, y], axis=1), cut))


Drawing = Callable[[Draws, Sketch], None]  # adds outlines to a sketch


def draw_sketch(rng: Draws, draw: Drawing) -> Sketch:
    """A new sketch with one drawing."""
    sketch = Sketch()
    draw(rng, sketch)
    return sketch


def fill(canvas: npt.NDArray[np.uint8], points: Points, value: int) -> None:
    """Set the pixels whose centre lies inside the outline (non-zero winding rule) to `value`."""
    # Coordinates are rounded to 1/32, so that rounding differences of a sine between platforms cannot move an edge.
    grid = np.round(points * 32.0) / 32.0
    following = np.concatenate([grid[1:], grid[:1]])
    x, y, next_y = grid[:, 0], grid[:, 1], following[:, 1]
    height, width = canvas.shape
    bounds = np.ceil(np.stack([np.minimum(y, next_y), np.maximum(y, next_y)]) - 0.5)
    first, last = np.minimum(np.maximum(bounds, 0.0), height).astype(np.intp)
    count = last - first
    total = int(count.sum())
    if total == 0:
        return
    edge = np.repeat(np.arange(len(x)), count)
    row = np.arange(total) + np.repeat(first - (np.cumsum(count) - count), count)
    top, bottom = int(row.min()), int(row.max()) + 1
    left = min(max(math.floor(float(x.min())), 0), width)
    right = min(max(math.ceil(float(x.max())) + 1, 0), width)
    if left >= right:
        return
    drop = next_y - y
    slope = (following[:, 0] - x) / np.where(drop == 0.0, 1.0, drop)
    cross = x[edge] + (row + 0.5 - y[edge]) * slope[edge]
    column = np.minimum(np.maximum(np.ceil(cross - 0.5), left), right).astype(np.intp) - left
    turns = np.zeros((bottom - top, right - left + 1), dtype=np.int8)
    np.add.at(turns, (row - top, column), np.where(drop > 0, 1, -1).astype(np.int8)[edge])
    inside = np.cumsum(turns, axis=1, dtype=np.int8)[:, :-1] != 0
    np.putmask(canvas[top:bottom, left:right], inside, np.uint8(value))


def oval(x: float, y: float, rx: float, ry: float, *, turn: float = 0.0, count: int = 40) -> Points:
    """Outline of an ellipse."""
    t = np.arange(count) * (2.0 * math.pi / count)
    return np.asarray(turned(np.stack([rx * np.cos(t), ry * np.sin(t)], axis=1), turn) + np.array([x, y]))


def arc(x: float, y: float, rx: float, ry: float, start: float, stop: float, *, count: int = 24) -> Points:
    """Points on an elliptic arc from start to stop, in radians (0 is right, pi/2 is down)."""
    t = start + (stop - start) * np.arange(count) / (count - 1)
    return np.stack([x + rx * np.cos(t), y + ry * np.sin(t)], axis=1)


def rounded(left: float, top: float, right: float, bottom: float, radius: float) -> Points:
    """Outline of an axis-aligned rectangle with rounded corners."""
    r = min(radius, (right - left) / 2.0, (bottom - top) / 2.0)
    if r <= 0.0:
        return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    quarter = math.pi / 2.0
    corners = ((right - r, bottom - r), (left + r, bottom - r), (left + r, top + r), (right - r, top + r))
    return np.concatenate([arc(x, y, r, r, k * quarter, (k + 1) * quarter, count=7) for k, (x, y) in enumerate(corners)])


def mirrored(points: Points) -> Points:
    """A line followed by its mirror image across the middle, from its end to its start."""
    return np.concatenate([points, points[::-1] * np.array([-1.0, 1.0])])


def curve(points: Outline | Points, *, closed: bool = True, steps: int = 8) -> Points:
    """Smooth curve through the points (a Catmull-Rom spline)."""
    knots = np.asarray(points, dtype=np.float64)
    if closed:
        padded = np.concatenate([knots[-1:], knots, knots[:2]])
    else:
        padded = np.concatenate([knots[:1], knots, knots[-1:]])
    t = (np.arange(steps) / steps)[:, None, None]
    a, b, c, d = padded[:-3], padded[1:-2], padded[2:-1], padded[3:]
    spline = b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    smooth = spline.transpose(1, 0, 2).reshape(-1, 2)
    return smooth if closed else np.concatenate([smooth, knots[-1:]])


def turned(points: Points, angle: float) -> Points:
    """Rotate points about the origin by an angle in radians."""
    if angle == 0.0:
        return points
    cosine, sine = math.cos(angle), math.sin(angle)
    return np.stack([cosine * points[:, 0] - sine * points[:, 1], sine * points[:, 0] + cosine * points[:, 1]], axis=1)


def shade(colour: Colour, factor: float) -> Colour:
    """Darken (factor below 1) or lighten (above 1) a colour."""
    if factor <= 1.0:
        return _byte(colour[0] * factor), _byte(colour[1] * factor), _byte(colour[2] * factor)
    return mix(colour, (255, 255, 255), min(1.0, factor - 1.0))


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Blend two colours; `share` is the weight of the second."""
    red, green, blue = (a + (b - a) * share for a, b in zip(first, second, strict=True))
    return _byte(red), _byte(green), _byte(blue)


def _byte(value: float) -> int:
    return int(min(255.0, max(0.0, value + 0.5)))
