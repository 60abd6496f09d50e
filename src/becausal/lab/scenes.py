"""Generated scenes with exact ground truth: overlap of the explanation with the object, its pieces and the occluder."""

from collections.abc import Iterator
from dataclasses import replace

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap, pieces_found, recall
from becausal.lab.base import CLEAR, OVERLAP, Bench, BenchSettings, ImageSelection, Subject, measure_occluder
from becausal.lab.datasets import Sample, draw_scenes
from becausal.lab.rows import Row
from becausal.lab.selection import reject_mislabelled, require_scene_labels, take_first
from becausal.lab.tables import CALLS, SIZE, Measure, cumulative_plot, measure_table, paired_table, points_plot, size_plot
from becausal.scenes import pieces

#: By name: the covered share of the object, and whether it is cut in pieces.
LEVELS: dict[str, tuple[tuple[float, float] | None, bool | None]] = {
    "none": (None, None),
    "5 to 20 %": ((0.05, 0.2), False),
    "20 to 40 %": ((0.2, 0.4), False),
    "40 to 60 %": ((0.4, 0.6), False),
    "cut in pieces": ((0.08, 0.6), True),
}
NAMES = tuple(LEVELS)
PIECE = 0.05  # smallest share of the visible object that counts as a piece
NOTE = (
    "'On occluder' and 'clear' are over scenes with an occluder, 'pieces found' over objects in several pieces. A piece is "
    "found if at least 5 % of the explanation lies on it."
)

PRECISION = Measure("precision", "precision", "share", "high", "share of the explanation on the visible object")
RECALL = Measure("recall", "recall", "share", "high", "share of the visible object in the explanation")
PIECES = Measure("pieces_share", "pieces found", "share", "high", "share of the object's pieces that were found")
MEASURES = (SIZE, PRECISION, RECALL, OVERLAP, CLEAR, PIECES)


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Scenes with a correct prediction, from five levels of occlusion in turn."""
    if settings.data is not None:
        raise OptionError("the bench scenes generates its images: leave out --data")
    require_scene_labels(classifier)
    seed, limit = settings.request.seed, settings.limit or 100
    streams = [draw_scenes(seed, cover=cover, cut=cut, plain=cover is None) for cover, cut in LEVELS.values()]

    def all_levels() -> Iterator[Sample]:
        while True:
            for number, (name, stream) in enumerate(zip(NAMES, streams, strict=True)):
                sample = next(stream)
                yield replace(sample, name=f"{sample.name}-{number}", facts={"level": name})

    return take_first(all_levels(), reject_mislabelled(settings, classifier), limit, 4 * limit)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Overlap of the explanation with the object, its pieces and the occluder."""
    target, visible = subject.masks["object"], explanation.visible
    numbered, sizes = pieces(target)
    count = sum(size >= PIECE * int(target.sum()) for size in sizes)
    found = pieces_found(visible, numbered, count)
    return {
        "precision": overlap(visible, target),
        "recall": recall(visible, target),
        "object_pieces": count,
        "pieces_found": found,
        "pieces_share": found / count if count > 1 else None,
    } | measure_occluder(subject, explanation)


BENCH = Bench(
    name="scenes",
    question="With exact ground truth: does the explanation lie on the visible object, and on how many of its pieces?",
    paper="Not in the paper: generated images with exact ground truth.",
    select=select,
    measure=measure,
    tables=lambda rows: [
        measure_table("methods", "All methods", rows, (*MEASURES, CALLS), note=NOTE),
        paired_table(rows, PRECISION),
        paired_table(rows, CLEAR),
        paired_table(rows, SIZE),
        measure_table(
            "levels", "By covered share of the object", rows, MEASURES, by={"level": "covered", "method": "method"},
            order=lambda key: NAMES.index(key[0]),
        ),
    ],
    plots=lambda rows: [
        points_plot(
            "levels", "Share of the explanation on the visible object", "covered share of the object", "precision", rows,
            PRECISION, "level", NAMES,
        ),
        cumulative_plot("intersection", "Overlap with the occluder", "share of the explanation, at most", rows, "overlap"),
        size_plot(rows),
    ],
    rank_by="precision",
    lower_is_better=False,
    outline="object",
)  # fmt: skip
