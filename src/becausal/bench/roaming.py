"""Nothing is hidden: a known object roams over images; does the explanation, or the map, find it?"""

from collections.abc import Sequence

import numpy as np

from becausal.api.explanation import Explanation
from becausal.bench.datasets import read_roaming
from becausal.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Measure,
    Row,
    Table,
    answered,
    measure_table,
    paired_table,
    within_plot,
)
from becausal.bench.plan import Bench, Pool, Settings, Subject, plain_arms
from becausal.bench.pools import judged, rightly_labelled, sift
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import iou, overlap, points_inside, recall, top_pixels

PUBLISHED = {
    "rap": 0.910, "sbfl": 0.767, "dc-causal": 0.723, "extremal": 0.707, "rise": 0.558, "lrp": 0.538, "gbp": 0.208,
    "ig": 0.122,
}  # fmt: skip

IOU = Measure("iou", Column("IoU", "share", "high", "intersection over union of explanation and object"))
HALF = Measure("found", Column("IoU over 0.5", "share", "high", "explanations whose IoU is over 0.5"), True)
TOP_IOU = Measure(
    "map_iou", Column("IoU, top", "share", "high", "the same of the map's highest pixels, as many as the object has")
)
TOP_HALF = Measure("map_found", Column("top over 0.5", "share", "high", "images on which that is over 0.5"), True)
POINTING = Measure("pointing", Column("pointing", "share", "high", "images whose map is highest on the object"))
INSIDE = Measure("inside", Column("inside", "share", "high", "share of the explanation that lies on the object"))


def collect(settings: Settings, classifier: Classifier) -> Pool:
    """Images on which the model sees the object."""
    if settings.data is None:
        raise OptionError(
            "the bench roaming-panda needs --data DIR: fetch the set with becausal data get roaming-panda, or make one "
            "with becausal data make roaming"
        )
    return sift(read_roaming(settings.data), judged(settings, rightly_labelled(classifier)), settings.limit)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """How well the explanation, and the top of the map, agree with the object."""
    thing, visible = subject.truths["object"], explanation.visible
    rng = np.random.default_rng(explanation.origin.seed)
    top = top_pixels(explanation.responsibility, int(np.count_nonzero(thing)), rng)
    own, high = iou(visible, thing), iou(top, thing)
    return {
        "iou": own,
        "found": int(own > 0.5),
        "map_iou": high,
        "map_found": int(high > 0.5),
        "pointing": points_inside(explanation.responsibility, thing),
        "inside": overlap(visible, thing),
        "shown": recall(visible, thing),
    }


def summarise(rows: Sequence[Row]) -> Findings:
    """Means for all methods, next to what the paper's sources report."""
    found = answered(rows)
    table = measure_table("methods", "All methods", found, (TOP_HALF, TOP_IOU, HALF, IOU, POINTING, INSIDE, SIZE, CALLS))
    columns = (*table.columns, Column("published", "share", None, "share over 0.5 in the paper's text"))
    table = Table(
        table.name, table.title, columns, tuple((*line, PUBLISHED.get(str(line[0]).split(":")[0])) for line in table.rows),
        "The paper does not say from which pixels its IoU was taken. A minimal explanation is far smaller than the object, "
        "so its own IoU must be low; the map's top pixels, as many as the object has, are the closest comparison.",
    )  # fmt: skip
    tables = (table, paired_table(found, TOP_IOU), paired_table(found, INSIDE))
    plots = (
        within_plot("agreement", "IoU of the map's top pixels", "at most this IoU with the object", found, "map_iou"),
        within_plot("size", "Size of the explanations", "at most this share of the view", found, "size"),
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="roaming-panda",
    question="Does the explanation, or the top of the map, find an object that roams over images?",
    paper="Share of images with an IoU over 0.5: RAP 91.0, SBFL 76.7, dc-causal 72.3, Extremal 70.7, RISE 55.8, LRP 53.8, "
    "GBP 20.8, IG 12.2 %.",
    methods="all",
    limit=None,
    collect=collect,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    judge="map_iou",
    low=False,
    truth="object",
)
