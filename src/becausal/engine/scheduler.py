"""Batches: rows of many owners packed together, kept in flight, and their scores handed out.

The engine schedules the questions of searches, the process pool those of its worker processes; both do it here.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Promise
from becausal.core.errors import AnswerError
from becausal.core.stats import Stats
from becausal.engine.calls import ModelCalls

FEW_ROWS = 32  # not worth splitting into two batches


@dataclass(frozen=True)
class Landing:
    """What the evaluation of a part has cost: batches, rows with its share of padding, seconds of the model."""

    batches: int
    slots: int
    seconds: float

    def add_to(self, stats: Stats) -> None:
        stats.batches += self.batches
        stats.slots += self.slots
        stats.model_seconds += self.seconds


class Part(Protocol):
    """Some rows of one owner, in one batch."""

    @property
    def grid(self) -> Grid: ...

    @property
    def count(self) -> int:
        """How many rows."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Whether the owner still waits for these rows."""
        ...

    @property
    def is_guided(self) -> bool:
        """Whether a twin of the model may evaluate them; the same for all parts of a batch."""
        ...

    @property
    def staged(self) -> Sequence[Any]:
        """The pairs of view and background; some are staged only now. Raises AnswerError where that fails."""
        ...

    @property
    def which(self) -> NDArray[np.intp]:
        """(n,) which of `staged` each row is of."""
        ...

    def rows(self, *, packed: bool) -> NDArray[Any]:
        """(n, bytes) uint8 where packed, else (n, *grid) bool."""
        ...

    def deliver(self, scores: NDArray[Any], landing: Landing) -> None:
        """Take the scores of the rows."""
        ...

    def fail(self, error: AnswerError) -> None:
        """Take note that the model failed on these rows."""
        ...


class RowSource(Protocol):
    """An owner of rows that wait to be evaluated."""

    @property
    def kind(self) -> Hashable:
        """Rows share a batch only with rows of the same kind: shape and type of the view, and whether a twin may answer."""
        ...

    @property
    def rank(self) -> tuple[int, int]:
        """Lower goes first: those with the longest way to go, so that few are left to end alone."""
        ...

    @property
    def rows_left(self) -> int: ...

    def take(self, room: int, *, at_least_one: bool) -> Part | None:
        """The next rows, at most `room`; None where not even one question fits. at_least_one: take one all the same."""
        ...


@dataclass
class Flight:
    """A batch in flight: whose rows it has, and how many there are with padding."""

    parts: list[Part]
    counts: list[int]
    promises: list[Promise]
    sizes: list[int]


