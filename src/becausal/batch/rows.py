"""The row of an explanation in the index, the stamp of an image file, and why images failed."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from becausal.batch.records import InputItem, Stamp
from becausal.batch.truth import compare_with_boxes
from becausal.core.boxes import Box
from becausal.core.contracts import name_id
from becausal.core.explanation import ExplanationRecord
from becausal.core.text import replace_surrogates

NO_SIGN = 2**63 - 1  # SQLite has no larger numbers
CORNERS = ("box_left", "box_top", "box_right", "box_bottom")


def make_row(
    explanation: ExplanationRecord, item: InputItem, categories: frozenset[str], box: int | None = None
) -> dict[str, Any]:
    """The columns that a result fills in, see `index.RESULTS`.

    categories: of the ground truth, in lower case. box: number of the explained box, in runs of all boxes.
    """
    checks, summary, smallest = explanation.checks, explanation.summary(), explanation.levels[0]
    label = replace_surrogates(explanation.label)  # a record from elsewhere may hold anything
    boxes = compare_with_boxes(explanation.visible, explanation.frame, label, item, categories)
    return {
        "sha256": explanation.origin.image_sha256,
        "label": label,
        "label_id": label_id_of(explanation),
        "confidence": summary["confidence"],
        "box": box,
        **dict(zip(CORNERS, summary.get("box", [None] * 4), strict=True)),
        "level": explanation.level.name,
        "size": explanation.size,
        "label_size": smallest.size if smallest.share == 0 else None,
        "pixels": explanation.pixels,
        "pieces": explanation.pieces,
        "alone": summary["explanation"]["confidence"],
        "sufficient": checks.sufficient,
        "necessary": checks.necessary,
        "minimal_grain": checks.minimal_grain,
        "stopped_by": explanation.stopped_by,
        "calls": explanation.calls,
        "seconds": explanation.seconds,
        "inside": boxes.inside,
        "by_chance": boxes.by_chance,
        "note_code": boxes.note_code,
        "note": boxes.note,
    }


def corners_of(row: Mapping[str, Any]) -> Box | None:
    """The explained box of a row, (left, top, right, bottom) on the original image; None for a classifier."""
    left, top, right, bottom = corners = tuple(row[name] for name in CORNERS)
    return None if None in corners else (left, top, right, bottom)  # a damaged index may have some of them


def label_id_of(explanation: ExplanationRecord) -> int | None:
    """The id of the label; None where the model returns names, and only the name identifies the label."""
    ids = name_id(explanation.label), name_id(explanation.label, size=3)
    return None if explanation.label_id in ids else explanation.label_id


def stamp_of(path: str) -> Stamp | None:
    """What tells a file from one that has taken its place; None if there is no regular file.

    Whoever writes a file can set its modification time, but not the time of its last change.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino & NO_SIGN


def count_reasons(failed: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Count (error, image) pairs by error, image names left out; the most frequent first."""
    counts = Counter(
        error.replace(f"there is no file {os.path.basename(image)}", "the file does not exist").replace(
            os.path.basename(image), "the image"
        )
        for error, image in failed
    )
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
