"""Sanity checks after Adebayo et al. (2018): do maps and explanations change when the weights are randomised?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from becausal.api.jobs import ImageJob, prepare
from becausal.bench.datasets import Sample
from becausal.bench.execution import error_row
from becausal.bench.findings import Row, group_rows, successful
from becausal.bench.packing import pack_map, pack_set, unpack_map, unpack_set
from becausal.bench.plan import Arm, Bench, BenchSettings, ImageSelection, make_request, rounded, split_method
from becausal.bench.randomising import take_network
from becausal.bench.sanity_tables import ALONE, CASCADE, SINGLE, STAGES, TRAINED, stage_name, summarise
from becausal.bench.selection import load_subject, select_images
from becausal.core.blur import box_blur
from becausal.core.contracts import Classifier, Finding, Needs, Saliency, Search
from becausal.core.errors import BecausalError, MissingExtraError, ModelError, TargetError
from becausal.core.metrics import iou, rank_agreement, ranks
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.methods import METHODS
from becausal.search.pipeline import run_pipeline

#: Options of methods that are slow by default; black-box methods then take about 200 model calls.
BUDGETS = {
    "dc-causal": "partitions=6",
    "sbfl": "mutants=200",
    "rise": "masks=200",
    "occlusion": "window=0.15:stride=0.075",
    "lime": "samples=200",
    "shap": "evaluations=200",
    "greedy": "patches=8",
    "phasewin": "patches=16",
    "hsic": "samples=200",
    "sobol": "designs=3",
    "ig": "steps=10",
    "extremal": "steps=15",
}
#: Maps that are made of sets which keep the label: where the label cannot be kept, there is none.
FROM_SETS = ("causal", "dc-causal", "sbfl")
NO_SUPPORT = "the view does not raise the score of the label, so no set of pixels can keep it"
SHOWN = 1  # images drawn, with a strip for each method
KEPT = 32  # images; up to so many are kept in memory, since every arm needs them
RADIUS = 3  # of the windows of SSIM, in pixels


@dataclass(frozen=True, kw_only=True)
class EdgeMap:
    """Control: the magnitude of the image gradient, which looks like an explanation and ignores the model."""

    name: ClassVar[str] = "edges"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield from ()
        grey = problem.view.astype(np.float64).mean(axis=-1)
        return Finding(np.sqrt(sum(slope**2 for slope in np.gradient(grey))))


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
    edges = EdgeMap()
    requests = {method: make_request(settings, method) for method in settings.methods}
    requests[edges.name] = replace(make_request(settings, "random"), method=edges)
    arms = []
    for method, request in requests.items():
        name = split_method(method)[0]
        stages = STAGES + SINGLE if name in METHODS and METHODS[name].needs == "gradients" else STAGES
        arms += [Arm(method, request, {"by": by, "step": step}) for by, step in stages]
    return arms


def choose_layers(by: str, step: int, count: int) -> list[int]:
    """Numbers of the layers to randomise out of `count`, in the order from the input to the output.

    In a cascade these are the last `step` per cent, at least one; alone, the one at `step` per cent of the way.
    """
    if by == CASCADE:
        return list(range(count - max(1, round(step / 100 * count)), count))
    return [round(step / 100 * (count - 1))] if by == ALONE else []


def run_arm(
    arm: Arm, samples: Sequence[Sample], classifier: Classifier, settings: BenchSettings
) -> Iterator[tuple[Sample, Row]]:
    """Explain the label that the trained network predicts, with weights drawn anew for each image.

    The map that all others are compared with has a seed of its own, so that they share nothing with it by chance.
    """
    network = take_network(classifier)
    by, step = arm.tags["by"], arm.tags["step"]
    chosen = choose_layers(by, step, len(network.layers))
    request = arm.request if by == TRAINED else replace(arm.request, seed=arm.request.seed + 1)
    stage = {"stage": stage_name(by, step), "layers": len(chosen), "of_layers": len(network.layers)}
    for sample in samples:
        try:
            image = load_subject(sample, classifier).image
            model = network.randomised(chosen, np.random.default_rng([settings.request.seed, crc32(sample.name.encode())]))
            job = prepare(image, Engine(model), request)
            label = int(np.argmax(network.classifier.classify(job.view.pixels[None])[0]))
            row = explain_label(job, label)
        except (MissingExtraError, ModelError):
            raise
        except BecausalError as error:
            row = error_row(error)
        yield sample, stage | rounded(row)


def explain_label(job: ImageJob, label: int) -> Row:
    """The map for a label and, where the view raises the label's score, the explanation.

    A randomised network hardly ever predicts the label of the trained one. So the same question is asked of every
    network: which pixels keep the score of the label at least half-way between the fully masked image and the view? For
    a trained network, this is a probability of about one half.

    Raises:
        TargetError: There is neither a map nor an explanation.
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
    row |= {"_map": pack_map(saliency), "_ranks": _pack_ranks(saliency)}
    return row | ({"_absolute": _pack_ranks(np.abs(saliency))} if job.explainer.needs == "gradients" else {})


def _pack_ranks(saliency: Saliency) -> str:
    """The ranks of a map: where most values are close to 0, the map itself would lose their order in packing."""
    return pack_map(ranks(saliency).reshape(saliency.shape))


def compare_rows(rows: list[Row]) -> list[Row]:
    """Compare each map and explanation with those of the trained network for the same image and method."""
    trained = {(row["name"], row["method"]): row for row in successful(rows) if row["by"] == TRAINED}
    out = []
    for row in rows:
        reference = trained.get((row["name"], row["method"]))
        if row.get("error") or reference is None or row is reference:
            out.append(row)
            continue
        found: Row = {"ssim": structural_similarity(unpack_map(row["_map"]), unpack_map(reference["_map"]))}
        for key, packed in (("rank", "_ranks"), ("rank_absolute", "_absolute")):
            if packed in row and packed in reference:
                found[key] = rank_agreement(unpack_map(row[packed]), unpack_map(reference[packed]))
        if "_shown" in row and "_shown" in reference:
            found["set_iou"] = iou(unpack_set(row["_shown"]), unpack_set(reference["_shown"]))
        out.append(row | rounded(found))
    return out


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


def choose_steps(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For the first image and each method: the rows of all stages with an explanation."""
    names = list(dict.fromkeys(row["name"] for row in rows))[:SHOWN]
    return [
        {"name": name, "title": str(method), "rows": part, "caption": "stage"}
        for (name, method), part in group_rows(successful(rows), "name", "method").items()
        if name in names
    ]


BENCH = Bench(
    name="sanity",
    question="Do maps and explanations change when the weights of the network are randomised?",
    paper="Not in the paper; the checks are those of Adebayo et al., Sanity Checks for Saliency Maps, 2018.",
    methods=default_methods(),
    limit=10,
    select=select,
    arms=make_arms,
    summarise=summarise,
    postprocess=compare_rows,
    run_arm=run_arm,
    choose_steps=choose_steps,
    takes=("fills", "grain", "seed", "max_calls"),
)
