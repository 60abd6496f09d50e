"""Colours of the generated scenes, and the random draws that all drawings use."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Colour = tuple[int, int, int]
Item = TypeVar("Item")

WHITE: Colour = (246, 244, 238)
INK: Colour = (34, 36, 44)

#: Colours of objects, props and occluders; all classes share this list.
PAINTS: tuple[Colour, ...] = (
    (200, 62, 54), (226, 109, 84), (238, 150, 74), (240, 189, 86), (214, 166, 46), (148, 158, 66),
    (94, 142, 82), (48, 112, 84), (46, 138, 136), (92, 172, 186), (72, 138, 196), (50, 88, 150),
    (44, 58, 104), (98, 84, 152), (146, 96, 152), (196, 96, 134), (228, 146, 158), (140, 84, 58),
    (178, 130, 92), (232, 220, 196), (242, 240, 232), (160, 164, 168), (104, 110, 120), (58, 60, 68),
)  # fmt: skip

#: Softer background colours, shared by all classes, so that no background reveals the label.
GROUNDS: tuple[Colour, ...] = (
    (214, 206, 190), (196, 204, 206), (176, 196, 214), (150, 180, 204), (122, 152, 176), (186, 198, 170),
    (142, 164, 124), (108, 134, 104), (200, 178, 146), (176, 146, 116), (138, 116, 98), (214, 188, 178),
    (196, 156, 148), (168, 158, 184), (126, 122, 150), (92, 104, 124), (70, 82, 92), (96, 86, 82),
    (230, 226, 218), (158, 158, 154), (120, 124, 122), (224, 206, 160), (104, 142, 150), (60, 66, 78),
)  # fmt: skip


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number uniformly from [low, high)."""
    return low + (high - low) * float(rng.random())


def chance(rng: np.random.Generator, probability: float) -> bool:
    """True with the given probability."""
    return float(rng.random()) < probability


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw an integer from low to high, both included."""
    return int(rng.integers(low, high + 1))


def pick(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    """Draw one of the items uniformly."""
    return items[int(rng.integers(0, len(items)))]


def shade(colour: Colour, factor: float) -> Colour:
    """Darken (factor below 1) or lighten (above 1) a colour."""
    if factor <= 1.0:
        return _byte(colour[0] * factor), _byte(colour[1] * factor), _byte(colour[2] * factor)
    return mix(colour, (255, 255, 255), min(1.0, factor - 1.0))


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Blend two colours; `share` is the weight of the second."""
    red, green, blue = (a + (b - a) * share for a, b in zip(first, second, strict=True))
    return _byte(red), _byte(green), _byte(blue)


def paint(rng: np.random.Generator, *, unlike: Colour | None = None) -> Colour:
    """Draw an object colour with a small jitter, clearly different from `unlike`."""
    for _ in range(8):
        colour = _jitter(rng, pick(rng, PAINTS), 14.0)
        if unlike is None or distance(colour, unlike) > 110.0:
            break
    return colour


def ground(rng: np.random.Generator) -> Colour:
    """Draw a background colour with a small jitter."""
    return _jitter(rng, pick(rng, GROUNDS), 16.0)


def distance(first: Colour, second: Colour) -> float:
    """Distance between two colours: the sum of the channel differences, 0 to 765."""
    return float(sum(abs(a - b) for a, b in zip(first, second, strict=True)))


def _jitter(rng: np.random.Generator, colour: Colour, spread: float) -> Colour:
    common = between(rng, -spread, spread)
    own = [between(rng, -spread, spread) * 0.6 for _ in range(3)]
    return _byte(colour[0] + common + own[0]), _byte(colour[1] + common + own[1]), _byte(colour[2] + common + own[2])


def _byte(value: float) -> int:
    return int(min(255.0, max(0.0, value + 0.5)))
