"""Numbers and results in plain words, the same on pages, in figures and on the command line."""

import math
from dataclasses import dataclass

from becausal.core.checks import CheckedSet, Level
from becausal.core.explanation import ExplanationRecord, NamedScore
from becausal.core.targets import OVERLAP
from becausal.render.certificates import describe_certificate, describe_share


@dataclass(frozen=True)
class Span:
    """Part of a headline; labels are set apart on pages and in the terminal."""

    text: str
    is_label: bool = False


@dataclass(frozen=True)
class Check:
    """One property of an explanation in words.

    Attributes:
        name: The property, e.g. sufficient.
        holds: Whether it holds; None where that is neither good nor bad.
        answer: The result in a few words.
        meaning: What the result means.
    """

    name: str
    holds: bool | None
    answer: str
    meaning: str


def format_share(share: float) -> str:
    """A share in per cent with two significant digits: 3.1 %, 0.042 %, 28 %."""
    percent = 100 * share
    if percent >= 9.95 or percent == 0:
        return f"{percent:.0f} %"
    return f"{percent:.{max(1, 1 - math.floor(math.log10(percent)))}f} %"


def format_confidence(confidence: float) -> str:
    """A probability with two decimals, never rounded to 0 or 1; empty for NaN (a model that returns labels only)."""
    if math.isnan(confidence):
        return ""
    if 0.995 <= confidence < 1:
        return ">0.99"
    if 0 < confidence < 0.005:
        return "<0.01"
    return f"{confidence:.2f}"


def format_label(explanation: ExplanationRecord) -> str:
    """The label and, if known, the model's confidence in it on the whole view: bus (0.97)."""
    confidence = format_confidence(explanation.confidence)
    return f"{explanation.label} ({confidence})" if confidence else explanation.label


