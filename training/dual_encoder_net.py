"""The two networks of the dual encoder, the colours of objects, augmentation, the loss and the ONNX files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from augment import GONE, KEEP, add_blanks, chance, draw_fill, draw_mask, move, recolour
from captions import COLOURS, LENGTH, OPEN, VALUES, Facts
from export_vit import GraphWriter
from onnx import TensorProto, helper
from render import SIDE
from torch import nn

from becausal.models.bundled.network import LAYERS, load_network
from becausal.scenes import LABELS, NOTHING

DIM = 64  # of embeddings, and of word vectors
TAPS = (3, 5, 8)  # convolutions whose averages make up the embedding of an image

#: Chances of the kinds of masks, see `augment.MASK_CHANCES`, in the half of a batch that is masked.
CHANCES = (0.22, 0.14, 0.18, 0.12, 0.12, 0.1, 0.06)
DOMINANT = 0.5  # share of the object's visible pixels that a colour needs in order to be named
#: The hue in degrees from which on a pixel has a colour; below the first one it is red.
HUES = ((12, "orange"), (38, "yellow"), (65, "green"), (184, "blue"), (245, "purple"), (325, "pink"), (345, "red"))


class ImageTower(nn.Module):
    """Images (n, 3, 128, 128) in -1..1 to unit vectors (n, DIM): the bundled classifier's convolutions, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = load_network().features
        self.head = nn.Linear(sum(LAYERS[tap - 1][0] for tap in TAPS), DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = []
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.training):
            for position, module in enumerate(self.features):
                x = module(x)
                if position % 2 and position // 2 + 1 in TAPS:
                    pooled.append(x.float().mean((2, 3)))
        return F.normalize(self.head(torch.cat(pooled, 1)), dim=1)


