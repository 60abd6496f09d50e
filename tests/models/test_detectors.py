"""Object detectors of every kind but ONNX: functions, torch modules, Hugging Face, torchvision, a server."""

import hashlib
import json
import subprocess
import sys
import types
import urllib.request
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.api.origins import model_file
from becausal.batch.index import label_id_of
from becausal.core.boxes import MAX_BOXES, NO_BOX, check_boxes, describe_far, overlaps, pack_boxes, read_boxes
from becausal.core.contracts import Geometry, name_id
from becausal.core.errors import AnswerError, ImageError, ModelError, NetworkError, OptionError
from becausal.core.frames import plan_frame
from becausal.images.loading import load_image, make_view
from becausal.interfaces.cli.app import main
from becausal.interfaces.cli.verify import check_model
from becausal.models import KINDS, as_classifier, as_detector, load_model

torch = pytest.importorskip("torch")


def found(answer, digits=3):
    return [
        [(tuple(np.round(one.box, digits).tolist()), round(one.score, digits), one.label_id) for one in read_boxes(row)]
        for row in answer
    ]


def noise(n=5, side=12, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3)).astype(np.uint8)


# ---- the array of boxes


def test_packing_sorts_and_leaves_out_what_is_no_box():
    boxes = [[0, 0, 4, 4], [1, 1, 9, 9], [5, 5, 5, 9], [7, 7, 3, 3], [0, 0, 1, 1], [2, 2, 3, 3]]
    ((row,),) = [pack_boxes([(boxes, [0.2, 0.9, 1, 1, 1, 0.2], [3, 1, 1, 1, -1, 4])])]
    assert found([row]) == [[((1, 1, 9, 9), 0.9, 1), ((0, 0, 4, 4), 0.2, 3), ((2, 2, 3, 3), 0.2, 4)]]
    assert row[3:].tolist() == [list(NO_BOX)] * (MAX_BOXES - 3)
    assert read_boxes(row, threshold=0.5)[0].label_id == 1
    assert sum(one.label_id == 4 for one in read_boxes(row)) == 1


def test_boxes_far_outside_of_the_image_are_noted(tmp_path, monkeypatch, capsys):
    assert describe_far(None, (24, 24)) == describe_far((-10.0, -24.0, 48.0, 30.0), (24, 24)) == ()
    assert "100 x 24 px" in describe_far((0.0, 0.0, 10.0, 60.0), (24, 100))[0]
    assert describe_far((0.0, 0.0, 60.0, 10.0), (24, 100)) == ()

    def far(batch):
        return [([[0, 0, 3e30, 3e30]], [float(image.mean() > 60)], [0]) for image in batch]

    pixels = np.full((24, 24, 3), 200, np.uint8)
    explanation = becausal.explain(pixels, as_detector(far, threshold=0.5), fills="black")
    assert [note for note in explanation.notes if "0, 0, 3e+30, 3e+30 lies far outside of the image, 24 x 24 px" in note]
    monkeypatch.chdir(tmp_path)
    Image.fromarray(pixels).save("p.png")
    Path("net.py").write_text("def far(batch):\n    return [([[0, 0, 3e30, 3e30]], [0.9], [0]) for image in batch]\n")
    assert main(["inspect", "detect:python:net.py:far", "p.png"]) == 0
    assert "note: p.png: the box 0, 0, 3e+30, 3e+30 lies far outside" in capsys.readouterr().err


def test_packing_nothing():
    empty = pack_boxes([([], [], []), (np.zeros((0, 4)), np.zeros(0), np.zeros(0))])
    assert check_boxes(empty, 2) is empty
    assert found(empty) == [[], []]
    assert pack_boxes([]).shape == (0, MAX_BOXES, 6)


def test_packing_ten_thousand_boxes_keeps_the_best():
    boxes = np.tile([0, 0, 1, 1], (10_000, 1)) + np.arange(10_000)[:, None]
    (row,) = pack_boxes([(boxes, np.linspace(0, 1, 10_000), np.zeros(10_000))])
    assert row[:, 0].tolist() == list(range(9999, 9999 - MAX_BOXES, -1))


