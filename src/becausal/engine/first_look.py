"""The first question of every job: the whole view, whose answer decides the target."""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid
from becausal.core.errors import AnswerError
from becausal.core.stats import Stats
from becausal.engine.keys import pack
from becausal.engine.running import Job
from becausal.engine.scheduler import Landing

T = TypeVar("T")


@dataclass(eq=False)
class FirstLook(Generic[T]):
    """The whole view of a job, waiting to be evaluated; source and part of a batch at once."""

    index: int
    job: Job[T]
    staged: tuple[Any, ...]  # one for each fill; only the first is needed here
    stats: Stats = field(default_factory=Stats)
    begun: float = field(default_factory=time.perf_counter)
    scores: NDArray[Any] | None = None
    error: AnswerError | None = None
    is_sent: bool = False
    is_wanted: bool = True
    is_guided: bool = False  # what decides the target is asked of the model itself

    def __post_init__(self) -> None:
        if self.job.shared is not None:
            self.scores = self.job.shared.whole

    @property
    def grid(self) -> Grid:
        return tuple(self.job.view.shape[:-1])

    @property
    def kind(self) -> Hashable:
        return self.job.view.shape, self.job.view.dtype, self.is_guided

    @property
    def rank(self) -> tuple[int, int]:
        return -self.job.view[..., 0].size, self.index

    @property
    def rows_left(self) -> int:
        return 0 if self.is_sent else 1

    @property
    def count(self) -> int:
        return 1

    @property
    def which(self) -> NDArray[np.intp]:
        return np.zeros(1, np.intp)

    def take(self, room: int, *, at_least_one: bool) -> "FirstLook[T]":
        self.is_sent = True
        return self

    def rows(self, *, packed: bool) -> NDArray[Any]:
        whole = np.ones((1, *self.grid), bool)
        return pack(whole) if packed else whole

    def deliver(self, scores: NDArray[Any], landing: Landing) -> None:
        self.scores = scores
        if self.job.shared is not None:
            self.job.shared.whole = scores
        landing.add_to(self.stats)
        self.stats.calls += 1

    def fail(self, error: AnswerError) -> None:
        self.error = error
