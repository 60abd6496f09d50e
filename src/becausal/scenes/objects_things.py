"""Mug, umbrella, key, house, traffic light and clock."""

import math

import numpy as np

from becausal.scenes.sketch import INK, WHITE, Colour, Draws, Points, Sketch, arc, curve, mix, oval, rounded, shade, turned


def mug(rng: Draws, sketch: Sketch) -> None:
    """Draw a mug seen slightly from above: straight, tapered or round, plain or decorated."""
    clay = rng.paint()
    top, bottom = -rng.between(0.55, 0.85), rng.between(0.55, 0.8)
    upper, lower = rng.between(0.52, 0.68), rng.between(0.4, 0.66)
    belly = rng.between(0.0, 0.16) if rng.chance(0.4) else 0.0
    tilt = rng.between(0.1, 0.2)
    _handle(rng, sketch, clay, max(upper, (upper + lower) / 2 + belly), top, bottom)
    side = [(lower, bottom), ((lower + upper) / 2 + belly, (top + bottom) / 2), (upper, top)]
    right = curve(side, closed=False)
    left = right[::-1] * np.array([-1.0, 1.0])
    floor = arc(0.0, bottom, lower, tilt * 0.9, math.pi, 0.0)
    sketch.polygon(np.concatenate([right, left, floor]), clay, "body")
    _decoration(rng, sketch, clay, (upper, lower, belly, top, bottom, tilt))
    rim = rng.pick((shade(clay, 1.35), shade(clay, 0.8), WHITE))
    sketch.ellipse(0.0, top, upper, tilt, rim, "rim")
    inside = rng.pick((shade(clay, 0.62), (226, 220, 208)))
    sketch.ellipse(0.0, top + 0.005, upper - 0.06, tilt * 0.78, inside, "rim")
    if rng.chance(0.75):
        drink = rng.pick(((76, 48, 34), (122, 74, 42), (164, 104, 46), (206, 178, 140), (70, 92, 52)))
        pool = oval(0.0, top + tilt * 0.25, upper - 0.12, tilt * 0.56)
        sketch.polygon(pool, drink, "rim")
        sketch.ellipse(-upper * 0.25, top + tilt * 0.2, upper * 0.22, tilt * 0.16, shade(drink, 1.2), "rim")


def _handle(rng: Draws, sketch: Sketch, clay: Colour, side: float, top: float, bottom: float) -> None:
    high = (bottom - top) * rng.between(0.28, 0.36)
    middle = (top + bottom) / 2 + rng.between(-0.08, 0.06)
    reach, thick = rng.between(0.36, 0.52), rng.between(0.11, 0.17)
    root = side - 0.14
    style = rng.pick(("round", "ear", "square"))
    if style == "square":
        outer = rounded(root - 0.2, middle - high, root + reach, middle + high, 0.14)
        hole = rounded(root - 0.1, middle - high + thick, root + reach - thick, middle + high - thick, 0.08)
    elif style == "round":
        outer = oval(root + 0.02, middle, reach, high)
        hole = oval(root + 0.02, middle, reach - thick, high - thick)
    else:
        upper = [(root, middle - high), (root + reach, middle - high * 0.8)]
        outer = curve([*upper, (root + reach * 0.8, middle + high * 0.3), (root, middle + high)])
        centre = outer.mean(axis=0)
        hole = centre + (outer - centre) * (1.0 - thick * 2.0)
    sketch.polygon(outer, shade(clay, 0.86), "handle")
    sketch.erase(hole)


def _decoration(rng: Draws, sketch: Sketch, clay: Colour, shape: tuple[float, float, float, float, float, float]) -> None:
    upper, lower, belly, top, bottom, tilt = shape

    def half(share: float) -> float:
        return upper + (lower - upper) * share + belly * 4.0 * share * (1.0 - share)

    kind = rng.pick(("none", "band", "bands", "dots", "badge", "heart"))
    colour = rng.paint(unlike=clay)
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
        sketch.discs(0.0, (top + bottom) / 2 + 0.12, "body", (0.26, colour), (0.17, shade(colour, 1.4)))
    elif kind == "heart":
        y = (top + bottom) / 2 + 0.06
        for side in (-1.0, 1.0):
            sketch.ellipse(side * 0.1, y, 0.12, 0.12, colour, "body")
        sketch.polygon([(-0.215, y + 0.04), (0.215, y + 0.04), (0.0, y + 0.32)], colour, "body")


