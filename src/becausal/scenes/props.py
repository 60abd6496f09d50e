"""Props: things without a label, used as occluders in front and as distractors in the background."""

import math

import numpy as np

from becausal.scenes.sketch import INK, WHITE, Drawing, Draws, Sketch, arc, curve, mirrored, mix, oval, shade, turned


def person(rng: Draws, sketch: Sketch) -> None:
    """Draw a passer-by: head, hair and shoulders."""
    skin = rng.pick(((240, 204, 176), (222, 176, 140), (186, 134, 98), (138, 92, 66), (94, 64, 50)))
    hair = rng.pick(((44, 36, 34), (92, 62, 42), (186, 140, 80), (150, 78, 44), (170, 168, 166)))
    shirt = rng.paint()
    long_hair = rng.chance(0.5)
    if long_hair:
        sketch.box(-0.46, -0.95, 0.46, rng.between(0.0, 0.4), hair, "prop", 0.4)
    shoulders = curve([(-1.0, 1.1), (-0.92, 0.5), (-0.4, 0.2), (0.4, 0.2), (0.92, 0.5), (1.0, 1.1)], closed=False)
    sketch.polygon(shoulders, shirt, "prop")
    sketch.box(-1.0, 1.0, 1.0, 2.6, shirt, "prop")
    sketch.box(-0.16, -0.1, 0.16, 0.3, shade(skin, 0.85), "prop", 0.08)
    sketch.ellipse(0.0, -0.42, 0.36, 0.44, skin, "prop")
    fringe = np.concatenate([arc(0.0, -0.45, 0.41, 0.47, math.pi, 2 * math.pi), arc(0.0, -0.5, 0.36, 0.2, 0.0, -math.pi)])
    sketch.polygon(fringe, hair, "prop")
    for x in (-0.14, 0.14):
        sketch.ellipse(x, -0.38, 0.035, 0.045, INK, "prop")
    sketch.stroke(arc(0.0, -0.28, 0.13, 0.1, 0.4, math.pi - 0.4, count=8), 0.03, shade(skin, 0.55), "prop")
    if rng.chance(0.4):
        for k in range(9):
            sketch.box(-0.75, 0.5 + 0.22 * k, 0.75, 0.58 + 0.22 * k, shade(shirt, 1.4), "prop")


def balloon(rng: Draws, sketch: Sketch) -> None:
    skin = rng.paint()
    string = curve([(0.0, 0.6), (0.06, 0.85), (-0.05, 1.1), (0.02, 1.35)], closed=False)
    sketch.stroke(string, 0.03, (90, 90, 94), "prop")
    bag = [(0.0, -0.75), (0.55, -0.35), (0.48, 0.15), (0.0, 0.6), (-0.48, 0.15), (-0.55, -0.35)]
    sketch.polygon(curve(bag), skin, "prop")
    sketch.polygon([(0.0, 0.54), (0.1, 0.7), (-0.1, 0.7)], shade(skin, 0.75), "prop")
    sketch.ellipse(-0.2, -0.35, 0.1, 0.18, shade(skin, 1.5), "prop", 0.4)


def ball(rng: Draws, sketch: Sketch) -> None:
    first = rng.paint()
    second = rng.paint(unlike=first)
    sketch.ellipse(0.0, 0.0, 1.0, 1.0, first, "prop")
    if rng.chance(0.5):
        wedge = rng.between(0.0, 1.0)
        for k in range(3):
            start = wedge + 2 * math.pi * k / 3
            panel = np.concatenate([arc(0.0, 0.0, 1.0, 1.0, start, start + math.pi / 3), [[0.15, -0.15]]])
            sketch.polygon(panel, second, "prop")
    else:
        band = np.concatenate([arc(0.0, 0.0, 1.0, 1.0, 2.9, 3.5), arc(0.0, 0.0, 1.0, 1.0, -0.36, 0.24)])
        sketch.polygon(band, second, "prop")
    sketch.ellipse(-0.35, -0.4, 0.2, 0.14, shade(first, 1.5), "prop", -0.6)


def leaf(rng: Draws, sketch: Sketch) -> None:
    """Draw one large leaf, as if held in front of the lens."""
    green = rng.paint()
    wide = rng.between(0.35, 0.6)
    edge = curve([(-1.0, 0.0), (-0.4, -wide), (0.35, -wide * 0.8), (1.0, 0.0)], closed=False)
    sketch.polygon(np.concatenate([edge, edge[::-1] * np.array([1.0, -1.0])]), green, "prop")
    rib = shade(green, 0.72)
    sketch.stroke([(-1.25, 0.0), (0.95, 0.0)], 0.05, rib, "prop")
    for x in (-0.6, -0.25, 0.1, 0.42):
        for side in (-1.0, 1.0):
            sketch.stroke([(x, 0.0), (x + 0.22, side * wide * 0.62)], 0.03, rib, "prop")