class TextTower(nn.Module):
    """Words (n, LENGTH), 0 after the end, to unit vectors (n, DIM): a convolution over words, their sum, a perceptron."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.words = nn.Embedding(count, DIM, padding_idx=0)
        self.near = nn.Conv1d(DIM, DIM, 3, padding=1)
        self.wide = nn.Linear(DIM, DIM)
        self.head = nn.Linear(DIM, DIM)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        known = (words != 0).float()[:, None]  # (n, 1, LENGTH)
        near = torch.relu(self.near(self.words(words).transpose(1, 2))) * known  # (n, DIM, LENGTH)
        return F.normalize(self.head(torch.relu(self.wide(near.sum(2)))), dim=1)


class DualEncoder(nn.Module):
    """Both towers and the logarithm of the scale of their cosines."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.images = ImageTower()
        self.texts = TextTower(count)
        self.heat = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Logits, (images, texts)."""
        logits: torch.Tensor = self.heat.clamp(max=4.6).exp() * self.images(x) @ self.texts(words).T
        return logits


def name_colours(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """The colour of each object, a position in `COLOURS`, (n,), or `OPEN` if no colour has half of its pixels.

    Images x, (n, 3, h, h) in 0..1; m, (n, 1, h, h), has the object's pixels. A pixel is black if its largest channel is
    below 0.25; else white or grey if its saturation is below 0.18, white from 0.78 on; else its hue decides.
    """
    top, bottom = x.amax(1), x.amin(1)
    chroma = (top - bottom).clamp(min=1e-6)
    red, green, blue = x.unbind(1)
    turn = torch.where(top == red, ((green - blue) / chroma) % 6, torch.where(
        top == green, (blue - red) / chroma + 2, (red - green) / chroma + 4))  # fmt: skip
    hue, saturation = turn * 60, chroma / top.clamp(min=1e-6)
    names = torch.full(hue.shape, COLOURS.index("red"), device=x.device)
    for low, name in HUES:
        names = torch.where(hue >= low, COLOURS.index(name), names)
    light = ((hue < 12) | (hue >= 345)) & (top > 0.8) & (saturation < 0.5)
    names = torch.where(light, COLOURS.index("pink"), names)
    earth = ((hue >= 12) & (hue < 38) & (top < 0.72)) | ((hue >= 38) & (hue < 65) & (top < 0.5))
    names = torch.where(earth, COLOURS.index("brown"), names)
    plain = torch.where(top >= 0.78, COLOURS.index("white"), COLOURS.index("grey"))
    names = torch.where(saturation < 0.18, plain, names)
    names = torch.where(top < 0.25, COLOURS.index("black"), names)
    inside = m[:, 0] > 0.5
    counts = torch.stack([((names == k) & inside).sum((1, 2)) for k in range(len(COLOURS))], 1)
    most, which = counts.max(1)
    return torch.where(most >= DOMINANT * inside.sum((1, 2)).clamp(min=1), which, OPEN)


def augment(
    images: torch.Tensor, visible: torch.Tensor, facts: torch.Tensor, empties: torch.Tensor, grounds: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Augment a batch of images (n, 128, 128, 3) uint8 with masks of the visible object (n, 128, 128) and facts (n, 4).

    `empties`, (m, 128, 128, 3), are images without an object, with the backgrounds `grounds`, (m,). Returns inputs
    (n, 3, 128, 128) in -1..1, the facts that hold afterwards, and which images to use, (n,). All images are moved and
    recoloured. In the first half of the batch, objects get other backgrounds and parts are masked, so that the occluder is
    not known. The colour is named from the pixels that are left of the object.
    """
    count, device, nothing = len(images), images.device, LABELS.index(NOTHING)
    half = count // 2
    label, _, occluder, ground = facts.T.clone()
    x = images.permute(0, 3, 1, 2).float() / 255.0
    m = visible[:, None].float()
    area = m.sum((1, 2, 3)).clamp(min=1.0)
    picked = torch.randint(len(empties), (half,), device=device)
    other = empties[picked].permute(0, 3, 1, 2).float() / 255.0
    swap = chance(half, 0.3, device) & (label[:half] != nothing)[:, None, None, None]
    x[:half] = torch.where(swap, x[:half] * m[:half] + other * (1 - m[:half]), x[:half])
    ground[:half] = torch.where(swap.view(-1), grounds[picked], ground[:half])
    x, m, zoom = move(x, m)
    x = recolour(x)
    masked = draw_mask(m[:half], CHANCES)
    rest = m.clone()
    rest[:half] *= 1 - masked
    # Every second pixel across and down is enough to name a colour.
    colour = name_colours(x[:, :, ::2, ::2], rest[:, :, ::2, ::2])
    fill, blurred = draw_fill(x[:half], other)
    x[:half], blank = add_blanks(torch.where(masked > 0.5, fill, x[:half]), 0.08)
    left = (rest.sum((1, 2, 3)) * zoom / area)[:half]
    # As in `augment.augment`: what is left of a blurred object may still be recognised.
    usable = torch.ones(count, dtype=torch.bool, device=device)
    usable[:half] = blank | ~((label[:half] != nothing) & (left < KEEP) & ((left >= GONE) | blurred))
    label[:half] = torch.where((left < GONE) | blank, nothing, label[:half])
    occluder[:half] = OPEN
    ground[:half] = torch.where((masked.mean((1, 2, 3)) > 0.5) | blank, OPEN, ground[:half])
    colour = torch.where(label == nothing, OPEN, colour)
    return x * 2 - 1, torch.stack([label, colour, occluder, ground], 1), usable


