"""What a bench is given and works on: settings, selected images, arms, requests, rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.core.contracts import Visible
from becausal.core.errors import OptionError
from becausal.core.request import parse_options
from becausal.images.loading import InputImage, View
from becausal.lab.bench.datasets import Sample
from becausal.lab.bench.rows import Row, round_number


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Everything besides the model that determines the rows of a run.

    Attributes:
        bench: Name of the bench.
        methods: Names of methods, with options as name:key=value:key=value.
        data: Folder of images, None without one.
        limit: Maximum number of images, None for all.
        request: What is asked of each explanation. Its method and options are replaced by each of `methods`. Without a
            confidence, the smallest set that keeps the label is looked for. With the default grain causal minimises its
            sets, and maps are cut off where the label is kept.
        side: Side of the tiny images of the bench `exact`.
        known: Names of the images of a run that is resumed, which are not filtered again. Does not affect the rows.
    """

    bench: str
    methods: tuple[str, ...]
    data: Path | None = None
    limit: int | None = None
    request: Request = field(default_factory=Request)
    side: int = 4
    known: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"limit must be at least 1, not {self.limit}")
        if self.side not in (2, 3, 4):
            raise OptionError(f"side must be 2, 3 or 4, since every subset of its pixels is evaluated, not {self.side}")


@dataclass(frozen=True)
class ImageSelection:
    """The images of a run, and the number of excluded images by reason."""

    samples: tuple[Sample, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """A method with one request, applied to every image; `tags` distinguish arms of the same method."""

    method: str
    request: Request
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A sample that has been read: its image, its view, and its ground-truth masks on the grid of the view."""

    sample: Sample
    image: InputImage
    view: View
    masks: Mapping[str, Visible]


TAGS = ("fill", "seed", "by", "step")  # the keys in which arms of the same method may differ


def plain_arms(settings: BenchSettings) -> list[Arm]:
    """Every method once."""
    return [Arm(method, make_request(settings, method)) for method in settings.methods]


def make_request(
    settings: BenchSettings, method: str, *, options: Mapping[str, Any] | None = None, **changes: Any
) -> Request:
    """The request for a method written as name:key=value; `options` and `changes` take precedence over the settings.

    Without a confidence, a bench measures the smallest sets that keep the label, as the paper does, not levels.
    """
    name, own = split_method(method)
    smallest = settings.request.confidence is None
    return replace(settings.request, method=name, options=own | dict(options or {}), smallest=smallest, **changes)


def split_method(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a method written as name:key=value:key=value.

    Raises:
        OptionError: An option is not written as key=value.
    """
    name, *pairs = text.split(":")
    try:
        return name, parse_options(pairs)
    except OptionError:
        raise OptionError(f"a method with options is written name:key=value, not {text!r}") from None


def common_row(explanation: Explanation) -> Row:
    """What every bench records about an explanation."""
    return {
        "label": explanation.label_id,
        "size": round_number(explanation.size),
        "pixels": explanation.pixels,
        "pieces": explanation.pieces,
        "calls": explanation.calls,
        "original": round_number(explanation.confidence),
        "confidence": round_number(explanation.checks.confidence),
        "sufficient": int(explanation.checks.sufficient),
        "minimal": explanation.checks.minimal_grain,
        "stopped": explanation.stopped_by,
    }
