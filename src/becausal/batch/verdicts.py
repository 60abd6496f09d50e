"""Judges a run by criteria, row by row: how many images break each rule, and whether that is too many."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from becausal.batch.criteria import Criterion
from becausal.batch.evidence import Evidence
from becausal.batch.matching import match_runs
from becausal.batch.reading import BatchRun
from becausal.batch.rules import format_limit
from becausal.core.intervals import wilson_interval
from becausal.core.text import one_line
from becausal.render.wording import format_count, format_share

Outcome = Literal["holds", "broken", "not judged"]
WORST = 24  # images per rule that are kept, to be shown


@dataclass(frozen=True)
class Offender:
    """An image that breaks a rule.

    Attributes:
        id: Its number in the run.
        image: Its path.
        label: Its label, None if it could not be explained.
        value: What was measured.
        detail: The same in words, on one line.
        baseline_id: Its number in the baseline, None without one.
    """

    id: int
    image: str
    label: str | None
    value: float
    detail: str
    baseline_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """One rule, judged.

    Attributes:
        name: The rule.
        breach: What breaks it.
        outcome: "holds", "broken" or "not judged".
        limit: The share of images that may break it.
        judged: Number of images it was judged on.
        broken: Number of images that break it.
        skipped: Number of explained images that it could not be judged on, e.g. because they have no boxes.
        low: Lower bound of the share of images that break it.
        high: Upper bound.
        reason: Why it was not judged, else None.
        worst: The images that break it most clearly, the worst first.
        unit: "image", or "box" for a run of all boxes; then boxes are counted everywhere.
    """

    name: str
    breach: str
    outcome: Outcome
    limit: float
    judged: int
    broken: int
    skipped: int
    low: float
    high: float
    reason: str | None = None
    worst: tuple[Offender, ...] = ()
    unit: str = "image"

    @property
    def share(self) -> float:
        """The share of the judged images that break it."""
        return self.broken / self.judged if self.judged else 0.0

    @property
    def is_unclear(self) -> bool:
        """Whether it holds only because too few images were judged to tell."""
        return self.outcome == "holds" and self.share > self.limit

    @property
    def found(self) -> str:
        """What was found, e.g. `3 of 30 images (10 %; 3.5 % to 26 %), at most 5 %`; or why nothing was."""
        if self.reason is not None:
            return self.reason
        bounds = f"{format_share(self.share)}; {format_share(self.low)} to {format_share(self.high)}"
        text = f"{self.broken:,} of {format_count(self.judged, self.unit)} ({bounds}), at most {format_limit(self.limit)}"
        text += f"; {self.skipped:,} more could not be judged" if self.skipped else ""
        units = "boxes" if self.unit == "box" else "images"
        return f"{text}; too few {units} to be sure" if self.is_unclear else text

    @property
    def summary(self) -> str:
        """What was found, and of what, on one line."""
        return one_line(self.found if self.reason is not None else f"{self.found}: {self.breach}")


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """The verdict on a run.

    Attributes:
        run: The run folder.
        baseline: The run it was compared with, None without one.
        images: Number of images of the run, whether they were explained or not.
        confidence: Of the intervals.
        strict: Whether a rule is broken as soon as the share is above its limit.
        rules: Every rule, judged.
        unit: "image", or "box" for a run of all boxes.
    """

    run: str
    baseline: str | None
    images: int
    confidence: float
    strict: bool
    rules: tuple[RuleVerdict, ...]
    unit: str = "image"

    @property
    def outcome(self) -> Outcome:
        """ "broken" if a rule is broken; else "not judged" if one could not be judged; else "holds"."""
        outcomes: tuple[Outcome, ...] = ("broken", "not judged")
        return next((each for each in outcomes if any(rule.outcome == each for rule in self.rules)), "holds")

    @property
    def status(self) -> int:
        """The exit status: 0 if all rules hold, 1 if one is broken, 2 if one could not be judged."""
        return {"holds": 0, "broken": 1, "not judged": 2}[self.outcome]

    @property
    def holds(self) -> bool:
        """Whether all rules hold."""
        return self.outcome == "holds"

    @property
    def headline(self) -> str:
        """The verdict in one sentence, without a full stop."""
        count = format_count(len(self.rules), "rule")
        if self.holds:
            return "the rule holds" if len(self.rules) == 1 else f"all {count} hold"
        return f"{sum(rule.outcome == self.outcome for rule in self.rules):,} of {count} {self.outcome}"

    def record(self) -> dict[str, Any]:
        """The verdict as JSON can hold it."""
        own = {name: value for name, value in asdict(self).items() if name != "rules"}
        rules = [{**asdict(rule), "share": rule.share} for rule in self.rules]
        return {**own, "outcome": self.outcome, "status": self.status, "rules": rules}

    def __repr__(self) -> str:
        return f"<Verdict {one_line(self.run)}: {self.headline}>"

    def __str__(self) -> str:
        lines = [f"{one_line(self.run)}: {self.headline}"]
        for rule in self.rules:
            lines.append(f"{rule.name}: {rule.outcome}: {rule.summary}")
            if rule.outcome == "broken":
                lines += [f"    {one_line(each.image)}: {each.detail}" for each in rule.worst[:5]]
        return "\n".join(lines)


@dataclass
class _Tally:
    """Counts the images that break one rule, and keeps the worst."""

    criterion: Criterion
    judged: int = 0
    broken: int = 0
    skipped: int = 0
    worst: list[tuple[float, int, Offender]] = field(default_factory=list)  # a heap: the least bad one first

    def add(self, image: Evidence) -> None:
        value = self.criterion.measure(image)
        if value is None:
            self.skipped += image.is_explained
            return
        self.judged += 1
        if self.criterion.breaks(value):
            self.broken += 1
            rank = self.criterion.badness(value), -image.row["id"]
            if len(self.worst) < WORST or rank > self.worst[0][:2]:
                entry = (*rank, self._describe(image, value))
                (heapq.heappush if len(self.worst) < WORST else heapq.heapreplace)(self.worst, entry)

    def _describe(self, image: Evidence, value: float) -> Offender:
        row, earlier = image.row, image.earlier if self.criterion.is_pair else None
        detail = one_line(self.criterion.describe(image, value), 300)
        detail = detail if row["box"] is None else f"box {row['box']}: {detail}"
        return Offender(row["id"], row["image"], row["label"], value, detail, None if earlier is None else earlier["id"])

    def close(self, confidence: float, strict: bool, unit: str) -> RuleVerdict:
        low, high = wilson_interval(self.broken, self.judged, confidence) if self.judged else (0.0, 1.0)
        outcome: Outcome = "not judged"
        if self.judged:
            outcome = "broken" if (self.broken / self.judged if strict else low) > self.criterion.limit else "holds"
        return RuleVerdict(
            name=self.criterion.name,
            breach=self.criterion.breach,
            outcome=outcome,
            limit=self.criterion.limit,
            judged=self.judged,
            broken=self.broken,
            skipped=self.skipped,
            low=low,
            high=high,
            reason=None if self.judged else self.criterion.missing,
            worst=tuple(offender for _, _, offender in sorted(self.worst, key=lambda entry: entry[:2], reverse=True)),
            unit=unit,
        )


def judge_run(
    run: BatchRun, criteria: Iterable[Criterion], *, baseline: BatchRun | None, confidence: float, strict: bool
) -> Verdict:
    """Judge all images of a run. Memory does not grow with their number.

    Args:
        run: The run.
        criteria: What it is judged by.
        baseline: The run that labels and explanations are compared with.
        confidence: Of the intervals.
        strict: Whether a rule is broken as soon as the share of images is above its limit; otherwise the lower bound of
            the share must be.

    Raises:
        OutputError: The index, or an explanation that a rule needs, cannot be read.
    """
    tallies = [_Tally(criterion) for criterion in criteria]
    images = 0
    for image in _read(run, baseline):
        images += 1
        for tally in tallies:
            tally.add(image)
    return Verdict(
        run=str(run.folder),
        baseline=None if baseline is None else str(baseline.folder),
        images=images,
        confidence=confidence,
        strict=strict,
        rules=tuple(tally.close(confidence, strict, run.unit) for tally in tallies),
        unit=run.unit,
    )


def _read(run: BatchRun, baseline: BatchRun | None) -> Iterator[Evidence]:
    if baseline is None:
        for row in run.rows():
            yield Evidence(run, row)
    else:
        for row, earlier in match_runs(run, baseline):
            yield Evidence(run, row, baseline, earlier)
