"""The bundled segmentation network: it finds the pixels of unseen scenes, and masked pixels are background."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import becausal
import becausal.models.bundled
from becausal.scenes import LABELS, NOTHING, GroupScene, make_group

FILE = Path(becausal.models.bundled.__file__).parent / "segmenter.onnx"
CLASSES = ("background", *(label for label in LABELS if label != NOTHING), "occluder")
#: No training has seen a seed from here on; see training/segmenter.py.
FIRST_SEED = 250_000_000


@cache
def scenes(count: int = 30) -> tuple[GroupScene, ...]:
    return tuple(make_group(FIRST_SEED + k) for k in range(count))


@cache
def session():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(FILE), options, providers=["CPUExecutionProvider"])


def ask(images):
    """Logits (n, 14, 48, 48) of images (n, 192, 192, 3)."""
    scaled = np.asarray(images).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(127.5) - np.float32(1)
    return session().run(["logits"], {"input": np.ascontiguousarray(scaled)})[0]


def find_pixels(images):
    """The class of each pixel, (n, 192, 192): each cell's for its 4 x 4 pixels."""
    return ask(images).argmax(axis=1).repeat(4, axis=1).repeat(4, axis=2)


def draw_truth(scene):
    """The class of each pixel, (192, 192)."""
    truth = np.zeros((scene.size, scene.size), np.intp)
    for one in scene.objects:
        truth[one.visible] = CLASSES.index(one.label)
    truth[scene.occluder] = CLASSES.index("occluder")
    return truth


def test_the_file_is_small_and_names_its_classes():
    assert FILE.stat().st_size <= 1_500_000
    described = session().get_modelmeta().custom_metadata_map
    assert tuple(json.loads(described["labels"])) == CLASSES
    assert described["license"] == "Apache-2.0"
    assert [one.type for one in (*session().get_inputs(), *session().get_outputs())] == ["tensor(float)"] * 2
    assert ask(np.zeros((3, 192, 192, 3), np.uint8)).shape == (3, len(CLASSES), 48, 48)


def test_it_finds_the_classes_of_the_pixels_of_unseen_scenes():
    found, truth = find_pixels([scene.image for scene in scenes()]), np.stack([draw_truth(scene) for scene in scenes()])
    assert (found == truth).mean() >= 0.85
    ious = [((found == k) & (truth == k)).sum() / ((found == k) | (truth == k)).sum() for k in range(len(CLASSES))]
    assert np.mean(ious) >= 0.6
    assert min(ious) >= 0.2


def test_it_finds_an_object_alone_and_calls_what_is_masked_background():
    right, background = [], []
    for scene in scenes():
        own = scene.objects[-1]
        found = find_pixels([np.where(own.visible[..., None], scene.image, np.uint8(128))])[0]
        right += [*(found == CLASSES.index(own.label))[own.visible]]
        background += [*(found == 0)[~own.visible]]
    assert np.mean(right) >= 0.7
    assert np.mean(background) >= 0.9


@pytest.mark.parametrize("level", [0, 64, 128, 192, 255])
def test_a_fully_masked_image_is_background(level):
    assert (find_pixels(np.full((1, 192, 192, 3), level, np.uint8)) == 0).all()


def test_the_same_image_has_the_same_answer_alone_and_in_company():
    images = [scene.image for scene in scenes()[:4]]
    together = ask(images)
    assert np.array_equal(together, ask(images))
    assert np.allclose(together[2], ask(images[2:3])[0], atol=1e-3)


def test_it_can_be_asked_about_segments():
    network = becausal.load_model("bundled:segmenter", threads=1)
    assert network.info.labels == CLASSES
    assert network.info.output == "segments"
    assert network.info.geometry.grid == (192, 192)
