"""Smooth fields over an image, and backgrounds made of them, drawn independently of the label.

Elementwise arithmetic only, which gives the same bits on every machine.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from becausal.scenes.props import PROPS
from becausal.scenes.sketch import Colour, Draws, FloatArray, Pose, Sketch, draw_sketch, mix, oval, shade

Ground = Callable[[Draws, int], FloatArray]


def grid(size: int) -> tuple[FloatArray, FloatArray]:
    """Pixel centres across, (1, n), and down, (n, 1), as shares of the side."""
    line = ((np.arange(size) + 0.5) / size).astype(np.float32)
    return line[None, :], line[:, None]


def noise(rng: Draws, size: int, cells: int, *, cells_down: int | None = None) -> FloatArray:
    """Smooth random field, (n, n) in 0..1, with the given number of cells per side."""
    down = cells if cells_down is None else cells_down
    knots = rng.random((down + 2, cells + 2)).astype(np.float32)
    rows, row_share = _steps(size, down)
    columns, column_share = _steps(size, cells)
    top, bottom = knots[rows], knots[rows + 1]
    strip = top + (bottom - top) * row_share[:, None]
    left, right = strip[:, columns], strip[:, columns + 1]
    return np.asarray(left + (right - left) * column_share[None, :], dtype=np.float32)


def _steps(size: int, cells: int) -> tuple[npt.NDArray[np.intp], FloatArray]:
    at = (np.arange(size) + 0.5) * (cells / size)
    low = np.floor(at).astype(np.intp)
    share = at - low
    return low, (share * share * (3.0 - 2.0 * share)).astype(np.float32)


def rough(rng: Draws, size: int, cells: int) -> FloatArray:
    """Sum of three octaves of noise, (n, n), about 0..1."""
    field = noise(rng, size, cells) * np.float32(0.5)
    field = field + noise(rng, size, cells * 2) * np.float32(0.3)
    return np.asarray(field + noise(rng, size, cells * 4) * np.float32(0.2), dtype=np.float32)


def along(size: int, angle: float) -> FloatArray:
    """Position along a direction, (n, n), as a share of the side, 0 in the centre of the image."""
    x, y = grid(size)
    cosine, sine = np.float32(round(math.cos(angle), 5)), np.float32(round(math.sin(angle), 5))
    return np.asarray((x - np.float32(0.5)) * cosine + (y - np.float32(0.5)) * sine, dtype=np.float32)


def waves(field: FloatArray) -> FloatArray:
    """Triangle wave of period 1 between 0 and 1 (not a sine, which platforms round differently)."""
    return np.asarray(np.abs((field - np.floor(field)) * np.float32(2.0) - np.float32(1.0)), dtype=np.float32)


def blend(field: FloatArray, low: Colour, high: Colour) -> FloatArray:
    """Image, (n, n, 3), that changes from one colour to the other as the field goes from 0 to 1."""
    share = np.clip(field, 0.0, 1.0)[:, :, None].astype(np.float32)
    start = np.array(low, dtype=np.float32)
    return np.asarray(start + (np.array(high, dtype=np.float32) - start) * share, dtype=np.float32)


def smooth(image: FloatArray, sigma: float) -> FloatArray:
    """Gaussian blur with a standard deviation in pixels; edges are repeated."""
    if sigma < 0.2:
        return image
    reach = max(1, min(int(2.5 * sigma + 0.5), image.shape[0] - 1))
    offsets = range(-reach, reach + 1)
    weights = [round(math.exp(-0.5 * (k / sigma) ** 2), 6) for k in offsets]
    total = sum(weights)
    result = image
    for axis in (0, 1):
        side = result.shape[axis]
        padding = [(reach, reach) if k == axis else (0, 0) for k in range(result.ndim)]
        padded = np.pad(result, padding, mode="edge")
        blurred = np.zeros_like(result)
        for k, weight in zip(offsets, weights, strict=True):
            start = k + reach
            piece = padded[start : start + side] if axis == 0 else padded[:, start : start + side]
            blurred += piece * np.float32(weight / total)
        result = blurred
    return result


def _gradient(rng: Draws, size: int) -> FloatArray:
    low, high = rng.ground(), rng.ground()
    return blend(along(size, rng.between(0.0, 6.28)) + np.float32(0.5), low, mix(low, high, 0.7))


def _clouds(rng: Draws, size: int) -> FloatArray:
    field = rough(rng, size, rng.whole(2, 5))
    return blend(field * np.float32(1.6) - np.float32(0.3), rng.ground(), rng.ground())


def _horizon(rng: Draws, size: int) -> FloatArray:
    _, y = grid(size)
    line = rng.between(0.4, 0.75)
    sky = rng.ground()
    upper = blend(np.broadcast_to(y, (size, size)).astype(np.float32), shade(sky, 0.95), shade(sky, 1.3))
    soil = rng.ground()
    field = noise(rng, size, rng.whole(4, 9), cells_down=rng.whole(12, 24))
    lower = blend(field, shade(soil, 0.82), shade(soil, 1.12))
    edge = np.float32(line) + (noise(rng, size, 5) - np.float32(0.5)) * np.float32(rng.between(0.0, 0.12))
    return np.where((y > edge)[:, :, None], lower, upper).astype(np.float32)


def _hills(rng: Draws, size: int) -> FloatArray:
    _, y = grid(size)
    sky, soil = rng.ground(), rng.ground()
    image = blend(np.broadcast_to(y, (size, size)).astype(np.float32), sky, shade(sky, 1.35))
    layers = rng.whole(2, 4)
    for k in range(layers):
        crest = noise(rng, size, rng.whole(2, 5))[:1] * np.float32(0.28) + np.float32(0.35 + 0.17 * k)
        tone = mix(sky, soil, 0.35 + 0.6 * k / layers)
        image = np.where((y > crest)[:, :, None], np.array(tone, dtype=np.float32), image)
    return image.astype(np.float32)


def _wallpaper(rng: Draws, size: int) -> FloatArray:
    base = rng.ground()
    other = shade(base, rng.between(0.78, 0.92)) if rng.chance(0.6) else mix(base, rng.ground(), 0.6)
    field = waves(along(size, rng.between(0.0, math.pi)) * np.float32(rng.between(3.0, 10.0)))
    hard = rng.between(1.0, 6.0)
    return blend((field - np.float32(0.5)) * np.float32(hard) + np.float32(0.5), base, other)


def _tiles(rng: Draws, size: int) -> FloatArray:
    angle, step = rng.between(0.0, math.pi), rng.between(3.0, 7.0)
    base = rng.ground()
    other = shade(base, rng.between(0.8, 1.2)) if rng.chance(0.6) else mix(base, rng.ground(), 0.5)
    across = np.floor(along(size, angle) * np.float32(step))
    down = np.floor(along(size, angle + math.pi / 2) * np.float32(step))
    return blend(((across + down) % 2).astype(np.float32), base, other)


def _boards(rng: Draws, size: int) -> FloatArray:
    wood = rng.ground()
    count = rng.whole(3, 7)
    across = np.broadcast_to(grid(size)[0], (size, size))
    board = np.floor(across * np.float32(count))
    tones = rng.random(count + 1).astype(np.float32)
    grain = noise(rng, size, count * 5, cells_down=2)
    field = tones[board.astype(np.intp)] * np.float32(0.5) + grain * np.float32(0.5)
    gap = waves(across * np.float32(count)) > np.float32(1.0 - 0.03 * count)
    image = blend(field, shade(wood, 0.78), shade(wood, 1.15))
    image = np.where(gap[:, :, None], image * np.float32(0.7), image)
    return np.ascontiguousarray(image.swapaxes(0, 1) if rng.chance(0.5) else image).astype(np.float32)


def _bricks(rng: Draws, size: int) -> FloatArray:
    clay = rng.ground()
    rows = rng.whole(6, 11)
    x, y = grid(size)
    row = np.floor(y * np.float32(rows))
    shifted = x * np.float32(rows * 0.45) + np.float32(0.5) * (row % 2)
    column = np.floor(shifted)
    tones = rng.random((rows + 1, rows + 2)).astype(np.float32)
    field = tones[row.astype(np.intp), column.astype(np.intp)]
    seam = (waves(y * np.float32(rows)) > np.float32(0.86)) | (waves(shifted) > np.float32(0.94))
    image = blend(field * np.float32(0.7) + rough(rng, size, 10) * np.float32(0.3), shade(clay, 0.82), shade(clay, 1.12))
    return np.where(seam[:, :, None], np.array(shade(clay, rng.between(0.65, 1.3)), dtype=np.float32), image).astype(
        np.float32
    )


def _lights(rng: Draws, size: int) -> FloatArray:
    dark = shade(rng.ground(), rng.between(0.5, 1.0))
    image = blend(rough(rng, size, 3), shade(dark, 0.85), shade(dark, 1.1))
    x, y = grid(size)
    for _ in range(rng.whole(8, 18)):
        radius = rng.between(0.03, 0.11)
        distance = (x - np.float32(rng.between(0, 1))) ** 2 + (y - np.float32(rng.between(0, 1))) ** 2
        glow = np.clip(
            (np.float32(radius * radius) - distance) * np.float32(24.0 / radius / 6.0), 0.0, rng.between(0.2, 0.6)
        )
        image = image + (np.array(shade(rng.ground(), 1.3), dtype=np.float32) - image) * glow[:, :, None]
    return image.astype(np.float32)


def _blocks(rng: Draws, size: int) -> FloatArray:
    image = _gradient(rng, size)
    base = rng.ground()
    for _ in range(rng.whole(5, 12)):
        left, top = rng.between(-0.1, 0.9), rng.between(0.1, 0.9)
        right = left + rng.between(0.08, 0.3)
        bottom = 1.0 if rng.chance(0.6) else top + rng.between(0.08, 0.3)
        rows, columns = slice(int(top * size), int(bottom * size)), slice(max(0, int(left * size)), int(right * size))
        image[rows, columns] = np.array(mix(base, rng.ground(), 0.5), dtype=np.float32)
    return image


GROUND_KINDS: dict[str, Ground] = {
    "gradient": _gradient, "clouds": _clouds, "horizon": _horizon, "hills": _hills, "wallpaper": _wallpaper,
    "tiles": _tiles, "boards": _boards, "bricks": _bricks, "lights": _lights, "blocks": _blocks,
}  # fmt: skip


def _shape(rng: Draws, sketch: Sketch) -> None:
    colour = mix(rng.paint(), rng.ground(), rng.between(0.2, 0.7))
    kind = rng.whole(0, 4)
    if kind == 0:
        sketch.ellipse(0.0, 0.0, 1.0, rng.between(0.4, 1.0), colour, "shape")
    elif kind == 1:
        sketch.polygon(oval(0.0, 0.0, 1.0, 1.0, count=rng.whole(3, 6)), colour, "shape")
    elif kind == 2:
        sketch.stroke([(-1.0, 0.0), (0.0, rng.between(-0.7, 0.7)), (1.0, 0.0)], rng.between(0.1, 0.3), colour, "shape")
    elif kind == 3:
        sketch.ellipse(0.0, 0.0, 1.0, 1.0, colour, "shape")
        sketch.erase(oval(0.0, 0.0, 0.6, 0.6))
    else:
        sketch.box(-1.0, -rng.between(0.1, 0.9), 1.0, rng.between(0.1, 0.9), colour, "shape", rng.between(0.0, 0.3))


def clutter(rng: Draws, image: FloatArray) -> FloatArray:
    """Scatter distractors over an image, (n, n, 3): plain shapes and small props, some of them translucent."""
    size = image.shape[0]
    for _ in range(rng.whole(0, 5)):
        prop = rng.chance(0.35)
        sketch = draw_sketch(rng, rng.pick(PROPS) if prop else _shape)
        pose = Pose(
            extent=rng.between(0.08, 0.26), angle=rng.between(-0.5, 0.5) if prop else rng.between(0.0, 6.28),
            flip=rng.chance(0.5), stretch=rng.between(0.8, 1.25), place=(rng.between(0, 1), rng.between(0, 1)),
            margin=-0.08,
        )  # fmt: skip
        layer = sketch.render(size, pose)
        alpha = layer.coverage * np.float32(rng.between(0.65, 1.0))
        image = image + (layer.colour - image) * alpha[:, :, None]
    return image


def make_background(rng: Draws, size: int, *, kind: str | None = None) -> tuple[FloatArray, str]:
    """Draw a background, (n, n, 3) in 0..255; also returns its kind."""
    name = rng.pick(tuple(GROUND_KINDS)) if kind is None else kind
    image = GROUND_KINDS[name](rng, size)
    scale = size / 128.0
    image = clutter(rng, image)
    image = smooth(image, max(0.0, rng.between(-0.5, 1.6)) * scale)
    # Brightness around 1 that falls off in a random direction, and noise that is independent for each pixel.
    fall = np.float32(2.0 * rng.between(0.0, 0.22))
    light = np.float32(1.0) + along(size, rng.between(0.0, 2.0 * math.pi)) * fall
    strength = np.float32(2.0 * rng.between(0.0, 0.035))
    light = light + (rng.random((size, size), dtype=np.float32) - np.float32(0.5)) * strength
    if rng.chance(0.5):
        light = light + (rough(rng, size, rng.whole(4, 16)) - np.float32(0.5)) * np.float32(rng.between(0.05, 0.25))
    return np.clip(image * light[:, :, None], 0.0, 255.0).astype(np.float32), name
