"""ONNX files of every shape: made here, one node or two each."""

from pathlib import Path

import numpy as np
import pytest

import becausal.models.bundled
from becausal.core.errors import ModelError
from becausal.models import load_model, onnx_file
from becausal.models.loading import Loading, ModelSettings
from becausal.models.preprocess import PRESETS

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

TYPES = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16, "u1": TensorProto.UINT8, "f8": TensorProto.DOUBLE}


def make(path, shape, *, layout="nchw", ends=("softmax",), kind="f4", names=("scores",), classes=4, sides=(6, 8)):
    """A network: the mean over all pixels, channel by channel, times fixed weights, then each of `ends`."""
    axes = [2, 3] if layout == "nchw" else [1, 2]
    channels = shape[1] if layout == "nchw" else shape[3]
    weights = np.random.default_rng(0).normal(0, 2, (channels, classes)).astype(np.float32)
    tables = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(axes, np.int64), "axes")]
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["f", "axes"], ["m"], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["z"]),
    ]
    outputs = []
    for end, name in zip(ends, names, strict=True):
        node = {
            "softmax": lambda n: helper.make_node("Softmax", ["z"], [n], axis=1),
            "none": lambda n: helper.make_node("Identity", ["z"], [n]),
            "sigmoid": lambda n: helper.make_node("Sigmoid", ["z"], [n]),
            "argmax": lambda n: helper.make_node("ArgMax", ["z"], [n], axis=1, keepdims=0),
            "pixels": lambda n: helper.make_node("Identity", ["f"], [n]),
        }[end](name)
        nodes.append(node)
        whole = end == "argmax"
        dims = [shape[0]] if whole else shape if end == "pixels" else [shape[0], classes]
        outputs.append(helper.make_tensor_value_info(name, TensorProto.INT64 if whole else TensorProto.FLOAT, dims))
    entry = helper.make_tensor_value_info("x", TYPES[kind], shape)
    graph = helper.make_graph(nodes, "g", [entry], outputs, tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path, weights


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def pixels(n=5, shape=(6, 8, 3)):
    """Images of different means, so that classes differ."""
    rng = np.random.default_rng(1)
    return np.clip(rng.integers(0, 256, (n, 1, 1, shape[2])) + rng.integers(-9, 9, (n, *shape)), 0, 255).astype("u1")


def expected(weights, batch, preset="imagenet"):
    return softmax(PRESETS[preset].apply(batch).mean(axis=(1, 2)) @ weights)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layouts_are_told_by_the_shape(tmp_path, layout):
    shape = ["N", 3, 6, 8] if layout == "nchw" else ["N", 6, 8, 3]
    path, weights = make(tmp_path / "net.onnx", shape, layout=layout)
    classifier = load_model(path)
    assert classifier.info.geometry.grid == (6, 8)
    assert np.allclose(classifier.classify(pixels()), expected(weights, pixels()), atol=1e-5)
    assert any("imagenet assumed" in note for note in classifier.info.notes)
    assert any("probabilities" in note for note in classifier.info.notes)
    assert classifier.info.sha256 is not None
    assert classifier.fixed_sizes == ()


def test_an_ambiguous_layout_is_said(tmp_path):
    path, _ = make(tmp_path / "net.onnx", ["N", 3, 6, 3])
    classifier = load_model(path, preprocess="tf")
    assert "nchw assumed" in classifier.info.notes[0]
    (tmp_path / "net.toml").write_text('layout = "nchw"\npreprocess = "tf"')
    assert not any("assumed" in note for note in load_model(path).info.notes)


def test_a_fixed_batch_is_padded(tmp_path):
    path, weights = make(tmp_path / "net.onnx", [4, 3, 6, 8])
    classifier = load_model(path, preprocess="tf")
    assert classifier.batch_size == 4
    assert classifier.fixed_sizes == (4,)
    for count in (1, 4, 7):
        batch = pixels(count)
        assert np.allclose(classifier.classify(batch), expected(weights, batch, "tf"), atol=1e-5)
    staged = classifier.stage(pixels()[0], pixels()[1])
    visible = np.ones((3, 6, 8), bool)
    asked = classifier.ask([staged], np.zeros(3, np.intp), visible)
    assert np.allclose(asked, expected(weights, pixels()[[0, 0, 0]], "tf"), atol=1e-5)


@pytest.mark.parametrize(("kind", "preset"), [("u1", "raw"), ("f2", "imagenet"), ("f8", "imagenet")])
def test_types_of_input(tmp_path, kind, preset):
    path, weights = make(tmp_path / "net.onnx", ["N", 3, 6, 8], kind=kind)
    classifier = load_model(path)
    assert f"{preset}:" in classifier.info.normalisation
    tolerance = 5e-3 if kind == "f2" else 1e-4
    assert np.allclose(classifier.classify(pixels()), expected(weights, pixels(), preset), atol=tolerance)
    view, background = pixels(2)
    visible = np.random.default_rng(0).random((3, 6, 8)) < 0.5
    asked = classifier.ask([classifier.stage(view, background)], np.zeros(3, np.intp), visible)
    assert np.array_equal(asked, classifier.classify(np.where(visible[..., None], view, background)))


def test_one_softmax_at_most(tmp_path):
    for end, name in (("none", "logits"), ("none", "y"), ("softmax", "probs"), ("softmax", "y"), ("softmax", "logits")):
        path, weights = make(tmp_path / "net.onnx", ["N", 3, 6, 8], ends=(end,), names=(name,))
        assert np.allclose(load_model(path).classify(pixels()), expected(weights, pixels()), atol=1e-5)
    make(tmp_path / "net.onnx", ["N", 3, 6, 8], ends=("none",), names=("y",))
    with pytest.raises(ModelError, match="option states probabilities"):
        load_model(tmp_path / "net.onnx", returns="probabilities")


def test_several_outputs(tmp_path):
    file = tmp_path / "net.onnx"
    path, weights = make(file, ["N", 3, 6, 8], ends=("pixels", "none", "softmax"), names=("f2", "logits", "Probs"))
    classifier = load_model(path, preprocess="imagenet")
    assert classifier.info.notes == ()
    assert np.allclose(classifier.classify(pixels()), expected(weights, pixels()), atol=1e-5)
    path, weights = make(file, ["N", 3, 6, 8], ends=("pixels", "none", "softmax"), names=("a", "b", "c"))
    classifier = load_model(path, preprocess="imagenet")
    assert "the outputs a, b, c: b is used" in classifier.info.notes[0]
    (tmp_path / "net.toml").write_text('output_name = "c"\npreprocess = "imagenet"\nreturns = "probabilities"')
    assert load_model(path).info.notes == ()
    (tmp_path / "net.toml").write_text('output_name = "d"')
    with pytest.raises(ModelError, match="no output 'd'; it has a, b, c"):
        load_model(path)
    (tmp_path / "net.toml").write_text('output_name = "a"')
    with pytest.raises(ModelError, match="is not a classifier"):
        load_model(path)


@pytest.mark.parametrize("end", ["none", "sigmoid"])
def test_one_column_is_two_classes(tmp_path, end):
    path, weights = make(tmp_path / "net.onnx", ["N", 3, 6, 8], ends=(end,), classes=1)
    classifier = load_model(path, labels=["cat"])
    logit = PRESETS["imagenet"].apply(pixels()).mean(axis=(1, 2)) @ weights
    positive = 1 / (1 + np.exp(-logit[:, 0]))
    assert classifier.info.labels == ("not cat", "cat")
    assert np.allclose(classifier.classify(pixels()), np.stack([1 - positive, positive], 1), atol=1e-5)


def test_many_labels_at_once(tmp_path):
    path, weights = make(tmp_path / "net.onnx", ["N", 3, 6, 8], ends=("none",))
    classifier = load_model(path, returns="multilabel-logits")
    logit = PRESETS["imagenet"].apply(pixels()).mean(axis=(1, 2)) @ weights
    assert classifier.info.output == "multilabel"
    assert np.allclose(classifier.classify(pixels()), 1 / (1 + np.exp(-logit)), atol=1e-5)


def test_labels_only(tmp_path):
    path, weights = make(tmp_path / "net.onnx", ["N", 3, 6, 8], ends=("argmax",))
    classifier = load_model(path)
    assert classifier.info.output == "labels"
    assert np.array_equal(classifier.classify(pixels()), expected(weights, pixels()).argmax(1))


def test_grey_networks(tmp_path):
    path, weights = make(tmp_path / "net.onnx", ["N", 1, 6, 8])
    classifier = load_model(path)
    assert classifier.info.channels == 3
    assert any("luminance" in note for note in classifier.info.notes)
    grey = (pixels() @ [0.299, 0.587, 0.114])[..., None] / 255
    assert np.allclose(classifier.classify(pixels()), softmax(grey.mean(axis=(1, 2)) @ weights), atol=1e-5)


def test_networks_of_many_channels(tmp_path):
    path, weights = make(tmp_path / "net.onnx", ["N", 7, 16, 18])
    classifier = load_model(path)
    assert classifier.info.channels == 7
    batch = np.random.default_rng(0).normal(0, 1, (2, 16, 18, 7)).astype("f4")
    assert np.allclose(classifier.classify(batch), softmax(batch.mean(axis=(1, 2)) @ weights), atol=1e-5)


def test_free_sizes(tmp_path):
    path, _ = make(tmp_path / "net.onnx", ["N", 3, "h", "w"])
    assert any("224x224 assumed" in note for note in load_model(path).info.notes)
    assert load_model(path, resize="48/32").info.geometry.grid == (32, 32)
    with pytest.raises(ModelError, match="the crop is 5x5, but"):
        load_model(make(tmp_path / "net.onnx", ["N", 3, 6, 8])[0], resize="9/5")


def test_labels_must_fit(tmp_path):
    path, _ = make(tmp_path / "net.onnx", ["N", 3, 6, 8])
    assert load_model(path, labels=list("abcd")).info.name_of(2) == "c"
    with pytest.raises(ModelError, match="2 labels but the model has 4 classes"):
        load_model(path, labels=["a", "b"])


def test_what_is_no_model_says_so(tmp_path):
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("text.onnx", "empty.onnx"):
        with pytest.raises(ModelError, match="cannot be loaded as an ONNX model") as caught:
            load_model(tmp_path / name)
        assert "\n" not in str(caught.value)
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [entry], [output])
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "flat.onnx")
    with pytest.raises(ModelError, match="has 1 axes; images need 4"):
        load_model(tmp_path / "flat.onnx")


