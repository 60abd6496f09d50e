"""Explanations of wrong predictions compared with those of correct ones."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.lab.base import OVERLAP, Bench, BenchSettings, ImageSelection, Subject, measure_occluder
from becausal.lab.datasets import Sample, draw_scenes, read_dataset
from becausal.lab.rows import Row, by_method, finite_values, group_rows
from becausal.lab.selection import is_right, load_subject, require_scene_labels, take_evenly
from becausal.lab.tables import CALLS, SIZE, Column, Measure, Table, difference_of_means, measure_table, size_plot

TRIES = 60  # scenes drawn for each image wanted, since wrong predictions are rare
CONFIDENCE = Measure("original", "confidence", "number", None, "confidence of the prediction for the whole image")


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images of the folder, or difficult scenes: half with a wrong prediction, half with a correct one."""
    half = max(1, (settings.limit or 100) // 2)
    if settings.data is None:
        require_scene_labels(classifier)
        found = _by_prediction(draw_scenes(settings.request.seed, cover=(0.4, 0.7)), classifier, half, TRIES * half)
    else:
        samples = [sample for sample in read_dataset(settings.data) if sample.label is not None]
        if not samples:
            raise OptionError(f"the bench misclassified needs true labels, but the images in {settings.data} have none")
        found = _by_prediction(samples, classifier, len(samples), len(samples))
    if not found["wrong"]:
        raise OptionError("all predictions are correct: there is no wrong label to explain")
    chosen = [sample for part in found.values() for sample in take_evenly(part, half)]
    short = {f"{kind} labels wanted but not found": half - len(part) for kind, part in found.items() if len(part) < half}
    return ImageSelection(tuple(chosen), short)


def _by_prediction(samples: Iterable[Sample], classifier: Classifier, most: int, tries: int) -> dict[str, list[Sample]]:
    """At most `most` images with a wrong prediction, and as many with a correct one."""
    found: dict[str, list[Sample]] = {"wrong": [], "right": []}
    for number, sample in enumerate(samples):
        if number == tries or all(len(part) >= most for part in found.values()):
            break
        kind = "right" if is_right(load_subject(sample, classifier), classifier) else "wrong"
        if len(found[kind]) < most:
            found[kind].append(replace(sample, facts={**sample.facts, "kind": kind}))
    return found


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Overlap with the occluder, if it is known."""
    return {key: value for key, value in measure_occluder(subject, explanation).items() if key == OVERLAP.key}


def make_tables(rows: Sequence[Row]) -> list[Table]:
    """Size for wrong and correct predictions, and their difference."""
    by = {"method": "method", "kind": "prediction"}
    kinds = measure_table("kinds", "Wrong and correct predictions", rows, (SIZE, OVERLAP.unranked, CONFIDENCE, CALLS), by=by)
    lines = []
    for method, group in by_method(rows):
        parts = {kind: part for (kind,), part in group_rows(group, "kind").items()}
        wrong, right = (finite_values(parts.get(kind, []), "size") for kind in ("wrong", "right"))
        lines.append((method, len(wrong), len(right), difference_of_means(wrong, right)))
    counts = (Column("method"), Column("wrong", "count"), Column("right", "count"))
    columns = (*counts, Column("size, wrong minus right", "points", None, "difference of the means"))
    return [Table("difference", "Are explanations of wrong predictions larger?", columns, tuple(lines)), kinds]


BENCH = Bench(
    name="misclassified",
    question="Are explanations of wrong predictions larger than those of correct ones?",
    paper="No figures: a footnote says that results for misclassifications are on the website of the project.",
    methods="causal,dc-causal",
    select=select,
    measure=measure,
    tables=make_tables,
    plots=lambda rows: [size_plot([row | {"method": f"{row['method']}, {row['kind']}"} for row in rows])],
    outline="occluder",
)
