"""What a bench is, what it finds, and what a finished run is."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier, Visible
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap, recall
from becausal.core.options import list_options
from becausal.core.request import SHARE, Request, parse_options
from becausal.core.version import versions
from becausal.images.loading import InputImage, View
from becausal.lab.datasets import Sample
from becausal.lab.rows import Row, count_failures, round_number, successful
from becausal.lab.tables import Measure, Plot, Table
from becausal.models.loading import Loading

#: The layout of summary.json.
SCHEMA = "becausal/bench/1"


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Everything besides the model that determines the rows of a run."""

    bench: str
    methods: tuple[str, ...]  # names, with options as name:key=value:key=value
    data: Path | None = None  # folder of images
    limit: int | None = None  # on the number of images
    request: Request = field(default_factory=Request)  # what is asked of each explanation, with each of `methods`
    side: int = 4  # of the tiny images of the bench `exact`
    known: frozenset[str] | None = None  # the images of a run that is resumed, which are not filtered again

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


def make_request(
    settings: BenchSettings,
    method: str,
    *,
    options: Mapping[str, Any] | None = None,
    has_two_sets: bool = False,
    **changes: Any,
) -> Request:
    """The request for a method written as name:key=value; `options` and `changes` take precedence over the settings.

    Where the settings do not ask for other sets, it is the question of the paper, the smallest set that keeps the label in
    one fill. has_two_sets: it is the default answer instead, `enough` and `core`.
    """
    name, own = split_method(method)
    asked = settings.request
    if asked.confidence is None and asked.holds is None and asked.share > 0:
        changes = ({"holds": SHARE} if has_two_sets else {"smallest": True}) | changes
    return replace(asked, method=name, options=own | dict(options or {}), **changes)


def split_method(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a method written as name:key=value:key=value.

    Raises OptionError where an option is not written as key=value.
    """
    name, *pairs = text.split(":")
    try:
        return name, parse_options(pairs)
    except OptionError:
        raise OptionError(f"a method with options is written name:key=value, not {text!r}") from None


MeasureExplanation = Callable[[Subject, Explanation, Classifier], Row]
RunArm = Callable[[Arm, Sequence[Sample], Classifier, BenchSettings], Iterator[tuple[Sample, Row]]]


@dataclass(frozen=True)
class Findings:
    """The tables and plots of a run."""

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()

    def record(self) -> dict[str, Any]:
        """Tables and plots in a form that JSON can hold; an estimate is written as mean, low, high and n."""
        found: dict[str, Any] = _json_numbers({key: [asdict(each) for each in getattr(self, key)] for key in vars(self)})
        return found


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An experiment: which images, what is measured, which tables."""

    name: str
    question: str  # what it measures, as a question
    paper: str  # what the paper reports about it
    # Makes tables from the rows without an error; None where there is nothing to show.
    tables: Callable[[Sequence[Row]], Iterable[Table | None]]
    plots: Callable[[Sequence[Row]], Iterable[Plot]]  # makes plots from the same rows
    methods: str = "all"  # by default: "all", or names separated by commas
    limit: int | None = 100  # by default, on the number of images; None for all
    # Chooses the images; by default `select_images`.
    select: Callable[[BenchSettings, Classifier], ImageSelection] | None = None
    # What is computed for every image; by default every method once.
    arms: Callable[[BenchSettings], list[Arm]] = lambda settings: [
        Arm(m, make_request(settings, m)) for m in settings.methods
    ]
    postprocess: Callable[[list[Row]], list[Row]] = lambda rows: rows  # adds values that depend on several rows
    measure: MeasureExplanation | None = None  # what to record about an explanation
    # Makes `measure`, where that needs more than the image; refuses settings that it cannot work with.
    make_measure: Callable[[BenchSettings, Classifier], MeasureExplanation] | None = None
    run_arm: RunArm | None = None  # computes the rows of an arm itself, instead of explaining the images with the model
    rank_by: str = "size"  # the value that ranks images from best to worst
    lower_is_better: bool = True  # whether low values of it are better
    outline: str | None = None  # the ground-truth mask that is outlined in the drawn images
    # Chooses rows to draw, instead of the best and the worst images.
    choose_steps: Callable[[Sequence[Row]], list[dict[str, Any]]] | None = None
    sets: tuple[str, ...] = ()  # options of a request that the bench sets itself; a request that sets them is refused
    takes: tuple[str, ...] | None = None  # the only options of a request that have a meaning here; None for all

    def summarise(self, rows: Sequence[Row]) -> Findings:
        """The tables and plots of all rows."""
        found = successful(rows)
        return Findings(tuple(table for table in self.tables(found) if table is not None), tuple(self.plots(found)))


@dataclass(frozen=True)
class BenchRun:
    """A finished run."""

    folder: Path
    bench: Bench
    settings: BenchSettings
    record: dict[str, Any]  # settings and model as they were saved
    rows: list[Row]
    selection: ImageSelection  # the images, and the number of excluded images by reason
    findings: Findings
    methods_left_out: dict[str, str]  # methods that did not run, with the reasons

    def missing(self) -> list[tuple[str, str]]:
        """Methods without some or all results, with the reasons."""
        found = [(method, f"did not run: {reason}") for method, reason in self.methods_left_out.items()]
        for method, counts in count_failures(self.rows).items():
            found += [(method, f"{count:,} images without an explanation: {reason}") for reason, count in counts.items()]
        return found

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return {
            "schema": SCHEMA,
            "bench": self.bench.name,
            "question": self.bench.question,
            "paper": self.bench.paper,
            "settings": self.record,
            "command": format_command(self.record),
            "pictures": len(self.selection.samples),
            "left_out": dict(self.selection.left_out),
            "methods_left_out": self.methods_left_out,
            "failures": count_failures(self.rows),
            **self.findings.record(),
            "versions": versions(),
        }


def common_row(explanation: Explanation) -> Row:
    """What every bench records about an explanation."""
    transfer = explanation.checks.transfer
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
        "backgrounds": None if transfer is None else round_number(transfer.share),
        "stopped": explanation.stopped_by,
    }


