"""Methods side by side on one HTML page that needs nothing but itself, and escapes everything it was given."""

from base64 import b64encode
from collections.abc import Callable
from html import escape

from becausal.core.comparison import Comparison, Row
from becausal.core.metrics import STEPS
from becausal.render.comparison import CLIPPED, COLUMNS, clipped, comparison_png, paint_truth, say_shared, table_of
from becausal.render.painting import as_png, colour_stops, paint_explanation, paint_map, paint_picture
from becausal.render.sheets import lay_out
from becausal.render.stylesheet import STYLE
from becausal.render.wording import say_confidence

MEANINGS = {
    "size": "the share of the view in the explanation: the method's own set where it gives one (causal), else the first "
    "prefix of the map's ranking that keeps the label",
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


def render_comparison(comparison: Comparison) -> str:
    """The page as text; no script, no outside font, image or style."""
    first = comparison.first
    title = escape(f"Why {first.label}? {first.origin.image}, {len(comparison.rows)} methods")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{STYLE}{_MORE_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part(comparison) for part in (_head, _table, _failures, _pictures, _foot))
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
    lead = (
        f"{count} methods on the same image, model and target, each map turned into an explanation in the same way, "
        "but for a method that gives a set of its own (causal)."
    )
    return (
        f'<header>\n<p class="file">{escape(first.origin.image)} · {escape(first.origin.model)}</p>\n'
        f"<h1>Why <em>{escape(first.label)}</em>{f' ({escape(confidence)})' if confidence else ''}?</h1>\n"
        f'<p class="lead">{escape(lead)} {escape(say_shared(comparison).capitalize())}.</p>\n</header>'
    )


def _table(comparison: Comparison) -> str:
    ran = [row for row in comparison.rows if row.explanation is not None]
    columns = [c for c in COLUMNS if comparison.truth is not None or c != "overlap"]
    ranked = {c: [v for row in ran if (v := _rank(row, c)) is not None] for c in _BEST}
    best = {c: _BEST[c](values) for c, values in ranked.items() if values}
    head = "".join(f'<th scope="col">{c} {_ARROWS.get(c, "")}</th>' for c in columns)
    lines = []
    for row in ran:
        cells = table_of(row)
        data = "".join(
            f"<td{' class=best' if c in best and _rank(row, c) == best[c] else ''}>{escape(cells[c])}</td>"
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
        image = f'<img src="{source}" alt="Each method on the signal.">'
        return f'<section class="images wide"><figure>{image}</figure></section>'
    sheet = lay_out(comparison.first)
    seen = [as_png(paint_picture(sheet), sheet)]
    if comparison.truth is not None:
        seen.append(as_png(paint_truth(comparison, sheet), sheet))
    cards = [_card(seen, "The image", say_shared(comparison), f"The image, labelled {comparison.first.label}.")]
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
        '<p class="soft">Left: the map, the explanation outlined. Right: the explanation, enough for the label.</p>\n'
        f'<p>{scale}</p>\n<div class="cards">\n' + "\n".join(cards) + "\n</div>\n</section>"
    )


def _card(pngs: list[bytes], title: str, said: str, alt: str) -> str:
    images = "".join(f'<img src="{_data(png)}" alt="{escape(alt if i == 0 else "")}">' for i, png in enumerate(pngs))
    kind = "two" if len(pngs) == 2 else "one"
    return (
        f'<figure><div class="{kind}">{images}</div><figcaption><b>{escape(title)}</b>{escape(said)}</figcaption></figure>'
    )


def _data(png: bytes) -> str:
    return "data:image/png;base64," + b64encode(png).decode("ascii")


def _foot(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in comparison.first.origin.versions.items())
    seed = comparison.first.origin.seed
    return f"<footer>Seed {seed}. Made with {escape(versions)}. The numbers are in comparison.json.</footer>"
