"""Torch modules on a CPU: run by onnxruntime where that computes the same, by torch otherwise, with a note."""

import gc
import io
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal.core.errors import ModelError, OptionError
from becausal.models import as_classifier, load_model
from becausal.models.preprocess import PRESETS
from becausal.scenes import make_scene

torch = pytest.importorskip("torch")
from becausal.models.torch_runtime import MIN_PARAMETERS, ModuleRuntime, count_parameters, make_mutants  # noqa: E402
from torch import nn  # noqa: E402

from becausal.models import torch_runtime  # noqa: E402
from becausal.models.torch_compose import HostComposer  # noqa: E402
from becausal.models.torch_export import export_module, largest_difference, read_state, reads_values  # noqa: E402

is_slower = ModuleRuntime._is_slower


@pytest.fixture(autouse=True)
def _small_world(monkeypatch):
    """One thread; and measured times decide nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(ModuleRuntime, "_is_slower", lambda *_: False)
    monkeypatch.setattr(torch_runtime, "_CHOICES", type(torch_runtime._CHOICES)())
    yield
    torch.set_num_threads(before)


def body(hidden=8, channels=3):
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 10 * 8, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 4)).eval()


def large():
    module = body(hidden=2200)
    assert count_parameters(module) > MIN_PARAMETERS
    return module


def wrap(module, runtime="onnxruntime", **options):
    return as_classifier(module, preprocess="tf", resize="12/12x10", runtime=runtime, returns="logits", **options)


def pixels(n=5, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 12, 10, 3)).astype(np.uint8)


def in_torch(module, batch):
    values = torch.from_numpy(np.moveaxis(PRESETS["tf"].apply(batch), -1, 1).copy())
    with torch.no_grad():
        return torch.softmax(module(values), 1).numpy()


def runs_in_onnxruntime(classifier):
    used = classifier._runtime.uses_onnxruntime
    assert used == any("runs in onnxruntime" in note for note in classifier.info.notes)
    return used


def test_a_large_module_is_exported_and_returns_the_same():
    module = large()
    classifier = wrap(module, "auto", threads=1)
    assert runs_in_onnxruntime(classifier)
    assert any("the same within 0.0001 (--runtime torch" in note for note in classifier.info.notes)
    assert classifier.info.loading == {"preprocess": "tf", "resize": "12/12x10", "returns": "logits"}
    assert classifier._runtime._choice.session.get_session_options().intra_op_num_threads == 1
    assert not module.training
    assert np.allclose(classifier.classify(pixels()), in_torch(module, pixels()), atol=1e-6)
    views, grounds = pixels(2), pixels(2, seed=1)
    visible = np.random.default_rng(2).random((7, 12, 10)) < 0.5
    which = np.array([0, 1, 1, 0, 0, 1, 0])
    staged = [classifier.stage(v, g) for v, g in zip(views, grounds, strict=True)]
    composed = np.where(visible[..., None], views[which], grounds[which])
    assert np.allclose(classifier.ask(staged, which, visible), in_torch(module, composed), atol=1e-6)


def test_a_small_module_is_not_exported_unless_asked_for():
    assert not runs_in_onnxruntime(wrap(body(), "auto"))
    assert wrap(body(), "auto").info.notes == ()
    assert runs_in_onnxruntime(wrap(body()))
    asked = wrap(large(), "torch")
    assert not runs_in_onnxruntime(asked)
    assert asked.info.notes == ()
    assert asked.info.loading["runtime"] == "torch"


class Around(nn.Module):
    """A module, with something around it."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or body()

    def forward(self, x):
        return self.inner(x)


class Forms(Around):
    form = "tuple"

    def forward(self, x):
        y = self.inner(x)
        return {"dict": {"other": x, "logits": y}, "tuple": (y, x), "object": type("Out", (), {"logits": y})()}[self.form]


@pytest.mark.parametrize("form", ["dict", "tuple", "object"])
def test_forms_of_output(form):
    module = Forms()
    module.form = form
    classifier = wrap(module)
    assert runs_in_onnxruntime(classifier)
    assert np.allclose(classifier.classify(pixels()), in_torch(module.inner, pixels()), atol=1e-6)


class Caches(Around):
    """Keeps a tensor that it computed for the first batch, without gradients."""

    kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = torch.ones(4) * 2
        return self.inner(x) * self.kept


