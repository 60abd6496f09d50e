"""Backgrounds with textures, gradients, clutter and distractor shapes, drawn independently of the label."""

import math
from collections.abc import Callable

import numpy as np

from becausal.lab.scenes.fields import along, blend, grid, noise, rough, smooth, speckle, tilt, waves
from becausal.lab.scenes.palette import between, chance, ground, mix, paint, pick, shade, whole
from becausal.lab.scenes.props import PROPS
from becausal.lab.scenes.sketch import FloatArray, Pose, Sketch, draw_sketch, oval

Ground = Callable[[np.random.Generator, int], FloatArray]


def _gradient(rng: np.random.Generator, size: int) -> FloatArray:
    low, high = ground(rng), ground(rng)
    return blend(along(size, between(rng, 0.0, 6.28)) + np.float32(0.5), low, mix(low, high, 0.7))


def _clouds(rng: np.random.Generator, size: int) -> FloatArray:
    field = rough(rng, size, whole(rng, 2, 5))
    return blend(field * np.float32(1.6) - np.float32(0.3), ground(rng), ground(rng))


def _horizon(rng: np.random.Generator, size: int) -> FloatArray:
    _, y = grid(size)
    line = between(rng, 0.4, 0.75)
    sky = ground(rng)
    upper = blend(np.broadcast_to(y, (size, size)).astype(np.float32), shade(sky, 0.95), shade(sky, 1.3))
    soil = ground(rng)
    field = noise(rng, size, whole(rng, 4, 9), cells_down=whole(rng, 12, 24))
    lower = blend(field, shade(soil, 0.82), shade(soil, 1.12))
    edge = np.float32(line) + (noise(rng, size, 5) - np.float32(0.5)) * np.float32(between(rng, 0.0, 0.12))
    return np.where((y > edge)[:, :, None], lower, upper).astype(np.float32)


def _hills(rng: np.random.Generator, size: int) -> FloatArray:
    _, y = grid(size)
    sky, soil = ground(rng), ground(rng)
    image = blend(np.broadcast_to(y, (size, size)).astype(np.float32), sky, shade(sky, 1.35))
    layers = whole(rng, 2, 4)
    for k in range(layers):
        crest = noise(rng, size, whole(rng, 2, 5))[:1] * np.float32(0.28) + np.float32(0.35 + 0.17 * k)
        tone = mix(sky, soil, 0.35 + 0.6 * k / layers)
        image = np.where((y > crest)[:, :, None], np.array(tone, dtype=np.float32), image)
    return image.astype(np.float32)


def _wallpaper(rng: np.random.Generator, size: int) -> FloatArray:
    base = ground(rng)
    other = shade(base, between(rng, 0.78, 0.92)) if chance(rng, 0.6) else mix(base, ground(rng), 0.6)
    field = waves(along(size, between(rng, 0.0, math.pi)) * np.float32(between(rng, 3.0, 10.0)))
    hard = between(rng, 1.0, 6.0)
    return blend((field - np.float32(0.5)) * np.float32(hard) + np.float32(0.5), base, other)


def _tiles(rng: np.random.Generator, size: int) -> FloatArray:
    angle, step = between(rng, 0.0, math.pi), between(rng, 3.0, 7.0)
    base = ground(rng)
    other = shade(base, between(rng, 0.8, 1.2)) if chance(rng, 0.6) else mix(base, ground(rng), 0.5)
    across = np.floor(along(size, angle) * np.float32(step))
    down = np.floor(along(size, angle + math.pi / 2) * np.float32(step))
    return blend(((across + down) % 2).astype(np.float32), base, other)


def _boards(rng: np.random.Generator, size: int) -> FloatArray:
    wood = ground(rng)
    count = whole(rng, 3, 7)
    across = np.broadcast_to(grid(size)[0], (size, size))
    board = np.floor(across * np.float32(count))
    tones = rng.random(count + 1).astype(np.float32)
    grain = noise(rng, size, count * 5, cells_down=2)
    field = tones[board.astype(np.intp)] * np.float32(0.5) + grain * np.float32(0.5)
    gap = waves(across * np.float32(count)) > np.float32(1.0 - 0.03 * count)
    image = blend(field, shade(wood, 0.78), shade(wood, 1.15))
    image = np.where(gap[:, :, None], image * np.float32(0.7), image)
    return np.ascontiguousarray(image.swapaxes(0, 1) if chance(rng, 0.5) else image).astype(np.float32)


def _bricks(rng: np.random.Generator, size: int) -> FloatArray:
    clay = ground(rng)
    rows = whole(rng, 6, 11)
    x, y = grid(size)
    row = np.floor(y * np.float32(rows))
    shifted = x * np.float32(rows * 0.45) + np.float32(0.5) * (row % 2)
    column = np.floor(shifted)
    tones = rng.random((rows + 1, rows + 2)).astype(np.float32)
    field = tones[row.astype(np.intp), column.astype(np.intp)]
    seam = (waves(y * np.float32(rows)) > np.float32(0.86)) | (waves(shifted) > np.float32(0.94))
    image = blend(field * np.float32(0.7) + rough(rng, size, 10) * np.float32(0.3), shade(clay, 0.82), shade(clay, 1.12))
    return np.where(seam[:, :, None], np.array(shade(clay, between(rng, 0.65, 1.3)), dtype=np.float32), image).astype(
        np.float32
    )


