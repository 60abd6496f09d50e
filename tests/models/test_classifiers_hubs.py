"""Hugging Face, timm, torchvision and Keras: small models made here, or a stand-in where the library is not."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.core.contracts import Geometry
from becausal.core.errors import EXTRAS, MissingExtraError, ModelError, NetworkError
from becausal.images.loading import load_image, make_view
from becausal.models import as_classifier, load_model

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def photo(h=47, w=60, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((w, h)))


def tiny():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


# ---- Hugging Face


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "fox"},
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "do_resize": true,'
        ' "do_rescale": true, "do_normalize": true, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7],'
        ' "resample": 3, "rescale_factor": 0.00392156862745098}'
    )
    return folder


def test_a_folder_of_hugging_face(vit):
    transformers = pytest.importorskip("transformers")
    classifier = load_model(f"hf:{vit}", threads=1)
    info = classifier.info
    assert info.geometry == Geometry((32, 32), "squash", "bicubic")
    assert info.labels == ("cat", "dog", "fox")
    assert info.notes == ()
    assert len(info.sha256) == 64
    view = make_view(load_image(photo()), info.geometry)
    ours = classifier.classify(view.pixels[None])
    processor = transformers.AutoImageProcessor.from_pretrained(vit)
    batch = processor(Image.fromarray(photo()), return_tensors="pt")["pixel_values"]
    # Where torchvision is installed the processor resizes with it, which rounds some pixels the other way.
    assert torch.allclose(classifier.torch_form()[1](view.pixels[None]), batch, atol=2.5 / 127.5)
    module = transformers.AutoModelForImageClassification.from_pretrained(vit).eval()
    with torch.no_grad():
        theirs = torch.softmax(module(batch).logits, 1).numpy()
    assert np.allclose(ours, theirs, atol=1e-3)


def test_a_module_of_hugging_face_in_memory(vit):
    transformers = pytest.importorskip("transformers")
    classifier = as_classifier(transformers.AutoModelForImageClassification.from_pretrained(vit), preprocess="tf")
    assert classifier.info.labels == ("cat", "dog", "fox")
    assert classifier.info.geometry.grid == (32, 32)


@pytest.mark.parametrize(("h", "w"), [(48, 60), (64, 36), (33, 66)])
def test_geometry_agrees_with_the_processor_itself(h, w):
    transformers = pytest.importorskip("transformers")
    from becausal.models.hubs import read_huggingface

    theirs = transformers.models.convnext.image_processing_pil_convnext.ConvNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_pct=0.875, resample=3
    )
    found = read_huggingface(types.SimpleNamespace(), theirs)
    geometry = Geometry(found.crop, found.resize, found.interpolation)
    ours = found.normalisation.apply(make_view(load_image(photo(h, w)), geometry).pixels)
    batch = theirs(Image.fromarray(photo(h, w)), return_tensors="np")["pixel_values"][0]
    assert geometry == Geometry((28, 28), 32, "bicubic")
    assert np.allclose(np.moveaxis(ours, -1, 0), batch, atol=1e-5)


def processor(name="Processor", **fields):
    defaults = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "resample": 2, "do_normalize": False}
    return type(name, (), {**defaults, **fields})()


CROP = {"height": 224, "width": 224}


@pytest.mark.parametrize(
    ("given", "resize", "grid"),
    [
        (processor(size={"height": 20, "width": 30}), "squash", (20, 30)),
        (processor(size={"shortest_edge": 256}, do_center_crop=True, crop_size=CROP), 256, (224, 224)),
        (processor(size={"height": 256, "width": 256}, do_center_crop=True, crop_size=CROP), (256, 256), (224, 224)),
        (processor("ConvNextImageProcessor", size={"shortest_edge": 224}, crop_pct=0.875), 256, (224, 224)),
        (processor("ConvNextImageProcessor", size={"shortest_edge": 384}, crop_pct=0.875), "squash", (384, 384)),
        (
            processor("LevitImageProcessor", size={"shortest_edge": 224}, do_center_crop=True, crop_size=CROP),
            256,
            (224, 224),
        ),
        (processor(size={"shortest_edge": 48}), 48, (48, 48)),
        (processor(size={"longest_edge": 48}), None, (32, 32)),
        (processor(size=40), "squash", (40, 40)),
        (processor(do_resize=False, size=40), None, (32, 32)),
    ],
)
def test_processors_of_all_sorts(given, resize, grid):
    from becausal.models.hubs import read_huggingface

    config = types.SimpleNamespace(image_size=32, id2label={"0": "a", "1": "b"}, problem_type=None)
    found = read_huggingface(config, given)
    assert (found.resize, found.crop, found.labels) == (resize, grid, ("a", "b"))
    config.problem_type = "multi_label_classification"
    assert read_huggingface(config, None).returns == "multilabel-logits"


def test_normalisation_of_processors():
    from becausal.models.hubs import read_huggingface

    config = types.SimpleNamespace()
    plain = read_huggingface(config, processor(size=8, do_rescale=False)).normalisation
    assert (plain.scale, plain.mean, plain.std) == (1.0, (0.0,), (1.0,))
    flipped = read_huggingface(config, processor(size=8, do_flip_channel_order=True)).normalisation
    assert flipped.order == "bgr"
    offset = processor(size=8, rescale_factor=1 / 127.5, rescale_offset=True)
    assert read_huggingface(config, offset).normalisation.apply(np.full((1, 1, 3), 255, np.uint8)).max() == pytest.approx(1)


def test_the_hub_cannot_be_reached(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NetworkError, match="give the folder, or set HF_HOME"):
        load_model("hf:nobody/nothing-like-this")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE is set"):
        load_model("hf:nobody/nothing-like-this")


def test_a_folder_that_is_no_model(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(f"hf:{tmp_path}")


# ---- timm and torchvision, which do not import beside a CPU torch here: a stand-in with their names


@pytest.mark.smoke
def test_timm(monkeypatch):
    config = {
        "input_size": (3, 24, 24),
        "crop_pct": 0.75,
        "crop_mode": "center",
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.2, 0.3, 0.4),
    }

    def create_model(name, pretrained):
        assert pretrained
        if name != "tiny":
            raise {"far": OSError("no route"), "odd": RuntimeError("Unknown model (odd)")}[name]
        return tiny()

    data = types.SimpleNamespace(
        resolve_model_data_config=lambda module: config,
        infer_imagenet_subset=lambda module: "imagenet",
        ImageNetInfo=lambda subset: types.SimpleNamespace(
            num_classes=lambda: 5, index_to_description=lambda i: f"thing {i}"
        ),
    )
    fake = types.ModuleType("timm")
    fake.create_model, fake.data = create_model, data
    monkeypatch.setitem(sys.modules, "timm", fake)
    classifier = load_model("timm:tiny", threads=1)
    assert classifier.info.geometry == Geometry((24, 24), 32, "bicubic")
    assert classifier.info.labels[4] == "thing 4"
    assert classifier.info.notes == ()
    value = classifier.torch_form()[1](np.full((1, 24, 24, 3), 255, np.uint8))[0, 1, 0, 0].item()
    assert value == pytest.approx(0.5 / 0.3, abs=1e-5)
    config["crop_mode"] = "squash"
    assert load_model("timm:tiny").info.geometry.resize == (32, 32)
    with pytest.raises(NetworkError, match="no route"):
        load_model("timm:far")
    with pytest.raises(ModelError, match="Unknown model"):
        load_model("timm:odd")


@pytest.mark.smoke
def test_torchvision(monkeypatch):
    transform = types.SimpleNamespace(
        crop_size=[24],
        resize_size=[28],
        mean=[0.1, 0.2, 0.3],
        std=[1.0, 1.0, 1.0],
        interpolation=types.SimpleNamespace(value="bicubic"),
    )
    weights = types.SimpleNamespace(transforms=lambda: transform, meta={"categories": list("abcde")})

    def get_model(name, weights):
        if name == "far":
            raise OSError("no route")
        return tiny()

    models = types.ModuleType("torchvision.models")
    models.get_model_weights = lambda name: {"DEFAULT": weights, "V1": weights}
    models.get_model = get_model
    fake = types.ModuleType("torchvision")
    fake.models = models
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    classifier = load_model("torchvision:tiny", threads=1)
    assert classifier.info.geometry == Geometry((24, 24), 28, "bicubic")
    assert classifier.info.labels == tuple("abcde")
    assert load_model("torchvision:tiny:V1").info.spec == "torchvision:tiny:V1"
    assert load_model("torchvision:tiny", resize="squash").info.geometry.resize == "squash"
    with pytest.raises(ModelError, match="no classifier 'tiny:V9'"):
        load_model("torchvision:tiny:V9")
    with pytest.raises(NetworkError, match="no route"):
        load_model("torchvision:far")
    del transform.crop_size
    with pytest.raises(ModelError, match="expected that of a classifier"):
        load_model("torchvision:tiny")


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("library", "spec", "extra"),
    [
        ("transformers", "hf:a/b", "hf"),
        ("timm", "timm:a", "timm"),
        ("torchvision", "torchvision:a", "torchvision"),
    ],
)
def test_libraries_that_are_not_installed(monkeypatch, library, spec, extra):
    expected = rf"pip install torch {library}, or pip install \"\.\[{extra}\]\" in the folder of becausal's source$"
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=f"needs {library}.*{expected}"):
        load_model(spec)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=f"needs torch.*{expected}"):
        load_model(spec)


def test_a_library_that_was_built_for_another_torch(monkeypatch, tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    expected = (
        r"nms does not exist\): install both from the same index, e\.g\. pip install --force-reinstall torch torchvision$"
    )
    with pytest.raises(ModelError, match=expected):
        load_model("torchvision:resnet18")


def test_the_network_of_the_scenes_without_torch(monkeypatch):
    for name in ("becausal.scenes.network", "becausal.models.bundled.network"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install torch, or pip install "):
        importlib.import_module("becausal.scenes.network")


@pytest.mark.smoke
def test_every_hint_names_the_packages_that_pip_installs():
    project = Path(becausal.__file__).parents[2] / "pyproject.toml"
    listed = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    packages = {extra: tuple(re.match(r"[\w-]+", line)[0] for line in lines) for extra, lines in listed.items()}
    assert {extra: names for extra, names in packages.items() if extra not in ("docs", "dev")} == EXTRAS
    for path in Path(becausal.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "MissingExtraError":
                extra = call.args[1]
                assert not isinstance(extra, ast.Constant) or extra.value in EXTRAS, path
    error = MissingExtraError("opencv", "inpaint", "the fill inpaint")
    expected = 'pip install opencv-python-headless, or pip install ".[inpaint]" in the folder of becausal\'s source'
    assert str(error) == f"the fill inpaint needs opencv, which is not installed: {expected}"


# ---- Keras


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


@pytest.mark.parametrize("others", [True, False])
def test_keras_without_its_backend(tmp_path, others):
    (tmp_path / "net.keras").touch()
    hidden = ["tensorflow"] if others else ["tensorflow", "torch", "jax"]
    code = f"""
