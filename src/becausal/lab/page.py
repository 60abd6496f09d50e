"""What a run looks like: its plots as PNG and SVG, and the page with its tables and drawn images."""

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import BecausalError
from becausal.core.files import write_file
from becausal.core.version import versions
from becausal.lab.base import Bench, BenchRun, Subject, format_command
from becausal.lab.datasets import Sample
from becausal.lab.rows import Row, finite_values, group_rows, successful, unpack_map, unpack_set
from becausal.lab.selection import load_subject
from becausal.lab.tables import CONTROLS, Estimate, Line, Plot, Table, best_rows, format_cell
from becausal.render.colours import INK, SOFT
from becausal.render.figures import new_figure, png_bytes
from becausal.render.numbers import format_share
from becausal.render.pages import data_uri, render_page
from becausal.render.painting import Painted, as_png, dilate, paint_explanation, paint_image, paint_map
from becausal.render.sheets import Sheet, Tile, as_rgb, enlarge, value_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 30  # images; with fewer, the page warns about wide intervals
CASES = 3  # best images, and as many of the worst
METHODS = 7  # maximum number of explanations in a strip
SIDE = 224  # pixels up to which a drawn image is enlarged
OUTLINE = np.array([255, 176, 32], np.uint8)  # orange, of ground truth

#: Colours that are distinguishable with colour blindness (after Okabe and Ito), and line styles for further methods.
STYLES: dict[str, tuple[str, str]] = {
    "causal": ("#7a3e9d", "-"), "dc-causal": ("#0072b2", "-"), "sbfl": ("#009e73", "-"), "rise": ("#e69f00", "-"),
    "occlusion": ("#56b4e9", "-"), "lime": ("#d55e00", "-"), "shap": ("#cc79a7", "-"), "greedy": ("#0072b2", "-."),
    "phasewin": ("#d55e00", "-."), "hsic": ("#009e73", "-."), "sobol": ("#cc79a7", "-."), "ig": ("#0072b2", "--"),
    "gbp": ("#009e73", "--"), "deeplift": ("#e69f00", "--"), "grad-cam": ("#56b4e9", "--"), "lrp": ("#d55e00", "--"),
    "rap": ("#cc79a7", "--"), "extremal": ("#1d2228", "--"), "random": ("#9aa2ab", ":"), "centre": ("#68717c", ":"),
}  # fmt: skip
SPARE = (("#1d2228", "-"), ("#0072b2", "-."), ("#d55e00", "-."), ("#009e73", "-."), ("#cc79a7", "-."), ("#e69f00", "-."))


def figure_files(plot: Plot) -> dict[str, bytes]:
    """The plot as PNG and SVG, by file suffix; the same bytes for the same plot."""
    import matplotlib

    figure = new_figure(8.6, 4.3)
    axes = figure.add_subplot()
    taken: set[tuple[str, str]] = set()  # each method has the same colour and line style in all plots
    for number, line in enumerate(plot.lines):
        # The style of the method or, where it is taken, an unused one; lines for wrong labels are dashed.
        colour, dash = STYLES.get(line.label.split(",")[0].split(":")[0].strip(), SPARE[0])
        style = (colour, "--" if line.label.endswith(", wrong") else dash)
        if style in taken:
            style = next((spare for spare in SPARE if spare not in taken), style)
        taken.add(style)
        _draw_line(axes, plot, line, style, number)
    _format_axes(axes, plot)
    if plot.lines:
        handles, labels = axes.get_legend_handles_labels()
        places = list(range(len(labels)))
        if plot.kind != "points":  # higher curves first, as in the plot
            places.sort(key=lambda i: -sum(plot.lines[i].y) / max(1, len(plot.lines[i].y)))
        axes.legend(
            [handles[i] for i in places], [labels[i] for i in places], loc="upper left", bbox_to_anchor=(1.01, 1.0),
            frameon=False, fontsize=8.5, labelcolor=INK, handlelength=2.6,
        )  # fmt: skip
    with matplotlib.rc_context({"svg.hashsalt": "becausal", "svg.fonttype": "path"}):
        buffer = BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png_bytes(figure), "svg": buffer.getvalue()}


def _draw_line(axes: "Axes", plot: Plot, line: Line, style: tuple[str, str], number: int) -> None:
    colour, dash = style
    width, front = (2.4, 3.0) if line.label == "causal" else (1.5, 2.0)
    match plot.kind:
        case "step":
            axes.step(line.x, line.y, where="post", color=colour, ls=dash, lw=width, label=line.label, zorder=front)
        case "line":
            axes.plot(line.x, line.y, color=colour, ls=dash, lw=width, label=line.label, zorder=front)
            if line.low and len(plot.lines) <= 3:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.13, lw=0)
        case "points":
            shift = (number - (len(plot.lines) - 1) / 2) * 0.6 / max(4, len(plot.lines))  # side by side
            x = [value + shift for value in line.x]
            below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
            above = [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]
            axes.errorbar(
                x, line.y, yerr=[below, above], color=colour, ls="none", marker="os^Dvp*h"[number % 8], ms=5, lw=1.1,
                capsize=0, label=line.label, zorder=front,
            )  # fmt: skip


