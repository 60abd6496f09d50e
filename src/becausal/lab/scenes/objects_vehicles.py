"""Bus, sailboat and plane."""

import math

import numpy as np

from becausal.lab.scenes.palette import INK, WHITE, Colour, between, chance, mix, paint, pick, shade, whole
from becausal.lab.scenes.sketch import Sketch, arc, curve


def _glass(rng: np.random.Generator) -> Colour:
    return pick(rng, ((176, 212, 226), (120, 160, 184), (66, 84, 104), (210, 226, 230), (232, 214, 150)))


def bus(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a bus from the side: single or double deck, snub or with a bonnet."""
    body, glass = paint(rng), _glass(rng)
    trim = paint(rng, unlike=body)
    double = chance(rng, 0.35)
    nose = not double and chance(rng, 0.3)
    length = between(rng, 0.85, 1.15) if double else between(rng, 1.0, 1.35)
    top = between(rng, -0.78, -0.62) if double else between(rng, -0.5, -0.36)
    floor, rounding = 0.36, between(rng, 0.05, 0.16)
    front = length - (0.3 if nose else 0.0)
    _bus_wheels(rng, sketch, length, floor)
    if nose:
        sketch.box(front - 0.2, -0.04, length, floor, shade(body, 0.9), "body", 0.1)
    sketch.box(-length, top, front, floor, body, "body", rounding)
    if chance(rng, 0.5):
        sketch.box(-length + 0.05, top, front - 0.05, top + 0.07, shade(body, pick(rng, (0.75, 1.35))), "body", 0.03)
    if chance(rng, 0.75):
        height = between(rng, 0.04, 0.12)
        sketch.box(-length + 0.01, 0.12, front - 0.01, 0.12 + height, trim, "body")
    decks = [(top + 0.1, top + 0.4), (top + 0.52, top + 0.8)] if double else [(top + 0.1, top + 0.4)]
    panes, gap = whole(rng, 4, 7), between(rng, 0.03, 0.07)
    round_pane = between(rng, 0.0, 0.07)
    for deck, (pane_top, pane_bottom) in enumerate(decks):
        left, right = -length + 0.1, front - 0.34
        step = (right - left) / panes
        for k in range(panes):
            x = left + k * step
            tone = shade(glass, 0.9) if (k + deck) % 2 else glass
            sketch.box(x, pane_top, x + step - gap, pane_bottom, tone, "windows", round_pane)
        sketch.box(front - 0.28, pane_top - 0.02, front - 0.03, pane_bottom, shade(glass, 1.25), "windows", 0.05)
    door = front - between(rng, 0.5, 0.62)
    low = decks[-1][1] - between(rng, 0.02, 0.3)
    sketch.box(door, low, door + 0.22, floor - 0.04, shade(body, 0.62), "door", 0.02)
    sketch.box(door + 0.025, low + 0.03, door + 0.1, floor - 0.1, shade(glass, 1.1), "door", 0.02)
    sketch.box(door + 0.12, low + 0.03, door + 0.195, floor - 0.1, shade(glass, 1.1), "door", 0.02)
    sketch.ellipse(length - 0.06, floor - 0.12, 0.05, 0.05, (250, 226, 150), "lights")
    sketch.box(-length, floor - 0.17, -length + 0.05, floor - 0.07, (196, 54, 48), "lights")
    sketch.box(-length - 0.02, floor - 0.05, length + 0.02, floor + 0.03, shade(INK, 1.15), "body", 0.03)


def _bus_wheels(rng: np.random.Generator, sketch: Sketch, length: float, floor: float) -> None:
    radius = between(rng, 0.15, 0.2)
    hub = pick(rng, (WHITE, (170, 172, 176), (206, 176, 96)))
    spots = [-length * between(rng, 0.55, 0.68), length * between(rng, 0.58, 0.72)]
    if chance(rng, 0.2):
        spots.append(spots[0] + 2.2 * radius)
    for x in spots:
        y = floor + 0.02
        sketch.ellipse(x, y, radius, radius, INK, "wheels")
        sketch.ellipse(x, y, radius * 0.55, radius * 0.55, hub, "wheels")
        sketch.ellipse(x, y, radius * 0.2, radius * 0.2, shade(INK, 1.2), "wheels")


def sailboat(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a sailing boat: hull, mast, a mainsail and mostly a jib."""
    hull, sail = paint(rng), pick(rng, (WHITE, paint(rng), (240, 226, 196), WHITE))
    wood = pick(rng, ((112, 78, 54), (170, 128, 86), (70, 62, 60), (206, 200, 190)))
    tall = between(rng, 1.35, 1.8)
    deck = 0.52
    mast = between(rng, -0.18, 0.12)
    bulge = between(rng, 0.08, 0.26)
    peak = deck - tall
    sketch.box(mast - 0.025, peak - 0.06, mast + 0.025, deck + 0.05, wood, "mast")
    boom = between(rng, 0.1, 0.2)
    foot = mast - between(rng, 0.62, 0.82)
    main = [(mast - 0.04, peak), (mast - 0.04, deck - boom), (foot, deck - boom + between(rng, -0.04, 0.04))]
    edge = curve(
        [main[2], ((main[2][0] + main[0][0]) / 2 - bulge * 0.8, (main[2][1] + main[0][1]) / 2 - bulge * 0.3), main[0]],
        closed=False,
    )
    sketch.polygon(np.concatenate([np.array(main[:2]), edge]), sail, "mainsail")
    _sail_pattern(rng, sketch, sail, main)
    if chance(rng, 0.85):
        second = sail if chance(rng, 0.6) else paint(rng, unlike=sail)
        clew = mast + between(rng, 0.5, 0.75)
        head = (mast + 0.05, peak + between(rng, 0.05, 0.4))
        bow = (clew, deck - 0.04)
        belly = ((bow[0] + head[0]) / 2 + bulge * 0.35, (bow[1] + head[1]) / 2 - bulge * 0.1)
        back = (mast + 0.06, deck - boom)
        front = curve([head, belly, bow], closed=False)
        sketch.polygon(np.concatenate([front, np.array([back])]), shade(second, 0.92), "jib")
    sketch.stroke([(mast, deck - boom), (foot, deck - boom)], 0.04, wood, "mast")
    if chance(rng, 0.55):
        pennant = paint(rng)
        way = pick(rng, (-1.0, 1.0))
        sketch.polygon([(mast, peak - 0.06), (mast + 0.24 * way, peak + 0.01), (mast, peak + 0.08)], pennant, "mast")
    _hull(rng, sketch, hull, deck)


def _sail_pattern(rng: np.random.Generator, sketch: Sketch, sail: Colour, main: list[tuple[float, float]]) -> None:
    if chance(rng, 0.45):
        return
    (top_x, top_y), (_, low_y), (foot, _) = main
    colour = paint(rng, unlike=sail)
    for share in pick(rng, ((0.55, 0.7), (0.35, 0.5), (0.3, 0.42, 0.6, 0.72), (0.62, 0.98))):
        if share in (0.55, 0.35, 0.3, 0.6, 0.62):
            start = share
            continue
        band = []
        for part in (start, share):
            y = top_y + (low_y - top_y) * part
            band.append(((top_x, y), (top_x + (foot - top_x) * part, y)))
        sketch.polygon([band[0][0], band[0][1], band[1][1], band[1][0]], colour, "mainsail")


def _hull(rng: np.random.Generator, sketch: Sketch, hull: Colour, deck: float) -> None:
    left, right = -between(rng, 0.78, 0.98), between(rng, 0.82, 1.02)
    depth = between(rng, 0.26, 0.4)
    if chance(rng, 0.5):
        x = between(rng, -0.5, -0.1)
        cabin = pick(rng, (WHITE, shade(hull, 1.4), (190, 150, 104)))
        sketch.box(x, deck - 0.13, x + between(rng, 0.4, 0.6), deck + 0.05, cabin, "hull", 0.05)
        sketch.ellipse(x + 0.12, deck - 0.05, 0.04, 0.04, INK, "hull")
        sketch.ellipse(x + 0.28, deck - 0.05, 0.04, 0.04, INK, "hull")
    rake = between(rng, 0.05, 0.22)
    shell = np.concatenate(
        [
            np.array([[left, deck], [right, deck - 0.06]]),
            curve([(right, deck - 0.06), (right - 0.22, deck + depth * 0.72), (right - 0.5, deck + depth)], closed=False),
            np.array([[left + rake + 0.12, deck + depth], [left + rake * 0.6, deck + depth * 0.75]]),
        ]
    )
    sketch.polygon(shell, hull, "hull")
    line = paint(rng, unlike=hull)
    sketch.polygon(
        [(left, deck), (right, deck - 0.06), (right - 0.03, deck + 0.02), (left + 0.02, deck + 0.08)], line, "hull"
    )


def plane(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw an aeroplane, from above or from the side."""
    (_plane_above if chance(rng, 0.5) else _plane_side)(rng, sketch)


def _plane_above(rng: np.random.Generator, sketch: Sketch) -> None:
    body = pick(rng, (WHITE, (206, 210, 216), paint(rng), paint(rng)))
    wing = shade(body, 0.84) if chance(rng, 0.6) else paint(rng, unlike=body)
    half, span = between(rng, 0.09, 0.13), between(rng, 0.8, 1.05)
    sweep, root = between(rng, 0.1, 0.55), between(rng, 0.3, 0.42)
    tip = root * between(rng, 0.3, 0.65)
    engines = pick(rng, (1, 1, 2))
    for side in (-1.0, 1.0):
        for k in range(engines):
            reach = span * (0.36 + 0.26 * k)
            y = -0.12 + sweep * (0.36 + 0.26 * k)
            sketch.box(side * reach - 0.055, y - 0.16, side * reach + 0.055, y + 0.1, shade(wing, 0.62), "engines", 0.05)
        outline = [
            (side * half * 0.5, -0.15), (side * span, -0.15 + sweep),
            (side * span, -0.15 + sweep + tip), (side * half * 0.5, -0.15 + root),
        ]  # fmt: skip
        sketch.polygon(outline, wing if side > 0 else shade(wing, 0.92), "wings")
        if chance(rng, 0.5):
            colour = paint(rng)
            y = -0.15 + sweep * 0.86
            sketch.polygon(
                [(side * span * 0.86, y), outline[1], outline[2], (side * span * 0.86, y + root * 0.8 - (root - tip) * 0.5)],
                colour,
                "wings",
            )
        small = between(rng, 0.3, 0.4)
        sketch.polygon(
            [(0.0, 0.62), (side * small, 0.62 + sweep * 0.4), (side * small, 0.76 + sweep * 0.4), (0.0, 0.88)],
            shade(wing, 0.95),
            "tail",
        )
    nose = -between(rng, 0.9, 1.02)
    right = curve([(0.0, nose), (half * 0.85, nose + 0.16), (half, -0.4), (half, 0.4), (0.03, 0.96)], closed=False)
    sketch.polygon(np.concatenate([right, right[::-1] * np.array([-1.0, 1.0])]), body, "fuselage")
    sketch.polygon(
        [(-half * 0.6, nose + 0.2), (half * 0.6, nose + 0.2), (half * 0.45, nose + 0.12), (-half * 0.45, nose + 0.12)],
        (60, 80, 104), "fuselage",
    )  # fmt: skip
    sketch.polygon([(-0.025, 0.56), (0.025, 0.56), (0.03, 0.96), (-0.03, 0.96)], shade(wing, 0.66), "tail")


def _plane_side(rng: np.random.Generator, sketch: Sketch) -> None:
    body = pick(rng, (WHITE, (206, 210, 216), paint(rng), paint(rng)))
    accent = paint(rng, unlike=body)
    fat = between(rng, 0.13, 0.19)
    far = shade(body, 0.7)
    sketch.polygon([(0.15, -0.02), (-0.1, -0.02), (-0.42, -0.42), (-0.28, -0.42)], far, "wings")
    height = between(rng, 0.42, 0.56)
    sketch.polygon(
        [(-0.95, -fat - height), (-0.76, -fat - height), (-0.46, -fat + 0.04), (-0.9, -fat + 0.1)], accent, "tail"
    )
    nose = between(rng, 0.95, 1.05)
    upper = curve(
        [(-1.0, -fat * 0.85), (-0.5, -fat), (0.55, -fat), (nose - 0.12, -fat * 0.45), (nose, fat * 0.15)], closed=False
    )
    lower = curve([(nose, fat * 0.15), (nose - 0.15, fat * 0.7), (0.4, fat), (-0.35, fat), (-1.0, -fat * 0.5)], closed=False)
    sketch.polygon(np.concatenate([upper, lower]), body, "fuselage")
    if chance(rng, 0.6):
        sketch.polygon(
            [(-0.9, fat * 0.2), (nose - 0.1, fat * 0.2), (nose - 0.12, fat * 0.5), (-0.6, fat * 0.5)], accent, "fuselage"
        )
    count = whole(rng, 6, 10)
    for k in range(count):
        x = -0.55 + 1.15 * k / count
        sketch.ellipse(x, -fat * 0.32, 0.032, 0.042, (66, 92, 120), "windows")
    sketch.polygon(
        [(nose - 0.27, -fat * 0.72), (nose - 0.15, -fat * 0.5), (nose - 0.11, -fat * 0.2), (nose - 0.27, -fat * 0.25)],
        (60, 84, 112), "windows",
    )  # fmt: skip
    drop = between(rng, 0.3, 0.5)
    wing = mix(body, accent, 0.25)
    sketch.polygon([(0.24, 0.02), (-0.16, 0.05), (-0.56, drop + 0.04), (-0.38, drop + 0.06)], shade(wing, 0.85), "wings")
    sketch.box(0.0, fat * 0.9, 0.26, fat * 0.9 + 0.14, shade(accent, 0.8), "engines", 0.06)
    sketch.polygon([(-0.62, -0.06), (-0.82, -0.06), (-1.08, 0.1), (-0.96, 0.12)], shade(wing, 0.8), "tail")
    if chance(rng, 0.3):
        for x in (-0.12, 0.62):
            sketch.stroke([(x, fat * 0.8), (x, fat + 0.14)], 0.03, INK, "engines")
            sketch.ellipse(x, fat + 0.16, 0.06, 0.06, INK, "engines")
    nosecone = arc(nose - 0.06, fat * 0.12, 0.06, fat * 0.5, -math.pi / 2, math.pi / 2)
    if chance(rng, 0.4):
        sketch.polygon(nosecone, shade(accent, 0.9), "fuselage")
