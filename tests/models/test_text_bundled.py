"""The bundled model of images and texts: which pixels a text fits, in scenes whose objects are known."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import becausal
from becausal.models import bundled, load_model
from becausal.scenes import LABELS, NOTHING, make_group, make_scene

FOLDER = Path(bundled.__file__).parent
EMPTY = "an empty scene"
PROMPTS = tuple(f"a photo of a {label}" for label in LABELS if label != NOTHING)

pytestmark = pytest.mark.skipif(
    not all((FOLDER / name).is_file() for name in ("clip_image.onnx", "clip_text.onnx")),
    reason="the bundled model of images and texts is not trained yet: run training/dual_encoder.py",
)


@cache
def model(*labels, text=None):
    return load_model("bundled:clip", labels=labels or None, text=text, threads=1)


def share_on(visible, place):
    return np.count_nonzero(visible & place) / np.count_nonzero(visible)


def test_what_is_enough_for_the_best_prompt_is_on_the_object():
    """As a mean: a set may touch what is in front of the object."""
    shares = []
    for seed in range(190_000_100, 190_000_110):
        scene = make_scene(seed)
        if scene.label != NOTHING and model(*PROMPTS, EMPTY).classify(scene.image[None]).argmax() == LABELS.index(
            scene.label
        ):
            found = becausal.explain(scene.image, model(*PROMPTS, EMPTY), smallest=True, max_calls=600)
            shares.append(share_on(found.visible, scene.visible))
    assert len(shares) >= 5
    assert np.mean(shares) > 0.7


def test_two_texts_for_one_image_have_their_own_pixels():
    """The scene of docs/tasks/text.md: each text has its core on its own object, none of it on the other one."""
    scene = make_group(1061)
    light, house = scene.objects
    for own, other in ((light, house), (house, light)):
        found = becausal.explain(scene.image, model(text=f"a {own.label}"), max_calls=1_000)
        core = found.on_original(found.levels[0].visible)
        assert share_on(core, own.visible) > 0.8
        assert not (core & other.visible).any()


def test_the_image_encoder_compares_images(tmp_path):
    from PIL import Image

    scenes = [make_scene(190_000_200 + k, label=label, occluder="none") for k, label in enumerate(("mug", "mug", "house"))]
    Image.fromarray(scenes[0].image).save(tmp_path / "mug.png")
    alike = load_model("embed:bundled:clip", like=tmp_path / "mug.png", threads=1)
    other_mug, house = alike.classify(np.stack([scene.image for scene in scenes[1:]]))[:, 0]
    assert other_mug > house
