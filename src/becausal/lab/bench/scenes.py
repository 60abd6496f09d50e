"""Generated scenes with exact ground truth: overlap of the explanation with the object, its pieces and the occluder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap, pieces_found, recall
from becausal.lab.bench.base import Bench, measure_occluder
from becausal.lab.bench.datasets import Sample, draw_scenes
from becausal.lab.bench.plan import BenchSettings, ImageSelection, Subject
from becausal.lab.bench.plots import Plot, cumulative_plot, points_plot, size_plot
from becausal.lab.bench.rows import Row
from becausal.lab.bench.selection import reject_mislabelled, require_scene_labels, take_first, unless_known
from becausal.lab.bench.tables import CALLS, SIZE, Measure, Table, measure_table, paired_table
from becausal.lab.scenes.masks import pieces

#: Name, covered share of the object, and whether it is cut in pieces.
LEVELS: tuple[tuple[str, tuple[float, float] | None, bool | None], ...] = (
    ("none", None, None),
    ("5 to 20 %", (0.05, 0.2), False),
    ("20 to 40 %", (0.2, 0.4), False),
    ("40 to 60 %", (0.4, 0.6), False),
    ("cut in pieces", (0.08, 0.6), True),
)
NAMES = tuple(name for name, _, _ in LEVELS)
PIECE = 0.05  # smallest share of the visible object that counts as a piece

PRECISION = Measure("precision", "precision", "share", "high", "share of the explanation on the visible object")
RECALL = Measure("recall", "recall", "share", "high", "share of the visible object in the explanation")
ON_OCCLUDER = Measure("overlap", "on occluder", "share", "low", "share of the explanation on the occluder")
CLEAR = Measure("clear", "clear", "share", "high", "explanations without any pixel of the occluder", is_flag=True)
PIECES = Measure("pieces_share", "pieces found", "share", "high", "share of the object's pieces that were found")


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Scenes with a correct prediction, from five levels of occlusion in turn."""
    if settings.data is not None:
        raise OptionError("the bench scenes generates its images: leave out --data")
    require_scene_labels(classifier)
    limit = settings.limit or 100
    reject = unless_known(settings, reject_mislabelled(classifier))
    return take_first(_all_levels(settings.request.seed), reject, limit, 4 * limit)


def _all_levels(seed: int) -> Iterator[Sample]:
    streams = [draw_scenes(seed, cover=cover, cut=cut, plain=cover is None) for _, cover, cut in LEVELS]
    while True:
        for name, stream in zip(NAMES, streams, strict=True):
            sample = next(stream)
            yield replace(sample, name=f"{sample.name}-{NAMES.index(name)}", facts={"level": name})


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


def make_tables(rows: Sequence[Row]) -> list[Table | None]:
    """Means for all methods, and by level of occlusion."""
    measures = (SIZE, PRECISION, RECALL, ON_OCCLUDER, CLEAR, PIECES)
    note = (
        "'On occluder' and 'clear' are over scenes with an occluder, 'pieces found' over objects in several "
        "pieces. A piece is found if at least 5 % of the explanation lies on it."
    )
    by, title = {"level": "covered", "method": "method"}, "By covered share of the object"
    return [
        measure_table("methods", "All methods", rows, (*measures, CALLS), note=note),
        paired_table(rows, PRECISION),
        paired_table(rows, CLEAR),
        paired_table(rows, SIZE),
        measure_table("levels", title, rows, measures, by=by, order=lambda key: NAMES.index(key[0])),
    ]


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """Precision by level, overlap with the occluder, and sizes."""
    title, x = "Share of the explanation on the visible object", "covered share of the object"
    return [
        points_plot("levels", title, x, "precision", rows, PRECISION, "level", NAMES),
        cumulative_plot("intersection", "Overlap with the occluder", "share of the explanation, at most", rows, "overlap"),
        size_plot(rows),
    ]


BENCH = Bench(
    name="scenes",
    question="With exact ground truth: does the explanation lie on the visible object, and on how many of its pieces?",
    paper="Not in the paper: generated images with exact ground truth.",
    select=select,
    measure=measure,
    tables=make_tables,
    plots=make_plots,
    rank_by="precision",
    lower_is_better=False,
    outline="object",
)
