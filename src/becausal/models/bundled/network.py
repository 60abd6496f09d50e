"""The bundled classifier as a torch module, for methods that need gradients.

It imports torch and is loaded on demand; the classifier itself runs in onnxruntime. Every layer is a module
and there are no branches, so that methods that hook layers (guided backpropagation, DeepLIFT, layer-wise relevance
propagation) see the whole computation.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import as_file, files

import numpy as np

from becausal.core.errors import MissingExtraError
from becausal.models.onnx_graph import read_weights

try:
    import torch
    from torch import nn
except ImportError:
    raise MissingExtraError("torch", "torch", "the bundled classifier as a torch module") from None

#: Number of labels, the lines of labels.txt.
CLASSES = 13

#: Convolutions in order: channels out, kernel side, stride.
LAYERS: tuple[tuple[int, int, int], ...] = (
    (16, 3, 2), (32, 3, 2), (48, 3, 2), (64, 3, 1), (64, 3, 1), (96, 3, 2), (128, 3, 1), (128, 3, 1),
)  # fmt: skip


class SceneNet(nn.Module):  # type: ignore[misc]
    """Plain convolutional network: images (n, 3, 128, 128) in -1..1 to logits (n, 13)."""

    def __init__(self, *, normalised: bool = False) -> None:
        """Build the network; `normalised` adds batch normalisation, which is folded into the convolutions after training."""
        super().__init__()
        modules: list[nn.Module] = []
        channels = 3
        for out, side, stride in LAYERS:
            modules.append(nn.Conv2d(channels, out, side, stride, side // 2, bias=not normalised))
            if normalised:
                modules.append(nn.BatchNorm2d(out))
            modules.append(nn.ReLU(inplace=False))
            channels = out
        self.features = nn.Sequential(*modules)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (n, 13), of images, (n, 3, 128, 128)."""
        pooled: torch.Tensor = self.pool(self.features(images))
        logits: torch.Tensor = self.head(pooled.flatten(1))
        return logits


def load_network() -> SceneNet:
    """Load the bundled network in evaluation mode on the CPU."""
    network = SceneNet()
    network.load_state_dict(read_state("scenes.onnx", network))
    network.eval()
    return network


def read_state(file: str, network: nn.Module, *, transposed: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The weights of a network by name, float32, from a bundled ONNX file, so that both forms have the same numbers.

    Args:
        file: Name of the file; its weights are float32 or float16.
        network: Has the names and shapes of the weights.
        transposed: Names of the matrices that the file holds transposed.
    """
    with as_file(files("becausal.models.bundled") / file) as path:
        found = read_weights(path)
    state = {}
    for name, own in network.state_dict().items():
        values = np.frombuffer(found[name], np.float32 if len(found[name]) == 4 * own.numel() else np.float16)
        values = values.reshape(own.shape[::-1]).T if name in transposed else values.reshape(own.shape)
        state[name] = torch.from_numpy(values.astype(np.float32, order="C"))
    return state


def to_input(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> torch.Tensor:
    """Convert images, (n, h, w, 3) uint8, to the input of the network, (n, 3, h, w) in -1..1."""
    scaled = images.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))