def test_devices_that_are_not_here(tmp_path):
    import onnxruntime

    path, _ = make(tmp_path / "net.onnx", ["N", 3, 6, 8])
    for name in ("tpu", "cuda:", "cuda:x"):
        with pytest.raises(ModelError, match="cpu or cuda"):
            load_model(path, device=name)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(ModelError, match="onnxruntime-gpu"):
            load_model(path, device="cuda")


@pytest.mark.parametrize(("batch_size", "size"), [(None, 16), (5, 5)])
def test_on_cuda_all_batches_have_one_size(tmp_path, monkeypatch, batch_size, size):
    """onnxruntime plans a network again whenever the size changes."""
    sizes = set()

    class Recorded(onnx_file.BoundSession):
        def __init__(self, session, input_name, output_name, device, device_id=0):
            super().__init__(session, input_name, output_name, "cpu")

        def __call__(self, batch):
            sizes.add(len(batch))
            return super().__call__(batch)

    monkeypatch.setattr(onnx_file, "BoundSession", Recorded)
    on_cpu = onnx_file.open_session
    monkeypatch.setattr(onnx_file, "open_session", lambda path, settings: on_cpu(path, ModelSettings()))
    path, _ = make(tmp_path / "net.onnx", ("n", 3, 8, 8))
    pixels = np.random.default_rng(0).integers(0, 256, (37, 8, 8, 3), np.uint8)
    plain, on_device = load_model(path), load_model(path, device="cuda", batch_size=batch_size)
    assert np.allclose(on_device.classify(pixels), plain.classify(pixels), atol=1e-6)
    becausal.explain(pixels[0], on_device, fills="black", max_calls=60)
    assert sizes == {size}


