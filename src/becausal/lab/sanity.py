"""Sanity checks after Adebayo et al. (2018): do maps and explanations change when the weights are randomised?"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from becausal.api.jobs import ImageJob, prepare
from becausal.core.contracts import Classifier, Finding, ModelInfo, Needs, Pixels, Saliency, Scores, Search, Visible
from becausal.core.errors import BecausalError, MissingExtraError, ModelError, OptionError, TargetError
from becausal.core.metrics import iou, rank_agreement, ranks
from becausal.core.problem import Problem
from becausal.core.regions import box_blur
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.lab.base import Arm, Bench, BenchSettings, ImageSelection, make_request, split_method
from becausal.lab.datasets import Sample
from becausal.lab.rows import (
    Row,
    by_method,
    compare_rows,
    error_row,
    finite_values,
    group_rows,
    pack_map,
    pack_set,
    rounded,
    successful,
    unpack_map,
    unpack_set,
)
from becausal.lab.selection import load_subject, select_images
from becausal.lab.tables import Cell, Column, Measure, Plot, Table, estimate, line_of_estimates, mean_by_name
from becausal.methods import METHODS
from becausal.methods.gradients import Module, ToInput, differentiable, require
from becausal.models.outputs import make_probe_images
from becausal.search.pipeline import run_pipeline

Stage = tuple[str, int]  # kind of randomisation, and a place between the layers in per cent

TRAINED, SEED, CASCADE, ALONE = "trained", "seed", "cascade", "alone"
AGAIN: Stage = (SEED, 0)
CASCADES: tuple[Stage, ...] = tuple((CASCADE, step) for step in (0, 33, 67, 100))
SINGLE: tuple[Stage, ...] = ((ALONE, 0), (ALONE, 50))
COMPARED: tuple[Stage, ...] = (AGAIN, *CASCADES)
STAGES: tuple[Stage, ...] = ((TRAINED, 0), *COMPARED)  # of every method
NAMES = {
    (TRAINED, 0): "trained", AGAIN: "another seed", (CASCADE, 0): "last layer", (CASCADE, 100): "all layers",
    (ALONE, 0): "first layer only", (ALONE, 50): "middle layer only",
}  # fmt: skip

RANK = Measure("rank", "correlation", "number", None, "Spearman's correlation with the map of the trained network")
ABSOLUTE = Measure("rank_absolute", "correlation", "number")
SSIM = Measure("ssim", "SSIM", "number")
SETS = Measure("set_iou", "IoU", "share", None, "IoU with the explanation of the trained network")
NOTE = (
    "Compared with the map of the trained network. Another seed: the trained network again, which shows what chance alone "
    "changes. Then more and more layers are randomised, from the last one on. Constant maps have no ranks and are left out."
)
DROP_NOTE = (
    "The trained network with another seed, and the network with all layers randomised, both compared with the trained "
    "network on the same images. The map of a method that depends on the network drops. The controls, random and edges "
    "(the gradient of the image), ignore the network, and their maps do not drop. Explanations change for every map, "
    "since the network decides where a map is cut off."
)

#: Options of methods that are slow by default; black-box methods then take about 200 model calls.
BUDGETS = {
    "dc-causal": "partitions=6", "sbfl": "mutants=200", "rise": "masks=200", "occlusion": "window=0.15:stride=0.075",
    "lime": "samples=200", "shap": "evaluations=200", "greedy": "patches=8", "phasewin": "patches=16",
    "hsic": "samples=200", "sobol": "designs=3", "ig": "steps=10", "extremal": "steps=15",
}  # fmt: skip
#: Maps that are made of sets which keep the label: where the label cannot be kept, there is none.
FROM_SETS = ("causal", "dc-causal", "sbfl")
NO_SUPPORT = "the view does not raise the score of the label, so no set of pixels can keep it"
KEPT = 32  # images; up to so many are kept in memory, since every arm needs them
RADIUS = 3  # pixels; the windows of SSIM are 7 x 7, those of Wang et al. 11 x 11 with weights


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


@dataclass(frozen=True, kw_only=True)
class EdgeMap:
    """Control: the magnitude of the image gradient, which looks like an explanation and ignores the model."""

    name: ClassVar[str] = "edges"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        grey = problem.view.astype(np.float64).mean(axis=-1)
        return Finding(np.sqrt(sum(slope**2 for slope in np.gradient(grey))))


@final
@dataclass(frozen=True)
class NetworkClassifier:
    """A torch module in memory, in eval mode, as a classifier that returns probabilities; its weights can be randomised."""

    info: ModelInfo  # that of the classifier the module comes from
    module: Module
    to_input: ToInput  # normalisation: pixels (n, h, w, channels) to the module's input
    gives_probabilities: bool  # whether the module ends in a softmax or sigmoid
    batch_size: ClassVar[int] = 32
    fixed_sizes: ClassVar[tuple[int, ...]] = ()

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
        return self.module, self.to_input

    @property
    def layers(self) -> list[str]:
        """Names of the modules with weights of their own, for most networks in the order from the input to the output."""
        return [name for name, layer in self.module.named_modules() if any(True for _ in layer.parameters(recurse=False))]

    def randomised(self, chosen: Sequence[int], rng: np.random.Generator) -> "NetworkClassifier":
        """The network with permuted weights in some layers, by their numbers.

        Every tensor of a chosen layer keeps its values, in random order. So activations keep about their scale, which
        new initial weights would shrink until the output of a deep network hardly depends on the image. A layer gets the
        same weights whichever other layers are chosen.
        """
        import torch

        module, layers = deepcopy(self.module), self.layers
        rngs = rng.spawn(len(layers))
        with torch.no_grad():
            for number in chosen:
                for weights in module.get_submodule(layers[number]).parameters(recurse=False):
                    order = torch.from_numpy(rngs[number].permutation(weights.numel())).to(weights.device)
                    weights.copy_(weights.flatten()[order].reshape(weights.shape))
        return replace(self, module=module)


def take_network(classifier: Classifier) -> NetworkClassifier:
    """The network behind a classifier. Raises OptionError where it has no torch module, or returns labels only."""
    info = classifier.info
    try:
        require("torch", "sanity")
        module, to_input = differentiable(classifier, "sanity")
    except ModelError:
        raise OptionError(
            "the bench sanity randomises weights, and this model has no torch module: load it as torch:FILE.py:BUILD, or "
            "use --model bundled"
        ) from None
    if info.output == "labels" or info.geometry is None:
        raise OptionError("the bench sanity needs a model that returns probabilities, and this one returns labels only")
    from becausal.methods.torch_layers import as_logits

    pixels = make_probe_images(info.geometry.grid, info.channels or 3)[:1]
    known = as_logits(module, to_input(pixels), classifier.classify(pixels))
    network = NetworkClassifier(info, module, to_input, gives_probabilities=known.gives_probabilities)
    if not network.layers:
        raise OptionError("the bench sanity randomises weights, and this model has none")
    return network


def default_methods() -> str:
    """Every method for classifiers but `centre`, whose part the control `edges` has here."""
    names = [name for name, method in METHODS.items() if name != "centre" and method.needs != "boxes"]
    return ",".join(f"{name}:{BUDGETS[name]}" if name in BUDGETS else name for name in names)


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images with a correct prediction, for a model whose weights can be randomised."""
    take_network(classifier)
    selection = select_images(settings, classifier)
    if len(selection.samples) > KEPT:
        return selection
    return replace(selection, samples=tuple(replace(sample, read=cache(sample.read)) for sample in selection.samples))


