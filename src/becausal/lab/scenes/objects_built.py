"""House, traffic light and clock."""

import math

import numpy as np

from becausal.lab.scenes.palette import INK, WHITE, Colour, between, chance, mix, paint, pick, shade, whole
from becausal.lab.scenes.sketch import Sketch, arc, oval, turned


def house(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a house from the front: gable or hip roof, door, windows, chimney, sometimes a wing."""
    wall, roof = pick(rng, (paint(rng), (232, 222, 204), (214, 196, 170), WHITE)), paint(rng)
    roof = roof if sum(abs(a - b) for a, b in zip(wall, roof, strict=True)) > 90 else shade(roof, 0.5)
    wide, eaves = between(rng, 0.7, 0.98), between(rng, -0.28, 0.02)
    peak = eaves - between(rng, 0.5, 0.75)
    hip = 0.0 if chance(rng, 0.6) else wide * between(rng, 0.3, 0.6)
    over = between(rng, 0.06, 0.16)
    if chance(rng, 0.7):
        x = pick(rng, (-1.0, 1.0)) * wide * between(rng, 0.35, 0.6)
        brick = mix(roof, (150, 92, 74), 0.5)
        sketch.box(x - 0.1, peak - 0.02, x + 0.1, eaves, brick, "chimney")
        sketch.box(x - 0.13, peak - 0.07, x + 0.13, peak + 0.02, shade(brick, 0.75), "chimney")
    if chance(rng, 0.3):
        side = pick(rng, (-1.0, 1.0))
        outer, inner, top = side * (wide + between(rng, 0.35, 0.5)), side * (wide - 0.1), between(rng, 0.1, 0.25)
        sketch.box(min(outer, inner), top, max(outer, inner), 0.8, shade(wall, 0.86), "walls")
        sketch.polygon(
            [(outer + side * 0.07, top + 0.02), (outer - side * 0.05, top - 0.2), (inner, top - 0.2), (inner, top + 0.02)],
            shade(roof, 0.86),
            "roof",
        )
        _window(rng, sketch, (outer + side * wide) / 2, top + 0.28, 0.1, 0.13, wall)
    sketch.box(-wide, eaves - 0.02, wide, 0.8, wall, "walls")
    if hip == 0.0:
        sketch.polygon([(-wide, eaves), (0.0, peak + 0.06), (wide, eaves)], shade(wall, 0.94), "walls")
        thick = between(rng, 0.12, 0.2)
        if chance(rng, 0.55):
            sketch.polygon([(-wide - over, eaves + 0.06), (0.0, peak), (wide + over, eaves + 0.06)], roof, "roof")
        else:
            rim = wide + over
            sketch.polygon(
                [(-rim, eaves + 0.08), (0.0, peak), (rim, eaves + 0.08), (rim - 0.1, eaves + 0.14), (0.0, peak + thick),
                 (0.1 - rim, eaves + 0.14)],
                roof, "roof",
            )  # fmt: skip
        if chance(rng, 0.5):
            sketch.ellipse(0.0, (peak + eaves) / 2 + 0.1, 0.1, 0.1, shade(wall, 0.6), "windows")
            sketch.ellipse(0.0, (peak + eaves) / 2 + 0.1, 0.07, 0.07, (176, 208, 222), "windows")
    else:
        sketch.polygon(
            [(-wide - over, eaves + 0.05), (-wide + hip, peak), (wide - hip, peak), (wide + over, eaves + 0.05)],
            roof, "roof",
        )  # fmt: skip
        for k in range(1, 4):
            y = peak + (eaves - peak) * k / 4
            reach = wide + (over - hip) + hip * k / 4 - over
            sketch.box(-reach, y, reach, y + 0.025, shade(roof, 0.85), "roof")
    _facade(rng, sketch, wide, eaves, wall)
    if chance(rng, 0.5):
        sketch.box(-wide - 0.03, 0.74, wide + 0.03, 0.82, shade(wall, 0.6), "walls")


def _facade(rng: np.random.Generator, sketch: Sketch, wide: float, eaves: float, wall: Colour) -> None:
    door = paint(rng, unlike=wall)
    slots = whole(rng, 2, 3)
    at = whole(rng, 0, slots - 1)
    height = between(rng, 0.42, 0.56)
    for k in range(slots):
        x = -wide + wide * 2.0 * (k + 0.5) / slots
        if k == at:
            half = between(rng, 0.11, 0.15)
            sketch.box(x - half - 0.03, 0.77 - height, x + half + 0.03, 0.8, shade(wall, 0.7), "door")
            sketch.box(x - half, 0.8 - height, x + half, 0.8, door, "door", 0.02)
            sketch.ellipse(x + half * 0.6, 0.8 - height * 0.45, 0.025, 0.025, (236, 206, 120), "door")
        else:
            _window(rng, sketch, x, between(rng, 0.3, 0.36), 0.16, 0.17, wall)
    if eaves < -0.12:
        for k in range(slots):
            _window(rng, sketch, -wide + wide * 2.0 * (k + 0.5) / slots, eaves + 0.2, 0.13, 0.12, wall)


def _window(
    rng: np.random.Generator, sketch: Sketch, x: float, y: float, half_wide: float, half_high: float, wall: Colour
) -> None:
    frame = WHITE if sum(wall) < 600 else shade(wall, 0.55)
    glass = pick(rng, ((150, 192, 214), (92, 124, 150), (250, 220, 140), (70, 88, 110)))
    sketch.box(x - half_wide, y - half_high, x + half_wide, y + half_high, frame, "windows")
    inset = 0.035
    sketch.box(x - half_wide + inset, y - half_high + inset, x + half_wide - inset, y + half_high - inset, glass, "windows")
    sketch.box(x - 0.015, y - half_high, x + 0.015, y + half_high, frame, "windows")
    sketch.box(x - half_wide, y - 0.015, x + half_wide, y + 0.015, frame, "windows")


def traffic_light(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a traffic light: a housing with three lamps, one of them lit, on a pole or hung."""
    case = pick(rng, ((44, 48, 54), (62, 66, 60), (38, 58, 50), (206, 164, 50), (86, 92, 100), paint(rng)))
    half = between(rng, 0.28, 0.36)
    lamp = half * between(rng, 0.62, 0.74)
    step = 2.0 * lamp * between(rng, 1.16, 1.3)
    top, bottom = -1.5 * step - 0.04, 1.5 * step + 0.04
    if chance(rng, 0.75):
        pole = pick(rng, ((112, 116, 120), (70, 74, 80), (164, 166, 162)))
        thick = between(rng, 0.07, 0.12)
        sketch.box(-thick, bottom - 0.05, thick, bottom + between(rng, 0.3, 0.9), pole, "pole")
    elif chance(rng, 0.5):
        sketch.box(-0.05, top - 0.3, 0.05, top + 0.05, (90, 94, 100), "pole")
    if chance(rng, 0.35):
        plate = pick(rng, (WHITE, INK, (230, 190, 70)))
        sketch.box(-half - 0.12, top - 0.12, half + 0.12, bottom + 0.12, plate, "housing", 0.1)
        sketch.box(-half - 0.09, top - 0.09, half + 0.09, bottom + 0.09, shade(case, 0.7), "housing", 0.08)
    sketch.box(-half, top, half, bottom, case, "housing", between(rng, 0.04, half))
    hooded, lit = chance(rng, 0.6), whole(rng, 0, 2)
    for k, hue in enumerate(((226, 60, 48), (246, 184, 52), (72, 190, 100))):
        y = (k - 1) * step
        sketch.ellipse(0.0, y, lamp * 1.12, lamp * 1.12, shade(case, 0.55), "housing")
        if k == lit:
            sketch.ellipse(0.0, y, lamp, lamp, hue, "lamps")
            sketch.ellipse(0.0, y, lamp * 0.6, lamp * 0.6, shade(hue, 1.35), "lamps")
            sketch.ellipse(-lamp * 0.2, y - lamp * 0.2, lamp * 0.25, lamp * 0.25, shade(hue, 1.7), "lamps")
        else:
            sketch.ellipse(0.0, y, lamp, lamp, shade(hue, between(rng, 0.36, 0.62)), "lamps")
            sketch.ellipse(-lamp * 0.3, y - lamp * 0.3, lamp * 0.22, lamp * 0.22, shade(hue, 0.8), "lamps")
        if hooded:
            outer = arc(0.0, y, lamp * 1.18, lamp * 1.18, math.pi, 2 * math.pi)
            inner = arc(0.0, y, lamp * 1.18, lamp * 0.78, 2 * math.pi, math.pi)
            sketch.polygon(np.concatenate([outer, inner]), shade(case, 0.42), "housing")


def clock(rng: np.random.Generator, sketch: Sketch) -> None:
    """Draw a clock with two hands: wall clock (round, square, eight-sided) or alarm clock."""
    rim = paint(rng)
    dark = chance(rng, 0.2)
    face = pick(rng, ((40, 44, 52), (54, 62, 84))) if dark else pick(rng, (WHITE, (246, 234, 206), (226, 234, 238), WHITE))
    mark = WHITE if dark else INK
    if chance(rng, 0.35):
        _alarm(rng, sketch, rim)
    shape = pick(rng, ("round", "round", "round", "square", "eight"))
    inner = between(rng, 0.76, 0.88)
    for radius, colour, part in ((1.0, rim, "rim"), (inner + 0.03, shade(rim, 0.65), "rim"), (inner, face, "face")):
        if shape == "square":
            sketch.box(-radius * 0.9, -radius * 0.9, radius * 0.9, radius * 0.9, colour, part, 0.18 * radius)
        elif shape == "eight":
            sketch.polygon(oval(0.0, 0.0, radius, radius, count=8, turn=math.pi / 8), colour, part)
        else:
            sketch.ellipse(0.0, 0.0, radius, radius, colour, part)
    style = pick(rng, ("bars", "dots", "quarters"))
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
            bar = bar * np.array([0.6, 1.0]) + np.array([0.0, 0.0])
            bar[2:, 1] = -0.82 * inner
        sketch.polygon(turned(bar, angle), mark, "ticks")
    hour_angle, minute_angle = between(rng, 0.0, 2 * math.pi), between(rng, 0.0, 2 * math.pi)
    thick = between(rng, 0.05, 0.09)
    hand = mark if chance(rng, 0.7) else paint(rng, unlike=face)
    for angle, length, width in ((hour_angle, 0.5, thick * 1.35), (minute_angle, 0.74, thick)):
        tip = np.array([[-width, 0.12], [width, 0.12], [width * 0.5, -length * inner], [-width * 0.5, -length * inner]])
        sketch.polygon(turned(tip, angle), hand, "hands")
    if chance(rng, 0.4):
        angle = between(rng, 0.0, 2 * math.pi)
        sketch.polygon(
            turned(np.array([[-0.015, 0.2], [0.015, 0.2], [0.015, -0.8 * inner], [-0.015, -0.8 * inner]]), angle),
            (206, 58, 50), "hands",
        )  # fmt: skip
    sketch.ellipse(0.0, 0.0, 0.075, 0.075, shade(hand, 0.8), "hands")


def _alarm(rng: np.random.Generator, sketch: Sketch, rim: Colour) -> None:
    metal = pick(rng, ((206, 176, 96), (186, 190, 196), shade(rim, 0.8)))
    for side in (-1.0, 1.0):
        sketch.stroke([(side * 0.5, 0.7), (side * 0.78, 1.12)], 0.14, shade(metal, 0.75), "feet")
        bell = arc(0.0, 0.0, 0.36, 0.34, math.pi, 2 * math.pi)
        sketch.stroke([(side * 0.4, -0.7), (side * 0.62, -1.0)], 0.1, shade(metal, 0.7), "bells")
        sketch.polygon(turned(bell, side * 0.6) + np.array([side * 0.6, -0.92]), metal, "bells")
    if chance(rng, 0.6):
        sketch.polygon(
            np.concatenate(
                [arc(0.0, -1.1, 0.26, 0.26, math.pi, 2 * math.pi), arc(0.0, -1.1, 0.18, 0.18, 2 * math.pi, math.pi)]
            ),
            shade(metal, 0.8), "bells",
        )  # fmt: skip
        sketch.box(-0.26, -1.12, -0.18, -0.85, shade(metal, 0.8), "bells")
        sketch.box(0.18, -1.12, 0.26, -0.85, shade(metal, 0.8), "bells")
