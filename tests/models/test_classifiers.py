"""Specs, the shared networks, and that every kind of classifier composes the same mutants."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import becausal
from becausal.api import verify
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError, OptionError, TargetError
from becausal.engine.calls import check_scores
from becausal.images.loading import load_image, make_view
from becausal.models import KINDS, Loading, ModelKind, as_classifier, load_model, open_model
from becausal.models.labels import find_label, read_labels
from becausal.models.preprocess import Normalisation

SHARED = Path(__file__).resolve().parents[3] / "shared"
MODELS, DATA = SHARED / "models", SHARED / "data"
LABELS = MODELS / "imagenet_labels.txt"
needs_models = pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not here")

MOBILENET = {"preprocess": "tf", "resize": 256}
SQUEEZENET = {"preprocess": "caffe:104,117,123", "resize": "squash:256"}


def shared(name):
    options = MOBILENET if name == "mobilenet_v2" else SQUEEZENET
    return load_model(MODELS / f"{name}.onnx", labels=LABELS, threads=1, **options)


@pytest.fixture(scope="module")
def mobilenet():
    return shared("mobilenet_v2")


def photos(count):
    return sorted((DATA / "imagenet-samples").glob("*.JPEG"))[:count]


# ---- the shared networks


@needs_models
@pytest.mark.parametrize(("name", "least"), [("mobilenet_v2", 9), ("squeezenet", 7)])
def test_labels_are_right_on_photos(name, least):
    classifier = shared(name)
    assert classifier.info.notes == ()
    views = [make_view(load_image(path), classifier.info.geometry).pixels for path in photos(12)]
    scores = check_scores(classifier.classify(np.stack(views)), 12, classifier.info.output)
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-4)
    synsets = [line.split()[0] for line in LABELS.read_text().splitlines()]
    truth = [synsets.index(path.name.split("_")[0]) for path in photos(12)]
    assert (scores.argmax(axis=1) == truth).sum() >= least


def mutants(classifier, count, seed=0):
    view = make_view(load_image(photos(1)[0]), classifier.info.geometry).pixels
    background = np.full_like(view, 128)
    h, w = view.shape[:2]
    cells = np.random.default_rng(seed).random((count, 8, 8)) < 0.7
    visible = cells[:, np.arange(h) * 8 // h][:, :, np.arange(w) * 8 // w]
    return view, background, visible


@needs_models
def test_asking_mutants_equals_classifying_composed_pixels(mobilenet):
    view, background, visible = mutants(mobilenet, 9)
    staged = mobilenet.stage(view, background)
    asked = mobilenet.ask([staged], np.zeros(9, np.intp), visible)
    composed = np.where(visible[..., None], view, background)
    assert np.array_equal(asked, mobilenet.classify(composed))


@needs_models
def test_one_batch_may_mix_pictures(mobilenet):
    view, background, visible = mutants(mobilenet, 6)
    other = view[::-1].copy()
    staged = [mobilenet.stage(view, background), mobilenet.stage(other, view)]
    which = np.array([0, 1, 1, 0, 1, 0])
    asked = mobilenet.ask(staged, which, visible)
    views, grounds = np.stack([view, other])[which], np.stack([background, view])[which]
    assert np.array_equal(asked, mobilenet.classify(np.where(visible[..., None], views, grounds)))


@needs_models
def test_answers_do_not_depend_on_the_batch(mobilenet):
    view, background, visible = mutants(mobilenet, 21)
    staged = mobilenet.stage(view, background)
    whole = mobilenet.ask([staged], np.zeros(21, np.intp), visible)
    sevens = [mobilenet.ask([staged], np.zeros(len(v), np.intp), v) for v in np.array_split(visible, 3)]
    ones = [mobilenet.ask([staged], np.zeros(1, np.intp), visible[i : i + 1]) for i in range(5)]
    assert np.allclose(whole, np.concatenate(sevens), atol=1e-5)
    assert np.allclose(whole[:5], np.concatenate(ones), atol=1e-5)


@needs_models
@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet"])
def test_the_onnx_and_the_torch_form_agree(name):
    pytest.importorskip("torch")
    options = MOBILENET if name == "mobilenet_v2" else SQUEEZENET
    resize = "256/224" if name == "mobilenet_v2" else "squash:256/227"
    onnx = shared(name)
    spec = f"torch:{MODELS / 'as_torch.py'}:build:{name}.onnx"
    torch_form = load_model(spec, labels=LABELS, threads=1, **{**options, "resize": resize})
    assert torch_form.info.geometry == onnx.info.geometry
    assert torch_form.info.labels == onnx.info.labels
    view, background, visible = mutants(onnx, 4)
    which = np.zeros(4, np.intp)
    ours, theirs = (c.ask([c.stage(view, background)], which, visible) for c in (onnx, torch_form))
    assert np.abs(ours - theirs).max() < 1e-4


# ---- specs


def test_an_unknown_spec_tells_the_grammar():
    for spec in ("resnet50", "onnx:", "torchh:a", "", "bundled:", ":"):
        with pytest.raises(ModelError, match=r"is not a model specification.*FILE\.onnx.*hf:NAME"):
            load_model(spec)


def test_missing_files(tmp_path):
    for spec in (
        "nothing.onnx",
        "onnx:nothing",
        "torch:nothing.py:build",
        "python:nothing.py:f",
        "keras:nothing.keras",
        "nothing.keras",
        "nothing.H5",
    ):
        with pytest.raises(ModelError, match="there is no file"):
            load_model(spec)
    for spec in ("torch:a.py", "python:a"):
        with pytest.raises(ModelError, match=r"FILE\.py:FUNCTION"):
            load_model(spec)


def test_every_kind_of_the_table_can_be_imported():
    from importlib import import_module

    for kind in KINDS.values():
        module, _, function = kind.loader.rpartition(".")
        assert callable(getattr(import_module(f"becausal.models.{module}"), function))


def test_another_kind_is_a_function_and_a_row(monkeypatch):
    """ARCHITECTURE.md: it is loaded by its prefix, with the options of all kinds, and messages name its form."""

    def load(target, settings):
        classifier = as_classifier(lambda batch: np.tile(np.float32([0.25, 0.75]), (len(batch), 1)), labels=settings.labels)
        assert target == "two:halves"
        return classifier

    module = ModuleType("becausal.models.imaginary")
    module.load = load
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(KINDS, "magic", ModelKind("imaginary.load", None, "magic:NAME", "an imaginary kind"))
    classifier = load_model("magic:two:halves", labels=("heads", "tails"))
    assert becausal.classify(np.zeros((4, 4, 3), np.uint8), classifier)[0] == (1, "tails", 0.75)
    with pytest.raises(ModelError, match=r"expected one of .*magic:NAME"):
        load_model("magic")


def test_loading_an_onnx_file_imports_no_heavy_library():
    code = (
        "import sys, becausal.models as c\n"
        "c.as_classifier(lambda batch: batch)\n"
        "heavy = {'torch', 'transformers', 'timm', 'torchvision', 'keras', 'onnxruntime', 'httpx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_of_the_functions_are_the_fields_of_the_record():
    names = [f.name for f in fields(Loading)]
    assert all(name in load_model.__doc__ and name in Loading.__doc__ for name in names)
    with pytest.raises(OptionError, match="unknown loading option 'colour'; expected labels, preprocess"):
        load_model("bundled", colour=3)
    with pytest.raises(OptionError, match="unknown loading option 'runtime'; a torch module on a CPU"):
        load_model("bundled", runtime="torch")
    assert Loading.from_record({"runtime": "torch", "preprocess": "tf"}) == Loading(preprocess="tf")  # of an older version


NET = """
import numpy as np
SIZE = 8

