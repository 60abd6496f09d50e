"""A known object at varying positions: do the explanation and the map locate it?"""

from collections.abc import Sequence

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import iou, overlap, points_inside, recall, top_pixels
from becausal.lab.bench.datasets import read_roaming
from becausal.lab.bench.findings import (
    CALLS,
    SIZE,
    Column,
    Findings,
    Measure,
    Row,
    Table,
    cumulative_plot,
    measure_table,
    paired_table,
    successful,
)
from becausal.lab.bench.plan import Bench, BenchSettings, ImageSelection, Subject, plain_arms
from becausal.lab.bench.selection import reject_mislabelled, select_evenly, unless_known

PUBLISHED = {
    "rap": 0.910, "sbfl": 0.767, "dc-causal": 0.723, "extremal": 0.707, "rise": 0.558, "lrp": 0.538, "gbp": 0.208,
    "ig": 0.122,
}  # fmt: skip

IOU = Measure("iou", Column("IoU", "share", "high", "intersection over union of explanation and object"))
HALF = Measure("found", Column("IoU > 0.5", "share", "high", "explanations with an IoU above 0.5"), True)
TOP_IOU = Measure(
    "map_iou", Column("IoU, top pixels", "share", "high", "IoU of the highest pixels of the map, as many as the object has")
)
TOP_HALF = Measure(
    "map_found",
    Column("IoU, top pixels > 0.5", "share", "high", "images on which the IoU of the top pixels is above 0.5"),
    True,
)
POINTING = Measure("pointing", Column("pointing", "share", "high", "images with the maximum of the map on the object"))
INSIDE = Measure("inside", Column("inside", "share", "high", "share of the explanation that lies on the object"))


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images in which the model recognises the object."""
    if settings.data is None:
        raise OptionError(
            "the bench roaming-panda needs --data DIR: download the dataset with becausal data get roaming-panda, or run "
            "the bench scenes, which needs no data"
        )
    return select_evenly(read_roaming(settings.data), unless_known(settings, reject_mislabelled(classifier)), settings.limit)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Agreement of the explanation, and of the highest pixels of the map, with the object."""
    target, visible = subject.masks["object"], explanation.visible
    rng = np.random.default_rng(explanation.origin.seed)
    top = top_pixels(explanation.responsibility, int(np.count_nonzero(target)), rng)
    own, high = iou(visible, target), iou(top, target)
    return {
        "iou": own,
        "found": int(own > 0.5),
        "map_iou": high,
        "map_found": int(high > 0.5),
        "pointing": points_inside(explanation.responsibility, target),
        "inside": overlap(visible, target),
        "shown": recall(visible, target),
    }


def summarise(rows: Sequence[Row]) -> Findings:
    """Means for all methods, next to the published values."""
    found = successful(rows)
    table = measure_table("methods", "All methods", found, (TOP_HALF, TOP_IOU, HALF, IOU, POINTING, INSIDE, SIZE, CALLS))
    columns = (
        *table.columns,
        Column("published", "share", None, "share of images with an IoU above 0.5 in the text of the paper"),
    )
    table = Table(
        table.name, table.title, columns, tuple((*line, PUBLISHED.get(str(line[0]).split(":")[0])) for line in table.rows),
        "The paper does not define the pixels of its IoU. A minimal explanation is far smaller than the object, so its IoU "
        "must be low; the highest pixels of the map, as many as the object has, are the closest comparison.",
    )  # fmt: skip
    tables = (table, paired_table(found, TOP_IOU), paired_table(found, INSIDE))
    plots = (
        cumulative_plot(
            "agreement", "IoU of the highest pixels of the map", "IoU with the object, at most", found, "map_iou"
        ),
        cumulative_plot("size", "Size of the explanations", "share of the view, at most", found, "size"),
    )
    return Findings(tuple(t for t in tables if t is not None), plots)


BENCH = Bench(
    name="roaming-panda",
    question="Do the explanation and the highest pixels of the map locate an object at varying positions?",
    paper="Share of images with an IoU above 0.5: RAP 91.0, SBFL 76.7, dc-causal 72.3, Extremal 70.7, RISE 55.8, LRP 53.8, "
    "GBP 20.8, IG 12.2 %.",
    methods="all",
    limit=None,
    select=select,
    arms=plain_arms,
    measure=measure,
    summarise=summarise,
    rank_by="map_iou",
    lower_is_better=False,
    outline="object",
)