@pytest.mark.parametrize("make", [Caches, lambda: torch.jit.trace(body(), torch.zeros(2, 3, 12, 10))])
def test_modules_that_keep_tensors_and_scripted_ones_are_exported(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        module = make()
    classifier = wrap(module)
    assert runs_in_onnxruntime(classifier)
    assert np.allclose(classifier.classify(pixels()), in_torch(module, pixels()), atol=1e-6)


class Writes(Around):
    def forward(self, x):
        return self.inner(x.mul_(2))


def test_a_module_that_writes_to_its_input():
    classifier = wrap(Writes())
    expected = np.concatenate([in_torch(Writes(), pixels(1, seed)) for seed in range(3)])
    assert np.allclose([classifier.classify(pixels(1, seed))[0] for seed in range(3)], expected, atol=1e-6)


class CountsInPlace(Around):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return self.inner(x)


class CountsUnseen(CountsInPlace):
    def forward(self, x):
        self.count.data.add_(1)
        return self.inner(x)


class CountsInPython(Around):
    count = 0

    def forward(self, x):
        self.count += 1
        return self.inner(x)


class Remembers(Around):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        return self.inner(x)


class RareBranch(Around):
    """None of the probe images takes the other branch."""

    def forward(self, x):
        y = self.inner(x)
        return -y if y.abs().max() > 1e6 else y


class OneByOne(Around):
    """A trace has as many steps as it had images."""

    def forward(self, x):
        return torch.cat([self.inner(x[i : i + 1]) for i in range(x.shape[0])])


class Drops(Around):
    def forward(self, x):
        return self.inner(nn.functional.dropout(x, 0.5, training=True))


class Transforms(Around):
    def forward(self, x):
        return self.inner(torch.fft.fft2(x).abs())


class Converts(Around):
    def forward(self, x):
        return self.inner(torch.from_numpy(x.detach().numpy() * 2))


def hooked():
    module = body()
    module[1].register_forward_hook(lambda *_: None)
    return module


REASONS = {
    CountsInPlace: "changes its own state",
    CountsUnseen: "changes its own state",
    CountsInPython: "changes its own state",
    Remembers: "changes its own state",
    RareBranch: "control flow may depend on the image",
    OneByOne: "outputs differ by inf",
    Drops: "outputs differ by",
    Transforms: r"cannot be exported to ONNX \(Unsupported",
    Converts: "control flow may depend|outputs differ",
    hooked: "it has hooks",
}


@pytest.mark.parametrize("make", REASONS)
def test_a_module_that_an_export_does_not_represent_stays_in_torch(make, monkeypatch, capfd):
    monkeypatch.setattr(torch_runtime, "MIN_PARAMETERS", 1)
    with pytest.raises(ModelError, match=REASONS[make]) as raised:
        wrap(make())
    assert str(raised.value).endswith("; remove --runtime onnxruntime")
    module = make()
    classifier = wrap(module, "auto")
    assert not runs_in_onnxruntime(classifier)
    (note,) = classifier.info.notes
    assert note.startswith("the module runs in torch: ")
    assert "\n" not in note
    if make is not Drops:
        assert np.allclose(classifier.classify(pixels()), in_torch(module, pixels()), atol=1e-6)
    assert capfd.readouterr() == ("", "")  # torch would print the graph that it cannot export


class ChecksItsInput(Around):
    """As Hugging Face's modules do; the tracer cannot tell this from a condition on values."""

    def forward(self, x):
        if x.shape[2] != 12 or x.shape[1] != 3:
            raise ValueError("wrong size")
        return self.inner(x)


def test_a_module_that_checks_the_size_of_its_input_is_exported():
    images = torch.zeros(2, 3, 12, 10)
    assert export_module(ChecksItsInput().eval(), images).is_in_doubt
    assert not reads_values(ChecksItsInput(), images)
    assert runs_in_onnxruntime(wrap(ChecksItsInput()))


@pytest.mark.parametrize("read", [
    lambda x: bool(x.max() > 9), lambda x: x.max().item(), lambda x: float(x.max()), lambda x: int(x.max()),
    lambda x: x.detach().numpy(), lambda x: np.asarray(x.detach()), lambda x: x.tolist(), lambda x: torch.equal(x, x + 1),
    lambda x: torch.allclose(x, x + 1), lambda x: 9.0 in x, lambda x: [1, 2][x.max().long()],
])  # fmt: skip
def test_every_way_to_read_a_value_is_noticed(read):
    module = Around()
    module.forward = lambda x: (read(x), module.inner(x))[1]
    images = torch.zeros(2, 3, 12, 10)
    assert reads_values(module, images)
    assert export_module(module.eval(), images).is_in_doubt


def test_why_a_large_module_may_stay_in_torch(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        assert wrap(large(), "auto").info.notes[0].endswith("pip install onnx (the extra becausal[torch])")
    with monkeypatch.context() as patch:
        patch.setattr(torch_runtime, "_MAX_BYTES", 1000)
        assert "larger than 1 GB" in wrap(large(), "auto").info.notes[0]
        assert runs_in_onnxruntime(wrap(large()))
    monkeypatch.setattr(ModuleRuntime, "_is_slower", lambda *_: True)
    monkeypatch.setattr(torch_runtime, "_CLEARLY_FASTER", 0.0)
    assert wrap(large(), "auto").info.notes == ("the module runs in torch: onnxruntime is slower here",)
    assert runs_in_onnxruntime(wrap(large()))  # asked for


@pytest.mark.parametrize(("times", "expected"), [
    ((1.0, 1.0, 1.0, 1.0), False),
    ((1.1, 1.0, 1.3, 1.2), False),
    ((1.3, 1.1, 1.4, 1.0), True),
    ((1.3, 1.0, 0.9, 1.0), False),
])  # fmt: skip
def test_onnxruntime_may_be_a_little_slower(times, expected, monkeypatch):
    """In the better of two rounds, onnxruntime first."""
    runtime, left = wrap(body())._runtime, list(times)
    monkeypatch.setattr(torch_runtime, "_measure", lambda function: (function(), left.pop(0))[1])
    assert is_slower(runtime, runtime._choice.session, torch.zeros(2, 3, 12, 10)) == expected
    assert not left


def train(module):
    module(torch.ones(2, 3, 12, 10))[:, 1].sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(0.1 * parameter.grad)


def write_unseen(module):
    for parameter in module.parameters():
        parameter.data.mul_(1.5)


def load_weights(module):
    module.load_state_dict({name: value * 1.5 for name, value in module.state_dict().items()})


def swap_layer(module):
    module[5] = nn.Linear(8, 4).eval()


@pytest.mark.parametrize("change", [train, write_unseen, load_weights, swap_layer])
def test_new_weights_are_noticed(change):
    module = body()
    classifier = wrap(module)
    before = classifier.classify(pixels())
    change(module)
    expected = in_torch(module, pixels())
    assert not np.allclose(before, expected, atol=1e-3)
    pair = classifier.stage(pixels()[0], pixels()[1])
    assert np.allclose(classifier.ask([pair], np.zeros(1, np.intp), np.ones((1, 12, 10), bool)), expected[:1], atol=1e-6)
    assert np.allclose(classifier.classify(pixels()), expected, atol=1e-6)
    assert runs_in_onnxruntime(classifier)
    assert np.allclose(wrap(module).classify(pixels()), expected, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 479), st.integers(0, 7), st.integers(0, 31))
def test_a_change_of_any_bit_of_a_weight_changes_the_state(column, row, bit):
    module = body()
    before = read_state(module)
    assert read_state(module) == before
    bits = module[3].weight.detach().numpy().view(np.uint32)
    bits[row, column] ^= np.uint32(1) << np.uint32(bit)
    assert read_state(module) != before


def test_hooks_and_training_mode_are_noticed_later(monkeypatch):
    monkeypatch.setattr(torch_runtime, "MIN_PARAMETERS", 1)
    module = body()
    classifier = wrap(module, "auto")
    assert runs_in_onnxruntime(classifier)
    seen = []
    module.register_forward_hook(lambda *_: seen.append(1))
    seen.clear()
    classifier.classify(pixels())
    assert seen
    assert not runs_in_onnxruntime(classifier)
    module = body()
    module.append(nn.Dropout(0.0))
    classifier = wrap(module, "auto")
    module.train()
    module[1].eval()
    classifier.classify(pixels())
    assert classifier.info.notes == ("the module runs in torch: it is in training mode",)
    assert module.training  # as the user left it
    assert not module[1].training


def test_a_module_is_exported_once(monkeypatch):
    exported = []

    def export(module, images):
        exported.append(module)
        return export_module(module, images)

    monkeypatch.setattr(torch_runtime, "export_module", export)
    module = body()
    for _ in range(3):
        wrap(module).classify(pixels())
    assert len(exported) == 1
    wrap(body())
    assert len(exported) == 2
    write_unseen(module)
    wrap(module)
    assert len(exported) == 3
    exported.clear()
    del module
    gc.collect()
    assert not list(torch_runtime._CHOICES)  # nothing keeps a module alive


def test_gradients_come_from_the_module():
    module = body()
    classifier = wrap(module)
    inner, prepare = classifier.torch_form()
    assert inner is module
    entry = classifier.gradient_input(pixels(1))
    module(entry)[0, 0].backward()
    assert entry.grad.abs().sum() > 0
    assert prepare(pixels(1)).shape == (1, 3, 12, 10)


class Padded(Around):
    def forward(self, x):
        return self.inner(nn.functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:])


