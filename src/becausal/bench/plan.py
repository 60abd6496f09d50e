"""What a bench is made of: settings, the images it takes, what is asked of each, and what is measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.bench.datasets import Sample
from becausal.bench.findings import Findings, Row
from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import OptionError
from becausal.images.loading import InputImage, View


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that bears on the rows of a run.

    methods: names, or name:key=value:key=value with options. limit: how many images at most. grain: "default" is each
    method's own way: causal minimises, maps are only cut off where the label holds; a number minimises all alike.
    side: of the tiny images of the bench exact. known: the names of the images of a run that goes on, which need not be
    judged again; the only field that has no bearing on the rows.
    """

    bench: str
    methods: tuple[str, ...]
    data: Path | None = None
    limit: int | None = None
    seed: int = 0
    fill: str = "grey"
    grain: int | None | Literal["default"] = "default"
    max_calls: int | None = None
    side: int = 4
    known: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise OptionError(f"limit must be at least 1, not {self.limit}")
        if self.seed < 0:
            raise OptionError(f"a seed must be 0 or more, not {self.seed}")
        if self.side not in (2, 3, 4):
            raise OptionError(f"side must be 2, 3 or 4: all subsets of its square are asked, not {self.side}")


@dataclass(frozen=True)
class Pool:
    """The images of a run, and how many were left out for which reason."""

    samples: tuple[Sample, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """What is asked of every image: a method under one request. tags tell arms of one method apart."""

    method: str
    request: Request
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """An image as it is explained: the sample, its image, its view, and its truths over the view's grid."""

    sample: Sample
    picture: InputImage
    view: View
    truths: Mapping[str, Visible]


TAGS = ("fill", "seed", "by", "step")  # the keys by which arms of one method may differ
Measuring = Callable[[Subject, Explanation, Classifier], Row]
Performing = Callable[[Arm, Sequence[Sample], Classifier, Settings], Iterator[tuple[Sample, Row]]]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An experiment.

    question: what it measures, in a line. paper: what the paper reports of it. methods: the default, "all" or names.
    limit: images by default, None for all. judge: the column by which best and worst images are told, low is best
    where `low`. truth: the set drawn over images. measure: what to note of an explanation; perform: does an arm in its
    own way instead. images: which rows to draw, instead of the best and the worst.
    """

    name: str
    question: str
    paper: str
    methods: str
    limit: int | None
    collect: Callable[[Settings, Classifier], Pool]
    arms: Callable[[Settings], list[Arm]]
    summarise: Callable[[Sequence[Row]], Findings]
    complete: Callable[[list[Row]], list[Row]] = lambda rows: rows
    measure: Measuring | None = None
    judge: str = "size"
    low: bool = True
    truth: str | None = None
    perform: Performing | None = None
    pictures: Callable[[Sequence[Row]], list[dict[str, Any]]] | None = None


def plain_arms(settings: Settings) -> list[Arm]:
    """Every method once."""
    return [Arm(method, make_request(settings, method)) for method in settings.methods]


def make_request(
    settings: Settings,
    method: str,
    *,
    options: Mapping[str, Any] | None = None,
    fill: str | None = None,
    seed: int | None = None,
    max_calls: int | None = None,
) -> Request:
    """The request of a method written as name:key=value; what else is given goes before the settings."""
    name, own = split_method(method)
    return Request(
        method=name,
        options=own | dict(options or {}),
        fills=(settings.fill if fill is None else fill,),
        grain=settings.grain,
        seed=settings.seed if seed is None else seed,
        max_calls=settings.max_calls if max_calls is None else max_calls,
    )


def split_method(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a method as the command line writes it. Raises OptionError."""
    name, *pairs = text.split(":")
    options = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise OptionError(f"a method with options is written name:key=value, not {text!r}")
        options[key.strip().replace("-", "_")] = value.strip()
    return name, options


def common_row(explanation: Explanation) -> Row:
    """What every bench notes of an explanation."""
    return {
        "label": explanation.label_id,
        "size": _rounded(explanation.size),
        "pixels": explanation.pixels,
        "pieces": explanation.pieces,
        "calls": explanation.calls,
        "original": _rounded(explanation.confidence),
        "confidence": _rounded(explanation.checks.confidence),
        "sufficient": int(explanation.checks.sufficient),
        "minimal": explanation.checks.minimal_grain,
        "stopped": explanation.stopped_by,
    }


def rounded(row: Row) -> Row:
    """Floats with six digits, NaN as None."""
    return {key: _rounded(value) if isinstance(value, float) else value for key, value in row.items()}


def _rounded(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