OVERLAP = Measure("overlap", "on occluder", "share", "low", "share of the explanation on the occluder")
COVERED = Measure("covered", "of occluder", "share", "low", "share of the occluder that is in the explanation")
CLEAR = Measure("clear", "clear", "share", "high", "explanations without any pixel of the occluder", is_flag=True)
POINTING = Measure("pointing", "pointing", "share", "high", "images with the maximum of the map on the object")


def measure_occluder(subject: Subject, explanation: Explanation) -> Row:
    """The overlap of the explanation and the occluder; empty where there is none, or it is not known."""
    occluder, visible = subject.masks.get("occluder"), explanation.visible
    if occluder is None or not occluder.any():
        return {}
    clear = int(not (visible & occluder).any())
    return {"overlap": overlap(visible, occluder), "covered": recall(visible, occluder), "clear": clear}


def format_command(record: Mapping[str, Any]) -> str:
    """The command line that reproduces a run, on several lines."""
    lines = [["becausal", "bench", record["bench"]]]
    lines.append(["--model", record["model"], *_arguments(Loading, record["loading"])])
    if record["data"] is not None:
        lines.append(["--data", record["data"]])
    lines.append(["--methods", ",".join(record["methods"])])
    lines.append(_arguments(Request, record["request"], always=("fills", "seed")))
    if record["limit"] is not None:
        lines[-1] += ["--limit", str(record["limit"])]
    if record["bench"] == "exact" and record["side"] != 4:
        lines[-1] += ["--side", str(record["side"])]
    lines.append(["--out", "OUT"])
    return " \\\n    ".join(shlex.join(line) for line in lines)


def _arguments(kind: type, values: Mapping[str, Any], *, always: tuple[str, ...] = ()) -> list[str]:
    """The options of a recorded `Request` or `Loading` that differ from the defaults or are in `always`, as words.

    Values that cannot be written on the command line, such as a normalisation given as numbers, are left out.
    """
    words: list[str] = []
    for option in list_options(kind):
        default = list(option.default) if isinstance(option.default, tuple) else option.default
        value, flag = values.get(option.name, default), option.flag
        if value == default and option.name not in always:
            continue
        if isinstance(value, list):
            words += [word for each in value for word in (flag, str(each)) if option.parse is tuple]
        elif value is None or isinstance(value, (str, int, float)):
            words += [flag] if value is True else [flag, "none" if value is None else str(value)]
    return words


def _json_numbers(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _json_numbers(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_numbers(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
