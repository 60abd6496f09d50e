"""Props: things without a label, used as occluders in front and as distractors in the background."""

import math
from dataclasses import dataclass

import numpy as np

from becausal.lab.scenes.palette import INK, WHITE, between, chance, mix, paint, pick, shade, whole
from becausal.lab.scenes.sketch import Drawing, Sketch, arc, curve, oval, turned


@dataclass(frozen=True)
class Prop:
    """A kind of prop; a prop that stands enters the image from below."""

    draw: Drawing
    stands: bool = False


def person(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a passer-by: head, hair and shoulders."""
    skin = pick(rng, ((240, 204, 176), (222, 176, 140), (186, 134, 98), (138, 92, 66), (94, 64, 50)))
    hair = pick(rng, ((44, 36, 34), (92, 62, 42), (186, 140, 80), (150, 78, 44), (170, 168, 166)))
    shirt = paint(rng)
    long_hair = chance(rng, 0.5)
    if long_hair:
        sketch.box(-0.46, -0.95, 0.46, between(rng, 0.0, 0.4), hair, "prop", 0.4)
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
    if chance(rng, 0.4):
        for k in range(9):
            sketch.box(-0.75, 0.5 + 0.22 * k, 0.75, 0.58 + 0.22 * k, shade(shirt, 1.4), "prop")


def balloon(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a balloon on a string."""
    skin = paint(rng)
    string = curve([(0.0, 0.6), (0.06, 0.85), (-0.05, 1.1), (0.02, 1.35)], closed=False)
    sketch.stroke(string, 0.03, (90, 90, 94), "prop")
    sketch.polygon(
        curve([(0.0, -0.75), (0.55, -0.35), (0.48, 0.15), (0.0, 0.6), (-0.48, 0.15), (-0.55, -0.35)]), skin, "prop"
    )
    sketch.polygon([(0.0, 0.54), (0.1, 0.7), (-0.1, 0.7)], shade(skin, 0.75), "prop")
    sketch.ellipse(-0.2, -0.35, 0.1, 0.18, shade(skin, 1.5), "prop", 0.4)


def ball(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a ball with a band or panels."""
    first = paint(rng)
    second = paint(rng, unlike=first)
    sketch.ellipse(0.0, 0.0, 1.0, 1.0, first, "prop")
    if chance(rng, 0.5):
        wedge = between(rng, 0.0, 1.0)
        for k in range(3):
            start = wedge + 2 * math.pi * k / 3
            sketch.polygon(
                np.concatenate([arc(0.0, 0.0, 1.0, 1.0, start, start + math.pi / 3), [[0.15, -0.15]]]), second, "prop"
            )
    else:
        sketch.polygon(
            np.concatenate([arc(0.0, 0.0, 1.0, 1.0, 2.9, 3.5), arc(0.0, 0.0, 1.0, 1.0, -0.36, 0.24)]), second, "prop"
        )
    sketch.ellipse(-0.35, -0.4, 0.2, 0.14, shade(first, 1.5), "prop", -0.6)


def leaf(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw one large leaf, as if held in front of the lens."""
    green = paint(rng)
    wide = between(rng, 0.35, 0.6)
    edge = curve([(-1.0, 0.0), (-0.4, -wide), (0.35, -wide * 0.8), (1.0, 0.0)], closed=False)
    sketch.polygon(np.concatenate([edge, edge[::-1] * np.array([1.0, -1.0])]), green, "prop")
    rib = shade(green, 0.72)
    sketch.stroke([(-1.25, 0.0), (0.95, 0.0)], 0.05, rib, "prop")
    for x in (-0.6, -0.25, 0.1, 0.42):
        for side in (-1.0, 1.0):
            sketch.stroke([(x, 0.0), (x + 0.22, side * wide * 0.62)], 0.03, rib, "prop")


def parcel(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a wrapped parcel with a ribbon."""
    wrap = paint(rng)
    ribbon = paint(rng, unlike=wrap)
    high = between(rng, 0.6, 0.95)
    sketch.box(-0.95, -high, 0.95, high, wrap, "prop", 0.04)
    sketch.box(-0.12, -high, 0.12, high, ribbon, "prop")
    if chance(rng, 0.6):
        sketch.box(-0.95, -0.12, 0.95, 0.12, ribbon, "prop")
    for side in (-1.0, 1.0):
        sketch.ellipse(side * 0.26, -high - 0.1, 0.28, 0.13, shade(ribbon, 0.85), "prop", side * -0.5)


def bottle(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a bottle with a label."""
    glass = paint(rng)
    half = between(rng, 0.26, 0.4)
    right = curve([(half, 1.0), (half, -0.15), (0.13, -0.55), (0.12, -1.0)], closed=False)
    sketch.polygon(np.concatenate([right, right[::-1] * np.array([-1.0, 1.0])]), glass, "prop")
    sketch.box(-0.15, -1.1, 0.15, -0.94, shade(glass, 0.6), "prop", 0.03)
    sketch.box(-half, 0.1, half, 0.65, mix(WHITE, paint(rng), 0.3), "prop")
    sketch.box(-half * 0.7, -0.1, -half * 0.5, 0.9, shade(glass, 1.35), "prop", 0.04)


def star(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a star with five to seven rays."""
    rays, inner = whole(rng, 5, 7), between(rng, 0.42, 0.6)
    outer = oval(0.0, 0.0, 1.0, 1.0, count=rays, turn=-math.pi / 2)
    dents = oval(0.0, 0.0, inner, inner, count=rays, turn=-math.pi / 2 + math.pi / rays)
    sketch.polygon(np.stack([outer, dents], axis=1).reshape(-1, 2), paint(rng), "prop")


def cloud(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a cloud or puff of smoke."""
    tone = mix(WHITE, paint(rng), between(rng, 0.0, 0.35))
    for _ in range(whole(rng, 4, 6)):
        radius = between(rng, 0.26, 0.45)
        sketch.ellipse(between(rng, -0.7, 0.7), between(rng, -0.2, 0.15), radius, radius * 0.85, tone, "prop")
    sketch.box(-0.85, -0.05, 0.85, 0.35, tone, "prop", 0.2)


def hand(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw an open hand held in front of the lens."""
    skin = pick(rng, ((240, 204, 176), (222, 176, 140), (186, 134, 98), (138, 92, 66), (94, 64, 50)))
    sleeve = paint(rng)
    sketch.box(-0.3, 0.5, 0.3, 1.3, skin, "prop", 0.1)
    sketch.box(-0.42, 1.0, 0.42, 2.8, sleeve, "prop", 0.06)
    sketch.box(-0.42, -0.15, 0.42, 0.75, skin, "prop", 0.25)
    spread = between(rng, 0.06, 0.16)
    for k in range(4):
        base = np.array([-0.31 + 0.21 * k, 0.0])
        length = (0.72, 0.88, 0.84, 0.64)[k]
        tip = turned(np.array([[0.0, -length]]), (k - 1.5) * spread)[0] + base
        sketch.stroke(np.stack([base, tip]), 0.19, skin if k % 2 else shade(skin, 0.95), "prop")
    sketch.stroke([(0.3, 0.45), (0.62, 0.2), (0.72, -0.02)], 0.19, shade(skin, 0.97), "prop")


def mushroom(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a mushroom with a spotted cap."""
    cap = paint(rng)
    sketch.polygon(
        curve([(-0.2, -0.1), (-0.24, 0.5), (-0.34, 0.9), (0.34, 0.9), (0.24, 0.5), (0.2, -0.1)]), (236, 226, 208), "prop"
    )
    sketch.polygon(arc(0.0, 0.0, 0.85, between(rng, 0.6, 0.85), math.pi, 2 * math.pi), cap, "prop")
    for x, y in ((-0.4, -0.22), (0.05, -0.4), (0.42, -0.18)):
        sketch.ellipse(x, y, 0.11, 0.1, shade(cap, 1.6), "prop")


PROPS: tuple[Prop, ...] = (
    Prop(person, stands=True), Prop(balloon), Prop(ball), Prop(leaf), Prop(parcel), Prop(bottle), Prop(star),
    Prop(cloud), Prop(hand, stands=True), Prop(mushroom),
)  # fmt: skip
