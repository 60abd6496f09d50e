"""ONNX files for signals and other arrays, class names in their metadata, and how classifiers show themselves."""

import json

import numpy as np
import pytest

import becausal
from becausal.core.errors import ImageError, ModelError
from becausal.interfaces.cli.app import main
from becausal.models import as_classifier, load_model
from becausal.models.labels import read_metadata_labels
from becausal.models.onnx_file import fit_shape

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

KINDS = {"int32": TensorProto.INT32, "float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8}


def save(path, shape, kind="float32", *, metadata=None, classes=3):
    """A network that looks at the first values only: the more of them, the more the last class."""
    values = int(np.prod([side for side in shape[1:] if isinstance(side, int)]))
    weights = np.zeros((values, classes), np.float32)
    weights[:8, -1] = 1.0
    bias = np.array([2.0, *[0.0] * (classes - 1)], np.float32)
    tables = {"w": weights, "b": bias, "flat": np.array([-1, values], np.int64)}
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["f", "flat"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "b"], ["y"]),
    ]
    entry = helper.make_tensor_value_info("x", KINDS[kind], shape)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], classes])
    tensors = [numpy_helper.from_array(table, name) for name, table in tables.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [entry], [output], tensors),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("shape", "kind", "own"),
    [
        (["N", 64], "int32", (64,)),  # as Magika's bytes
        (["N", 1, 64], "float32", (64,)),
        (["N", 64, 1], "float32", (64,)),
        (["N", 8, 16], "float32", (8, 16)),
        ([1, 64], "uint8", (64,)),
        (["N", 1, 6, 8, 10], "float32", (6, 8, 10)),
    ],
)
def test_arrays_of_any_shape_from_the_command_line(tmp_path, monkeypatch, capsys, shape, kind, own):
    monkeypatch.chdir(tmp_path)
    save("net.onnx", shape, kind, metadata={"names": "{0: 'nothing', 1: 'other', 2: 'begin'}"})
    signal = np.ones(own, kind)
    signal.flat[20:] = 0  # so that the fill black, its lowest value, is 0
    np.save("a.npy", signal)
    command = ["explain", "a.npy", "--model", "net.onnx", "--fill", "black", "--grain", "1", "--max-calls", "400"]
    assert main([*command, "--out", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.dumps(found).count("begin")
    explanation = becausal.Explanation.load(next((tmp_path / "out").rglob("explanation.json")).parent)
    assert explanation.label == "begin"
    assert explanation.visible.shape == own
    assert set(np.flatnonzero(explanation.visible.reshape(-1))) <= set(range(8))
    assert any("arrays of shape" in note for note in explanation.notes)
    assert any("metadata, 'names'" in note for note in explanation.notes)


def test_an_array_that_does_not_fit(tmp_path):
    model = load_model(save(tmp_path / "net.onnx", ["N", 64], "uint8"))
    with pytest.raises(ImageError, match="the array has shape 63; the model takes arrays of shape 64"):
        becausal.explain(np.ones(63, np.uint8), model)
    with pytest.raises(ImageError, match=r"the array holds .*; the model takes uint8 values"):
        becausal.explain(np.full(64, 300.0), model)
    with pytest.raises(ModelError, match="takes arrays, not images: remove --resize"):
        load_model(tmp_path / "net.onnx", resize=224)
    with pytest.raises(ModelError, match="has 3 axes; images need 4"):
        load_model(save(tmp_path / "one.onnx", [3, 8, 8]))


@pytest.mark.parametrize(
    ("shape", "sides", "found"),
    [
        ((64, 1), (64,), (64,)),
        ((64, 1), (1, 64), (1, 64)),
        ((64, 1), (None,), (64,)),
        ((8, 16, 1), (8, 16), (8, 16)),
        ((8, 16, 3), (8, 16, 3), (8, 16, 3)),
        ((5, 6, 7, 1), (1, None, None, None), (1, 5, 6, 7)),
        ((1, 1), (1,), (1,)),
        ((64, 1), (63,), None),
        ((8, 8, 3), (64,), None),
        ((64, 1), (8, 8), None),
    ],
)
def test_axes_of_one_are_added_and_dropped(shape, sides, found):
    assert fit_shape(shape, sides) == found


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"names": "{0: 'a', 1: 'b', 2: 'c'}"}, "names"),
        ({"labels": '["a", "b", "c"]'}, "labels"),
        ({"classes": '{"0": "a", "1": "b", "2": "c"}'}, "classes"),
        ({"names": "{0: open('x')}", "id2label": '{"0": "a", "1": "b", "2": "c"}'}, "id2label"),
        ({"names": "a, b, c"}, None),
        ({"names": "[" * 100_000}, None),
        ({"names": "{'a': 0}"}, None),
        ({"names": "[" + "1e999," * 3 + "]"}, None),
        ({"names": "{" + "1" * 5000 + ": 'a'}"}, None),
        ({"names": "[[['a']], 2]"}, None),
        ({"author": "somebody"}, None),
    ],
)
def test_class_names_in_the_metadata(metadata, expected):
    found = read_metadata_labels(metadata)
    if expected is None:
        assert found is None
    else:
        assert (found.key, found.names) == (expected, ("a", "b", "c"))


def test_class_names_are_used_only_where_nothing_else_is_given_and_they_fit(tmp_path):
    names = {"names": "['a', 'b', 'c']"}
    image = ["N", 3, 8, 8]
    own = load_model(save(tmp_path / "a.onnx", image, metadata=names), preprocess="unit")
    assert own.info.labels == ("a", "b", "c")
    assert own.info.notes[-1] == "class names read from the file's metadata, 'names'"
    assert load_model(tmp_path / "a.onnx", labels=["x", "y", "z"]).info.labels == ("x", "y", "z")
    other = load_model(save(tmp_path / "b.onnx", image, metadata=names, classes=4), preprocess="unit")
    assert other.info.labels is None
    assert "'names' has 3 names, but the model has 4 classes" in other.info.notes[-1]


def test_classifiers_show_what_they_are(tmp_path):
    path = save(tmp_path / "net.onnx", ["N", 3, 8, 8])
    shown = repr(load_model(path, labels=["a", "b", "c"]))
    assert shown == f"<ArrayClassifier onnx:{path}: input 8x8x3, probabilities, 3 names, on cpu>"
    bundled = repr(load_model("bundled"))
    assert bundled == "<ArrayClassifier onnx bundled: input 128x128x3, probabilities, 13 names, on cpu>"
    arrays = load_model(save(tmp_path / "flat.onnx", ["N", 64]))
    assert "input x float [N,64], probabilities, no names, numbers only, on cpu" in repr(arrays)

    def predict(batch):
        return ["dark"] * len(batch)

    function = as_classifier(predict)
    expected = "python function predict: input arrays of any shape, probabilities, no names, numbers only, on cpu"
    assert repr(function) == f"<PythonClassifier {expected}>"
    function.classify(np.zeros((2, 4, 4, 3), np.uint8))
    assert "labels, names, as the model returns them, on cpu" in repr(function)
