"""The bundled classifiers as torch modules, for methods that need gradients: a convolutional network, a vision transformer.

It imports torch and is loaded on demand; the classifiers themselves run in onnxruntime. Every layer, activation and
normalisation is a module, attention is written as matrix products with a softmax, and there are no branches, so that methods
that hook layers (guided backpropagation, DeepLIFT, layer-wise relevance propagation) see the whole computation.
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

CLASSES = 13  # the lines of labels.txt
SIDE, PATCH = 128, 16  # of the images, and of the transformer's patches, in pixels
DIM, DEPTH, HEADS = 128, 6, 4  # of the transformer; a token has DIM numbers

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


class SceneAttention(nn.Module):  # type: ignore[misc]
    """Multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens, (n, tokens, dim), to tokens."""
        size = tokens.shape[2] // self.heads
        query, key, value = self.qkv(tokens).unflatten(2, (3, self.heads, size)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.softmax(query @ key.transpose(2, 3) * size**-0.5)
        mixed: torch.Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class SceneBlock(nn.Module):  # type: ignore[misc]
    """Attention and a perceptron with one hidden layer, both on normalised tokens and added to their input."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = SceneAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.wide = nn.Linear(dim, 4 * dim)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(4 * dim, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens, (n, tokens, dim), to tokens."""
        tokens = tokens + self.attention(self.norm1(tokens))
        changed: torch.Tensor = tokens + self.narrow(self.gelu(self.wide(self.norm2(tokens))))
        return changed


class SceneTransformer(nn.Module):  # type: ignore[misc]
    """Plain vision transformer with mean pooling: images (n, 3, 128, 128) in -1..1 to logits (n, 13)."""

    def __init__(self, *, patch: int = PATCH, dim: int = DIM, depth: int = DEPTH, heads: int = HEADS) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, (SIDE // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(SceneBlock(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (n, 13), of images, (n, 3, 128, 128)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


def load_network() -> SceneNet:
    """Load the bundled network in evaluation mode on the CPU."""
    network = SceneNet()
    network.load_state_dict(read_state("scenes.onnx", network))
    network.eval()
    return network


def load_vit() -> SceneTransformer:
    """Load the bundled vision transformer in evaluation mode on the CPU."""
    network = SceneTransformer()
    # In the file, tokens are multiplied by the matrices of the blocks from the left: (in, out), where torch has (out, in).
    products = [
        f"{name}.weight" for name, layer in network.blocks.named_modules(prefix="blocks") if isinstance(layer, nn.Linear)
    ]
    network.load_state_dict(read_state("vit.onnx", network, transposed=products))
    network.eval()
    return network


def read_state(file: str, network: nn.Module, *, transposed: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The weights of a network by name, float32, from a bundled ONNX file, so that both forms have the same numbers.

    file: its weights are float32 or float16. network: has their names and shapes. transposed: the matrices that the file
    holds transposed, by name.
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
