"""A known object at varying positions: do the explanation and the map locate it?"""

from collections.abc import Sequence

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou, overlap, points_inside, recall, top_pixels
from becausal.lab.bench.base import Bench
from becausal.lab.bench.datasets import read_roaming
from becausal.lab.bench.plan import BenchSettings, ImageSelection, Subject
from becausal.lab.bench.plots import Plot, cumulative_plot, size_plot
from becausal.lab.bench.rows import Row
from becausal.lab.bench.selection import reject_mislabelled, select_listed
from becausal.lab.bench.tables import CALLS, SIZE, Column, Measure, Table, measure_table, paired_table

#: Share of images with an IoU above 0.5, from the text of the paper.
PUBLISHED = {
    "rap": 0.910, "sbfl": 0.767, "dc-causal": 0.723, "extremal": 0.707, "rise": 0.558, "lrp": 0.538, "gbp": 0.208,
    "ig": 0.122,
}  # fmt: skip

IOU = Measure("iou", "IoU", "share", "high", "intersection over union of explanation and object")
HALF = Measure("found", "IoU > 0.5", "share", "high", "explanations with an IoU above 0.5", is_flag=True)
TOP_IOU = Measure(
    "map_iou", "IoU, top pixels", "share", "high", "IoU of the highest pixels of the map, as many as the object has"
)
TOP_HALF = Measure(
    "map_found",
    "IoU, top pixels > 0.5",
    "share",
    "high",
    "images on which the IoU of the top pixels is above 0.5",
    is_flag=True,
)
POINTING = Measure("pointing", "pointing", "share", "high", "images with the maximum of the map on the object")
INSIDE = Measure("inside", "inside", "share", "high", "share of the explanation that lies on the object")


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images in which the model recognises the object."""
    return select_listed(settings, read_roaming, reject_mislabelled(classifier))


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


def make_tables(rows: Sequence[Row]) -> list[Table | None]:
    """Means for all methods, next to the published values."""
    table = measure_table("methods", "All methods", rows, (TOP_HALF, TOP_IOU, HALF, IOU, POINTING, INSIDE, SIZE, CALLS))
    published = Column("published", "share", None, "share of images with an IoU above 0.5 in the text of the paper")
    lines = tuple((*line, PUBLISHED.get(str(line[0]).split(":")[0])) for line in table.rows)
    table = Table(
        table.name, table.title, (*table.columns, published), lines,
        "The paper does not define the pixels of its IoU. A minimal explanation is far smaller than the object, so its IoU "
        "must be low; the highest pixels of the map, as many as the object has, are the closest comparison.",
    )  # fmt: skip
    return [table, paired_table(rows, TOP_IOU), paired_table(rows, INSIDE)]


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """IoU of the highest pixels, and sizes."""
    title, x = "IoU of the highest pixels of the map", "IoU with the object, at most"
    return [cumulative_plot("agreement", title, x, rows, "map_iou"), size_plot(rows)]


BENCH = Bench(
    name="roaming-panda",
    question="Do the explanation and the highest pixels of the map locate an object at varying positions?",
    paper="Share of images with an IoU above 0.5: RAP 91.0, SBFL 76.7, dc-causal 72.3, Extremal 70.7, RISE 55.8, LRP 53.8, "
    "GBP 20.8, IG 12.2 %.",
    limit=None,
    select=select,
    measure=measure,
    tables=make_tables,
    plots=make_plots,
    rank_by="map_iou",
    lower_is_better=False,
    outline="object",
)
