"""Objects that people have in memory: pipelines of transformers, models of ultralytics, timm and torchvision.

Real are transformers everywhere; timm, torchvision and ultralytics where they are installed. They are not in the `dev` extra
(see `libraries.import_torchvision`; ultralytics is under the AGPL), so each has a stand-in too. No weights are downloaded.
"""

import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest
from libraries import import_torchvision
from PIL import Image

import becausal
from becausal.core.contracts import Geometry
from becausal.core.errors import ModelError, OptionError
from becausal.models import as_classifier, as_detector

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def photo(h=47, w=60, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(small).resize((w, h))


# ---- pipelines of transformers (real)

NAMES = {0: "cat", 1: "dog", 2: "fox"}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 8}


def make_pipeline(task, size=(32, 32)):
    transformers = pytest.importorskip("transformers")
    if find_spec("torchvision") is not None:  # transformers uses it where it is
        import_torchvision()
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    means = {
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.6, 0.7],
        "size": dict(zip(("height", "width"), size, strict=True)),
    }
    if task == "object-detection":
        sizes = {**SIZES, "image_size": list(size), "num_detection_tokens": 5, "initializer_range": 0.5}
        model = transformers.YolosForObjectDetection(transformers.YolosConfig(**sizes, id2label=NAMES))
        processor = transformers.YolosImageProcessor(**means)
    else:
        config = transformers.ViTConfig(**SIZES, image_size=size[0], id2label=NAMES, initializer_range=0.5)
        model = transformers.ViTForImageClassification(config)
        processor = transformers.ViTImageProcessor(**means, resample=3)
    return transformers.pipeline(task, model=model, image_processor=processor)


def test_an_image_classification_pipeline():
    pipe = make_pipeline("image-classification")
    ours = {name: score for _, name, score in becausal.classify(photo(), pipe)}
    theirs = {each["label"]: each["score"] for each in pipe(photo())}
    assert ours == pytest.approx(theirs, abs=5e-3)  # two ways to resize
    info = as_classifier(pipe).info
    assert (info.kind, info.spec) == ("hf", "pipeline ViTForImageClassification")
    assert info.geometry == Geometry((32, 32), "squash", "bicubic")
    assert info.notes == ()
    assert becausal.explain(photo(), pipe, max_calls=200).label == max(theirs, key=theirs.get)


def test_an_object_detection_pipeline():
    pipe = make_pipeline("object-detection", (32, 48))
    ours = becausal.detect(photo(32, 48), as_classifier(pipe, threshold=0.2))
    theirs = sorted(pipe(photo(32, 48), threshold=0.2), key=lambda each: -each["score"])
    assert len(ours) == len(theirs) >= 2
    for our, their in zip(ours, theirs, strict=True):
        assert (our.label, our.score) == (their["label"], pytest.approx(their["score"], abs=1e-3))
        assert our.box == pytest.approx([their["box"][side] for side in ("xmin", "ymin", "xmax", "ymax")], abs=1.01)
    info = as_detector(pipe).info
    assert (info.kind, info.spec) == ("detect:hf", "pipeline YolosForObjectDetection")
    with pytest.raises(ModelError, match="needs its processor: give its object-detection pipeline"):
        becausal.detect(photo(), pipe.model)


def test_pipelines_for_something_else():
    pipe = make_pipeline("image-classification")
    with pytest.raises(ModelError, match="it returns scores per class, not boxes"):
        as_detector(pipe)
    other = types.SimpleNamespace(task="image-segmentation", model=pipe.model, image_processor=pipe.image_processor)
    with pytest.raises(ModelError, match="for image-segmentation; expected image-classification or object-detection"):
        as_classifier(other)


# ---- ultralytics: a stand-in in its form; the real one where it is installed


class Values:
    """A result's boxes or probabilities."""

    def __init__(self, **values):
        vars(self).update({name: torch.tensor(np.asarray(value)) for name, value in values.items()})


