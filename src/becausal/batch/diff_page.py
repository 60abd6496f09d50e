"""Two runs side by side on one HTML page that needs nothing but itself."""

from collections.abc import Callable
from html import escape

from becausal.batch.differences import Difference, Pair
from becausal.batch.reading import Row
from becausal.batch.run_page import draw_histogram, page
from becausal.render.wording import say_confidence, say_share

Thumb = Callable[[int, Row], str]  # which run, its row: a data URI, empty where there is none


def render_difference(difference: Difference, thumb: Thumb, *, most: int = 60) -> str:
    """The page as text; `most` images that changed are shown, new labels first, then the smallest overlap."""
    left, right = difference.names
    parts = [_head(difference), _settings(difference), _numbers(difference), _pictures(difference, thumb, most)]
    return page(f"{left} and {right}", parts)


def _head(difference: Difference) -> str:
    left, right = (escape(name) for name in difference.names)
    count, shared = difference.relabelled, len(difference.pairs)
    if not shared:
        said = "No image was explained in both."
    else:
        said = f"<em>{count:,}</em> of {shared:,} images have another label."
        if difference.overlaps.middle is not None:
            middle = say_share(difference.overlaps.middle).replace(" ", "\N{NO-BREAK SPACE}")
            said += f" Half of the explanations share less than {middle} of their pixels."
    rest = [
        f"{number:,} images {text} {name}"
        for number, text, name in (
            (difference.only[0], "are only in", left),
            (difference.only[1], "are only in", right),
            (difference.failed[0], "failed in", left),
            (difference.failed[1], "failed in", right),
        )
        if number
    ]
    return (
        f'<header>\n<p class="file">{left} → {right}</p>\n<h1>{said}</h1>\n'
        + (f'<p class="lead">{"; ".join(rest)}.</p>\n' if rest else "")
        + "</header>"
    )


def _settings(difference: Difference) -> str:
    items = "".join(f"<li>{escape(change)}</li>" for change in difference.changes)
    body = f"<ul>{items}</ul>" if items else "<p>Nothing: the same model, asked in the same way.</p>"
    return f"<section>\n<h2>What differs between the runs</h2>\n{body}\n</section>"


def _numbers(difference: Difference) -> str:
    if not difference.pairs:
        return ""
    left, right = (escape(name) for name in difference.names)
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "size": ("median size", say_share),
        "confidence": ("median confidence", say_confidence),
        "calls": ("median calls", lambda value: f"{value:,.0f}"),
        "inside": ("median share on the object", say_share),
    }
    lines = []
    for name, (title, say) in forms.items():
        before, after = difference.medians(name)
        if before is not None and after is not None:
            lines.append(f'<tr><th scope="row">{title}</th><td>{escape(say(before))}</td><td>{escape(say(after))}</td></tr>')
    if outside := difference.outside():
        lines.append(f'<tr><th scope="row">outside of the object</th><td>{outside[0]:,}</td><td>{outside[1]:,}</td></tr>')
    chart = ""
    if difference.overlaps.counts:
        text = "pixels in both explanations, of those in either"
        chart = f'<div class="charts">{draw_histogram(difference.overlaps, "Overlap", text, say_share)}</div>'
    return (
        "<section>\n<h2>In numbers</h2>\n"
        f'<table class="results"><thead><tr><th></th><th scope="col">{left}</th><th scope="col">{right}</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>\n{chart}\n</section>"
    )


def _pictures(difference: Difference, thumb: Thumb, most: int) -> str:
    changed = [p for p in difference.pairs if p.is_relabelled or p.overlap is None or p.overlap < 1]
    if not changed:
        return "<section>\n<h2>Images</h2>\n<p>No explanation differs.</p>\n</section>" if difference.pairs else ""
    cards = "".join(_card(pair, thumb) for pair in changed[:most])
    which = f"{min(most, len(changed)):,} of {len(changed):,}" if len(changed) > most else f"{len(changed):,}"
    return (
        f'<section>\n<h2>What changed most</h2>\n<p class="soft">{which}: new labels first, then the smallest overlap. '
        f"Left {escape(difference.names[0])}, right {escape(difference.names[1])}.</p>\n"
        f'<div class="thumbs pairs">{cards}</div>\n</section>'
    )


def _card(pair: Pair, thumb: Thumb) -> str:
    left, right = pair.left, pair.right
    images = "".join(
        f'<img loading="lazy" src="{source}" alt="{escape(row["label"])}">' if source else "<div class=blank></div>"
        for row, source in ((left, thumb(0, left)), (right, thumb(1, right)))
    )
    label = escape(left["label"])
    if pair.is_relabelled:
        label += f' <span class="arrow">→</span> {escape(right["label"])}'
    overlap = "not comparable" if pair.overlap is None else f"overlap {say_share(pair.overlap)}"
    name = left["image"].rsplit("/", 1)[-1]
    return (
        f'<figure title="{escape(left["image"])}"><div class="pair">{images}</div><figcaption><b>{label}</b>'
        f"{escape(overlap)}; {escape(say_share(left['size']))} → {escape(say_share(right['size']))}<br>"
        f"<span>{escape(name)}</span></figcaption></figure>"
    )
