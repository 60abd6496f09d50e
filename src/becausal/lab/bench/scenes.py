"""Generated scenes with exact ground truth: overlap of the explanation with the object, its pieces and the occluder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap, pieces_found, recall
from becausal.lab.bench.datasets import Sample, draw_scenes
from becausal.lab.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Plot,
    Row,
    cumulative_plot,
    group_rows,
    line_of_estimates,
    measure_table,
    paired_table,
    successful,
)
from becausal.lab.bench.plan import Bench, BenchSettings, ImageSelection, Subject, plain_arms
from becausal.lab.bench.selection import reject_mislabelled, require_scene_labels, take_first, unless_known
from becausal.lab.scenes.masks import pieces

LEVELS: tuple[tuple[str, tuple[float, float] | None, bool | None], ...] = (
    ("none", None, None),
    ("5 to 20 %", (0.05, 0.2), False),
    ("20 to 40 %", (0.2, 0.4), False),
    ("40 to 60 %", (0.4, 0.6), False),
    ("cut in pieces", (0.08, 0.6), True),
)
NAMES = [name for name, _, _ in LEVELS]
PIECE = 0.05  # smallest share of the visible object that counts as a piece

PRECISION = Measure("precision", Column("precision", "share", "high", "share of the explanation on the visible object"))
RECALL = Measure("recall", Column("recall", "share", "high", "share of the visible object in the explanation"))
ON_OCCLUDER = Measure("overlap", Column("on occluder", "share", "low", "share of the explanation on the occluder"))
CLEAR = Measure("clear", Column("clear", "share", "high", "explanations without any pixel of the occluder"), True)
PIECES = Measure("pieces_share", Column("pieces found", "share", "high", "share of the object's pieces that were found"))


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
    target, occluder, visible = subject.masks["object"], subject.masks["occluder"], explanation.visible
    numbered, sizes = pieces(target)
    count = sum(size >= PIECE * int(target.sum()) for size in sizes)
    found = pieces_found(visible, numbered, count)
    row: Row = {
        "precision": overlap(visible, target),
        "recall": recall(visible, target),
        "object_pieces": count,
        "pieces_found": found,
        "pieces_share": found / count if count > 1 else None,
    }
    if occluder.any():
        row |= {"overlap": overlap(visible, occluder), "clear": int(not (visible & occluder).any())}
    return row


def summarise(rows: Sequence[Row]) -> Findings:
    """Means for all methods, and by level of occlusion."""
    found = successful(rows)
    measures = (SIZE, PRECISION, RECALL, ON_OCCLUDER, CLEAR, PIECES)
    tables = (
        measure_table(
            "methods", "All methods", found, (*measures, CALLS),
            note="'On occluder' and 'clear' are over scenes with an occluder, 'pieces found' over objects in several "
            "pieces. A piece is found if at least 5 % of the explanation lies on it.",
        ),
        paired_table(found, PRECISION),
        paired_table(found, CLEAR),
        paired_table(found, SIZE),
        measure_table(
            "levels", "By covered share of the object", found, measures,
            by=Grouping(("level", "method"), ("covered", "method")), order=lambda key: NAMES.index(key[0]),
        ),
    )  # fmt: skip
    lines = []
    for (method,), group in group_rows(found, "method").items():
        by_level = group_rows(group, "level")
        present = [(i, by_level[(name,)]) for i, name in enumerate(NAMES) if (name,) in by_level]
        estimates = [PRECISION.estimate(part) for _, part in present]
        lines.append(line_of_estimates(str(method), [i for i, _ in present], estimates))
    plots = (
        Plot(
            "levels", "Share of the explanation on the visible object", "covered share of the object",
            "precision", tuple(lines), "points", "y", tuple(NAMES),
        ),
        cumulative_plot("intersection", "Overlap with the occluder", "share of the explanation, at most", found, "overlap"),
        cumulative_plot("size", "Size of the explanations", "share of the view, at most", found, "size"),
    )  # fmt: skip
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="scenes",
    question="With exact ground truth: does the explanation lie on the visible object, and on how many of its pieces?",
    paper="Not in the paper: generated images with exact ground truth.",
    methods="all",
    limit=100,
    select=select,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    rank_by="precision",
    lower_is_better=False,
    outline="object",
)
