"""Bus, sailboat, plane, fish, butterfly and tree."""

import math

import numpy as np

from becausal.scenes.sketch import INK, WHITE, Colour, Draws, Points, Sketch, arc, curve, mirrored, mix, shade, turned


def bus(rng: Draws, sketch: Sketch) -> None:
    """Draw a bus from the side: single or double deck, snub or with a bonnet."""
    body = rng.paint()
    glass = rng.pick(((176, 212, 226), (120, 160, 184), (66, 84, 104), (210, 226, 230), (232, 214, 150)))
    trim = rng.paint(unlike=body)
    double = rng.chance(0.35)
    nose = not double and rng.chance(0.3)
    length = rng.between(0.85, 1.15) if double else rng.between(1.0, 1.35)
    top = rng.between(-0.78, -0.62) if double else rng.between(-0.5, -0.36)
    floor, rounding = 0.36, rng.between(0.05, 0.16)
    front = length - (0.3 if nose else 0.0)
    radius = rng.between(0.15, 0.2)
    hub = rng.pick((WHITE, (170, 172, 176), (206, 176, 96)))
    wheels = [-length * rng.between(0.55, 0.68), length * rng.between(0.58, 0.72)]
    if rng.chance(0.2):
        wheels.append(wheels[0] + 2.2 * radius)
    for x in wheels:
        tyre, cap = (radius, INK), (radius * 0.2, shade(INK, 1.2))
        sketch.discs(x, floor + 0.02, "wheels", tyre, (radius * 0.55, hub), cap)
    if nose:
        sketch.box(front - 0.2, -0.04, length, floor, shade(body, 0.9), "body", 0.1)
    sketch.box(-length, top, front, floor, body, "body", rounding)
    if rng.chance(0.5):
        sketch.box(-length + 0.05, top, front - 0.05, top + 0.07, shade(body, rng.pick((0.75, 1.35))), "body", 0.03)
    if rng.chance(0.75):
        height = rng.between(0.04, 0.12)
        sketch.box(-length + 0.01, 0.12, front - 0.01, 0.12 + height, trim, "body")
    decks = [(top + 0.1, top + 0.4), (top + 0.52, top + 0.8)] if double else [(top + 0.1, top + 0.4)]
    panes, gap = rng.whole(4, 7), rng.between(0.03, 0.07)
    round_pane = rng.between(0.0, 0.07)
    for deck, (pane_top, pane_bottom) in enumerate(decks):
        left, right = -length + 0.1, front - 0.34
        step = (right - left) / panes
        for k in range(panes):
            x = left + k * step
            tone = shade(glass, 0.9) if (k + deck) % 2 else glass
            sketch.box(x, pane_top, x + step - gap, pane_bottom, tone, "windows", round_pane)
        sketch.box(front - 0.28, pane_top - 0.02, front - 0.03, pane_bottom, shade(glass, 1.25), "windows", 0.05)
    door = front - rng.between(0.5, 0.62)
    low = decks[-1][1] - rng.between(0.02, 0.3)
    sketch.box(door, low, door + 0.22, floor - 0.04, shade(body, 0.62), "door", 0.02)
    sketch.box(door + 0.025, low + 0.03, door + 0.1, floor - 0.1, shade(glass, 1.1), "door", 0.02)
    sketch.box(door + 0.12, low + 0.03, door + 0.195, floor - 0.1, shade(glass, 1.1), "door", 0.02)
    sketch.ellipse(length - 0.06, floor - 0.12, 0.05, 0.05, (250, 226, 150), "lights")
    sketch.box(-length, floor - 0.17, -length + 0.05, floor - 0.07, (196, 54, 48), "lights")
    sketch.box(-length - 0.02, floor - 0.05, length + 0.02, floor + 0.03, shade(INK, 1.15), "body", 0.03)


