"""Sets and the highest pixels of maps, pasted on other photographs: on how many is the label kept?"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier, Pixels, Visible
from becausal.core.errors import BecausalError, OptionError
from becausal.core.metrics import top_pixels
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.fills import as_type
from becausal.images.loading import read_like
from becausal.lab.base import Arm, Bench, BenchSettings, MeasureExplanation, Subject, make_request
from becausal.lab.datasets import Sample, draw_scenes, read_dataset
from becausal.lab.rows import Row, by_method
from becausal.lab.selection import take_evenly
from becausal.lab.tables import (
    CALLS,
    SIZE,
    Measure,
    Plot,
    Table,
    line_of_estimates,
    measure_table,
    paired_table,
    points_plot,
)

OTHERS = 40  # photographs that each set is pasted on, at most
SHARES = (5, 10, 20, 30)  # per cent of the view
MEANING = "share of other photographs on which {} the label"

KEPT = Measure("kept", "kept", "share", "high", MEANING.format("the set keeps"))
PREFIXES = tuple(
    Measure(f"top_{s}", f"kept at {s} %", "share", "high", MEANING.format(f"the top {s} % keep")) for s in SHARES
)
NOTE = "The map's highest pixels, so that all methods paste equally many."
SETS = "n is the number of images that have such a set: `enough` only where it was shown to hold on random backgrounds."


def paste(
    explanation: Explanation, classifier: Classifier, sets: Visible, photographs: Sequence[Pixels]
) -> tuple[NDArray[np.float64], int]:
    """The share of photographs on which each set, (n, *grid), keeps the label, and of how many; NaN where there is none.

    Photographs that have the label themselves are left out.
    """
    engine, target = Engine(classifier), replace(explanation.target, floor=0.0)
    asked = np.concatenate([sets, np.zeros_like(sets[:1])])
    answers = [engine.ask_uncached(Problem(explanation.view, (other,), target), asked) for other in photographs]
    kept = np.array([answer.holds for answer in answers if not answer.holds[-1]])
    return (kept[:, :-1].mean(axis=0), len(kept)) if len(kept) else (np.full(len(sets), np.nan), 0)


def make_measure(settings: BenchSettings, classifier: Classifier) -> MeasureExplanation:
    """What is recorded about an explanation, with the images of the folder, or scenes, to paste on."""
    samples = _other_samples(settings)
    info = classifier.info

    @lru_cache(maxsize=1)  # most models see all images at one size
    def photographs(shape: tuple[int, ...], dtype: str) -> dict[str, Pixels]:
        view, found = np.zeros(shape, dtype), {}
        for sample in samples:
            try:
                pixels = read_like(view, sample.read().pixels, geometry=info.geometry, channels=info.channels)
            except BecausalError:
                continue  # it cannot be read
            found[sample.name] = as_type(pixels.astype(np.float64), view)
        return found

    def measure(subject: Subject, explanation: Explanation, classifier: Classifier) -> Row:
        view = explanation.view
        others = [pixels for name, pixels in photographs(view.shape, view.dtype.str).items() if name != subject.sample.name]
        counts, seed = [round(share / 100 * explanation.visible.size) for share in SHARES], settings.request.seed
        tops = [top_pixels(explanation.responsibility, count, np.random.default_rng(seed)) for count in counts]
        sets = np.stack([*(level.visible for level in explanation.levels), *tops])
        kept, count = paste(explanation, classifier, sets, others[:OTHERS])
        names = [f"kept_{level.name}" for level in explanation.levels] + [each.key for each in PREFIXES]
        sizes = {f"size_{level.name}": level.size for level in explanation.levels}
        return {"others": count} | sizes | dict(zip(names, kept.tolist(), strict=True))

    return measure


def _other_samples(settings: BenchSettings) -> list[Sample]:
    """One more than each set is pasted on, since one of them may be its own image."""
    if settings.data is None:
        return list(islice(draw_scenes(settings.request.seed, cover=(0.1, 0.4)), OTHERS + 1))
    samples = take_evenly(read_dataset(settings.data), OTHERS + 1)
    if len(samples) < 2:
        raise OptionError(f"the bench paste needs other images to paste on, and {settings.data} has only one")
    return samples


def by_set(rows: Sequence[Row]) -> list[Row]:
    """A row for each set of each row."""
    names = dict.fromkeys(key.removeprefix("kept_") for row in rows for key in row if key.startswith("kept_"))
    return [
        {"name": row["name"], "method": row["method"], "set": name}
        | {"size": row[f"size_{name}"], "kept": row[f"kept_{name}"], "calls": row["calls"]}
        for name in names
        for row in rows
        if row.get(f"kept_{name}") is not None
    ]


def make_tables(rows: Sequence[Row]) -> list[Table | None]:
    """Equally large parts of the maps of all methods, and their sets."""
    by = {"set": "set", "method": "method"}
    sets = measure_table("sets", "Sets on other photographs", by_set(rows), (SIZE, KEPT, CALLS), by=by, note=SETS)
    title = "The highest pixels of the map on other photographs"
    return [measure_table("prefixes", title, rows, PREFIXES, note=NOTE), sets, paired_table(rows, PREFIXES[2])]


def make_plots(rows: Sequence[Row]) -> list[Plot]:
    """The share kept by more and more of the map, and by each set."""
    shares, y = [share / 100 for share in SHARES], "share of other photographs"
    lines = [line_of_estimates(method, shares, [m.estimate(part) for m in PREFIXES]) for method, part in by_method(rows)]
    title = "Label kept by the highest pixels of the map"
    found = by_set(rows)
    names = tuple(dict.fromkeys(str(row["set"]) for row in found))
    return [
        Plot("prefixes", title, "share of the view that is pasted", y, tuple(lines)),
        points_plot("sets", "Label kept by each set", "set", y, found, KEPT, "set", names),
    ]


BENCH = Bench(
    name="paste",
    question="Pasted on other photographs, is the label of a set, or of the highest pixels of a map, still found?",
    paper="Not in the paper.",
    limit=50,
    arms=lambda settings: [Arm(m, make_request(settings, m, has_two_sets=True)) for m in settings.methods],
    make_measure=make_measure,
    tables=make_tables,
    plots=make_plots,
    rank_by="top_20",
    lower_is_better=False,
    outline="occluder",
)
