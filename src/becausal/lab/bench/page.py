"""The figures and the page of a run, with the images on which the first method is best and worst."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import BecausalError
from becausal.core.files import write_file
from becausal.core.version import versions
from becausal.lab.bench.base import Bench, BenchRun
from becausal.lab.bench.datasets import Sample
from becausal.lab.bench.figures import figure_files
from becausal.lab.bench.formatting import CONTROLS, best_rows, format_cell, format_command
from becausal.lab.bench.packing import unpack_map, unpack_set
from becausal.lab.bench.plan import Subject
from becausal.lab.bench.rows import Row, finite_values, group_rows, successful
from becausal.lab.bench.selection import load_subject
from becausal.lab.bench.statistics import Estimate
from becausal.lab.bench.tables import Table
from becausal.render.pages import data_uri, render_page
from becausal.render.painting import Painted, as_png, dilate, paint_explanation, paint_image, paint_map
from becausal.render.sheets import Sheet, Tile, as_rgb, enlarge, value_range
from becausal.render.wording import format_share

FEW = 30  # images; with fewer, the page warns about wide intervals
CASES = 3  # best images, and as many of the worst
METHODS = 7  # maximum number of explanations in a strip
SIDE = 224  # pixels up to which a drawn image is enlarged
OUTLINE = np.array([255, 176, 32], np.uint8)  # orange, of ground truth


@dataclass(frozen=True)
class ImageCard:
    """A drawn image with a title and a caption."""

    png: bytes
    title: str
    caption: str


@dataclass(frozen=True)
class ImageStrip:
    """An image and what methods found in it; strips with the same heading share `text`."""

    heading: str
    text: str
    title: str
    cards: tuple[ImageCard, ...]


def write_page(run: BenchRun, classifier: Classifier) -> None:
    """Write every figure as PNG and SVG, and report.html."""
    figures: list[tuple[str, bytes]] = []
    for plot in run.findings.plots:
        files = figure_files(plot)
        for ending, data in files.items():
            write_file(run.folder / f"{plot.name}.{ending}", data)
        figures.append((plot.title, files["svg"]))
    strips = draw_strips(run.bench, run.rows, run.selection.samples, classifier)
    write_file(run.folder / "report.html", render_bench(run, figures, strips).encode())


def render_bench(run: BenchRun, figures: Sequence[tuple[str, bytes]], strips: Sequence[ImageStrip]) -> str:
    """The page as text; no scripts, no external fonts, images or styles."""
    fills = {row["fill"] for row in run.rows if row.get("fill")}
    return render_page(
        "bench.html",
        bench=run.bench,
        record=run.record,
        images=len(run.selection.samples),
        few=len(run.selection.samples) < FEW,
        explained=len(successful(run.rows)),
        failed=len(run.rows) - len(successful(run.rows)),
        fill=f"{len(fills)} fills" if fills else f"fill {', '.join(run.settings.request.fills)}",
        grain=run.settings.request.grain,
        tables=[_format_table(table) for table in run.findings.tables],
        figures=[(title, data_uri(svg, "image/svg+xml")) for title, svg in figures],
        strips=[
            {"heading": heading, "strips": [_embed_images(strip) for strip in group]}
            for heading, group in groupby(strips, key=lambda strip: strip.heading)
        ],
        excluded=[(f"{count:,} images", reason) for reason, count in run.selection.left_out.items()] + run.missing(),
        command=format_command(run.record),
        versions=versions(),
    )


def _format_table(table: Table) -> dict[str, Any]:
    """A table as text: the columns with their classes and arrows, the rows with theirs."""
    best = [best_rows(table, c) for c in range(len(table.columns))]
    rows = []
    for i, row in enumerate(table.rows):
        cells = []
        for c, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            text, interval = format_cell(cell, column), ""
            if isinstance(cell, Estimate):
                text, _, interval = text.partition(" (")
            kind = " ".join(name for name, holds in (("text", column.kind == "text"), ("best", i in best[c])) if holds)
            cells.append({"text": text, "interval": interval.removesuffix(")"), "kind": kind})
        rows.append({"cells": cells, "is_control": bool({str(part) for part in row[:2]} & CONTROLS)})
    return {
        "title": table.title,
        "note": table.note,
        "columns": [
            {
                "name": column.name,
                "kind": "text" if column.kind == "text" else "",
                "arrow": {"low": "↓", "high": "↑", None: ""}[column.best],
            }
            for column in table.columns
        ],
        "rows": rows,
        "meanings": [(column.name, column.meaning) for column in table.columns if column.meaning],
    }


def _embed_images(strip: ImageStrip) -> dict[str, Any]:
    cards = [(data_uri(card.png), card.title, card.caption) for card in strip.cards]
    return {"title": strip.title, "text": strip.text, "cards": cards}


def draw_strips(bench: Bench, rows: Sequence[Row], samples: Sequence[Sample], classifier: Classifier) -> list[ImageStrip]:
    """The strips of a page; none for a bench whose rows contain no sets."""
    found = [row for row in successful(rows) if "_shown" in row]
    if not found:
        return []
    found = [row for row in found if row.get("fill") == "grey"] or found
    by_name = {sample.name: sample for sample in samples}
    if bench.choose_steps is not None:
        return [_draw_steps(steps, by_name[steps["name"]], bench, classifier) for steps in bench.choose_steps(found)]
    first = found[0]["method"]
    own = [row for row in found if row["method"] == first and finite_values([row], bench.rank_by)]
    once = [part[0] for part in group_rows(own, "name").values()]
    sign = 1 if bench.lower_is_better else -1
    ranked = sorted(once, key=lambda row: (sign * row[bench.rank_by], row["size"], row["name"]))
    worst = list(reversed(ranked[CASES:]))[:CASES]
    text = f"Ranked by {bench.rank_by.replace('_', ' ')}; {'lower' if bench.lower_is_better else 'higher'} is better." + (
        f" Outlined in orange: the {bench.outline}." if bench.outline else ""
    )
    strips = []
    for heading, part in ((f"Best images for {first}", ranked[:CASES]), (f"Worst images for {first}", worst)):
        for row in part:
            try:
                title, cards = _draw_methods(row, found, by_name[row["name"]], bench, classifier)
            except BecausalError:
                continue  # the image can no longer be read
            strips.append(ImageStrip(heading, text, title, cards))
    return strips


def _draw_methods(
    row: Row, rows: Sequence[Row], sample: Sample, bench: Bench, classifier: Classifier
) -> tuple[str, tuple[ImageCard, ...]]:
    subject = load_subject(sample, classifier)
    here = [part[0] for part in group_rows([r for r in rows if r["name"] == row["name"]], "method").values()][:METHODS]
    cards = [_draw_original(subject, bench)]
    for each in here:
        value = each.get(bench.rank_by)
        caption = format_share(each["size"])
        if bench.rank_by != "size" and value is not None:
            caption += f", {bench.rank_by.replace('_', ' ')} {value:.2f}"
        cards.append(
            ImageCard(_png(subject, paint_explanation, unpack_set(each["_shown"]), bench), str(each["method"]), caption)
        )
    label = classifier.info.name_of(int(row["label"])).split(",")[0]
    return f"{sample.name}: {label}", tuple(cards)


def _draw_steps(steps: dict[str, Any], sample: Sample, bench: Bench, classifier: Classifier) -> ImageStrip:
    subject = load_subject(sample, classifier)
    cards = [_draw_original(subject, bench)]
    for row in steps["rows"]:
        png = _png(subject, paint_map, unpack_set(row["_shown"]), bench, unpack_map(row["_map"]))
        cards.append(ImageCard(png, str(row[steps["caption"]]), f"{format_share(row['size'])}, {row['calls']:,} calls"))
    text = "The map over the image; the explanation is outlined."
    return ImageStrip("Step by step", text, f"{sample.name}, {steps['title']}", tuple(cards))


def _draw_original(subject: Subject, bench: Bench) -> ImageCard:
    return ImageCard(_png(subject, paint_image, np.zeros(subject.view.grid, bool), bench), "image", "")


def _png(subject: Subject, paint: Any, visible: Visible, bench: Bench, heat: NDArray[np.float64] | None = None) -> bytes:
    view = subject.view.pixels
    low, high = value_range(view)
    rgb = as_rgb(view, low, high)
    scale = max(1, SIDE // max(visible.shape))
    sheet = Sheet(
        image=rgb,
        background=rgb,
        visible=visible,
        heat=np.zeros(visible.shape) if heat is None else heat,
        in_tile=np.ones(visible.shape, bool),
        tiles=(Tile(0, 0, ""),),
        scale=scale,
    )
    painted: Painted = paint(sheet)
    mask = subject.masks.get(bench.outline or "")
    if mask is not None and mask.any():
        inside = enlarge(mask, scale)
        painted[dilate(inside, 1) & ~inside] = OUTLINE
    return as_png(painted, sheet)