def umbrella(rng: Draws, sketch: Sketch) -> None:
    """Draw an open umbrella from the side: a ribbed canopy, a shaft and a hooked handle."""
    first = rng.paint()
    second = first if rng.chance(0.35) else rng.paint(unlike=first)
    dome, panels = rng.between(0.62, 0.95), rng.whole(4, 8)
    hem, base = rng.between(0.06, 0.13), 0.0
    metal = rng.pick(((92, 94, 100), (150, 152, 156), INK, (146, 104, 70)))
    grip = rng.pick(((122, 80, 52), INK, rng.paint()))
    thick = rng.between(0.045, 0.07)
    length = rng.between(0.72, 0.98)
    sketch.box(-thick / 2, -dome - 0.14, thick / 2, length, metal, "shaft")
    radius = rng.between(0.13, 0.19)
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
    if rng.chance(0.3):
        trim = rng.paint(unlike=first)
        for k in range(panels):
            left, right = edges[k], edges[k + 1]
            scallop = arc((left + right) / 2, base, (right - left) / 2, hem, -math.pi, 0.0, count=9)
            sketch.stroke(scallop, 0.05, trim, "canopy")
    sketch.ellipse(0.0, -dome - 0.01, 0.05, 0.04, metal, "shaft")


def _rib(x: float, dome: float) -> Points:
    t = np.linspace(0.0, math.pi / 2, 12)
    return np.stack([x * np.cos(t), -dome * np.sin(t)], axis=1)


def key(rng: Draws, sketch: Sketch) -> None:
    """Draw a key: a bow with a hole, a shaft and a bit with teeth, old or modern."""
    metal = rng.pick(((204, 166, 78), (178, 184, 192), (150, 96, 60), (96, 100, 108), (226, 200, 130), rng.paint()))
    dark = shade(metal, 0.66)
    thick = rng.between(0.08, 0.12)
    start, end = -0.42, rng.between(1.0, 1.3)
    sketch.box(start - 0.1, -thick, end, thick, metal, "shaft", 0.06)
    if rng.chance(0.5):
        sketch.box(start, -thick * 0.25, end - 0.06, thick * 0.25, dark, "shaft")
    if rng.chance(0.5):  # an old key, with one wide bit
        wide, drop = rng.between(0.26, 0.4), rng.between(0.3, 0.42)
        left = end - wide - 0.08
        sketch.box(left, 0.0, left + wide, thick + drop, metal, "bit", 0.02)
        notches = rng.whole(1, 2)
        for k in range(notches):
            x = left + wide * (k + 1) / (notches + 1)
            sketch.erase(rounded(x - 0.035, thick + drop * 0.45, x + 0.035, thick + drop + 0.05, 0.0))
        sketch.ellipse(end, 0.0, thick * 1.3, thick * 1.3, metal, "shaft")
    else:
        teeth = rng.whole(3, 5)
        left = end - rng.between(0.6, 0.85)
        step = (end - left) / teeth
        outline = [(left, 0.0)]
        for k in range(teeth):
            depth = thick + rng.between(0.1, 0.28)
            x = left + k * step
            outline += [(x, thick), (x + step * 0.3, depth), (x + step * 0.65, depth), (x + step * 0.95, thick * 0.9)]
        outline.append((end, 0.0))
        sketch.polygon(outline, metal, "bit")
    if rng.chance(0.5):
        x = start + rng.between(0.06, 0.2)
        sketch.box(x, -thick * 1.6, x + 0.08, thick * 1.6, shade(metal, 0.85), "shaft", 0.03)
    _bow(rng, sketch, metal if rng.chance(0.7) else rng.paint())


def _bow(rng: Draws, sketch: Sketch, metal: Colour) -> None:
    style = rng.pick(("ring", "oval", "trefoil", "square", "heart"))
    radius = rng.between(0.38, 0.46)
    centre = -0.72
    wide = rng.between(0.13, 0.18)
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
        if rng.chance(0.5):
            left, right = centre - radius + 0.06, centre + radius * 0.9 - 0.06
            sketch.box(left, -radius + 0.06, right, radius - 0.06, light, "bow", 0.1)
        sketch.erase(oval(centre - radius * 0.4, 0.0, 0.14, 0.16))
    else:
        high = radius if style == "ring" else radius * rng.between(1.05, 1.25)
        across = radius if style == "ring" else radius * rng.between(0.75, 0.9)
        sketch.ellipse(centre, 0.0, across, high, metal, "bow")
        sketch.ellipse(centre, 0.0, across - 0.05, high - 0.05, light, "bow")
        sketch.erase(oval(centre, 0.0, across - wide, high - wide))


