"""A run in numbers: distributions, classes, the largest and the smallest, and explanations that miss their object."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from becausal.batch.reading import Row, Run
from becausal.batch.store import count_reasons

OUTSIDE = 0.5  # an explanation with a smaller share on its object lies outside of it
BINS = 24


@dataclass(frozen=True)
class Histogram:
    """Counts between edges, one more edge than counts; middle is the median. Empty where there is nothing to count."""

    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()
    middle: float | None = None


@dataclass(frozen=True)
class Class:
    """All images that were given one label; medians, and None where nothing is known."""

    label: str
    count: int
    size: float
    confidence: float | None
    calls: float
    inside: float | None
    outside: int | None


@dataclass(frozen=True)
class Overview:
    """A run in numbers. rows: all rows, or the first so many of a very large run; total: how many there are."""

    name: str
    settings: dict[str, Any]
    begun: str
    counts: dict[str, int]
    seconds: float
    calls: int
    histograms: dict[str, Histogram]
    classes: tuple[Class, ...]
    reasons: tuple[tuple[str, int], ...]
    largest: tuple[Row, ...]
    smallest: tuple[Row, ...]
    sample: tuple[Row, ...]
    cut_short: int = 0
    outside: tuple[Row, ...] = ()
    judged: int = 0
    outside_count: int = 0
    wrong_count: int = 0
    mean_inside: float | None = None
    mean_by_chance: float | None = None
    rows: tuple[Row, ...] = field(default=(), repr=False)
    total: int = 0


def make_overview(
    run: Run, *, thumbs: int = 120, extremes: int = 8, outside: int = 40, below: float = OUTSIDE, most_rows: int = 20_000
) -> Overview:
    """Read a run once and sum it up.

    thumbs: images in the evenly taken sample. extremes: largest, and smallest. outside: at most so many of the
    explanations with less than a share `below` of their pixels on the object, the worst first. most_rows: kept whole.
    """
    counts = run.count()
    done = list(run.rows("state = 'done'"))
    by_size = sorted(done, key=lambda row: (row["size"], row["id"]))
    judged = [row for row in done if row["inside"] is not None]
    missed = sorted((row for row in judged if row["inside"] < below), key=lambda row: (row["inside"], -row["size"]))
    return Overview(
        name=run.folder.name,
        settings=run.settings,
        begun=run.begun,
        counts=counts,
        seconds=sum(row["seconds"] for row in done),
        calls=sum(row["calls"] for row in done),
        histograms={name: histogram(row[name] for row in done) for name in ("size", "confidence", "calls", "inside")},
        classes=sum_up_classes(done, below),
        reasons=tuple(count_reasons((row["error"], row["image"]) for row in run.rows("state = 'failed'"))),
        largest=tuple(reversed(by_size[-extremes:])),
        smallest=tuple(by_size[:extremes]),
        sample=tuple(take_evenly(done, thumbs)),
        cut_short=sum(row["stopped_by"] != "finished" for row in done),
        outside=tuple(missed[:outside]),
        judged=len(judged),
        outside_count=len(missed),
        wrong_count=sum(row["inside"] is None and (row["note"] or "").startswith("the truth has no") for row in done),
        mean_inside=_mean(row["inside"] for row in judged),
        mean_by_chance=_mean(row["by_chance"] for row in judged),
        rows=tuple(run.rows(limit=most_rows)),
        total=sum(counts.values()),
    )


def histogram(values: Iterable[float | None]) -> Histogram:
    """The distribution of all values that are known."""
    known = np.array([value for value in values if value is not None], float)
    if not known.size:
        return Histogram()
    high = float(known.max())
    counts, edges = np.histogram(known, bins=BINS, range=(0.0, high if high > 0 else 1.0))
    return Histogram(tuple(int(n) for n in counts), tuple(float(e) for e in edges), float(np.median(known)))


def sum_up_classes(rows: Sequence[Row], below: float = OUTSIDE) -> tuple[Class, ...]:
    """One line per label, the most frequent first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["label"], []).append(row)
    classes = [_sum_up(label, group, below) for label, group in groups.items()]
    return tuple(sorted(classes, key=lambda each: (-each.count, each.label)))


def _sum_up(label: str, group: list[Row], below: float) -> Class:
    inside = [row["inside"] for row in group if row["inside"] is not None]
    confidence = [row["confidence"] for row in group if row["confidence"] is not None]
    return Class(
        label,
        len(group),
        median(row["size"] for row in group),
        median(confidence) if confidence else None,
        median(row["calls"] for row in group),
        sum(inside) / len(inside) if inside else None,
        sum(share < below for share in inside) if inside else None,
    )


def take_evenly(rows: Sequence[Row], count: int) -> list[Row]:
    """At most so many rows, at even distances from the first to the last."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)] if count > 1 else list(rows[:count])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