def sailboat(rng: Draws, sketch: Sketch) -> None:
    """Draw a sailing boat: hull, mast, a mainsail and mostly a jib."""
    hull, sail = rng.paint(), rng.pick((WHITE, rng.paint(), (240, 226, 196), WHITE))
    wood = rng.pick(((112, 78, 54), (170, 128, 86), (70, 62, 60), (206, 200, 190)))
    tall = rng.between(1.35, 1.8)
    deck = 0.52
    mast = rng.between(-0.18, 0.12)
    bulge = rng.between(0.08, 0.26)
    peak = deck - tall
    sketch.box(mast - 0.025, peak - 0.06, mast + 0.025, deck + 0.05, wood, "mast")
    boom = rng.between(0.1, 0.2)
    foot = mast - rng.between(0.62, 0.82)
    main = [(mast - 0.04, peak), (mast - 0.04, deck - boom), (foot, deck - boom + rng.between(-0.04, 0.04))]
    belly = ((main[2][0] + main[0][0]) / 2 - bulge * 0.8, (main[2][1] + main[0][1]) / 2 - bulge * 0.3)
    edge = curve([main[2], belly, main[0]], closed=False)
    sketch.polygon(np.concatenate([np.array(main[:2]), edge]), sail, "mainsail")
    if not rng.chance(0.45):
        (top_x, top_y), (_, low_y), (foot_x, _) = main
        colour = rng.paint(unlike=sail)
        for bounds in rng.pick((((0.55, 0.7),), ((0.35, 0.5),), ((0.3, 0.42), (0.6, 0.72)), ((0.62, 0.98),))):
            (y, x), (low, reach) = ((top_y + (low_y - top_y) * at, top_x + (foot_x - top_x) * at) for at in bounds)
            sketch.polygon([(top_x, y), (x, y), (reach, low), (top_x, low)], colour, "mainsail")
    if rng.chance(0.85):
        second = sail if rng.chance(0.6) else rng.paint(unlike=sail)
        clew = mast + rng.between(0.5, 0.75)
        head = (mast + 0.05, peak + rng.between(0.05, 0.4))
        bow = (clew, deck - 0.04)
        belly = ((bow[0] + head[0]) / 2 + bulge * 0.35, (bow[1] + head[1]) / 2 - bulge * 0.1)
        back = (mast + 0.06, deck - boom)
        front = curve([head, belly, bow], closed=False)
        sketch.polygon(np.concatenate([front, np.array([back])]), shade(second, 0.92), "jib")
    sketch.stroke([(mast, deck - boom), (foot, deck - boom)], 0.04, wood, "mast")
    if rng.chance(0.55):
        pennant = rng.paint()
        way = rng.pick((-1.0, 1.0))
        sketch.polygon([(mast, peak - 0.06), (mast + 0.24 * way, peak + 0.01), (mast, peak + 0.08)], pennant, "mast")
    _hull(rng, sketch, hull, deck)


def _hull(rng: Draws, sketch: Sketch, hull: Colour, deck: float) -> None:
    left, right = -rng.between(0.78, 0.98), rng.between(0.82, 1.02)
    depth = rng.between(0.26, 0.4)
    if rng.chance(0.5):
        x = rng.between(-0.5, -0.1)
        cabin = rng.pick((WHITE, shade(hull, 1.4), (190, 150, 104)))
        sketch.box(x, deck - 0.13, x + rng.between(0.4, 0.6), deck + 0.05, cabin, "hull", 0.05)
        sketch.ellipse(x + 0.12, deck - 0.05, 0.04, 0.04, INK, "hull")
        sketch.ellipse(x + 0.28, deck - 0.05, 0.04, 0.04, INK, "hull")
    rake = rng.between(0.05, 0.22)
    bow = curve([(right, deck - 0.06), (right - 0.22, deck + depth * 0.72), (right - 0.5, deck + depth)], closed=False)
    stern = [(left + rake + 0.12, deck + depth), (left + rake * 0.6, deck + depth * 0.75)]
    sketch.polygon(np.concatenate([[(left, deck), (right, deck - 0.06)], bow, stern]), hull, "hull")
    line = [(left, deck), (right, deck - 0.06), (right - 0.03, deck + 0.02), (left + 0.02, deck + 0.08)]
    sketch.polygon(line, rng.paint(unlike=hull), "hull")


def plane(rng: Draws, sketch: Sketch) -> None:
    """Draw an aeroplane, from above or from the side."""
    (_plane_above if rng.chance(0.5) else _plane_side)(rng, sketch)