def predict(batch):  # made for the normalisation x/255 - 0.25, channels in the order BGR
    assert batch.dtype == np.float32 and batch.min() >= -0.25 and batch.max() <= 0.75
    blue, red = batch[..., 0].mean((1, 2)), batch[..., 2].mean((1, 2))
    scores = np.exp(np.stack([red, blue, (red + blue) / 2], axis=1) * 8)
    return scores / scores.sum(1, keepdims=True)
"""


def test_a_saved_explanation_is_verified_with_the_options_of_its_record(tmp_path):
    """A list of labels and a `Normalisation` given in Python survive saving."""
    (tmp_path / "net.py").write_text(NET)
    spec = f"python:{tmp_path / 'net.py'}:predict"
    names, quarter = ["red", "blue", "neither"], Normalisation(1 / 255, (0.25,), (1.0,), "bgr", "quarter")
    image = np.random.default_rng(0).integers(0, 90, (8, 8, 3), np.uint8)
    image[2:5, 3:7, 2] = 250
    made = becausal.explain(image, load_model(spec, labels=names, preprocess=quarter, returns="probabilities"), grain=1)
    assert made.label == "blue"
    made.save(tmp_path / "saved")
    saved = Explanation.load(tmp_path / "saved")
    loading = Loading.from_record(saved.origin.loading)
    assert loading == Loading(labels=tuple(names), preprocess=quarter, returns="probabilities")
    again = open_model(saved.origin.model, loading)
    assert again.info.labels == tuple(names)
    assert str(quarter) == again.info.normalisation
    claims = verify(saved, again)
    assert len(claims) >= 3
    assert all(claim.holds for claim in claims), claims


def test_a_record_that_makes_no_sense():
    for record, words in [
        ({"colour": "red"}, "unknown loading option 'colour'"),
        ({"preprocess": {"scale": 1.0}}, "recorded normalisation cannot be read"),
        ({"preprocess": {"mean": [0.0], "std": [1.0], "colour": 3}}, "recorded normalisation cannot be read"),
    ]:
        with pytest.raises(OptionError, match=words):
            Loading.from_record(record)


class Ready:
    """The least that is a classifier."""

    info = batch_size = fixed_sizes = None

    def stage(self, view, background): ...

    def ask(self, staged, which, visible): ...

    def classify(self, pixels): ...


def test_a_ready_classifier_is_left_alone():
    ready = Ready()
    assert isinstance(ready, Classifier)
    assert as_classifier(ready) is ready
    with pytest.raises(OptionError, match="already loaded"):
        as_classifier(ready, preprocess="tf")
    with pytest.raises(ModelError, match="not int"):
        as_classifier(3)


def test_options_that_make_no_sense():
    for options, words in [
        ({"preprocess": "imagnet"}, "unknown normalisation"),
        ({"resize": "big"}, "unknown resize"),
        ({"returns": "numbers"}, "unknown value .numbers. for returns"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"half": True}, "half precision"),
    ]:
        with pytest.raises(OptionError, match=words):
            as_classifier(lambda batch: batch, **options)


def test_the_bundled_model_loads_or_says_what_is_missing():
    from importlib.resources import files

    folder = files("becausal") / "models" / "bundled"
    if not folder.joinpath("scenes.onnx").is_file():
        with pytest.raises(ModelError, match="bundled model is missing"):
            load_model("bundled")
        return
    classifier = load_model("bundled")
    assert classifier.info.spec == "bundled"
    assert classifier.info.geometry.grid == (128, 128)
    assert classifier.info.output == "probabilities"
    assert len(classifier.info.labels) == classifier.classify(np.zeros((1, 128, 128, 3), np.uint8)).shape[1]


# ---- labels


def test_label_files(tmp_path):
    def put(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    assert read_labels(put("a.txt", "cat\n\nred dog\n")) == ("cat", "red dog")
    assert read_labels(put("b.txt", "n01440764 tench\nn01443537 gold fish\n")) == ("tench", "gold fish")
    assert read_labels(put("c.json", '["cat", "dog"]')) == ("cat", "dog")
    assert read_labels(put("d.json", '{"1": "dog", "0": ["n0", "cat"]}')) == ("cat", "dog")
    for name, text in [
        ("g.json", "{"),
        ("h.json", '{"2": "a"}'),
        ("i.txt", ""),
        ("j.json", '"x"'),
        ("k.json", '{"a": 1}'),
    ]:
        with pytest.raises(ModelError, match=name):
            read_labels(put(name, text))
    with pytest.raises(ModelError, match="cannot be read"):
        read_labels(tmp_path / "missing.txt")


def test_finding_labels():
    names = ("crane", "tench, Tinca tinca", "Red_Fox", "crane", "kit fox")
    assert find_label("tinca TINCA", names) == 1
    assert find_label("red fox", names) == 2
    assert find_label("3", names) == find_label(3, names) == find_label("class 3", names) == 3
    assert find_label(7, None) == 7
    for wanted, words in [
        ("crane", "classes 0 and 3"),
        ("fox", r"similar: Red_Fox \(2\), kit fox \(4\)"),
        ("tenc", "similar: tench"),
        ("submarine", r"among 5: crane \(0\), tench, Tinca tinca \(1\), Red_Fox \(2\), crane \(3\), kit fox \(4\)"),
        ("whale", "no class is named"),
        (5, "no class 5: the model has 5"),
        ("-1", "no class -1"),
    ]:
        with pytest.raises(TargetError, match=words):
            find_label(wanted, names)
    with pytest.raises(TargetError, match="no class names"):
        find_label("cat", None)
