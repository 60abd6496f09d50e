"""Write the trained vision transformer as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from common import read_network
from onnx import TensorProto, helper, numpy_helper
from render import SIDE

from becausal.models.bundled.network import SceneTransformer
from becausal.scenes import LABELS


class GraphWriter:
    """Nodes and weights of an ONNX graph. Weights are stored in half precision and cast to float32 when it is loaded."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """Add a node with one output, and return the name of the output."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, name: str, values: npt.NDArray[np.float32]) -> str:
        """Add a weight, and return the name of its float32 form."""
        self.weights.append(numpy_helper.from_array(values.astype(np.float16), name))
        return self.add("Cast", name, name=f"{name}.float", to=TensorProto.FLOAT)

    def constant(self, name: str, values: object, kind: type = np.float32) -> str:
        """Add a constant, once."""
        if not any(known.name == name for known in self.weights):
            self.weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name


def write_vit(weights: Path, file: Path) -> SceneTransformer:
    """Write the network with these weights, with the outputs probs and logits; returns it as a torch module."""
    network = read_network(weights)
    writer = GraphWriter()
    _write_nodes(writer, network)
    graph = helper.make_graph(
        writer.nodes,
        "vit",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(LABELS)]) for name in ("probs", "logits")],
        writer.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="becausal")
    # The oldest format that this operator set allows, for old versions of onnxruntime.
    model.ir_version = 8
    helper.set_model_props(model, {"labels": "\n".join(LABELS), "license": "Apache-2.0", "input": "RGB, x / 127.5 - 1"})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(file))
    return network


def _write_nodes(writer: GraphWriter, network: SceneTransformer) -> None:
    state = {name: value.detach().numpy() for name, value in network.state_dict().items()}
    dim, _, patch, _ = state["patches.weight"].shape
    add, weight, constant = writer.add, writer.weight, writer.constant

    def linear(tokens: str, name: str) -> str:
        product = add("MatMul", tokens, weight(f"{name}.weight", np.ascontiguousarray(state[f"{name}.weight"].T)))
        return add("Add", product, weight(f"{name}.bias", state[f"{name}.bias"]))

    def norm(tokens: str, name: str) -> str:
        scale, shift = (weight(f"{name}.{part}", state[f"{name}.{part}"]) for part in ("weight", "bias"))
        return add("LayerNormalization", tokens, scale, shift, axis=-1, epsilon=network.norm.eps)

    def attend(tokens: str, name: str) -> str:
        heads = network.blocks[0].attention.heads
        split = constant("split", [0, 0, 3, heads, dim // heads], np.int64)
        qkv = add("Transpose", add("Reshape", linear(tokens, f"{name}.qkv"), split), perm=[2, 0, 3, 1, 4])
        query, key, value = (add("Gather", qkv, constant(f"part{k}", k, np.int64), axis=0) for k in range(3))
        query = add("Mul", query, constant("scale", (dim // heads) ** -0.5))
        shares = add("Softmax", add("MatMul", query, add("Transpose", key, perm=[0, 1, 3, 2])), axis=-1)
        mixed = add("Transpose", add("MatMul", shares, value), perm=[0, 2, 1, 3])
        return linear(add("Reshape", mixed, constant("join", [0, 0, dim], np.int64)), f"{name}.out")

    def gelu(values: str) -> str:
        curve = add("Erf", add("Mul", values, constant("root", 0.5**0.5)))
        return add("Mul", add("Mul", values, constant("half", 0.5)), add("Add", curve, constant("one", 1.0)))

    kernel, bias = (weight(f"patches.{part}", state[f"patches.{part}"]) for part in ("weight", "bias"))
    maps = add("Conv", "input", kernel, bias, kernel_shape=[patch, patch], strides=[patch, patch])
    flat = add("Reshape", maps, constant("flat", [0, dim, -1], np.int64))
    tokens = add("Add", add("Transpose", flat, perm=[0, 2, 1]), weight("positions", state["positions"]))
    for k in range(len(network.blocks)):
        tokens = add("Add", tokens, attend(norm(tokens, f"blocks.{k}.norm1"), f"blocks.{k}.attention"))
        hidden = gelu(linear(norm(tokens, f"blocks.{k}.norm2"), f"blocks.{k}.wide"))
        tokens = add("Add", tokens, linear(hidden, f"blocks.{k}.narrow"))
    pooled = add("ReduceMean", norm(tokens, "norm"), axes=[1], keepdims=0)
    scale, shift = (weight(f"head.{part}", state[f"head.{part}"]) for part in ("weight", "bias"))
    add("Gemm", pooled, scale, shift, name="logits", transB=1)
    add("Softmax", "logits", name="probs", axis=1)
