"""Torch modules: from memory and from files, with scores, gradients and half of a GPU's way on the CPU."""

import sys

import numpy as np
import pytest

from becausal.core.errors import MissingExtraError, ModelError
from becausal.models import as_classifier, load_model
from becausal.models.preprocess import PRESETS, parse_normalisation
from becausal.models.torch_device import DeviceComposer, HostComposer

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(channels=3, classes=4, end=None):
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 6, 3, stride=2), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers.append(nn.Linear(6, classes))
    return nn.Sequential(*layers, *([end] if end is not None else []))


def pixels(n=5, h=12, w=10, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, h, w, 3)).astype(np.uint8)


def run(module, preset, batch):
    values = torch.from_numpy(np.moveaxis(PRESETS[preset].apply(batch), -1, 1).copy())
    with torch.no_grad():
        return module(values)


def test_a_module_from_memory():
    module = small().train()
    classifier = as_classifier(module, preprocess="tf", resize="14/12x10", labels=list("abcd"))
    assert not module.training
    assert classifier.module is module
    assert classifier.info.geometry.grid == (12, 10)
    assert classifier.info.geometry.resize == 14
    assert any("softmax applied once" in note for note in classifier.info.notes)
    expected = torch.softmax(run(module, "tf", pixels()), 1).numpy()
    assert np.allclose(classifier.classify(pixels()), expected, atol=1e-6)


def test_asking_equals_classifying_what_was_composed():
    classifier = as_classifier(small(), preprocess="imagenet", resize="12/12x10", batch_size=4)
    views, grounds = pixels(2), pixels(2, seed=1)
    visible = np.random.default_rng(2).random((7, 12, 10)) < 0.5
    visible.flags.writeable = False
    which = np.array([0, 1, 1, 0, 0, 1, 0])
    staged = [classifier.stage(v, g) for v, g in zip(views, grounds, strict=True)]
    composed = np.where(visible[..., None], views[which], grounds[which])
    assert np.allclose(classifier.ask(staged, which, visible), classifier.classify(composed), atol=1e-6)
    one = classifier.ask(staged[:1], np.zeros(7, np.intp), visible)
    assert np.allclose(one, classifier.classify(np.where(visible[..., None], views[0], grounds[0])), atol=1e-6)


class Doubling(nn.Module):
    """Works on its input, in place or not; from a number of batches on."""

    def __init__(self, how, after=0):
        super().__init__()
        self.how, self.left = how, after

    def forward(self, x):
        self.left -= 1
        if self.how == "plainly" or self.left >= 0:
            return x * 2
        return x.mul_(2) if self.how == "in place" else x.data.mul_(2)


@pytest.mark.parametrize(("how", "after"), [("in place", 0), ("in place", 3), ("unseen", 0)])
def test_a_module_that_writes_to_its_input_is_asked_about_the_right_mutants(how, after):
    rng = np.random.default_rng(0)
    visible = rng.random((4, 3, 12, 10)) < 0.05  # little enough that rows of the batch would not be written whole

    def answers(how):
        classifier = as_classifier(nn.Sequential(Doubling(how, after), small()), preprocess="tf", resize="12/12x10")
        staged = [classifier.stage(*pixels(2))]
        return [classifier.ask(staged, np.zeros(3, np.intp), wave) for wave in visible]

    assert all(np.array_equal(a, b) for a, b in zip(answers(how), answers("plainly"), strict=True))


@pytest.mark.parametrize("preset", [*PRESETS, "caffe:104,117,123"])
def test_both_composers_make_the_same_bits(preset):
    """The GPU's composer, on the CPU: bits are packed and unpacked, channels lie last in memory."""
    normalisation = parse_normalisation(preset)
    host, device = HostComposer(normalisation), DeviceComposer(normalisation, "cpu")
    views, grounds = pixels(2), pixels(2, seed=1)
    visible = np.random.default_rng(2).random((5, 12, 10)) < 0.5
    which = np.array([0, 1, 1, 0, 1])
    pairs = list(zip(views, grounds, strict=True))
    ours = device.compose([device.stage(*pair) for pair in pairs], which, visible)
    theirs = host.compose([host.stage(*pair) for pair in pairs], which, visible)
    composed = host.to_tensor(np.where(visible[..., None], views[which], grounds[which]))
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, composed)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    single = device.compose([device.stage(*pairs[0])], np.zeros(5, np.intp), visible)
    assert single.shape == (5, 3, 12, 10)
    assert single.is_contiguous(memory_format=torch.channels_last)
    assert device.to_tensor(views).dtype == torch.float32