def house(rng: Draws, sketch: Sketch) -> None:
    """Draw a house from the front: gable or hip roof, door, windows, chimney, sometimes a wing."""
    wall, roof = rng.pick((rng.paint(), (232, 222, 204), (214, 196, 170), WHITE)), rng.paint()
    roof = roof if sum(abs(a - b) for a, b in zip(wall, roof, strict=True)) > 90 else shade(roof, 0.5)
    wide, eaves = rng.between(0.7, 0.98), rng.between(-0.28, 0.02)
    peak = eaves - rng.between(0.5, 0.75)
    hip = 0.0 if rng.chance(0.6) else wide * rng.between(0.3, 0.6)
    over = rng.between(0.06, 0.16)
    if rng.chance(0.7):
        x = rng.pick((-1.0, 1.0)) * wide * rng.between(0.35, 0.6)
        brick = mix(roof, (150, 92, 74), 0.5)
        sketch.box(x - 0.1, peak - 0.02, x + 0.1, eaves, brick, "chimney")
        sketch.box(x - 0.13, peak - 0.07, x + 0.13, peak + 0.02, shade(brick, 0.75), "chimney")
    if rng.chance(0.3):
        side = rng.pick((-1.0, 1.0))
        outer, inner, top = side * (wide + rng.between(0.35, 0.5)), side * (wide - 0.1), rng.between(0.1, 0.25)
        sketch.box(min(outer, inner), top, max(outer, inner), 0.8, shade(wall, 0.86), "walls")
        eave, ridge = (outer + side * 0.07, top + 0.02), (outer - side * 0.05, top - 0.2)
        sketch.polygon([eave, ridge, (inner, top - 0.2), (inner, top + 0.02)], shade(roof, 0.86), "roof")
        _window(rng, sketch, (outer + side * wide) / 2, top + 0.28, 0.1, 0.13, wall)
    sketch.box(-wide, eaves - 0.02, wide, 0.8, wall, "walls")
    if hip == 0.0:
        sketch.polygon([(-wide, eaves), (0.0, peak + 0.06), (wide, eaves)], shade(wall, 0.94), "walls")
        thick = rng.between(0.12, 0.2)
        if rng.chance(0.55):
            sketch.polygon([(-wide - over, eaves + 0.06), (0.0, peak), (wide + over, eaves + 0.06)], roof, "roof")
        else:
            rim = wide + over
            lower = [(rim - 0.1, eaves + 0.14), (0.0, peak + thick), (0.1 - rim, eaves + 0.14)]
            sketch.polygon([(-rim, eaves + 0.08), (0.0, peak), (rim, eaves + 0.08), *lower], roof, "roof")
        if rng.chance(0.5):
            frame, pane = (0.1, shade(wall, 0.6)), (0.07, (176, 208, 222))
            sketch.discs(0.0, (peak + eaves) / 2 + 0.1, "windows", frame, pane)
    else:
        slope = [(-wide - over, eaves + 0.05), (-wide + hip, peak), (wide - hip, peak), (wide + over, eaves + 0.05)]
        sketch.polygon(slope, roof, "roof")
        for k in range(1, 4):
            y = peak + (eaves - peak) * k / 4
            reach = wide + (over - hip) + hip * k / 4 - over
            sketch.box(-reach, y, reach, y + 0.025, shade(roof, 0.85), "roof")
    _facade(rng, sketch, wide, eaves, wall)
    if rng.chance(0.5):
        sketch.box(-wide - 0.03, 0.74, wide + 0.03, 0.82, shade(wall, 0.6), "walls")


