"""Fish, butterfly and tree."""

import math

import numpy as np

from becausal.lab.scenes.palette import INK, WHITE, Colour, between, chance, mix, paint, pick, shade, whole
from becausal.lab.scenes.sketch import Points, Sketch, arc, curve, turned


def fish(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a fish from the side: slim to round, plain, striped, spotted or two-toned."""
    body = paint(rng)
    fin = shade(body, between(rng, 0.6, 0.85)) if chance(rng, 0.55) else paint(rng, unlike=body)
    deep = between(rng, 0.34, 0.66)
    _tail(rng, sketch, fin)
    _fins(rng, sketch, fin, deep)
    outline = _fish_body(rng, deep)
    sketch.polygon(outline, body, "body")
    pattern = pick(rng, ("plain", "belly", "bands", "spots", "lines", "scales"))
    second = paint(rng, unlike=body)
    if pattern == "belly":
        low = outline[outline[:, 1] > deep * 0.12]
        if len(low) > 2:
            sketch.polygon(low, shade(body, 1.5), "body")
    elif pattern == "bands":
        for k in range(whole(rng, 2, 4)):
            _band(sketch, outline, 0.32 - 0.3 * k, between(rng, 0.07, 0.13), second)
    elif pattern == "spots":
        for _ in range(whole(rng, 5, 9)):
            x = between(rng, -0.5, 0.3)
            y = between(rng, -0.45, 0.4) * deep
            sketch.ellipse(x, y, 0.06, 0.055, second, "body")
    elif pattern == "lines":
        for y in (-0.3, 0.05, 0.4):
            sketch.stroke([(-0.5, y * deep * 0.6), (-0.1, y * deep), (0.35, y * deep)], 0.05, second, "body")
    elif pattern == "scales":
        for x in (-0.4, -0.2, 0.0, 0.2):
            for y in (-0.35, 0.0, 0.35):
                ring = arc(x + 0.06 * (y == 0.0), y * deep, 0.11, 0.11, math.pi / 2, math.pi * 1.5, count=8)
                sketch.stroke(ring, 0.025, shade(body, 0.72), "body", ends=False)
    sketch.stroke(arc(0.36, 0.02, 0.14, deep * 0.62, -1.1, 1.1, count=12), 0.035, shade(body, 0.6), "body")
    mouth = between(rng, 0.1, 0.2)
    sketch.stroke([(0.97, 0.1), (0.82, 0.1 + mouth * 0.4)], 0.035, shade(body, 0.45), "body")
    pectoral = curve([(0.22, 0.1), (-0.06, 0.06 + between(rng, 0.0, 0.14)), (0.02, 0.26)])
    sketch.polygon(pectoral, shade(fin, 0.86), "fins")
    eye = between(rng, 0.075, 0.11)
    sketch.ellipse(0.63, -0.12 * deep - 0.06, eye, eye, WHITE, "eye")
    sketch.ellipse(0.645, -0.12 * deep - 0.06, eye * 0.55, eye * 0.55, INK, "eye")


def _fish_body(rng: np.random.Generator, deep: float) -> Points:
    snout = between(rng, 0.15, 0.5)
    upper = [(-0.72, -0.1), (-0.3, -deep * 0.72), (0.15, -deep), (0.62, -deep * (0.5 + snout * 0.4)), (0.98, 0.02)]
    lower = [(0.66, deep * (0.45 + snout * 0.3)), (0.15, deep * 0.92), (-0.3, deep * 0.66), (-0.72, 0.1)]
    return curve(upper + lower)


def _band(sketch: Sketch, outline: Points, x: float, half: float, colour: Colour) -> None:
    left, right = x - half, x + half
    top, bottom = [], []
    for at in (left, x, right):
        near = outline[np.abs(outline[:, 0] - at) < 0.09, 1]
        if not len(near):
            return
        top.append((at, float(near.min()) + 0.03))
        bottom.append((at, float(near.max()) - 0.03))
    sketch.polygon(top + bottom[::-1], colour, "body")


def _tail(rng: np.random.Generator, sketch: Sketch, fin: Colour) -> None:
    wide, fork = between(rng, 0.3, 0.52), between(rng, 0.0, 0.2)
    back = -between(rng, 1.1, 1.3)
    root = [(-0.6, -0.1), (back, -wide), (back + fork, 0.0), (back, wide), (-0.6, 0.1)]
    sketch.polygon(curve(root, steps=6) if chance(rng, 0.4) else root, fin, "tail")
    for y in (-0.5, 0.0, 0.5):
        sketch.stroke([(-0.7, y * 0.1), (back + fork * 0.8 + 0.12, y * wide)], 0.02, shade(fin, 0.78), "tail")


def _fins(rng: np.random.Generator, sketch: Sketch, fin: Colour, deep: float) -> None:
    rise = between(rng, 0.16, 0.36)
    back = between(rng, -0.5, -0.25)
    dorsal = [
        (0.42, -deep * 0.8),
        (0.2, -deep - rise),
        (back, -deep * 0.75 - rise * between(rng, 0.3, 1.0)),
        (back, -deep * 0.4),
    ]
    sketch.polygon(dorsal, fin, "fins")
    sketch.polygon([(0.1, deep * 0.8), (-0.12, deep + rise * 0.8), (-0.34, deep * 0.5)], fin, "fins")


def butterfly(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a butterfly from above with open wings, spots and an edge."""
    wing, edge = paint(rng), pick(rng, (INK, (70, 48, 40), paint(rng)))
    low = wing if chance(rng, 0.45) else paint(rng)
    spot = paint(rng, unlike=wing)
    up, out = between(rng, 0.62, 0.95), between(rng, 0.85, 1.05)
    down, tail = between(rng, 0.55, 0.8), between(rng, 0.0, 0.25) if chance(rng, 0.4) else 0.0
    fold = between(rng, 0.55, 1.0) if chance(rng, 0.35) else 1.0
    notch = between(rng, -0.04, 0.16)
    fore = [(0.04, -0.02), (0.3, -up * 0.75), (out * 0.72, -up), (out, -up * 0.78), (out * 0.86, -0.22), (0.5, 0.02 - notch)]
    hind = [(0.04, 0.0), (0.5, -0.04), (out * 0.8, 0.16), (out * 0.74, down * 0.72), (0.46, down + tail), (0.2, down * 0.72)]
    border = between(rng, 0.72, 0.88)
    spots = whole(rng, 1, 3)
    for side in (-1.0, 1.0):
        flip = np.array([side * (fold if side < 0 else 1.0), 1.0])
        for knots, colour, part in ((hind, low, "hind wings"), (fore, wing, "fore wings")):
            outline = curve(knots, steps=6)
            sketch.polygon(outline * flip, edge, part)
            middle = outline.mean(axis=0) * 0.9
            inner = middle + (outline - middle) * border
            sketch.polygon(inner * flip, colour if side > 0 else shade(colour, 0.93), part)
            for k in range(spots):
                centre = middle + np.array([0.16, -0.1 if part == "fore wings" else 0.1]) * (k - 0.4)
                radius = (0.12 if k == 0 else 0.075) * (1.1 if part == "fore wings" else 0.9)
                sketch.ellipse(float(centre[0] * flip[0]), float(centre[1]), radius, radius, spot, part)
                if k == 0:
                    sketch.ellipse(float(centre[0] * flip[0]), float(centre[1]), radius * 0.5, radius * 0.5, edge, part)
    body = pick(rng, (INK, (84, 60, 48), (60, 54, 70)))
    for side in (-1.0, 1.0):
        feeler = curve([(0.02 * side, -0.34), (0.1 * side, -0.58), (0.24 * side, -0.76)], closed=False, steps=4)
        sketch.stroke(feeler, 0.035, body, "body")
        sketch.ellipse(0.24 * side, -0.76, 0.04, 0.04, body, "body")
    sketch.ellipse(0.0, 0.12, 0.07, 0.4, body, "body")
    sketch.ellipse(0.0, -0.3, 0.085, 0.09, shade(body, 1.12), "body")
    for y in (0.05, 0.18, 0.31):
        sketch.box(-0.055, y, 0.055, y + 0.03, shade(body, 1.35), "body")


def tree(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a tree: broad-leaved, conifer or palm, in any season."""
    bark = pick(rng, ((104, 76, 54), (132, 98, 70), (86, 68, 58), (150, 126, 104), (72, 56, 48)))
    greens = ((92, 140, 76), (62, 114, 70), (132, 158, 72), (44, 96, 74), (84, 132, 104), (110, 150, 60))
    season = between(rng, 0.0, 1.0)
    autumn = ((206, 120, 52), (190, 78, 52), (222, 168, 66), (150, 70, 60))
    leaf = pick(rng, greens) if season < 0.6 else pick(rng, autumn) if season < 0.85 else paint(rng)
    kind = pick(rng, ("broad", "broad", "conifer", "conifer", "palm"))
    if kind == "broad":
        _broad(rng, sketch, bark, leaf)
    elif kind == "conifer":
        _conifer(rng, sketch, bark, leaf)
    else:
        _palm(rng, sketch, bark, leaf)


def _broad(rng: np.random.Generator, sketch: Sketch, bark: Colour, leaf: Colour) -> None:
    half, lean = between(rng, 0.07, 0.13), between(rng, -0.12, 0.12)
    sketch.polygon(
        curve(
            [
                (-half * 1.7, 1.0),
                (-half * 0.9, 0.6),
                (-half * 0.8 + lean, 0.0),
                (half * 0.8 + lean, 0.0),
                (half * 0.9, 0.6),
                (half * 1.7, 1.0),
            ],
            closed=False,
        ),
        bark,
        "trunk",
    )
    for side in (-1.0, 1.0):
        sketch.stroke([(lean, 0.42), (lean + side * 0.34, 0.02)], half * 0.8, shade(bark, 0.9), "trunk")
    wide, high = between(rng, 0.62, 0.85), between(rng, 0.5, 0.72)
    count = whole(rng, 6, 10)
    puffs = []
    for k in range(count):
        angle = 2 * math.pi * k / count + between(rng, -0.2, 0.2)
        radius = between(rng, 0.26, 0.4)
        puffs.append((lean + wide * 0.66 * math.cos(angle), -0.32 + high * 0.62 * math.sin(angle), radius))
    sketch.ellipse(lean, -0.32, wide * 0.72, high * 0.76, shade(leaf, 0.82), "crown")
    for x, y, radius in sorted(puffs, key=lambda puff: -puff[1]):
        sketch.ellipse(x, y, radius, radius * 0.92, shade(leaf, 0.84), "crown")
    for x, y, radius in sorted(puffs, key=lambda puff: -puff[1]):
        sketch.ellipse(x - 0.04, y - 0.06, radius * 0.78, radius * 0.7, leaf, "crown")
    for x, y, radius in puffs[: count // 2 + 1]:
        sketch.ellipse(x - 0.1, y - 0.12, radius * 0.34, radius * 0.28, shade(leaf, 1.16), "crown")
    if chance(rng, 0.35):
        fruit = paint(rng, unlike=leaf)
        for _ in range(whole(rng, 5, 9)):
            angle, reach = between(rng, 0.0, 2 * math.pi), between(rng, 0.1, 0.85)
            x, y = lean + wide * 0.8 * reach * math.cos(angle), -0.32 + high * 0.8 * reach * math.sin(angle)
            sketch.ellipse(x, y, 0.055, 0.055, fruit, "fruit")


def _conifer(rng: np.random.Generator, sketch: Sketch, bark: Colour, leaf: Colour) -> None:
    half = between(rng, 0.06, 0.11)
    sketch.box(-half, 0.5, half, 1.0, bark, "trunk")
    tiers, wide = whole(rng, 3, 5), between(rng, 0.5, 0.78)
    teeth = chance(rng, 0.5)
    for k in range(tiers):
        share = (tiers - k) / tiers
        base = 0.68 - 1.3 * k / tiers
        reach, rise = wide * (0.3 + 0.7 * share), 1.5 / tiers + 0.2
        points = [(0.0, base - rise), (reach, base)]
        if teeth:
            for j in range(1, 6):
                points.append((reach - 2 * reach * j / 6, base + (0.07 if j % 2 else -0.02)))
        points.append((-reach, base))
        sketch.polygon(points, shade(leaf, 0.78 + 0.07 * k), "crown")
        sketch.polygon(
            [(0.0, base - rise), (-reach * 0.72, base - 0.06), (-reach * 0.12, base - 0.1)],
            shade(leaf, 0.95 + 0.05 * k),
            "crown",
        )
    if chance(rng, 0.2):
        star = paint(rng, unlike=leaf)
        for k in range(5):
            angle = 2 * math.pi * k / 5
            spike = np.array([[-0.04, 0.0], [0.04, 0.0], [0.0, -0.13]])
            sketch.polygon(turned(spike, angle) + np.array([0.0, -0.9]), star, "fruit")


def _palm(rng: np.random.Generator, sketch: Sketch, bark: Colour, leaf: Colour) -> None:
    lean, half = between(rng, -0.35, 0.35), between(rng, 0.05, 0.08)
    middle = curve([(0.0, 1.0), (lean * 0.3, 0.4), (lean, -0.3)], closed=False)
    taper = np.linspace(1.5, 0.85, len(middle))[:, None] * np.array([[half, 0.0]])
    sketch.polygon(np.concatenate([middle - taper, (middle + taper)[::-1]]), bark, "trunk")
    for k in range(1, len(middle) - 1, 2):
        x, y = middle[k]
        width = float(taper[k, 0])
        sketch.stroke(
            [(float(x) - width, float(y)), (float(x) + width, float(y) + 0.02)],
            0.025,
            shade(bark, 0.75),
            "trunk",
            ends=False,
        )
    fronds = whole(rng, 6, 9)
    for k in range(fronds):
        angle = -math.pi * (k + 0.5) / fronds + between(rng, -0.12, 0.12)
        length, droop = between(rng, 0.72, 0.95), between(rng, 0.25, 0.5)
        spine = []
        for t in (0.0, 0.35, 0.7, 1.0):
            spine.append((lean + length * t * math.cos(angle), -0.3 + length * t * math.sin(angle) * 0.75 + droop * t * t))
        rib = np.array(spine)
        upper = rib + np.array([[0.0, -0.01], [0.0, -0.09], [0.0, -0.06], [0.0, 0.0]])
        under = rib + np.array([[0.0, 0.02], [0.0, 0.09], [0.0, 0.09], [0.0, 0.03]])
        blade = np.concatenate([curve(upper, closed=False, steps=4), curve(under[::-1], closed=False, steps=4)])
        sketch.polygon(blade, mix(shade(leaf, 0.75), leaf, (k % 3) / 2.0), "crown")
        sketch.stroke(rib, 0.02, shade(leaf, 0.65), "crown")
    if chance(rng, 0.6):
        for x in (-0.08, 0.07, 0.0):
            sketch.ellipse(lean + x, -0.22 + abs(x) * 0.3, 0.065, 0.07, (110, 78, 52), "fruit")
