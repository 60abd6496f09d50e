"""Networks with randomised weights, and the stages of their randomisation, for the bench `sanity`."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, ModelInfo, Pixels, Scores, Visible
from becausal.core.errors import ModelError, OptionError
from becausal.methods.gradients import Module, ToInput, differentiable, require
from becausal.models.outputs import make_probe_images

NAME = "sanity"

Stage = tuple[str, int]  # kind of randomisation, and a place between the layers in per cent

TRAINED, SEED, CASCADE, ALONE = "trained", "seed", "cascade", "alone"
AGAIN: Stage = (SEED, 0)
CASCADES: tuple[Stage, ...] = tuple((CASCADE, step) for step in (0, 33, 67, 100))
SINGLE: tuple[Stage, ...] = ((ALONE, 0), (ALONE, 50))
COMPARED: tuple[Stage, ...] = (AGAIN, *CASCADES)
STAGES: tuple[Stage, ...] = ((TRAINED, 0), *COMPARED)  # of every method
NAMES = {
    (TRAINED, 0): "trained",
    AGAIN: "another seed",
    (CASCADE, 0): "last layer",
    (CASCADE, 100): "all layers",
    (ALONE, 0): "first layer only",
    (ALONE, 50): "middle layer only",
}


def stage_name(by: str, step: int) -> str:
    """What was randomised, in words."""
    return NAMES.get((by, step), f"last {step} %")


def choose_layers(by: str, step: int, count: int) -> list[int]:
    """Numbers of the layers to randomise out of `count`, in the order from the input to the output.

    In a cascade these are the last `step` per cent, at least one; alone, the one at `step` per cent of the way.
    """
    if by == CASCADE:
        return list(range(count - max(1, round(step / 100 * count)), count))
    return [round(step / 100 * (count - 1))] if by == ALONE else []


@final
class NetworkClassifier:
    """A torch module in memory as a classifier that returns probabilities.

    Attributes:
        info: That of the classifier the module comes from.
        module: The module, in eval mode, on its device.
        to_input: Normalisation: pixels (n, h, w, channels) to the module's input.
        gives_probabilities: Whether the module ends in a softmax or sigmoid.
    """

    batch_size = 32
    fixed_sizes: tuple[int, ...] = ()

    def __init__(self, info: ModelInfo, module: Module, to_input: ToInput, *, gives_probabilities: bool) -> None:
        self.info = info
        self.module = module
        self.to_input = to_input
        self.gives_probabilities = gives_probabilities

    def stage(self, view: Pixels, background: Pixels) -> tuple[Pixels, Pixels]:
        return view, background

    def ask(self, staged: Sequence[tuple[Pixels, Pixels]], which: NDArray[np.intp], visible: Visible) -> Scores:
        pairs = [staged[i] for i in which]
        mutants = [np.where(shown[..., None], *pair) for shown, pair in zip(visible, pairs, strict=True)]
        return self.classify(np.stack(mutants))

    def classify(self, pixels: Pixels) -> Scores:
        import torch

        from becausal.methods.torch_layers import Logits

        with torch.inference_mode():
            logits = Logits(self.module, gives_probabilities=self.gives_probabilities)(self.to_input(pixels)).float()
            if self.gives_probabilities:
                scores = logits.exp()
            else:
                scores = logits.sigmoid() if self.info.output == "multilabel" else logits.softmax(1)
        return np.asarray(scores.cpu().numpy(), np.float32)

    def torch_form(self) -> tuple[Module, ToInput]:
        """The module and its normalisation, for methods that need gradients."""
        return self.module, self.to_input


@dataclass(frozen=True)
class TrainedNetwork:
    """The network behind a classifier, whose layers can be randomised.

    Attributes:
        classifier: The trained network. Randomised ones run in the same way, so only weights differ.
        layers: Names of the modules with weights of their own, in the order in which they are registered, which for
            most networks is the order from the input to the output.
    """

    classifier: NetworkClassifier
    layers: tuple[str, ...]

    def randomised(self, chosen: Sequence[int], rng: np.random.Generator) -> NetworkClassifier:
        """The network with permuted weights in some layers, by their numbers.

        Every tensor of a chosen layer keeps its values, in random order. So activations keep about their scale, which
        new initial weights would shrink until the output of a deep network hardly depends on the image. A layer gets the
        same weights whichever other layers are chosen.
        """
        import torch

        trained = self.classifier
        module = deepcopy(trained.module)
        rngs = rng.spawn(len(self.layers))
        with torch.no_grad():
            for number in chosen:
                for weights in module.get_submodule(self.layers[number]).parameters(recurse=False):
                    order = torch.from_numpy(rngs[number].permutation(weights.numel())).to(weights.device)
                    weights.copy_(weights.flatten()[order].reshape(weights.shape))
        return NetworkClassifier(trained.info, module, trained.to_input, gives_probabilities=trained.gives_probabilities)


def take_network(classifier: Classifier) -> TrainedNetwork:
    """The network behind a classifier.

    Raises:
        OptionError: The classifier has no torch module, or returns labels only.
    """
    info = classifier.info
    try:
        require("torch", NAME)
        module, to_input = differentiable(classifier, NAME)
    except ModelError:
        raise OptionError(
            f"the bench {NAME} randomises weights, and this model has no torch module: load it as torch:FILE.py:BUILD, or "
            "use --model bundled"
        ) from None
    if info.output == "labels" or info.geometry is None:
        raise OptionError(f"the bench {NAME} needs a model that returns probabilities, and this one returns labels only")
    from becausal.methods.torch_layers import as_logits

    pixels = make_probe_images(info.geometry.grid, info.channels or 3)[:1]
    known = as_logits(module, to_input(pixels), classifier.classify(pixels))
    layers = tuple(name for name, layer in module.named_modules() if any(True for _ in layer.parameters(recurse=False)))
    if not layers:
        raise OptionError(f"the bench {NAME} randomises weights, and this model has none")
    trained = NetworkClassifier(info, module, to_input, gives_probabilities=known.gives_probabilities)
    return TrainedNetwork(trained, layers)
