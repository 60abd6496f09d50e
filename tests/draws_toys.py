"""Searches on random backgrounds, for tests; search processes import this file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from becausal.core.contracts import Question, Stop
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds


@dataclass
class Sampler:
    """Backgrounds of one colour, another one for each number; it notes what was drawn."""

    view: np.ndarray
    drawn: list = field(default_factory=list)

    def draw(self, number):
        self.drawn.append(number)
        return np.full_like(self.view, number * 7 % 23)


def asks(*waves):
    """A search that asks these waves and returns all it was told; told to stop, it ends."""
    heard = []
    for wave in waves:
        try:
            heard.append(("answers", (yield wave)))
        except Stop as stop:
            heard.append((stop.reason, stop.answers))
            break
    return heard


def random_waves(seed, grid, count=5, numbers=6):
    """Waves under the fills and on random backgrounds, many questions more than once."""
    rng = np.random.default_rng(seed)
    sets = rng.random((12, *grid)) < 0.5
    for _ in range(count):
        wave = sets[rng.integers(0, 12, rng.integers(1, 30))]
        yield wave if rng.random() < 0.3 else Question(wave, draws=rng.integers(0, numbers, len(wave)))


def told(outcome):
    """An outcome as plain values, without times and batches."""
    heard = [(word, a.holds.tolist(), a.margin.tolist(), a.confidence.tolist(), a.spent) for word, a in outcome.result]
    return outcome.stopped_by, outcome.stats.calls, outcome.stats.asked, heard


def problem_of(view, *, label_id=1, fills=1, sampler=Sampler):
    return Problem(view, tuple(np.full_like(view, b) for b in (0, 5, 9)[:fills]), Target(label_id), sampler=sampler(view))


def search_all(images, classifier, *, width, progress, fills=2, is_random=False) -> Iterator[tuple[int, Any]]:
    """What a search process does with its images: see `becausal.engine.pool.Task`."""

    def work():
        for view in images:
            sampler = (lambda v: RandomBackgrounds(v, 3)) if is_random else Sampler
            seed = int(view.astype(np.int64).sum())
            problem = problem_of(view, fills=fills, sampler=sampler)
            yield problem, asks(*random_waves(seed, problem.grid, numbers=90))

    for outcome in Engine(classifier).run_many(work(), max_calls=70, width=width):
        yield outcome.index, told(outcome)
