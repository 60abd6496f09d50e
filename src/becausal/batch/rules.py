"""The rules of `becausal check`: what they see of an image, what each one judges, and how a TOML file is read.

A rule is one class here and one row of `RULES`. The file reader, the output, JSON, JUnit and the page follow.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from becausal.batch.index import IndexRow
from becausal.batch.inputs import share_in
from becausal.batch.places import RUN_BOXES, Place, box_file, fixed_region, mask_folder, mask_over, read_mask
from becausal.batch.reading import BatchRun
from becausal.batch.summaries import overlap_between
from becausal.core.contracts import Visible
from becausal.core.errors import ImageError, OptionError
from becausal.core.files import open_regular
from becausal.core.frames import Frame
from becausal.core.schema import read_fields, read_value
from becausal.core.text import one_line, reason_of
from becausal.render.numbers import format_limit, format_share

MOST_BYTES = 1 << 20  # of a rules file
FILES = {"boxes", "masks", "mask"}  # fields of rules: files or folders, relative to that of the rules file
MAX_SHARE = 0.05  # default limit: share of the images that may break a rule
EMPTY = "an empty explanation"
_UNKNOWN = {"label_without_box": "no box of the label", "size_mismatch": "boxes for an image of another size"}


@dataclass(frozen=True)
class Evidence:
    """One image of the run, explained or not. Its pixels are read when a rule needs them, at most once."""

    run: BatchRun
    row: IndexRow
    baseline: BatchRun | None = None
    earlier: IndexRow | None = None  # the row of the same image in the baseline, None if there is none

    @property
    def is_explained(self) -> bool:
        return bool(self.row["state"] == "done")

    @cached_property
    def pixels(self) -> tuple[Visible, Frame]:
        """The explanation, (*grid,) bool, and the frame of its view. Raises OutputError if they cannot be read."""
        return self.run.load_visible(self.row["id"])

    @property
    def partner(self) -> IndexRow | str:
        """The row of an explained image in the baseline, where it was explained too; else why there is none."""
        if self.earlier is None:
            return "not in the baseline"
        return self.earlier if self.earlier["state"] == "done" else "not explained in the baseline"

    def share_in(self, place: Place, lacks: str) -> float | str:
        """The share of the explanation in a part of the image; why there is none, `lacks` if there is no such part."""
        visible, frame = self.pixels
        area = place.outline(self.run, self.row, frame)
        share = None if area is None else share_in(visible, area)
        return (lacks if area is None else EMPTY) if share is None else share


@dataclass(frozen=True)
class Judgement:
    """What a rule says of one image: the number it measured, in words too, and whether that breaks the rule.

    badness: sorts the images that break the rule: the higher, the worse.
    """

    value: float
    is_breach: bool
    badness: float
    detail: str


#: What a rule says of an image: a judgement; or why it cannot be judged, in a few words; None where it is not explained.
Found = Judgement | str | None


class Rule(Protocol):
    """A rule: a frozen dataclass that `read_fields` can read; its fields are its options, and floats among them shares."""

    needs_baseline: bool  # whether two runs are compared

    @property
    def max_share(self) -> float:
        """The share of images that may break it."""

    @property
    def breach(self) -> str:
        """What breaks it, as a phrase."""

    @property
    def place(self) -> Place | None:
        """The part of an image it is about, outlined on the page. Raises InputError for files that cannot be read."""

    def judge(self, image: Evidence) -> Found:
        """What it finds in an image."""

    def missing(self, run: Path) -> str:
        """Why no image of a run could be judged."""


def _at_least(limit: float, value: float, detail: str) -> Judgement:
    return Judgement(value, value < limit, -value, detail)


def _at_most(limit: float, value: float, detail: str) -> Judgement:
    return Judgement(value, value > limit, value, detail)


def _nothing_explained(rule: Rule, run: Path) -> str:
    return f"no image of {run} was explained"


def _nothing_matched(rule: Rule, run: Path) -> str:
    return f"no image was explained both in {run} and in the baseline; images are matched by path, or by content"


@dataclass(frozen=True, kw_only=True)
class OutsideRule:
    """Explanations outside their object: less than a share `below` of their pixels lies on it.

    The object is in the boxes that the run was given, in the boxes of another COCO file, or in a folder of masks.
    """

    below: float = 0.5
    boxes: str | None = None
    masks: str | None = None
    max_share: float = MAX_SHARE
    needs_baseline = False

    def __post_init__(self) -> None:
        if self.boxes is not None and self.masks is not None:
            raise OptionError("boxes and masks were given: give one of them")

    @property
    def breach(self) -> str:
        where = "boxes" if self.masks is None else "mask"
        return f"less than {format_limit(self.below)} of the explanation is inside the object's {where}"

    def judge(self, image: Evidence) -> Found:
        if not image.is_explained:
            return None
        if self.boxes is not None or self.masks is not None:
            share = image.share_in(self.place, "no box of the label" if self.masks is None else "no mask")
        else:  # it is in the index, where no pixels have to be read for it
            share = _UNKNOWN.get(image.row["note_code"], "no boxes") if image.row["inside"] is None else image.row["inside"]
        return share if isinstance(share, str) else _at_least(self.below, share, f"{format_share(share)} inside")

    def missing(self, run: Path) -> str:
        if self.boxes is not None:
            return f"{self.boxes} has no boxes of the labels of the images of {run}"
        if self.masks is not None:
            return f"{self.masks} has no masks of the images of {run}: expected NAME.png for NAME.jpg"
        return f"no image of {run} has boxes of its label: explain a COCO file, or set boxes or masks"

    @cached_property
    def place(self) -> Place:
        if self.boxes is not None:
            return box_file(Path(self.boxes))
        return RUN_BOXES if self.masks is None else mask_folder(Path(self.masks))


@dataclass(frozen=True, kw_only=True)
class ForbiddenRule:
    """Explanations with more than a share `at_most` of their pixels in a region, or where a mask is not black.

    region: left, top, width, height in pixels of the original image; a negative left or top counts from the other edge.
    """

    region: tuple[int, ...] | None = None
    mask: str | None = None
    at_most: float = 0.0
    max_share: float = MAX_SHARE
    needs_baseline = False
    missing = _nothing_explained

    def __post_init__(self) -> None:
        if (self.region is None) == (self.mask is None):
            raise OptionError("give either region = [left, top, width, height] or mask = FILE.png")
        if self.region is not None and (len(self.region) != 4 or min(self.region[2:]) < 1):
            raise OptionError(f"region is {list(self.region)}, expected [left, top, width, height] in pixels")

    @property
    def breach(self) -> str:
        amount = f"more than {format_limit(self.at_most)}" if self.at_most else "a part"
        return f"{amount} of the explanation is in the forbidden region"

    def judge(self, image: Evidence) -> Found:
        if not image.is_explained:
            return None
        share = image.share_in(self.place, "the region does not fit")
        return share if isinstance(share, str) else _at_most(self.at_most, share, f"{format_share(share)} in the region")

    @cached_property
    def place(self) -> Place:
        if self.region is not None:
            return fixed_region(*self.region)
        path = Path(self.mask or "")
        mask = read_mask(path)
        if not mask.any():
            raise ImageError(f"the mask {path} is black everywhere: the region must not be black")
        return Place("region", lambda run, row, frame: mask_over(mask, frame, path))


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """Explanations with more than a share `at_most` of the view."""

    at_most: float
    max_share: float = MAX_SHARE
    needs_baseline, missing, place = False, _nothing_explained, None

    @property
    def breach(self) -> str:
        return f"the explanation is larger than {format_limit(self.at_most)} of the view"

    def judge(self, image: Evidence) -> Found:
        size = image.row["size"] if image.is_explained else None
        return None if size is None else _at_most(self.at_most, size, f"{format_share(size)} of the view")


@dataclass(frozen=True, kw_only=True)
class NecessaryRule:
    """At least a share `min_share` of the explanations is necessary: without them the label is lost."""

    min_share: float
    needs_baseline, place = False, None
    breach = "the label stays when the explanation is masked"

    @property
    def max_share(self) -> float:
        """How many may not be necessary; rounded, since 1 - 0.9 is a little less than 0.1."""
        return round(1 - self.min_share, 12)

    def judge(self, image: Evidence) -> Found:
        is_necessary = image.row["necessary"]
        if not image.is_explained or is_necessary is None:
            return "not checked for necessity" if image.is_explained else None
        return _at_least(1.0, float(is_necessary), "not necessary")

    def missing(self, run: Path) -> str:
        return f"no explanation of {run} was checked for necessity"


@dataclass(frozen=True, kw_only=True)
class BackgroundsRule:
    """Sets that depend on the fill: they keep their label on less than `at_least` of the random backgrounds.

    set: which of the two sets of the default answer; by default the explanation, whichever it is.
    """

    at_least: float = 0.5
    set: Literal["core", "enough"] | None = None
    max_share: float = MAX_SHARE
    needs_baseline, place = False, None

    @property
    def breach(self) -> str:
        limit = format_limit(self.at_least)
        return f"{self.set or 'the explanation'} keeps its label on less than {limit} of random backgrounds"

    def judge(self, image: Evidence) -> Found:
        if not image.is_explained:
            return None
        is_whole = self.set in (None, image.row["level"])  # or the set inside the explanation
        share = image.row["backgrounds" if is_whole else "core_backgrounds"] if is_whole or self.set == "core" else None
        if share is None:
            has_set = is_whole or (self.set == "core" and image.row["core_size"] is not None)
            return "not evaluated on random backgrounds" if has_set else f"no set {self.set} was found"
        return _at_least(self.at_least, share, f"{format_share(share)} of random backgrounds")

    def missing(self, run: Path) -> str:
        what = "explanation" if self.set is None else f"set {self.set}"
        return f"no {what} of {run} was evaluated on random backgrounds"


@dataclass(frozen=True, kw_only=True)
class LabelsRule:
    """Images with another label than in the baseline."""

    max_share: float = MAX_SHARE
    needs_baseline, missing, place = True, _nothing_matched, None
    breach = "the label is not the one of the baseline"

    def judge(self, image: Evidence) -> Found:
        if not image.is_explained:
            return None
        if isinstance(earlier := image.partner, str):
            return earlier
        before, now = earlier["label"], image.row["label"]
        return _at_least(1.0, float(before == now), f"{before} → {now}")


@dataclass(frozen=True, kw_only=True)
class OverlapRule:
    """Explanations that overlap those of the baseline by less than `below` (intersection over union)."""

    below: float = 0.3
    max_share: float = MAX_SHARE
    needs_baseline, missing, place = True, _nothing_matched, None

    @property
    def breach(self) -> str:
        return f"the explanation overlaps that of the baseline by less than {format_limit(self.below)}"

    def judge(self, image: Evidence) -> Found:
        if not image.is_explained or image.baseline is None:
            return None
        if isinstance(earlier := image.partner, str):
            return earlier
        overlap = overlap_between(image.pixels, image.baseline.load_visible(earlier["id"]))
        if overlap is None:
            return "an image of another size than in the baseline, or empty explanations"
        return _at_least(self.below, overlap, f"overlap {format_share(overlap)}")


@dataclass(frozen=True, kw_only=True)
class FailuresRule:
    """Images that were not explained: failed, not yet explained, or left out by --limit."""

    max_share: float = MAX_SHARE
    needs_baseline, missing, place = False, _nothing_explained, None
    breach = "the image was not explained"

    def judge(self, image: Evidence) -> Judgement:
        why, limit = image.row["error"], image.run.limit
        if why is None:
            is_left_out = limit is not None and image.row["id"] >= limit * image.run.per_image
            why = f"left out by --limit {limit}" if is_left_out else "not explained yet"
        return _at_most(0.0, float(not image.is_explained), str(why))


#: The rules by the names of their tables, in the order of all output.
RULES: dict[str, type[Rule]] = {
    "outside": OutsideRule,
    "forbidden": ForbiddenRule,
    "size": SizeRule,
    "necessary": NecessaryRule,
    "backgrounds": BackgroundsRule,
    "labels": LabelsRule,
    "overlap": OverlapRule,
    "failures": FailuresRule,
}


@dataclass(frozen=True, kw_only=True)
class CheckRules:
    """The rules that are judged, by name, in the order of `RULES`."""

    by_name: Mapping[str, Rule]
    confidence: float = 0.95  # of the intervals


def with_failures(given: Mapping[str, Rule]) -> dict[str, Rule]:
    """Rules in the order of `RULES`. Every image must have been explained, if they say nothing of failures."""
    rules = {"failures": FailuresRule(max_share=0.0), **given}
    return {name: rules[name] for name in RULES if name in rules}


def read_rules(source: str | Path | Mapping[str, Any]) -> CheckRules:
    """The rules in a TOML file, or in a mapping of the same structure.

    Raises OptionError, which names the file and the field, where it cannot be read, or a value makes no sense.
    """
    if isinstance(source, Mapping):
        return _make_rules(source, Path())
    path = Path(source)
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise OptionError(f"it has more than {MOST_BYTES // 2**20} MB")
        return _make_rules(tomllib.loads(content.decode("utf-8")), path.parent)
    except FileNotFoundError:
        raise OptionError(f"there is no file {path}") from None
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8 and not TOML are ValueErrors
        raise OptionError(f"the rules in {path} cannot be read: {reason_of(error)}") from None
    except OptionError as error:
        raise OptionError(f"the rules in {path} cannot be used: {error}") from None


def _make_rules(record: Mapping[str, Any], folder: Path) -> CheckRules:
    known = {*RULES, "confidence"}
    if unknown := sorted(set(map(str, record)) - known):
        raise OptionError(f"unknown rule {one_line(unknown[0], 40)}; expected {', '.join(sorted(known))}")
    if not set(RULES) & set(record):
        raise OptionError(f"there are no rules: expected tables of the names {', '.join(RULES)}")
    confidence = read_value(record.get("confidence", 0.95), float, "confidence")
    if not 0.5 <= confidence < 1:
        raise OptionError(f"confidence is {confidence:g}, expected a number from 0.5 to below 1, e.g. 0.95")
    given = {}
    for name in [name for name in record if name in RULES]:
        fields = read_fields(RULES[name], record[name], name)
        for field, share in fields.items():
            if isinstance(share, float | int) and not 0 <= share <= 1:  # all numbers of rules are shares
                raise OptionError(f"[{name}]: {field} is {share:g}, expected a share from 0 to 1")
        for field in FILES & fields.keys():
            fields[field] = None if fields[field] is None else str(folder / fields[field])
        try:
            given[name] = RULES[name](**fields)
        except OptionError as error:
            raise OptionError(f"[{name}]: {error}") from None
    return CheckRules(by_name=with_failures(given), confidence=confidence)