def _plane_above(rng: Draws, sketch: Sketch) -> None:
    body = rng.pick((WHITE, (206, 210, 216), rng.paint(), rng.paint()))
    wing = shade(body, 0.84) if rng.chance(0.6) else rng.paint(unlike=body)
    half, span = rng.between(0.09, 0.13), rng.between(0.8, 1.05)
    sweep, root = rng.between(0.1, 0.55), rng.between(0.3, 0.42)
    tip = root * rng.between(0.3, 0.65)
    engines = rng.pick((1, 1, 2))
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
        if rng.chance(0.5):
            colour = rng.paint()
            y = -0.15 + sweep * 0.86
            end = (side * span * 0.86, y + root * 0.8 - (root - tip) * 0.5)
            sketch.polygon([(side * span * 0.86, y), outline[1], outline[2], end], colour, "wings")
        small = rng.between(0.3, 0.4)
        plate = [(0.0, 0.62), (side * small, 0.62 + sweep * 0.4), (side * small, 0.76 + sweep * 0.4), (0.0, 0.88)]
        sketch.polygon(plate, shade(wing, 0.95), "tail")
    nose = -rng.between(0.9, 1.02)
    right = curve([(0.0, nose), (half * 0.85, nose + 0.16), (half, -0.4), (half, 0.4), (0.03, 0.96)], closed=False)
    sketch.polygon(mirrored(right), body, "fuselage")
    pane = [(-half * 0.6, nose + 0.2), (half * 0.6, nose + 0.2), (half * 0.45, nose + 0.12), (-half * 0.45, nose + 0.12)]
    sketch.polygon(pane, (60, 80, 104), "fuselage")
    sketch.polygon([(-0.025, 0.56), (0.025, 0.56), (0.03, 0.96), (-0.03, 0.96)], shade(wing, 0.66), "tail")


def _plane_side(rng: Draws, sketch: Sketch) -> None:
    body = rng.pick((WHITE, (206, 210, 216), rng.paint(), rng.paint()))
    accent = rng.paint(unlike=body)
    fat = rng.between(0.13, 0.19)
    far = shade(body, 0.7)
    sketch.polygon([(0.15, -0.02), (-0.1, -0.02), (-0.42, -0.42), (-0.28, -0.42)], far, "wings")
    height = rng.between(0.42, 0.56)
    fin = [(-0.95, -fat - height), (-0.76, -fat - height), (-0.46, -fat + 0.04), (-0.9, -fat + 0.1)]
    sketch.polygon(fin, accent, "tail")
    nose = rng.between(0.95, 1.05)
    back = [(-1.0, -fat * 0.85), (-0.5, -fat), (0.55, -fat), (nose - 0.12, -fat * 0.45), (nose, fat * 0.15)]
    upper = curve(back, closed=False)
    lower = curve([(nose, fat * 0.15), (nose - 0.15, fat * 0.7), (0.4, fat), (-0.35, fat), (-1.0, -fat * 0.5)], closed=False)
    sketch.polygon(np.concatenate([upper, lower]), body, "fuselage")
    if rng.chance(0.6):
        stripe = [(-0.9, fat * 0.2), (nose - 0.1, fat * 0.2), (nose - 0.12, fat * 0.5), (-0.6, fat * 0.5)]
        sketch.polygon(stripe, accent, "fuselage")
    count = rng.whole(6, 10)
    for k in range(count):
        x = -0.55 + 1.15 * k / count
        sketch.ellipse(x, -fat * 0.32, 0.032, 0.042, (66, 92, 120), "windows")
    pane = [(nose - 0.27, -fat * 0.72), (nose - 0.15, -fat * 0.5), (nose - 0.11, -fat * 0.2), (nose - 0.27, -fat * 0.25)]
    sketch.polygon(pane, (60, 84, 112), "windows")
    drop = rng.between(0.3, 0.5)
    wing = mix(body, accent, 0.25)
    sketch.polygon([(0.24, 0.02), (-0.16, 0.05), (-0.56, drop + 0.04), (-0.38, drop + 0.06)], shade(wing, 0.85), "wings")
    sketch.box(0.0, fat * 0.9, 0.26, fat * 0.9 + 0.14, shade(accent, 0.8), "engines", 0.06)
    sketch.polygon([(-0.62, -0.06), (-0.82, -0.06), (-1.08, 0.1), (-0.96, 0.12)], shade(wing, 0.8), "tail")
    if rng.chance(0.3):
        for x in (-0.12, 0.62):
            sketch.stroke([(x, fat * 0.8), (x, fat + 0.14)], 0.03, INK, "engines")
            sketch.ellipse(x, fat + 0.16, 0.06, 0.06, INK, "engines")
    if rng.chance(0.4):
        nosecone = arc(nose - 0.06, fat * 0.12, 0.06, fat * 0.5, -math.pi / 2, math.pi / 2)
        sketch.polygon(nosecone, shade(accent, 0.9), "fuselage")