def _facade(rng: Draws, sketch: Sketch, wide: float, eaves: float, wall: Colour) -> None:
    door = rng.paint(unlike=wall)
    slots = rng.whole(2, 3)
    at = rng.whole(0, slots - 1)
    height = rng.between(0.42, 0.56)
    for k in range(slots):
        x = -wide + wide * 2.0 * (k + 0.5) / slots
        if k == at:
            half = rng.between(0.11, 0.15)
            sketch.box(x - half - 0.03, 0.77 - height, x + half + 0.03, 0.8, shade(wall, 0.7), "door")
            sketch.box(x - half, 0.8 - height, x + half, 0.8, door, "door", 0.02)
            sketch.ellipse(x + half * 0.6, 0.8 - height * 0.45, 0.025, 0.025, (236, 206, 120), "door")
        else:
            _window(rng, sketch, x, rng.between(0.3, 0.36), 0.16, 0.17, wall)
    if eaves < -0.12:
        for k in range(slots):
            _window(rng, sketch, -wide + wide * 2.0 * (k + 0.5) / slots, eaves + 0.2, 0.13, 0.12, wall)


def _window(rng: Draws, sketch: Sketch, x: float, y: float, half_wide: float, half_high: float, wall: Colour) -> None:
    frame = WHITE if sum(wall) < 600 else shade(wall, 0.55)
    glass = rng.pick(((150, 192, 214), (92, 124, 150), (250, 220, 140), (70, 88, 110)))
    sketch.box(x - half_wide, y - half_high, x + half_wide, y + half_high, frame, "windows")
    inset = 0.035
    sketch.box(x - half_wide + inset, y - half_high + inset, x + half_wide - inset, y + half_high - inset, glass, "windows")
    sketch.box(x - 0.015, y - half_high, x + 0.015, y + half_high, frame, "windows")
    sketch.box(x - half_wide, y - 0.015, x + half_wide, y + 0.015, frame, "windows")


def traffic_light(rng: Draws, sketch: Sketch) -> None:
    """Draw a traffic light: a housing with three lamps, one of them lit, on a pole or hung."""
    case = rng.pick(((44, 48, 54), (62, 66, 60), (38, 58, 50), (206, 164, 50), (86, 92, 100), rng.paint()))
    half = rng.between(0.28, 0.36)
    lamp = half * rng.between(0.62, 0.74)
    step = 2.0 * lamp * rng.between(1.16, 1.3)
    top, bottom = -1.5 * step - 0.04, 1.5 * step + 0.04
    if rng.chance(0.75):
        pole = rng.pick(((112, 116, 120), (70, 74, 80), (164, 166, 162)))
        thick = rng.between(0.07, 0.12)
        sketch.box(-thick, bottom - 0.05, thick, bottom + rng.between(0.3, 0.9), pole, "pole")
    elif rng.chance(0.5):
        sketch.box(-0.05, top - 0.3, 0.05, top + 0.05, (90, 94, 100), "pole")
    if rng.chance(0.35):
        plate = rng.pick((WHITE, INK, (230, 190, 70)))
        sketch.box(-half - 0.12, top - 0.12, half + 0.12, bottom + 0.12, plate, "housing", 0.1)
        sketch.box(-half - 0.09, top - 0.09, half + 0.09, bottom + 0.09, shade(case, 0.7), "housing", 0.08)
    sketch.box(-half, top, half, bottom, case, "housing", rng.between(0.04, half))
    hooded, lit = rng.chance(0.6), rng.whole(0, 2)
    for k, hue in enumerate(((226, 60, 48), (246, 184, 52), (72, 190, 100))):
        y = (k - 1) * step
        sketch.ellipse(0.0, y, lamp * 1.12, lamp * 1.12, shade(case, 0.55), "housing")
        if k == lit:
            sketch.ellipse(0.0, y, lamp, lamp, hue, "lamps")
            sketch.ellipse(0.0, y, lamp * 0.6, lamp * 0.6, shade(hue, 1.35), "lamps")
            sketch.ellipse(-lamp * 0.2, y - lamp * 0.2, lamp * 0.25, lamp * 0.25, shade(hue, 1.7), "lamps")
        else:
            sketch.ellipse(0.0, y, lamp, lamp, shade(hue, rng.between(0.36, 0.62)), "lamps")
            sketch.ellipse(-lamp * 0.3, y - lamp * 0.3, lamp * 0.22, lamp * 0.22, shade(hue, 0.8), "lamps")
        if hooded:
            outer = arc(0.0, y, lamp * 1.18, lamp * 1.18, math.pi, 2 * math.pi)
            inner = arc(0.0, y, lamp * 1.18, lamp * 0.78, 2 * math.pi, math.pi)
            sketch.polygon(np.concatenate([outer, inner]), shade(case, 0.42), "housing")


