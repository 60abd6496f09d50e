"""The rival methods against their published definitions: numbers by hand, and slow twins in plain numpy.

The twins write every layer as a matrix and follow the formulas unit by unit. They share no code with the package.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Done, Finding, step
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.methods import make_explainer
from becausal.methods.sbfl import MEASURES, Sbfl, SpectrumCounter

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("captum", reason="captum is not installed")
from torch import nn  # noqa: E402
from torch.nn.utils.fusion import fuse_conv_bn_eval  # noqa: E402

from becausal.methods.extremal import Extremal, SmoothMasks, area_loss, area_templates  # noqa: E402
from becausal.methods.gradients import TorchProblem  # noqa: E402
from becausal.methods.relative import propagate, share_hidden, share_input, share_output  # noqa: E402
from becausal.models.loading import ModelSettings  # noqa: E402
from becausal.models.preprocess import Normalisation  # noqa: E402
from becausal.models.torch_module import wrap  # noqa: E402

Matrix = NDArray[np.float64]
linear = nn.functional.linear


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def row(*values: float) -> Any:
    return torch.tensor([values], dtype=torch.float64)


def random_network(*layers: nn.Module, seed: int = 0) -> Any:
    """The layers with random weights, and random statistics of batch normalisation."""
    torch.manual_seed(seed)
    network = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.4)
    for layer in network:
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.2)
            layer.running_var.uniform_(0.5, 2)
    return network.double()


def as_matrix(layer: Any, shape: tuple[int, ...]) -> Matrix:
    """A layer without its bias as a matrix, (outputs, inputs): its outputs for each unit vector."""
    basis = torch.eye(int(np.prod(shape)), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        zero = layer(torch.zeros(1, *shape, dtype=torch.float64))
        return np.asarray((layer(basis) - zero).reshape(len(basis), -1).T.numpy())


def layer_inputs(network: Any, view: Any) -> list[Any]:
    """The input of every layer, and the output."""
    values = [view]
    with torch.no_grad():
        for layer in network:
            values.append(layer(values[-1]))
    return values


def winners(layer: nn.MaxPool2d, x: Any) -> Matrix:
    """Max pooling as a matrix with a 1 where an input is the maximum of a window."""
    _, index = nn.functional.max_pool2d(x, layer.kernel_size, layer.stride, layer.padding, return_indices=True)
    channels, area = x.shape[1], x.shape[2] * x.shape[3]
    matrix = np.zeros((index.numel(), channels * area))
    for unit, place in enumerate(index.flatten().tolist()):
        matrix[unit, unit // index[0, 0].numel() * area + place] = 1
    return matrix


# Relative Attributing Propagation


def test_rap_of_two_pixels_by_hand() -> None:
    """Two pixels, a convolution of two channels, a hidden layer of two units, two labels."""
    network = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)
    ).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1))
        network[0].bias.copy_(torch.tensor([0.0, 3.0]))
        network[3].weight.copy_(torch.tensor([[1.0, 1.0, -1.0, 0.0], [0.0, 2.0, 0.0, -1.0]]))
        network[5].weight.copy_(torch.tensor([[2.0, -1.0], [0.0, 0.0]]))
        network[5].bias.copy_(torch.tensor([3.0, 0.0]))
    view = torch.tensor([1.0, 2.0], dtype=torch.float64).reshape(1, 1, 1, 2)
    # channels: a = (1, 2), b = 3 - (1, 2) = (2, 1); hidden: 1 + 2 - 2 = 1 and 4 - 1 = 3; logit: 2·1 - 3 + 3 = 2
    # output layer: influences 2 and 3 of 5, the bias gets nothing: 2·2/5 = 0.8 and 2·3/5 = 1.2
    # first hidden unit: contributions 1, 2, -2, so Z⁺ = 3 and Z⁻ = 2: 0.8/3 and 1.6/3 to a, 0.8·2/5 = 0.32 to b₁
    # second: 4 and -1, so Z⁺ = 4 and Z⁻ = 1: 1.2 to a₂, 1.2·1/5 = 0.24 to b₂
    # the sum is 2.56, 0.56 more than the logit: 0.14 less for each of the four active units
    a = (0.8 / 3 - 0.14, 1.6 / 3 + 1.2 - 0.14)
    b = (0.32 - 0.14, 0.24 - 0.14)
    # input: every unit of the convolution has one pixel, which gets all of its relevance
    found = propagate(network, view, 0, torch.full_like(view, 0.0), torch.full_like(view, 4.0))
    assert found.flatten().tolist() == pytest.approx([a[0] + b[0], a[1] + b[1]])
    assert float(found.sum()) == pytest.approx(2.0)


def test_rap_at_the_output_shares_by_absolute_influence() -> None:
    # contributions 2 and -6 to one unit: a quarter and three quarters of 4
    assert share_output(linear, row(1, 2), row(2, -3), row(4)).tolist() == [[1.0, 3.0]]


def test_rap_at_the_input_shares_by_distance_from_the_extreme_colours() -> None:
    # colours 0 to 4: 1·1 - 0·1 = 1 and 2·(-1) - 4·(-1) = 2, so a third and two thirds of 6
    assert share_input(linear, row(1, 2), row(1, -1), row(6), row(0, 0), row(4, 4)).tolist() == [[2.0, 4.0]]


def test_rap_spreads_negative_relevance_like_positive() -> None:
    """The authors' program does so in linear layers; in convolutions it gives it to negative contributions only."""
    # contributions 3 and -1: -4 to the first, -4·1/4 to the second; the sum -5 is 1 too low, 0.5 for each
    assert share_hidden(linear, row(3, 1), row(1, -1), row(-4)).tolist() == [[-3.5, -0.5]]