class Yolo:
    """As ultralytics: takes arrays as BGR, finds the extent of what is red."""

    def __init__(self, task="detect", **overrides):
        self.task, self.overrides, self.names, self.asked = task, overrides, {0: "red", 1: "blue"}, []

    def predict(self, source, *, imgsz, conf, verbose):
        assert not verbose
        assert conf <= 0.01
        self.asked += [(imgsz, image.shape) for image in source]
        return [self.find(image) for image in source]

    def find(self, image):
        red = image[..., 2] > 200
        if self.task == "classify":
            share = float(red.mean())
            return types.SimpleNamespace(probs=Values(data=[share, 1 - share]))
        rows, columns = np.nonzero(red)
        if not len(rows):
            return types.SimpleNamespace(boxes=Values(xyxy=np.zeros((0, 4)), conf=[], cls=[]))
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        return types.SimpleNamespace(boxes=Values(xyxy=[np.float32(box)], conf=[0.4], cls=[0.0]))


Yolo.__module__ = "ultralytics.models.yolo.model"


def red_square():
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[10:20, 30:50, 0] = 255
    return pixels


def test_a_detector_of_ultralytics():
    model = Yolo(imgsz=64)
    (box,) = becausal.detect(red_square(), model)
    assert (box.label, box.score) == ("red", pytest.approx(0.4))
    assert box.box == pytest.approx((30, 10, 50, 20), abs=1.5)
    info = as_detector(model).info
    assert (info.spec, info.threshold, info.labels) == ("ultralytics Yolo", 0.25, ("red", "blue"))
    assert info.geometry == Geometry((64, 64), "letterbox")
    assert set(map(str, model.asked)) == {"([64, 64], (64, 64, 3))"}
    assert as_classifier(Yolo()).info.geometry.grid == (640, 640)
    assert as_classifier(Yolo(), resize="letterbox/320", threshold=0.5).info.geometry.grid == (320, 320)
    assert becausal.explain(red_square(), model, max_calls=300).label == "red"


def test_a_classifier_of_ultralytics():
    model = Yolo("classify", imgsz=32)
    assert becausal.classify(red_square(), model)[0][1] == "blue"
    info = as_classifier(model).info
    assert (info.output, info.geometry) == ("probabilities", Geometry((32, 32), 32))
    with pytest.raises(ModelError, match=r"is for classify; expected one for detect, segment, pose$"):
        as_detector(model)
    with pytest.raises(ModelError, match=r"is for obb; expected one for detect, segment, pose, classify"):
        as_classifier(Yolo("obb"))
    with pytest.raises(OptionError, match="threshold is for object detectors"):
        as_classifier(model, threshold=0.5)


def test_the_real_ultralytics(monkeypatch, tmp_path):
    monkeypatch.setenv("YOLO_OFFLINE", "1")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    pytest.importorskip("ultralytics")
    import_torchvision()
    from ultralytics import YOLO

    torch.manual_seed(0)
    model = YOLO("yolov8n.yaml")  # random weights: its boxes mean nothing, but are many
    model.overrides["imgsz"] = 64
    pixels = np.asarray(photo(64, 64))
    (theirs,) = model.predict(pixels[..., ::-1].copy(), imgsz=64, conf=0.0, verbose=False)
    ours = becausal.detect(pixels, as_detector(model, threshold=0.01))
    assert [box.score for box in ours] == pytest.approx([s for s in theirs.boxes.conf.tolist() if s >= 0.01], abs=1e-3)
    classifier = YOLO("yolov8n-cls.yaml")
    (theirs,) = classifier.predict(pixels[..., ::-1].copy(), imgsz=64, verbose=False)
    ours = as_classifier(classifier, resize="64/64").classify(pixels[None])[0]
    assert ours == pytest.approx(theirs.probs.data.numpy(), abs=1e-3)


# ---- timm


class Net(torch.nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv, self.fc = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, classes)
        self.num_classes = classes

    def forward(self, batch):
        return self.fc(self.conv(batch).mean((2, 3)))


def test_timm_in_memory(monkeypatch):
    config = {"input_size": (3, 24, 24), "crop_pct": 0.75, "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.2,) * 3}
    data = types.SimpleNamespace(resolve_model_data_config=lambda module: config, infer_imagenet_subset=lambda module: None)
    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(data=data))
    module = Net()
    module.pretrained_cfg = {"label_names": ["n1", "n2", "n3", "n4", "n5"], "label_descriptions": {"n2": "fox"}}
    info = as_classifier(module).info
    assert info.geometry == Geometry((24, 24), 32, "bicubic")
    assert info.labels == ("n1", "fox", "n3", "n4", "n5")
    assert info.notes == ()
    module = Net(3)  # another head
    module.pretrained_cfg = {"label_names": ["n1", "n2", "n3", "n4", "n5"]}
    assert as_classifier(module).info.labels is None


