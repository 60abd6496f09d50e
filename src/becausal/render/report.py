"""The report: one self-contained HTML page about an explanation, with the command that reproduces it."""

import shlex
from dataclasses import replace
from typing import Any

from becausal.core.explanation import ExplanationRecord, NamedScore
from becausal.core.options import as_words, list_options, option_words
from becausal.core.request import Request
from becausal.render import wording
from becausal.render.colours import AGAINST, COLOURS, SHADES, ZONES, line_of, shade_of
from becausal.render.endings import describe_stop
from becausal.render.figures import signal_png
from becausal.render.hints import list_hints
from becausal.render.likeness import name_score
from becausal.render.numbers import format_confidence
from becausal.render.pages import data_uri, format_shape, render_page
from becausal.render.painting import as_png, colour_stops, paint_explanation, paint_image, paint_map, paint_mutant
from becausal.render.sheets import lay_out, lay_out_original, slices_of

_ALWAYS = ("method", "options", "fills", "seed", "grain", "max_calls")  # options that have a row in every report


_ALL = 0.9999  # of the confidence: no other label has any


def render_report(explanation: ExplanationRecord) -> str:
    """The page as text; no scripts, no external fonts, images or styles."""
    images = {"signal": ""}
    if explanation.visible.ndim == 1:
        images["signal"] = data_uri(signal_png(explanation))
    else:
        sheet, original = lay_out(explanation), lay_out_original(explanation)
        for name, paint in (("view", paint_image), ("explanation", paint_explanation), ("map", paint_map)):
            images[name] = data_uri(as_png(paint(original), original))
        if explanation.checks.necessary is not None:
            images["rest"] = data_uri(as_png(paint_mutant(sheet, ~sheet.visible), sheet))
    rival = wording.close_rival(explanation)
    return render_page(
        "report.html",
        explanation=explanation,
        question=wording.as_text(wording.question(explanation)),
        verdict=wording.verdict(explanation),
        answer=wording.answer(explanation),
        unit=wording.unit_name(explanation),
        stopped=describe_stop(explanation),
        images=images,
        levels=_list_levels(explanation),
        against=wording.describe_against(explanation, "masking these {}"),
        against_colour=AGAINST,
        several=_list_sets(explanation) if explanation.others else [],
        zones=[(ZONES[zone][0], name, meaning) for zone, name, meaning in wording.list_zones(explanation)],
        colour_stops=colour_stops(),
        view=_describe_view(explanation),
        masked=wording.describe_masked(explanation),
        target=wording.describe_target(explanation),
        command=format_command(explanation),
        rival=rival,
        noun=name_score(explanation),
        hints=[text for _, text in list_hints(explanation)],
        rival_command=format_rival_command(explanation),
        details=_list_details(explanation),
    )


def _list_levels(explanation: ExplanationRecord) -> list[dict[str, Any]]:
    """Each set, the largest first: its line, its checks, and the model input that shows it alone, empty for a signal."""
    count, is_signal = len(explanation.levels), explanation.visible.ndim == 1
    sheet = None if is_signal else lay_out(explanation)
    sets = () if sheet is None else (*sheet.inner, sheet.visible)
    found = [
        {
            "name": level.name,
            "line": wording.describe_line(level, explanation),
            "extent": wording.describe_level(level, name_score(explanation)),
            "colour": shade_of(number, count) if is_signal else line_of(number, count).colour,
            "alone": format_confidence(level.checks.confidence),
            "sufficient": level.checks.sufficient,
            "checks": wording.describe_checks(explanation, level),
            "image": "" if sheet is None else data_uri(as_png(paint_mutant(sheet, sets[number]), sheet)),
        }
        for number, level in enumerate(explanation.levels)
    ]
    return found[::-1]