@pytest.mark.parametrize(
    ("boxes", "scores", "labels", "words"),
    [
        ([[0, 0, np.nan, 1]], [0.5], [0], "NaN or infinite"),
        ([[0, 0, 1e39, 1]], [0.5], [0], "NaN or infinite"),
        ([[0, 0, 1, 1]], [np.inf], [0], "NaN or infinite"),
        ([[0, 0, 1, 1]], [1.2], [0], "box scores from 1.2 to 1.2; expected 0 to 1"),
        ([[0, 0, 1, 1]], [0.5], [0.5], "the label id 0.5; expected whole numbers below 16777216"),
        ([[0, 0, 1, 1]], [0.5], [2**24], "the label id 16777216"),
        ([[0, 0, 1]], [0.5], [0], r"of shapes \(1, 3\), \(1,\), \(1,\)"),
        ([[0, 0, 1, 1]], [], [], r"of shapes \(1, 4\), \(0,\), \(0,\)"),
        ([], [0.5], [0], r"of shapes \(0,\), \(1,\), \(1,\)"),
        ([[0, 0, 1, 1]], [[0.5]], [0], "of shapes"),
        ([["a", 0, 1, 1]], [0.5], [0], "not numbers"),
    ],
)
def test_packing_what_cannot_be(boxes, scores, labels, words):
    with pytest.raises(AnswerError, match=words):
        pack_boxes([(boxes, scores, labels)])


def test_scores_are_rounded_into_their_range():
    (row,) = pack_boxes([([[0, 0, 1, 1], [0, 0, 2, 2]], [1.0000001, -1e-9], [0, 0])])
    assert row[:2, 4].tolist() == [1.0, 0.0]


def test_checking():
    with pytest.raises(AnswerError, match=r"expected \(3, 100, 6\)"):
        check_boxes(pack_boxes([([], [], [])]), 3)
    with pytest.raises(AnswerError, match="no numbers"):
        check_boxes(np.full((1, MAX_BOXES, 6), None), 1)


side = st.integers(-8, 8)
corners = st.tuples(side, side, side, side)


@given(corners, corners.filter(lambda b: b[2] > b[0] and b[3] > b[1]))
def test_overlap_is_the_share_of_common_pixels(one, other):
    def pixels(box):
        return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}

    shared = Fraction(len(pixels(one) & pixels(other)), len(pixels(one) | pixels(other)))
    assert overlaps(np.array([one]), other)[0] == pytest.approx(float(shared))


# ---- letterboxing


@pytest.mark.parametrize(
    ("original", "grid", "resized", "origin"),
    [
        ((480, 640), (640, 640), (480, 640), (-80, 0)),
        ((1080, 810), (640, 640), (640, 480), (0, -80)),
        ((100, 33), (50, 50), (50, 16), (0, -17)),
        ((33, 100), (50, 50), (16, 50), (-17, 0)),
        ((7, 7), (20, 30), (20, 20), (0, -5)),
        ((1, 1000), (10, 10), (1, 10), (-4, 0)),
    ],
)
def test_a_letterboxed_image_keeps_its_aspect_ratio(original, grid, resized, origin):
    frame = plan_frame(original, Geometry(grid, "letterbox"))
    assert (frame.resized, frame.origin, frame.grid) == (resized, origin, grid)


def test_the_bars_of_a_letterboxed_image_are_grey():
    image = np.full((4, 8, 3), 200, np.uint8)
    view = make_view(load_image(image), Geometry((8, 8), "letterbox"))
    assert (view.pixels[2:6] == 200).all()
    assert (view.pixels[[0, 1, 6, 7]] == 114).all()
    assert make_view(load_image(image), Geometry((8, 8), 4)).pixels[0].max() == 0
    whole = tuple(view.frame.box_to_original((0.0, 2.0, 8.0, 6.0)))
    assert whole == (0, 0, 8, 4)


# ---- functions


def bright(batch):
    """A box around the bright pixels, and one that is always there."""
    assert batch.dtype == np.uint8
    answer = []
    for image in batch:
        rows, columns = np.nonzero(image.max(axis=2) > 250)
        edge = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if rows.size else [0, 0, 0, 0]
        answer.append(([edge, [1, 2, 5, 6]], [0.75, 0.25], [1, 0]))
    return answer


