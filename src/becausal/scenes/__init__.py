"""Generated photobombed images with exact ground truth: the public door to `becausal.lab.scenes`."""

from becausal.lab.scenes import (
    BACKGROUNDS,
    CUTTERS,
    LABELS,
    NOTHING,
    OCCLUDERS,
    GroupScene,
    Scene,
    SceneObject,
    contact_sheet,
    decode_mask,
    encode_mask,
    make_group,
    make_scene,
    pieces,
    write_groups,
    write_scenes,
)

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
