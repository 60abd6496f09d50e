"""The figures and the page of a benchmark run."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from becausal.core.contracts import Classifier
from becausal.core.files import write_file
from becausal.core.version import versions
from becausal.lab.bench.examples import ImageStrip, draw_strips
from becausal.lab.bench.figures import figure_files
from becausal.lab.bench.findings import Table, successful
from becausal.lab.bench.formatting import best_rows, format_cell, format_command
from becausal.lab.bench.results import BenchRun
from becausal.lab.bench.statistics import Estimate
from becausal.render.pages import data_uri, render_page

FEW = 30  # images; with fewer, the page warns about wide intervals
CONTROLS = {"random", "centre"}


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
        excluded=_list_excluded(run),
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


def _list_excluded(run: BenchRun) -> list[tuple[str, str]]:
    """Images and methods without results, with the reasons."""
    items = [(f"{count:,} images", reason) for reason, count in run.selection.left_out.items()]
    items += [(method, f"did not run: {reason}") for method, reason in run.methods_left_out.items()]
    for method, counts in run.failures.items():
        items += [(method, f"{count:,} images without an explanation: {reason}") for reason, count in counts.items()]
    return items
