"""Any Python function, on images, signals and volumes, with scores or just labels."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.core.contracts import Geometry, name_id
from becausal.core.errors import AnswerError, ModelError, TargetError
from becausal.engine.calls import check_scores
from becausal.images.loading import load_image, make_view
from becausal.interfaces.cli.app import main
from becausal.models import as_classifier, find_label, load_model


def ask(classifier, view, background, visible):
    staged = classifier.stage(view, background)
    answer = classifier.ask([staged], np.zeros(len(visible), np.intp), visible)
    return check_scores(answer, len(visible), classifier.info.output)


def brightness(batch):
    bright = batch.reshape(len(batch), -1).mean(axis=1, dtype=float) / 255
    return np.stack([1 - bright, bright], axis=1)


def picture(h=6, w=7, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (h, w, 3)).astype(np.uint8)


def test_a_function_of_pictures_at_their_own_size():
    seen = []

    def predict(batch):
        seen.append(batch)
        return brightness(batch)

    classifier = as_classifier(predict)
    assert classifier.info.geometry is None
    view, background = picture(), picture(seed=1)
    visible = np.random.default_rng(2).random((3, 6, 7)) < 0.5
    answer = ask(classifier, view, background, visible)
    composed = np.where(visible[..., None], view, background)
    assert np.array_equal(seen[-1], composed)
    assert seen[-1].dtype == np.uint8
    assert np.allclose(answer, brightness(composed))
    assert classifier.info.output == "probabilities"
    assert not np.shares_memory(seen[-1], seen[-2])  # it may keep what it is given
    assert np.allclose(classifier.classify(composed), answer)


def test_logits_are_softmaxed_once():
    classifier = as_classifier(lambda batch: brightness(batch) * 10)
    answer = ask(classifier, picture(), picture(seed=1), np.ones((2, 6, 7), bool))
    assert np.allclose(answer.sum(axis=1), 1)
    assert any("softmax applied once" in note for note in classifier.info.notes)


@pytest.mark.parametrize("shape", [(40,), (5, 6), (4, 5, 6)])
def test_arrays_keep_their_own_shape(shape):
    shapes = set()

    def predict(batch):
        shapes.add((batch.shape[1:], batch.dtype.str))
        bright = batch.reshape(len(batch), -1).mean(axis=1)
        return np.stack([1 - bright, bright], axis=1)

    view = make_view(load_image(np.random.default_rng(0).random(shape)), None)
    visible = np.random.default_rng(1).random((4, *shape)) < 0.5
    ask(as_classifier(predict), view.pixels, view.pixels * 0, visible)
    assert shapes == {(shape, "<f8")}


def test_a_channel_axis_of_one_is_kept_on_request():
    shapes = set()

    def predict(batch):
        shapes.add(batch.shape[1:])
        return [0] * len(batch)

    predict.channel_axis = True
    view = make_view(load_image(np.ones((5, 6, 1), np.float32)), None)
    ask(as_classifier(predict), view.pixels, view.pixels, np.ones((1, 5, 6), bool))
    assert shapes == {(5, 6, 1)}


@pytest.mark.parametrize("answer", [np.array, list, tuple, lambda rows: np.array(rows, object), np.bytes_])
def test_names_get_ids_of_their_own(answer):
    def predict(batch):
        return answer(["dark" if row.mean() < 128 else "bright" for row in batch])

    classifier = as_classifier(predict)
    view, background = np.full((4, 4, 3), 200, np.uint8), np.zeros((4, 4, 3), np.uint8)
    visible = np.stack([np.ones((4, 4), bool), np.zeros((4, 4), bool)])
    bright, dark = ask(classifier, view, background, visible).tolist()
    assert (bright, dark) == (name_id("bright"), name_id("dark"))
    assert all(2**47 <= i < 2**53 for i in (bright, dark))  # in no list, and exact in JSON
    assert classifier.info.output == "labels"
    assert classifier.info.labels is None
    assert [classifier.info.name_of(i) for i in (bright, dark)] == ["bright", "dark"]
    assert find_label("Dark", classifier.info.known_labels) == dark
    with pytest.raises(TargetError, match=r"^no class is named 'drk': the model has given no such answer so far; leave"):
        find_label("drk", classifier.info.known_labels)
    partly = as_classifier(predict, labels=["dark", "other"])  # what it has answered is not told, its list is
    ask(partly, view, background, visible)
    with pytest.raises(TargetError, match=r"no class is named 'brigt' among 2: dark \(0\), other \(1\)$"):
        find_label("brigt", partly.info.known_labels)
    known = as_classifier(predict, labels=["dark", "bright", "other"])
    assert ask(known, view, background, visible).tolist() == [1, 0]
    assert known.info.labels == known.info.known_labels == ("dark", "bright", "other")
    partly = as_classifier(predict, labels=["dark"])
    assert ask(partly, view, background, visible).tolist() == [name_id("bright"), 0]
    assert [partly.info.name_of(i) for i in (0, bright)] == ["dark", "bright"]
    assert find_label("bright", partly.info.known_labels) == bright


def test_names_of_digits_are_names():
    classifier = as_classifier(lambda batch: [str(int(row.mean())) for row in batch])
    view = np.full((4, 4, 3), 7, np.uint8)
    assert ask(classifier, view, view, np.ones((1, 4, 4), bool)).tolist() == [name_id("7")]
    assert find_label("7", classifier.info.known_labels) == name_id("7")
    assert find_label("8", classifier.info.known_labels) == 8


NAMED = """
def predict(batch):
    names = ["dim", "dark", "fair", "light"]
    return [names[int(row.mean()) // 64] for row in batch]

def other(batch):
    return ["day" if row.mean() >= 64 else "night" for row in batch]
"""


def explain_names(folder, order):
    """Explain images in a process of its own: (label, id) by image."""
    code = f"""
import json, becausal
for name in {order!r}:
    found = becausal.explain(name + ".png", "python:net.py:predict", fills="black", max_calls=40)
    found.save(name)
    print(json.dumps([name, found.label, found.label_id]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return {name: (label, i) for name, label, i in map(json.loads, done.stdout.splitlines())}


def test_names_mean_the_same_in_every_process_and_for_every_model(tmp_path, monkeypatch, without_figures):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NAMED)
    for name, value in {"a": 90, "b": 150, "c": 250}.items():
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(f"{name}.png")
    one = {}
    for name in "abc":
        found = becausal.explain(f"{name}.png", "python:net.py:predict", fills="black", max_calls=40)
        one[name] = found.label, found.label_id
    assert one == explain_names(tmp_path, "cba")
    assert {name: label for name, (label, _) in one.items()} == {"a": "dark", "b": "fair", "c": "light"}
    for name in "cb":  # the second of these is another name for the model that has seen the first
        claims = becausal.verify(becausal.Explanation.load(name), "python:net.py:predict")
        assert all(claim.holds for claim in claims)
    found = becausal.Explanation.load("b")
    for other in ("python:net.py:other", lambda batch: np.tile([0.25, 0.75], (len(batch), 1))):
        assert not all(claim.holds for claim in becausal.verify(found, other))
    assert becausal.explain("b.png", "python:net.py:predict", target="fair", fills="black", max_calls=40).label == "fair"
    with pytest.raises(TargetError, match="no class is named 'light'"):
        becausal.explain("b.png", "python:net.py:predict", target="light", fills="black", max_calls=40)


def test_two_workers_agree_on_the_categories_of_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NAMED)
    (tmp_path / "images").mkdir()
    values = [90, 150, 250, 150, 90, 250, 90, 150]
    for i, value in enumerate(values):
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(f"images/{i}.png")
    model, few = ["--model", "python:net.py:predict", "--fill", "black"], ["--max-calls", "40"]
    assert main(["batch", "images", "--workers", "2", *model, *few, "--out", "run"]) == 0
    assert main(["export", "run", "--format", "coco", "--out", "run.json"]) == 0
    found = json.loads((tmp_path / "run.json").read_text())
    names = {category["id"]: category["name"] for category in found["categories"]}
    files = {image["id"]: image["file_name"] for image in found["images"]}
    labels = {Path(files[item["image_id"]]).name: names[item["category_id"]] for item in found["annotations"]}
    expected = {90: "dark", 150: "fair", 250: "light"}
    assert labels == {f"{i}.png": expected[value] for i, value in enumerate(values)}


def test_whole_numbers_are_labels_and_torch_tensors_will_do():
    classifier = as_classifier(lambda batch: [int(row.mean() > 128) for row in batch], labels=["dark", "bright"])
    view = np.full((6, 7, 3), 9, np.uint8)
    assert ask(classifier, view, view, np.ones((2, 6, 7), bool)).tolist() == [0, 0]
    assert classifier.info.name_of(0) == "dark"
    torch = pytest.importorskip("torch")
    scores = as_classifier(lambda batch: torch.tensor(brightness(batch), requires_grad=True))
    assert ask(scores, picture(), picture(), np.ones((2, 6, 7), bool)).shape == (2, 2)


def test_attributes_of_a_function():
    def predict(batch):
        assert batch.shape[1:] == (8, 8, 3)
        return brightness(batch) * 3

    predict.labels = ["dark", "bright"]
    predict.returns = "logits"
    predict.geometry = Geometry((8, 8), 10)
    classifier = as_classifier(predict)
    assert classifier.info.geometry == Geometry((8, 8), 10)
    assert classifier.info.labels == ("dark", "bright")
    view = make_view(load_image(picture(20, 30)), classifier.info.geometry).pixels
    assert ask(classifier, view, view, np.ones((1, 8, 8), bool)).shape == (1, 2)


def test_options_state_size_and_normalisation():
    types = []

    def predict(batch):
        types.append((batch.dtype, batch.shape, batch.min() >= -1, batch.max() <= 1))
        return brightness((batch + 1) * 127)

    classifier = as_classifier(predict, resize="squash/8", preprocess="tf", batch_size=5)
    assert classifier.info.geometry == Geometry((8, 8), "squash")
    assert classifier.batch_size == 5
    classifier.classify(np.zeros((7, 8, 8, 3), np.uint8))
    assert types[-1] == (np.float32, (2, 8, 8, 3), True, True)


FILE = """
import numpy as np
SIZE = 8
LABELS = ["dark", "bright"]
RETURNS = "probabilities"

def predict(batch):
    assert batch.shape[1:] == (8, 8, 3), batch.shape
    bright = batch.reshape(len(batch), -1).mean(axis=1) / 255
    return np.stack([1 - bright, bright], axis=1)
"""


def put(tmp_path, text, name="net.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_with_constants(tmp_path):
    path = put(tmp_path, FILE)
    before = list(sys.path)
    classifier = load_model(f"python:{path}:predict")
    assert sys.path == before
    assert classifier.info.geometry.grid == (8, 8)
    assert classifier.info.labels == ("dark", "bright")
    assert classifier.info.notes == ()
    assert classifier.info.sha256 is not None
    view = make_view(load_image(picture(20, 30)), classifier.info.geometry)
    assert classifier.classify(view.pixels[None]).shape == (1, 2)


def test_the_normalisation_of_a_file_is_applied(tmp_path):
    path = put(tmp_path, FILE.replace("SIZE = 8", 'SIZE = 8\nPREPROCESS = "unit"').replace(" / 255", ""))
    classifier = load_model(f"python:{path}:predict")
    assert classifier.info.normalisation == "unit: RGB, x/255"
    batch = picture(8, 8)[None]
    assert np.allclose(classifier.classify(batch), brightness(batch), atol=1e-6)
    raw = load_model(f"python:{path}:predict", preprocess="raw", returns="multilabel-logits")  # options win
    assert raw.info.normalisation.startswith("raw")


def test_the_former_name_of_a_constant_is_still_read(tmp_path):
    path = put(tmp_path, FILE.replace("RETURNS =", "OUTPUT ="))
    assert load_model(f"python:{path}:predict").info.outputs == "probabilities"
    path = put(tmp_path, FILE.replace("RETURNS =", "OUTPUT = 'labels'\nRETURNS ="))  # the new name wins
    assert load_model(f"python:{path}:predict").info.outputs == "probabilities"


def test_a_file_may_import_its_neighbours(tmp_path):
    put(tmp_path, "NUMBER = 3\n", "neighbour_of_net.py")
    path = put(tmp_path, "from neighbour_of_net import NUMBER\ndef predict(batch):\n    return [NUMBER] * len(batch)\n")
    assert load_model(f"python:{path}:predict").classify(np.zeros((2, 4, 4, 3), np.uint8)).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_like_this\n", r"ModuleNotFoundError.*\(net.py, line 1\)"),
        ("a = 1\nb = a / 0\n", r"ZeroDivisionError: division by zero \(net.py, line 2\)"),
        ("def predict(:\n", r"SyntaxError.*line 1"),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(net.py, line 2\)"),
        ("def other(batch): ...\n", "no function 'predict'; it has other"),
        ("SIZE = 'x'\ndef predict(batch): ...\n", "constant.*is not a size"),
        ("LABELS = 3\ndef predict(batch): ...\n", "constant"),
        ("RETURNS = 'x'\ndef predict(batch): ...\n", "constant.*unknown value .x. for returns"),
        ("SIZE = 4\ndef predict(batch):\n    raise ValueError('no')\n", r"ValueError: no \(net.py, line 3\)"),
        ("SIZE = 4\ndef predict(batch):\n    return [1]\n", r"expected one row per image"),
    ],
)
def test_what_goes_wrong_in_a_file_is_told_in_one_line(tmp_path, text, words):
    with pytest.raises(ModelError, match=words) as caught:
        load_model(f"python:{put(tmp_path, text)}:predict")
    assert "\n" not in str(caught.value)


def test_rows_that_do_not_fit():
    classifier = as_classifier(lambda batch: np.ones((3, 2)))
    with pytest.raises(AnswerError, match="for 4 images"):
        classifier.stage(picture(), picture())
