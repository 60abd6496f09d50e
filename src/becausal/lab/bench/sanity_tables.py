"""The stages of the bench `sanity`, and its tables and plots."""

from collections.abc import Sequence

import numpy as np

from becausal.lab.bench.findings import (
    Cell,
    Column,
    Findings,
    Kind,
    Measure,
    Plot,
    Row,
    Table,
    finite_values,
    group_rows,
    line_of_estimates,
    successful,
)
from becausal.lab.bench.statistics import estimate

Stage = tuple[str, int]  # kind of randomisation, and a place between the layers in per cent

TRAINED, SEED, CASCADE, ALONE = "trained", "seed", "cascade", "alone"
AGAIN: Stage = (SEED, 0)
CASCADES: tuple[Stage, ...] = tuple((CASCADE, step) for step in (0, 33, 67, 100))
SINGLE: tuple[Stage, ...] = ((ALONE, 0), (ALONE, 50))
STAGES: tuple[Stage, ...] = ((TRAINED, 0), AGAIN, *CASCADES)  # of every method
NAMES = {
    (TRAINED, 0): "trained",
    AGAIN: "another seed",
    (CASCADE, 0): "last layer",
    (CASCADE, 100): "all layers",
    (ALONE, 0): "first layer only",
    (ALONE, 50): "middle layer only",
}

RANK = Measure("rank", Column("correlation", "number", None, "Spearman's correlation with the map of the trained network"))
ABSOLUTE = Measure("rank_absolute", Column("correlation", "number"))
SSIM = Measure("ssim", Column("SSIM", "number"))
SETS = Measure("set_iou", Column("IoU", "share", None, "IoU with the explanation of the trained network"))
NOTE = (
    "Compared with the map of the trained network. Another seed: the trained network again, which shows what chance alone "
    "changes. Then more and more layers are randomised, from the last one on. Constant maps have no ranks and are left out."
)


def stage_name(by: str, step: int) -> str:
    """What was randomised, in words."""
    return NAMES.get((by, step), f"last {step} %")


def summarise(rows: Sequence[Row]) -> Findings:
    """Agreement with the trained network at each stage, and how far it drops."""
    found = [row for row in successful(rows) if row["by"] != TRAINED]
    cascade = (AGAIN, *CASCADES)
    methods = {row["method"] for row in found if row["by"] == ALONE}
    alone = [row for row in found if row["method"] in methods]
    tables = (
        _drop_table(found),
        _stage_table("maps", "Maps: rank correlation", found, RANK, cascade, NOTE),
        _stage_table("sets", "Explanations: IoU", found, SETS, cascade, _count_sets(found, cascade)),
        _stage_table(
            "absolute", "Absolute values of maps of gradient methods: rank correlation", found, ABSOLUTE, cascade, ""
        ),
        _stage_table("ssim", "Maps: structural similarity (SSIM)", found, SSIM, cascade, "Maps are scaled to 0..1."),
        _stage_table(
            "alone", "Maps: rank correlation, one layer randomised", alone, RANK, (*SINGLE, CASCADES[0]),
            "All other layers keep their trained weights; gradient methods only.",
        ),
    )  # fmt: skip
    plots = (
        _plot("maps", "Maps: rank correlation with the trained network", "correlation", found, RANK),
        _plot("sets", "Explanations: IoU with the trained network", "IoU", found, SETS),
    )
    return Findings(tuple(table for table in tables if table.rows), plots)


def _at(rows: Sequence[Row], stage: Stage) -> list[Row]:
    return [row for row in rows if (row["by"], row["step"]) == stage]


def _by_name(rows: Sequence[Row], measure: Measure) -> dict[str, float]:
    return {str(row["name"]): value for row in rows for value in finite_values([row], measure.key)}


def _drop_table(rows: Sequence[Row]) -> Table:
    """What full randomisation changes, compared with another seed on the same images."""
    lines: list[tuple[Cell, ...]] = []
    for (method,), part in group_rows(rows, "method").items():
        cells: list[Cell] = [str(method)]
        for measure in (RANK, SETS):
            again, final = (_by_name(_at(part, stage), measure) for stage in (AGAIN, CASCADES[-1]))
            shared = sorted(again.keys() & final.keys())
            means = [float(np.mean([values[name] for name in shared])) if shared else None for values in (again, final)]
            cells += [len(shared), *means, estimate([again[name] - final[name] for name in shared])]
        lines.append(tuple(cells))
    columns = (
        Column("method"),
        Column("maps", "count", None, "images with both maps, neither of them constant"),
        Column("correlation, another seed", "number"),
        Column("correlation, all layers", "number"),
        Column("drop", "number", None, "mean difference of the two correlations"),
        Column("sets", "count", None, "images with both explanations"),
        Column("IoU, another seed", "share"),
        Column("IoU, all layers", "share"),
        Column("drop of IoU, points", "points", None, "mean difference of the two"),
    )
    note = (
        "The trained network with another seed, and the network with all layers randomised, both compared with the trained "
        "network on the same images. The map of a method that depends on the network drops. The controls, random and edges "
        "(the gradient of the image), ignore the network, and their maps do not drop. Explanations change for every map, "
        "since the network decides where a map is cut off."
    )
    return Table("drop", "All layers randomised", columns, tuple(lines), note)


def _stage_table(name: str, title: str, rows: Sequence[Row], measure: Measure, stages: Sequence[Stage], note: str) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for (method,), part in group_rows(rows, "method").items():
        if finite_values(part, measure.key):
            lines.append((str(method), *(measure.estimate(_at(part, stage)) for stage in stages)))
    kind: Kind = measure.column.kind
    columns = (Column("method"), *(Column(stage_name(*stage), kind) for stage in stages))
    return Table(name, title, columns, tuple(lines), note)


def _count_sets(rows: Sequence[Row], stages: Sequence[Stage]) -> str:
    """At how many images there was an explanation, by stage: the same for all methods that ran."""
    counts = []
    for stage in stages:
        part = _at(rows, stage)
        with_sets = {row["name"] for row in part if finite_values([row], SETS.key)}
        counts.append(f"{stage_name(*stage)} {len(with_sets)}")
    return (
        "Images with an explanation: " + ", ".join(counts) + ". On the others, the view does not raise the score of the "
        "label above that of the fully masked image, so that there is nothing to explain."
    )


def _plot(name: str, title: str, y: str, rows: Sequence[Row], measure: Measure) -> Plot:
    lines = []
    for (method,), group in group_rows(rows, "method").items():
        parts = [part for stage in (AGAIN, *CASCADES) if finite_values(part := _at(group, stage), measure.key)]
        shares = [part[0]["layers"] / part[0]["of_layers"] for part in parts]
        if parts:
            lines.append(line_of_estimates(str(method), shares, [measure.estimate(part) for part in parts]))
    shown = "xy" if measure.column.kind == "share" else "x"
    return Plot(name, title, "layers randomised, from the last one on", y, tuple(lines), "line", shown)
