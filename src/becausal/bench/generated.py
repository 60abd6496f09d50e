"""Generated scenes, where everything is known: is the explanation on the object, clear of the photobomber, in its pieces?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from becausal.api.explanation import Explanation
from becausal.bench.datasets import Sample, draw_scenes
from becausal.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Plot,
    Row,
    answered,
    groups,
    measure_table,
    paired_table,
    points_line,
    within_plot,
)
from becausal.bench.plan import Bench, Pool, Settings, Subject, plain_arms
from becausal.bench.pools import judged, need_scene_labels, rightly_labelled, take
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap, pieces_found, recall
from becausal.scenes.masks import pieces

LEVELS: tuple[tuple[str, tuple[float, float] | None, bool | None], ...] = (
    ("none", None, None),
    ("5 to 20 %", (0.05, 0.2), False),
    ("20 to 40 %", (0.2, 0.4), False),
    ("40 to 60 %", (0.4, 0.6), False),
    ("cut in pieces", (0.08, 0.6), True),
)
NAMES = [name for name, _, _ in LEVELS]
PIECE = 0.05  # of the visible object: smaller pieces do not count

PRECISION = Measure("precision", Column("precision", "share", "high", "share of the explanation on the visible object"))
RECALL = Measure("recall", Column("recall", "share", "high", "share of the visible object in the explanation"))
ON_BOMBER = Measure("overlap", Column("on bomber", "share", "low", "share of the explanation on the photobomber"))
CLEAR = Measure("clear", Column("clear", "share", "high", "explanations without one pixel of the photobomber"), True)
PIECES = Measure("pieces_share", Column("pieces found", "share", "high", "share of the object's pieces that were found"))


def collect(settings: Settings, classifier: Classifier) -> Pool:
    """Scenes of five levels of occlusion in turn, those that the model names rightly."""
    if settings.data is not None:
        raise OptionError("the bench scenes draws its own images and takes no --data")
    need_scene_labels(classifier)
    limit = settings.limit or 100
    return take(_in_turn(settings.seed), judged(settings, rightly_labelled(classifier)), limit, 4 * limit)


def _in_turn(seed: int) -> Iterator[Sample]:
    streams = [draw_scenes(seed, cover=cover, cut=cut, plain=cover is None) for _, cover, cut in LEVELS]
    while True:
        for name, stream in zip(NAMES, streams, strict=True):
            sample = next(stream)
            yield replace(sample, name=f"{sample.name}-{NAMES.index(name)}", facts={"level": name})


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """How the explanation lies to the object, its pieces and the photobomber."""
    thing, bomber, visible = subject.truths["object"], subject.truths["occluder"], explanation.visible
    numbered, sizes = pieces(thing)
    count = sum(size >= PIECE * int(thing.sum()) for size in sizes)
    found = pieces_found(visible, numbered, count)
    row: Row = {
        "precision": overlap(visible, thing),
        "recall": recall(visible, thing),
        "object_pieces": count,
        "pieces_found": found,
        "pieces_share": found / count if count > 1 else None,
    }
    if bomber.any():
        row |= {"overlap": overlap(visible, bomber), "clear": int(not (visible & bomber).any())}
    return row


def summarise(rows: Sequence[Row]) -> Findings:
    """Means for all methods, and by level of occlusion."""
    found = answered(rows)
    measures = (SIZE, PRECISION, RECALL, ON_BOMBER, CLEAR, PIECES)
    tables = (
        measure_table(
            "methods", "All methods", found, (*measures, CALLS),
            note="On bomber and clear are over scenes with a photobomber; pieces found over objects in several pieces: a "
            "piece is found where at least 5 % of the explanation lie on it.",
        ),
        paired_table(found, PRECISION),
        paired_table(found, CLEAR),
        paired_table(found, SIZE),
        measure_table(
            "levels", "By the share of the object that is covered", found, measures,
            by=Grouping(("level", "method"), ("covered", "method")), order=lambda key: NAMES.index(key[0]),
        ),
    )  # fmt: skip
    lines = []
    for (method,), group in groups(found, "method").items():
        by_level = groups(group, "level")
        present = [(i, by_level[(name,)]) for i, name in enumerate(NAMES) if (name,) in by_level]
        lines.append(points_line(str(method), [i for i, _ in present], [PRECISION.of(rows) for _, rows in present]))
    plots = (
        Plot(
            "levels", "Share of the explanation on the visible object, by cover", "share of the object that is covered",
            "precision", tuple(lines), "points", "y", tuple(NAMES),
        ),
        within_plot("intersection", "Overlap with the photobomber", "at most this share lies on it", found, "overlap"),
        within_plot("size", "Size of the explanations", "at most this share of the view", found, "size"),
    )  # fmt: skip
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="scenes",
    question="With everything known: is the explanation on what can be seen of the object, and in how many of its pieces?",
    paper="No counterpart: generated images with exact truth.",
    methods="all",
    limit=100,
    collect=collect,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    judge="precision",
    low=False,
    truth="object",
)
