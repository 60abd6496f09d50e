"""The bundled classifier: both forms agree, it classifies scenes correctly, and gradient methods can use it."""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

import becausal.models.bundled
from becausal.scenes import LABELS, NOTHING, Scene, make_scene

FOLDER = Path(becausal.models.bundled.__file__).parent
FILES = ("scenes.onnx", "labels.txt")
DEMO = ("demo.png", "demo_occluder.png", "demo.json")

#: No training has seen a seed from here on; see training/train.py.
FIRST_SEED = 50_000_000

pytestmark = pytest.mark.skipif(
    not all((FOLDER / name).is_file() for name in FILES),
    reason="the bundled classifier is not trained yet: run training/train.py",
)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_demo = pytest.mark.skipif(
    not all((FOLDER / name).is_file() for name in DEMO), reason="the demo image is not chosen yet"
)


@cache
def clean_scenes(count: int) -> tuple[Scene, ...]:
    return tuple(make_scene(FIRST_SEED + k, occluder="none") for k in range(count))


@cache
def covered_scenes() -> tuple[Scene, ...]:
    return tuple(make_scene(FIRST_SEED + k, cover=(0.1, 0.4)) for k in range(100))


@cache
def session() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(FOLDER / "scenes.onnx"), options, providers=["CPUExecutionProvider"])


def ask(images: np.ndarray[Any, Any], output: str = "probs") -> np.ndarray[Any, Any]:
    """The output of the ONNX file, (n, 13), for images (n, 128, 128, 3)."""
    scaled = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(127.5) - np.float32(1)
    answers: np.ndarray[Any, Any] = session().run([output], {"input": np.ascontiguousarray(scaled)})[0]
    return answers


def stack(scenes: tuple[Scene, ...]) -> np.ndarray[Any, Any]:
    return np.stack([scene.image for scene in scenes])


def test_the_files_are_small_and_name_their_labels() -> None:
    assert (FOLDER / "scenes.onnx").stat().st_size <= 3_000_000
    assert sum((FOLDER / name).stat().st_size for name in FILES) <= 5_000_000
    assert tuple((FOLDER / "labels.txt").read_text(encoding="utf-8").splitlines()) == LABELS
    described = session().get_modelmeta().custom_metadata_map
    assert tuple(described["labels"].splitlines()) == LABELS
    assert described["license"] == "Apache-2.0"


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_it_knows_clean_scenes(count: int) -> None:
    scenes = clean_scenes(count)
    right = ask(stack(scenes)).argmax(axis=1) == [scene.label_index for scene in scenes]
    assert right.mean() >= 0.95


def test_it_knows_photobombed_scenes() -> None:
    scenes = covered_scenes()
    right = ask(stack(scenes)).argmax(axis=1) == [scene.label_index for scene in scenes]
    assert right.mean() >= 0.85


def test_probabilities_are_those_of_the_logits() -> None:
    images = stack(covered_scenes()[:20])
    probs, logits = ask(images), ask(images, "logits").astype(np.float64)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(probs, raised / raised.sum(axis=1, keepdims=True), atol=1e-5)


def test_an_answer_does_not_depend_on_the_batch() -> None:
    images = stack(covered_scenes()[:16])
    one_by_one = np.concatenate([ask(image[None]) for image in images])
    np.testing.assert_allclose(ask(images), one_by_one, atol=1e-5)


@pytest.mark.parametrize("level", [0, 64, 128, 192, 255])
def test_a_flat_picture_shows_nothing(level: int) -> None:
    probs = ask(np.full((1, 128, 128, 3), level, dtype=np.uint8))[0]
    assert LABELS[int(probs.argmax())] == NOTHING


@needs_torch
def test_torch_and_onnx_agree() -> None:
    import torch

    from becausal.scenes.network import load_network, to_input

    images = stack(covered_scenes())
    with torch.no_grad():
        logits = load_network()(to_input(images))
        probs = torch.softmax(logits, dim=1)
    assert np.abs(logits.numpy() - ask(images, "logits")).max() <= 1e-4
    assert np.abs(probs.numpy() - ask(images)).max() <= 1e-4


@needs_torch
@pytest.mark.parametrize("name", ["LRP", "DeepLift", "GuidedBackprop", "IntegratedGradients"])
# captum warns that it hooks activations, and that it asks for gradients: both are wanted here.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradient_methods_run_on_the_torch_form(name: str) -> None:
    attr = pytest.importorskip("captum.attr")
    from becausal.scenes.network import load_network, to_input

    scenes = [scene for scene in covered_scenes() if scene.label != NOTHING][:4]
    labels = [scene.label_index for scene in scenes]
    method = getattr(attr, name)(load_network())
    inputs = to_input(stack(tuple(scenes))).requires_grad_()
    options = {"n_steps": 16} if name == "IntegratedGradients" else {}
    found = method.attribute(inputs, target=labels, **options).detach().numpy()
    assert found.shape == (4, 3, 128, 128)
    assert np.isfinite(found).all()
    # Not flat, and denser on the object than elsewhere: the method reached the image through every layer.
    strength = np.abs(found).sum(axis=1)
    assert (strength.max(axis=(1, 2)) > 0).all()
    inside = np.mean([own[scene.visible].mean() for scene, own in zip(scenes, strength, strict=True)])
    outside = np.mean([own[~scene.visible].mean() for scene, own in zip(scenes, strength, strict=True)])
    assert inside > outside


@needs_torch
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_deeplift_adds_up_to_the_change_of_the_logit() -> None:
    attr = pytest.importorskip("captum.attr")
    import torch

    from becausal.scenes.network import load_network, to_input

    scenes = [scene for scene in covered_scenes() if scene.label != NOTHING][:2]
    labels = [scene.label_index for scene in scenes]
    network = load_network()
    inputs = to_input(stack(tuple(scenes)))
    start = torch.zeros_like(inputs)
    found = attr.DeepLift(network).attribute(inputs, start, target=labels)
    with torch.no_grad():
        change = (network(inputs) - network(start))[[0, 1], labels]
    np.testing.assert_allclose(found.sum((1, 2, 3)).detach().numpy(), change.numpy(), atol=1e-3)


@needs_demo
def test_the_demo_is_the_scene_it_says_it_is() -> None:
    told = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))
    scene = make_scene(**told["make_scene"])
    with Image.open(FOLDER / "demo.png") as image, Image.open(FOLDER / "demo_occluder.png") as occluder:
        assert np.array_equal(np.asarray(image), scene.image)
        assert np.array_equal(np.asarray(occluder), scene.occluder.astype(np.uint8) * 255)
    assert told["label"] == scene.label
    assert told["seed"] == scene.seed
    assert 0.25 <= scene.cover <= 0.4
    probs = ask(scene.image[None])[0]
    assert LABELS[int(probs.argmax())] == scene.label
    assert probs.max() >= 0.9
