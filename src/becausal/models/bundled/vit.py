"""The bundled vision transformer as a torch module, for methods that need gradients.

It imports torch and is loaded on demand; the classifier itself runs in onnxruntime. Attention is written as matrix products
with a softmax, and every activation and normalisation is a module, so that methods that hook layers see them.
"""

from __future__ import annotations

from becausal.core.errors import MissingExtraError

try:
    import torch
    from torch import nn
except ImportError:
    raise MissingExtraError("torch", "torch", "the bundled vision transformer as a torch module") from None

from becausal.models.bundled.network import CLASSES, read_state

SIDE, PATCH = 128, 16
DIM, DEPTH, HEADS = 128, 6, 4


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
        """Build the network; `patch` is the side of a patch in pixels, `dim` the length of a token."""
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
