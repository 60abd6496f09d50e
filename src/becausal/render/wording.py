"""Every sentence about an explanation, the same on pages, in figures and on the command line.

In this order: the question and the headline, the target, the sets, and checks. What ended a search is in `endings`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from becausal.core.checks import Certificate, CheckedSet, Level
from becausal.core.contracts import BLIND, Zone
from becausal.core.explanation import ExplanationRecord, NamedScore
from becausal.core.segments import read_segment
from becausal.core.targets import OVERLAP
from becausal.render.likeness import describe_similarity, ends_of_similarity, keeps_share, name_score, similar_to
from becausal.render.numbers import format_confidence, format_count, format_share

UNSURE = 0.5  # below this confidence, the other labels together are likelier than the one that is explained
CLOSE = 0.5  # a label with this share of the explained one's confidence is close
#: How smaller cells are asked for, and that what is not needed is removed: by options of the command line.
OPTIONS = "--grain {}", "--grain N removes what is not"
FRAGILE = 0.5  # a set that keeps the label on a smaller share of random backgrounds depends on the fill


@dataclass(frozen=True)
class Span:
    """Part of a headline; labels are set apart on pages and in the terminal."""

    text: str
    is_label: bool = False


@dataclass(frozen=True)
class Check:
    """One property of an explanation in words. holds: None where that is neither good nor bad."""

    name: str
    holds: bool | None
    answer: str
    meaning: str


def format_label(explanation: ExplanationRecord) -> str:
    """The label and, if known, the model's confidence in it on the whole view: bus (0.97)."""
    return as_text(_scored(_own_label(explanation)))


def unit_name(found: CheckedSet) -> str:
    """What one element of the view is called."""
    return {1: "sample", 3: "voxel"}.get(found.visible.ndim, "pixel")