def make_arms(settings: BenchSettings) -> list[Arm]:
    """Every method, and the control `edges`, with the trained network and at each stage of randomisation.

    For gradient methods, which are fast, single layers are randomised as well.
    """
    requests = {method: make_request(settings, method) for method in settings.methods}
    requests[EdgeMap.name] = replace(make_request(settings, "random"), method=EdgeMap())
    arms = []
    for method, request in requests.items():
        name = split_method(method)[0]
        stages = STAGES + SINGLE if name in METHODS and METHODS[name].needs == "gradients" else STAGES
        arms += [Arm(method, request, {"by": by, "step": step}) for by, step in stages]
    return arms


def run_arm(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, settings: BenchSettings
) -> Iterator[tuple[Sample, Row]]:
    """Explain the label that the trained network predicts, with weights drawn anew for each image.

    The map that all others are compared with has a seed of its own, so that they share nothing with it by chance.
    """
    network = take_network(classifier)
    count = len(network.layers)
    by, step = arm.tags["by"], arm.tags["step"]
    chosen = choose_layers(by, step, count)
    request = arm.request if by == TRAINED else replace(arm.request, seed=arm.request.seed + 1)
    stage = {"stage": stage_name(by, step), "layers": len(chosen), "of_layers": count}
    for sample in samples:
        try:
            image = load_subject(sample, classifier).image
            model = network.randomised(chosen, np.random.default_rng([settings.request.seed, crc32(sample.name.encode())]))
            job = prepare(image, Engine(model), request)
            label = int(np.argmax(network.classify(job.view.pixels[None])[0]))
            row = explain_label(job, label)
        except (MissingExtraError, ModelError):
            raise
        except BecausalError as error:
            row = error_row(error)
        yield sample, stage | rounded(row)