def fish(rng: Draws, sketch: Sketch) -> None:
    """Draw a fish from the side: slim to round, plain, striped, spotted or two-toned."""
    body = rng.paint()
    fin = shade(body, rng.between(0.6, 0.85)) if rng.chance(0.55) else rng.paint(unlike=body)
    deep = rng.between(0.34, 0.66)
    _tail(rng, sketch, fin)
    _fins(rng, sketch, fin, deep)
    snout = rng.between(0.15, 0.5)
    upper = [(-0.72, -0.1), (-0.3, -deep * 0.72), (0.15, -deep), (0.62, -deep * (0.5 + snout * 0.4)), (0.98, 0.02)]
    lower = [(0.66, deep * (0.45 + snout * 0.3)), (0.15, deep * 0.92), (-0.3, deep * 0.66), (-0.72, 0.1)]
    outline = curve(upper + lower)
    sketch.polygon(outline, body, "body")
    pattern = rng.pick(("plain", "belly", "bands", "spots", "lines", "scales"))
    second = rng.paint(unlike=body)
    if pattern == "belly":
        low = outline[outline[:, 1] > deep * 0.12]
        if len(low) > 2:
            sketch.polygon(low, shade(body, 1.5), "body")
    elif pattern == "bands":
        for k in range(rng.whole(2, 4)):
            _band(sketch, outline, 0.32 - 0.3 * k, rng.between(0.07, 0.13), second)
    elif pattern == "spots":
        for _ in range(rng.whole(5, 9)):
            x = rng.between(-0.5, 0.3)
            y = rng.between(-0.45, 0.4) * deep
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
    mouth = rng.between(0.1, 0.2)
    sketch.stroke([(0.97, 0.1), (0.82, 0.1 + mouth * 0.4)], 0.035, shade(body, 0.45), "body")
    pectoral = curve([(0.22, 0.1), (-0.06, 0.06 + rng.between(0.0, 0.14)), (0.02, 0.26)])
    sketch.polygon(pectoral, shade(fin, 0.86), "fins")
    eye = rng.between(0.075, 0.11)
    sketch.ellipse(0.63, -0.12 * deep - 0.06, eye, eye, WHITE, "eye")
    sketch.ellipse(0.645, -0.12 * deep - 0.06, eye * 0.55, eye * 0.55, INK, "eye")


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


def _tail(rng: Draws, sketch: Sketch, fin: Colour) -> None:
    wide, fork = rng.between(0.3, 0.52), rng.between(0.0, 0.2)
    back = -rng.between(1.1, 1.3)
    root = [(-0.6, -0.1), (back, -wide), (back + fork, 0.0), (back, wide), (-0.6, 0.1)]
    sketch.polygon(curve(root, steps=6) if rng.chance(0.4) else root, fin, "tail")
    for y in (-0.5, 0.0, 0.5):
        sketch.stroke([(-0.7, y * 0.1), (back + fork * 0.8 + 0.12, y * wide)], 0.02, shade(fin, 0.78), "tail")


def _fins(rng: Draws, sketch: Sketch, fin: Colour, deep: float) -> None:
    rise = rng.between(0.16, 0.36)
    back = rng.between(-0.5, -0.25)
    end = -deep * 0.75 - rise * rng.between(0.3, 1.0)
    sketch.polygon([(0.42, -deep * 0.8), (0.2, -deep - rise), (back, end), (back, -deep * 0.4)], fin, "fins")
    sketch.polygon([(0.1, deep * 0.8), (-0.12, deep + rise * 0.8), (-0.34, deep * 0.5)], fin, "fins")


