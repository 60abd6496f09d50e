"""Similarity of two images: the score from its definition, every kind of network, and both images explained at once."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.core.errors import AnswerError, BecausalError, ModelError, OptionError, TargetError
from becausal.core.request import Request
from becausal.models import as_embedder, load_model, open_embedder
from becausal.models.loading import Loading
from becausal.models.similarity import EMPTY, unit_rows
from becausal.render.wording import as_text, describe_checks, describe_target, headline, question

QUICK = Request(method="dc-causal", options={"partitions": 4}, grain=None, confidence=0.5, fills=("grey",), max_calls=400)
NET = """
import numpy as np

SIZE = 16
calls = []

def embed(images):
    red = np.maximum(images[..., 0].astype(float) - images[..., 2], 0).mean(axis=(1, 2))
    green = np.maximum(images[..., 1].astype(float) - images[..., 2], 0).mean(axis=(1, 2))
    return np.stack([red, green, np.full(len(images), 3.0)], axis=1)

def build():
    import torch

    class Embed(torch.nn.Module):
        def forward(self, x):
            return torch.relu(torch.stack([x[:, 0] - x[:, 2], x[:, 1] - x[:, 2], 0 * x[:, 0] + 0.01], 1)).mean((2, 3))

    return Embed()
"""


def see(images):
    """How red and how green an image is, and a number that all images have."""
    own = {}
    exec(NET, own)
    return own["embed"](images)


def look(images):
    """How red the upper left corner is, and a number that all images have."""
    corner = images[:, 2:8, 2:8].astype(float)
    return np.stack([np.maximum(corner[..., 0] - 140, 0).mean(axis=(1, 2)), np.full(len(images), 9.0)], axis=1)


def square(*colour, at=(2, 2), side=16):
    """A square of a colour, 6 px wide, on dark blue."""
    image = np.full((side, side, 3), (20, 30, 90), np.uint8)
    image[at[0] : at[0] + 6, at[1] : at[1] + 6] = colour
    return image


RED, OTHER_RED, GREEN = square(250, 30, 20), square(220, 90, 30, at=(8, 7)), square(20, 240, 40)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    for name, pixels in (("a", RED), ("b", OTHER_RED), ("c", GREEN)):
        Image.fromarray(pixels).save(f"{name}.png")
    return tmp_path


# ---- the score


def slow_score(image, other, weights):
    """Cosine similarity of two images, minus what an image of 128 has where that is positive, one number at a time."""

    def embed(pixels):
        numbers = [float(number) / 255 for number in pixels.reshape(-1)]
        return [sum(w * number for w, number in zip(row, numbers, strict=True)) for row in weights.tolist()]

    def cosine(one, two):
        lengths = [sum(number**2 for number in row) ** 0.5 for row in (one, two)]
        return sum(a * b for a, b in zip(one, two, strict=True)) / (lengths[0] * lengths[1]) if all(lengths) else 0.0

    empty = cosine(embed(np.full_like(other, 128)), embed(other))
    return min(1.0, max(0.0, cosine(embed(image), embed(other)) - max(0.0, empty)))


@given(st.integers(0, 10_000), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_a_score_is_the_cosine_similarity_without_what_an_empty_image_has(seed, numbers):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(numbers, 2 * 3 * 3))
    images = rng.integers(0, 256, (4, 2, 3, 3)).astype(np.uint8)
    network = compare(lambda batch: batch.reshape(len(batch), -1) / 255 @ weights.T, images[0])
    scores = network.classify(images)
    assert scores.shape == (4, 1)
    assert np.allclose(scores[:, 0], [slow_score(image, images[0], weights) for image in images], atol=1e-5)


def compare(function, other, **options):
    """A function as a network of embeddings, compared with an array."""
    from becausal.images.loading import load_image
    from becausal.models.similarity import compare_with_image

    loading = Loading(**options)
    return compare_with_image(open_embedder(function, loading), load_image(other), loading)


def test_lengths_of_embeddings_do_not_matter():
    rows = np.array([[3.0, 4.0], [3e30, 4e30], [3e-20, 4e-20], [0.0, 0.0]])
    assert np.allclose(unit_rows(rows), [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.0, 0.0]])
    assert np.allclose(unit_rows(rows[:1].reshape(1, 2, 1, 1)), [[0.6, 0.8]])


def test_an_empty_image_of_the_fill_grey_has_a_score_of_0(place):
    network = as_embedder(see, like="b.png")
    assert network.classify(np.full((1, 16, 16, 3), EMPTY, np.uint8)) == 0.0
    assert network.classify(OTHER_RED[None])[0, 0] == pytest.approx(1 - float(network.info.notes[-1].split()[-1]), abs=1e-3)
    assert network.info.notes[-1].startswith("scores are cosine similarities, not counting what an empty image has: 0.")


# ---- what is found


def test_what_makes_an_image_similar_is_found(place):
    found = becausal.explain("a.png", as_embedder(see, like="b.png"), smallest=True, fills="grey", grain=1)
    inside = np.zeros((16, 16), bool)
    inside[2:8, 2:8] = True
    assert (found.label, found.target.share, found.origin.model) == ("like b.png", 0.5, "function see")
    assert found.visible.any()
    assert not (found.visible & ~inside).any()
    assert found.checks.sufficient


def test_both_images_are_explained_and_verified(place, without_figures):
    pair = becausal.similar("a.png", "b.png", see, request=QUICK)
    vectors = unit_rows(see(np.stack([RED, OTHER_RED, np.full_like(RED, 128)])))
    cosines = (vectors @ vectors.T).astype(float)
    assert pair.similarity == pytest.approx(cosines[0, 1], abs=1e-6)
    assert pair.empty == pytest.approx((cosines[2, 1], cosines[2, 0]), abs=1e-6)
    for found, image, other, corner in zip(pair.explanations, "ab", "ba", ((2, 2), (8, 7)), strict=True):
        assert (found.origin.image, found.label) == (f"{image}.png", f"like {other}.png")
        assert found.confidence == pytest.approx(pair.similarity - pair.empty["ab".index(image)], abs=1e-5)
        assert found.visible[corner[0] : corner[0] + 6, corner[1] : corner[1] + 6].any()
        assert found.verify(as_embedder(see, like=f"{other}.png")).holds
        assert not found.verify(as_embedder(see, like="c.png")).holds
    folder = pair.save("out")
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "similar.png"]
    assert becausal.Explanation.load("out/b").verify(as_embedder(see, like="a.png")).holds


def test_the_network_is_built_once(place):
    Path("net.py").write_text(
        NET.replace("def build():", "def build():\n    with open('built', 'a') as file:\n        file.write('x')")
    )
    pytest.importorskip("torch")
    becausal.similar("a.png", "b.png", "embed:torch:net.py:build", request=QUICK, loading=Loading(preprocess="unit"))
    assert Path("built").read_text() == "x"


def test_images_in_memory_and_images_of_one_name(place, without_figures):
    pair = becausal.similar(RED, Image.fromarray(OTHER_RED), see, request=QUICK)
    assert [found.label for found in pair.explanations] == ["like image", "like array"]
    assert "files" not in pair.explanations[0].origin.loading
    assert "like" not in pair.explanations[0].origin.files
    Path("further").mkdir()
    Image.fromarray(OTHER_RED).save("further/a.png")
    folder = becausal.similar("a.png", "further/a.png", see, request=QUICK).save("out")
    assert [becausal.Explanation.load(folder / name).origin.path_of("like") for name in ("a", "a-2")] == [
        str(place / "further" / "a.png"),
        str(place / "a.png"),
    ]


def test_the_figure_shows_both(place):
    from matplotlib.image import imread

    pair = becausal.similar("a.png", "b.png", see, request=QUICK)
    figure = pair.plot()
    assert figure.get_suptitle() == f"a.png and b.png: cosine similarity {pair.similarity:.3f}"
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a.png", "b.png"]
    for axes, found in zip(figure.axes, pair.explanations, strict=True):
        assert np.array_equal(axes.images[0].get_array(), imread(BytesIO(found.files()["explanation.png"])))
    assert pair.files()["similar.png"].startswith(b"\x89PNG")


# ---- the threshold


def test_a_threshold_is_a_cosine_similarity(place):
    pair = becausal.similar("a.png", "b.png", see, request=QUICK, above=0.9)
    for found in pair.explanations:
        assert found.origin.loading["threshold"] == 0.9
        assert (found.target.threshold, found.target.share) == (0.9, None)
        assert found.confidence == pytest.approx(pair.similarity, abs=1e-5)
        other = {"like a.png": RED, "like b.png": OTHER_RED}[found.label]
        masked = np.where(found.visible[..., None], found.view, 128).astype(np.uint8)
        one, two = unit_rows(see(np.stack([masked, other])))
        assert one @ two >= 0.9


@pytest.mark.parametrize(
    ("images", "options", "expected"),
    [
        ("ac", {}, "a.png is no more similar to c.png"),
        ("ab", {"above": 0.05}, "an empty image has a similarity of 0."),
        ("ab", {"above": 0.99999}, "the cosine similarity to 'b.png' is 0.966, below the 0.99999 asked for"),
        ("ab", {"loading": Loading(threshold=0.99999)}, "below the 0.99999 asked for"),
        ("ab", {"above": 2.0}, "the threshold is a score above 0 and up to 1, e.g. 0.5, not 2.0"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_the_search(images, options, expected, place):
    def watch(status):
        raise AssertionError("a search has begun")

    with pytest.raises(BecausalError, match=expected.replace(".", r"\.")):
        becausal.similar(*(f"{name}.png" for name in images), see, **options, progress=watch)


def test_embeddings_whose_length_depends_on_the_image_cannot_be_compared(place):
    images = [np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8) for side in (8, 9)]
    expected = "192 numbers for one image, and of 243 for what it is compared with"
    with pytest.raises(AnswerError, match=expected):
        becausal.similar(*images, lambda pixels: pixels.reshape(len(pixels), -1))
    Image.fromarray(images[1]).save("nine.png")
    model = as_embedder(lambda pixels: pixels.reshape(len(pixels), -1), like="nine.png")
    with pytest.raises(AnswerError, match=expected):
        becausal.explain(images[0], model, max_calls=100)


def test_embeddings_too_large_for_the_type_are_refused_without_a_warning(place, recwarn):
    with pytest.raises(ModelError, match="NaN or infinite"):
        as_embedder(lambda pixels: pixels.mean(axis=(1, 2)) * 1e300, like="a.png")
    assert not recwarn.list


def test_explain_says_how_similar_an_image_is(place):
    with pytest.raises(
        TargetError, match=r"the image is no more similar to 'c\.png' than an empty image is: there is nothing to explain"
    ):
        becausal.explain("a.png", as_embedder(see, like="c.png"))
    with pytest.raises(TargetError, match=r"the cosine similarity to 'b.png' is 0\.966, below the 0.9999 asked for: there"):
        becausal.explain("a.png", as_embedder(see, like="b.png", threshold=0.9999))
    with pytest.raises(TargetError, match="top compares labels"):
        becausal.explain("a.png", as_embedder(see, like="b.png"), top=2)


# ---- words


def test_a_similarity_in_words(place):
    found = becausal.explain("a.png", as_embedder(look, like="a.png"))
    said = as_text(headline(found))
    score = f"{found.confidence:.2f}"
    assert said.startswith(f"The similarity to a.png is {score}, not counting what an empty image has. ")
    assert "pixels are enough: they keep half of the similarity to a.png on at least 90 % of random backgrounds" in said
    assert as_text(question(found)) == f"Why similar to a.png ({score})?"
    assert describe_target(found).startswith("the cosine similarity to a.png is at least 0.")
    for words in ("label", "probability", "confidence"):
        assert words not in said + as_text(question(found)) + describe_target(found)
        assert all(words not in check.meaning for level in found.levels for check in describe_checks(found, level))
    needed = {check.name: check.meaning for check in describe_checks(found, found.levels[0])}["minimal"]
    assert "without it, less than 90 % of the similarity is left (" in needed
    needed = {check.name: check.meaning for check in describe_checks(found)}["minimal"]
    assert "without it, less than half of the similarity is left on at least one of " in needed
    assert ", or with everything else in the plain fill, or less than 90 % of the similarity is left there (" in needed
    stated = becausal.explain("a.png", as_embedder(look, like="a.png", threshold=0.8), smallest=True, fills="grey")
    needed = {check.name: check.meaning for check in describe_checks(stated)}["minimal"]
    assert "without it, the similarity is below 0.8 (" in needed
    assert "The similarity to a.png is >0.99. " in as_text(headline(stated))
    assert "keep a similarity of at least 0.8 to a.png (similarity 0.8" in as_text(headline(stated))
    assert describe_target(stated) == "the cosine similarity to a.png is at least 0.8"
    share = becausal.explain("a.png", as_embedder(look, like="a.png"), confidence=0.7, fills="grey")
    assert f"keep 70 % of the similarity ({share.checks.confidence:.2f} of {score})" in as_text(headline(share))


def test_a_share_is_chosen_with_confidence(place):
    found = becausal.explain("a.png", as_embedder(see, like="b.png"), confidence=0.7, fills="grey")
    assert (found.target.share, found.target.threshold) == (0.7, pytest.approx(0.7 * found.confidence))
    assert found.checks.confidence >= 0.7 * found.confidence
    usual = becausal.explain("a.png", as_embedder(see, like="b.png"), max_calls=300)
    advice = "set another share with --confidence, or the lowest similarity with --threshold"
    assert f"50 % of the similarity counts as kept: {advice}" in usual.notes
    assert not any("counts as kept" in note for note in found.notes)


# ---- every kind of network


def save_onnx(path, outputs, sides=16):
    """An ONNX file with outputs by name: "embedding" is the mean colours, with two axes of one; "logits" their opposite."""
    onnx = pytest.importorskip("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    nodes = {
        "embedding": helper.make_node("GlobalAveragePool", ["x"], ["embedding"]),
        "probs": helper.make_node("ReduceMax", ["x", "axes"], ["probs"], keepdims=0),
        "map": helper.make_node("Identity", ["x"], ["map"]),
    }
    shapes = {"embedding": ["n", 3, 1, 1], "probs": ["n", 3], "map": ["n", 3, sides, sides]}
    axes = onnx.numpy_helper.from_array(np.array([2, 3], np.int64), "axes")
    graph = helper.make_graph(
        [nodes[name] for name in outputs],
        "g",
        [helper.make_tensor_value_info("x", number, ["n", 3, sides, sides])],
        [helper.make_tensor_value_info(name, number, shapes[name]) for name in outputs],
        [axes],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def expect_cosine(network, image=RED, other=OTHER_RED, embed=lambda images: images.mean(axis=(1, 2))):
    one, two, empty = unit_rows(embed(np.stack([image, other, np.full_like(image, 128)]).astype(float)))
    assert network.classify(image[None])[0, 0] == pytest.approx(one @ two - max(0.0, empty @ two), abs=1e-5)


def test_onnx_files(place):
    save_onnx("net.onnx", ["probs", "embedding"])
    network = load_model("embed:net.onnx", like="b.png", preprocess="unit")
    expect_cosine(network)
    assert (network.info.spec, network.info.output, network.info.labels) == (
        "embed:onnx:net.onnx",
        "similarity",
        ("like b.png",),
    )
    assert any("embedding is used" in note for note in network.info.notes) or len(network.info.notes) == 1
    save_onnx("map.onnx", ["map"])
    with pytest.raises(
        ModelError, match=r"embed:onnx:map.onnx returned an output of shape \(1, 3, 16, 16\) for 1 images; expected"
    ):
        load_model("embed:map.onnx", like="b.png", preprocess="unit")


def test_torch_modules(place):
    pytest.importorskip("torch")

    def embed(images):
        red, green, blue = np.moveaxis(images / 255, -1, 0)
        return np.stack([np.maximum(red - blue, 0), np.maximum(green - blue, 0), 0 * red + 0.01], -1).mean(axis=(1, 2))

    loaded = load_model("embed:torch:net.py:build", like="b.png", preprocess="unit", resize="16/16")
    assert loaded.info.spec == "embed:torch:net.py:build"
    own = {}
    exec(NET, own)
    for network in (loaded, as_embedder(own["build"](), like="b.png", preprocess="unit", resize="16/16")):
        expect_cosine(network, embed=embed)


@pytest.mark.parametrize("spec", ["python:net.py:embed", "embed:python:net.py:embed"])
def test_functions_in_files(spec, place):
    network = as_embedder(spec, like="b.png")
    expect_cosine(network, embed=see)
    assert network.info.spec == "embed:python:net.py:embed"


def test_bundled_models(place):
    scene = becausal.scenes.make_scene(104).image
    Image.fromarray(scene).save("scene.png")
    info = load_model("embed:bundled", like="scene.png").info
    assert info.spec == "embed:bundled"
    advice = "if these are scores of classes, give the output with the embedding by `output_name` in a TOML file"
    assert info.notes[0] == f"the embedding is the output logits: {advice}"
    assert not any("scores of classes" in note for note in load_model("embed:bundled:clip", like="scene.png").info.notes)
    classifier = load_model("bundled")  # whose scores are taken as an embedding
    network = as_embedder(classifier, like="scene.png")
    expect_cosine(network, scene, scene, embed=lambda images: classifier.classify(images.astype(np.uint8)))


# ---- what is no network of embeddings


def raises(error):
    def function(images):
        raise error

    return function


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("bundled", {}, "say which with --like IMAGE, or use `becausal similar`"),
        ("bundled", {"like": "none.png"}, "none.png"),
        (
            "bundled",
            {"like": "b.png", "returns": "logits"},
            "embed: reads what the network returns by itself: remove returns",
        ),
        ("bundled", {"like": "b.png", "text": "red"}, "text is for clip: models"),
        ("bundled", {"like": "b.png", "labels": ("red", "green")}, "an embed: model compares images: remove labels"),
        ("bundled:detector", {"like": "b.png"}, "cannot follow it: give a network alone"),
        ("detect:net.onnx", {"like": "b.png"}, "cannot follow it: give a network alone"),
        ("segment:net.onnx", {"like": "b.png"}, "cannot follow it: give a network alone"),
        (raises(RuntimeError("out of\norder")), {"like": "b.png"}, "RuntimeError: out of order"),
        (lambda images: np.arange(len(images)), {"like": "b.png"}, "expected numbers for each image"),
        (lambda images: images, {"like": "b.png"}, "expected one embedding for each, (1, numbers)"),
        (lambda images: np.full((len(images), 3), np.nan), {"like": "b.png"}, "NaN or infinite"),
        ({"not": "a model"}, {"like": "b.png"}, "expected a model specification"),
    ],
)
def test_what_has_no_embeddings_is_refused_in_one_line(model, options, expected, place):
    with pytest.raises(BecausalError) as caught:
        as_embedder(model, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_loaded_already_takes_no_options(place):
    with pytest.raises(OptionError, match="already loaded"):
        as_embedder(load_model("bundled"), like="b.png", batch_size=2)
    with pytest.raises(ModelError, match="does not return embeddings but similarity"):
        becausal.similar("a.png", "b.png", as_embedder(see, like="b.png"))
    with pytest.raises(ModelError, match="does not return embeddings but boxes"):
        becausal.similar("a.png", "b.png", load_model("bundled:detector"))


# ---- Ctrl-C


def test_an_interrupted_search_is_the_last_one(place, without_figures):
    pressed = []

    def interrupt(status):
        if status.calls > 50 and not pressed:
            pressed.append(status)
            raise KeyboardInterrupt

    pair = becausal.similar("a.png", "b.png", see, progress=interrupt)
    (found,) = pair.explanations
    assert (found.origin.image, found.stopped_by) == ("a.png", "interrupt")
    assert found.checks.sufficient
    assert len(pair.plot().axes) == 1
    assert not (pair.save("out") / "b").exists()