def _format_axes(axes: "Axes", plot: Plot) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_title(plot.title, loc="left", fontsize=11, color=INK, pad=10, parse_math=False)
    axes.set_xlabel(plot.x, fontsize=9, color=SOFT, parse_math=False)
    axes.set_ylabel(plot.y, fontsize=9, color=SOFT, parse_math=False)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=SOFT)
    axes.grid(True, color="#e9e6e1", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c9c5be")
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in plot.shares:
            axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if plot.ticks:
        axes.set_xticks(range(len(plot.ticks)), plot.ticks, rotation=0 if len(plot.ticks) < 7 else 30)
    if plot.kind == "step":
        axes.set_ylim(-0.02, 1.02)
        xs = plot.lines[0].x if plot.lines else (0.0, 1.0)
        axes.set_xlim(xs[0], xs[-1])


def write_page(run: BenchRun, classifier: Classifier) -> None:
    """Write every figure as PNG and SVG, and report.html: no scripts, no external fonts, images or styles."""
    figures = []
    for plot in run.findings.plots:
        files = figure_files(plot)
        for ending, data in files.items():
            write_file(run.folder / f"{plot.name}.{ending}", data)
        figures.append((plot.title, data_uri(files["svg"], "image/svg+xml")))
    strips = draw_strips(run.bench, run.rows, run.selection.samples, classifier)
    fills = {row["fill"] for row in run.rows if row.get("fill")}
    explained, images = len(successful(run.rows)), len(run.selection.samples)
    page = render_page(
        "bench.html",
        bench=run.bench,
        record=run.record,
        images=images,
        few=images < FEW,
        explained=explained,
        failed=len(run.rows) - explained,
        fill=f"{len(fills)} fills" if fills else f"fill {', '.join(run.settings.request.fills)}",
        grain=run.settings.request.grain,
        tables=[_format_table(table) for table in run.findings.tables],
        figures=figures,
        strips=[{"heading": h, "strips": list(group)} for h, group in groupby(strips, key=lambda strip: strip["heading"])],
        excluded=[(f"{count:,} images", reason) for reason, count in run.selection.left_out.items()] + run.missing(),
        command=format_command(run.record),
        versions=versions(),
    )
    write_file(run.folder / "report.html", page.encode())


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
    arrows = {"low": "↓", "high": "↑", None: ""}
    columns = [{"name": c.name, "kind": "text" if c.kind == "text" else "", "arrow": arrows[c.best]} for c in table.columns]
    meanings = [(column.name, column.meaning) for column in table.columns if column.meaning]
    return {"title": table.title, "note": table.note, "columns": columns, "rows": rows, "meanings": meanings}


def draw_strips(
    bench: Bench, rows: Sequence[Row], samples: Sequence[Sample], classifier: Classifier
) -> list[dict[str, Any]]:
    """For the page: images and what methods found in them, best and worst or step by step; none for rows without sets."""
    found = [row for row in successful(rows) if "_shown" in row]
    found = [row for row in found if row.get("fill") == "grey"] or found
    by_name = {sample.name: sample for sample in samples}
    if not found or bench.choose_steps is not None:
        chosen = bench.choose_steps(found) if bench.choose_steps is not None and found else []
        return [_draw_steps(steps, by_name[steps["name"]], bench, classifier) for steps in chosen]
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
            here = [each for each in found if each["name"] == row["name"]]
            try:
                subject = load_subject(by_name[row["name"]], classifier)
            except BecausalError:
                continue  # the image can no longer be read
            label = classifier.info.name_of(int(row["label"])).split(",")[0]
            draw = partial(_paint_uri, subject, bench.outline)
            cards = [(draw(paint_image, np.zeros(subject.view.grid, bool)), "image", "")]  # source, title, caption
            for own_row in [part[0] for part in group_rows(here, "method").values()][:METHODS]:
                value, caption = own_row.get(bench.rank_by), format_share(own_row["size"])
                if bench.rank_by != "size" and value is not None:
                    caption += f", {bench.rank_by.replace('_', ' ')} {value:.2f}"
                cards.append((draw(paint_explanation, unpack_set(own_row["_shown"])), str(own_row["method"]), caption))
            strips.append({"heading": heading, "text": text, "title": f"{row['name']}: {label}", "cards": cards})
    return strips


def _draw_steps(steps: dict[str, Any], sample: Sample, bench: Bench, classifier: Classifier) -> dict[str, Any]:
    subject = load_subject(sample, classifier)
    draw = partial(_paint_uri, subject, bench.outline)
    cards = [(draw(paint_image, np.zeros(subject.view.grid, bool)), "image", "")]
    for row in steps["rows"]:
        source = draw(paint_map, unpack_set(row["_shown"]), unpack_map(row["_map"]))
        cards.append((source, str(row[steps["caption"]]), f"{format_share(row['size'])}, {row['calls']:,} calls"))
    text, title = "The map over the image; the explanation is outlined.", f"{sample.name}, {steps['title']}"
    return {"heading": "Step by step", "text": text, "title": title, "cards": cards}


def _paint_uri(
    subject: Subject, outline: str | None, paint: Any, visible: Visible, heat: NDArray[np.float64] | None = None
) -> str:
    view = subject.view.pixels
    rgb = as_rgb(view, *value_range(view))
    scale = max(1, SIDE // max(visible.shape))
    sheet = Sheet(
        image=rgb, background=rgb, visible=visible, heat=np.zeros(visible.shape) if heat is None else heat,
        in_tile=np.ones(visible.shape, bool), tiles=(Tile(0, 0, ""),), scale=scale,
    )  # fmt: skip
    painted: Painted = paint(sheet)
    mask = subject.masks.get(outline or "")
    if mask is not None and mask.any():
        inside = enlarge(mask, scale)
        painted[dilate(inside, 1) & ~inside] = OUTLINE
    return data_uri(as_png(painted, sheet))