def format_count(number: int, noun: str) -> str:
    """1 piece, 2 pieces, 1,555 pixels, 3 boxes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('x') else 's'}"


def unit_name(found: CheckedSet) -> str:
    """What one element of the view is called."""
    return {1: "sample", 3: "voxel"}.get(found.visible.ndim, "pixel")


def headline(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """What the model says of the whole view, what the explanation alone keeps, and how little keeps the label."""
    unit, share = unit_name(explanation), format_share(explanation.size)
    spans = [Span("The model says "), *_scored(_top_label(explanation)), Span(". ")]
    if explanation.target.box is not None:
        spans = [Span("The detector finds "), *_scored(_top_label(explanation)), Span(f" {describe_box(explanation)}. ")]
    elif _top_label(explanation) is None:  # known to be among the top, no more
        confidence = format_confidence(explanation.confidence)
        spans = [Span("The model gives "), Span(explanation.label, True), Span(f" a confidence of {confidence}. ")]
    if explanation.checks.sufficient:
        spans += [Span(f"{share} of the {unit}s ({explanation.pixels:,}) alone "), *_kept(explanation)]
        spans.append(Span(_describe_confidence(explanation)))
        if explanation.level.certificate is not None:
            spans.append(Span(f", and keep it on {describe_share(explanation.level.certificate)}"))
        if explanation.origin.contrast and explanation.checks.necessary:
            spans.append(Span(f", and when they are masked, {_lost(explanation)} is lost"))
        spans.append(Span("."))
    else:
        spans.append(Span(f"No sufficient set was found; the best candidate has {share} of the {unit}s."))
    smallest = explanation.levels[0]
    if smallest.pixels < explanation.pixels and smallest.checks.sufficient:
        alone = format_confidence(smallest.checks.confidence)
        what = f"{_subject(explanation)} alone" if smallest.share == 0 else describe_purpose(smallest, explanation)
        size = f"{format_share(smallest.size)} ({smallest.pixels:,})"
        spans.append(Span(f" {size} are enough for {what}" + (f" (confidence {alone})." if alone else ".")))
    if explanation.others:
        count = len(explanation.others)
        spans.append(Span(f" {format_count(count, 'further set')} {'is' if count == 1 else 'are'} sufficient as well."))
    return tuple(spans)


def question(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """What was asked, as a short title: Why bus (0.97)? Why cougar (0.81) rather than lion?"""
    target = explanation.target
    label = _scored(NamedScore(explanation.label, explanation.label_id, explanation.confidence))
    if target.box is not None:
        return Span("Why "), *label, Span(f" {describe_box(explanation)}?")
    if target.against is not None:
        return Span("Why "), *label, Span(" rather than "), Span(_rival(explanation), True), Span("?")
    if target.top > 1:
        return Span("Why is "), *label, Span(f" among the top {target.top} labels?")
    return Span("Why "), *label, Span("?")


def as_text(spans: tuple[Span, ...]) -> str:
    """A headline or question as plain text."""
    return "".join(span.text for span in spans)


def is_plain(explanation: ExplanationRecord) -> bool:
    """Whether the question is why the top label is the top label."""
    target = explanation.target
    return target.top == 1 and target.against is None and target.threshold is None


def _top_label(explanation: ExplanationRecord) -> NamedScore | None:
    """What the model says of the whole view; None where only the explained label is known, and need not be it."""
    own = NamedScore(explanation.label, explanation.label_id, explanation.confidence)
    if explanation.target.threshold is not None:  # each label above the threshold is an answer
        return own
    return explanation.top or (own if is_plain(explanation) or explanation.confidence > 0.5 else None)


def _scored(score: NamedScore | None) -> tuple[Span, ...]:
    if score is None:
        return ()
    confidence = format_confidence(score.confidence)
    return (Span(score.label, True), Span(f" ({confidence})")) if confidence else (Span(score.label, True),)


def _kept(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """What the explanation alone does, as the end of a sentence."""
    target, label, top = explanation.target, Span(explanation.label, True), _top_label(explanation)
    if target.box is not None:
        return (Span("keep this box"),)
    if target.threshold is not None:
        return Span("keep "), label, Span(f" at a probability of at least {target.threshold:g}")
    own: tuple[Span, ...] = (label,)
    if top is not None and top.label_id != explanation.label_id:
        own = _scored(NamedScore(explanation.label, explanation.label_id, explanation.confidence))
    if target.against is not None:
        return Span("keep "), *own, Span(" ahead of "), Span(_rival(explanation), True)
    if target.top > 1:
        return Span("keep "), *own, Span(f" among the top {target.top} labels")
    return Span("keep "), label


def _describe_confidence(explanation: ExplanationRecord) -> str:
    """The confidence that the explanation alone keeps, or has to keep where it was not measured; empty without scores."""
    if alone := format_confidence(explanation.checks.confidence):
        return f" with a confidence of {alone}"
    return f" with a confidence of at least {_format_floor(explanation)}" if explanation.target.floor > 0 else ""


def _rival(explanation: ExplanationRecord) -> str:
    """The name of the label that the target is explained against."""
    asked = explanation.origin.request.against
    if explanation.rival is not None:
        return explanation.rival.label
    return asked if isinstance(asked, str) and not asked.isdigit() else f"class {explanation.target.against}"


def _format_floor(explanation: ExplanationRecord) -> str:
    floor = explanation.target.floor
    return f"{floor:.2f}" if floor >= 0.01 else f"{floor:.1g}"


def describe_extent(found: CheckedSet) -> str:
    """The size of an explanation: 0.56 % of the view: 92 pixels in 3 pieces with 1 hole."""
    return f"{format_share(found.size)} of the view: {describe_pieces(found)}"


def describe_pieces(found: CheckedSet) -> str:
    """The pixels of a set and their shape: 92 pixels in 3 pieces with 1 hole."""
    count = format_count(found.pixels, unit_name(found))
    holes = found.holes if found.visible.ndim > 1 else 0  # a gap in a signal is no hole
    return f"{count} in {format_count(found.pieces, 'piece')}" + (f" with {format_count(holes, 'hole')}" if holes else "")


def describe_box(explanation: ExplanationRecord) -> str:
    """Where the explained box of a detector is, see `describe_corners`; empty for a classifier."""
    return "" if (box := explanation.target.box) is None else describe_corners(explanation.frame.box_to_original(box))


def describe_corners(box: tuple[float, float, float, float]) -> str:
    """Where a box is, in pixels of the image: at 34,50 to 120,80 (left,top to right,bottom)."""
    return f"at {box[0]:.0f},{box[1]:.0f} to {box[2]:.0f},{box[3]:.0f}"


def describe_purpose(level: Level, explanation: ExplanationRecord) -> str:
    """What a level keeps: the label, half of the confidence, most of the confidence (90 %)."""
    if level.certificate is not None:
        return f"{_subject(explanation)} on {describe_share(level.certificate)}"
    named = {0.0: _subject(explanation), 0.5: "half of the confidence", 0.9: "most of the confidence (90 %)"}
    return named.get(level.share, f"{format_share(level.share)} of the confidence")


def describe_level(level: Level, explanation: ExplanationRecord) -> str:
    """A level on one line: its size, the confidence that it keeps alone, and what it is enough for."""
    alone = format_confidence(level.checks.confidence)
    claim = f"{'enough' if level.checks.sufficient else 'NOT enough'} for {describe_purpose(level, explanation)}"
    if level.certificate is not None:
        claim = describe_certificate(level.certificate)
    return ", ".join([describe_extent(level), *([f"confidence {alone}"] if alone else []), claim])


def list_claims(found: CheckedSet) -> list[str]:
    """What was checked of an explanation, in a few words each: confidence 0.83, sufficient, minimal at 4 px."""
    checks = found.checks
    claims = [f"confidence {alone}"] if (alone := format_confidence(checks.confidence)) else []
    claims.append("sufficient" if checks.sufficient else "NOT sufficient")
    if isinstance(found, Level) and found.certificate is not None:
        claims.append(f"also on {found.certificate.kept:,} of {found.certificate.asked:,} backgrounds")
    if checks.minimal_grain is not None:
        claims.append(f"minimal at {_format_grain(checks.minimal_grain, found)}")
    if checks.necessary is not None:
        claims.append("necessary" if checks.necessary else "not necessary")
    return claims


def describe_set(found: CheckedSet) -> str:
    """An explanation on one line: its size, its confidence, and what was checked."""
    return ", ".join([describe_extent(found), *list_claims(found)])


def describe_target(explanation: ExplanationRecord) -> str:
    """The condition that every sufficient set has to meet."""
    target = explanation.target
    if target.box is not None:
        rule = f"a box of {explanation.label} that overlaps this one (IoU at least {OVERLAP:g}) is still found"
        rule += f", with a score of at least {max(target.threshold or 0.0, target.floor):.2g}"
        return rule
    if target.threshold is not None:
        rule = f"{explanation.label} has a probability of at least {target.threshold:g}"
    elif target.against is not None:
        rule = f"{explanation.label} stays ahead of {_rival(explanation)}"
    elif target.top > 1:
        rule = f"{explanation.label} stays among the top {target.top} labels"
    else:
        rule = f"{explanation.label} stays the top label"
    floor = f", with a confidence of at least {_format_floor(explanation)}" if target.floor > 0 else ""
    return rule + floor


def describe_checks(explanation: ExplanationRecord) -> list[Check]:
    """Every check of the (first) explanation."""
    checks, unit = explanation.checks, unit_name(explanation)
    kept = " and ".join([_subject(explanation), *_confidence_kept(explanation)])
    alone, whole = format_confidence(checks.confidence), format_confidence(explanation.confidence)
    sufficient = f"these {unit}s alone, with all others masked, keep {kept}"
    if not checks.sufficient:
        sufficient = f"these {unit}s alone do not keep {kept}"
    comparison = f"the whole view has {whole}" if alone else "not measured, or the model returns labels only"
    components = "connected components" if unit == "sample" else "connected components, diagonals excluded"
    certificate = explanation.level.certificate
    return [
        Check("sufficient", checks.sufficient, "yes" if checks.sufficient else "no", sufficient),
        *([] if certificate is None else [Check("any background", True, "yes", describe_certificate(certificate))]),
        _describe_minimality(explanation),
        _describe_necessity(explanation),
        Check("confidence alone", None, alone or "unknown", comparison),
        Check("pieces", None, f"{explanation.pieces:,}", components),
    ]


def _describe_minimality(explanation: ExplanationRecord) -> Check:
    grain, asked, unit = explanation.checks.minimal_grain, explanation.origin.grain, unit_name(explanation)
    if grain is None:
        if asked is None:
            return Check("minimal", None, "not checked", "parts of it may be removable")
        reason = "the search ended before it was proved; " if explanation.stopped_by != "finished" else ""
        return Check("minimal", None, "not established", f"{reason}parts of it may be removable")
    side = " × ".join([str(grain)] * explanation.visible.ndim)
    cell = f"single {unit}" if grain == 1 else f"cell of {side} {unit}s"
    tested = f" ({format_count(explanation.checks.cells, 'removal')} tested)" if explanation.checks.cells else ""
    loss = f"{_lost(explanation)}, or the set's necessity" if explanation.origin.contrast else _lost(explanation)
    part = f"{cell} that it adds to the level inside it" if len(explanation.levels) > 1 else cell
    meaning = f"no {part} can be removed without losing {loss}{tested}"
    if len(explanation.levels) > 1 and not explanation.checks.cells:
        meaning = "it adds nothing to the level inside it"
    meaning += f"; {coarser}" if (coarser := describe_coarser_grain(explanation)) else ""
    return Check("minimal", True, f"yes, at {_format_grain(grain, explanation)}", meaning)


def describe_coarser_grain(explanation: ExplanationRecord) -> str:
    """Why minimality was proved for larger cells than asked for, and how to go on; empty where it was not."""
    grain, asked = explanation.checks.minimal_grain, explanation.origin.grain
    if grain is None or asked is None or grain <= asked:
        return ""
    effort = explanation.origin.options.get("effort")
    wanted = f"{_format_grain(asked, explanation)} was asked for, but"
    if explanation.stopped_by != "finished":
        return f"{wanted} the search ended before that was proved"
    if not isinstance(effort, int):
        return f"{wanted} it was not proved for cells of that size"
    return f"{wanted} the effort limit of {format_count(effort, 'call')} was reached: for no limit, use --option effort=none"


def _format_grain(grain: int, found: CheckedSet) -> str:
    unit = unit_name(found)
    return f"{grain} px" if unit == "pixel" else format_count(grain, unit)


def _subject(explanation: ExplanationRecord) -> str:
    """What the target asks to keep, as a noun."""
    target = explanation.target
    if target.box is not None:
        return "the box"
    if target.threshold is None and target.against is not None:
        return f"the lead of {explanation.label} over {_rival(explanation)}"
    if target.threshold is None and target.top > 1:
        return f"the place of {explanation.label} among the top {target.top} labels"
    return "the label"


def _lost(explanation: ExplanationRecord) -> str:
    """What is lost where the target is not met."""
    return " or ".join([_subject(explanation), *_confidence_kept(explanation)])


def _confidence_kept(explanation: ExplanationRecord) -> list[str]:
    """What has to be kept of the confidence, where it matters: 90 % of its confidence."""
    if explanation.target.floor <= 0:
        return []
    share = explanation.level.share
    return [f"{format_share(share)} of its confidence" if share > 0 else "its confidence"]


def _describe_necessity(explanation: ExplanationRecord) -> Check:
    necessary, lost = explanation.checks.necessary, _lost(explanation)
    masked = f"when these {unit_name(explanation)}s are masked"
    if necessary is None:
        return Check("necessary", None, "not checked", f"whether {lost} is lost {masked}")
    if necessary:
        return Check("necessary", True, "yes", f"{masked}, {lost} is lost")
    # Not a defect, and not marked as one: a label may have several causes.
    kept = [_subject(explanation), *_confidence_kept(explanation)]
    stays = f"{' and '.join(kept)} {'stay' if len(kept) > 1 else 'stays'}"
    return Check("necessary", None, "no", f"{masked}, {stays}: other regions are sufficient too")