def linear_steps(network: Any, inputs: list[Any]) -> list[tuple[str, Matrix, Matrix]]:
    """Every layer with weights and every pooling layer: its kind, matrix, and input."""
    steps = []
    for layer, x in zip(network, inputs, strict=False):
        if isinstance(layer, nn.MaxPool2d):
            steps.append(("pool", winners(layer, x), x.flatten().numpy()))
        elif isinstance(layer, (nn.Conv2d, nn.Linear)):
            steps.append(("layer", as_matrix(layer, tuple(x.shape[1:])), x.flatten().numpy()))
        elif isinstance(layer, nn.AvgPool2d):
            steps.append(("mean", as_matrix(layer, tuple(x.shape[1:])), x.flatten().numpy()))
    return steps


def rap_twin(steps: list[tuple[str, Matrix, Matrix]], logit: float, label: int) -> Matrix:
    """RAP unit by unit; colours from -1 to 1."""
    relevance = np.eye(len(steps[-1][1]))[label] * abs(logit)
    for number, (kind, weight, x) in reversed(list(enumerate(steps))):
        if kind == "pool":
            relevance = weight.T @ relevance
            continue
        given, relevance = relevance, np.zeros(len(x))
        for j, r in enumerate(given):
            z = weight[j] * x
            positive, negative = np.maximum(z, 0), np.maximum(-z, 0)
            if number == len(steps) - 1:
                relevance += np.abs(z) / np.abs(z).sum() * r
            elif number == 0:
                z = z + np.maximum(weight[j], 0) - np.minimum(weight[j], 0)
                relevance += z / z.sum() * r
            elif z.any():
                relevance += negative / (positive + negative).sum() * r
                relevance += positive / (positive.sum() or 1) * r
        if 0 < number < len(steps) - 1:
            active = x != 0
            relevance[active] -= (relevance.sum() - given.sum()) / active.sum()
    return relevance


def test_rap_is_its_definition_on_a_random_network() -> None:
    network = random_network(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip
    view = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (1, 3, 8, 8)))
    inputs = layer_inputs(network, view)
    label = int(inputs[-1].argmax())
    expected = rap_twin(linear_steps(network, inputs), float(inputs[-1][0, label]), label)
    found = propagate(network, view, label, torch.full_like(view, -1.0), torch.full_like(view, 1.0))
    assert found.flatten().numpy() == pytest.approx(expected, abs=1e-9)


# Layer-wise relevance propagation


def lrp_of(network: Any, view: Any, rule: str, label: int, epsilon: float = 1e-6) -> Finding:
    """The finding of the method `lrp` for a module that takes the view's numbers as they are."""
    size = tuple(view.shape[2:])
    settings = ModelSettings(normalisation=Normalisation(1 / 255), crop=size, returns="logits")
    model = wrap(deepcopy(network).float(), settings)
    pixels = np.asarray((view[0].permute(1, 2, 0).numpy() * 255).round(), np.uint8)
    problem = Problem(pixels, (np.zeros_like(pixels),), Target(label), model=model)
    state = step(make_explainer("lrp", {"rule": rule, "epsilon": epsilon}).search(problem, np.random.default_rng(0)), None)
    assert isinstance(state, Done)
    found: Finding = state.result
    return found


