"""The paper's main experiment: do explanations stay clear of a planted occluder, and how large are they?"""

from collections.abc import Sequence

from becausal.api.explanation import Explanation
from becausal.bench.datasets import SMALLEST, read_photobombs
from becausal.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Grouping,
    Measure,
    Row,
    answered,
    measure_table,
    paired_table,
    within_plot,
)
from becausal.bench.plan import Bench, Pool, Settings, Subject, plain_arms
from becausal.bench.pools import judged, rightly_labelled, sift
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import iou, overlap, recall

AREAS = ((0.01, "under 1 %"), (0.05, "1 to 5 %"), (0.1, "5 to 10 %"), (2.0, "over 10 %"))

CLEAR = Measure("clear", Column("clear", "share", "high", "explanations without one pixel of the occluder"), True)
OVERLAP = Measure("overlap", Column("on it", "share", "low", "share of the explanation that lies on the occluder"))
COVERED = Measure("covered", Column("of it", "share", "low", "share of the occluder that the explanation shows"))
IOU = Measure("iou", Column("IoU", "share", "low", "intersection over union of explanation and occluder"))


def collect(settings: Settings, classifier: Classifier) -> Pool:
    """Images of the set whose label the model gives, with an occluder of at least 50 pixels of the view."""
    if settings.data is None:
        raise OptionError(
            "the bench photobombing needs --data DIR: fetch the set with becausal data get photobombing, make one with "
            "becausal data make photobombing, or take the bench scenes, which needs nothing"
        )
    accept = rightly_labelled(classifier, least="occluder", pixels=SMALLEST)
    return sift(read_photobombs(settings.data), judged(settings, accept), settings.limit)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """How the explanation lies to the occluder."""
    occluder, visible = subject.truths["occluder"], explanation.visible
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
    """Means for all methods, the two curves of the paper's figure, and the same by shape and by area."""
    found = answered(rows)
    order = [name for _, name in AREAS]
    tables = [
        measure_table("methods", "All methods", found, (SIZE, CLEAR, OVERLAP, COVERED, IOU, CALLS)),
        paired_table(found, CLEAR),
        paired_table(found, SIZE),
        measure_table(
            "shapes", "By the occluder's shape", found, (SIZE, CLEAR, OVERLAP), by=Grouping(("shape", "method")),
            order=lambda key: str(key[0]),
        ),
        measure_table(
            "areas", "By the occluder's area", found, (SIZE, CLEAR, OVERLAP),
            by=Grouping(("area_class", "method"), ("area", "method")), order=lambda key: order.index(key[0]),
        ),
    ]  # fmt: skip
    plots = (
        within_plot(
            "intersection",
            "Overlap with the occluder",
            "at most this share of the occluder is shown",
            found,
            "covered",
        ),
        within_plot("size", "Size of the explanations", "at most this share of the view", found, "size"),
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="photobombing",
    question="Do explanations stay clear of a planted occluder, and how small are they?",
    paper="More than 60 % of the explanations of dc-causal clear of the occluder, 20 points ahead of the second best, RISE; "
    "the smallest sizes of all tools.",
    methods="all",
    limit=None,
    collect=collect,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    judge="overlap",
    truth="occluder",
)