class Scheduler:
    """Packs rows into batches and hands out their scores.

    Sources are put into `waiting`. Parts that were delivered, or on which the model failed, are appended to `settled`,
    for the owner to go on with. stats: what everything has cost together. fill: given the parts of a batch and the number
    of rows that would be padding, further parts to evaluate along with them. guard: a context for calls of the model.
    """

    def __init__(
        self,
        calls: ModelCalls,
        *,
        stats: Stats | None = None,
        fill: Callable[[list[Part], int], list[Part]] | None = None,
        guard: AbstractContextManager[None] | None = None,
    ) -> None:
        self._calls = calls
        self._fill = fill
        self._guard = guard or nullcontext()
        self.waiting: list[RowSource] = []
        self.flights: deque[Flight] = deque()
        self.settled: deque[Part] = deque()
        self.stats = stats or Stats()

    @property
    def rows_waiting(self) -> int:
        return sum(source.rows_left for source in self.waiting)

    @property
    def is_saturated(self) -> bool:
        """Whether enough rows wait for a good batch, or the device is busy."""
        return bool(self.flights) or self.rows_waiting >= self._goal()

    def clear(self) -> None:
        """Forget everything that waits, is in flight or was settled."""
        self.waiting.clear()
        self.flights.clear()
        self.settled.clear()

    def launch(self) -> bool:
        """Send a batch if there are rows for one and room for it; says whether it did."""
        if not self.waiting or len(self.flights) >= self._calls.depth:
            return False
        if self.flights and self.rows_waiting < self._goal():
            return False
        parts = self._load()
        try:
            self.flights.append(self._send(parts))
        except AnswerError as error:
            self._fail(parts, error)
        return True

    def land(self, *, wait: bool = True) -> bool:
        """Hand out the scores of the oldest batch; says whether it did. wait: also where it is not ready yet."""
        if not self.flights or not (wait or all(promise.is_ready() for promise in self.flights[0].promises)):
            return False
        flight = self.flights.popleft()
        try:
            self._deliver(flight)
        except AnswerError as error:
            self._fail(flight.parts, error)
        return True

    def _goal(self) -> int:
        """How many rows a batch should have, so that as many batches as possible are in flight in turn."""
        calls = self._calls
        if not calls.is_async or calls.depth == 1:
            return calls.batch_size
        waiting = self.rows_waiting + sum(sum(flight.counts) for flight in self.flights)
        wanted = min(calls.batch_size, max(waiting // calls.depth, 2 * FEW_ROWS // calls.depth))
        fitting = [size for size in calls.classifier.fixed_sizes if size <= wanted]
        return fitting[-1] if fitting else wanted

    def _load(self) -> list[Part]:
        """Rows for a batch, of one kind."""
        ordered = sorted(self.waiting, key=lambda source: source.rank)
        kind = ordered[0].kind
        room = max(self._goal(), 1)
        parts: list[Part] = []
        for source in ordered:
            if source.kind == kind and room > 0:
                part = source.take(room, at_least_one=not parts)  # more fills than rows: it goes out in several batches
                if part is not None:
                    parts.append(part)
                    room -= part.count
        self.waiting = [source for source in ordered if source.rows_left]
        if self._fill is not None and not self.flights:
            rows = sum(part.count for part in parts)
            parts += self._fill(parts, self._calls.padded_size(rows) - rows)
        return parts

    def _send(self, parts: list[Part]) -> Flight:
        calls, packed = self._calls, self._calls.is_async
        staged: list[Any] = []
        which = []
        for part in parts:
            which.append(part.which + len(staged))
            staged += part.staged
        counts = [part.count for part in parts]
        rows = sum(counts)
        sizes = [calls.padded_size(min(calls.batch_size, rows - at)) for at in range(0, rows, calls.batch_size)]
        places = _joined(which, sum(sizes), 0)
        data = _joined([part.rows(packed=packed) for part in parts], sum(sizes), 255 if packed else True)
        promises: list[Promise] = []
        start = 0
        with self._guard:
            for size in sizes:
                end = start + size
                rows_of_batch = (staged, places[start:end], data[start:end], parts[0].grid)
                promises.append(calls.submit(*rows_of_batch, is_guided=parts[0].is_guided))
                start = end
        return Flight(parts, counts, promises, sizes)

    def _deliver(self, flight: Flight) -> None:
        with self._guard:
            tables = [self._calls.collect(p, size) for p, size in zip(flight.promises, flight.sizes, strict=True)]
        table = tables[0] if len(tables) == 1 else np.concatenate(tables)
        seconds = sum(promise.seconds for promise in flight.promises)
        rows, size, start = sum(flight.counts), sum(flight.sizes), 0
        self.stats.batches += len(flight.promises)
        self.stats.slots += size
        self.stats.model_seconds += seconds
        for part, count in zip(flight.parts, flight.counts, strict=True):
            end = start + count
            slots = size * end // rows - size * start // rows
            part.deliver(table[start:end], Landing(len(flight.promises), slots, seconds * count / rows))
            self.settled.append(part)
            start = end

    def _fail(self, parts: list[Part], error: AnswerError) -> None:
        """Find out whose rows broke the model by evaluating each part alone, and tell those."""
        wanted = [part for part in parts if part.is_wanted]
        for part in wanted:
            if len(parts) > 1:
                try:
                    self._deliver(self._send([part]))
                    continue
                except AnswerError as own:
                    error = own
            part.fail(error)
            self.settled.append(part)


def _joined(arrays: Sequence[NDArray[Any]], size: int, padding: int | bool) -> NDArray[Any]:
    """Arrays one after the other, padded to `size` rows."""
    rows = sum(len(array) for array in arrays)
    if size > rows:
        arrays = [*arrays, np.full((size - rows, *arrays[0].shape[1:]), padding, arrays[0].dtype)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
