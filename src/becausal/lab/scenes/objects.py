"""The object classes of the generated scenes, and their poses."""

import math
from dataclasses import dataclass

import numpy as np

from becausal.lab.scenes.objects_built import clock, house, traffic_light
from becausal.lab.scenes.objects_nature import butterfly, fish, tree
from becausal.lab.scenes.objects_things import key, mug, umbrella
from becausal.lab.scenes.objects_vehicles import bus, plane, sailboat
from becausal.lab.scenes.palette import between, chance
from becausal.lab.scenes.sketch import Drawing, Pose

NOTHING = "nothing"


@dataclass(frozen=True)
class ObjectClass:
    """How a class is drawn: the drawing function, and the largest rotation in degrees."""

    draw: Drawing
    turn: float


KINDS: dict[str, ObjectClass] = {
    "bus": ObjectClass(bus, 12.0),
    "sailboat": ObjectClass(sailboat, 14.0),
    "house": ObjectClass(house, 10.0),
    "fish": ObjectClass(fish, 30.0),
    "butterfly": ObjectClass(butterfly, 50.0),
    "mug": ObjectClass(mug, 16.0),
    "clock": ObjectClass(clock, 14.0),
    "umbrella": ObjectClass(umbrella, 32.0),
    "key": ObjectClass(key, 180.0),
    "plane": ObjectClass(plane, 45.0),
    "tree": ObjectClass(tree, 9.0),
    "traffic light": ObjectClass(traffic_light, 14.0),
}

#: All labels in the order of the bundled classifier's outputs; the last one stands for a scene without an object.
LABELS: tuple[str, ...] = (*KINDS, NOTHING)


def draw_pose(rng: np.random.Generator, label: str) -> Pose:
    """Draw a random pose; only the rotation depends on the label."""
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
