"""Influence of the fill: the same images with eleven fills."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from becausal.core.metrics import iou
from becausal.lab.base import CLEAR, COVERED, OVERLAP, Arm, Bench, make_request, measure_occluder
from becausal.lab.rows import Row, by_method, compare_rows, finite_values, group_rows, successful, unpack_set
from becausal.lab.tables import CALLS, SIZE, Column, Measure, Plot, Table, estimate, measure_table, points_plot

FILLS = ("black", "#202020", "#404040", "#606060", "grey", "#a0a0a0", "#c0c0c0", "white", "mean", "blur", "noise")

BACKGROUNDS = Measure(
    "backgrounds", "backgrounds", "share", None, "share of fresh random backgrounds on which the explanation keeps the label"
)
LIKE_GREY = Measure("like_grey", "IoU with grey", "share", None, "IoU with the explanation for the fill grey")


def compare_with_grey(rows: list[Row]) -> list[Row]:
    """Compare each explanation with that of the same image for the fill grey."""

    def compare(row: Row, grey: Row) -> Row:
        return {"like_grey": iou(unpack_set(row["_shown"]), unpack_set(grey["_shown"]))}

    return compare_rows(rows, (row for row in successful(rows) if row["fill"] == "grey"), compare)


def make_tables(rows: Sequence[Row]) -> list[Table]:
    """Means for each fill, and their range: between fills, and for a single image."""
    # Occluders may be unknown; older files have no backgrounds and no share of the occluder.
    ours = (OVERLAP.unranked, COVERED.unranked, CLEAR.unranked, BACKGROUNDS)
    known = [m for m in ours if any(row.get(m.key) is not None for row in rows)]
    note = "An image is missing for a fill if the fully masked image already has the label."
    by = {"method": "method", "fill": "fill"}
    spread = _range_table(rows, (SIZE, *(m for m in ours[:2] if m in known)))
    return [spread, measure_table("fills", "By fill", rows, (SIZE, *known, LIKE_GREY, CALLS), by=by, note=note)]


def _range_table(rows: Sequence[Row], measures: Sequence[Measure]) -> Table:
    lines: list[tuple[Any, ...]] = []
    for method, group in by_method(rows):
        fills = {row["fill"] for row in group}
        # Only images that were explained with all fills, so that the means of the fills are over the same images.
        parts = [part for part in group_rows(group, "name").values() if {row["fill"] for row in part} == fills]
        whole = [row for part in parts for row in part]
        for m in measures:
            by_fill, by_name = (
                [values for part in group_rows(whole, key).values() if (values := finite_values(part, m.key))]
                for key in ("fill", "name")
            )
            between = float(np.ptp([np.mean(values) for values in by_fill])) if by_fill else None
            lines.append((method, m.name, len(parts), between, estimate([float(np.ptp(values)) for values in by_name])))
    columns = (
        Column("method"),
        Column("measure"),
        Column("n", "count", None, "images explained with all fills"),
        Column("range of means", "share", None, "largest minus smallest mean over the fills, in points"),
        Column("range per image", "share", None, "largest minus smallest value of an image, averaged, in points"),
    )
    return Table("spread", "Differences between fills", columns, tuple(lines))


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """Means for each fill; what the paper asks comes first."""
    title, y = "Size of the explanation by fill", "share of the view"
    plots = [points_plot("size", title, "fill", y, rows, SIZE, "fill", FILLS)]
    if any(row.get(OVERLAP.key) is not None for row in rows):
        title, y = "Explanation on the occluder by fill", "share of the explanation"
        plots.insert(0, points_plot("overlap", title, "fill", y, rows, OVERLAP, "fill", FILLS))
    return plots


BENCH = Bench(
    name="fills",
    question="Does the fill of masked pixels matter?",
    paper="With masking colours from black (0, 0, 0) to white (255, 255, 255), the mean intersection of the explanations of "
    "dc-causal and the occluders changes by less than 4 %. It does not say what the intersection is a share of; the full "
    "results are on a website.",
    methods="causal,dc-causal",
    limit=50,
    arms=lambda settings: [
        Arm(m, make_request(settings, m, fills=(fill,)), {"fill": fill}) for m in settings.methods for fill in FILLS
    ],
    measure=lambda subject, explanation, classifier: measure_occluder(subject, explanation),
    postprocess=compare_with_grey,
    tables=make_tables,
    plots=make_plots,
    outline="occluder",
    sets=("fills",),
)