def parcel(rng: Draws, sketch: Sketch) -> None:
    wrap = rng.paint()
    ribbon = rng.paint(unlike=wrap)
    high = rng.between(0.6, 0.95)
    sketch.box(-0.95, -high, 0.95, high, wrap, "prop", 0.04)
    sketch.box(-0.12, -high, 0.12, high, ribbon, "prop")
    if rng.chance(0.6):
        sketch.box(-0.95, -0.12, 0.95, 0.12, ribbon, "prop")
    for side in (-1.0, 1.0):
        sketch.ellipse(side * 0.26, -high - 0.1, 0.28, 0.13, shade(ribbon, 0.85), "prop", side * -0.5)


def bottle(rng: Draws, sketch: Sketch) -> None:
    glass = rng.paint()
    half = rng.between(0.26, 0.4)
    right = curve([(half, 1.0), (half, -0.15), (0.13, -0.55), (0.12, -1.0)], closed=False)
    sketch.polygon(mirrored(right), glass, "prop")
    sketch.box(-0.15, -1.1, 0.15, -0.94, shade(glass, 0.6), "prop", 0.03)
    sketch.box(-half, 0.1, half, 0.65, mix(WHITE, rng.paint(), 0.3), "prop")
    sketch.box(-half * 0.7, -0.1, -half * 0.5, 0.9, shade(glass, 1.35), "prop", 0.04)


def star(rng: Draws, sketch: Sketch) -> None:
    rays, inner = rng.whole(5, 7), rng.between(0.42, 0.6)
    outer = oval(0.0, 0.0, 1.0, 1.0, count=rays, turn=-math.pi / 2)
    dents = oval(0.0, 0.0, inner, inner, count=rays, turn=-math.pi / 2 + math.pi / rays)
    sketch.polygon(np.stack([outer, dents], axis=1).reshape(-1, 2), rng.paint(), "prop")


def cloud(rng: Draws, sketch: Sketch) -> None:
    tone = mix(WHITE, rng.paint(), rng.between(0.0, 0.35))
    for _ in range(rng.whole(4, 6)):
        radius = rng.between(0.26, 0.45)
        sketch.ellipse(rng.between(-0.7, 0.7), rng.between(-0.2, 0.15), radius, radius * 0.85, tone, "prop")
    sketch.box(-0.85, -0.05, 0.85, 0.35, tone, "prop", 0.2)


def hand(rng: Draws, sketch: Sketch) -> None:
    """Draw an open hand held in front of the lens."""
    skin = rng.pick(((240, 204, 176), (222, 176, 140), (186, 134, 98), (138, 92, 66), (94, 64, 50)))
    sleeve = rng.paint()
    sketch.box(-0.3, 0.5, 0.3, 1.3, skin, "prop", 0.1)
    sketch.box(-0.42, 1.0, 0.42, 2.8, sleeve, "prop", 0.06)
    sketch.box(-0.42, -0.15, 0.42, 0.75, skin, "prop", 0.25)
    spread = rng.between(0.06, 0.16)
    for k in range(4):
        base = np.array([-0.31 + 0.21 * k, 0.0])
        length = (0.72, 0.88, 0.84, 0.64)[k]
        tip = turned(np.array([[0.0, -length]]), (k - 1.5) * spread)[0] + base
        sketch.stroke(np.stack([base, tip]), 0.19, skin if k % 2 else shade(skin, 0.95), "prop")
    sketch.stroke([(0.3, 0.45), (0.62, 0.2), (0.72, -0.02)], 0.19, shade(skin, 0.97), "prop")


def mushroom(rng: Draws, sketch: Sketch) -> None:
    cap = rng.paint()
    stem = [(-0.2, -0.1), (-0.24, 0.5), (-0.34, 0.9), (0.34, 0.9), (0.24, 0.5), (0.2, -0.1)]
    sketch.polygon(curve(stem), (236, 226, 208), "prop")
    sketch.polygon(arc(0.0, 0.0, 0.85, rng.between(0.6, 0.85), math.pi, 2 * math.pi), cap, "prop")
    for x, y in ((-0.4, -0.22), (0.05, -0.4), (0.42, -0.18)):
        sketch.ellipse(x, y, 0.11, 0.1, shade(cap, 1.6), "prop")


#: Props that enter the image from below.
STANDING: tuple[Drawing, ...] = (person, hand)
PROPS: tuple[Drawing, ...] = (person, balloon, ball, leaf, parcel, bottle, star, cloud, hand, mushroom)