def lrp_twin(network: Any, inputs: list[Any], rule: str, label: int, epsilon: float = 1e-6) -> Matrix:
    """LRP unit by unit: z⁺ with the flat rule at the first convolution, or epsilon everywhere."""
    relevance = np.zeros(inputs[-1].shape[1])
    relevance[label] = float(inputs[-1][0, label])
    first = next((number for number, layer in enumerate(network) if isinstance(layer, nn.Conv2d)), None)
    for number in reversed(range(len(network))):
        layer, x = network[number], inputs[number].flatten().numpy()
        if isinstance(layer, nn.MaxPool2d):
            relevance = winners(layer, inputs[number]).T @ relevance
        elif isinstance(layer, (nn.Conv2d, nn.Linear, nn.AvgPool2d)):
            weight = as_matrix(layer, tuple(inputs[number].shape[1:]))
            y = inputs[number + 1].flatten().numpy()
            given, relevance = relevance, np.zeros(len(x))
            for j, r in enumerate(given):
                z = weight[j] * x
                if rule == "epsilon" or isinstance(layer, nn.AvgPool2d):
                    relevance += z / (y[j] + (epsilon if y[j] >= 0 else -epsilon)) * r
                elif number == first:
                    relevance += (weight[j] != 0) / np.count_nonzero(weight[j]) * r
                else:
                    positive = np.maximum(z, 0)
                    relevance += positive / (positive.sum() or 1) * r
    return relevance.reshape(inputs[0].shape[1:]).sum(0)


NETWORKS = {
    "plain": lambda: (
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ),
    "pools": lambda: (
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(4, 3)
    ),
    "negative inputs": lambda: (nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
    "groups": lambda: (nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(36, 3)),
    "no convolution": lambda: (nn.Flatten(), nn.Linear(108, 5), nn.Tanh(), nn.Linear(5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("rule", ["zplus", "epsilon"])
@pytest.mark.parametrize("name", NETWORKS)
def test_lrp_is_its_definition(name: str, rule: str) -> None:
    network = random_network(*NETWORKS[name]())
    pixels = np.random.default_rng(1).integers(0, 256, (1, 3, 6, 6))
    view = torch.from_numpy(pixels / 255)
    inputs = layer_inputs(network, view)
    expected = lrp_twin(network, inputs, rule, 1)
    assert_close(lrp_of(network, view, rule, 1).saliency, expected)


def assert_close(found: Matrix, expected: Matrix) -> None:
    """Equal up to the single precision of the method, whose terms of either sign cancel."""
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("rule", ["zplus", "epsilon"])
def test_lrp_of_batch_normalisation_is_that_of_the_convolution_it_is_merged_with(rule: str) -> None:
    """Also where its scale is negative, which turns negative contributions into positive ones."""
    network = random_network(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip
    assert (network[4].weight < 0).any()
    merged = nn.Sequential(
        fuse_conv_bn_eval(network[0], network[1]), nn.ReLU(), fuse_conv_bn_eval(network[3], network[4]), *network[5:]
    )
    view = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (1, 3, 6, 6)) / 255)
    expected = lrp_twin(merged, layer_inputs(merged, view), rule, 2)
    assert_close(lrp_of(network, view, rule, 2).saliency, expected)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # contributions to the hidden units: 1, -2 and bias 2, so 1; 2, 2 and bias -2, so 2; to the logit: 3·1, -1·2, so 1
        # zplus: the first hidden unit gets 1, the second, negative one nothing; of its inputs only the first is positive
        ("zplus", [1.0, 0.0]),
        # epsilon: 3/1 and -2/1 of the logit; the inputs get 3·1/1 - 2·2/2 = 1 and 3·(-2)/1 - 2·2/2 = -8
        ("epsilon", [1.0, -8.0]),
    ],
)
def test_lrp_of_two_units_by_hand(rule: str, expected: list[float]) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 2, bias=False)).double().eval()
    with torch.no_grad():
        network[1].weight.zero_()
        network[1].weight[:, 0] = torch.tensor([1.0, 2.0])  # red of the first pixel, which is 1
        network[1].weight[:, 1] = torch.tensor([-2.0, 2.0])  # red of the second pixel, which is 1
        network[1].bias.copy_(torch.tensor([2.0, -2.0]))
        network[3].weight.copy_(torch.tensor([[3.0, -1.0], [0.0, 0.0]]))
    found = lrp_of(network, torch.ones(1, 3, 1, 2, dtype=torch.float64), rule, 0)
    assert found.saliency[0].tolist() == pytest.approx(expected, abs=1e-4)


# Statistical fault localisation