def test_a_padding_states_its_value():
    """Otherwise onnxruntime does not merge it with the next convolution, which takes a quarter longer."""
    onnx = pytest.importorskip("onnx")
    data = export_module(Padded().eval(), torch.zeros(2, 3, 12, 10)).data
    pads = [node for node in onnx.load(io.BytesIO(data)).graph.node if node.op_type == "Pad"]
    assert [bool(node.input[2]) for node in pads] == [True]


class Reshapes(Around):
    def forward(self, x):
        features = self.inner[1](self.inner[0](x))
        return self.inner[3:](features.view(len(x), -1))  # fails with channels last


@pytest.mark.parametrize(("make", "times", "expected"), [
    (large, (2.0, 1.0), True),
    (large, (1.0, 2.0), False),
    (body, (2.0, 1.0), False),
    (lambda: Reshapes(large()), (2.0, 1.0), False),
])  # fmt: skip
def test_channels_are_last_where_torch_is_faster_so(make, times, expected, monkeypatch):
    left = [times[0]] * 3 + [times[1]] * 3
    monkeypatch.setattr(torch_runtime, "_measure", lambda function: (function(), left.pop(0))[1])
    module = make()
    classifier = wrap(module, "torch")
    first = next(part for part in module.modules() if isinstance(part, nn.Conv2d)).weight
    assert first.is_contiguous(memory_format=torch.channels_last) == expected
    batch = classifier._composer.to_tensor(pixels())
    assert batch.is_contiguous(memory_format=torch.channels_last) == expected
    assert np.allclose(classifier.classify(pixels()), in_torch(make(), pixels()), atol=1e-6)
    visible = np.random.default_rng(2).random((4, 3, 12, 10)) < 0.1
    staged = [classifier.stage(*pixels(2))]
    for wave in visible:
        composed = np.where(wave[..., None], pixels(2)[0], pixels(2)[1])
        assert np.allclose(classifier.ask(staged, np.zeros(3, np.intp), wave), in_torch(make(), composed), atol=1e-6)