def test_gradients_after_asking():
    classifier = as_classifier(small(), preprocess="tf", resize="12/12x10")
    classifier.classify(pixels())
    module, prepare = classifier.torch_form()
    entry = prepare(pixels(1)).requires_grad_(True)
    module(entry)[0, 0].backward()
    assert entry.grad.shape == (1, 3, 12, 10)


class Wrapped(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.body, self.form = small(), form

    def forward(self, x):
        y = self.body(x)
        return {"dict": {"logits": y}, "tuple": (y, x), "object": type("Output", (), {"logits": y})()}[self.form]


@pytest.mark.parametrize("form", ["dict", "tuple", "object"])
def test_forms_of_output(form):
    classifier = as_classifier(Wrapped(form), preprocess="tf", resize="12/12x10")
    assert classifier.classify(pixels()).shape == (5, 4)


def test_probabilities_one_column_and_grey():
    sure = as_classifier(small(end=nn.Softmax(1)), preprocess="tf", resize="12/12x10")
    assert np.allclose(sure.classify(pixels()), run(sure.module, "tf", pixels()).numpy(), atol=1e-6)
    two = as_classifier(small(classes=1), preprocess="tf", resize="12/12x10", returns="logits", labels=["cat"])
    assert two.info.labels == ("not cat", "cat")
    assert np.allclose(two.classify(pixels()).sum(axis=1), 1)
    grey = as_classifier(small(channels=1), resize="12/12x10")
    assert grey.info.channels == 3
    assert any("luminance" in note for note in grey.info.notes)
    assert grey.torch_form()[1](pixels(2)).shape == (2, 1, 12, 10)


FILE = """
import torch
from torch import nn
SIZE = (12, 10)
RESIZE = 14
PREPROCESS = "tf"
LABELS = ["a", "b"]
RETURNS = "logits"

def build(classes="2"):
    return nn.Sequential(nn.Conv2d(3, int(classes), 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def wrong():
    return 3

def broken():
    raise RuntimeError("two\\nlines")
"""


def test_a_file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FILE)
    classifier = load_model(f"torch:{path}:build")
    assert classifier.info.notes == ()
    assert classifier.info.normalisation.startswith("tf")
    assert classifier.info.geometry.grid == (12, 10)
    assert classifier.info.geometry.resize == 14
    assert load_model(f"torch:{path}:build:3", labels=list("abc")).classify(pixels()).shape == (5, 3)
    for spec, words in [
        ("wrong", "returned int; expected a torch"),
        ("broken", r"RuntimeError: two lines \(net.py, line 17\)"),
        ("build:x", "ValueError"),
        ("build:3", "2 labels but the model has 3"),
        ("missing", "no function 'missing'; it has"),
    ]:
        with pytest.raises(ModelError, match=words):
            load_model(f"torch:{path}:{spec}")
    with pytest.raises(ModelError, match="cannot classify a batch"):
        as_classifier(nn.Linear(3, 3))


def test_devices():
    with pytest.raises(ModelError, match="unknown torch device"):
        as_classifier(small(), device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="no CUDA device"):
            as_classifier(small(), device="cuda")
        return
    classifier = as_classifier(small(), device="cuda", half=True, preprocess="tf", resize="12/12x10", batch_size=64)
    assert classifier.fixed_sizes == (8, 16, 32, 64)
    visible = np.random.default_rng(2).random((16, 12, 10)) < 0.5
    asked = classifier.ask([classifier.stage(*pixels(2))], np.zeros(16, np.intp), visible)
    assert asked.shape == (16, 4)


def test_a_batch_that_does_not_fit_the_memory_is_asked_in_smaller_parts():
    module = small()
    classifier = as_classifier(module, preprocess="tf", resize="12/12x10")
    sizes = []

    def refuse(_, inputs):
        sizes.append(len(inputs[0]))
        if sizes[-1] > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    expected = classifier.classify(pixels(23))
    hook = module.register_forward_pre_hook(refuse)
    assert np.allclose(classifier.classify(pixels(23)), expected, atol=1e-6)
    assert sizes[:4] == [23, 16, 8, 4]
    hook.remove()


def test_torch_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[torch\]"):
        load_model(f"torch:{tmp_path}/net.py:build")