def test_the_real_timm():
    import_torchvision()
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=1000).eval()
    classifier = as_classifier(model, threads=1)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    with torch.no_grad():
        theirs = torch.softmax(model(transform(photo(200, 260))[None]), 1)[0]
    ours = becausal.classify(photo(200, 260), classifier, top=1000)
    assert {i: p for i, _, p in ours} == pytest.approx(dict(enumerate(theirs.tolist())), abs=1e-4)
    assert classifier.info.labels[0].startswith("tench")
    assert classifier.info.notes == ()
    assert as_classifier(timm.create_model("resnet10t", num_classes=7)).info.labels is None


# ---- torchvision


def test_torchvision_in_memory(monkeypatch):
    transform = types.SimpleNamespace(
        crop_size=[24], resize_size=[28], mean=[0.1] * 3, std=[1.0] * 3, interpolation="bicubic"
    )
    count = sum(each.numel() for each in Net(1000).parameters())

    class Weights(str):
        meta = {"num_params": count, "categories": [f"thing {i}" for i in range(1000)]}  # noqa: RUF012
        transforms = staticmethod(lambda: transform)

    class Kinds(tuple):
        DEFAULT = Weights("Net_Weights.V1")

    models = types.ModuleType("torchvision.models")
    models.list_models = lambda module: ["net"] if module is models else []
    models.get_model_weights = lambda name: Kinds()
    library = types.ModuleType("torchvision")
    library.models = models
    monkeypatch.setitem(sys.modules, "torchvision", library)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(Net, "__module__", "torchvision.models.net")
    info = as_classifier(Net(1000)).info
    assert info.geometry == Geometry((24, 24), 28, "bicubic")
    assert info.labels[999] == "thing 999"
    told = "modules of torchvision do not state their weights: Net_Weights.V1 assumed, for preprocessing"
    assert info.notes == (f"{told} and class names",)
    info = as_classifier(Net(3)).info  # another head
    assert (info.geometry.resize, info.labels, info.notes) == (28, None, (told,))
    other = Net(1000)
    other.conv = torch.nn.Conv2d(3, 4, 1)
    assert "224x224 assumed" in " ".join(as_classifier(other).info.notes)


def test_the_real_torchvision():
    models = import_torchvision().models
    torch.manual_seed(0)
    model = models.shufflenet_v2_x0_5().eval()
    transform = models.ShuffleNet_V2_X0_5_Weights.DEFAULT.transforms()
    with torch.no_grad():
        theirs = torch.softmax(model(transform(photo(300, 400))[None]), 1)[0]
    ours = becausal.classify(photo(300, 400), model, top=1000)
    assert {i: p for i, _, p in ours} == pytest.approx(dict(enumerate(theirs.tolist())), abs=1e-4)
    assert "ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1 assumed, for preprocessing and" in as_classifier(model).info.notes[0]
    model.fc = torch.nn.Linear(model.fc.in_features, 4)
    info = as_classifier(model).info
    assert (info.geometry.resize, info.labels) == (256, None)


def test_a_real_detector_of_torchvision():
    make = import_torchvision().models.detection.ssdlite320_mobilenet_v3_large
    torch.manual_seed(0)
    model = make(weights_backbone=None, num_classes=4, score_thresh=0.011, topk_candidates=20).eval()
    image = torch.from_numpy(np.asarray(photo(64, 80)).copy()).permute(2, 0, 1) / 255
    with torch.no_grad():
        (theirs,) = model([image])
    ours = becausal.detect(photo(64, 80), as_classifier(model, threshold=0.011))
    assert [box.score for box in ours] == pytest.approx(theirs["scores"].tolist()[: len(ours)], abs=1e-4)
    assert len(ours) >= 10
    info = as_classifier(make(weights_backbone=None)).info
    assert (info.kind, info.labels[1]) == ("detect:torch", "person")
    assert "SSDLite320_MobileNet_V3_Large_Weights.COCO_V1 assumed, for class names" in info.notes[0]