def headline(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """What the model says of the whole view, and the answer to why."""
    return (*verdict(explanation), Span(" "), *answer(explanation))


def verdict(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """What the model says of the whole view, and whether it is sure; or that it says the same with no image."""
    if explanation.notes and explanation.notes[0].startswith(BLIND):
        name = Span(explanation.label, True)
        return Span(f"{BLIND.capitalize()} "), name, Span(" as well: the image may not be why.")
    top = _top_label(explanation)
    if explanation.target.box is not None:
        return Span("The detector finds "), *_scored(top), Span(f" {describe_place(explanation)}.")
    if explanation.target.segment is not None:
        size = format_share(float(read_segment(explanation.target.segment).mean()))
        return Span(f"The model gives {size} of the image the class "), Span(explanation.label, True), Span(".")
    if other := similar_to(explanation):
        base = ", not counting what an empty image has" if keeps_share(explanation) else ""
        score = format_confidence(explanation.confidence)
        return Span("The similarity to "), Span(other, True), Span(f" is {score}{base}.")
    if top is None:  # known to be among the top, no more
        confidence = format_confidence(explanation.confidence)
        return Span("The model gives "), Span(explanation.label, True), Span(f" a confidence of {confidence}.")
    doubt = describe_doubt(explanation)
    says = "says" if explanation.target.place is None else f"gives the pixel {describe_place(explanation)} the class"
    return Span(f"The model {says} "), *_scored(top), Span(f". It is not sure: {doubt}." if doubt else ".")


def answer(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """Which pixels are enough, and which of them are the core."""
    last, first = explanation.level, explanation.levels[0]
    if not last.checks.sufficient:
        size = f"{format_share(last.size)} of the {unit_name(last)}s"
        return (Span(f"No set was found that is enough; the best candidate has {size}."),)
    spans = _tell(last, explanation)
    if first.pixels < last.pixels and first.checks.sufficient:
        spans += [Span(" "), *_tell(first, explanation, is_inside=True)]
    elif last.certificate is None and depends_on_fill(last):
        spans.append(Span(f" This set depends on the fill: it {_count_kept(last, explanation)}."))
    if explanation.others:
        count = len(explanation.others)
        spans.append(Span(f" {format_count(count, 'further set')} {'is' if count == 1 else 'are'} enough as well."))
    return tuple(spans)


def _tell(level: Level, explanation: ExplanationRecord, *, is_inside: bool = False) -> list[Span]:
    """One sentence about a set: how large it is, and what it keeps. is_inside: the set of the sentence before."""
    unit, share, keeps = unit_name(level), format_share(level.size), _words_of(explanation).keeps
    if level.certificate is not None:
        shown = f" (shown on {level.certificate.kept:,} of {level.certificate.asked:,} fresh ones)."
        start, target = Span(f"{share} of the {unit}s are enough: they "), explanation.target
        least = "" if target.segment is None else f" (IoU at least {target.threshold:g})"
        return [start, *keeps, Span(f"{least} on {describe_share(level.certificate)}{shown}")]
    core = ", the core," if level.name == "core" else ""
    spans = [Span(f"Among them, {share} of all {unit}s{core} " if is_inside else f"{share} of the {unit}s{core} ")]
    alone, whole = format_confidence(level.checks.confidence), format_confidence(explanation.confidence)
    noun = name_score(explanation)
    is_more = level.checks.confidence > explanation.confidence and alone != whole
    of = f"{alone}, and {whole} with the whole image" if is_more else f"{alone} of {whole}" if whole else alone
    kept_share = level.share if explanation.target.segment is None else 0.0  # of a segment, the IoU says it all
    if kept_share > 0 and (is_plain(explanation) or keeps_share(explanation)):
        spans.append(Span("keep "))
    else:
        spans += [*keeps, *([Span(" and ")] if kept_share > 0 else [])]
    if kept_share > 0:
        is_all = core and (keeps_share(explanation) or not similar_to(explanation))
        kept = f"the {noun}" if is_all else f"{format_share(level.share)} of the {noun}"
        spans.append(Span(kept + (f" ({of})" if alone else "")))
    elif alone:
        spans.append(Span(f" ({noun} {alone})"))
    end = f" with everything else {describe_masked(explanation)}"
    if explanation.origin.request.contrast and level.checks.necessary:
        end += f", and when they are masked, {_tell_loss(level, explanation)}"
    return [*spans, Span(f"{end}.")]


def describe_masked(explanation: ExplanationRecord) -> str:
    """What masked pixels become: in the plain fill; replaced by blur and by noise."""
    return explanation.origin.request.describe_masked()


def describe_doubt(explanation: ExplanationRecord) -> str:
    """That the model itself is not sure of the label it was asked about; empty where it is, or where nobody knows."""
    top = _top_label(explanation)
    if top is None or not is_plain(explanation) or explanation.target.noun != "label":
        return ""
    low = ["its confidence is below one half"] if top.confidence < UNSURE else []
    rival = close_rival(explanation)
    return ", and ".join(low + ([] if rival is None else [f"{as_text(_scored(rival))} is close"]))


def close_rival(explanation: ExplanationRecord) -> NamedScore | None:
    """The label that comes next, where the model gives it at least half of the explained label's confidence."""
    found = explanation.runner_up
    if found is None or not is_plain(explanation) or found.label_id == explanation.label_id:
        return None
    return found if found.confidence >= CLOSE * explanation.confidence else None


def question(explanation: ExplanationRecord) -> tuple[Span, ...]:
    """What was asked, as a short title: Why bus (0.97)? Why cougar (0.81) rather than lion?"""
    target, label = explanation.target, _scored(_own_label(explanation))
    if target.box is not None:
        return Span("Why "), *label, Span(f" {describe_place(explanation)}?")
    if target.segment is not None:
        return Span("Why the segment "), Span(explanation.label, True), Span("?")
    if target.place is not None and target.against is None and target.top == 1:
        return Span(f"Why is the pixel {describe_place(explanation)} "), *label, Span("?")
    if other := similar_to(explanation):
        return Span("Why similar to "), *_scored(replace(_own_label(explanation), label=other)), Span("?")
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


def _own_label(explanation: ExplanationRecord) -> NamedScore:
    return NamedScore(explanation.label, explanation.label_id, explanation.confidence)


def _top_label(explanation: ExplanationRecord) -> NamedScore | None:
    """What the model says of the whole view; None where only the explained label is known, and need not be it."""
    own = _own_label(explanation)
    if explanation.target.threshold is not None:  # each label above the model's threshold is an answer, and no other
        return own if explanation.target.share is None else None
    return explanation.top or (own if is_plain(explanation) or explanation.confidence > 0.5 else None)


def _scored(score: NamedScore | None) -> tuple[Span, ...]:
    if score is None:
        return ()
    confidence = format_confidence(score.confidence)
    return (Span(score.label, True), Span(f" ({confidence})")) if confidence else (Span(score.label, True),)


def _rival(explanation: ExplanationRecord) -> str:
    """The name of the label that the target is explained against."""
    asked = explanation.origin.request.against
    if explanation.rival is not None:
        return explanation.rival.label
    return asked if isinstance(asked, str) and not asked.isdigit() else f"class {explanation.target.against}"


def _format_floor(explanation: ExplanationRecord) -> str:
    floor = explanation.target.floor
    return f"{floor:.2f}" if floor >= 0.01 else f"{floor:.1g}"


@dataclass(frozen=True)
class _TargetWords:
    """A target in words. subject: a noun. keeps: the end of "these pixels alone". rule: as a condition.

    ends: how it is said to be lost, and to stay; where there are none, as of any noun.
    """

    subject: str
    keeps: tuple[Span, ...]
    rule: str
    ends: tuple[str, str] | None = None

    @property
    def lost(self) -> str:
        return f"{self.subject} is lost" if self.ends is None else self.ends[0]

    @property
    def stays(self) -> str:
        return f"{self.subject} stays" if self.ends is None else self.ends[1]


def _words_of(explanation: ExplanationRecord) -> _TargetWords:
    """What is said of each kind of target."""
    target, label, top = explanation.target, explanation.label, _top_label(explanation)
    own: tuple[Span, ...] = (Span(label, True),)
    if target.box is not None:
        score = max(target.threshold or 0.0, target.floor)
        rule = f"a box of {label} that overlaps this one (IoU at least {OVERLAP:g}) is still found"
        return _TargetWords("the box", (Span("keep this box"),), f"{rule}, with a score of at least {score:.2g}")
    if target.segment is not None:
        least = f"IoU at least {max(target.threshold or 0.0, target.floor):.2g}"
        return _TargetWords("the segment", (Span("keep this segment"),), f"{label} still has this segment ({least})")
    floor = f", with a confidence of at least {_format_floor(explanation)}" if target.floor > 0 else ""
    if other := similar_to(explanation):
        subject, rule = describe_similarity(explanation)
        return _TargetWords(subject, (Span(f"keep {subject} to "), Span(other, True)), rule, ends_of_similarity(explanation))
    if target.threshold is not None:
        least = f"a confidence of at least {target.threshold:.3g}"
        return _TargetWords("the label", (Span("keep "), *own, Span(f" at {least}")), f"{label} has {least}{floor}")
    if top is not None and top.label_id != explanation.label_id:  # the headline has not told its confidence yet
        own = _scored(_own_label(explanation))
    if target.against is not None:
        rival = _rival(explanation)
        keeps = Span("keep "), *own, Span(" ahead of "), Span(rival, True)
        ends = f"{label} is no longer ahead of {rival}", f"{label} stays ahead of {rival}"
        return _TargetWords(f"the lead of {label} over {rival}", keeps, ends[1] + floor, ends)
    if target.top > 1:
        place = f"among the top {target.top} labels"
        keeps = Span("keep "), *own, Span(f" {place}")
        ends = f"{label} is no longer {place}", f"{label} stays {place}"
        return _TargetWords(f"the place of {label} {place}", keeps, ends[1] + floor, ends)
    if target.place is not None:
        rule = f"{label} stays the class of the pixel {describe_place(explanation)}{floor}"
        return _TargetWords("the class", (Span("keep this class"),), rule)
    return _TargetWords("the label", (Span("keep "), Span(label, True)), f"{label} stays the top label{floor}")


def describe_target(explanation: ExplanationRecord) -> str:
    """The condition that every sufficient set has to meet."""
    return _words_of(explanation).rule


def _share_of(level: Level, explanation: ExplanationRecord) -> str:
    """What a set keeps besides the label: 90 % of its confidence; empty where only the label counts."""
    if explanation.target.floor <= 0 or level.share <= 0:
        return ""
    return f"{format_share(level.share)} of {name_score(explanation, possessive=True)}"


def _tell_kept(level: Level, explanation: ExplanationRecord) -> str:
    """What a set keeps: the label, and where it matters, 90 % of its confidence."""
    subject, share = _words_of(explanation).subject, _share_of(level, explanation)
    return share if share and keeps_share(explanation) else f"{subject} and {share}" if share else subject


def _tell_loss(level: Level, explanation: ExplanationRecord) -> str:
    """What happens where the target is lost: the label is lost, or less than 90 % of its confidence is left."""
    words, share = _words_of(explanation), _share_of(level, explanation)
    lost = "" if share and keeps_share(explanation) else words.lost
    return ", or ".join(filter(None, [lost, f"less than {share} is left" if share else ""]))


def _tell_rest(level: Level, explanation: ExplanationRecord) -> str:
    """What is left where the target is not lost: the label stays, with 90 % of its confidence or more."""
    words, share = _words_of(explanation), _share_of(level, explanation)
    if share and keeps_share(explanation):
        return f"{share} or more is left"
    return words.stays + (f", with {share} or more" if share else "")


def describe_place(explanation: ExplanationRecord) -> str:
    """Where the explained box of a detector is, see `describe_corners`, or the explained pixel; empty for a classifier."""
    if explanation.target.place is not None:
        return f"({str(explanation.origin.request.at).replace(',', ', ')})"
    return "" if (box := explanation.target.box) is None else describe_corners(explanation.frame.box_to_original(box))


def describe_corners(box: tuple[float, float, float, float]) -> str:
    """Where a box is, in pixels of the image: at 34,50 to 120,80 (left,top to right,bottom)."""
    return f"at {box[0]:.0f},{box[1]:.0f} to {box[2]:.0f},{box[3]:.0f}"


def describe_extent(found: CheckedSet) -> str:
    """The size of an explanation: 0.56 % of the view: 92 pixels in 3 pieces with 1 hole."""
    return f"{format_share(found.size)} of the view: {describe_pieces(found)}"


def describe_pieces(found: CheckedSet) -> str:
    """The pixels of a set and their shape: 92 pixels in 3 pieces with 1 hole."""
    count = format_count(found.pixels, unit_name(found))
    holes = found.holes if found.visible.ndim > 1 else 0  # a gap in a signal is no hole
    return f"{count} in {format_count(found.pieces, 'piece')}" + (f" with {format_count(holes, 'hole')}" if holes else "")


def describe_purpose(level: Level, explanation: ExplanationRecord) -> str:
    """What a set keeps, and where: the label on at least 90 % of random backgrounds."""
    subject = _words_of(explanation).subject
    if level.certificate is not None:
        return f"{subject} on {describe_share(level.certificate)}"
    kept = f"{format_share(level.share)} of the {name_score(explanation)}" if level.share > 0 else subject
    return f"{kept}, with everything else {describe_masked(explanation)}"


def describe_level(level: Level, noun: str = "confidence") -> str:
    """A set on one line: its size, and the confidence that it keeps alone. noun: what that is called, see `name_score`."""
    alone = format_confidence(level.checks.confidence)
    return describe_extent(level) + (f", {noun} {alone}" if alone else "")


def describe_line(level: Level, explanation: ExplanationRecord) -> str:
    """What a contour line is around: core: 9.0 % of the pixels keep 90 % of the confidence."""
    verb = "keep" if level.checks.sufficient else "do NOT keep"
    size = f"{format_share(level.size)} of the {unit_name(level)}s"
    return f"{level.name}: {size} {verb} {describe_purpose(level, explanation)}"


def list_claims(found: CheckedSet, noun: str = "confidence") -> list[str]:
    """What was checked of an explanation, in a few words each: confidence 0.83, sufficient, minimal at 4 px."""
    checks = found.checks
    claims = [f"{noun} {alone}"] if (alone := format_confidence(checks.confidence)) else []
    claims.append("sufficient" if checks.sufficient else "NOT sufficient")
    if checks.transfer is not None:
        claims.append(f"on {checks.transfer.kept:,} of {checks.transfer.asked:,} random backgrounds")
    if checks.minimal_grain is not None:
        claims.append(f"minimal at {_format_grain(checks.minimal_grain, found)}")
    if checks.necessary is not None:
        claims.append("necessary" if checks.necessary else "not necessary")
    return claims


def describe_set(found: CheckedSet, noun: str = "confidence") -> str:
    """An explanation on one line: its size, its confidence, and what was checked."""
    return ", ".join([describe_extent(found), *list_claims(found, noun)])


def describe_against(explanation: ExplanationRecord, what: str = "masking {}") -> str:
    """What was measured of the pixels that speak against the label; empty where there are none. what: their share in it."""
    against = explanation.against
    if against is None:
        return ""
    size = f"{format_share(float(against.visible.mean()))} of the {unit_name(explanation)}s"
    before, after = format_confidence(explanation.confidence), format_confidence(against.confidence)
    return f"{what.format(size)} raises the {name_score(explanation)} from {before} to {after}"


def list_zones(explanation: ExplanationRecord) -> list[tuple[Zone, str, str]]:
    """The zones of the map, the most needed first: each with its name, and what it means."""
    if explanation.zones is None:
        return []
    lost = f"{_words_of(explanation).subject} holds on random backgrounds"
    noun = name_score(explanation)
    meanings = {
        Zone.CORE: ("core", f"keeps most of the {noun} alone"),
        Zone.ENOUGH: ("rest of enough", f"with it, {lost}"),
        Zone.BACKUP: ("backup", "takes over where the core is masked"),
        Zone.CONTEXT: ("context", "each part of it adds little"),
        Zone.AGAINST: ("lowers it", f"the {noun} is higher without it"),
    }
    present = {int(zone) for zone in np.unique(explanation.zones)}
    return [(zone, *meaning) for zone, meaning in meanings.items() if zone in present]


def describe_share(certificate: Certificate) -> str:
    """The share that was required, never rounded: at least 90 % of random backgrounds."""
    return f"at least {100 * certificate.share:g} % of random backgrounds"


def depends_on_fill(found: CheckedSet) -> bool:
    """Whether a set keeps the label on fewer than half of the random backgrounds."""
    transfer = found.checks.transfer
    return transfer is not None and transfer.share < FRAGILE


def _count_kept(level: Level, explanation: ExplanationRecord) -> str:
    transfer, subject = level.checks.transfer, _words_of(explanation).subject
    return "" if transfer is None else f"keeps {subject} on {transfer.kept:,} of {transfer.asked:,} random backgrounds"


def describe_checks(
    explanation: ExplanationRecord, level: Level | None = None, *, controls: tuple[str, str] = OPTIONS
) -> list[Check]:
    """Every check of a set; of the one that is shown, the last one, by default. controls: see `OPTIONS`."""
    level = explanation.level if level is None else level
    checks, unit, kept = level.checks, unit_name(level), _tell_kept(level, explanation)
    keep = "keep" if checks.sufficient else "do not keep"
    sufficient = f"these {unit}s {keep} {kept} with everything else {describe_masked(explanation)}"
    masked, lost = f"when these {unit}s are masked", _tell_loss(level, explanation)
    if checks.necessary is None:
        necessary = Check("necessary", None, "not checked", f"whether {lost} {masked}")
    elif checks.necessary:
        necessary = Check("necessary", True, "yes", f"{masked}, {lost}")
    else:  # not a defect, and not marked as one: a label may have several causes
        rest = _tell_rest(level, explanation)
        necessary = Check("necessary", None, "no", f"{masked}, {rest}: other regions are enough too")
    return [
        Check("sufficient", checks.sufficient, "yes" if checks.sufficient else "no", sufficient),
        *_describe_transfer(level, _words_of(explanation).subject),
        _describe_minimality(level, explanation, controls),
        necessary,
    ]


def _describe_transfer(level: Level, subject: str) -> list[Check]:
    """How far a set holds: on how many fresh random backgrounds it keeps the label, and what that shows of all of them."""
    transfer, certificate = level.checks.transfer, level.certificate
    if certificate is not None:
        count, sure = f"{certificate.kept:,} of {certificate.asked:,}", f"sure at {100 * certificate.confidence:g} %"
        if certificate.holds:
            text = f"keeps {subject} on {count} fresh ones, so on {describe_share(certificate)} ({sure})"
            return [Check("random backgrounds", True, "yes", text)]
        shown = math.floor(1000 * certificate.bound) / 10  # never rounded up
        text = f"keeps {subject} on {count} fresh ones, so on at least {shown:g} % of all ({sure}): fewer than asked for"
        return [Check("random backgrounds", False, "not shown", text)]
    if transfer is None or not transfer.asked:
        return []
    low, high = math.floor(100 * transfer.low), math.ceil(100 * transfer.high)
    count = f"{transfer.kept:,} of {transfer.asked:,} fresh ones"
    text = f"keeps {subject} on {count}, so on {low} to {high} % of all (sure at 95 %)"
    text += ": this set depends on the fill" if depends_on_fill(level) else ""
    return [Check("random backgrounds", None, format_share(transfer.share), text)]


def _describe_minimality(level: Level, explanation: ExplanationRecord, controls: tuple[str, str]) -> Check:
    checks, asked, unit = level.checks, explanation.origin.grain, unit_name(level)
    grain, ended = checks.minimal_grain, explanation.stopped_by != "finished"
    if grain is None:
        if asked is None:
            return Check("minimal", None, "not checked", f"some of it may not be needed; {controls[1]}")
        reason = "the search ended before this was shown; " if ended else ""
        return Check("minimal", None, "not shown", f"{reason}some of it may not be needed")
    side = " × ".join([str(grain)] * level.visible.ndim)
    cell = f"single {unit}" if grain == 1 else f"cell of {side} {unit}s"
    loss = _tell_loss(level, explanation)
    if level.panel:
        words, share = _words_of(explanation), _share_of(level, explanation)
        panel = f"on at least one of {format_count(len(level.panel), 'recorded background')}"
        loss = f"{words.lost} {panel}, or with everything else {describe_masked(explanation)}"
        loss += f", or less than {share} is left there" if share else ""
    elif explanation.origin.request.contrast:
        loss += ", or the set is no longer necessary"
    meaning = f"every {cell} in it is needed: without it, {loss}"
    meaning += f" ({format_count(checks.cells, 'removal')} tested)" if checks.cells else ""
    if asked is not None and grain > asked and level.certificate is None:  # larger cells than asked for
        if ended:
            meaning += f"; the search ended before cells of {_format_grain(asked, level)} were tried"
        else:
            meaning += f"; smaller cells can be asked for with {controls[0].format(asked)}"
    return Check("minimal", True, f"at {_format_grain(grain, level)}", meaning)


def _format_grain(grain: int, found: CheckedSet) -> str:
    unit = unit_name(found)
    return f"{grain} px" if unit == "pixel" else format_count(grain, unit)