import importlib.abc, importlib.util, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {hidden!r} else found(name, package)
sys.meta_path.insert(0, Hidden())
from becausal.interfaces.cli.app import main
raise SystemExit(main(["inspect", {str(tmp_path / "net.keras")!r}]))
"""
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    advice = "set KERAS_BACKEND=torch" if others else "pip install torch, then set KERAS_BACKEND=torch"
    assert f"Keras is installed, but needs tensorflow, its backend, which is not installed: {advice}" in done.stderr


def test_keras_that_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "net.keras").touch()
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingExtraError, match="pip install keras torch, then set KERAS_BACKEND=torch"):
        load_model(f"keras:{tmp_path / 'net.keras'}")


def network(keras, *, end, own=False, units=3):
    layers = [keras.layers.Input((12, 10, 3)), *([keras.layers.Rescaling(1 / 255)] if own else [])]
    layers += [keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
    return keras.Sequential([*layers, keras.layers.Dense(units, activation=end)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("end", ["softmax", "linear"])
def test_a_keras_file(tmp_path, keras, end):
    model = network(keras, end=end)
    model.save(tmp_path / "net.keras")
    prefix = "keras:" if end == "linear" else ""  # the suffix is enough
    classifier = load_model(f"{prefix}{tmp_path / 'net.keras'}", preprocess="tf", labels=list("abc"))
    assert classifier.info.spec == f"keras:{tmp_path / 'net.keras'}"
    assert classifier.info.geometry.grid == (12, 10)
    assert classifier.info.notes == ()
    batch = np.random.default_rng(0).integers(0, 256, (4, 12, 10, 3)).astype(np.uint8)
    raw = keras.ops.convert_to_numpy(model(batch.astype("float32") / 127.5 - 1, training=False))
    expected = raw if end == "softmax" else np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
    assert np.allclose(classifier.classify(batch), expected, atol=1e-5)
    visible = np.random.default_rng(1).random((3, 12, 10)) < 0.5
    asked = classifier.ask([classifier.stage(batch[0], batch[1])], np.zeros(3, np.intp), visible)
    composed = np.where(visible[..., None], batch[0], batch[1])
    assert np.allclose(asked, classifier.classify(composed), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_keras_models_in_memory(keras):
    own = as_classifier(network(keras, end="softmax", own=True))
    assert own.info.kind == "keras"
    assert own.info.normalisation.startswith("raw")
    assert "its own Rescaling layer" in own.info.notes[0]
    many = as_classifier(network(keras, end="sigmoid"), preprocess="tf")
    assert many.info.output == "multilabel"
    two = as_classifier(network(keras, end="sigmoid", units=1), preprocess="tf")
    assert two.info.output == "probabilities"
    assert two.info.labels == ("not positive", "positive")
    with pytest.raises(ModelError, match="need 4 axes"):
        as_classifier(keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(2)]))


@pytest.mark.filterwarnings("ignore")
def test_a_file_that_is_no_keras_model(tmp_path, keras):
    (tmp_path / "a.keras").write_text("hello")
    with pytest.raises(ModelError, match="cannot be loaded as a Keras model"):
        load_model(f"keras:{tmp_path / 'a.keras'}")