def explain_label(job: ImageJob, label: int) -> Row:
    """The map for a label and, where the view raises the label's score, the explanation.

    A randomised network hardly ever predicts the label of the trained one. So the same question is asked of every network:
    which pixels keep the score of the label at least half-way between the fully masked image and the view? For a trained
    network, this is a probability of about one half. Raises TargetError where there is neither a map nor an explanation.
    """
    engine, request, pixels = job.engine, job.request, job.view.pixels
    score, *masked = engine.classifier.classify(np.stack([pixels, *job.backgrounds]))[:, label].astype(np.float64)
    lowest = max(masked)
    target = Target(label, threshold=(score + lowest) / 2)
    problem = Problem(pixels, job.backgrounds, target, model=engine.classifier)
    row: Row = {"label": label, "score": score, "masked_score": lowest}
    if score > lowest:
        search = run_pipeline(problem, job.explainer, request, job.run)
        outcome = engine.run(problem, search, max_calls=request.max_calls)
        saliency, visible = outcome.result.saliency, outcome.result.visible
        row |= {"size": float(visible.mean()), "calls": outcome.stats.calls, "_shown": pack_set(visible)}
        stopped = {outcome.stopped_by, job.run.stopped_by}
    elif job.explainer.name in FROM_SETS:
        raise TargetError(NO_SUPPORT)
    else:
        rng = np.random.default_rng(request.seed).spawn(2)[0]
        found = engine.run(problem, job.explainer.search(problem, rng), max_calls=request.max_calls)
        saliency, stopped = found.result.saliency, {found.stopped_by}
        row |= {"calls": found.stats.calls, "no_set": NO_SUPPORT}
    if "interrupt" in stopped:
        raise KeyboardInterrupt
    row["_map"] = pack_map(saliency)
    # The ranks too: where most values are close to 0, the map itself would lose their order in packing.
    row["_ranks"] = pack_map(ranks(saliency).reshape(saliency.shape))
    if job.explainer.needs == "gradients":
        row["_absolute"] = pack_map(ranks(np.abs(saliency)).reshape(saliency.shape))
    return row


def compare_with_trained(rows: Sequence[Row]) -> list[Row]:
    """Compare each map and explanation with those of the trained network for the same image and method."""

    def compare(row: Row, trained: Row) -> Row:
        found: Row = {"ssim": structural_similarity(unpack_map(row["_map"]), unpack_map(trained["_map"]))}
        for key, packed in (("rank", "_ranks"), ("rank_absolute", "_absolute")):
            if packed in row and packed in trained:
                found[key] = rank_agreement(unpack_map(row[packed]), unpack_map(trained[packed]))
        if "_shown" in row and "_shown" in trained:
            found["set_iou"] = iou(unpack_set(row["_shown"]), unpack_set(trained["_shown"]))
        return found

    return compare_rows(rows, (row for row in successful(rows) if row["by"] == TRAINED), compare)


def structural_similarity(one: Saliency, other: Saliency) -> float:
    """SSIM (Wang et al., 2004) of two maps with values in 0..1: its mean over square windows around every pixel."""

    def smooth(values: Saliency) -> Saliency:
        for axis in range(values.ndim):
            values = box_blur(values, RADIUS, axis)
        return values

    mean_a, mean_b = smooth(one), smooth(other)
    spread_a, spread_b = smooth(one * one) - mean_a**2, smooth(other * other) - mean_b**2
    together = smooth(one * other) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2  # the constants of the paper, for values in 0..1
    over = (2 * mean_a * mean_b + c1) * (2 * together + c2)
    return float((over / ((mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2))).mean())


