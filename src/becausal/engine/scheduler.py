"""Batches: rows of many owners packed together, kept in flight, and their scores handed out.

The engine schedules the questions of searches, the process pool those of its worker processes; both do it here.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Promise
from becausal.core.errors import AnswerError
from becausal.core.stats import Stats
from becausal.engine.calls import ModelCalls

FEW_ROWS = 32  # not worth splitting into two batches


class RowSource(Protocol):
    """An owner of rows that wait to be evaluated: a search, or a process in which searches run.

    grid: of its view. is_guided: whether a twin of the model may evaluate the rows. turn: changes when those in flight are
    no longer awaited. kind: rows share a batch only with rows of the same shape and type of view that the same model may
    answer. rank: lower goes first, those with the longest way to go, so that few are left to end alone.
    """

    @property
    def grid(self) -> Grid: ...
    @property
    def is_guided(self) -> bool: ...
    @property
    def turn(self) -> int: ...
    @property
    def kind(self) -> Hashable: ...
    @property
    def rank(self) -> tuple[int, int]: ...
    @property
    def rows_left(self) -> int: ...

    # The next rows, at most `room`; None where not even one question fits, unless it takes one all the same.
    def take(self, room: int, *, at_least_one: bool) -> "Part[Self] | None": ...

    # At most `room` rows that may be asked next, where evaluating them costs no time.
    def speculate(self, room: int) -> "Part[Self] | None": ...

    # The pairs of view and background of these rows. Raises AnswerError where one cannot be staged.
    def stage(self, part: "Part[Self]") -> Sequence[Any]: ...

    # Scores of these rows, which were in so many batches and took so many rows with their share of padding.
    def deliver(self, part: "Part[Self]", scores: NDArray[Any], seconds: float, batches: int, slots: int) -> None: ...

    # The model failed on these rows.
    def fail(self, part: "Part[Self]", error: AnswerError) -> None: ...


S = TypeVar("S", bound=RowSource)


@dataclass(eq=False)
class Part(Generic[S]):
    """Some rows of one owner, in one batch.

    keys: what the owner knows its questions by; each has the same number of rows. rows: packed bits (n, bytes) for an
    asynchronous classifier, else (n, *grid) bool. which: (n,) which of the staged pairs each row is of. draws: for each
    question the number of its random background, if it has one.
    """

    owner: S
    turn: int
    keys: Sequence[Any]
    rows: NDArray[Any]
    which: NDArray[np.intp]
    draws: NDArray[np.intp] | None = None
    is_speculative: bool = False
    error: AnswerError | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the owner still waits for these rows."""
        return not self.is_speculative and self.turn == self.owner.turn


@dataclass(frozen=True)
class Flight(Generic[S]):
    """Batches in flight: whose rows they have, and how many rows each has with padding."""

    parts: list[Part[S]]
    promises: list[Promise]
    sizes: list[int]


