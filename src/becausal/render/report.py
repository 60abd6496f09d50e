"""The report: one self-contained HTML page about an explanation."""

from dataclasses import fields
from typing import Any

from becausal.core.explanation import ExplanationRecord
from becausal.core.options import flag_of
from becausal.core.request import Request
from becausal.render.command import format_command
from becausal.render.figures import signal_png
from becausal.render.limits import describe_stop
from becausal.render.pages import data_uri, format_shape, render_page
from becausal.render.painting import (
    COLOURS,
    as_png,
    colour_stops,
    line_of,
    paint_explanation,
    paint_image,
    paint_map,
    paint_mutant,
)
from becausal.render.sheets import lay_out, lay_out_original, slices_of
from becausal.render.signals import SHADES, shade_of
from becausal.render.wording import (
    as_text,
    describe_checks,
    describe_extent,
    describe_pieces,
    describe_purpose,
    describe_target,
    format_confidence,
    headline,
    list_claims,
    question,
    unit_name,
)

_ALWAYS = ("method", "options", "fills", "seed", "grain", "max_calls")  # options that have a row in every report


def render_report(explanation: ExplanationRecord) -> str:
    """The page as text; no scripts, no external fonts, images or styles."""
    return render_page(
        "report.html",
        explanation=explanation,
        question=as_text(question(explanation)),
        headline=headline(explanation),
        unit=unit_name(explanation),
        stopped=describe_stop(explanation),
        images=_paint_images(explanation),
        levels=_list_levels(explanation),
        several=_list_sets(explanation) if explanation.others else [],
        colour_stops=colour_stops(),
        view=_describe_view(explanation),
        described=describe_checks(explanation),
        target=describe_target(explanation),
        command=format_command(explanation),
        details=_list_details(explanation),
    )


def _paint_images(explanation: ExplanationRecord) -> dict[str, str]:
    """The images of the page as data URIs; a single figure for a signal."""
    if explanation.visible.ndim == 1:
        return {"signal": data_uri(signal_png(explanation))}
    view, original = lay_out(explanation), lay_out_original(explanation)
    painted = {
        "view": (paint_image(original), original),
        "explanation": (paint_explanation(original), original),
        "map": (paint_map(original), original),
    }
    if explanation.checks.necessary is not None:
        painted["rest"] = (paint_mutant(view, ~view.visible), view)
    return {"signal": ""} | {name: data_uri(as_png(pixels, sheet)) for name, (pixels, sheet) in painted.items()}


def _list_levels(explanation: ExplanationRecord) -> list[dict[str, Any]]:
    """Each level, the smallest first: its line, its numbers, and the model input that shows it alone, empty for a signal."""
    count, is_signal = len(explanation.levels), explanation.visible.ndim == 1
    sheet = None if is_signal else lay_out(explanation)
    sets = () if sheet is None else (*sheet.inner, sheet.visible)
    return [
        {
            "name": level.name,
            "purpose": describe_purpose(level, explanation),
            "colour": shade_of(number, count) if is_signal else line_of(number, count).colour,
            "size": level.size,
            "pieces": describe_pieces(level),
            "alone": format_confidence(level.checks.confidence),
            "sufficient": level.checks.sufficient,
            "claims": ", ".join(claim for claim in list_claims(level) if not claim.startswith("confidence")),
            "image": "" if sheet is None else data_uri(as_png(paint_mutant(sheet, sets[number]), sheet)),
        }
        for number, level in enumerate(explanation.levels)
    ]


def _list_sets(explanation: ExplanationRecord) -> list[dict[str, Any]]:
    """Each of several explanations: its colour, its numbers, and its image, empty for a signal."""
    is_signal = explanation.visible.ndim == 1
    sheet, colours = None if is_signal else lay_out(explanation), SHADES if is_signal else COLOURS
    return [
        {
            "number": number + 1,
            "colour": colours[number % len(colours)],
            "extent": describe_extent(found),
            "claims": ", ".join(list_claims(found)),
            "image": "" if sheet is None else data_uri(as_png(paint_explanation(sheet.only(number)), sheet)),
        }
        for number, found in enumerate(explanation.sets)
    ]


def _describe_view(explanation: ExplanationRecord) -> str:
    """What the first image of the page shows."""
    frame, size = explanation.frame, format_shape(explanation.visible.shape)
    if explanation.visible.ndim == 3:
        numbers = ", ".join(str(n) for n in slices_of(explanation))
        return f"{size}; slices {numbers} along the first axis, row by row."
    if frame.is_identity:
        return f"{size}, the original, unchanged."
    original = format_shape(frame.original)
    if explanation.original is None:
        return f"{size}, made from an original of {original}."
    where = "all of it" if lay_out_original(explanation).in_view is None else "the part inside the frame"
    return f"{original}; the model sees {where}, as {size}."


def _shorten_names(key: str, value: Any) -> Any:
    return f"{len(value)} names" if key == "labels" and isinstance(value, list) else value


def _list_asked(request: Request) -> list[tuple[Any, Any]]:
    """What was asked for besides the rows that every report has, with the options that say so; defaults are left out."""
    asked = request.record()
    return [
        (item, "yes" if asked[item.name] is True else asked[item.name])
        for item in fields(request)
        if "option" in item.metadata and item.name not in _ALWAYS and getattr(request, item.name) != item.default
    ]


def _list_details(explanation: ExplanationRecord) -> dict[str, list[tuple[str, Any]]]:
    """Tables of everything needed to reproduce the explanation, by heading."""
    origin, stats = explanation.origin, explanation.stats
    return {
        "Image and model": [
            ("image", origin.image),
            ("image, sha256", origin.image_sha256),
            ("model", origin.model),
            ("model, sha256", origin.model_sha256 or "not a file"),
            ("preprocessing", origin.preprocess),
            *((f"loading: {key}", _shorten_names(key, value)) for key, value in origin.loading.items()),
            ("view", f"{format_shape(explanation.view.shape)}, {explanation.view.dtype}"),
            *((f"frame: {key}", format_shape(value)) for key, value in explanation.frame.record().items()),
        ],
        "Search": [
            ("method", origin.method),
            *((f"option: {key}", value) for key, value in origin.options.items()),
            ("fill", ", ".join(origin.fills)),
            ("seed", origin.seed),
            ("grain", "none" if origin.grain is None else f"{origin.grain} px"),
            ("maximum model calls", "none" if origin.max_calls is None else origin.max_calls),
            *((flag_of(item).removeprefix("--"), value) for item, value in _list_asked(origin.request)),
            ("stopped by", explanation.stopped_by),
            ("model calls", f"{stats.calls:,} in {stats.batches:,} batches ({stats.asked:,} queries with repetitions)"),
            ("seconds", f"{stats.seconds:.2f}, including {stats.model_seconds:.2f} in the model"),
        ],
        "Versions": list(origin.versions.items()),
    }
