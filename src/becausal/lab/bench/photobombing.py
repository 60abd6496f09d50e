"""The main experiment of the paper: overlap with a planted occluder, and size of the explanations."""

from collections.abc import Sequence

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou, overlap, recall
from becausal.lab.bench.base import Bench
from becausal.lab.bench.datasets import SMALLEST, read_photobombs
from becausal.lab.bench.plan import BenchSettings, ImageSelection, Subject
from becausal.lab.bench.plots import Plot, cumulative_plot, size_plot
from becausal.lab.bench.rows import Row
from becausal.lab.bench.selection import reject_mislabelled, select_listed
from becausal.lab.bench.tables import CALLS, SIZE, Measure, Table, measure_table, paired_table

#: Classes of occluders by their share of the view: the bound above, and the name.
AREAS = ((0.01, "under 1 %"), (0.05, "1 to 5 %"), (0.1, "5 to 10 %"), (2.0, "over 10 %"))

CLEAR = Measure("clear", "clear", "share", "high", "explanations without any pixel of the occluder", is_flag=True)
OVERLAP = Measure("overlap", "on occluder", "share", "low", "share of the explanation that lies on the occluder")
COVERED = Measure("covered", "of occluder", "share", "low", "share of the occluder that is in the explanation")
IOU = Measure("iou", "IoU", "share", "low", "intersection over union of explanation and occluder")


def select(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images with a correct prediction and an occluder of at least 50 pixels in the view."""
    return select_listed(settings, read_photobombs, reject_mislabelled(classifier, mask="occluder", pixels=SMALLEST))


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


def make_tables(rows: Sequence[Row]) -> list[Table | None]:
    """Means for all methods, by shape and by area."""
    order = [name for _, name in AREAS]
    by_shape, by_area = {"shape": "shape", "method": "method"}, {"area_class": "area", "method": "method"}
    own = (SIZE, CLEAR, OVERLAP)
    return [
        measure_table("methods", "All methods", rows, (SIZE, CLEAR, OVERLAP, COVERED, IOU, CALLS)),
        paired_table(rows, CLEAR),
        paired_table(rows, SIZE),
        measure_table("shapes", "By shape of the occluder", rows, own, by=by_shape, order=lambda key: str(key[0])),
        measure_table("areas", "By area of the occluder", rows, own, by=by_area, order=lambda key: order.index(key[0])),
    ]


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """The two curves of the figure in the paper."""
    x = "share of the occluder in the explanation, at most"
    return [cumulative_plot("intersection", "Overlap with the occluder", x, rows, "covered"), size_plot(rows)]


BENCH = Bench(
    name="photobombing",
    question="Do explanations avoid a planted occluder, and how small are they?",
    paper="More than 60 % of the explanations of dc-causal avoid the occluder, 20 points more than those of RISE, the "
    "second best; they are the smallest of all tools.",
    limit=None,
    select=select,
    measure=measure,
    tables=make_tables,
    plots=make_plots,
    rank_by="overlap",
    outline="occluder",
)