class Scheduler(Generic[S]):
    """Packs rows into batches and hands out their scores.

    Sources are put into `waiting`. Parts that were delivered, or on which the model failed, are appended to `settled`,
    for the owner to go on with. stats: the batches of all together. guard: a context for calls of the model.
    """

    def __init__(
        self,
        calls: ModelCalls,
        *,
        stats: Stats | None = None,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._calls = calls
        self._guard = guard
        self.waiting: list[S] = []
        self.flights: deque[Flight[S]] = deque()
        self.settled: deque[Part[S]] = deque()
        self.stats = stats or Stats()

    @property
    def is_saturated(self) -> bool:
        """Whether enough rows wait for a good batch, or the device is busy."""
        return bool(self.flights) or self._rows_waiting() >= self._goal()

    def clear(self) -> None:
        """Forget everything that waits, is in flight or was settled."""
        self.waiting.clear()
        self.flights.clear()
        self.settled.clear()

    def launch(self) -> bool:
        """Send a batch, of rows of one kind, if there are enough for one and room for it; says whether it did."""
        if not self.waiting or len(self.flights) >= self._calls.depth:
            return False
        if self.flights and self._rows_waiting() < self._goal():
            return False
        # The search that has the longest way to go comes first, and its kind of rows decides what else fits in: so searches
        # end together, and none is left to ask alone at the end of a run, in batches that are almost empty.
        ordered = sorted(self.waiting, key=lambda source: source.rank)
        kind = ordered[0].kind
        room = max(self._goal(), 1)
        parts: list[Part[S]] = []
        for source in ordered:
            if source.kind == kind and room > 0:
                part = source.take(room, at_least_one=not parts)  # more fills than rows: it goes out in several batches
                if part is not None:
                    parts.append(part)
                    room -= len(part.rows)
        self.waiting = [source for source in ordered if source.rows_left]
        # Guesses fill up the padding only while nothing is in flight: else the rows that come back will fill the next batch.
        if not self.flights:
            rows = sum(len(part.rows) for part in parts)
            free = self._calls.padded_size(rows) - rows
            for part in [*parts]:
                if (guess := part.owner.speculate(free)) is not None:
                    parts.append(guess)
                    free -= len(guess.rows)
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

    def _rows_waiting(self) -> int:
        return sum(source.rows_left for source in self.waiting)

    def _goal(self) -> int:
        """How many rows a batch should have, so that as many batches as possible are in flight in turn."""
        calls = self._calls
        if not calls.is_async or calls.depth == 1:
            return calls.batch_size
        in_flight = sum(len(part.rows) for flight in self.flights for part in flight.parts)
        shared = (self._rows_waiting() + in_flight) // calls.depth
        wanted = min(calls.batch_size, max(shared, 2 * FEW_ROWS // calls.depth))
        fitting = [size for size in calls.classifier.fixed_sizes if size <= wanted]
        return fitting[-1] if fitting else wanted

    def _send(self, parts: list[Part[S]]) -> Flight[S]:
        """Compose the batches and hand them to the model: more than one only where guesses or fills did not fit into it."""
        calls = self._calls
        staged: list[Any] = []
        which = []
        for part in parts:
            pairs = part.owner.stage(part)
            which.append(part.which + len(staged))
            staged += pairs
        rows = sum(len(part.rows) for part in parts)
        sizes = [calls.padded_size(min(calls.batch_size, rows - at)) for at in range(0, rows, calls.batch_size)]
        places = _join(which, sum(sizes), 0)
        data = _join([part.rows for part in parts], sum(sizes), 255 if calls.is_async else True)
        owner = parts[0].owner
        promises: list[Promise] = []
        start = 0
        with self._guard():
            for size in sizes:
                own = slice(start, start + size)
                promises.append(calls.submit(staged, places[own], data[own], owner.grid, is_guided=owner.is_guided))
                start += size
        return Flight(parts, promises, sizes)

    def _deliver(self, flight: Flight[S]) -> None:
        """Wait for the scores and hand them out, each part with its share of what they have cost."""
        with self._guard():
            tables = [self._calls.collect(p, size) for p, size in zip(flight.promises, flight.sizes, strict=True)]
        table = tables[0] if len(tables) == 1 else np.concatenate(tables)
        seconds = sum(promise.seconds for promise in flight.promises)
        rows, size, start = sum(len(part.rows) for part in flight.parts), sum(flight.sizes), 0
        self.stats.batches += len(flight.promises)
        self.stats.slots += size
        self.stats.model_seconds += seconds
        for part in flight.parts:
            count = len(part.rows)
            end = start + count
            slots = size * end // rows - size * start // rows  # the padding is shared out in whole rows
            part.owner.deliver(part, table[start:end], seconds * count / rows, len(flight.promises), slots)
            self.settled.append(part)
            start = end

    def _fail(self, parts: list[Part[S]], error: AnswerError) -> None:
        """Find out whose rows broke the model by evaluating each part alone, and tell those."""
        for part in [part for part in parts if part.is_wanted]:
            if len(parts) > 1:
                try:
                    self._deliver(self._send([part]))
                    continue
                except AnswerError as own:
                    error = own
            part.owner.fail(part, error)
            self.settled.append(part)


def _join(arrays: Sequence[NDArray[Any]], size: int, padding: int | bool) -> NDArray[Any]:
    """Arrays one after the other, padded to `size` rows."""
    rows = sum(len(array) for array in arrays)
    if size > rows:
        arrays = [*arrays, np.full((size - rows, *arrays[0].shape[1:]), padding, arrays[0].dtype)]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