def butterfly(rng: Draws, sketch: Sketch) -> None:
    """Draw a butterfly from above with open wings, spots and an edge."""
    wing, edge = rng.paint(), rng.pick((INK, (70, 48, 40), rng.paint()))
    low = wing if rng.chance(0.45) else rng.paint()
    spot = rng.paint(unlike=wing)
    up, out = rng.between(0.62, 0.95), rng.between(0.85, 1.05)
    down, tail = rng.between(0.55, 0.8), rng.between(0.0, 0.25) if rng.chance(0.4) else 0.0
    fold = rng.between(0.55, 1.0) if rng.chance(0.35) else 1.0
    notch = rng.between(-0.04, 0.16)
    fore = [(0.04, -0.02), (0.3, -up * 0.75), (out * 0.72, -up), (out, -up * 0.78), (out * 0.86, -0.22), (0.5, 0.02 - notch)]
    hind = [(0.04, 0.0), (0.5, -0.04), (out * 0.8, 0.16), (out * 0.74, down * 0.72), (0.46, down + tail), (0.2, down * 0.72)]
    border = rng.between(0.72, 0.88)
    spots = rng.whole(1, 3)
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
    body = rng.pick((INK, (84, 60, 48), (60, 54, 70)))
    for side in (-1.0, 1.0):
        feeler = curve([(0.02 * side, -0.34), (0.1 * side, -0.58), (0.24 * side, -0.76)], closed=False, steps=4)
        sketch.stroke(feeler, 0.035, body, "body")
        sketch.ellipse(0.24 * side, -0.76, 0.04, 0.04, body, "body")
    sketch.ellipse(0.0, 0.12, 0.07, 0.4, body, "body")
    sketch.ellipse(0.0, -0.3, 0.085, 0.09, shade(body, 1.12), "body")
    for y in (0.05, 0.18, 0.31):
        sketch.box(-0.055, y, 0.055, y + 0.03, shade(body, 1.35), "body")


def tree(rng: Draws, sketch: Sketch) -> None:
    """Draw a tree: broad-leaved, conifer or palm, in any season."""
    bark = rng.pick(((104, 76, 54), (132, 98, 70), (86, 68, 58), (150, 126, 104), (72, 56, 48)))
    greens = ((92, 140, 76), (62, 114, 70), (132, 158, 72), (44, 96, 74), (84, 132, 104), (110, 150, 60))
    season = rng.between(0.0, 1.0)
    autumn = ((206, 120, 52), (190, 78, 52), (222, 168, 66), (150, 70, 60))
    leaf = rng.pick(greens) if season < 0.6 else rng.pick(autumn) if season < 0.85 else rng.paint()
    kind = rng.pick(("broad", "broad", "conifer", "conifer", "palm"))
    if kind == "broad":
        _broad(rng, sketch, bark, leaf)
    elif kind == "conifer":
        _conifer(rng, sketch, bark, leaf)
    else:
        _palm(rng, sketch, bark, leaf)


