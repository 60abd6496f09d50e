"""A whole run on one HTML page that needs nothing but itself: distributions, classes, images, and a table to search."""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from html import escape
from typing import Any

from becausal.batch.overview import Histogram, Overview
from becausal.batch.reading import Row
from becausal.batch.run_parts import MORE_STYLE, SCRIPT
from becausal.render.stylesheet import STYLE
from becausal.render.wording import say_confidence, say_count, say_share

Thumb = Callable[[Row, bool], str]  # a row, whether to draw its boxes: a data URI, empty where there is none
CLASSES = 40
COLUMNS = ("id", "image", "label", "confidence", "size", "pieces", "calls", "inside", "error")


def render_run(overview: Overview, thumb: Thumb, *, below: float, folder: str | None = None) -> str:
    """The page as text. thumb: paints one image. folder: where the explanations' own pages lie, where they were drawn."""
    parts = [
        _head(overview),
        _shortcuts(overview, thumb, below),
        _distributions(overview),
        _classes(overview),
        _extremes(overview, thumb),
        _sheet(overview, thumb),
        _failures(overview),
        _table(overview, below, folder),
        _record(overview),
    ]
    return page(f"{overview.name}: {overview.counts['done']:,} explanations", parts, SCRIPT)


def page(title: str, parts: Sequence[str], script: str = "") -> str:
    """A page in the house's style; the one script it may run is named by its hash, and nothing comes from outside."""
    allowed = f" script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}';" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:;{allowed} '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}{MORE_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def _head(overview: Overview) -> str:
    counts, settings = overview.counts, overview.settings
    middle = overview.histograms["size"].middle
    half = "" if middle is None else f" Half of the explanations need less than {_tie(say_share(middle))} of the view."
    spent = f"{say_count(overview.calls, 'call')} of the classifier" if overview.calls else "nothing yet"
    lead = f"{settings['model']}, by {settings['method']}, seed {settings['seed']}: {spent}."
    if overview.cut_short:
        lead += f" {overview.cut_short:,} searches were cut short by their budget; smaller explanations may exist."
    warning = ""
    if counts["waiting"]:
        warning = (
            f'<p class="warning" role="note"><strong>Not complete.</strong> {counts["waiting"]:,} of '
            f"{overview.total:,} images are waiting; start the same command again and it goes on with them.</p>"
        )
    return (
        f'<header>\n<p class="file">{escape(overview.name)}</p>\n'
        f"<h1><em>{counts['done']:,}</em> {'picture' if counts['done'] == 1 else 'pictures'} explained.{half}</h1>\n"
        f'<p class="lead">{escape(lead)}</p>\n{warning}</header>'
    )


def _shortcuts(overview: Overview, thumb: Thumb, below: float) -> str:
    """What people look for first: right answers for wrong reasons."""
    if overview.mean_inside is None or overview.mean_by_chance is None:
        return ""
    share = overview.outside_count / overview.judged
    if overview.outside_count:
        verdict = (
            f"<strong>{overview.outside_count:,} of {overview.judged:,} explanations "
            f"({_tie(say_share(share))}) lie outside of the object</strong>: less than {_tie(say_share(below))} of their "
            "pixels are in its boxes. There the label hangs on something else, be it a shortcut, the surroundings or a box "
            "that is too small. The worst come first; the amber line is the box."
        )
    else:
        verdict = f"<strong>No explanation lies outside of its object</strong> ({overview.judged:,} have boxes)."
    wrong = (
        f" {overview.wrong_count:,} images have no box of the label they were given: the label may be wrong there."
        if overview.wrong_count
        else ""
    )
    mean = (
        f"On average {_tie(say_share(overview.mean_inside))} of an explanation lies on the object, whose boxes take "
        f"{_tie(say_share(overview.mean_by_chance))} of the view: that much a random explanation would have."
    )
    cards = "".join(
        _card(row, thumb, f"{say_share(row['inside'])} on the object", with_boxes=True) for row in overview.outside
    )
    return (
        f"<section>\n<h2>Explanations outside of their object</h2>\n<p>{verdict}</p>\n<p class=soft>{mean}{wrong}</p>\n"
        + (f'<div class="thumbs">{cards}</div>\n' if cards else "")
        + "</section>"
    )


