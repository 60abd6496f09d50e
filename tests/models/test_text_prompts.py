"""Models of images and texts: which prompt fits. Encoders are functions, or two small ONNX files made here."""

import json
import re
import shutil
import sys
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.core.contracts import Twin
from becausal.core.errors import BecausalError, MissingExtraError, ModelError, OptionError
from becausal.interfaces.cli.app import main
from becausal.models import as_classifier, as_matcher, bundled, load_model
from becausal.testing import MaskClassifier

WORDS = ("red", "green", "blue")
DIRECTIONS = np.eye(3)


def see(images):
    """The mean colour of each image, as an embedding."""
    return np.asarray(images).reshape(len(images), -1, 3).mean(axis=1) + 1.0


def read(texts):
    """A direction for each colour in a text; the mean of those of several colours."""
    return np.array([sum((DIRECTIONS[i] for i, word in enumerate(WORDS) if word in text), np.zeros(3)) for text in texts])


def plain(*colour, side=16):
    return np.full((side, side, 3), colour, np.uint8)


def square(*colour, ground=(40, 40, 40)):
    """A square of a colour at the top left, on dark grey."""
    image = plain(*ground)
    image[2:8, 2:8] = colour
    return image


# ---- which of several prompts


def slow_probabilities(image, prompts, scale):
    """Zero-shot labels as CLIP's paper has them, one number at a time."""
    (pixels,), logits = see(image[None]), []
    for text in prompts:
        (wanted,) = read([text])
        cosine = sum(a * b for a, b in zip(pixels, wanted, strict=True))
        cosine /= sum(a * a for a in pixels) ** 0.5 * sum(b * b for b in wanted) ** 0.5
        logits.append(scale * cosine)
    powers = [2.718281828459045 ** (logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


@given(st.tuples(*[st.integers(0, 255)] * 3), st.floats(0.5, 200.0))
@settings(max_examples=30, deadline=None)
def test_probabilities_are_a_softmax_over_the_cosine_similarities(colour, scale):
    prompts = ["a red thing", "something green", "blue", "red and blue"]
    model = as_matcher(see, read, labels=prompts, scale=scale)
    slow = slow_probabilities(plain(*colour), prompts, scale)
    assert np.allclose(model.classify(plain(*colour)[None])[0], slow, atol=1e-5 * scale)
    assert (model.info.output, model.info.labels) == ("probabilities", tuple(prompts))


def test_the_scale_is_that_of_clip_unless_another_is_given():
    own, usual = (as_matcher(see, read, labels=["red", "green"], **given) for given in ({"scale": 100.0}, {}))
    image = square(255, 0, 0)[None]
    assert np.array_equal(own.classify(image), usual.classify(image))
    assert usual.info.notes[0] == "softmax over the prompts, of 100 times their cosine similarities"


def test_the_pixels_that_make_a_prompt_fit_are_found():
    found = becausal.explain(square(255, 40, 40), as_matcher(see, read, labels=["red", "green", "blue"]), smallest=True)
    assert found.label == "red"
    assert found.visible[2:8, 2:8].any()
    assert not np.delete(found.visible, np.s_[2:8], axis=0).any()
    assert not np.delete(found.visible, np.s_[2:8], axis=1).any()


# ---- one prompt


def test_one_prompt_has_its_similarity_above_that_of_an_empty_image():
    model = as_matcher(see, read, text="red")
    rows = see(np.stack([plain(200, 10, 10), plain(128, 128, 128), plain(0, 255, 0)]))
    cosines = rows[:, 0] / np.linalg.norm(rows, axis=1)
    images = np.stack([plain(200, 10, 10), plain(128, 128, 128), plain(0, 255, 0)])
    assert np.allclose(model.classify(images)[:, 0], np.maximum(cosines - cosines[1], 0), atol=1e-6)
    assert (model.info.output, model.info.labels) == ("similarity", ("red",))


def test_the_pixels_that_make_one_prompt_fit_are_found():
    found = becausal.explain(square(255, 40, 40), as_matcher(see, read, text="red"), smallest=True, fills="black")
    assert found.label == "red"
    assert found.visible[2:8, 2:8].any()
    assert not np.delete(found.visible, np.s_[2:8], axis=0).any()
    assert not np.delete(found.visible, np.s_[2:8], axis=1).any()


def test_an_image_that_a_prompt_does_not_fit_has_nothing_to_explain():
    with pytest.raises(BecausalError, match="nothing to explain"):
        becausal.explain(plain(0, 200, 0), as_matcher(see, read, text="red"))


# ---- any two encoders


def test_encoders_of_torch():
    torch = pytest.importorskip("torch")

    class Eye(torch.nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3)) * 255 + 1.0

    weights = torch.nn.Parameter(torch.tensor(DIRECTIONS, dtype=torch.bfloat16))

    def read_torch(texts):
        return weights[: len(texts)] * 3.0

    ours = as_matcher(Eye(), read_torch, labels=["red", "green"], preprocess="unit", resize=16)
    image = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype(np.uint8)
    assert np.allclose(ours.classify(image), as_matcher(see, read, labels=["red", "green"]).classify(image), atol=1e-4)


def test_an_image_encoder_by_its_specification(tmp_path):
    (tmp_path / "eye.py").write_text("def see(images):\n    return images.reshape(len(images), -1, 3).mean(axis=1) + 1.0\n")
    spec = f"python:{tmp_path}/eye.py:see"
    models = [as_matcher(each, read, labels=["red", "green"]) for each in (spec, f"embed:{spec}", see)]
    image = square(255, 0, 0)[None]
    assert len({model.classify(image).tobytes() for model in models}) == 1
    assert models[0].info.spec == f"embed:{spec} with a text encoder"


def test_an_encoder_that_is_loaded_already():
    network = as_classifier(see, returns="multilabel-logits")
    with pytest.raises(ModelError, match="2 numbers for an image, the text encoder 3 for a prompt: use two encoders that"):
        as_matcher(lambda images: see(images)[:, :2], read, labels=["red", "green"])
    assert as_matcher(network, read, labels=["red", "green"]).info.labels == ("red", "green")


def fails(texts):
    raise RuntimeError("the dictionary\nis gone")


@pytest.mark.parametrize(
    ("images", "texts", "options", "message"),
    [
        (see, read, {}, "compares an image with prompts, say which: --labels"),
        (see, read, {"labels": ["red", "blue"], "text": "red"}, "with prompts, one or the other, not both"),
        (see, read, {"labels": ["red"]}, "two or more different prompts, not red; for one, use text"),
        (see, read, {"labels": ["red", "blue", "red"]}, "two or more different prompts, not red, blue, red"),
        (see, read, {"text": " "}, "a prompt is empty"),
        (see, read, {"labels": ["red", "blue"], "returns": "logits"}, "returns embeddings: remove returns"),
        (see, read, {"labels": ["red", "blue"], "threshold": 0.5}, "threshold is for one prompt"),
        (see, read, {"text": "red", "threshold": 0.1}, "give a threshold above it, not 0.1"),
        (see, read, {"text": "red", "scale": -1.0}, "is a number above 0 and below 1,000,000, not -1"),
        (see, read, {"text": "red", "scale": 1e308}, "a number above 0 and below 1,000,000, not 1e"),
        (see, read, {"text": "red", "like": "a.jpg"}, "like is for embed: models"),
        (see, read, {"text": "red", "endpoint": {"timeout": "1"}}, "options are for oip: and chat: models, not for python"),
        (see, read, {"text": 3}, "text is 3; expected a text"),
        (see, read, {"labels": "a bus"}, "labels 'a bus' is no file, and one prompt: use text for it, or give two or more"),
        (see, fails, {"text": "red"}, "cannot embed 'red': RuntimeError: the dictionary is gone"),
        (see, lambda texts: [1.0] * 3, {"text": "red"}, r"float64 of shape \(3,\); expected finite numbers, \(1, d\)"),
        (see, lambda texts: [["a"]], {"text": "red"}, r"<U1 of shape \(1, 1\)"),
        (see, lambda texts: np.full((1, 3), np.nan), {"text": "red"}, r"float64 of shape \(1, 3\); expected finite"),
        (7, read, {"text": "red"}, "not int"),
        ("python:missing.py:see", read, {"text": "red"}, "there is no file missing.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(images, texts, options, message):
    with pytest.raises(BecausalError, match=message):
        as_matcher(images, texts, **options)


def test_text_is_refused_by_other_models():
    for spec in ("bundled", "bundled:detector", "net.onnx"):
        with pytest.raises(OptionError, match="text is for clip: models, not for"):
            load_model(spec, text="a red bus")


def test_the_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    pytest.importorskip("torch")
    with pytest.raises(MissingExtraError, match=re.escape('pip install ".[hf]"')):
        load_model("clip:somewhere", text="a red bus")


# ---- the bundled pair: loaded from two files, here random ones

VOCABULARY = ["", "?", "a", "bus", "red", "sky"]
LENGTH, WIDTH = 6, 8


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two encoders as ONNX files in the place of the bundled ones; their weights."""
    onnx = pytest.importorskip("onnx")
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    rng = np.random.default_rng(0)
    seen, meant = (rng.normal(size=(rows, WIDTH)).astype(np.float32) for rows in (48, len(VOCABULARY)))
    meant[0] = 0.0

    def save(name, nodes, entry, output, tables, properties):
        tables = [onnx.numpy_helper.from_array(table, key) for key, table in tables.items()]
        graph = onnx.helper.make_graph(nodes, "g", [entry], [output], tables)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
        onnx.helper.set_model_props(model, properties)
        onnx.save(model, tmp_path / name)

    pooled = [
        node("AveragePool", ["input"], ["pooled"], kernel_shape=[32, 32], strides=[32, 32]),
        node("Flatten", ["pooled"], ["flat"]),
        node("MatMul", ["flat", "seen"], ["embedding"]),
    ]
    summed = [node("Gather", ["meant", "words"], ["found"]), node("ReduceSum", ["found", "one"], ["embedding"], keepdims=0)]
    images = value("input", onnx.TensorProto.FLOAT, ["n", 3, 128, 128])
    words, made = (
        value("words", onnx.TensorProto.INT64, ["n", LENGTH]),
        value("embedding", onnx.TensorProto.FLOAT, ["n", WIDTH]),
    )
    save("clip_image.onnx", pooled, images, made, {"seen": seen}, {})
    properties = {"vocabulary": json.dumps(VOCABULARY), "scale": "7.5"}
    save("clip_text.onnx", summed, words, made, {"meant": meant, "one": np.array([1])}, properties)
    shutil.copy(str(files("becausal.models.bundled") / "labels.txt"), tmp_path)
    monkeypatch.setattr(bundled, "files", lambda package: tmp_path)
    return seen, meant


def embed_slowly(image, seen):
    values = image.astype(np.float64) / 127.5 - 1.0
    pooled = [
        values[32 * r : 32 * r + 32, 32 * c : 32 * c + 32, k].mean() for k in range(3) for r in range(4) for c in range(4)
    ]
    row = pooled @ seen.astype(np.float64)
    return row / np.linalg.norm(row)


def test_the_bundled_pair_is_asked_which_prompt_fits(pair):
    seen, meant = pair
    image = np.random.default_rng(1).integers(0, 256, (128, 128, 3)).astype(np.uint8)
    model = load_model("bundled:clip", labels="a red bus,RED Sky!")
    texts = [meant[[2, 4, 3]].sum(axis=0), meant[[4, 5]].sum(axis=0)]
    logits = [7.5 * embed_slowly(image, seen) @ text / np.linalg.norm(text) for text in texts]
    assert np.allclose(model.classify(image[None])[0], np.exp(logits) / np.exp(logits).sum(), atol=1e-5)
    info = model.info
    assert (info.spec, info.kind, info.labels) == ("bundled:clip", "onnx", ("a red bus", "RED Sky!"))
    assert info.geometry.grid == (128, 128)
    assert info.normalisation.startswith("tf")
    assert len(info.sha256) == 64


def test_words_that_are_not_in_the_vocabulary_are_one_word(pair):
    one, other, third = (load_model("bundled:clip", text=text) for text in ("a red zebra", "A red, ÄÖ yak", "red a"))
    images = (
        np.random.default_rng(2).integers(0, 256, (9, 3)).astype(np.uint8)[:, None, None, :].repeat(128, 1).repeat(128, 2)
    )
    assert np.array_equal(one.classify(images), other.classify(images))
    assert not np.allclose(one.classify(images), third.classify(images), atol=0.01)
    assert one.info.notes[0] == "words that the model does not know: zebra"
    assert other.info.notes[0] == "words that the model does not know: äö, yak"
    choices = load_model("bundled:clip", labels=["a red yak, a yak", "a bus", "sky yeti"])
    assert "words that the model does not know: yak, yeti" in choices.info.notes
    assert not any("does not know" in note for note in third.info.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "zebra, yak"}, "knows no word of the prompt 'zebra, yak'; it knows a, bus, red, sky"),
        ({"text": "123"}, "knows no word of the prompt '123'"),
        ({"text": "a red bus a red bus a"}, "has 7 words, and the model reads 6 at most: shorten it"),
        ({}, "say which: --labels"),
        ({"labels": "a bus"}, "labels 'a bus' is no file, and one prompt: use text for it, or give two or more"),
        ({"text": "bus", "device": "abacus"}, "abacus"),
    ],
)
def test_prompts_the_bundled_pair_cannot_read(pair, options, message):
    with pytest.raises(BecausalError, match=message):
        load_model("bundled:clip", **options)


def test_the_image_encoder_alone_compares_images(pair, tmp_path):
    seen, _ = pair
    rng = np.random.default_rng(3)
    image, other = rng.integers(0, 256, (2, 128, 128, 3)).astype(np.uint8)
    Image.fromarray(other).save(tmp_path / "other.png")
    model = load_model("embed:bundled:clip", like=tmp_path / "other.png")
    grey = embed_slowly(np.full((128, 128, 3), 128, np.uint8), seen)
    wanted = embed_slowly(other, seen)
    above = embed_slowly(image, seen) @ wanted - max(grey @ wanted, 0.0)
    assert model.classify(image[None])[0, 0] == pytest.approx(max(above, 0.0), abs=1e-5)
    assert model.info.spec == "embed:bundled:clip"


def test_a_file_of_the_pair_that_is_missing(pair, tmp_path):
    (tmp_path / "clip_text.onnx").unlink()
    with pytest.raises(ModelError, match="bundled:clip is missing from this installation: reinstall becausal"):
        load_model("bundled:clip", text="a red bus")


def test_an_explanation_of_the_pair_is_saved_and_verified(pair, tmp_path, monkeypatch, capsys, without_figures):
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(4).integers(0, 256, (4, 4, 3)).astype(np.uint8).repeat(32, axis=0).repeat(32, axis=1)
    Image.fromarray(pixels).save("photo.png")
    prompts = ["--model", "bundled:clip", "--labels", "a red bus,a sky"]
    assert main(["explain", "photo.png", *prompts]) == 0
    assert main(["verify", "becausal-out/photo"]) == 0
    assert "all" in capsys.readouterr().out.splitlines()[-1]
    saved = json.loads((tmp_path / "becausal-out/photo/explanation.json").read_text())
    assert saved["origin"]["loading"] == {"labels": ["a red bus", "a sky"]}
    assert main(["batch", "photo.png", *prompts, "--out", "run"]) == 0


# ---- an image encoder on a GPU: batches in the background, and a twin


def shown(visible):
    return 0.1 + 0.8 * visible[:, 2:4, 2:5].mean(axis=(1, 2))


class Background:
    """An image encoder with two numbers, whose batches may be in flight. other: the function of its twin."""

    def __init__(self, depth, other=None):
        self.model = MaskClassifier(shown, depth=depth)
        self.info, self.batch_size, self.fixed_sizes, self.depth = self.model.info, self.model.batch_size, (), depth
        self.stage, self.ask, self.classify, self.submit = (
            self.model.stage, self.model.ask, self.model.classify, self.model.submit
        )  # fmt: skip
        self.other, self.dropped = None if other is None else MaskClassifier(other, depth=depth), 0

    def find_twin(self):
        return None if self.other is None else Twin("a toy", 0.05, self.other.ask, self.other.submit)

    def drop_twin(self):
        self.other, self.dropped = None, self.dropped + 1


def ask_background(encoder):
    model = as_matcher(encoder, lambda texts: np.eye(2)[: len(texts)], labels=["elsewhere", "here"], scale=4)
    return becausal.explain(np.zeros((8, 8, 3), np.uint8), model, target="here", smallest=True)


@pytest.mark.parametrize("depth", [0, 2])
def test_batches_of_the_image_encoder_may_be_in_flight(depth):
    encoder = Background(depth)
    found = ask_background(encoder)
    assert as_matcher(encoder, lambda texts: np.eye(2), labels=["a", "b"]).depth == depth
    assert found.visible[2:4, 2:5].any()
    assert not np.delete(np.delete(found.visible, np.s_[2:4], 0), np.s_[2:5], 1).any()
    assert np.array_equal(found.visible, ask_background(Background(0)).visible)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_twin_of_the_image_encoder_guides_the_search(depth):
    found = ask_background(Background(depth, shown))
    assert any(note.startswith("a toy guided the search") for note in found.notes)
    assert np.array_equal(found.visible, ask_background(Background(0)).visible)
    wrong = Background(depth, lambda visible: np.full(len(visible), 0.9))
    assert np.array_equal(ask_background(wrong).visible, found.visible)
    assert wrong.dropped == 1
