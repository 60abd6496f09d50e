"""Procedurally generated photobombed images with exact ground truth."""

from becausal.lab.scenes.backgrounds import GROUND_KINDS
from becausal.lab.scenes.dataset import contact_sheet, decode_mask, encode_mask, write_groups, write_scenes
from becausal.lab.scenes.groups import GroupScene, SceneObject, make_group
from becausal.lab.scenes.masks import pieces
from becausal.lab.scenes.objects import LABELS, NOTHING
from becausal.lab.scenes.occluders import CUTTERS, OCCLUDERS
from becausal.lab.scenes.scene import Scene, make_scene

#: The kinds of background.
BACKGROUNDS: tuple[str, ...] = tuple(GROUND_KINDS)

__all__ = [
    "BACKGROUNDS",
    "CUTTERS",
    "LABELS",
    "NOTHING",
    "OCCLUDERS",
    "GroupScene",
    "Scene",
    "SceneObject",
    "contact_sheet",
    "decode_mask",
    "encode_mask",
    "make_group",
    "make_scene",
    "pieces",
    "write_groups",
    "write_scenes",
]
