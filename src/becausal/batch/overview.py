"""Summary of a run: distributions, labels, largest and smallest explanations, and those outside their object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from becausal.batch.reading import BatchRun, IndexRow
from becausal.batch.rows import corners_of, count_reasons

OUTSIDE = 0.5  # an explanation with a smaller share of its pixels on the object counts as outside
BINS = 24
MEASURES = ("size", "label_size", "confidence", "calls", "inside")  # whose distributions are shown


@dataclass(frozen=True)
class Histogram:
    """Counts between edges, one more edge than counts, and the median (`middle`); empty if there are no values."""

    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()
    middle: float | None = None


@dataclass(frozen=True)
class LabelSummary:
    """All explanations of one label: medians, the mean share inside the boxes, and None for unknown values."""

    label: str
    count: int
    size: float
    confidence: float | None
    calls: float
    inside: float | None
    outside: int | None


class Overview:
    """Summary of a run, for its page.

    thumbs: images in the evenly spaced sample. extremes: number of largest, and of smallest, explanations. outside: maximum
    number of explanations outside their object that are kept, those with less than a share `below` of their pixels on it.
    max_rows: maximum number of rows kept.
    """

    def __init__(
        self,
        run: BatchRun,
        *,
        thumbs: int = 120,
        extremes: int = 8,
        outside: int = 40,
        below: float = OUTSIDE,
        max_rows: int = 20_000,
    ) -> None:
        counts = run.count()
        limit = None if run.limit is None or run.count(run.limit)["waiting"] else run.limit
        done = list(run.rows("state = 'done'"))
        by_size = sorted(done, key=lambda row: (row["size"], row["id"]))
        judged = [row for row in done if row["inside"] is not None]
        missed = sorted((row for row in judged if row["inside"] < below), key=lambda row: (row["inside"], -row["size"]))
        self.name, self.settings, self.started, self.notes = run.folder.name, run.options, run.started, run.notes
        self.unit, self.per_image = run.unit, run.per_image
        self.counts, self.total = counts, sum(counts.values())  # of images
        self.completion = describe_completion(counts, limit)
        self.is_limited = limit is not None and counts["waiting"] > 0  # all images of the last start's --limit were tried
        self.explained, self.explained_images = len(done), len({row["id"] // run.per_image for row in done})
        self.is_detector = any(corners_of(row) is not None for row in done)
        self.has_levels = any(row["label_size"] is not None and row["level"] != "label" for row in done)
        self.calls = sum(row["calls"] for row in done)
        self.cut_short = sum(row["stopped_by"] != "finished" for row in done)
        self.histograms = {name: histogram(row[name] for row in done) for name in MEASURES}
        self.classes = summarise_labels(done, below)
        self.reasons = count_reasons((row["error"], row["image"]) for row in run.rows("state = 'failed'"))
        self.largest, self.smallest = list(reversed(by_size[-extremes:])), by_size[:extremes]
        self.sample = take_evenly(done, thumbs)
        self.judged = len(judged)  # explanations with boxes of their label
        self.outside, self.outside_count = missed[:outside], len(missed)
        self.wrong_count = sum(row["note_code"] == "label_without_box" for row in done)
        self.mean_inside = _mean(row["inside"] for row in judged)
        self.mean_by_chance = _mean(row["by_chance"] for row in judged)
        self.rows, self.row_count = list(run.rows(limit=max_rows)), run.count_rows()


def describe_completion(counts: Mapping[str, int], limit: int | None = None) -> str:
    """E.g. `complete`, `1 of 8 images explained, limited to the first 1`, `3 of 8 images explained, 5 waiting`.

    counts: of all images of the run. limit: of the last start, None for none or if images within it are waiting.
    """
    if not counts["waiting"]:
        return "complete"
    text = f"{counts['done']:,} of {sum(counts.values()):,} images explained"
    return f"{text}, {counts['waiting']:,} waiting" if limit is None else f"{text}, limited to the first {limit:,}"


def histogram(values: Iterable[float | None]) -> Histogram:
    """The distribution of the values that are not None."""
    known = np.array([value for value in values if value is not None], float)
    if not known.size:
        return Histogram()
    high = float(known.max())
    counts, edges = np.histogram(known, bins=BINS, range=(0.0, high if high > 0 else 1.0))
    return Histogram(tuple(int(n) for n in counts), tuple(float(e) for e in edges), float(np.median(known)))


def summarise_labels(rows: Sequence[IndexRow], below: float = OUTSIDE) -> tuple[LabelSummary, ...]:
    """One summary per label, the most frequent first."""
    groups: dict[str, list[IndexRow]] = {}
    for row in rows:
        groups.setdefault(row["label"], []).append(row)
    classes = [_summarise(label, group, below) for label, group in groups.items()]
    return tuple(sorted(classes, key=lambda each: (-each.count, each.label)))


def _summarise(label: str, group: list[IndexRow], below: float) -> LabelSummary:
    inside = [row["inside"] for row in group if row["inside"] is not None]
    confidence = [row["confidence"] for row in group if row["confidence"] is not None]
    return LabelSummary(
        label,
        len(group),
        median(row["size"] for row in group),
        median(confidence) if confidence else None,
        median(row["calls"] for row in group),
        _mean(inside),
        sum(share < below for share in inside) if inside else None,
    )


def take_evenly(rows: Sequence[IndexRow], count: int) -> list[IndexRow]:
    """At most `count` rows, evenly spaced from the first to the last."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)] if count > 1 else list(rows[:count])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