def _distributions(overview: Overview) -> str:
    titles = {
        "size": ("Size", "share of the view in the explanation", say_share),
        "confidence": ("Confidence", "of the label, on the whole view", say_confidence),
        "calls": ("Calls", "of the classifier, per image", lambda value: f"{value:,.0f}"),
        "inside": ("On the object", "share of the explanation in the object's boxes", say_share),
    }
    figures = [
        draw_histogram(overview.histograms[name], title, text, say)
        for name, (title, text, say) in titles.items()
        if overview.histograms[name].counts
    ]
    body = "\n".join(figures)
    return f'<section>\n<h2>Distributions</h2>\n<div class="charts">{body}</div>\n</section>' if figures else ""


def draw_histogram(values: Histogram, title: str, text: str, say: Callable[[float], str]) -> str:
    """A histogram as SVG, its median marked."""
    width, height, most = 240, 90, max(values.counts)
    step = width / len(values.counts)
    bars = "".join(
        f'<rect x="{i * step:.1f}" y="{height - max(count / most * height, 1):.1f}" width="{step - 1:.1f}" '
        f'height="{max(count / most * height, 1):.1f}"><title>{escape(say(values.edges[i]))} to '
        f"{escape(say(values.edges[i + 1]))}: {count:,}</title></rect>"
        for i, count in enumerate(values.counts)
        if count
    )
    middle = values.middle or 0.0
    place = min(middle / values.edges[-1] * width, width) if values.edges[-1] else 0
    return (
        f'<figure class="chart"><svg viewBox="0 0 {width} {height}" role="img" preserveAspectRatio="none" '
        f'aria-label="{escape(title)}: median {escape(say(middle))}">{bars}'
        f'<line x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="{height}"/></svg>'
        f"<div class=axis><span>{escape(say(values.edges[0]))}</span><span>{escape(say(values.edges[-1]))}</span></div>"
        f"<figcaption><b>{escape(title)}, median {escape(say(middle))}</b>{escape(text)}</figcaption></figure>"
    )


def _classes(overview: Overview) -> str:
    if not overview.classes:
        return ""
    has_truth = overview.mean_inside is not None
    widest = max(each.size for each in overview.classes) or 1.0
    names = ["label", "pictures", "median size", "confidence", "calls", *(["on the object", "outside"] if has_truth else [])]
    lines = []
    for each in overview.classes:
        bar = f'<span class="bar"><i style="width:{100 * each.size / widest:.0f}%"></i></span>'
        cells = [
            f"{each.count:,}",
            f"{bar}{escape(say_share(each.size))}",
            "" if each.confidence is None else escape(say_confidence(each.confidence)),
            f"{each.calls:,.0f}",
        ]
        if has_truth:
            cells += ["" if each.inside is None else escape(say_share(each.inside)), f"{each.outside or 0:,}"]
        data = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(each.label)}</th>{data}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    first, rest = lines[:CLASSES], lines[CLASSES:]
    more = (
        f"<details><summary>The other {len(rest):,} labels</summary><div class=inside>{_grid(head, rest)}</div></details>"
        if rest
        else ""
    )
    return f"<section>\n<h2>By label</h2>\n{_grid(head, first)}\n{more}</section>"


