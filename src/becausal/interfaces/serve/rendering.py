"""HTML of the page: the image, a running search, and results, from jinja2 templates and files of this package.

What a template shows is written in the template, with the wording and the colours of the reports.
"""

import json
import math
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from becausal.api.explanation import Explanation
from becausal.core.contracts import Visible
from becausal.core.explanation import Comparison, ExplanationRecord
from becausal.core.frames import Frame
from becausal.interfaces.serve.images import array_uri, thumbnail_uri
from becausal.interfaces.serve.jobs import BackgroundJob
from becausal.interfaces.serve.tasks import CompareTask, ExplainTask, RankingSteps, Witness
from becausal.render import numbers, wording
from becausal.render.colours import AGAINST, COLOURS, ZONES, line_of
from becausal.render.comparison import COLUMNS, clip_map, describe_sizes, format_row
from becausal.render.endings import describe_stop
from becausal.render.painting import colour_stops, paint_explanation, paint_map
from becausal.render.sheets import Sheet, as_rgb, choose_scale, lay_out, lay_out_original, value_range

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = "becausal.interfaces.serve"
NBSP = "\N{NO-BREAK SPACE}"
MAX_SNAPSHOT_SIDE = 512  # pixels: images of a running search are sent several times a second
#: As `wording.OPTIONS`, by the page's own controls.
CONTROLS = "the level of detail “fine”", "with the level of detail “fine” or “coarse”, what is not needed is removed"
VISIBLE_DIP = 0.1  # fall of the confidence behind the explanation that needs a sentence


def render(template: str, **values: Any) -> str:
    """Render `templates/<template>.html`; all values are escaped, and an undefined name is an error."""
    return _environment().get_template(f"{template}.html").render(values)


@cache
def read_static(name: str) -> str:
    """The text of a file in `static/`."""
    return (files(PACKAGE) / "static" / name).read_text(encoding="utf-8")


def keep_together(text: str) -> str:
    """The same text without a line break before a per cent sign."""
    return text.replace(" %", f"{NBSP}%")


def format_share(share: float) -> str:
    """A share in per cent, without a line break in it."""
    return keep_together(numbers.format_share(share))


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(PACKAGE)
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"share": format_share, "confidence": numbers.format_confidence, "together": keep_together}
    made.globals |= {
        "wording": wording,
        "describe_checks": partial(wording.describe_checks, controls=CONTROLS),
        "format_count": numbers.format_count,
        "colour_stops": colour_stops,
        "line_of": line_of,
    }
    made.globals |= {"COLOURS": COLOURS, "ZONES": ZONES, "describe_sizes": describe_sizes, "thumbnail_uri": thumbnail_uri}
    return made


def render_progress(job: BackgroundJob) -> str:
    """A search that waits or runs: its explanation while it shrinks, and the map so far."""
    if job.state == "waiting":
        return render("waiting", ahead=job.ahead)
    progress, task = job.progress, job.task
    if isinstance(task, CompareTask):
        return render("comparing", methods=task.methods, calls=progress.calls, is_stopping=job.is_stopping)
    size, stage, images = 1.0, "search", None
    if progress.status is not None and progress.depth is not None and isinstance(task, ExplainTask):
        visible, stage = progress.status.visible, progress.status.stage
        size, step = float(visible.mean()), -(-max(visible.shape) // MAX_SNAPSHOT_SIDE)
        shown, depth = visible[::step, ::step], progress.depth[::step, ::step]  # large views lose pixels
        image = as_rgb(task.view[::step, ::step], *value_range(task.view))
        heat = depth.astype(np.float64) / max(float(progress.depth.max()), 1e-12)
        h, w = shown.shape
        sheet = Sheet(image, image, shown, heat, np.ones((h, w), bool), (), min(2, choose_scale((h, w))))
        images = [array_uri(paint_explanation(sheet), "JPEG"), array_uri(paint_map(sheet), "JPEG")]
    max_calls = task.request.max_calls if task is not None else None
    return render(
        "running",
        size=size,
        calls=progress.calls,
        call_share=progress.calls / max_calls if max_calls else None,
        stage=stage,
        is_stopping=job.is_stopping,
        images=images,
    )


def render_explanation(explanation: Explanation, address: str) -> str:
    """The result: a sentence, explanation and map, statistics, checks and the download link."""
    (h, w), (rows, columns) = explanation.visible.shape, np.nonzero(explanation.visible)
    row = column = 0
    if len(rows):  # the cursor starts at the pixel of the explanation nearest to its centre
        nearest = int(np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2))
        row, column = int(rows[nearest]), int(columns[nearest])
    frame = Frame.identity((h, w)) if explanation.original is None else explanation.frame
    places = [(f / o, g * s / o) for f, g, s, o in zip(frame.offset, frame.grid, frame.scale, frame.original, strict=True)]
    pixel_attributes = {
        "data-rows": h,
        "data-columns": w,
        "data-row": row,
        "data-column": column,
        "data-step": explanation.levels[0].checks.minimal_grain or 1,
        # Where the view lies on the image on which pixels are selected: top, height, left, width.
        "data-view": " ".join(f"{number:.6f}" for place in places for number in place),
    }
    return render(
        "explanation",
        explanation=explanation,
        address=address,
        summary=json.dumps(summarise(explanation)),
        warning=describe_stop(explanation),
        rival=wording.close_rival(explanation),
        parts=_draw_parts(explanation),
        map=_draw_map(explanation),
        pixel_attributes=pixel_attributes,
    )