FORMS = {
    "tuple": lambda item: item,
    "dictionary": lambda item: dict(zip(("boxes", "scores", "labels"), item, strict=True)),
    "array": lambda item: np.concatenate([np.array(item[0]), np.array(item[1:]).T], axis=1),
    "list": lambda item: [[*box, score, label] for box, score, label in zip(*item, strict=True)],
    "tensors": lambda item: {
        "boxes": torch.tensor(item[0]).half(),
        "scores": torch.tensor(item[1]),
        "labels": torch.tensor(item[2]),
    },
}


def dots():
    image = np.zeros((2, 9, 9, 3), np.uint8)
    image[0, 2:5, 3:8] = 255
    return image


@pytest.mark.parametrize("form", FORMS)
def test_what_a_function_may_return(form):
    model = as_detector(lambda batch: [FORMS[form](item) for item in bright(batch)])
    answer = model.classify(dots())
    assert found(answer) == [[((3, 2, 8, 5), 0.75, 1), ((1, 2, 5, 6), 0.25, 0)], [((1, 2, 5, 6), 0.25, 0)]]
    info = model.info
    assert (info.output, info.kind, info.geometry, info.threshold) == ("boxes", "detect:python", None, 0.5)
    assert info.notes == ("a box counts as found if its score is at least 0.5 (assumed; set --threshold)",)
    view, background = dots()
    visible = np.random.default_rng(0).random((4, 9, 9)) < 0.5
    asked = model.ask([model.stage(view, background)], np.zeros(4, np.intp), visible)
    assert np.array_equal(asked, model.classify(np.where(visible[..., None], view, background)))


def test_scores_may_be_missing_and_labels_may_be_names():
    def detect(batch):
        return [{"boxes": [[0, 0, 4, 4], [1, 1, 2, 2]], "labels": ["cat", "dog"]} for _ in batch]

    listed = as_detector(detect, labels=["dog", "cat"])
    assert found(listed.classify(noise(1))) == [[((0, 0, 4, 4), 1.0, 1), ((1, 1, 2, 2), 1.0, 0)]]
    partly = as_detector(detect, labels=["dog"])
    ((cat, dog),) = found(partly.classify(noise(1)))
    assert dog[2] == 0
    assert cat[2] == name_id("cat", size=3)
    assert partly.info.name_of(cat[2]) == "cat"
    assert as_detector(detect, labels=["dog", "fox", "cow"]).info.name_of(17) == "class 17"


def test_two_names_with_the_same_id_are_refused(monkeypatch):
    monkeypatch.setattr("becausal.models.python_function.name_id", lambda name, size: 2**23)
    model = as_detector(lambda batch: [([[0, 0, 1, 1]] * 2, [1, 1], ["a", "b"])] * len(batch))
    with pytest.raises(AnswerError, match="'b' and 'a' get the same id: list all names as labels"):
        model.classify(noise(1))


def test_batches_of_a_function():
    sizes = []

    def detect(batch):
        sizes.append(len(batch))
        return bright(batch)

    model = as_detector(detect, batch_size=2)
    assert found(model.classify(noise(5))) == found(as_detector(bright).classify(noise(5)))
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (np.full((2, 10), 0.1), r"returns scores per class, not boxes \(shape \(2, 10\)\): load it without detect:"),
        (torch.full((2, 10), 0.1), "returns scores per class, not boxes"),
        ([[]], "returned 1 items for 2 images"),
        ({"boxes": []}, "returned dict; expected a list"),
        (None, "returned NoneType; expected a list"),
        ("ab", "returned str; expected a list"),
        ([{"scores": [1.0]}] * 2, "a dictionary with scores; expected boxes, labels and scores"),
        ([([], [])] * 2, "a tuple of 2"),
        ([np.zeros((3, 5))] * 2, r"float64 \(3, 5\) for an image; expected a dictionary"),
        ([[[1, 2], [3]]] * 2, "unequal parts; expected a dictionary"),
        ([([[0, 0, 1, 1]], [0.5], [None])] * 2, "a label of type NoneType"),
        ([([[0, 0, 1, 1]], [0.5], [[1, 2]])] * 2, "of shapes"),
        ([([[0, 0, np.nan, 1]], [0.5], [1])] * 2, "NaN"),
    ],
)
def test_what_a_function_may_not_return(answer, words):
    with pytest.raises(AnswerError, match=words) as caught:
        as_detector(lambda batch: answer).classify(noise(2))
    assert "\n" not in str(caught.value)