def make_tables(rows: Sequence[Row]) -> list[Table]:
    """Agreement with the trained network at each stage, and how far it drops."""
    found = [row for row in rows if row["by"] != TRAINED]
    methods = {row["method"] for row in found if row["by"] == ALONE}
    alone = [row for row in found if row["method"] in methods]
    counts = {stage: {row["name"] for row in _at(found, stage) if finite_values([row], SETS.key)} for stage in COMPARED}
    with_sets = (
        f"Images with an explanation: {', '.join(f'{stage_name(*stage)} {len(counts[stage])}' for stage in COMPARED)}. On "
        "the others, the view does not raise the score of the label above that of the fully masked image, so that there is "
        "nothing to explain."
    )
    absolute = "Absolute values of maps of gradient methods: rank correlation"
    others = "All other layers keep their trained weights; gradient methods only."
    tables = (
        _drop_table(found),
        _stage_table("maps", "Maps: rank correlation", found, RANK, COMPARED, NOTE),
        _stage_table("sets", "Explanations: IoU", found, SETS, COMPARED, with_sets),
        _stage_table("absolute", absolute, found, ABSOLUTE, COMPARED, ""),
        _stage_table("ssim", "Maps: structural similarity (SSIM)", found, SSIM, COMPARED, "Maps are scaled to 0..1."),
        _stage_table("alone", "Maps: rank correlation, one layer randomised", alone, RANK, (*SINGLE, CASCADES[0]), others),
    )
    return [table for table in tables if table.rows]


def _at(rows: Sequence[Row], stage: Stage) -> list[Row]:
    return [row for row in rows if (row["by"], row["step"]) == stage]


def _drop_table(rows: Sequence[Row]) -> Table:
    """What full randomisation changes, compared with another seed on the same images."""
    lines: list[tuple[Cell, ...]] = []
    for method, part in by_method(rows):
        cells: list[Cell] = [method]
        for measure in (RANK, SETS):
            again, final = (mean_by_name(_at(part, stage), measure.key) for stage in (AGAIN, CASCADES[-1]))
            shared = sorted(again.keys() & final.keys())
            means = [float(np.mean([values[name] for name in shared])) if shared else None for values in (again, final)]
            cells += [len(shared), *means, estimate([again[name] - final[name] for name in shared])]
        lines.append(tuple(cells))
    columns = (
        Column("method"),
        Column("maps", "count", None, "images with both maps, neither of them constant"),
        Column("correlation, another seed", "number"),
        Column("correlation, all layers", "number"),
        Column("drop", "number", None, "mean difference of the two correlations"),
        Column("sets", "count", None, "images with both explanations"),
        Column("IoU, another seed", "share"),
        Column("IoU, all layers", "share"),
        Column("drop of IoU, points", "points", None, "mean difference of the two"),
    )
    return Table("drop", "All layers randomised", columns, tuple(lines), DROP_NOTE)


def _stage_table(name: str, title: str, rows: Sequence[Row], measure: Measure, stages: Sequence[Stage], note: str) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for method, part in by_method(rows):
        if finite_values(part, measure.key):
            lines.append((method, *(measure.estimate(_at(part, stage)) for stage in stages)))
    columns = (Column("method"), *(Column(stage_name(*stage), measure.kind) for stage in stages))
    return Table(name, title, columns, tuple(lines), note)


def plot(name: str, title: str, y: str, rows: Sequence[Row], measure: Measure) -> Plot:
    """Agreement with the trained network against the share of randomised layers."""
    lines = []
    for method, group in by_method([row for row in rows if row["by"] != TRAINED]):
        parts = [part for stage in COMPARED if finite_values(part := _at(group, stage), measure.key)]
        shares = [part[0]["layers"] / part[0]["of_layers"] for part in parts]
        if parts:
            lines.append(line_of_estimates(method, shares, [measure.estimate(part) for part in parts]))
    shown = "xy" if measure.kind == "share" else "x"
    return Plot(name, title, "layers randomised, from the last one on", y, tuple(lines), "line", shown)


def choose_steps(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For the first image and each method: the rows of all stages with an explanation."""
    return [
        {"name": name, "title": str(method), "rows": part, "caption": "stage"}
        for (name, method), part in group_rows(successful(rows), "name", "method").items()
        if name == rows[0]["name"]
    ]


BENCH = Bench(
    name="sanity",
    question="Do maps and explanations change when the weights of the network are randomised?",
    paper="Not in the paper; the checks are those of Adebayo et al., Sanity Checks for Saliency Maps, 2018.",
    methods=default_methods(),
    limit=10,
    select=select,
    arms=make_arms,
    run_arm=run_arm,
    postprocess=compare_with_trained,
    tables=make_tables,
    plots=lambda rows: [
        plot("maps", "Maps: rank correlation with the trained network", "correlation", rows, RANK),
        plot("sets", "Explanations: IoU with the trained network", "IoU", rows, SETS),
    ],
    choose_steps=choose_steps,
    takes=("fills", "grain", "seed", "max_calls"),
)
