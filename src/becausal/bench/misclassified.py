"""Why the wrong label? Explanations of wrong labels next to those of right ones."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from becausal.api.explanation import Explanation
from becausal.bench.datasets import Sample, draw_scenes, read_set
from becausal.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Row,
    Table,
    answered,
    groups,
    measure_table,
    numbers,
    within_plot,
)
from becausal.bench.plan import Bench, Pool, Settings, Subject, plain_arms
from becausal.bench.pools import need_scene_labels, see, spread, top_label, true_label
from becausal.bench.statistics import difference_of_means
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap

TRIES = 60  # scenes drawn per image wanted: a good classifier is seldom wrong
OVERLAP = Measure("overlap", Column("on occluder", "share", None, "share of the explanation on the occluder"))
CONFIDENCE = Measure("original", Column("confidence", "number", None, "of the label in the whole image"))


def collect(settings: Settings, classifier: Classifier) -> Pool:
    """Half of the images with a wrong label, half with a right one, of the folder or of hard scenes."""
    half = max(1, (settings.limit or 100) // 2)
    if settings.data is None:
        need_scene_labels(classifier)
        found = _sort(draw_scenes(settings.seed, cover=(0.4, 0.7)), classifier, half, TRIES * half)
    else:
        samples = [sample for sample in read_set(settings.data) if sample.label is not None]
        if not samples:
            raise OptionError(f"the bench misclassified needs true labels, and the images in {settings.data} have none")
        found = _sort(samples, classifier, len(samples), len(samples))
    if not found["wrong"]:
        raise OptionError("the model was right on all images that were tried: there is no wrong label to explain")
    chosen = [sample for part in found.values() for sample in spread(part, half)]
    short = {f"{kind} labels wanted and not found": half - len(part) for kind, part in found.items() if len(part) < half}
    return Pool(tuple(chosen), short)


def _sort(samples: Iterable[Sample], classifier: Classifier, most: int, tries: int) -> dict[str, list[Sample]]:
    """At most so many images with a wrong label, and with a right one."""
    found: dict[str, list[Sample]] = {"wrong": [], "right": []}
    for number, sample in enumerate(samples):
        if number == tries or all(len(part) >= most for part in found.values()):
            break
        is_right = top_label(see(sample, classifier), classifier) == true_label(sample, classifier)
        kind = "right" if is_right else "wrong"
        if len(found[kind]) < most:
            found[kind].append(replace(sample, facts={**sample.facts, "kind": kind}))
    return found


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """How much of it lies on the occluder, where that is known."""
    occluder = subject.truths.get("occluder")
    has_one = occluder is not None and bool(np.any(occluder))
    return {"overlap": overlap(explanation.visible, occluder)} if has_one and occluder is not None else {}


def summarise(rows: Sequence[Row]) -> Findings:
    """Size for wrong and right labels, and their difference."""
    found = answered(rows)
    measures = (SIZE, OVERLAP, CONFIDENCE, CALLS)
    by = Grouping(("method", "kind"), ("method", "label"))
    table = measure_table("kinds", "Wrong and right labels", found, measures, by=by)
    lines = []
    for (method,), group in groups(found, "method").items():
        parts = {kind: part for (kind,), part in groups(group, "kind").items()}
        wrong, right = (numbers(parts.get(kind, []), "size") for kind in ("wrong", "right"))
        lines.append((method, len(wrong), len(right), difference_of_means(wrong, right)))
    columns = (
        Column("method"),
        Column("wrong", "count"),
        Column("right", "count"),
        Column("size, wrong less right", "points", None, "difference of the means"),
    )
    difference = Table("difference", "Are explanations of wrong labels larger?", columns, tuple(lines))
    split = [row | {"method": f"{row['method']}, {row['kind']}"} for row in found]
    plots = (within_plot("size", "Size of the explanations", "at most this share of the view", split, "size"),)
    return Findings((difference, table), plots)


BENCH = Bench(
    name="misclassified",
    question="Are explanations of wrong labels larger than those of right ones?",
    paper="Promised on the project's page; no figures in the paper.",
    methods="causal,dc-causal",
    limit=100,
    collect=collect,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    truth="occluder",
)