#: Three mutants of three pixels lose the label, five keep it; 1 is masked.
LOST = [(1, 1, 0), (1, 0, 0), (1, 0, 1)]
KEPT = [(1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1)]


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        # the first pixel is masked in 3 of 3 lost and 1 of 5 kept mutants, the second in 1 and 3, the third in 1 and 2
        ("ochiai", [3 / (3 * 4) ** 0.5, 1 / (3 * 4) ** 0.5, 1 / (3 * 3) ** 0.5]),
        ("tarantula", [1 / (1 + 1 / 5), (1 / 3) / (1 / 3 + 3 / 5), (1 / 3) / (1 / 3 + 2 / 5)]),
        ("zoltar", [3 / (3 + 0 + 1 + 0), 1 / (1 + 2 + 3 + 10_000 * 2 * 3 / 1), 1 / (1 + 2 + 2 + 10_000 * 2 * 2 / 1)]),
        ("wong-ii", [3 - 1, 1 - 3, 1 - 2]),
    ],
)
def test_sbfl_measures_by_hand(measure: Any, expected: list[float]) -> None:
    """Tarantula as it is published: the authors' program has the share of visible pixels in its second term."""
    counter = SpectrumCounter((3,))
    counter.add(np.array(LOST + KEPT) == 0, np.array([False] * 3 + [True] * 5))
    assert MEASURES[measure](counter.spectrum()).tolist() == pytest.approx(expected)


def test_sbfl_changes_the_masked_share_by_a_sixth() -> None:
    # 1/5 of 12 pixels, 2.4; kept: + 1/6, 4.4; kept: 6.4; lost: 4.4; lost: 2.4; lost: 0.4, but at least one pixel
    search = Sbfl(mutants=6, chains=1, blocks=12).search(Problem(np.zeros((12, 1)), (np.zeros((12, 1)),), Target(0)), rng())
    masked = [int((~next(search)).sum())]
    for holds in (True, True, False, False, False):
        wave = search.send(Answers(np.array([holds]), np.zeros(1), np.zeros(1)))
        masked.append(int((~wave).sum()))
    assert masked == [2, 4, 6, 4, 2, 1]


# Extremal perturbations


def test_extremal_area_loss_by_hand() -> None:
    # sorted 0, 0.2, 0.5, 0.9 against 0, 0, 1, 1: (0 + 0.04 + 0.25 + 0.01) / 4
    mask = torch.tensor([0.2, 0.9, 0.5, 0.0]).reshape(1, 1, 2, 2)
    templates = area_templates([0.5], 4, mask)
    assert templates.tolist() == [[0.0, 0.0, 1.0, 1.0]]
    assert area_loss(mask, templates).tolist() == pytest.approx([0.3 / 4])


def test_extremal_masks_are_a_smooth_maximum() -> None:
    """Pixel by pixel over the nine cells around it; cells outside the view repeat the ones at its border."""
    cell, grid = 4, (8, 12)
    parameters = np.random.default_rng(3).random((2, 3))
    expected = np.zeros(grid)
    for row_, column in np.ndindex(grid):
        near = []
        for i, j in np.ndindex(3, 3):
            a, b = row_ // cell + i - 1, column // cell + j - 1
            centre = ((a + 0.5) * cell - 0.5, (b + 0.5) * cell - 0.5)
            distance = np.hypot(row_ - centre[0], column - centre[1]) / cell  # 1 up to 3/4 of a cell, 0 from 3/2 on
            rise = min(max((1.5 - distance) / 0.75, 0), 1)
            near.append(rise**2 * (3 - 2 * rise) * parameters[min(max(a, 0), 1), min(max(b, 0), 2)])
        weights = np.exp(20 * np.array(near))
        expected[row_, column] = (weights * near).sum() / weights.sum()
    given = torch.from_numpy(parameters)[None, None]
    assert SmoothMasks(grid, cell, given)(given)[0, 0].numpy() == pytest.approx(expected)


def test_extremal_mask_of_a_linear_model_is_its_largest_weights() -> None:
    """The logit is the brightness of the upper quarter: a mask of a quarter of the view must be there."""

    class Upper(nn.Module):  # type: ignore[misc]
        def forward(self, images: Any) -> Any:
            upper = images[:, :, :4].mean((1, 2, 3)) * 20
            return torch.stack([upper, -upper], 1)

    view = torch.ones(1, 1, 16, 16)
    problem = TorchProblem(Upper(), Upper(), view, torch.zeros_like(view), 0, torch.as_tensor)
    mask = Extremal(areas="0.25", steps=100, cells=8).optimise(problem)[0, 0]
    assert float(mask[:3].mean()) > 0.9
    assert float(mask[6:].mean()) < 0.05
    assert float(mask.mean()) == pytest.approx(0.25, abs=0.05)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)
