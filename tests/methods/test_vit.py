"""The bundled vision transformer, and gradient methods on transformers, its own and those of transformers and timm."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import becausal.models.bundled
from becausal import load_model
from becausal.core.contracts import Classifier, Done, Finding, step
from becausal.core.errors import ModelError, OptionError
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.images.fills import make_background
from becausal.interfaces.cli.app import main
from becausal.interfaces.serve.page import available_methods
from becausal.methods import make_explainer
from becausal.scenes import LABELS, NOTHING, Scene, make_scene

FOLDER = Path(becausal.models.bundled.__file__).parent
FIRST_SEED = 50_000_000  # no training has seen a seed from here on; see training/vit.py

pytestmark = pytest.mark.skipif(
    not (FOLDER / "vit.onnx").is_file(),
    reason="the vision transformer is not trained yet: run training/vit.py",
)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_captum = pytest.mark.skipif(find_spec("captum") is None, reason="captum is not installed")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    if find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def vit() -> Classifier:
    return load_model("bundled:vit", threads=1)


@cache
def scenes(count: int) -> tuple[Scene, ...]:
    return tuple(make_scene(FIRST_SEED + k) for k in range(count))


def objects(count: int) -> list[Scene]:
    """Scenes with an object that the model classifies correctly."""
    known = [scene for scene in scenes(80)[: 2 * count + 10] if scene.label != NOTHING]
    answers = vit().classify(np.stack([scene.image for scene in known])).argmax(axis=1)
    return [scene for scene, answer in zip(known, answers, strict=True) if answer == scene.label_index][:count]


def pose(pixels: Any, label_id: int, model: Classifier) -> Problem:
    background = make_background("grey", pixels, rng=np.random.default_rng(0))
    return Problem(pixels, (background,), Target(label_id), model=model)


def find(name: str, problem: Problem, **options: Any) -> Finding:
    """The finding of a method that makes no model calls."""
    state = step(make_explainer(name, options).search(problem, np.random.default_rng(0)), None)
    assert isinstance(state, Done)
    finding: Finding = state.result
    return finding


# The stored files


def test_the_files_are_small_and_the_model_says_what_it_is() -> None:
    assert (FOLDER / "vit.onnx").stat().st_size <= 3_000_000
    assert vit().info.spec == "bundled:vit"
    assert vit().info.labels == LABELS
    assert vit().info.notes[0] == "the model is the bundled vision transformer"
    assert vit().info.sha256 != load_model("bundled", threads=1).info.sha256


@needs_torch
def test_torch_and_onnx_agree() -> None:
    import onnxruntime
    import torch

    from becausal.models.bundled.network import load_vit
    from becausal.scenes.network import to_input

    inputs = to_input(np.stack([scene.image for scene in scenes(40)]))
    session = onnxruntime.InferenceSession(str(FOLDER / "vit.onnx"), providers=["CPUExecutionProvider"])
    logits, probs = session.run(["logits", "probs"], {"input": inputs.numpy()})
    with torch.no_grad():
        ours = load_vit()(inputs)
    assert np.abs(ours.numpy() - logits).max() < 1e-3
    assert np.abs(torch.softmax(ours, 1).numpy() - probs).max() < 1e-4


def test_it_classifies_unseen_scenes() -> None:
    answers = vit().classify(np.stack([scene.image for scene in scenes(80)])).argmax(axis=1)
    assert (answers == [scene.label_index for scene in scenes(80)]).mean() >= 0.97


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_flat_image_shows_nothing(level: int) -> None:
    scores = vit().classify(np.full((1, 128, 128, 3), level, np.uint8))[0]
    assert LABELS[int(scores.argmax())] == NOTHING


def test_a_wrong_variant_lists_the_right_ones() -> None:
    with pytest.raises(ModelError, match=r"no bundled model 'vitt': write bundled or bundled:vit"):
        load_model("bundled:vitt")


# Explanations


@pytest.mark.usefixtures("without_figures")
def test_causal_explanation_is_certified_and_can_be_verified(tmp_path: Path) -> None:
    scene = objects(3)[2]
    explanation = becausal.explain(scene.image, vit(), grain=8, holds=0.6)
    assert explanation.label == scene.label
    plain = explanation.levels[0]
    assert plain.checks.sufficient
    assert plain.checks.minimal_grain == 8
    alone = np.where(plain.visible[..., None], scene.image, 128).astype(np.uint8)
    assert int(vit().classify(alone[None]).argmax()) == scene.label_index
    certificate = explanation.level.certificate
    assert certificate is not None
    assert certificate.bound >= 0.6
    explanation.save(tmp_path / "saved")
    assert main(["verify", str(tmp_path / "saved")]) == 0


@needs_captum
@pytest.mark.parametrize(("name", "options"), [("grad-cam", {}), ("ig", {"steps": 8})])
def test_maps_point_at_the_object(name: str, options: dict[str, Any]) -> None:
    """Of as many top pixels as the object has, more lie on it than by chance."""
    found, chance = [], []
    for scene in objects(12):
        saliency = find(name, pose(scene.image, scene.label_index, vit()), **options).saliency
        assert saliency.shape == scene.visible.shape
        top = np.argsort(-saliency, axis=None, kind="stable")[: int(scene.visible.sum())]
        found.append(scene.visible.ravel()[top].mean())
        chance.append(scene.visible.mean())
    assert np.mean(found) > 1.5 * np.mean(chance), (found, chance)


@needs_captum
def test_ig_is_complete() -> None:
    import torch

    scene = objects(1)[0]
    problem = pose(scene.image, scene.label_index, vit())
    module, to_input = vit().torch_form()  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = module(to_input(np.stack([problem.view, problem.background])))[:, scene.label_index]
    total = find("ig", problem, steps=100, sign="signed").saliency.sum()
    assert total == pytest.approx(float(logits[0] - logits[1]), rel=0.05)


@needs_captum
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captum_and_its_interface_run_on_the_torch_form() -> None:
    import captum.attr

    from becausal.interfaces.captum import CausalAttribution
    from becausal.models.bundled.network import load_vit
    from becausal.scenes.network import to_input

    scene = objects(1)[0]
    network, inputs = load_vit(), to_input(scene.image[None])
    layers = captum.attr.LayerGradientXActivation(network, network.blocks[5].norm1)
    assert layers.attribute(inputs, target=scene.label_index).shape == (1, 64, 128)
    maps = CausalAttribution(network).attribute(inputs, target=scene.label_index, max_calls=150)
    assert maps.shape == inputs.shape
    assert float(maps.std()) > 0


# Transformers of others


@cache
def build(kind: str) -> Classifier:
    """A transformer of two blocks with random weights: 16 patches, and class tokens unless it takes the mean."""
    import torch

    from becausal.models import as_classifier

    torch.manual_seed(0)
    sizes = {"image_size": 64, "patch_size": 16, "num_labels": 5, "num_hidden_layers": 2}
    widths = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    if kind == "timm":
        timm = pytest.importorskip("timm")
        module = timm.models.VisionTransformer(img_size=64, patch_size=16, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    else:
        transformers = pytest.importorskip("transformers")
        module = getattr(transformers, f"{kind}ForImageClassification")(
            getattr(transformers, f"{kind}Config")(**sizes, **widths)
        )
    square = "squash:64x64/64x64"
    return as_classifier(module.eval(), preprocess="tf", resize=square, returns="logits")


def noise() -> Any:
    return np.random.default_rng(1).integers(0, 256, (64, 64, 3)).astype(np.uint8)


@pytest.mark.libraries
@needs_captum
@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ("ViT", "vit.layers.1.layernorm_before"), ("DeiT", "deit.layers.1.layernorm_before"),
        ("Dinov2", "dinov2.encoder.layer.1.norm1"), ("timm", "blocks.1.norm1"),
    ],
)  # fmt: skip
def test_grad_cam_takes_tokens_of_any_transformer(kind: str, layer: str) -> None:
    problem = pose(noise(), 1, build(kind))
    finding = find("grad-cam", problem)
    assert finding.notes == (f"grad-cam used the layer {layer} (LayerNorm)",)
    assert finding.saliency.shape == (64, 64)
    assert np.array_equal(finding.saliency, find("grad-cam", problem, layer=layer).saliency)
    with pytest.raises(OptionError, match=r"no layer 'head' with spatial output; it has .*norm"):
        find("grad-cam", problem, layer="head")


@needs_captum
@pytest.mark.parametrize(
    "kind", ["bundled:vit", *(pytest.param(kind, marks=pytest.mark.libraries) for kind in ("ViT", "timm"))]
)
@pytest.mark.parametrize("name", ["deeplift", "lrp", "rap"])
def test_methods_without_rules_for_transformers_refuse_them(name: str, kind: str) -> None:
    model = vit() if kind == "bundled:vit" else build(kind)
    pixels = scenes(1)[0].image if kind == "bundled:vit" else noise()
    with pytest.raises(ModelError, match=rf"the method {name} has no rule for the layer .*norm.* \(LayerNorm\): use ig"):
        find(name, pose(pixels, 1, model))


@needs_captum
def test_the_web_page_offers_gradient_methods() -> None:
    assert {"grad-cam", "ig"} <= set(available_methods(vit()))


@needs_captum
@pytest.mark.parametrize("kind", ["bundled:vit", pytest.param("ViT", marks=pytest.mark.libraries)])
def test_guided_backpropagation_needs_a_relu(kind: str) -> None:
    model = vit() if kind == "bundled:vit" else build(kind)
    pixels = scenes(1)[0].image if kind == "bundled:vit" else noise()
    with pytest.raises(ModelError, match="gbp needs ReLU layers, and this model has none"):
        find("gbp", pose(pixels, 1, model))
