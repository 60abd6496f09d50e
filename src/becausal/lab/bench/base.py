"""What all benches have in common."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.core.metrics import overlap
from becausal.core.version import versions
from becausal.lab.bench.datasets import Sample
from becausal.lab.bench.formatting import count_failures, format_command
from becausal.lab.bench.plan import Arm, BenchSettings, ImageSelection, Subject, plain_arms
from becausal.lab.bench.plots import Plot
from becausal.lab.bench.rows import Row, successful
from becausal.lab.bench.selection import select_images
from becausal.lab.bench.tables import Table

#: The layout of summary.json.
SCHEMA = "becausal/bench/1"
MeasureExplanation = Callable[[Subject, Explanation, Classifier], Row]
RunArm = Callable[[Arm, Sequence[Sample], Classifier, BenchSettings], Iterator[tuple[Sample, Row]]]


@dataclass(frozen=True)
class Findings:
    """The tables and plots of a run."""

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()

    def record(self) -> dict[str, Any]:
        """Tables and plots in a form that JSON can hold; an estimate is written as mean, low, high and n."""
        found: dict[str, Any] = _json_numbers(
            {"tables": [asdict(t) for t in self.tables], "plots": [asdict(p) for p in self.plots]}
        )
        return found


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An experiment: which images, what is measured, which tables.

    Attributes:
        name: Its name.
        question: What it measures, as a question.
        paper: What the paper reports about it.
        tables: Makes tables from the rows without an error; None where there is nothing to show.
        plots: Makes plots from the same rows.
        methods: Default methods: "all", or names separated by commas.
        limit: Default maximum number of images, None for all.
        select: Chooses the images.
        arms: What is computed for every image; by default every method once.
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
    tables: Callable[[Sequence[Row]], Iterable[Table | None]]
    plots: Callable[[Sequence[Row]], Iterable[Plot]]
    methods: str = "all"
    limit: int | None = 100
    select: Callable[[BenchSettings, Classifier], ImageSelection] = select_images
    arms: Callable[[BenchSettings], list[Arm]] = plain_arms
    postprocess: Callable[[list[Row]], list[Row]] = lambda rows: rows
    measure: MeasureExplanation | None = None
    run_arm: RunArm | None = None
    rank_by: str = "size"
    lower_is_better: bool = True
    outline: str | None = None
    choose_steps: Callable[[Sequence[Row]], list[dict[str, Any]]] | None = None
    sets: tuple[str, ...] = ()
    takes: tuple[str, ...] | None = None

    def summarise(self, rows: Sequence[Row]) -> Findings:
        """The tables and plots of all rows."""
        found = successful(rows)
        return Findings(tuple(table for table in self.tables(found) if table is not None), tuple(self.plots(found)))

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


@dataclass(frozen=True)
class BenchRun:
    """A finished run.

    Attributes:
        folder: Its folder.
        bench: The bench.
        settings: Its settings.
        record: Settings and model as they were saved.
        rows: The rows in order.
        selection: The images, and the number of excluded images by reason.
        findings: Tables and plots.
        methods_left_out: Methods that did not run, with the reasons.
    """

    folder: Path
    bench: Bench
    settings: BenchSettings
    record: dict[str, Any]
    rows: list[Row]
    selection: ImageSelection
    findings: Findings
    methods_left_out: dict[str, str]

    @property
    def failures(self) -> dict[str, dict[str, int]]:
        """For each method the number of images without an explanation, by reason."""
        return count_failures(self.rows)

    def missing(self) -> list[tuple[str, str]]:
        """Methods without some or all results, with the reasons."""
        found = [(method, f"did not run: {reason}") for method, reason in self.methods_left_out.items()]
        for method, counts in self.failures.items():
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
            "failures": self.failures,
            **self.findings.record(),
            "versions": versions(),
        }


def measure_occluder(subject: Subject, explanation: Explanation) -> Row:
    """The overlap of the explanation and the occluder; empty where there is none, or it is not known."""
    occluder, visible = subject.masks.get("occluder"), explanation.visible
    if occluder is None or not occluder.any():
        return {}
    return {"overlap": overlap(visible, occluder), "clear": int(not (visible & occluder).any())}


def _json_numbers(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _json_numbers(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_numbers(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
