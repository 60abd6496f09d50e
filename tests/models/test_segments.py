"""Networks that give every pixel a class: how each kind is loaded, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.core.errors import ModelError, OptionError
from becausal.interfaces.cli.app import main
from becausal.models import as_segmenter, load_model, segments

WEIGHTS = np.array([[0, 0, 6], [6, 0, 0], [0, 6, 0]], np.float32)  # of sky, road and grass: blue, red and green
CODE = """
import numpy as np

SIZE, LABELS = (32, 48), ["sky", "road", "grass"]

def predict(images):
    n, h, w, _ = images.shape
    means = (images / 255).reshape(n, h // 4, 4, w // 4, 4, 3).mean(axis=(2, 4))
    return 6 * np.moveaxis(means[..., [2, 0, 1]], -1, 1)

def last(images):
    return np.moveaxis(predict(images), 1, -1)

def soft(images):
    powers = np.exp(predict(images))
    return powers / powers.sum(axis=1, keepdims=True)

def one(images):
    return predict(images)[:, 1:2] - 3

def alone(images):
    return 1 / (1 + np.exp(-predict(images)[:, 1:2]))

def table(images):
    return images.mean(axis=(1, 2)) - 99.0

def nothing(images):
    return predict(images)[:, :0]

def holes(images):
    return predict(images) * np.nan

def build():
    import torch

    layer = torch.nn.Conv2d(3, 3, 4, stride=4, bias=False)
    weights = torch.zeros(3, 3, 4, 4)
    for label, channel in enumerate((2, 0, 1)):
        weights[label, channel] = 6 / 16
    layer.weight.data = weights
    return layer
"""
LABELS = "sky,road,grass"


def street():
    """Sky above grass, and a road in it, 96 x 64."""
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:32], pixels[32:], pixels[40:64, 16:48] = (60, 60, 220), (60, 200, 60), (220, 60, 60)
    return pixels


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    Image.fromarray(street()).save("street.png")
    return tmp_path


def save_onnx(path, *, side=(32, 48)):
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.zeros((3, 3, 4, 4), np.float32)
    for label, row in enumerate(WEIGHTS):
        weights[label] = row[:, None, None] / 16
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[4, 4], kernel_shape=[4, 4])],
        "segments",
        [helper.make_tensor_value_info("x", kind, ["n", 3, *side])],
        [helper.make_tensor_value_info("y", kind, ["n", 3, side[0] // 4, side[1] // 4])],
        [helper.make_tensor("w", kind, weights.shape, weights.ravel())],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def shares(model):
    return {name: round(share, 3) for _, name, share in becausal.classify(street(), model)}


EXPECTED = {"sky": 0.5, "grass": 0.375, "road": 0.125}


def test_an_onnx_file(place):
    save_onnx("net.onnx")
    model = load_model("segment:net.onnx", labels=LABELS, preprocess="unit")
    assert (model.info.output, model.info.threshold, model.info.labels) == ("segments", 0.5, ("sky", "road", "grass"))
    assert model.info.spec == "segment:onnx:net.onnx"
    assert str(model.info.geometry) == "squashed to 32x48, bilinear"  # no pixel is cut off
    assert shares(model) == EXPECTED


@pytest.mark.parametrize("spec", ["segment:python:net.py:predict", "segment:torch:net.py:build"])
def test_other_kinds_return_the_same(place, spec):
    if "torch" in spec:
        pytest.importorskip("torch")
    model = load_model(spec, labels=LABELS, preprocess="unit", resize="squash/32x48")
    if "torch" in spec:
        assert shares(model) == EXPECTED
    else:
        assert load_model(spec).info.labels == ("sky", "road", "grass")
        assert shares(load_model(spec)) == EXPECTED


def test_objects_in_memory():
    scope: dict[str, object] = {}
    exec(CODE, scope)
    predict = scope["predict"]
    assert shares(as_segmenter(predict, labels=["sky", "road", "grass"], resize="squash/32x48")) == EXPECTED
    torch = pytest.importorskip("torch")
    module = scope["build"]()
    assert isinstance(module, torch.nn.Module)
    assert shares(as_segmenter(module, labels=LABELS, preprocess="unit", resize="squash/32x48")) == EXPECTED


def test_one_map_of_logits_has_two_classes(place):
    model = load_model("segment:python:net.py:one", labels=["road"])
    assert model.info.labels == ("not road", "road")
    assert shares(model) == {"not road": 0.875, "road": 0.125}


def test_the_threshold_is_that_of_the_iou(place):
    assert load_model("segment:python:net.py:predict", threshold=0.8).info.threshold == 0.8
    (place / "net.toml").write_text("threshold = 0.7\n")
    assert load_model("segment:python:net.py:predict").info.threshold == 0.7
    for threshold in (0.0, -1.0, 1.5):
        with pytest.raises(OptionError, match="the threshold is a score above 0 and up to 1"):
            load_model("segment:python:net.py:predict", threshold=threshold)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("last", r"returns \(6, 8, 12, 3\), with classes last; expected \(n, classes, h, w\)"),
        ("soft", "returns probabilities; expected logits"),
        ("alone", "returns probabilities; expected logits"),
        ("table", r"returns scores per class, not maps of classes: load it without segment:"),
        ("nothing", r"returned an output of shape \(6, 0, 8, 12\); expected \(n, classes, h, w\)"),
    ],
)
def test_other_outputs_are_refused(place, name, message):
    labels = {"labels": None} if name != "alone" else {"labels": ["road"]}
    if name in ("last", "table", "nothing"):
        (place / "net.py").write_text(CODE.replace(', LABELS = (32, 48), ["sky", "road", "grass"]', " = (32, 48)"))
    with pytest.raises(ModelError, match=message):
        load_model(f"segment:python:net.py:{name}", **labels)


def test_options_for_other_models_are_refused(place):
    with pytest.raises(OptionError, match="reads what the network returns by itself"):
        load_model("segment:python:net.py:predict", returns="logits")
    with pytest.raises(OptionError, match="like is for embed: models"):
        load_model("segment:python:net.py:predict", like="street.png")
    with pytest.raises(ModelError, match="there are 2 labels but the model has 3 classes"):
        load_model("segment:python:net.py:predict", labels=["a", "b"])


def test_a_batch_of_large_maps_has_fewer_images(place, monkeypatch):
    whole = load_model("segment:python:net.py:predict", batch_size=16).batch_size
    monkeypatch.setattr(segments, "MOST_BYTES", 4 * 3 * 8 * 12 * 5)
    few = load_model("segment:python:net.py:predict", batch_size=16)
    assert (whole, few.batch_size) == (16, 5)
    one, other = (
        becausal.explain(street(), model, target="road", max_calls=200)
        for model in (few, load_model("segment:python:net.py:predict"))
    )
    assert np.array_equal(one.visible, other.visible)


def test_maps_that_are_no_numbers_are_refused(place, capsys):
    assert main(["explain", "street.png", "--model", "segment:python:net.py:holes", "--at", "1,1", "--out", "out"]) == 2
    assert "the model returned scores that are NaN or infinite" in capsys.readouterr().err


def test_inspect_lists_the_share_of_each_class(place, capsys):
    assert main(["inspect", "segment:python:net.py:predict", "street.png"]) == 0
    said = capsys.readouterr().out
    assert "returns        a class for every pixel; listed are their shares of the image" in said
    assert "threshold      a segment counts as found again if its IoU is at least 0.5" in said
    assert "0.3750  grass (2)" in said
    assert main(["inspect", "segment:python:net.py:predict", "street.png", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert [(top["label"], round(top["confidence"], 3)) for top in entry["top"]] == list(EXPECTED.items())


@pytest.mark.libraries
def test_a_transformers_model_from_its_folder(tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 8, 8, 8], depths=[1] * 4, num_attention_heads=[1] * 4, mlp_ratios=[1] * 4, decoder_hidden_size=8,
        id2label={0: "sky", 1: "road", 2: "grass"},
    )  # fmt: skip
    module = transformers.SegformerForSemanticSegmentation(config).eval()
    processor = transformers.SegformerImageProcessor(size={"height": 64, "width": 96})
    folder = str(tmp_path / "former")
    module.save_pretrained(folder)
    processor.save_pretrained(folder)
    model = load_model(f"segment:hf:{folder}", threads=1)
    assert (model.info.labels, model.info.notes) == (("sky", "road", "grass"), ())
    assert str(model.info.geometry) == "squashed to 64x96, bilinear"
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    with torch.inference_mode():
        logits = module(**processor(images=Image.fromarray(image), return_tensors="pt")).logits.numpy()
    assert logits.shape == (1, 3, 16, 24)
    assert model.classify(image[None]) == pytest.approx(logits, abs=1e-4)
    large = torch.nn.functional.interpolate(torch.from_numpy(logits), size=(64, 96), mode="bilinear").argmax(1)[0]
    for x, y in [(3, 5), (50, 40), (95, 63)]:
        explanation = becausal.explain(image, model, at=(x, y), max_calls=30, smallest=True, fills=["black", "white"])
        assert explanation.label_id == large[y, x]

    assert (
        shares_sum(as_segmenter(transformers.pipeline("image-segmentation", model=module, image_processor=processor))) == 1
    )
    with pytest.raises(ModelError, match="gives every pixel a class: use segment:hf:"):
        load_model(f"hf:{folder}")
    vit = transformers.ViTForImageClassification(
        transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=32)
    )
    vit.save_pretrained(tmp_path / "vit")
    with pytest.raises(ModelError, match="is ViTForImageClassification: expected a model for semantic segmentation"):
        load_model(f"segment:hf:{tmp_path / 'vit'}")


def shares_sum(model):
    return round(sum(share for _, _, share in becausal.classify(street(), model)), 3)
