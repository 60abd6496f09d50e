"""The parts of a bench: settings, selected images, requests, measurements."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import OptionError
from becausal.core.request import parse_options
from becausal.images.loading import InputImage, View
from becausal.lab.bench.datasets import Sample
from becausal.lab.bench.findings import Findings, Row


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
MeasureExplanation = Callable[[Subject, Explanation, Classifier], Row]
RunArm = Callable[[Arm, Sequence[Sample], Classifier, BenchSettings], Iterator[tuple[Sample, Row]]]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An experiment.

    Attributes:
        name: Its name.
        question: What it measures, as a question.
        paper: What the paper reports about it.
        methods: Default methods: "all", or names separated by commas.
        limit: Default maximum number of images, None for all.
        select: Chooses the images.
        arms: What is computed for every image.
        summarise: Makes tables and plots from the rows.
        postprocess: Adds values that depend on several rows.
        measure: What to record about an explanation.
        run_arm: Computes the rows of an arm itself, instead of explaining the images with the model.
        rank_by: The value that ranks images from best to worst.
        lower_is_better: Whether low values of it are better.
        outline: The ground-truth mask that is outlined in the drawn images.
        choose_steps: Chooses rows to draw, instead of the best and the worst images.
        sets: Options of a request that the bench sets itself; a request that sets them is refused.
        takes: The only options of a request that have a meaning here; None for all.
    """

    name: str
    question: str
    paper: str
    methods: str
    limit: int | None
    select: Callable[[BenchSettings, Classifier], ImageSelection]
    arms: Callable[[BenchSettings], list[Arm]]
    summarise: Callable[[Sequence[Row]], Findings]
    postprocess: Callable[[list[Row]], list[Row]] = lambda rows: rows
    measure: MeasureExplanation | None = None
    run_arm: RunArm | None = None
    rank_by: str = "size"
    lower_is_better: bool = True
    outline: str | None = None
    choose_steps: Callable[[Sequence[Row]], list[dict[str, Any]]] | None = None
    sets: tuple[str, ...] = ()
    takes: tuple[str, ...] | None = None

    def check_request(self, request: Request) -> None:
        """Refuse a request with options that would have no effect.

        Raises:
            OptionError: It has such an option.
        """
        for changed in (f.name for f in fields(request) if getattr(request, f.name) != f.default):
            if changed in ("method", "options"):
                raise OptionError(
                    f"a bench runs several methods: give methods='name:key=value', not {changed} in the request"
                )
            if changed in self.sets:
                raise OptionError(f"the bench {self.name} sets {changed} itself: leave it out")
            if self.takes is not None and changed not in self.takes:
                raise OptionError(f"the bench {self.name} has no use for {changed}: leave it out")


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
    """The row with floats rounded to six digits, and None for NaN."""
    return {key: _rounded(value) if isinstance(value, float) else value for key, value in row.items()}


def _rounded(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