def summarise(explanation: Explanation) -> dict[str, Any]:
    """The result for programs that read the page."""
    return {
        "image": explanation.origin.image,
        "image_sha256": explanation.origin.image_sha256,
        "label": explanation.label,
        "method": explanation.origin.method,
        "level": explanation.level.name,
        "pixels": explanation.pixels,
        "levels": {level.name: level.pixels for level in explanation.levels},
        "against": None if explanation.against is None else int(np.count_nonzero(explanation.against.visible)),
        "calls": explanation.calls,
        "stopped_by": explanation.stopped_by,
        "visible_sha256": sha256(np.packbits(explanation.visible).tobytes()).hexdigest(),
    }


def _draw_map(explanation: ExplanationRecord) -> str:
    """The map as a data URI; maps of other methods are clipped, since most have a few extreme values."""
    return array_uri(paint_map(lay_out_original(explanation if explanation.zones is not None else clip_map(explanation))))


def _draw_parts(explanation: ExplanationRecord) -> list[dict[str, str]]:
    """What the page can show of an explanation: all of it, the core by itself, and what speaks against the label."""
    sheet, levels = lay_out_original(explanation), explanation.levels
    all_of_it, lines = replace(sheet, against=None), [wording.describe_line(level, explanation) for level in levels]
    if explanation.others:
        lines[-1] = "The pixels in each line alone are enough."
    parts = [(levels[-1].name, COLOURS[0], lines[-1], all_of_it)]
    for level, inner, line in zip(levels, sheet.inner, lines, strict=False):
        colour = line_of(0, len(levels)).colour
        parts.append((level.name, colour, line, replace(all_of_it, visible=inner, inner=(inner,))))
    if sheet.against is not None:
        text = f"against: {wording.describe_against(explanation, 'masking these {}')}"
        whole = np.ones_like(sheet.visible)
        parts.append(("against", AGAINST, text, replace(sheet, visible=whole, inner=(), others=())))
    return [
        {"name": name, "colour": colour, "text": text, "uri": array_uri(paint_explanation(shown))}
        for name, colour, text, shown in parts
    ]


def render_others(explanation: Explanation) -> str:
    """Several explanations side by side; empty if there is only one."""
    if not explanation.others:
        return ""
    sheet = lay_out(explanation)
    uris = [array_uri(paint_explanation(sheet.only(number))) for number in range(len(explanation.sets))]
    return render("others", explanation=explanation, uris=uris)


def render_comparison(comparison: Comparison, address: str) -> str:
    """Two methods side by side: maps, explanations and a table of metrics."""
    cells = [format_row(row) for row in comparison.rows if row.explanation is not None]
    found = [row.explanation for row in comparison.rows]
    images = [[] if one is None else [array_uri(paint_explanation(lay_out_original(one))), _draw_map(one)] for one in found]
    columns = [name for name in COLUMNS if name != "overlap" and any(row[name] for row in cells)]
    return render(
        "comparison",
        found=comparison.first,
        address=address,
        methods=list(zip(comparison.rows, images, strict=True)),
        columns=columns,
        rows=cells,
    )


def render_ranking(explanation: Explanation, ranking: RankingSteps) -> str:
    """The slider along the ranking; the page's script draws the image from the data in the HTML."""
    low, high = value_range(explanation.view)
    total, start = explanation.visible.size, ranking.stops[-1]
    heights = [0.0 if math.isnan(made.confidence) else made.confidence for made in ranking.predictions]
    last, lowest = max(1, len(heights) - 1), min(heights[start:])
    steps = [
        (format_share(count / total), f"{count:,}", made.label, numbers.format_confidence(made.confidence), made.holds)
        for count, made in zip(ranking.counts, ranking.predictions, strict=True)
    ]
    return render(
        "reveal",
        explanation=explanation,
        steps=json.dumps(steps),
        points=" ".join(f"{100 * i / last:.2f},{30 * (1 - value):.2f}" for i, value in enumerate(heights)),
        last=last,
        stops=list(zip(ranking.stops, explanation.levels, strict=True)),
        dip=numbers.format_confidence(lowest) if heights[start] - lowest > VISIBLE_DIP else "",
        data_uris=[
            array_uri(as_rgb(explanation.view, low, high)),
            array_uri(as_rgb(explanation.backgrounds[0], low, high)),
            array_uri(ranking.entry, "PNG"),  # numbers of steps, which the script reads
        ],
    )


def render_witness(explanation: Explanation, witness: Witness, row: int, column: int) -> str:
    """Why this pixel: a close-up of the image with it and without it."""
    low, high = value_range(explanation.view)
    top, left, side = crop_square(witness.around, row, column)
    images = [
        (title, array_uri(as_rgb(pixels, low, high)[top : top + side, left : left + side]), prediction)
        for title, pixels, prediction in witness.images
    ]
    return render(
        "witness",
        row=row,
        column=column,
        is_part=witness.is_part,
        text=witness.text[:1].upper() + witness.text[1:],
        images=images,
        top=f"{100 * (row + 0.5 - top) / side:.2f}",
        left=f"{100 * (column + 0.5 - left) / side:.2f}",
    )


def crop_square(visible: Visible, row: int, column: int) -> tuple[int, int, int]:
    """Top, left and side of a square inside the view that contains the set and the pixel, with a margin."""
    h, w = visible.shape
    rows = np.append(np.flatnonzero(visible.any(axis=1)), row)
    columns = np.append(np.flatnonzero(visible.any(axis=0)), column)
    extent = int(max(np.ptp(rows), np.ptp(columns))) + 1
    side = min(h, w, max(extent + extent // 3, min(h, w) // 4))
    top = int(np.clip((rows.min() + rows.max() + 1 - side) // 2, 0, h - side))
    left = int(np.clip((columns.min() + columns.max() + 1 - side) // 2, 0, w - side))
    return top, left, side