def _lights(rng: np.random.Generator, size: int) -> FloatArray:
    dark = shade(ground(rng), between(rng, 0.5, 1.0))
    image = blend(rough(rng, size, 3), shade(dark, 0.85), shade(dark, 1.1))
    x, y = grid(size)
    for _ in range(whole(rng, 8, 18)):
        radius = between(rng, 0.03, 0.11)
        distance = (x - np.float32(between(rng, 0, 1))) ** 2 + (y - np.float32(between(rng, 0, 1))) ** 2
        glow = np.clip(
            (np.float32(radius * radius) - distance) * np.float32(24.0 / radius / 6.0), 0.0, between(rng, 0.2, 0.6)
        )
        image = image + (np.array(shade(ground(rng), 1.3), dtype=np.float32) - image) * glow[:, :, None]
    return image.astype(np.float32)


def _blocks(rng: np.random.Generator, size: int) -> FloatArray:
    image = _gradient(rng, size)
    base = ground(rng)
    for _ in range(whole(rng, 5, 12)):
        left, top = between(rng, -0.1, 0.9), between(rng, 0.1, 0.9)
        right = left + between(rng, 0.08, 0.3)
        bottom = 1.0 if chance(rng, 0.6) else top + between(rng, 0.08, 0.3)
        rows, columns = slice(int(top * size), int(bottom * size)), slice(max(0, int(left * size)), int(right * size))
        image[rows, columns] = np.array(mix(base, ground(rng), 0.5), dtype=np.float32)
    return image


GROUND_KINDS: dict[str, Ground] = {
    "gradient": _gradient, "clouds": _clouds, "horizon": _horizon, "hills": _hills, "wallpaper": _wallpaper,
    "tiles": _tiles, "boards": _boards, "bricks": _bricks, "lights": _lights, "blocks": _blocks,
}  # fmt: skip


def _shape(rng: np.random.Generator, sketch: Sketch) -> None:
    colour = mix(paint(rng), ground(rng), between(rng, 0.2, 0.7))
    kind = whole(rng, 0, 4)
    if kind == 0:
        sketch.ellipse(0.0, 0.0, 1.0, between(rng, 0.4, 1.0), colour, "shape")
    elif kind == 1:
        sketch.polygon(oval(0.0, 0.0, 1.0, 1.0, count=whole(rng, 3, 6)), colour, "shape")
    elif kind == 2:
        sketch.stroke([(-1.0, 0.0), (0.0, between(rng, -0.7, 0.7)), (1.0, 0.0)], between(rng, 0.1, 0.3), colour, "shape")
    elif kind == 3:
        sketch.ellipse(0.0, 0.0, 1.0, 1.0, colour, "shape")
        sketch.erase(oval(0.0, 0.0, 0.6, 0.6))
    else:
        sketch.box(-1.0, -between(rng, 0.1, 0.9), 1.0, between(rng, 0.1, 0.9), colour, "shape", between(rng, 0.0, 0.3))


def clutter(rng: np.random.Generator, image: FloatArray) -> FloatArray:
    """Scatter distractors over an image, (n, n, 3): plain shapes and small props, some of them translucent."""
    size = image.shape[0]
    for _ in range(whole(rng, 0, 5)):
        prop = chance(rng, 0.35)
        sketch = draw_sketch(rng, pick(rng, PROPS).draw if prop else _shape)
        pose = Pose(
            extent=between(rng, 0.08, 0.26), angle=between(rng, -0.5, 0.5) if prop else between(rng, 0.0, 6.28),
            flip=chance(rng, 0.5), stretch=between(rng, 0.8, 1.25), place=(between(rng, 0, 1), between(rng, 0, 1)),
            margin=-0.08,
        )  # fmt: skip
        layer = sketch.render(size, pose)
        alpha = layer.coverage * np.float32(between(rng, 0.65, 1.0))
        image = image + (layer.colour - image) * alpha[:, :, None]
    return image


def make_background(rng: np.random.Generator, size: int, *, kind: str | None = None) -> tuple[FloatArray, str]:
    """Draw a background, (n, n, 3) in 0..255; also returns its kind."""
    name = pick(rng, tuple(GROUND_KINDS)) if kind is None else kind
    image = GROUND_KINDS[name](rng, size)
    scale = size / 128.0
    image = clutter(rng, image)
    image = smooth(image, max(0.0, between(rng, -0.5, 1.6)) * scale)
    light = tilt(rng, size, between(rng, 0.0, 0.22)) + speckle(rng, size, between(rng, 0.0, 0.035))
    if chance(rng, 0.5):
        light = light + (rough(rng, size, whole(rng, 4, 16)) - np.float32(0.5)) * np.float32(between(rng, 0.05, 0.25))
    return np.clip(image * light[:, :, None], 0.0, 255.0).astype(np.float32), name