def test_cuda_computes_in_full_precision_and_its_libraries_write_nothing_to_stdout(monkeypatch, capfd):
    import onnxruntime

    from becausal.models.onnx_file import _cuda_provider

    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("not found"), raising=False)
    name, options = _cuda_provider("cuda:1")
    assert name == "CUDAExecutionProvider"
    assert options == {"device_id": 1, "use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("kind", ["f4", "f2"])
def test_memory_that_is_bound_on_a_device_gives_the_same(tmp_path, kind):
    """On the CPU, which onnxruntime treats as one more device."""
    import onnxruntime

    from becausal.models.onnx_file import BoundSession

    path, _ = make(tmp_path / "net.onnx", ["N", 3, 6, 8], kind=kind)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (entry,), (output,) = session.get_inputs(), session.get_outputs()
    bound = BoundSession(session, entry.name, output.name, "cpu")
    rng = np.random.default_rng(0)
    found = []
    for rows in (4, 1, 4, 4, 2):
        batch = rng.normal(size=(rows, 3, 6, 8)).astype(kind)
        found.append(bound(batch))
        assert np.array_equal(found[-1], session.run([output.name], {entry.name: batch})[0])
    assert not np.array_equal(found[0], found[2])  # an answer is not overwritten by the next
    assert len(bound._bindings) == 3


def test_a_device_may_have_a_number():
    from becausal.models.onnx_file import _device_id

    assert [_device_id(name) for name in ("cuda", "cuda:0", "cuda:3")] == [0, 0, 3]


@pytest.mark.parametrize(("limit", "count"), [("1", 1), ("0", 1), ("1000000", None), ("4,2", None), ("", None)])
def test_the_number_of_threads_has_a_limit_in_the_environment(limit, count, monkeypatch):
    from becausal.models.onnx_file import _count_threads, open_session

    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = _count_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert _count_threads() == (count or cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    bundled = Path(becausal.models.bundled.__file__).parent / "scenes.onnx"
    for threads, expected in ((None, 1), (2, 2)):
        session = open_session(bundled, ModelSettings(loading=Loading(threads=threads)))
        assert session.get_session_options().intra_op_num_threads == expected


def test_threads_may_share_a_classifier(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    path, _ = make(tmp_path / "net.onnx", ["N", 3, 6, 8])
    classifier = load_model(path, threads=1)
    views = pixels(8)
    staged = [classifier.stage(view, 255 - view) for view in views]
    visible = np.random.default_rng(0).random((16, 6, 8)) < 0.5

    def ask(i):
        return classifier.ask([staged[i % 8]], np.zeros(16, np.intp), visible)

    alone = [ask(i) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for i, answer in enumerate(pool.map(ask, range(64))):
            assert np.array_equal(answer, alone[i % 8])