def test_arrays_are_no_images():
    with pytest.raises(ImageError, match=r"shape \(9, 9, 1\); a detector takes colour images"):
        as_detector(bright).stage(np.zeros((9, 9, 1)), np.zeros((9, 9, 1)))


FILE = """
import numpy as np
SIZE = 16
THRESHOLD = 0.3
LABELS = ["bird"]

def detect(batch):
    print("hello")
    assert batch.shape[1:] == (16, 16, 3)
    return [[[1, 2, 3, 4, 0.5, 0]] for _ in batch]

def scores(batch):
    return np.full((len(batch), 3), 1 / 3)

def fail(batch):
    return 1 / 0
"""


def test_a_function_in_a_file(tmp_path, capsys):
    (tmp_path / "net.py").write_text(FILE)
    spec = f"detect:python:{tmp_path / 'net.py'}"
    model = load_model(f"{spec}:detect")
    info = model.info
    assert info.geometry == Geometry((16, 16), "squash")
    assert (info.threshold, info.labels, info.spec) == (0.3, ("bird",), f"{spec}:detect")
    assert len(info.sha256) == 64
    assert found(model.classify(noise(2, 16))) == [[((1, 2, 3, 4), 0.5, 0)]] * 2
    assert capsys.readouterr().out == ""
    for name, words in [
        ("scores", "net.py: the model returns scores per class, not boxes"),
        ("fail", "net.py failed: ZeroDivisionError"),
        ("none", "has no function 'none'"),
    ]:
        with pytest.raises(ModelError, match=words):
            load_model(f"{spec}:{name}")
    with pytest.raises(ModelError, match=r"expected detect:python:FILE\.py:FUNCTION"):
        load_model(spec)


# ---- torch modules


class Spots(torch.nn.Module):
    """As torchvision's detectors: a box around the pixels above 0.9, as sure as they are bright."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, images):
        assert isinstance(images, list)
        assert not self.training
        answer = []
        for image in images:
            assert (image.ndim, image.dtype) == (3, torch.float32)
            rows, columns = torch.nonzero(image[0] > 0.9, as_tuple=True)
            box = torch.zeros(0, 4)
            if len(rows):
                box = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])[None].float()
            score = torch.full((len(box),), float(image.max())) * self.weight
            answer.append({"boxes": box, "scores": score, "labels": torch.ones(len(box), dtype=torch.int64)})
        return answer


def test_a_module_as_torchvision_has_them():
    model = as_detector(Spots(), threads=1, labels=["background", "spot"], batch_size=3)
    assert found(model.classify(dots())) == [[((3, 2, 8, 5), 1.0, 1)], []]
    info = model.info
    assert info.geometry is None
    assert (info.kind, info.threshold, info.spec) == ("detect:torch", 0.5, "module Spots")
    assert info.normalisation.startswith("unit")
    view, background = dots()
    visible = np.random.default_rng(0).random((7, 9, 9)) < 0.7
    asked = model.ask([model.stage(view, background)], np.zeros(7, np.intp), visible)
    assert np.array_equal(asked, model.classify(np.where(visible[..., None], view, background)))
    larger = np.zeros((1, 20, 30, 3), np.uint8)
    assert found(model.classify(larger)) == [[]]
    assert as_detector(Spots(), resize="squash/24x32").info.geometry == Geometry((24, 32), "squash")


MODULE = """
import torch
from test_detectors import Spots

LABELS = ["background", "spot"]

def build():
    return Spots()

def classifier():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

def nothing():
    return None

class Wrong(torch.nn.Module):
    def forward(self, images):
        return [{"boxes": torch.zeros(1, 3), "scores": torch.ones(1), "labels": torch.ones(1)} for _ in images]
