"""The main experiment of the paper: overlap with a planted occluder, and size of the explanations."""

from collections.abc import Sequence

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import iou, overlap, recall
from becausal.lab.bench.datasets import SMALLEST, read_photobombs
from becausal.lab.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Row,
    cumulative_plot,
    measure_table,
    paired_table,
    successful,
)
from becausal.lab.bench.plan import Bench, BenchSettings, ImageSelection, Subject, plain_arms
from becausal.lab.bench.selection import reject_mislabelled, select_evenly, unless_known

AREAS = ((0.01, "under 1 %"), (0.05, "1 to 5 %"), (0.1, "5 to 10 %"), (2.0, "over 10 %"))

CLEAR = Measure("clear", Column("clear", "share", "high", "explanations without any pixel of the occluder"), True)
OVERLAP = Measure("overlap", Column("on occluder", "share", "low", "share of the explanation that lies on the occluder"))
COVERED = Measure("covered", Column("of occluder", "share", "low", "share of the occluder that is in the explanation"))
IOU = Measure("iou", Column("IoU", "share", "low", "intersection over union of explanation and occluder"))


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images with a correct prediction and an occluder of at least 50 pixels in the view."""
    if settings.data is None:
        raise OptionError(
            "the bench photobombing needs --data DIR: download the dataset with becausal data get photobombing, or run the "
            "bench scenes, which needs no data"
        )
    reject = reject_mislabelled(classifier, mask="occluder", pixels=SMALLEST)
    return select_evenly(read_photobombs(settings.data), unless_known(settings, reject), settings.limit)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Overlap of the explanation and the occluder."""
    occluder, visible = subject.masks["occluder"], explanation.visible
    area = float(occluder.mean())
    return {
        "overlap": overlap(visible, occluder),
        "covered": recall(visible, occluder),
        "iou": iou(visible, occluder),
        "clear": int(not (visible & occluder).any()),
        "area": area,
        "area_class": next(name for bound, name in AREAS if area < bound),
    }


def summarise(rows: Sequence[Row]) -> Findings:
    """Means for all methods, by shape and by area, and the two curves of the figure in the paper."""
    found = successful(rows)
    order = [name for _, name in AREAS]
    tables = [
        measure_table("methods", "All methods", found, (SIZE, CLEAR, OVERLAP, COVERED, IOU, CALLS)),
        paired_table(found, CLEAR),
        paired_table(found, SIZE),
        measure_table(
            "shapes", "By shape of the occluder", found, (SIZE, CLEAR, OVERLAP), by=Grouping(("shape", "method")),
            order=lambda key: str(key[0]),
        ),
        measure_table(
            "areas", "By area of the occluder", found, (SIZE, CLEAR, OVERLAP),
            by=Grouping(("area_class", "method"), ("area", "method")), order=lambda key: order.index(key[0]),
        ),
    ]  # fmt: skip
    plots = (
        cumulative_plot(
            "intersection",
            "Overlap with the occluder",
            "share of the occluder in the explanation, at most",
            found,
            "covered",
        ),
        cumulative_plot("size", "Size of the explanations", "share of the view, at most", found, "size"),
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="photobombing",
    question="Do explanations avoid a planted occluder, and how small are they?",
    paper="More than 60 % of the explanations of dc-causal avoid the occluder, 20 points more than those of RISE, the "
    "second best; they are the smallest of all tools.",
    methods="all",
    limit=None,
    select=select,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    rank_by="overlap",
    outline="occluder",
)
