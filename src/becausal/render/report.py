"""The report: one HTML page that needs nothing but itself, and escapes everything it was given."""

import json
import math
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from typing import Any

from becausal.core.explanation import ExplanationRecord
from becausal.render.figures import plot_map, png_bytes
from becausal.render.painting import as_png, colour_stops, paint_explanation, paint_map, paint_mutant, paint_picture
from becausal.render.sheets import choose_slices, lay_out
from becausal.render.stylesheet import STYLE
from becausal.render.wording import (
    Check,
    name_points,
    say_checks,
    say_command,
    say_confidence,
    say_count,
    say_share,
    say_stopped,
    say_target,
)


def render_report(explanation: ExplanationRecord) -> str:
    """The page as text; no script, no outside font, image or style."""
    parts = [
        _head(explanation),
        _warning(explanation),
        _pictures(explanation),
        _checks(explanation),
        _proof(explanation),
        _notes(explanation),
        _repeat(explanation),
        _record(explanation),
    ]
    title = escape(f"Why {explanation.label}? {explanation.origin.image}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(explanation: ExplanationRecord) -> str:
    points, checks = name_points(explanation), explanation.checks
    label = f"<em>{escape(explanation.label)}</em>"
    confidence = say_confidence(explanation.confidence)
    says = f"The classifier says {label}" + (f" ({escape(confidence)})" if confidence else "") + "."
    count = f"{say_share(explanation.size)} of the {points}s"
    if checks.sufficient:
        enough = f"These {count} alone are enough for that."
    else:
        enough = f"No small set was found: the best so far has {count}."
    pieces = say_count(explanation.pieces, "piece")
    lead = f"{say_count(explanation.pixels, points)} in {pieces}, found by {explanation.origin.method} in "
    lead += f"{say_count(explanation.calls, 'call')} of the classifier and {explanation.seconds:.1f} s."
    enough, lead = enough.replace(" %", "\N{NO-BREAK SPACE}%"), lead.replace(" s.", "\N{NO-BREAK SPACE}s.")
    return (
        f'<header>\n<p class="file">{escape(explanation.origin.image)}</p>\n<h1>{says} {enough}</h1>\n'
        f'<p class="lead">{escape(lead)}</p>\n</header>'
    )


def _warning(explanation: ExplanationRecord) -> str:
    text = say_stopped(explanation)
    return f'<p class="warning" role="note"><strong>Cut short.</strong> {escape(text)}</p>' if text else ""


def _pictures(explanation: ExplanationRecord) -> str:
    """The view, the explanation and the map; of a signal all three in one figure."""
    points, label = name_points(explanation), explanation.label
    share, pieces = say_share(explanation.size), say_count(explanation.pieces, "piece")
    if explanation.visible.ndim == 1:
        figure = _figure(
            png_bytes(plot_map(explanation)),
            alt=f"The signal with the explanation shaded, {share} of it in {pieces}, and the map beneath.",
            title="The signal, its explanation and its map",
            text=f"What is shaded is enough for {label}; all else may be hidden. "
            f"Beneath: how responsible each {points} is for the label, as a share of the largest.",
        )
        return f'<section class="images wide" aria-label="Images">\n{figure}\n</section>'
    sheet = lay_out(explanation)
    seen = _figure(
        as_png(paint_picture(sheet), sheet),
        alt=f"The image as the classifier sees it, labelled {label}.",
        title="What the classifier sees",
        text=_say_view(explanation),
    )
    lit = _figure(
        as_png(paint_explanation(sheet), sheet),
        alt=f"The explanation: {share} of the {points}s in {pieces}, the rest darkened.",
        title="The explanation",
        text=f"What is in the light is enough for {label}; all else may be hidden.",
    )
    heat = _figure(
        as_png(paint_map(sheet), sheet),
        alt=f"The responsibility map for {label} over the image, with the explanation outlined.",
        title="The responsibility map",
        text=f"How responsible each {points} is for the label. The line: the explanation.",
        extra=_scale(),
    )
    return f'<section class="images" aria-label="Images">\n{seen}\n{lit}\n{heat}\n</section>'


def _scale() -> str:
    """The colours of the map as a bar."""
    return (
        f'<span class="scale"><i>0</i><span style="background: linear-gradient(90deg, {colour_stops()})"></span>'
        "<i>largest</i></span>"
    )


def _say_view(explanation: ExplanationRecord) -> str:
    frame, size = explanation.frame, _times(explanation.visible.shape)
    if explanation.visible.ndim == 3:
        numbers = ", ".join(str(n) for n in choose_slices(explanation.visible))
        return f"The view, {size}: slices {numbers} along the first axis, row by row."
    if frame.is_identity:
        return f"The view, {size}: the original, unchanged."
    return f"The view, {size}, made from an original of {_times(frame.original)}."


def _checks(explanation: ExplanationRecord) -> str:
    rows = "\n".join(_check_row(check) for check in say_checks(explanation))
    head = '<thead><tr><th scope="col">Claim</th><th scope="col">Holds</th><th scope="col">Meaning</th></tr></thead>'
    return (
        '<section>\n<h2>What was checked</h2>\n<p class="soft">Each claim was asked of the classifier itself. '
        f"The target, what had to stay true: {escape(say_target(explanation))}.</p>\n"
        f'<table class="checks">{head}<tbody>\n{rows}\n</tbody></table>\n</section>'
    )


def _check_row(check: Check) -> str:
    kind = {True: "yes", False: "no", None: "flat"}[check.holds]
    return (
        f'<tr><th scope="row">{escape(check.name.capitalize())}</th>'
        f'<td><span class="mark {kind}">{escape(check.answer)}</span></td><td>{escape(check.meaning)}</td></tr>'
    )


def _proof(explanation: ExplanationRecord) -> str:
    """The two mutants behind sufficiency and necessity, as the classifier was shown them."""
    if explanation.visible.ndim == 1:
        return ""
    sheet, label, checks = lay_out(explanation), explanation.label, explanation.checks
    alone = say_confidence(checks.confidence)
    kept = f"{label} stays" + (f", with a confidence of {alone}" if alone else "")
    figures = [
        _figure(
            as_png(paint_mutant(sheet, sheet.visible), sheet),
            alt="The explanation alone, everything else hidden by the fill.",
            title="The explanation alone",
            text=f"{kept}." if checks.sufficient else f"{label} is lost.",
        )
    ]
    if checks.necessary is not None:
        figures.append(
            _figure(
                as_png(paint_mutant(sheet, ~sheet.visible), sheet),
                alt="The image with the explanation hidden by the fill.",
                title="All but the explanation",
                text=f"{label} is lost." if checks.necessary else f"{label} stays: other parts give it, too.",
            )
        )
    fills = " and ".join(explanation.origin.fills)
    return (
        f'<section>\n<h2>The proof in images</h2>\n<p class="soft">Shown to the classifier like this, hidden parts '
        f'filled with {escape(fills)}.</p>\n<div class="images pair">\n' + "\n".join(figures) + "\n</div>\n</section>"
    )


def _notes(explanation: ExplanationRecord) -> str:
    if not explanation.notes:
        return ""
    items = "\n".join(f"<li>{escape(note)}</li>" for note in explanation.notes)
    return f"<section>\n<h2>Notes</h2>\n<ul>\n{items}\n</ul>\n</section>"


def _repeat(explanation: ExplanationRecord) -> str:
    return (
        "<section>\n<h2>Repeat it</h2>\n<p>The same command gives the same answer:</p>\n"
        f"<pre>{escape(say_command(explanation))}</pre>\n"
        "<p>To ask the classifier every claim above again, in the folder of this page:</p>\n"
        "<pre>becausal verify .</pre>\n</section>"
    )


def _record(explanation: ExplanationRecord) -> str:
    origin, stats = explanation.origin, explanation.stats
    where: list[tuple[str, Any]] = [
        ("image", origin.image),
        ("image, sha256", origin.image_sha256),
        ("model", origin.model),
        ("model, sha256", origin.model_sha256 or "no file"),
        ("preprocessing", origin.preprocess),
        *((f"loading: {key}", value) for key, value in origin.loading.items()),
        ("view", _times(explanation.view.shape) + f", {explanation.view.dtype}"),
        *((f"frame: {key}", _times(value)) for key, value in explanation.frame.record().items()),
    ]
    how: list[tuple[str, Any]] = [
        ("method", origin.method),
        *((f"option: {key}", value) for key, value in origin.options.items()),
        ("fill", ", ".join(origin.fills)),
        ("seed", origin.seed),
        ("grain", "none" if origin.grain is None else f"{origin.grain} px"),
        ("limit on calls", "none" if origin.max_calls is None else origin.max_calls),
        ("stopped by", explanation.stopped_by),
        ("calls", f"{stats.calls:,} in {stats.batches:,} batches ({stats.asked:,} questions with repeats)"),
        ("seconds", f"{stats.seconds:.2f}, of them {stats.model_seconds:.2f} inside the classifier"),
    ]
    return (
        '<details>\n<summary>Where this answer came from</summary>\n<div class="inside">\n'
        f"<h3>Image and model</h3>\n{_table(where)}\n<h3>Search</h3>\n{_table(how)}\n"
        f"<h3>Versions</h3>\n{_table(origin.versions.items())}\n</div>\n</details>\n"
        f"<footer>Made by {escape(' '.join(('becausal', origin.versions.get('becausal', ''))).strip())}. "
        "The numbers behind the images are in explanation.json and arrays.npz.</footer>"
    )


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    body = "\n".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(_plain(v))}</td></tr>' for k, v in rows)
    return f'<table class="record"><tbody>\n{body}\n</tbody></table>'


def _plain(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return "unknown" if isinstance(value, float) and math.isnan(value) else str(value)


def _times(shape: Iterable[int]) -> str:
    return " × ".join(str(n) for n in shape)


def _figure(png: bytes, *, alt: str, title: str, text: str, extra: str = "") -> str:
    """One image with its caption; `extra` is HTML of our own, all else is escaped."""
    source = "data:image/png;base64," + b64encode(png).decode("ascii")
    return (
        f'<figure><img src="{source}" alt="{escape(alt)}">'
        f"<figcaption><b>{escape(title)}</b>{escape(text)}{extra}</figcaption></figure>"
    )
