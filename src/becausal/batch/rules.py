"""The rules of `becausal check`: read from a TOML file, checked field by field."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from becausal.core.errors import OptionError
from becausal.core.files import open_regular
from becausal.core.schema import read_fields
from becausal.core.text import one_line, reason_of

MOST_BYTES = 1 << 20  # of a rules file
MAX_SHARE = 0.05  # default limit: share of the images that may break a rule


@dataclass(frozen=True, kw_only=True)
class OutsideRule:
    """Explanations outside their object: less than a share `below` of their pixels lies on it.

    The object is in the boxes that the run was given, in the boxes of another COCO file, or in a folder of masks.
    """

    below: float = 0.5
    boxes: str | None = None
    masks: str | None = None
    max_share: float = MAX_SHARE

    def __post_init__(self) -> None:
        _check_share(self, "max_share", "below")
        if self.boxes is not None and self.masks is not None:
            raise OptionError("boxes and masks were given: give one of them")


@dataclass(frozen=True, kw_only=True)
class ForbiddenRule:
    """Explanations with more than a share `at_most` of their pixels in a region, or where a mask is not black.

    region: left, top, width, height in pixels of the original image; a negative left or top counts from the other edge.
    """

    region: tuple[int, ...] | None = None
    mask: str | None = None
    at_most: float = 0.0
    max_share: float = MAX_SHARE

    def __post_init__(self) -> None:
        _check_share(self, "max_share", "at_most")
        if (self.region is None) == (self.mask is None):
            raise OptionError("give either region = [left, top, width, height] or mask = FILE.png")
        if self.region is not None and (len(self.region) != 4 or min(self.region[2:]) < 1):
            raise OptionError(f"region is {list(self.region)}, expected [left, top, width, height] in pixels")


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """Explanations with more than a share `at_most` of the view."""

    at_most: float
    max_share: float = MAX_SHARE

    def __post_init__(self) -> None:
        _check_share(self, "max_share", "at_most")


@dataclass(frozen=True, kw_only=True)
class NecessaryRule:
    """At least a share `min_share` of the explanations is necessary: without them the label is lost."""

    min_share: float

    def __post_init__(self) -> None:
        _check_share(self, "min_share")

    @property
    def max_share(self) -> float:
        """How many may not be necessary; rounded, since 1 - 0.9 is a little less than 0.1."""
        return round(1 - self.min_share, 12)


@dataclass(frozen=True, kw_only=True)
class LabelsRule:
    """Images with another label than in the baseline."""

    max_share: float = MAX_SHARE

    def __post_init__(self) -> None:
        _check_share(self, "max_share")


@dataclass(frozen=True, kw_only=True)
class OverlapRule:
    """Explanations that overlap those of the baseline by less than `below` (intersection over union)."""

    below: float = 0.3
    max_share: float = MAX_SHARE

    def __post_init__(self) -> None:
        _check_share(self, "max_share", "below")


@dataclass(frozen=True, kw_only=True)
class FailuresRule:
    """Images that were not explained: failed, not yet explained, or left out by --limit."""

    max_share: float = MAX_SHARE

    def __post_init__(self) -> None:
        _check_share(self, "max_share")


@dataclass(frozen=True, kw_only=True)
class CheckRules:
    """The rules that are judged, None for the others. Every image must have been explained, if `failures` says nothing else.

    confidence: of the intervals. folder: for relative paths.
    """

    outside: OutsideRule | None = None
    forbidden: ForbiddenRule | None = None
    size: SizeRule | None = None
    necessary: NecessaryRule | None = None
    labels: LabelsRule | None = None
    overlap: OverlapRule | None = None
    failures: FailuresRule = field(default_factory=lambda: FailuresRule(max_share=0.0))
    confidence: float = 0.95
    folder: Path = Path()

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise OptionError(f"confidence is {self.confidence:g}, expected a number from 0.5 to below 1, e.g. 0.95")

    @property
    def needs_baseline(self) -> bool:
        return self.labels is not None or self.overlap is not None


KINDS: dict[str, type] = {
    "outside": OutsideRule,
    "forbidden": ForbiddenRule,
    "size": SizeRule,
    "necessary": NecessaryRule,
    "labels": LabelsRule,
    "overlap": OverlapRule,
    "failures": FailuresRule,
}


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
    known = {*KINDS, "confidence"}
    if unknown := sorted(set(map(str, record)) - known):
        raise OptionError(f"unknown rule {one_line(unknown[0], 40)}; expected {', '.join(sorted(known))}")
    if not set(KINDS) & set(record):
        raise OptionError(f"there are no rules: expected tables of the names {', '.join(KINDS)}")
    own = {name: value for name, value in record.items() if name == "confidence"}
    made: dict[str, Any] = read_fields(_Confidence, own)
    for name, value in record.items():
        if name in KINDS:
            values = read_fields(KINDS[name], value, name)
            try:
                made[name] = KINDS[name](**values)
            except OptionError as error:
                raise OptionError(f"[{name}]: {error}") from None
    return CheckRules(**made, folder=folder)


@dataclass(frozen=True)
class _Confidence:
    """What stands outside of the tables, for `read_fields`."""

    confidence: float = 0.95


def format_limit(share: float) -> str:
    """A share as it was given, in per cent: 5 %, 0.1 %."""
    return f"{100 * share:g} %"


def _check_share(rule: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(rule, name) <= 1:
            raise OptionError(f"{name} is {getattr(rule, name):g}, expected a share from 0 to 1")
