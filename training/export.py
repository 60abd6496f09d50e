"""Fold and write the trained classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from render import SIDE, Rendered

from becausal.models.bundled.network import LAYERS, SceneNet
from becausal.scenes import LABELS


def convolutions(network: SceneNet) -> list[torch.nn.Conv2d]:
    """The convolutions in order."""
    return [module for module in network.features if isinstance(module, torch.nn.Conv2d)]


def fold(trained: SceneNet) -> SceneNet:
    """The same network without batch normalisation, which is folded into the convolutions."""
    plain = SceneNet().to(next(trained.parameters()).device)
    norms = [module for module in trained.features if isinstance(module, torch.nn.BatchNorm2d)]
    with torch.no_grad():
        for source, norm, goal in zip(convolutions(trained), norms, convolutions(plain), strict=True):
            scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
            goal.weight.copy_((source.weight.double() * scale[:, None, None, None]).float())
            assert goal.bias is not None
            goal.bias.copy_((norm.bias.double() - norm.running_mean.double() * scale).float())
        plain.head.load_state_dict(trained.head.state_dict())
    return plain.eval()


def write_weights(network: SceneNet, out: Path) -> None:
    """Write scenes.onnx, which both onnxruntime and the torch form read, and labels.txt."""
    state = {name: value.detach().cpu().float().numpy() for name, value in network.state_dict().items()}
    (out / "labels.txt").write_text("\n".join(LABELS) + "\n")
    nodes, weights, flow = [], [], "input"
    positions = [k for k, module in enumerate(network.features) if isinstance(module, torch.nn.Conv2d)]
    for k, (position, (_, side, stride)) in enumerate(zip(positions, LAYERS, strict=True)):
        names = [f"features.{position}.weight", f"features.{position}.bias"]
        weights += [numpy_helper.from_array(state[name], name) for name in names]
        nodes.append(
            helper.make_node(
                "Conv",
                [flow, *names],
                [f"conv{k}"],
                name=f"conv{k}",
                kernel_shape=[side, side],
                strides=[stride, stride],
                pads=[side // 2] * 4,
            )
        )
        nodes.append(helper.make_node("Relu", [f"conv{k}"], [f"relu{k}"], name=f"relu{k}"))
        flow = f"relu{k}"
    weights += [numpy_helper.from_array(state[name], name) for name in ("head.weight", "head.bias")]
    nodes += [
        helper.make_node("GlobalAveragePool", [flow], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["logits"], name="head", transB=1),
        helper.make_node("Softmax", ["logits"], ["probs"], name="softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "scenes",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(LABELS)]) for name in ("probs", "logits")],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="becausal")
    # The oldest format that this operator set allows, for old versions of onnxruntime.
    model.ir_version = 8
    helper.set_model_props(model, {"labels": "\n".join(LABELS), "license": "Apache-2.0", "input": "RGB, x / 127.5 - 1"})
    onnx.checker.check_model(model)
    onnx.save(model, str(out / "scenes.onnx"))


def onnx_difference(network: torch.nn.Module, scenes: Rendered, file: Path) -> float | None:
    """The largest difference of logits between torch and onnxruntime, None if onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    some = scenes.images[:200].astype(np.float32) / np.float32(127.5) - np.float32(1)
    found = session.run(["logits"], {"input": np.ascontiguousarray(some.transpose(0, 3, 1, 2))})[0]
    with torch.no_grad():
        ours = network.cpu()(torch.from_numpy(np.ascontiguousarray(some.transpose(0, 3, 1, 2)))).numpy()
    return float(np.abs(found - ours).max())