def clock(rng: Draws, sketch: Sketch) -> None:
    """Draw a clock with two hands: wall clock (round, square, eight-sided) or alarm clock."""
    rim = rng.paint()
    dark = rng.chance(0.2)
    face = rng.pick(((40, 44, 52), (54, 62, 84))) if dark else rng.pick((WHITE, (246, 234, 206), (226, 234, 238), WHITE))
    mark = WHITE if dark else INK
    if rng.chance(0.35):
        _alarm(rng, sketch, rim)
    shape = rng.pick(("round", "round", "round", "square", "eight"))
    inner = rng.between(0.76, 0.88)
    for radius, colour, part in ((1.0, rim, "rim"), (inner + 0.03, shade(rim, 0.65), "rim"), (inner, face, "face")):
        if shape == "square":
            sketch.box(-radius * 0.9, -radius * 0.9, radius * 0.9, radius * 0.9, colour, part, 0.18 * radius)
        elif shape == "eight":
            sketch.polygon(oval(0.0, 0.0, radius, radius, count=8, turn=math.pi / 8), colour, part)
        else:
            sketch.ellipse(0.0, 0.0, radius, radius, colour, part)
    style = rng.pick(("bars", "dots", "quarters"))
    for hour in range(12):
        angle = hour * math.pi / 6
        strong = hour % 3 == 0
        if style == "quarters" and not strong:
            continue
        if style == "dots":
            radius = 0.05 if strong else 0.03
            sketch.ellipse(inner * 0.84 * math.sin(angle), -inner * 0.84 * math.cos(angle), radius, radius, mark, "ticks")
            continue
        bar = np.array([[-0.03, -0.92], [0.03, -0.92], [0.03, -0.72], [-0.03, -0.72]]) * inner
        if not strong:
            bar = bar * np.array([0.6, 1.0])
            bar[2:, 1] = -0.82 * inner
        sketch.polygon(turned(bar, angle), mark, "ticks")
    hour_angle, minute_angle = rng.between(0.0, 2 * math.pi), rng.between(0.0, 2 * math.pi)
    thick = rng.between(0.05, 0.09)
    hand = mark if rng.chance(0.7) else rng.paint(unlike=face)
    for angle, length, width in ((hour_angle, 0.5, thick * 1.35), (minute_angle, 0.74, thick)):
        tip = np.array([[-width, 0.12], [width, 0.12], [width * 0.5, -length * inner], [-width * 0.5, -length * inner]])
        sketch.polygon(turned(tip, angle), hand, "hands")
    if rng.chance(0.4):
        second = np.array([[-0.015, 0.2], [0.015, 0.2], [0.015, -0.8 * inner], [-0.015, -0.8 * inner]])
        sketch.polygon(turned(second, rng.between(0.0, 2 * math.pi)), (206, 58, 50), "hands")
    sketch.ellipse(0.0, 0.0, 0.075, 0.075, shade(hand, 0.8), "hands")


def _alarm(rng: Draws, sketch: Sketch, rim: Colour) -> None:
    metal = rng.pick(((206, 176, 96), (186, 190, 196), shade(rim, 0.8)))
    for side in (-1.0, 1.0):
        sketch.stroke([(side * 0.5, 0.7), (side * 0.78, 1.12)], 0.14, shade(metal, 0.75), "feet")
        bell = arc(0.0, 0.0, 0.36, 0.34, math.pi, 2 * math.pi)
        sketch.stroke([(side * 0.4, -0.7), (side * 0.62, -1.0)], 0.1, shade(metal, 0.7), "bells")
        sketch.polygon(turned(bell, side * 0.6) + np.array([side * 0.6, -0.92]), metal, "bells")
    if rng.chance(0.6):
        outer, inner = arc(0.0, -1.1, 0.26, 0.26, math.pi, 2 * math.pi), arc(0.0, -1.1, 0.18, 0.18, 2 * math.pi, math.pi)
        sketch.polygon(np.concatenate([outer, inner]), shade(metal, 0.8), "bells")
        sketch.box(-0.26, -1.12, -0.18, -0.85, shade(metal, 0.8), "bells")
        sketch.box(0.18, -1.12, 0.26, -0.85, shade(metal, 0.8), "bells")
