"""The rules of `becausal check`: what each one judges, and how a TOML file is read.

A rule is one class here and one row of `RULES`. The file reader, the output, JSON, JUnit and the page follow.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from becausal.batch.evidence import BoxFile, Evidence, FixedRegion, MaskFolder, MaskImage, Place, Places, RunBoxes
from becausal.core.errors import OptionError
from becausal.core.files import open_regular
from becausal.core.schema import read_fields, read_value
from becausal.core.text import one_line, reason_of
from becausal.render.wording import format_share

MOST_BYTES = 1 << 20  # of a rules file
MAX_SHARE = 0.05  # default limit: share of the images that may break a rule


@dataclass(frozen=True)
class Judgement:
    """What a rule says of one image: the number it measured, in words too, and whether that breaks the rule.

    badness: sorts the images that break the rule: the higher, the worse.
    """

    value: float
    is_breach: bool
    badness: float
    detail: str


class Rule(Protocol):
    """A rule, with its options as fields: a frozen dataclass that `read_fields` can read. Fields that are floats are shares.

    max_share: of the images that may break it. needs_baseline: whether two runs are compared. breach: what breaks it, as a
    phrase.
    """

    needs_baseline: bool

    @property
    def max_share(self) -> float: ...

    @property
    def breach(self) -> str: ...

    def judge(self, image: Evidence) -> Judgement | None:
        """What it finds in an image; None where it cannot be judged."""
        ...

    def missing(self, run: Path, folder: Path) -> str:
        """Why no image of a run could be judged; folder: see `CheckRules`."""
        ...

    def place(self, places: Places) -> Place | None:
        """The part of an image it is about, outlined on the page. Raises InputError for files that cannot be read."""
        ...


def _at_least(limit: float, value: float, detail: str) -> Judgement:
    return Judgement(value, value < limit, -value, detail)


def _at_most(limit: float, value: float, detail: str) -> Judgement:
    return Judgement(value, value > limit, value, detail)


def _check_shares(rule: Any) -> None:
    """Raise OptionError for a number that is no share; all numbers of rules are shares, `max_share` comes first."""
    for name, value in reversed(vars(rule).items()):
        if isinstance(value, float | int) and not 0 <= value <= 1:
            raise OptionError(f"{name} is {value:g}, expected a share from 0 to 1")


def _nothing_explained(rule: Rule, run: Path, folder: Path) -> str:
    return f"no image of {run} was explained"


def _nothing_matched(rule: Rule, run: Path, folder: Path) -> str:
    return f"no image was explained both in {run} and in the baseline; images are matched by path, or by content"


def _nowhere(rule: Rule, places: Places) -> None:
    return None


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
        _check_shares(self)
        if self.boxes is not None and self.masks is not None:
            raise OptionError("boxes and masks were given: give one of them")

    @property
    def breach(self) -> str:
        where = "boxes" if self.masks is None else "mask"
        return f"less than {format_limit(self.below)} of the explanation is inside the object's {where}"

    def judge(self, image: Evidence) -> Judgement | None:
        share = self.place(image.places).share(image) if image.is_explained else None
        return None if share is None else _at_least(self.below, share, f"{format_share(share)} inside")

    def missing(self, run: Path, folder: Path) -> str:
        if self.boxes is not None:
            return f"{folder / self.boxes} has no boxes of the labels of the images of {run}"
        if self.masks is not None:
            return f"{folder / self.masks} has no masks of the images of {run}: expected NAME.png for NAME.jpg"
        return f"no image of {run} has boxes of its label: explain a COCO file, or set boxes or masks"

    def place(self, places: Places) -> Place:
        if self.boxes is not None:
            return places.open(BoxFile, self.boxes)
        return RunBoxes() if self.masks is None else places.open(MaskFolder, self.masks)


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
        _check_shares(self)
        if (self.region is None) == (self.mask is None):
            raise OptionError("give either region = [left, top, width, height] or mask = FILE.png")
        if self.region is not None and (len(self.region) != 4 or min(self.region[2:]) < 1):
            raise OptionError(f"region is {list(self.region)}, expected [left, top, width, height] in pixels")

    @property
    def breach(self) -> str:
        amount = f"more than {format_limit(self.at_most)}" if self.at_most else "a part"
        return f"{amount} of the explanation is in the forbidden region"

    def judge(self, image: Evidence) -> Judgement | None:
        share = self.place(image.places).share(image) if image.is_explained else None
        return None if share is None else _at_most(self.at_most, share, f"{format_share(share)} in the region")

    def place(self, places: Places) -> Place:
        return FixedRegion(*self.region) if self.region is not None else places.open(MaskImage, self.mask or "")


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """Explanations with more than a share `at_most` of the view."""

    at_most: float
    max_share: float = MAX_SHARE
    needs_baseline, missing, place = False, _nothing_explained, _nowhere

    def __post_init__(self) -> None:
        _check_shares(self)

    @property
    def breach(self) -> str:
        return f"the explanation is larger than {format_limit(self.at_most)} of the view"

    def judge(self, image: Evidence) -> Judgement | None:
        size = image.row["size"] if image.is_explained else None
        return None if size is None else _at_most(self.at_most, size, f"{format_share(size)} of the view")


@dataclass(frozen=True, kw_only=True)
class NecessaryRule:
    """At least a share `min_share` of the explanations is necessary: without them the label is lost."""

    min_share: float
    needs_baseline, place = False, _nowhere
    breach = "the label stays when the explanation is masked"

    def __post_init__(self) -> None:
        _check_shares(self)

    @property
    def max_share(self) -> float:
        """How many may not be necessary; rounded, since 1 - 0.9 is a little less than 0.1."""
        return round(1 - self.min_share, 12)

    def judge(self, image: Evidence) -> Judgement | None:
        is_necessary = image.row["necessary"]
        return None if is_necessary is None else _at_least(1.0, float(is_necessary), "not necessary")

    def missing(self, run: Path, folder: Path) -> str:
        return f"no explanation of {run} was checked for necessity"


@dataclass(frozen=True, kw_only=True)
class LabelsRule:
    """Images with another label than in the baseline."""

    max_share: float = MAX_SHARE
    needs_baseline, missing, place = True, _nothing_matched, _nowhere
    breach = "the label is not the one of the baseline"

    def __post_init__(self) -> None:
        _check_shares(self)

    def judge(self, image: Evidence) -> Judgement | None:
        if image.earlier is None or not image.is_explained_twice:
            return None
        before, now = image.earlier["label"], image.row["label"]
        return _at_least(1.0, float(before == now), f"{before} → {now}")


@dataclass(frozen=True, kw_only=True)
class OverlapRule:
    """Explanations that overlap those of the baseline by less than `below` (intersection over union)."""

    below: float = 0.3
    max_share: float = MAX_SHARE
    needs_baseline, missing, place = True, _nothing_matched, _nowhere

    def __post_init__(self) -> None:
        _check_shares(self)

    @property
    def breach(self) -> str:
        return f"the explanation overlaps that of the baseline by less than {format_limit(self.below)}"

    def judge(self, image: Evidence) -> Judgement | None:
        overlap = image.overlap if image.is_explained_twice else None
        return None if overlap is None else _at_least(self.below, overlap, f"overlap {format_share(overlap)}")


@dataclass(frozen=True, kw_only=True)
class FailuresRule:
    """Images that were not explained: failed, not yet explained, or left out by --limit."""

    max_share: float = MAX_SHARE
    needs_baseline, missing, place = False, _nothing_explained, _nowhere
    breach = "the image was not explained"

    def __post_init__(self) -> None:
        _check_shares(self)

    def judge(self, image: Evidence) -> Judgement:
        return _at_most(0.0, float(not image.is_explained), image.why_not_explained)


#: The rules by the names of their tables, in the order of all output.
RULES: dict[str, type[Rule]] = {
    "outside": OutsideRule,
    "forbidden": ForbiddenRule,
    "size": SizeRule,
    "necessary": NecessaryRule,
    "labels": LabelsRule,
    "overlap": OverlapRule,
    "failures": FailuresRule,
}


@dataclass(frozen=True, kw_only=True)
class CheckRules:
    """The rules that are judged, by name. Every image must have been explained, if `failures` says nothing else.

    `rules.outside` is the rule of that name, None if it is not judged. confidence: of the intervals. folder: for relative
    paths.
    """

    given: Mapping[str, Rule]
    confidence: float = 0.95
    folder: Path = Path()

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise OptionError(f"confidence is {self.confidence:g}, expected a number from 0.5 to below 1, e.g. 0.95")

    def __getattr__(self, name: str) -> Any:
        if name not in RULES:
            raise AttributeError(name)
        return self.by_name.get(name)

    @property
    def by_name(self) -> dict[str, Rule]:
        """All rules that are judged, in the order of `RULES`."""
        rules = {"failures": FailuresRule(max_share=0.0), **self.given}
        return {name: rules[name] for name in RULES if name in rules}


def read_rules(source: str | Path | Mapping[str, Any]) -> CheckRules:
    """The rules in a TOML file, or in a mapping of the same structure.

    Raises:
        OptionError: The file cannot be read, or a field is unknown or has a value that makes no sense; the message names
            the file and the field.
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
    made = {}
    for name, value in record.items():
        if name in RULES:
            values = read_fields(RULES[name], value, name)
            try:
                made[name] = RULES[name](**values)
            except OptionError as error:
                raise OptionError(f"[{name}]: {error}") from None
    return CheckRules(given=made, confidence=confidence, folder=folder)


def format_limit(share: float) -> str:
    """A share as it was given, in per cent: 5 %, 0.1 %."""
    return f"{100 * share:g} %"
