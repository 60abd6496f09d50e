"""Write the trained detector as an ONNX file that returns boxes, scores and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from detector_net import CELLS, CLASSES, LAYERS, MOST_BOXES, OUTPUTS, PEAK, SIDE, STRIDE, DetectorNet, decode
from onnx import TensorProto, helper, numpy_helper

#: Detections with at least this score count.
THRESHOLD = 0.3


def _constants() -> dict[str, Any]:
    at = (np.arange(CELLS, dtype=np.float32) + np.float32(0.5)) * STRIDE
    x, y = np.tile(at, CELLS), np.repeat(at, CELLS)
    return {
        "centres": np.stack([x, y, x, y])[None],
        "signs": np.array([-STRIDE, -STRIDE, STRIDE, STRIDE], dtype=np.float32)[None, :, None],
        "double": np.array([1, 1, 2, 2], dtype=np.float32),
        "flat": np.array([0, -1], dtype=np.int64),
        "by_cell": np.array([0, 4, -1], dtype=np.int64),
        "number": np.array([MOST_BOXES], dtype=np.int64),
        "cells": np.array(CELLS * CELLS, dtype=np.int64),
        "last": np.array([2], dtype=np.int64),
        "four": np.array([1, 1, 4], dtype=np.int64),
        "low": np.array(0, dtype=np.float32),
        "high": np.array(SIDE, dtype=np.float32),
    }


def _network_nodes() -> list[Any]:
    nodes = []
    for name, source, _, _, side, stride in LAYERS:
        first, _, second = source.partition("+")
        flow = first
        if second:
            nodes.append(
                helper.make_node(
                    "Resize",
                    [second, "", "double"],
                    [f"{name}.up"],
                    name=f"{name}.up",
                    mode="nearest",
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor",
                )
            )
            nodes.append(helper.make_node("Add", [first, f"{name}.up"], [f"{name}.sum"], name=f"{name}.sum"))
            flow = f"{name}.sum"
        out = name if name in OUTPUTS else f"{name}.conv"
        nodes.append(
            helper.make_node(
                "Conv",
                [flow, f"{name}.weight", f"{name}.bias"],
                [out],
                name=f"{name}.conv",
                kernel_shape=[side, side],
                strides=[stride, stride],
                pads=[side // 2] * 4,
            )
        )
        if name not in OUTPUTS:
            nodes.append(helper.make_node("Relu", [out], [name], name=name))
    return nodes


def _decoding_nodes() -> list[Any]:
    """The peaks of the class scores, the best of them over all classes and cells, and their boxes, as `decode` does."""
    node = helper.make_node
    return [
        node("Sigmoid", ["heat"], ["sure"]),
        node("MaxPool", ["sure"], ["highest"], kernel_shape=[PEAK, PEAK], strides=[1, 1], pads=[PEAK // 2] * 4),
        node("Equal", ["sure", "highest"], ["is_peak"]),
        node("Cast", ["is_peak"], ["peak"], to=TensorProto.FLOAT),
        node("Mul", ["sure", "peak"], ["peaks"]),
        node("Reshape", ["peaks", "flat"], ["all_peaks"]),
        node("TopK", ["all_peaks", "number"], ["scores", "place"], axis=1),
        node("Div", ["place", "cells"], ["labels"]),
        node("Mod", ["place", "cells"], ["cell"]),
        node("Softplus", ["box"], ["distances"]),
        node("Reshape", ["distances", "by_cell"], ["distances_by_cell"]),
        node("Mul", ["distances_by_cell", "signs"], ["offsets"]),
        node("Add", ["offsets", "centres"], ["open_corners"]),
        node("Clip", ["open_corners", "low", "high"], ["corners"]),
        node("Transpose", ["corners"], ["corners_by_cell"], perm=[0, 2, 1]),
        node("Unsqueeze", ["cell", "last"], ["cell_column"]),
        node("Tile", ["cell_column", "four"], ["cell_index"]),
        node("GatherElements", ["corners_by_cell", "cell_index"], ["boxes"], axis=1),
    ]


def write_onnx(state: dict[str, Any], path: Path) -> None:
    """Write the ONNX file from the arrays of the weights."""
    weights = {
        f"{name}.{kind}": np.asarray(state[f"convolutions.{name}.{kind}"], dtype=np.float32)
        for name, *_ in LAYERS
        for kind in ("weight", "bias")
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in {**weights, **_constants()}.items()]
    graph = helper.make_graph(
        [*_network_nodes(), *_decoding_nodes()],
        "detector",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["batch", MOST_BOXES, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", MOST_BOXES]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch", MOST_BOXES]),
        ],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="becausal")
    # The oldest format that this operator set allows, for old versions of onnxruntime.
    model.ir_version = 8
    facts = {
        "labels": "\n".join(CLASSES),
        "threshold": str(THRESHOLD),
        "input": "RGB, x / 127.5 - 1",
        "license": "Apache-2.0",
    }
    helper.set_model_props(model, facts)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def export(weights: Path, out: Path) -> None:
    """Write detector.onnx from an .npz file of weights, and compare it with torch on generated scenes."""
    import time

    import onnxruntime
    import torch

    from becausal.scenes import make_group

    with np.load(weights) as file:
        state = {name: file[name] for name in file.files}
    out.mkdir(parents=True, exist_ok=True)
    path = out / "detector.onnx"
    write_onnx(state, path)
    network = DetectorNet()
    network.load_state_dict({name: torch.from_numpy(value.astype(np.float32)) for name, value in state.items()})
    network.eval()
    images = np.stack([make_group(140_000_000 + k).image for k in range(20)])
    inputs = np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(127.5) - np.float32(1))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    boxes, scores, labels = session.run(["boxes", "scores", "labels"], {"input": inputs})
    with torch.no_grad():
        expected = [value.numpy() for value in decode(*network(torch.from_numpy(inputs)))]
    # Boxes of near-equal scores may come in another order, so only those that count are compared.
    sure = expected[1] >= THRESHOLD
    gaps = (np.abs(scores - expected[1]).max(), np.abs(boxes - expected[0])[sure].max(initial=0.0))
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {sum(v.size for v in state.values()):,} parameters")
    wrong = int((labels != expected[2])[sure].sum())
    print(f"differences from torch: scores {gaps[0]:.2e}, boxes {gaps[1]:.2e} px, labels {wrong}")
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for k in range(len(inputs)):
            session.run(["boxes"], {"input": inputs[k : k + 1]})
        times.append((time.perf_counter() - start) / len(inputs))
    print(f"one thread, one image at a time: {min(times) * 1000:.2f} ms per image")