def _grid(head: str, lines: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><table class="results"><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def _extremes(overview: Overview, thumb: Thumb) -> str:
    if len(overview.smallest) < 4 or overview.counts["done"] <= len(overview.sample) // 4:
        return ""
    smallest = "".join(_card(row, thumb) for row in overview.smallest)
    largest = "".join(_card(row, thumb) for row in overview.largest)
    return (
        f'<section>\n<h2>The smallest explanations</h2>\n<div class="thumbs">{smallest}</div>\n'
        f'<h2>The largest explanations</h2>\n<div class="thumbs">{largest}</div>\n</section>'
    )


def _sheet(overview: Overview, thumb: Thumb) -> str:
    if not overview.sample:
        return ""
    shown, done = len(overview.sample), overview.counts["done"]
    which = "All of them" if shown == done else f"{shown:,} of {done:,}, evenly taken"
    cards = "".join(_card(row, thumb) for row in overview.sample)
    return (
        f'<section>\n<h2>Contact sheet</h2>\n<p class="soft">{which}. What is in the light is enough for the label.</p>\n'
        f'<div class="thumbs small">{cards}</div>\n</section>'
    )


def _card(row: Row, thumb: Thumb, said: str = "", *, with_boxes: bool = False) -> str:
    source = thumb(row, with_boxes)
    name = row["image"].rsplit("/", 1)[-1]
    confidence = "" if row["confidence"] is None else f" {say_confidence(row['confidence'])}"
    text = said or f"{say_share(row['size'])} of the view"
    image = (
        f'<img loading="lazy" src="{source}" alt="{escape(name)}, labelled {escape(row["label"])}">'
        if source
        else "<div class=blank></div>"
    )
    return (
        f'<figure title="{escape(row["image"])}">{image}<figcaption><b>{escape(row["label"])}{escape(confidence)}</b>'
        f"{escape(text)}<br><span>{row['id']} · {escape(name)}</span></figcaption></figure>"
    )


def _failures(overview: Overview) -> str:
    if not overview.reasons:
        return ""
    lines = [f'<tr><th scope="row">{count:,}</th><td>{escape(why)}</td></tr>' for why, count in overview.reasons[:20]]
    more = f"<p class=soft>And {len(overview.reasons) - 20:,} other reasons.</p>" if len(overview.reasons) > 20 else ""
    return (
        f"<section>\n<h2>{say_count(overview.counts['failed'], 'picture')} failed</h2>\n<table><tbody>"
        + "".join(lines)
        + f"</tbody></table>\n{more}</section>"
    )


def _table(overview: Overview, below: float, folder: str | None) -> str:
    """All rows as JSON, of which the script shows a page at a time."""
    if not overview.rows:
        return ""
    has_truth = overview.mean_inside is not None
    columns = [name for name in COLUMNS if has_truth or name != "inside"]
    rows = [[_brief(row[name]) for name in columns] for row in overview.rows]
    data = {"columns": columns, "rows": rows, "below": below, "folder": folder}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    cut = (
        f"<p class=soft>The first {len(rows):,} of {overview.total:,}; for all of them: becausal export.</p>"
        if len(rows) < overview.total
        else ""
    )
    outside = '<label><input type="checkbox" id="outside"> outside of the object</label>' if has_truth else ""
    failed = '<label><input type="checkbox" id="failed"> failed</label>' if overview.counts["failed"] else ""
    return (
        '<section id="all">\n<h2>All images</h2>\n'
        f'<form class="tools"><input type="search" id="find" placeholder="name, label or reason" aria-label="Filter">'
        f'<select id="label" aria-label="Label"><option value="">all labels</option></select>{outside}{failed}'
        '<span id="count" class="soft" aria-live="polite"></span></form>\n'
        '<div class="scroll"><table class="results" id="rows"><thead></thead><tbody></tbody></table></div>\n'
        '<p class="pager"><button type="button" id="back">‹ back</button><button type="button" id="next">more ›</button>'
        f'</p>\n{cut}<noscript><p class="soft">The table needs JavaScript; becausal export writes it as a file.</p>'
        f'</noscript>\n<script type="application/json" id="data">{text}</script>\n</section>'
    )


def _brief(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _record(overview: Overview) -> str:
    given = {name: value for name, value in overview.settings.items() if value not in (None, False, [], {})}
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_plain(value))}</td></tr>' for name, value in given.items()
    )
    return (
        "<details>\n<summary>What was asked</summary>\n"
        f'<div class="inside"><table class="record"><tbody>\n{body}\n'
        f'<tr><th scope="row">begun</th><td>{escape(overview.begun)}</td></tr></tbody></table></div>\n</details>\n'
        f"<footer>Made by becausal {escape(str(overview.settings.get('becausal', '')))}. One image's own page: "
        "becausal report RUN --picture NUMBER. All numbers: becausal export RUN.</footer>"
    )


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def _tie(text: str) -> str:
    """Keep a number and its sign on one line."""
    return escape(text.replace(" ", "\N{NO-BREAK SPACE}"))