def _list_sets(explanation: ExplanationRecord) -> list[dict[str, Any]]:
    """Each of several explanations: its colour, its numbers, and its image, empty for a signal."""
    is_signal = explanation.visible.ndim == 1
    sheet, colours = None if is_signal else lay_out(explanation), SHADES if is_signal else COLOURS
    return [
        {
            "number": number + 1,
            "colour": colours[number % len(colours)],
            "extent": wording.describe_extent(found),
            "claims": ", ".join(wording.list_claims(found, name_score(explanation))),
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


def _list_asked(request: Request) -> list[tuple[str, Any]]:
    """What was asked for besides the rows that every report has, by option; defaults are left out."""
    asked = request.record()
    return [
        (option.flag.removeprefix("--"), "yes" if asked[option.name] is True else asked[option.name])
        for option in list_options(type(request))
        if option.name not in _ALWAYS and getattr(request, option.name) != option.default
    ]


def _list_details(explanation: ExplanationRecord) -> dict[str, list[tuple[str, Any]]]:
    """Tables of everything needed to reproduce the explanation, by heading."""
    origin, stats, loading = explanation.origin, explanation.stats, dict(explanation.origin.loading)
    if isinstance(names := loading.get("labels"), list):
        loading["labels"] = f"{len(names)} names"
    return {
        "Image and model": [
            ("image", origin.image),
            ("image, sha256", origin.image_sha256),
            ("model", origin.model),
            ("model, sha256", origin.model_sha256 or "not a file"),
            ("preprocessing", origin.preprocess),
            *((f"loading: {key}", value) for key, value in loading.items()),
            ("view", f"{format_shape(explanation.view.shape)}, {explanation.view.dtype}"),
            *((f"frame: {key}", format_shape(value)) for key, value in explanation.frame.record().items()),
        ],
        "Search": [
            ("method", origin.method),
            *((f"option: {key}", value) for key, value in origin.options.items()),
            ("fill", ", ".join({"grey": "the plain fill (mid-grey)"}.get(fill, fill) for fill in origin.request.fills)),
            ("seed", origin.request.seed),
            ("grain", "none" if origin.grain is None else f"{origin.grain} px"),
            ("maximum model calls", "none" if origin.request.max_calls is None else origin.request.max_calls),
            *_list_asked(origin.request),
            ("stopped by", explanation.stopped_by),
            ("model calls", f"{stats.calls:,} in {stats.batches:,} batches ({stats.asked:,} queries with repetitions)"),
            ("seconds", f"{stats.seconds:.2f}, including {stats.model_seconds:.2f} in the model"),
        ],
        "Versions": list(origin.versions.items()),
    }


def format_rival_command(explanation: ExplanationRecord) -> str:
    """The command that asks about a close rival; empty without one, and where there are only two labels."""
    rival = wording.close_rival(explanation)
    if rival is None or rival.confidence + explanation.confidence > _ALL:
        return ""
    return format_command(explanation, target=rival)


def format_command(explanation: ExplanationRecord, *, target: NamedScore | None = None) -> str:
    """The command line that reproduces the explanation from any folder, on several lines; defaults are left out.

    target: another label, to ask about that one instead.
    """
    origin, request = explanation.origin, explanation.origin.request
    loading = dict(origin.loading)
    names = loading.get("labels", "")
    if not isinstance(names, str):  # read from a file, as a rule
        is_plain = len(names) > 1 and not any("," in name for name in names)
        loading["labels"] = origin.path_of("labels") or (",".join(names) if is_plain else None)
    loading_words = [
        word
        for name, value in loading.items()
        if not isinstance(value, dict)  # a normalisation of one's own can be given from Python only
        for word in option_words(f"--{name.replace('_', '-')}", value)
    ]
    asked = request.record() | {"method": origin.method, "fills": origin.request.fills, "top": explanation.target.top}
    if origin.method != request.method:  # an explainer, given in Python
        asked["options"] = origin.options
    if target is not None:
        asked |= {"target": target.label, "top": 2}  # only the runner-up is a rival
    if explanation.target.against is not None and request.against is None:
        asked["against"] = explanation.target.against
    usual = Request()  # what was chosen for the image, where nothing was asked for
    if replace(request, fills=usual.fills, holds=None).share_held == request.holds and request.fills == ("grey",):
        asked |= {"fills": usual.fills, "holds": None}
    lines = [
        ["becausal", "explain", origin.path_of("image") or origin.image],
        ["--model", origin.model, *loading_words],
        as_words(Request, asked),
    ]
    return " \\\n    ".join(shlex.join(line) for line in lines if line)
