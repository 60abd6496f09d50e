"""Procedurally generated photobombed images with exact ground truth."""

from becausal.scenes.backgrounds import GROUND_KINDS
from becausal.scenes.dataset import contact_sheet, decode_mask, encode_mask, write_groups, write_scenes
from becausal.scenes.occluders import CUTTERS, OCCLUDERS, pieces
from becausal.scenes.scene import LABELS, NOTHING, GroupScene, Scene, SceneObject, make_group, make_scene

#: The kinds of background.
BACKGROUNDS: tuple[str, ...] = tuple(GROUND_KINDS)

__all__ = [
    "BACKGROUNDS", "CUTTERS", "LABELS", "NOTHING", "OCCLUDERS", "GroupScene", "Scene", "SceneObject", "contact_sheet",
    "decode_mask", "encode_mask", "make_group", "make_scene", "pieces", "write_groups", "write_scenes",
]  # fmt: skip
