"""What an output in 0..1 that does not sum to 1 means: detected where something decides, refused where nothing does."""

import numpy as np
import pytest
from PIL import Image

from becausal.core.errors import ModelError
from becausal.interfaces.cli.app import main
from becausal.models import as_classifier, load_model
from becausal.models.outputs import OutputClues, make_decoder

SIGMOID = np.array([[0.995, 0.2, 0.7], [0.1, 0.3, 0.0], [0.5, 0.9, 1.0]], np.float32)
ASK = "in 0..1 but do not sum to 1: .* Add --returns multilabel or --returns logits"


@pytest.mark.parametrize(("last", "returns"), [("Sigmoid", "multilabel"), ("Gemm", "logits"), ("Linear", "logits")])
def test_the_last_operation_decides(last, returns):
    decoder, notes = make_decoder(SIGMOID, returns=None, clues=OutputClues(find_last=lambda: last))
    assert decoder.returns == returns
    assert last in notes[0]


@pytest.mark.parametrize("last", [None, "Mul", "Relu"])
def test_without_evidence_the_user_is_asked(last):
    with pytest.raises(ModelError, match=ASK):
        make_decoder(SIGMOID, returns=None, clues=OutputClues(find_last=lambda: last))


@pytest.mark.parametrize("name", ["probs", "Probabilities", "sigmoid_3:0"])
def test_a_name_of_the_output_decides(name):
    decoder, _ = make_decoder(SIGMOID, returns=None, clues=OutputClues(name))
    assert decoder.returns == "multilabel"
    assert decoder.scores(SIGMOID)[0, 0] == np.float32(0.995)


def test_values_outside_decide_as_before():
    assert make_decoder(np.append(SIGMOID, [[0, 0, 1.5]], 0), returns=None)[0].returns == "logits"
    assert make_decoder(np.append(SIGMOID, [[0, 0, -0.1]], 0), returns=None)[0].returns == "logits"
    exclusive = SIGMOID / SIGMOID.sum(axis=1, keepdims=True)
    assert make_decoder(exclusive, returns=None, clues=OutputClues(find_last=lambda: "Gemm"))[0].returns == "probabilities"
    assert make_decoder(exclusive, returns=None, clues=OutputClues(find_last=lambda: "Sigmoid"))[0].returns == "multilabel"
    assert make_decoder(SIGMOID, returns="probabilities")[0].returns == "probabilities"
    assert make_decoder(SIGMOID, returns=None, clues=OutputClues("logits"))[0].returns == "logits"
    assert make_decoder(SIGMOID[:, :1], returns=None)[0].returns == "probabilities"  # one column: not, and yes


def save_onnx(path, *ends):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).uniform(0.01, 0.02, (3, 4)).astype(np.float32)
    tables = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([2, 3], np.int64), "axes")]
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("ReduceMean", ["a", "axes"], ["m"], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["n0"]),
        *(helper.make_node(end, [f"n{i}"], [f"n{i + 1}"]) for i, end in enumerate(ends)),
    ]
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    found = helper.make_tensor_value_info(f"n{len(ends)}", TensorProto.FLOAT, ["N", 4])
    graph = helper.make_graph(nodes, "g", [entry], [found], tables)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_the_last_operation_of_an_onnx_file(tmp_path):
    pixels = np.full((1, 8, 8, 3), 90, np.uint8)
    found = load_model(save_onnx(tmp_path / "a.onnx", "Sigmoid", "Identity"), preprocess="unit")
    assert found.info.output == "multilabel"
    assert found.info.notes[-1].startswith("the last operation is Sigmoid: labels are independent")
    assert found.classify(pixels).min() > 0.5
    assert load_model(save_onnx(tmp_path / "b.onnx"), preprocess="unit").info.output == "probabilities"  # logits
    with pytest.raises(ModelError, match=ASK):
        load_model(save_onnx(tmp_path / "c.onnx", "Tanh"), preprocess="unit")
    assert load_model(tmp_path / "c.onnx", preprocess="unit", returns="multilabel").info.output == "multilabel"


def test_a_damaged_graph_gives_no_evidence(tmp_path):
    from becausal.models.onnx_graph import find_last_operation

    path = save_onnx(tmp_path / "a.onnx", "Sigmoid")
    whole = path.read_bytes()
    assert find_last_operation(path, "n1") == "Sigmoid"
    assert find_last_operation(path, "other") is None
    rng = np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(whole[: rng.integers(1, len(whole))])
        data[rng.integers(len(data))] = rng.integers(256)
        path.write_bytes(data)
        find_last_operation(path, "n1")  # returns; never raises
    path.write_bytes(b"")
    assert find_last_operation(path, "n1") is None


def test_the_last_layer_of_a_torch_module():
    torch = pytest.importorskip("torch")

    class Functional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return torch.sigmoid(self.inner(x))

    def network(*ends):
        torch.manual_seed(0)
        last = torch.nn.Linear(3 * 8 * 8, 4)
        torch.nn.init.uniform_(last.weight, 0, 1e-3)
        torch.nn.init.constant_(last.bias, 0.1)
        return torch.nn.Sequential(torch.nn.Flatten(), last, *ends)

    def load(module):
        return as_classifier(module, preprocess="unit", resize="8/8")

    assert load(network(torch.nn.Sigmoid())).info.output == "multilabel"
    small = load(network())
    assert small.info.notes[-1].startswith("the last operation is Linear, so the output is read as logits")
    with pytest.raises(ModelError, match=ASK):
        load(Functional())


def test_a_function_is_asked_about_once_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import numpy as np\n"
        "def predict(batch):\n"
        "    bright = batch.reshape(len(batch), -1).mean(axis=1) / 255\n"
        "    return np.stack([bright, bright ** 0.5, np.full(len(batch), 0.3)], axis=1)\n"
    )
    Image.fromarray(np.full((16, 16, 3), 250, np.uint8)).save("a.png")
    options = ["--fill", "black", "--max-calls", "60", "--out", "out"]
    command = ["explain", "a.png", "--model", "python:net.py:predict", *options]
    assert main(command) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert "Add --returns multilabel or --returns logits" in said
    assert main([*command, "--returns", "multilabel"]) == 0
