"""The main experiment of the paper: overlap with a planted occluder, and size of the explanations."""

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.metrics import iou
from becausal.lab.base import CLEAR, COVERED, OVERLAP, Bench, Subject, measure_occluder
from becausal.lab.datasets import SMALLEST, read_photobombs
from becausal.lab.rows import Row
from becausal.lab.selection import reject_mislabelled, select_listed
from becausal.lab.tables import CALLS, SIZE, Measure, cumulative_plot, measure_table, paired_table, size_plot

#: Classes of occluders by their share of the view: the bound above, and the name.
AREAS = ((0.01, "under 1 %"), (0.05, "1 to 5 %"), (0.1, "5 to 10 %"), (2.0, "over 10 %"))
ORDER = [name for _, name in AREAS]

IOU = Measure("iou", "IoU", "share", "low", "intersection over union of explanation and occluder")
OWN = (SIZE, CLEAR, OVERLAP)


def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
    """Overlap of the explanation and the occluder."""
    occluder = subject.masks["occluder"]
    area = float(occluder.mean())
    own = {"iou": iou(explanation.visible, occluder), "area": area}
    return measure_occluder(subject, explanation) | own | {"area_class": next(n for bound, n in AREAS if area < bound)}


BENCH = Bench(
    name="photobombing",
    question="Do explanations avoid a planted occluder, and how small are they?",
    paper="More than 60 % of the explanations of dc-causal do not overlap with the occluder, 20 % better than RISE, the "
    "second best; they are consistently smaller than those of the other tools. The same paragraph says that they overlap "
    "more with the occluders than those of RISE.",
    limit=None,
    select=lambda settings, classifier: select_listed(
        settings, read_photobombs, reject_mislabelled(settings, classifier, occluder=SMALLEST)
    ),
    measure=measure,
    tables=lambda rows: [
        measure_table("methods", "All methods", rows, (*OWN, COVERED, IOU, CALLS)),
        paired_table(rows, CLEAR),
        paired_table(rows, SIZE),
        measure_table(
            "shapes", "By shape of the occluder", rows, OWN, by={"shape": "shape", "method": "method"},
            order=lambda key: str(key[0]),
        ),
        measure_table(
            "areas", "By area of the occluder", rows, OWN, by={"area_class": "area", "method": "method"},
            order=lambda key: ORDER.index(key[0]),
        ),
    ],
    # The two curves of the figure in the paper. Its y-axis, "retained accuracy", is read as the share of the images.
    plots=lambda rows: [
        cumulative_plot(
            "intersection", "Overlap with the occluder", "share of the occluder in the explanation, at most", rows, "covered"
        ),
        size_plot(rows),
    ],
    rank_by="overlap",
    outline="occluder",
)  # fmt: skip
