"""The bundled classifier as a torch module, for methods that need gradients.

It imports torch and is loaded on demand; the classifier itself runs in onnxruntime. Every layer is a module
and there are no branches, so that methods that hook layers (guided backpropagation, DeepLIFT, layer-wise relevance
propagation) see the whole computation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from becausal.core.errors import MissingExtraError
from becausal.scenes.objects import LABELS

try:
    import torch
    from torch import nn
except ImportError:
    raise MissingExtraError("torch", "torch", "the bundled classifier as a torch module") from None

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
        self.head = nn.Linear(channels, len(LABELS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (n, 13), of images, (n, 3, 128, 128)."""
        pooled: torch.Tensor = self.pool(self.features(images))
        logits: torch.Tensor = self.head(pooled.flatten(1))
        return logits

    def convolutions(self) -> list[nn.Conv2d]:
        """The convolutions in order; Grad-CAM uses the last one."""
        return [module for module in self.features if isinstance(module, nn.Conv2d)]


def load_network(path: str | Path | None = None) -> SceneNet:
    """Load the bundled network in evaluation mode on the CPU.

    Args:
        path: An .npz file with weights of the same layout; None for the bundled ones.

    Raises:
        FileNotFoundError: There is no such file.
    """
    network = SceneNet()
    network.load_state_dict(read_weights("scenes.npz" if path is None else Path(path), "training/train.py"))
    network.eval()
    return network


def read_weights(file: str | Path, script: str) -> dict[str, torch.Tensor]:
    """The weights in an .npz file, as float32 tensors by name.

    Args:
        file: A path, or the name of a bundled file as text.
        script: What makes such files, for the message.

    Raises:
        FileNotFoundError: There is no such file.
    """
    path = file if isinstance(file, Path) else Path(__file__).parent / "bundled" / file
    if not path.exists():
        raise FileNotFoundError(f"there are no weights at {path}; train them with {script} or give another file")
    with np.load(path) as weights:
        return {name: torch.from_numpy(weights[name].astype(np.float32)) for name in weights.files}


def to_input(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> torch.Tensor:
    """Convert images, (n, h, w, 3) uint8, to the input of the network, (n, 3, h, w) in -1..1."""
    scaled = images.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))
