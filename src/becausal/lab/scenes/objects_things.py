"""Mug, umbrella and key."""

import math

import numpy as np

from becausal.lab.scenes.palette import INK, WHITE, Colour, between, chance, paint, pick, shade, whole
from becausal.lab.scenes.sketch import Points, Sketch, arc, curve, oval, rounded


def mug(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a mug seen slightly from above: straight, tapered or round, plain or decorated."""
    clay = paint(rng)
    top, bottom = -between(rng, 0.55, 0.85), between(rng, 0.55, 0.8)
    upper, lower = between(rng, 0.52, 0.68), between(rng, 0.4, 0.66)
    belly = between(rng, 0.0, 0.16) if chance(rng, 0.4) else 0.0
    tilt = between(rng, 0.1, 0.2)
    _handle(rng, sketch, clay, max(upper, (upper + lower) / 2 + belly), top, bottom)
    side = [(lower, bottom), ((lower + upper) / 2 + belly, (top + bottom) / 2), (upper, top)]
    right = curve(side, closed=False)
    left = right[::-1] * np.array([-1.0, 1.0])
    floor = arc(0.0, bottom, lower, tilt * 0.9, math.pi, 0.0)
    sketch.polygon(np.concatenate([right, left, floor]), clay, "body")
    _decoration(rng, sketch, clay, (upper, lower, belly, top, bottom, tilt))
    rim = pick(rng, (shade(clay, 1.35), shade(clay, 0.8), WHITE))
    sketch.ellipse(0.0, top, upper, tilt, rim, "rim")
    inside = pick(rng, (shade(clay, 0.62), (226, 220, 208)))
    sketch.ellipse(0.0, top + 0.005, upper - 0.06, tilt * 0.78, inside, "rim")
    if chance(rng, 0.75):
        drink = pick(rng, ((76, 48, 34), (122, 74, 42), (164, 104, 46), (206, 178, 140), (70, 92, 52)))
        pool = oval(0.0, top + tilt * 0.25, upper - 0.12, tilt * 0.56)
        sketch.polygon(pool, drink, "rim")
        sketch.ellipse(-upper * 0.25, top + tilt * 0.2, upper * 0.22, tilt * 0.16, shade(drink, 1.2), "rim")


def _handle(rng: np.random.Generator, sketch: Sketch, clay: Colour, side: float, top: float, bottom: float) -> None:
    high = (bottom - top) * between(rng, 0.28, 0.36)
    middle = (top + bottom) / 2 + between(rng, -0.08, 0.06)
    reach, thick = between(rng, 0.36, 0.52), between(rng, 0.11, 0.17)
    root = side - 0.14
    style = pick(rng, ("round", "ear", "square"))
    if style == "square":
        outer = rounded(root - 0.2, middle - high, root + reach, middle + high, 0.14)
        hole = rounded(root - 0.1, middle - high + thick, root + reach - thick, middle + high - thick, 0.08)
    elif style == "round":
        outer = oval(root + 0.02, middle, reach, high)
        hole = oval(root + 0.02, middle, reach - thick, high - thick)
    else:
        outer = curve(
            [
                (root, middle - high),
                (root + reach, middle - high * 0.8),
                (root + reach * 0.8, middle + high * 0.3),
                (root, middle + high),
            ]
        )
        centre = outer.mean(axis=0)
        hole = centre + (outer - centre) * (1.0 - thick * 2.0)
    sketch.polygon(outer, shade(clay, 0.86), "handle")
    sketch.erase(hole)


def _decoration(
    rng: np.random.Generator, sketch: Sketch, clay: Colour, shape: tuple[float, float, float, float, float, float]
) -> None:
    upper, lower, belly, top, bottom, tilt = shape

    def half(share: float) -> float:
        return upper + (lower - upper) * share + belly * 4.0 * share * (1.0 - share)

    kind = pick(rng, ("none", "band", "bands", "dots", "badge", "heart"))
    colour = paint(rng, unlike=clay)
    if kind in ("band", "bands"):
        for start, thick in ((0.55, 0.2),) if kind == "band" else ((0.35, 0.08), (0.52, 0.08), (0.69, 0.08)):
            pieces = []
            for share, way in ((start, 1), (start + thick, -1)):
                y = top + (bottom - top) * share
                edge = arc(0.0, y, half(share) - 0.01, tilt * 0.85, math.pi, 0.0)
                pieces.append(edge[::way])
            sketch.polygon(np.concatenate(pieces), colour, "body")
    elif kind == "dots":
        for row, share in enumerate((0.38, 0.58, 0.78)):
            for k in range(-2, 3):
                x = (k + 0.5 * (row % 2)) * 0.24
                if abs(x) < half(share) - 0.08:
                    sketch.ellipse(x, top + (bottom - top) * share + tilt * 0.6, 0.06, 0.06, colour, "body")
    elif kind == "badge":
        sketch.ellipse(0.0, (top + bottom) / 2 + 0.12, 0.26, 0.26, colour, "body")
        sketch.ellipse(0.0, (top + bottom) / 2 + 0.12, 0.17, 0.17, shade(colour, 1.4), "body")
    elif kind == "heart":
        y = (top + bottom) / 2 + 0.06
        for side in (-1.0, 1.0):
            sketch.ellipse(side * 0.1, y, 0.12, 0.12, colour, "body")
        sketch.polygon([(-0.215, y + 0.04), (0.215, y + 0.04), (0.0, y + 0.32)], colour, "body")


def umbrella(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw an open umbrella from the side: a ribbed canopy, a shaft and a hooked handle."""
    first = paint(rng)
    second = first if chance(rng, 0.35) else paint(rng, unlike=first)
    dome, panels = between(rng, 0.62, 0.95), whole(rng, 4, 8)
    hem, base = between(rng, 0.06, 0.13), 0.0
    metal = pick(rng, ((92, 94, 100), (150, 152, 156), INK, (146, 104, 70)))
    grip = pick(rng, ((122, 80, 52), INK, paint(rng)))
    thick = between(rng, 0.045, 0.07)
    length = between(rng, 0.72, 0.98)
    sketch.box(-thick / 2, -dome - 0.14, thick / 2, length, metal, "shaft")
    radius = between(rng, 0.13, 0.19)
    hook = np.concatenate([np.array([[0.0, length - 0.2]]), arc(-radius, length, radius, radius, 0.0, math.pi, count=12)])
    sketch.stroke(hook, thick * 1.9, grip, "handle")
    edges = [-math.cos(math.pi * k / panels) for k in range(panels + 1)]
    for k in range(panels):
        left, right = edges[k], edges[k + 1]
        scallop = arc((left + right) / 2, base, (right - left) / 2, hem, 0.0, -math.pi, count=9)
        outline = np.concatenate([_rib(left, dome), _rib(right, dome)[::-1], scallop])
        tone = (first, second)[k % 2]
        light = 1.12 - 0.36 * k / panels
        sketch.polygon(outline, shade(tone, light), "canopy")
    for x in edges[1:-1]:
        sketch.stroke(_rib(x, dome), 0.018, shade(first, 0.6), "canopy", ends=False)
    if chance(rng, 0.3):
        trim = paint(rng, unlike=first)
        for k in range(panels):
            left, right = edges[k], edges[k + 1]
            scallop = arc((left + right) / 2, base, (right - left) / 2, hem, -math.pi, 0.0, count=9)
            sketch.stroke(scallop, 0.05, trim, "canopy")
    sketch.ellipse(0.0, -dome - 0.01, 0.05, 0.04, metal, "shaft")


def _rib(x: float, dome: float) -> Points:
    t = np.linspace(0.0, math.pi / 2, 12)
    return np.stack([x * np.cos(t), -dome * np.sin(t)], axis=1)


def key(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a key: a bow with a hole, a shaft and a bit with teeth, old or modern."""
    metal = pick(rng, ((204, 166, 78), (178, 184, 192), (150, 96, 60), (96, 100, 108), (226, 200, 130), paint(rng)))
    dark = shade(metal, 0.66)
    thick = between(rng, 0.08, 0.12)
    start, end = -0.42, between(rng, 1.0, 1.3)
    sketch.box(start - 0.1, -thick, end, thick, metal, "shaft", 0.06)
    if chance(rng, 0.5):
        sketch.box(start, -thick * 0.25, end - 0.06, thick * 0.25, dark, "shaft")
    if chance(rng, 0.5):
        _old_bit(rng, sketch, metal, end, thick)
    else:
        _cut_bit(rng, sketch, metal, end, thick)
    if chance(rng, 0.5):
        x = start + between(rng, 0.06, 0.2)
        sketch.box(x, -thick * 1.6, x + 0.08, thick * 1.6, shade(metal, 0.85), "shaft", 0.03)
    _bow(rng, sketch, metal if chance(rng, 0.7) else paint(rng))


def _bow(rng: np.random.Generator, sketch: Sketch, metal: Colour) -> None:
    style = pick(rng, ("ring", "oval", "trefoil", "square", "heart"))
    radius = between(rng, 0.38, 0.46)
    centre = -0.72
    wide = between(rng, 0.13, 0.18)
    light = shade(metal, 1.15)
    if style == "trefoil":
        for x, y in ((centre - 0.26, 0.0), (centre + 0.02, -0.26), (centre + 0.02, 0.26)):
            sketch.ellipse(x, y, 0.25, 0.25, metal, "bow")
        for x, y in ((centre - 0.28, 0.0), (centre + 0.02, -0.28), (centre + 0.02, 0.28)):
            sketch.erase(oval(x, y, 0.12, 0.12))
    elif style == "heart":
        for y in (-0.2, 0.2):
            sketch.ellipse(centre - 0.1, y, 0.25, 0.25, metal, "bow")
        sketch.polygon([(centre - 0.02, -0.43), (centre - 0.02, 0.43), (centre + 0.44, 0.0)], metal, "bow")
        sketch.erase(oval(centre - 0.08, 0.0, 0.13, 0.2))
    elif style == "square":
        sketch.box(centre - radius, -radius, centre + radius * 0.9, radius, metal, "bow", 0.14)
        if chance(rng, 0.5):
            sketch.box(
                centre - radius + 0.06, -radius + 0.06, centre + radius * 0.9 - 0.06, radius - 0.06, light, "bow", 0.1
            )
        sketch.erase(oval(centre - radius * 0.4, 0.0, 0.14, 0.16))
    else:
        high = radius if style == "ring" else radius * between(rng, 1.05, 1.25)
        across = radius if style == "ring" else radius * between(rng, 0.75, 0.9)
        sketch.ellipse(centre, 0.0, across, high, metal, "bow")
        sketch.ellipse(centre, 0.0, across - 0.05, high - 0.05, light, "bow")
        sketch.erase(oval(centre, 0.0, across - wide, high - wide))


def _old_bit(rng: np.random.Generator, sketch: Sketch, metal: Colour, end: float, thick: float) -> None:
    wide, drop = between(rng, 0.26, 0.4), between(rng, 0.3, 0.42)
    left = end - wide - 0.08
    sketch.box(left, 0.0, left + wide, thick + drop, metal, "bit", 0.02)
    notches = whole(rng, 1, 2)
    for k in range(notches):
        x = left + wide * (k + 1) / (notches + 1)
        sketch.erase(rounded(x - 0.035, thick + drop * 0.45, x + 0.035, thick + drop + 0.05, 0.0))
    sketch.ellipse(end, 0.0, thick * 1.3, thick * 1.3, metal, "shaft")


def _cut_bit(rng: np.random.Generator, sketch: Sketch, metal: Colour, end: float, thick: float) -> None:
    teeth = whole(rng, 3, 5)
    left = end - between(rng, 0.6, 0.85)
    step = (end - left) / teeth
    outline = [(left, 0.0)]
    for k in range(teeth):
        depth = thick + between(rng, 0.1, 0.28)
        x = left + k * step
        outline += [(x, thick), (x + step * 0.3, depth), (x + step * 0.65, depth), (x + step * 0.95, thick * 0.9)]
    outline.append((end, 0.0))
    sketch.polygon(outline, metal, "bit")