"""


def test_a_module_in_a_file(tmp_path):
    (tmp_path / "net.py").write_text(MODULE)
    spec = f"detect:torch:{tmp_path / 'net.py'}"
    model = load_model(f"{spec}:build", threads=1)
    assert model.info.spec == f"{spec}:build"
    assert model.info.name_of(1) == "spot"
    assert found(model.classify(dots())) == [[((3, 2, 8, 5), 1.0, 1)], []]
    for name, words in [
        ("classifier", "classifier returns scores per class, not boxes: load it without detect:"),
        ("nothing", "returned NoneType; expected a torch.nn.Module"),
        ("Wrong", r"of shapes \(1, 3\), \(1,\), \(1,\)"),
    ]:
        with pytest.raises(ModelError, match=words):
            load_model(f"{spec}:{name}")
    with pytest.raises(ModelError, match=r"no CUDA device|expected cpu"):
        load_model(f"{spec}:build", device="cuda" if not torch.cuda.is_available() else "nowhere")


def test_a_detector_of_torch_is_no_classifier():
    with pytest.raises(ModelError, match="it is an object detector: use detect:torch: or as_detector"):
        as_classifier(TensorSpots())
    with pytest.raises(AnswerError, match="as object detectors do: use detect:python: or as_detector"):
        as_classifier(lambda batch: [{"boxes": []}] * len(batch)).classify(noise(2))
    with pytest.raises(AnswerError, match="as object detectors do: use detect:python: or as_detector"):
        as_classifier(lambda batch: [([[0, 0, 4, 4]], [0.9], ["spot"]), ([], [], [])]).classify(noise(2))


class TensorSpots(torch.nn.Module):
    def forward(self, images):
        return [{"boxes": torch.zeros(0, 4)} for _ in images]


def test_as_detector_takes_what_is_one(tmp_path):
    model = as_detector(bright)
    assert as_detector(model) is model
    with pytest.raises(OptionError, match="already loaded"):
        as_detector(model, threshold=0.2)
    with pytest.raises(ModelError, match="is a classifier: it returns no boxes"):
        as_detector("bundled")
    with pytest.raises(ModelError, match=r"expected a model specification, a torch module, .* or a detector, not int"):
        as_detector(3)
    (tmp_path / "net.py").write_text(FILE)
    assert as_detector(f"python:{tmp_path / 'net.py'}:detect").info.kind == "detect:python"


# ---- torchvision, a stand-in


def test_torchvision(monkeypatch):
    transforms = type("ObjectDetection", (), {})
    boxes = types.SimpleNamespace(transforms=transforms, meta={"categories": ["__background__", "spot"]})
    scores = types.SimpleNamespace(transforms=object, meta={})
    models = types.ModuleType("torchvision.models")
    models.get_model_weights = lambda name: {"DEFAULT": boxes if name == "spots" else scores}
    models.get_model = lambda name, weights: Spots()
    fake = types.ModuleType("torchvision")
    fake.models = models
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    model = load_model("detect:torchvision:spots", threads=1)
    assert model.info.labels == ("__background__", "spot")
    assert (model.info.kind, model.info.spec) == ("detect:torchvision", "detect:torchvision:spots")
    assert found(model.classify(dots())) == [[((3, 2, 8, 5), 1.0, 1)], []]
    with pytest.raises(ModelError, match="is an object detector: use detect:torchvision:spots"):
        load_model("torchvision:spots")
    with pytest.raises(ModelError, match="torchvision:other does not return boxes: load it without detect:"):
        load_model("detect:torchvision:other")
    with pytest.raises(ModelError, match="torchvision has no detector 'spots:V9'"):
        load_model("detect:torchvision:spots:V9")


# ---- Hugging Face


def save_yolos(folder, **sizes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[32, 32],
        patch_size=8,
        num_detection_tokens=5,
        id2label={0: "cat", 1: "dog", 2: "fox"},
        initializer_range=0.5,
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.YolosForObjectDetection(config).save_pretrained(folder)
    processor = {"image_processor_type": "YolosImageProcessor", "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
    (folder / "preprocessor_config.json").write_text(str({**processor, "size": sizes}).replace("'", '"'))
    return folder


@pytest.fixture(scope="module")
def yolos(tmp_path_factory):
    return save_yolos(tmp_path_factory.mktemp("yolos"), height=32, width=48)


@pytest.mark.libraries
def test_a_folder_of_hugging_face(yolos):
    transformers = pytest.importorskip("transformers")
    model = load_model(f"detect:hf:{yolos}", threads=1)
    info = model.info
    assert info.geometry == Geometry((32, 48), "squash")
    assert info.labels == ("cat", "dog", "fox")
    assert info.notes == ("a box counts as found if its score is at least 0.5 (assumed; set --threshold)",)
    assert (info.kind, info.spec, len(info.sha256)) == ("detect:hf", f"detect:hf:{yolos}", 64)
    pixels = np.random.default_rng(3).integers(0, 256, (3, 32, 48, 3)).astype(np.uint8)
    ours = model.classify(pixels)
    module = transformers.AutoModelForObjectDetection.from_pretrained(yolos).eval()
    values = (pixels / 255 - [0.5, 0.4, 0.3]) / [0.5, 0.6, 0.7]
    with torch.no_grad():
        raw = module(torch.from_numpy(np.moveaxis(values, -1, 1)).float())
    shares = torch.softmax(raw.logits, -1)[..., :-1].numpy()  # the last class stands for no object
    x, y, w, h = np.moveaxis(raw.pred_boxes.numpy() * [48, 32, 48, 32], -1, 0)
    boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=-1)
    theirs = pack_boxes([(b, s.max(axis=1), s.argmax(axis=1)) for b, s in zip(boxes, shares, strict=True)])
    theirs[theirs[..., 4] <= 0.01] = NO_BOX
    assert np.allclose(ours, theirs, atol=1e-3)
    assert len(found(ours)[0]) >= 2
    alone = np.concatenate([model.classify(one[None]) for one in pixels])
    assert np.allclose(ours, alone, atol=1e-3)


@pytest.mark.libraries
def test_a_processor_that_keeps_the_aspect_ratio(tmp_path):
    folder = save_yolos(tmp_path, shortest_edge=32, longest_edge=53)
    info = load_model(f"detect:hf:{folder}", threads=1, threshold=0.1).info
    assert info.geometry == Geometry((32, 32), "squash")
    assert info.threshold == 0.1
    assert info.notes[0].endswith("--resize squash/32x42")
    assert "images are squashed" in info.notes[1]
    assert load_model(f"detect:hf:{folder}", resize="squash/32x40").info.geometry == Geometry((32, 40), "squash")


@pytest.mark.libraries
def test_hugging_face_errors(yolos, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ModelError, match="is an object detector: use detect:hf:"):
        load_model(f"hf:{yolos}")
    with pytest.raises(ModelError, match="needs its processor: give its object-detection pipeline"):
        as_detector(transformers.AutoModelForObjectDetection.from_pretrained(yolos))
    bare = save_yolos(tmp_path, height=32, width=32)
    (bare / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="has no image processor that decodes boxes"):
        load_model(f"detect:hf:{bare}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match="not in the cache"):
        load_model("detect:hf:nobody/nothing")


# ---- a server


class Server:
    """The server process of tests/oip_server.py."""

    def __init__(self):
        command = [sys.executable, str(Path(__file__).parents[1] / "oip_server.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def spec(self, model):
        return f"oip:http://127.0.0.1:{self.port}/v2/models/{model}"

    def control(self, faults=None, **settings):
        """Behave like this from now on; without arguments, what was seen."""
        body = None if faults is None else json.dumps({"faults": faults, "settings": settings}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/control", body, timeout=30) as reply:
            return json.load(reply)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("httpx")
    process = Server()
    yield process
    process.process.kill()
    process.process.communicate()


@pytest.mark.parametrize("name", ["detector", "loose"])
@pytest.mark.parametrize("binary", [False, True])
def test_a_server(server, name, binary, tmp_path):
    extensions = ["binary_tensor_data"] if binary else None
    server.control([], binary=binary, extensions=extensions)
    endpoint = {"cache": str(tmp_path)}
    model = load_model(f"detect:{server.spec(name)}", labels=["all", "corner"], endpoint=endpoint)
    info = model.info
    assert (info.kind, info.spec) == ("detect:oip", f"detect:{server.spec(name)}")
    assert info.geometry == Geometry((16, 16), "squash")
    assert (model.batch_size == 1) == (name == "loose")
    pixels = np.stack([np.full((16, 16, 3), level, np.uint8) for level in (0, 102, 204)])
    everything, corner = ((0, 0, 16, 16), 0.5, 0), (0, 0, 8, 8)
    expected = [[everything, (corner, 0, 1)], [everything, (corner, 0.4, 1)], [(corner, 0.8, 1), everything]]
    assert found(model.classify(pixels)) == expected
    again = load_model(f"detect:{server.spec(name)}", endpoint=endpoint)
    before = len(server.control()["pictures"])
    assert found(again.classify(pixels)) == expected
    assert len(server.control()["pictures"]) == before
    assert any("3 answered from the cache" in note for note in again.info.notes)


def test_what_a_server_is_not(server):
    server.control([])
    with pytest.raises(ModelError, match="returns scores per class, not boxes"):
        load_model(f"detect:{server.spec('toy')}", endpoint=["cache=none"])
    with pytest.raises(ModelError, match="looks like an object detector: use detect:oip:http"):
        load_model(server.spec("detector"), endpoint=["cache=none"])
    server.control([{"twice": True}])
    with pytest.raises(ModelError, match=r"the model returned boxes of shape \(2, 2, 4\) for 1 images"):
        load_model(f"detect:{server.spec('detector')}", endpoint=["cache=none"])


# ---- specifications


def test_specifications():
    for spec in ("detect:", "detect:net", "detect:keras:net.keras", "detect:timm:a", "detect:hf:", "detect:bundled"):
        with pytest.raises(
            ModelError, match=r"is not the specification of an object detector; expected one of detect:FILE\.onnx"
        ):
            load_model(spec)
    for spec in ("detect:nothing.onnx", "detect:onnx:nothing", "detect:python:nothing.py:f", "detect:torch:nothing.py:f"):
        with pytest.raises(ModelError, match="there is no file nothing"):
            load_model(spec)
    assert {name for name in KINDS if name.startswith("detect:")} == {
        "detect:onnx", "detect:torch", "detect:python", "detect:hf", "detect:torchvision", "detect:oip",
    }  # fmt: skip
    with pytest.raises(
        OptionError, match="threshold is for object detectors and multi-label models, and the labels of this"
    ):
        load_model("bundled", threshold=0.5)


@pytest.mark.parametrize(
    "spec", ["detect:torch:{}:build:x.onnx", "detect:python:{}:detect", "detect:oip:http://a/v2/models/b"]
)
def test_a_record_does_not_make_verify_run_code(tmp_path, spec):
    """As for classifiers: what a saved folder names is not run, also where it looks like an ONNX file."""
    file = tmp_path / "evil.py"
    file.write_text("raise SystemExit")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    origin = types.SimpleNamespace(model=spec.format(file), model_sha256=digest)
    with pytest.raises(ModelError, match="would run code or use the network"):
        check_model(origin)


def test_records_of_detectors(tmp_path):
    """The file behind a specification is found, and a label that is known by its name has no id in an index."""
    for spec in ("detect:a/net.onnx", "detect:onnx:a/net.onnx"):
        assert model_file(spec) == Path("a/net.onnx")
    assert model_file("detect:torch:a/net.py:build:x.onnx") == Path("a/net.py")
    assert model_file("detect:oip:http://a/v2/models/b") is None
    assert label_id_of(types.SimpleNamespace(label="cat", label_id=name_id("cat", size=3))) is None
    assert label_id_of(types.SimpleNamespace(label="cat", label_id=3)) == 3
    file = tmp_path / "net.onnx"
    file.write_bytes(b"harmless")
    origin = types.SimpleNamespace(model=f"detect:onnx:{file}", model_sha256=hashlib.sha256(b"harmless").hexdigest())
    check_model(origin)