def _broad(rng: Draws, sketch: Sketch, bark: Colour, leaf: Colour) -> None:
    half, lean = rng.between(0.07, 0.13), rng.between(-0.12, 0.12)
    left = [(-half * 1.7, 1.0), (-half * 0.9, 0.6), (-half * 0.8 + lean, 0.0)]
    right = [(half * 0.8 + lean, 0.0), (half * 0.9, 0.6), (half * 1.7, 1.0)]
    sketch.polygon(curve(left + right, closed=False), bark, "trunk")
    for side in (-1.0, 1.0):
        sketch.stroke([(lean, 0.42), (lean + side * 0.34, 0.02)], half * 0.8, shade(bark, 0.9), "trunk")
    wide, high = rng.between(0.62, 0.85), rng.between(0.5, 0.72)
    count = rng.whole(6, 10)
    puffs = []
    for k in range(count):
        angle = 2 * math.pi * k / count + rng.between(-0.2, 0.2)
        radius = rng.between(0.26, 0.4)
        puffs.append((lean + wide * 0.66 * math.cos(angle), -0.32 + high * 0.62 * math.sin(angle), radius))
    sketch.ellipse(lean, -0.32, wide * 0.72, high * 0.76, shade(leaf, 0.82), "crown")
    for x, y, radius in sorted(puffs, key=lambda puff: -puff[1]):
        sketch.ellipse(x, y, radius, radius * 0.92, shade(leaf, 0.84), "crown")
    for x, y, radius in sorted(puffs, key=lambda puff: -puff[1]):
        sketch.ellipse(x - 0.04, y - 0.06, radius * 0.78, radius * 0.7, leaf, "crown")
    for x, y, radius in puffs[: count // 2 + 1]:
        sketch.ellipse(x - 0.1, y - 0.12, radius * 0.34, radius * 0.28, shade(leaf, 1.16), "crown")
    if rng.chance(0.35):
        fruit = rng.paint(unlike=leaf)
        for _ in range(rng.whole(5, 9)):
            angle, reach = rng.between(0.0, 2 * math.pi), rng.between(0.1, 0.85)
            x, y = lean + wide * 0.8 * reach * math.cos(angle), -0.32 + high * 0.8 * reach * math.sin(angle)
            sketch.ellipse(x, y, 0.055, 0.055, fruit, "fruit")


def _conifer(rng: Draws, sketch: Sketch, bark: Colour, leaf: Colour) -> None:
    half = rng.between(0.06, 0.11)
    sketch.box(-half, 0.5, half, 1.0, bark, "trunk")
    tiers, wide = rng.whole(3, 5), rng.between(0.5, 0.78)
    teeth = rng.chance(0.5)
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
        lit = [(0.0, base - rise), (-reach * 0.72, base - 0.06), (-reach * 0.12, base - 0.1)]
        sketch.polygon(lit, shade(leaf, 0.95 + 0.05 * k), "crown")
    if rng.chance(0.2):
        star = rng.paint(unlike=leaf)
        for k in range(5):
            angle = 2 * math.pi * k / 5
            spike = np.array([[-0.04, 0.0], [0.04, 0.0], [0.0, -0.13]])
            sketch.polygon(turned(spike, angle) + np.array([0.0, -0.9]), star, "fruit")


def _palm(rng: Draws, sketch: Sketch, bark: Colour, leaf: Colour) -> None:
    lean, half = rng.between(-0.35, 0.35), rng.between(0.05, 0.08)
    middle = curve([(0.0, 1.0), (lean * 0.3, 0.4), (lean, -0.3)], closed=False)
    taper = np.linspace(1.5, 0.85, len(middle))[:, None] * np.array([[half, 0.0]])
    sketch.polygon(np.concatenate([middle - taper, (middle + taper)[::-1]]), bark, "trunk")
    for k in range(1, len(middle) - 1, 2):
        ring = [middle[k] - taper[k], middle[k] + taper[k] + np.array([0.0, 0.02])]
        sketch.stroke(np.array(ring), 0.025, shade(bark, 0.75), "trunk", ends=False)
    fronds = rng.whole(6, 9)
    for k in range(fronds):
        angle = -math.pi * (k + 0.5) / fronds + rng.between(-0.12, 0.12)
        length, droop = rng.between(0.72, 0.95), rng.between(0.25, 0.5)
        spine = []
        for t in (0.0, 0.35, 0.7, 1.0):
            spine.append((lean + length * t * math.cos(angle), -0.3 + length * t * math.sin(angle) * 0.75 + droop * t * t))
        rib = np.array(spine)
        upper = rib + np.array([[0.0, -0.01], [0.0, -0.09], [0.0, -0.06], [0.0, 0.0]])
        under = rib + np.array([[0.0, 0.02], [0.0, 0.09], [0.0, 0.09], [0.0, 0.03]])
        blade = np.concatenate([curve(upper, closed=False, steps=4), curve(under[::-1], closed=False, steps=4)])
        sketch.polygon(blade, mix(shade(leaf, 0.75), leaf, (k % 3) / 2.0), "crown")
        sketch.stroke(rib, 0.02, shade(leaf, 0.65), "crown")
    if rng.chance(0.6):
        for x in (-0.08, 0.07, 0.0):
            sketch.ellipse(lean + x, -0.22 + abs(x) * 0.3, 0.065, 0.07, (110, 78, 52), "fruit")
