"""The classes of the generated scenes and how each may be posed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from becausal.scenes.objects_built import clock, house, traffic_light
from becausal.scenes.objects_nature import butterfly, fish, tree
from becausal.scenes.objects_things import key, mug, umbrella
from becausal.scenes.objects_vehicles import bus, plane, sailboat
from becausal.scenes.palette import between, chance
from becausal.scenes.sketch import Pose, Sketch

Artist = Callable[[np.random.Generator], Sketch]

NOTHING = "nothing"


@dataclass(frozen=True)
class Kind:
    """How one class is drawn: the artist, and the widest turn in degrees."""

    draw: Artist
    turn: float


KINDS: dict[str, Kind] = {
    "bus": Kind(bus, 12.0),
    "sailboat": Kind(sailboat, 14.0),
    "house": Kind(house, 10.0),
    "fish": Kind(fish, 30.0),
    "butterfly": Kind(butterfly, 50.0),
    "mug": Kind(mug, 16.0),
    "clock": Kind(clock, 14.0),
    "umbrella": Kind(umbrella, 32.0),
    "key": Kind(key, 180.0),
    "plane": Kind(plane, 45.0),
    "tree": Kind(tree, 9.0),
    "traffic light": Kind(traffic_light, 14.0),
}

#: Every label in the order of the bundled classifier's outputs; the last one is a scene without object.
LABELS: tuple[str, ...] = (*KINDS, NOTHING)


def pose_of(rng: np.random.Generator, label: str) -> Pose:
    """Draw a pose; apart from the angle it does not depend on the label."""
    share = between(rng, -1.0, 1.0)
    extent = between(rng, 0.5, 0.78)
    return Pose(
        extent=extent,
        angle=math.radians(KINDS[label].turn) * share,
        flip=chance(rng, 0.5),
        stretch=math.exp(between(rng, -0.16, 0.16)),
        shear=between(rng, -0.1, 0.1),
        wobble=between(rng, 0.0, 0.035),
        phase=(between(rng, 0.0, 6.28), between(rng, 0.0, 6.28)),
        place=(between(rng, 0.0, 1.0), between(rng, 0.0, 1.0)),
    )