def contrast(logits: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """The contrastive loss, both ways: each true pair against the false pairs of its image, and of its caption.

    logits: (images, captions). held: 1 where a caption is true of an image, 0 where it is false, -1 where that is unknown.
    Other true captions of an image are neither for nor against it.
    """
    total = logits.new_zeros(())
    for scores, truth in ((logits, held), (logits.T, held.T)):
        true = (truth == 1).float()
        against = scores.masked_fill(truth != 0, -1e4).logsumexp(1, keepdim=True)
        losses = F.softplus(against - scores) * true  # -log of the softmax over the pair and the false pairs
        some = true.sum(1) > 0
        total = total + (losses.sum(1)[some] / true.sum(1)[some]).mean()
    return total / 2


def question(logits: torch.Tensor, facts: Facts, part: int) -> torch.Tensor:
    """The cross-entropy of the right one among captions that differ only in one claim about an object.

    logits: (images, captions), for the captions of `draw_questions`. facts: (images, 4).
    """
    values = np.array(VALUES[part])
    rows = np.flatnonzero((facts[:, 0] < len(VALUES[0])) & np.isin(facts[:, part], values))
    if not len(rows):
        return logits.new_zeros(())
    own = logits.unflatten(1, (len(VALUES[0]), len(values)))[rows, facts[rows, 0]]
    right = torch.from_numpy(np.searchsorted(values, facts[rows, part])).to(logits.device)
    return F.cross_entropy(own, right)


def write_files(network: DualEncoder, vocabulary: list[str], out: Path) -> None:
    """Write clip_image.onnx and clip_text.onnx."""
    state = {name: value.detach().cpu().float().numpy() for name, value in network.state_dict().items()}
    image = GraphWriter()
    flow, pooled = "input", []
    for k, (_, side, stride) in enumerate(LAYERS, start=1):
        kernel, bias = _layer(image, f"images.features.{2 * k - 2}", state)
        shape = {"kernel_shape": [side, side], "strides": [stride, stride], "pads": [side // 2] * 4}
        flow = image.add("Relu", image.add("Conv", flow, kernel, bias, **shape))
        if k in TAPS:
            pooled.append(image.add("Flatten", image.add("GlobalAveragePool", flow), axis=1))
    _close(image, image.add("Concat", *pooled, axis=1), "images.head", state)
    about = {"license": "Apache-2.0", "input": "RGB, x / 127.5 - 1"}
    put = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    _save(image, put, about, out / "clip_image.onnx")

    text = GraphWriter()
    vectors = text.weight("texts.words.weight", state["texts.words.weight"])
    vectors = text.add("Gather", vectors, "words", axis=0)  # (n, LENGTH, DIM)
    kernel, bias = _layer(text, "texts.near", state)
    near = text.add("Conv", text.add("Transpose", vectors, perm=[0, 2, 1]), kernel, bias, kernel_shape=[3], pads=[1, 1])
    ended = text.add("Equal", "words", text.constant("padding", 0, np.int64))
    known = text.add("Cast", text.add("Not", ended), to=TensorProto.FLOAT)
    known = text.add("Unsqueeze", known, text.constant("one", [1], np.int64))  # (n, 1, LENGTH)
    spoken = text.add("Mul", text.add("Relu", near), known)
    total = text.add("ReduceSum", spoken, text.constant("two", [2], np.int64), keepdims=0)  # (n, DIM)
    kernel, bias = _layer(text, "texts.wide", state)
    _close(text, text.add("Relu", text.add("Gemm", total, kernel, bias, transB=1)), "texts.head", state)
    scale = float(network.heat.detach().clamp(max=4.6).exp())
    about = {"license": "Apache-2.0", "vocabulary": json.dumps(vocabulary), "scale": f"{scale:.4f}"}
    put = helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", LENGTH])
    _save(text, put, about, out / "clip_text.onnx")


def _layer(writer: GraphWriter, name: str, state) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    return writer.weight(f"{name}.weight", state[f"{name}.weight"]), writer.weight(f"{name}.bias", state[f"{name}.bias"])


def _close(writer: GraphWriter, flow: str, name: str, state) -> None:  # type: ignore[no-untyped-def]
    kernel, bias = _layer(writer, name, state)
    writer.add("LpNormalization", writer.add("Gemm", flow, kernel, bias, transB=1), name="embedding", axis=1, p=2)


def _save(writer: GraphWriter, put: onnx.ValueInfoProto, about: dict[str, str], file: Path) -> None:
    given = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", DIM])
    graph = helper.make_graph(writer.nodes, file.stem, [put], [given], writer.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="becausal")
    # The oldest format that this operator set allows, for old versions of onnxruntime.
    model.ir_version = 8
    helper.set_model_props(model, about)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(file))
