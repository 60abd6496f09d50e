"""Methods side by side: one figure, one page, the cells of one table."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from html import escape
from math import ceil

import numpy as np
from matplotlib.figure import Figure

from becausal.compare import Comparison, Row
from becausal.explanation import Explanation
from becausal.metrics import STEPS
from becausal.render.figures import INK, SOFT, new_figure, png_bytes, printable
from becausal.render.painting import Painted, as_png, colour_stops, grow, paint_explanation, paint_map, paint_picture
from becausal.render.sheets import Sheet, enlarge, lay_out
from becausal.render.signals import draw_curve, draw_level
from becausal.render.stylesheet import STYLE
from becausal.render.wording import say_confidence, say_label, say_share

COLUMNS = ("method", "size", "overlap", "insertion", "deletion", "confidence", "pieces", "calls", "seconds")
MEANINGS = {
    "size": "the share of the view in the explanation: the first prefix of the map's ranking that keeps the label",
    "overlap": "the share of the explanation that lies on the photobomber",
    "insertion": f"area under the label's probability as the map's pixels are shown, best first, in {STEPS} steps",
    "deletion": f"the same as they are hidden, best first, in {STEPS} steps",
    "confidence": "the label's probability when the explanation alone is shown",
    "pieces": "connected parts of the explanation",
    "calls": "mutants shown to the model, extraction included; gradients are not calls",
    "seconds": "the method with extraction, without the metrics",
}
_BEST: dict[str, Callable[[list[float]], float]] = {"size": min, "overlap": min, "insertion": max, "deletion": min}
_ARROWS = {"size": "↓", "overlap": "↓", "insertion": "↑", "deletion": "↓"}
CONTROLS = ("random", "centre")
CLIPPED = 99  # percentile at which each map is cut, and 1 below, or one bright pixel would leave the rest dark
_SIDE, _GAP, _HEAD, _MARGIN = 1.62, 0.30, 0.42, 0.30  # inches
_TRUTH = np.array([255, 176, 32], np.uint8)


def table_of(row: Row) -> dict[str, str]:
    """The cells of a method that ran, in words."""
    found, curves = row.explanation, row.curves
    if found is None:
        return {"method": row.method}
    return {
        "method": row.method,
        "size": say_share(found.size),
        "overlap": "" if row.overlap is None else say_share(row.overlap),
        "insertion": "" if curves is None else f"{curves.insertion_area:.3f}",
        "deletion": "" if curves is None else f"{curves.deletion_area:.3f}",
        "confidence": say_confidence(found.checks.confidence),
        "pieces": f"{found.pieces:,}",
        "calls": f"{found.calls:,}",
        "seconds": f"{row.seconds:.1f}",
    }


def comparison_png(comparison: Comparison) -> bytes:
    """The figure as PNG."""
    if comparison.first.visible.ndim == 1:
        return png_bytes(_plot_signals(comparison))
    return png_bytes(plot_comparison(comparison))


def plot_comparison(comparison: Comparison) -> Figure:
    """A card per method, map and explanation side by side, after a card of the picture itself."""
    cards = len(comparison.rows) + 1
    columns = 2 if cards <= 4 else 3 if cards <= 9 else 4
    lines = ceil(cards / columns)
    sheet = lay_out(comparison.first)
    tall = _SIDE * float(np.clip(sheet.visible.shape[0] / sheet.visible.shape[1], 0.2, 3.0))
    wide = 2 * _SIDE + 0.05
    width = 2 * _MARGIN + columns * wide + (columns - 1) * _GAP
    height = 2 * _MARGIN + 0.35 + lines * (tall + _HEAD) + (lines - 1) * 0.5 * _GAP
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    first = comparison.first
    head = f"Why {say_label(first)}?  {first.origin.image}"
    figure.text(_MARGIN / width, 1 - _MARGIN / height, printable(head, 90), fontsize=13, color=INK, va="top",
                weight="bold", parse_math=False)  # fmt: skip
    for number in range(cards):
        line, column = divmod(number, columns)
        left = _MARGIN + column * (wide + _GAP)
        top = _MARGIN + 0.35 + line * (tall + _HEAD + 0.5 * _GAP)  # from above
        place = (left, height - top - _HEAD, height - top - _HEAD - tall)
        if number == 0:
            _draw_picture(figure, comparison, sheet, place, tall)
        else:
            _draw_card(figure, comparison.rows[number - 1], place, tall)
    return figure


def _draw_picture(
    figure: Figure, comparison: Comparison, sheet: Sheet, place: tuple[float, float, float], tall: float
) -> None:
    left, above, below = place
    _title(figure, left, above, "the picture", _say_shared(comparison))
    _image(figure, left, below, tall, paint_picture(sheet))
    if comparison.truth is not None:
        _image(figure, left + _SIDE + 0.05, below, tall, _paint_truth(comparison, sheet))
        return
    axes = figure.add_axes(_box(figure, left + _SIDE + 0.05, below, tall))
    axes.set_axis_off()
    axes.text(0.06, 0.5, "left: the map\nright: the explanation,\nenough for the label", fontsize=8, color=SOFT, va="center")


def _draw_card(figure: Figure, row: Row, place: tuple[float, float, float], tall: float) -> None:
    left, above, below = place
    if row.explanation is None:
        _title(figure, left, above, row.method, "did not run")
        axes = figure.add_axes(_box(figure, left, below, tall, width=2 * _SIDE + 0.05))
        axes.set_facecolor("#f3f1ed")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.text(0.04, 0.92, _wrapped(row.error or "", 46, 8), fontsize=7.5, color=SOFT, va="top", parse_math=False)
        return
    cells = table_of(row)
    words = [cells["size"], f"{cells['calls']} calls", f"{cells['seconds']} s"]
    if row.overlap is not None:
        words.insert(1, f"{cells['overlap']} on it")
    if row.curves is not None:
        words.insert(-2, f"ins {row.curves.insertion_area:.2f}")
    _title(figure, left, above, row.method, "  ·  ".join(words))
    sheet = lay_out(clipped(row.explanation))
    _image(figure, left, below, tall, paint_map(sheet))
    _image(figure, left + _SIDE + 0.05, below, tall, paint_explanation(sheet))


def clipped(explanation: Explanation) -> Explanation:
    """The explanation with its map between a low percentile (or 0) and a high one, for the eye only."""
    values = explanation.responsibility
    low, high = max(0.0, float(np.percentile(values, 100 - CLIPPED))), float(np.percentile(values, CLIPPED))
    if high <= low:
        return explanation
    return replace(explanation, responsibility=np.clip(values, low, high) - low)


def _paint_truth(comparison: Comparison, sheet: Sheet) -> Painted:
    """The picture, dimmed, with the photobomber outlined."""
    out = (paint_picture(sheet) * 0.45 + 120).astype(np.uint8)
    if comparison.truth is not None and comparison.truth.ndim == 2:
        inside = enlarge(comparison.truth, sheet.scale)
        line = grow(inside, max(2, max(inside.shape) // 150)) & ~inside
        out[inside] = paint_picture(sheet)[inside]
        out[line] = _TRUTH
    return out


def _title(figure: Figure, left: float, above: float, name: str, said: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(left / width, (above + 0.21) / height, name, fontsize=10.5, color=INK, weight="bold", parse_math=False)
    figure.text(left / width, (above + 0.06) / height, said, fontsize=7.5, color=SOFT, parse_math=False)


def _image(figure: Figure, left: float, below: float, tall: float, painted: Painted) -> None:
    axes = figure.add_axes(_box(figure, left, below, tall))
    axes.imshow(painted, interpolation="antialiased", aspect="auto")
    axes.set_axis_off()


def _box(figure: Figure, left: float, below: float, tall: float, width: float = _SIDE) -> tuple[float, ...]:
    across, up = figure.get_size_inches()
    return (left / across, below / up, width / across, tall / up)


def _say_shared(comparison: Comparison) -> str:
    origin = comparison.first.origin
    grain = "" if origin.grain is None else f"  ·  minimised to {origin.grain} px"
    truth = "" if comparison.truth is None else "  ·  in orange: the photobomber"
    return f"fill {', '.join(origin.fills)}{grain}{truth}"


def _wrapped(text: str, width: int, lines: int) -> str:
    from textwrap import wrap

    found = wrap(printable(text, 400), width)
    return "\n".join(found[:lines]) + (" …" if len(found) > lines else "")


def _plot_signals(comparison: Comparison) -> Figure:
    """A row per method that ran: the signal with its explanation, and the map."""
    ran = [row for row in comparison.rows if row.explanation is not None]
    figure = new_figure(10.0, 1.7 * len(ran) + 0.6)
    panels = figure.subplots(len(ran), 2, squeeze=False, width_ratios=(3, 2))
    for row, (left, right) in zip(ran, panels, strict=True):
        assert row.explanation is not None
        draw_curve(left, row.explanation)
        draw_level(right, row.explanation)
        left.set_title(f"{row.method}: {say_share(row.explanation.size)}", loc="left", fontsize=9, color=INK)
    return figure


def render_comparison(comparison: Comparison) -> str:
    """The page as text; no script, no outside font, picture or style."""
    first = comparison.first
    title = escape(f"Why {first.label}? {first.origin.image}, {len(comparison.rows)} methods")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{STYLE}{_MORE_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join((_head(comparison), _table(comparison), _failures(comparison), _pictures(comparison), _foot(comparison)))
        + "\n</main>\n</body>\n</html>\n"
    )


_MORE_STYLE = """
main { max-width: 76rem; }
.scroll { overflow-x: auto; }
.results td, .results th { padding: 0.45rem 1.1rem 0.45rem 0; font-variant-numeric: tabular-nums; white-space: nowrap; }
.results td { text-align: right; }
.results thead th { text-align: right; font-weight: 400; color: var(--soft); font-size: 0.9rem; }
.results thead th:first-child { text-align: left; }
.results .best { font-weight: 700; color: var(--accent); }
.results .control th, .results .control td { color: var(--soft); font-weight: 400; }
.cards { display: grid; gap: 1.3rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
.cards .two { display: grid; grid-template-columns: 1fr 1fr; gap: 2px; }
.cards .one { display: grid; grid-template-columns: 1fr; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem; font-size: 0.9rem; color: var(--soft); }
dt { color: var(--ink); }
dd { margin: 0; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
"""


def _head(comparison: Comparison) -> str:
    first = comparison.first
    confidence = say_confidence(first.confidence)
    count = len(comparison.rows)
    lead = f"{count} methods on the same picture, model and target; each map is turned into an explanation in the same way."
    return (
        f'<header>\n<p class="file">{escape(first.origin.image)} · {escape(first.origin.model)}</p>\n'
        f"<h1>Why <em>{escape(first.label)}</em>{f' ({escape(confidence)})' if confidence else ''}?</h1>\n"
        f'<p class="lead">{escape(lead)} {escape(_say_shared(comparison).capitalize())}.</p>\n</header>'
    )


def _table(comparison: Comparison) -> str:
    ran = [row for row in comparison.rows if row.explanation is not None]
    columns = [c for c in COLUMNS if comparison.truth is not None or c != "overlap"]
    best = {c: pick(values) for c, pick in _BEST.items() if (values := [v for r in ran if (v := _rank(r, c)) is not None])}
    head = "".join(f'<th scope="col">{c} {_ARROWS.get(c, "")}</th>' for c in columns)
    lines = []
    for row in ran:
        cells = table_of(row)
        data = "".join(
            f'<td{" class=best" if c in best and _rank(row, c) == best[c] else ""}>{escape(cells[c])}</td>'
            for c in columns[1:]
        )
        kind = ' class="control"' if row.method in CONTROLS else ""
        lines.append(f'<tr{kind}><th scope="row">{escape(row.method)}</th>{data}</tr>')
    meanings = "".join(f"<dt>{c}</dt><dd>{escape(MEANINGS[c])}</dd>" for c in columns[1:])
    return (
        f'<section>\n<div class="scroll"><table class="results"><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + f"\n</tbody></table></div>\n<dl>{meanings}</dl>\n</section>"
    )


def _rank(row: Row, column: str) -> float | None:
    """The number behind a cell that may be the best of its column; controls do not take part."""
    if row.explanation is None or row.method in CONTROLS:
        return None
    match column:
        case "size":
            return row.explanation.size
        case "overlap":
            return row.overlap
        case "insertion":
            return None if row.curves is None else row.curves.insertion_area
        case "deletion":
            return None if row.curves is None else row.curves.deletion_area
    return None


def _failures(comparison: Comparison) -> str:
    failed = [row for row in comparison.rows if row.explanation is None]
    if not failed:
        return ""
    items = "".join(f"<dt>{escape(row.method)}</dt><dd>{escape(row.error or '')}</dd>" for row in failed)
    return f"<section>\n<h2>What did not run, and why</h2>\n<dl>{items}</dl>\n</section>"


def _pictures(comparison: Comparison) -> str:
    if comparison.first.visible.ndim == 1:
        source = _data(comparison_png(comparison))
        return f'<section class="pictures wide"><figure><img src="{source}" alt="Each method on the signal."></figure></section>'
    sheet = lay_out(comparison.first)
    seen = [as_png(paint_picture(sheet), sheet)]
    if comparison.truth is not None:
        seen.append(as_png(_paint_truth(comparison, sheet), sheet))
    cards = [_card(seen, "The picture", _say_shared(comparison), f"The picture, labelled {comparison.first.label}.")]
    for row in comparison.rows:
        if row.explanation is not None:
            drawn = lay_out(clipped(row.explanation))
            pngs = [as_png(paint_map(drawn), drawn), as_png(paint_explanation(drawn), drawn)]
            cells = table_of(row)
            said = f"{cells['size']} of the view, {cells['calls']} calls, {cells['seconds']} s"
            cards.append(_card(pngs, row.method, said, f"Map and explanation by {row.method}: {said}."))
    scale = (
        f'<span class="scale"><i>low</i><span style="background: linear-gradient(90deg, {colour_stops()})"></span>'
        f"<i>the map's {CLIPPED}th percentile and above</i></span>"
    )
    return (
        "<section>\n<h2>Maps and explanations</h2>\n"
        '<p class="soft">Left: the map, with the explanation outlined. Right: the explanation, enough for the label.</p>\n'
        f'<p>{scale}</p>\n<div class="cards">\n' + "\n".join(cards) + "\n</div>\n</section>"
    )


def _card(pngs: list[bytes], title: str, said: str, alt: str) -> str:
    images = "".join(f'<img src="{_data(png)}" alt="{escape(alt if i == 0 else "")}">' for i, png in enumerate(pngs))
    kind = "two" if len(pngs) == 2 else "one"
    return (
        f'<figure><div class="{kind}">{images}</div>'
        f"<figcaption><b>{escape(title)}</b>{escape(said)}</figcaption></figure>"
    )


def _data(png: bytes) -> str:
    return "data:image/png;base64," + b64encode(png).decode("ascii")


def _foot(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in comparison.first.origin.versions.items())
    return f"<footer>Seed {comparison.first.origin.seed}. Made with {escape(versions)}. The numbers are in comparison.json.</footer>"