@pytest.mark.parametrize("preset", [*PRESETS])
def test_both_orders_in_memory_hold_the_same_values(preset):
    first, last = HostComposer(PRESETS[preset]), HostComposer(PRESETS[preset], is_channels_last=True)
    visible, which = np.random.default_rng(0).random((5, 12, 10)) < 0.5, np.zeros(5, np.intp)
    batches = [made.compose([made.stage(*pixels(2))], which, visible) for made in (first, last)]
    assert torch.equal(*batches)
    assert torch.equal(first.to_tensor(pixels()), last.to_tensor(pixels()))


def test_mutants_are_half_of_one_probe_image_and_half_of_another():
    images = torch.arange(6.0).reshape(6, 1, 1, 1).expand(6, 3, 12, 10)
    noise, gradient = make_mutants(images)
    assert noise[0, 0].tolist() == [2.0] * 5 + [5.0] * 5
    assert gradient[0, :, 0].tolist() == [0.0] * 6 + [3.0] * 6


def test_differences():
    assert largest_difference(np.array([[1.0, 2.0]]), np.array([[1.0, 2.5]])) == 0.25
    assert largest_difference(np.array([[0.1, 0.2]]), np.array([[0.1, 0.3]])) == pytest.approx(0.1)
    assert largest_difference(np.zeros((1, 2)), np.zeros((2, 2))) == float("inf")
    assert largest_difference(np.array([[np.nan]]), np.array([[np.nan]])) == float("inf")


def test_explanations_are_those_of_torch():
    from becausal.scenes.network import load_network

    image = make_scene(100).image
    found = [
        becausal.explain(image, as_classifier(load_network(), preprocess="tf", resize=128, runtime=runtime), max_calls=60)
        for runtime in ("torch", "onnxruntime")
    ]
    assert np.array_equal(found[0].visible, found[1].visible)
    assert found[0].stats.calls == found[1].stats.calls
    assert any("runs in onnxruntime" in note for note in found[1].notes)
    assert found[1].origin.loading["runtime"] == "onnxruntime"


def test_options():
    with pytest.raises(OptionError, match="unknown runtime 'tensorrt'; expected one of auto, torch, onnxruntime"):
        wrap(body(), "tensorrt")
    with pytest.raises(OptionError, match="on the CPU only, not on 'cuda'"):
        wrap(body(), "onnxruntime", device="cuda")
    with pytest.raises(OptionError, match="runtime is for torch classifiers, not for bundled models"):
        load_model("bundled", runtime="onnxruntime")
    with pytest.raises(OptionError, match="runtime is for torch modules, not for function"):
        as_classifier(lambda batch: batch, runtime="torch")


def test_inspect_says_what_runs_a_module(tmp_path, capsys):
    from becausal.interfaces.cli.app import main

    (tmp_path / "net.py").write_text(
        "from torch import nn\nSIZE, PREPROCESS, RETURNS = 12, 'tf', 'logits'\n"
        "def build():\n    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    assert main(["inspect", f"torch:{tmp_path}/net.py:build", "--runtime", "onnxruntime"]) == 0
    assert "the module runs in onnxruntime" in " ".join(capsys.readouterr().out.split())
