"""The engine: drives searches, packs their questions into batches, remembers answers, keeps the budget.

A search is a generator that yields `visible` arrays (n, *grid) and is sent `Answers`. It never sees a model. The engine
drives any number of them, of any number of views, and every batch it sends may mix questions of all. While a device
works on one batch, the searches whose answers have come go on, and fill the next.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, AsyncClassifier, Classifier, Pixels, Promise, Search, Stop, Visible
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.core.problem import Problem
from becausal.core.searches import Done, step
from becausal.core.stats import Stats
from becausal.engine.drives import Drive, Outcome, Share, assemble, spread
from becausal.engine.interrupts import Shield

__all__ = ["GRACE", "Engine", "Outcome", "Stats", "check_scores"]

T = TypeVar("T")
R = TypeVar("R")

GRACE = 128  # calls a search may still make after an interrupt, to round off its answer

LOOKS = 8  # whole views that are asked together, where the model works beside us
LEAST = 32  # rows that are not worth being asked in two batches

Watch = Callable[[int, int], None]  # (index of the search, its calls so far)


@dataclass
class _Kept:
    """A batch that was answered while we waited."""

    scores: NDArray[Any]
    seconds: float

    def is_ready(self) -> bool:
        return True

    def collect(self) -> NDArray[Any]:
        return self.scores


@dataclass
class _Flight(Generic[T]):
    """A batch under way; the questions of one search lie together."""

    shares: list[Share[T]]
    promises: list[Promise]
    rows: int
    size: int  # of all its batches, padding included


@dataclass
class _Run(Generic[T]):
    """What one `run_many` has under way."""

    source: Iterator[tuple[int, tuple[Problem, Search[T]]]]
    active: dict[int, Drive[T]] = field(default_factory=dict)  # by index
    ready: deque[Drive[T]] = field(default_factory=deque)  # those with questions still to be sent
    flights: deque[_Flight[T]] = field(default_factory=deque)
    done: deque[Outcome[T]] = field(default_factory=deque)
    lost: KeyboardInterrupt | None = None  # what a search ended with that had nothing to give yet
    gone: NetworkError | None = None  # why the model cannot be asked any more

    @property
    def rows_ready(self) -> int:
        return sum(drive.rows_left for drive in self.ready)

    @property
    def rows_flying(self) -> int:
        return sum(flight.rows for flight in self.flights)


class Engine:
    """Asks one classifier on behalf of searches."""

    def __init__(self, classifier: Classifier, *, batch_size: int | None = None, watch: Watch | None = None) -> None:
        self.classifier = classifier
        self.batch_size = min(batch_size or classifier.batch_size, classifier.batch_size)
        self.stats = Stats()
        self._later = classifier if isinstance(classifier, AsyncClassifier) and classifier.depth > 0 else None
        self.watch = watch
        self._shield = Shield()
        self._interrupted = False

    @property
    def width(self) -> int:
        """How many searches side by side keep the model busy: one where it is asked and waited for."""
        return 1 if self._later is None else max(1, self.batch_size // 2)

    @property
    def is_async(self) -> bool:
        """Whether the model works beside us, and need not be waited for."""
        return self._later is not None

    @property
    def at_once(self) -> int:
        """How many whole views are worth looking at together: one where the model is asked and waited for."""
        return 1 if self._later is None else min(LOOKS, self.batch_size)

    def run(self, problem: Problem, search: Search[T], *, max_calls: int | None = None) -> Outcome[T]:
        """Drive one search to its end. Raises what the model failed with, whatever the search had found by then."""
        outcome = next(self.run_many([(problem, search)], max_calls=max_calls))
        if outcome.error is not None:
            raise outcome.error
        return outcome

    def run_many(
        self, items: Iterable[tuple[Problem, Search[T]]], *, max_calls: int | None = None, width: int | None = 1
    ) -> Iterator[Outcome[T]]:
        """Drive searches, `width` of them side by side, and yield each outcome as it comes.

        max_calls is each search's own limit. width: None for as many as keep the model busy. Results do not depend on
        it, on the batch size or on the order. A search whose question breaks the model is told to stop, and its outcome
        has the error; the others go on. Where the model cannot be reached any more all are told, and the NetworkError is
        raised after their outcomes.
        """
        run: _Run[T] = _Run(enumerate(items))
        more = True
        while more:
            try:
                with self._shield:
                    while more and not run.done:
                        more = self._turn(run, width or self.width, max_calls)
            except KeyboardInterrupt as error:
                if self._interrupted or self._shield.is_final:
                    raise
                self._interrupted = True
                run.lost = error
                with self._shield:
                    self._interrupt(run)
            if run.done:
                run.lost = None
            while run.done:
                yield run.done.popleft()
        if run.gone is not None:
            raise run.gone
        if run.lost is not None:
            raise run.lost

    def interrupt(self) -> None:
        """Have the searches under way round off their best so far, as Ctrl-C does."""
        self._shield.note()

    def ask_afresh(self, problem: Problem, visible: Visible) -> Answers:
        """The answers to (n, *grid) questions without memo or budget; with several fills the worst counts."""
        judged = [problem.target.judge(self.ask_plainly(problem.view, b, visible)) for b in problem.backgrounds]
        return Answers(
            np.all([j.holds for j in judged], axis=0),
            np.min([j.margin for j in judged], axis=0),
            np.min([j.confidence for j in judged], axis=0),
        )

    def ask_plainly(self, view: Pixels, background: Pixels, visible: Visible) -> NDArray[Any]:
        """What the classifier says to (n, *grid) questions about one view: scores, or labels; nothing is remembered."""
        staged = [self.stage(view, background)]
        found = []
        for start in range(0, len(visible), self.batch_size):
            part = visible[start : start + self.batch_size]
            size = self._size(len(part))
            padded = np.concatenate([part, np.ones((size - len(part), *part.shape[1:]), bool)])
            found.append(self._scores(self._ask(staged, np.zeros(size, np.intp), padded).collect(), size)[: len(part)])
        return np.concatenate(found)

    def look(self, staged: Sequence[Any], grid: tuple[int, ...]) -> Callable[[], NDArray[Any]]:
        """Begin to ask what the classifier says of whole views, each staged; call the result to have it."""
        size = self._size(len(staged))
        which = np.zeros(size, np.intp)
        which[: len(staged)] = np.arange(len(staged))
        if self._later is not None:
            packed = np.full((size, -(-int(np.prod(grid)) // 8)), 255, np.uint8)
            promise = self._submit(staged, which, packed, grid)
        else:
            promise = self._ask(staged, which, np.ones((size, *grid), bool))
        return lambda: self._scores(self._safely(promise.collect), size)[: len(staged)]

    def stage(self, view: Pixels, background: Pixels) -> Any:
        """The pair where the model lives; a model may be asked there already, so what breaks is an AnswerError too."""
        return self._safely(lambda: self.classifier.stage(view, background))

    # One turn: take in an image, send a batch off, or wait for one and go on with what it says.

    def _turn(self, run: _Run[T], width: int, max_calls: int | None) -> bool:
        try:
            self._fill_up(run, width, max_calls)
            if not run.active:
                return False
            depth = 1 if self._later is None else self._later.depth
            if run.ready and len(run.flights) < depth and (not run.flights or run.rows_ready >= self._goal(run)):
                self._launch(run)
            elif run.flights:
                self._land(run)
        except NetworkError as error:
            self._break_off(run, error)
        return True

    def _fill_up(self, run: _Run[T], width: int, max_calls: int | None) -> None:
        """Begin searches while there is room for them; one at a time once the device has something to do."""
        while len(run.active) < width:
            following = next(run.source, None)
            if following is None:
                return
            index, (problem, search) = following
            staged = tuple(self.stage(problem.view, b) for b in problem.backgrounds)
            drive = Drive(index, problem, search, staged, max_calls)
            run.active[index] = drive
            self._advance(run, drive, None)
            if self._later is not None and (run.flights or run.rows_ready >= self._goal(run)):
                return

    def _goal(self, run: _Run[T]) -> int:
        """How many rows a batch should have, so that as many as may be under way are so by turns."""
        if self._later is None or self._later.depth == 1:
            return self.batch_size
        waiting, depth = run.rows_ready + run.rows_flying, self._later.depth
        wanted = min(self.batch_size, max(self._later.ahead, waiting // depth, 2 * LEAST // depth))
        fitting = [size for size in self.classifier.fixed_sizes if size <= wanted]
        return fitting[-1] if fitting else wanted

    def _launch(self, run: _Run[T]) -> None:
        """Send the next batch off."""
        shares = self._load(run)
        try:
            run.flights.append(self._send(shares))
        except AnswerError as error:
            self._fail(run, shares, error)

    def _load(self, run: _Run[T]) -> list[Share[T]]:
        """Questions for a batch, of the searches with the longest way to go first, so that few are left to end alone;
        guesses as well where they cost no time.
        """
        shares: list[Share[T]] = []
        waiting: deque[Drive[T]] = deque()
        by_way = sorted(run.ready, key=lambda drive: (-drive.shown, drive.index))
        first = by_way[0].problem.view
        room = max(self._goal(run), 1)
        for drive in by_way:
            view = drive.problem.view
            count = min(len(drive.todo), room // drive.width)
            if not shares:
                count = max(count, 1)  # more fills than a batch has rows: the question goes out in several batches
            if (view.shape, view.dtype) == (first.shape, first.dtype) and count > 0:
                shares.append(drive.send(count))
                room -= shares[-1].rows
            if drive.todo:
                waiting.append(drive)  # also images of another size or type: they wait for a batch of their own
        run.ready = waiting
        if self._later is not None and not run.flights:
            free = min(self._later.ahead, self.batch_size) - sum(share.rows for share in shares)
            for share in shares[:]:
                guess = share.drive.guess(free // share.drive.width)
                if guess is not None:
                    shares.append(guess)
                    free -= guess.rows
        return shares

    def _send(self, shares: list[Share[T]]) -> _Flight[T]:
        staged, which = assemble(shares)
        rows = len(which)
        sizes = [self._size(min(self.batch_size, rows - start)) for start in range(0, rows, self.batch_size)]
        size = sum(sizes)
        which = np.concatenate([which, np.zeros(size - rows, np.intp)]) if size > rows else which
        later = self._later is not None
        if later:
            data = spread([share.packed for share in shares], shares, size, 255)
        else:
            data = spread([share.visible for share in shares], shares, size, True)
        promises: list[Promise] = []
        start = 0
        with self._shield.lifted:
            for one in sizes:
                part = slice(start, start + one)
                if later:
                    promises.append(self._submit(staged, which[part], data[part], shares[0].drive.problem.grid))
                else:
                    promises.append(self._ask(staged, which[part], data[part]))
                start += one
        return _Flight(shares, promises, rows, size)

    def _land(self, run: _Run[T]) -> None:
        """Wait for the oldest batch, hand out its answers, go on with the searches that have all they asked for."""
        flight = run.flights.popleft()
        try:
            self._hand_out(flight)
        except AnswerError as error:
            self._fail(run, flight.shares, error)
            return
        for share in flight.shares:
            if share.is_awaited and not share.drive.missing:
                self._advance(run, share.drive, share.drive.reply())

    def _hand_out(self, flight: _Flight[T]) -> None:
        with self._shield.lifted:
            scores = [self._safely(promise.collect) for promise in flight.promises]
        table = self._scores(scores[0] if len(scores) == 1 else np.concatenate(scores), flight.size)
        seconds = sum(promise.seconds for promise in flight.promises)
        self._count(self.stats, len(flight.promises), flight.size, seconds)
        start = 0
        for share in flight.shares:
            end = start + share.rows
            stats = share.drive.stats
            slots = flight.size * end // flight.rows - flight.size * start // flight.rows
            share.record(table[start:end])
            self._count(stats, 0 if share.is_guess else len(flight.promises), slots, seconds * share.rows / flight.rows)
            if share.is_guess:
                self.stats.ahead += share.rows
            else:
                self.stats.calls += share.rows
            start = end
        if self.watch is not None:
            with self._shield.lifted:
                for share in flight.shares:
                    if share.is_awaited:
                        self.watch(share.drive.index, share.drive.stats.calls)

    @staticmethod
    def _count(stats: Stats, batches: int, slots: int, seconds: float) -> None:
        stats.batches += batches
        stats.slots += slots
        stats.model_seconds += seconds

    def _fail(self, run: _Run[T], shares: list[Share[T]], error: AnswerError) -> None:
        """Find out by asking one by one whose question broke the model, and tell those searches."""
        alone = len(shares) == 1
        for share in shares:
            if not share.is_awaited:
                continue
            broken: AnswerError | None = error if alone else None
            if not alone:
                try:
                    self._hand_out(self._send([share]))
                except AnswerError as own:
                    broken = own
            drive = share.drive
            if broken is not None:
                if drive in run.ready:
                    run.ready.remove(drive)
                self._advance(run, drive, drive.give_up(broken))
            elif not drive.missing:
                self._advance(run, drive, drive.reply())

    def _break_off(self, run: _Run[T], error: NetworkError) -> None:
        """Tell every search that the model cannot be asked any more; each ends with what it has, and none is begun."""
        run.gone = error
        run.source = iter(())
        run.flights.clear()
        run.ready.clear()
        for drive in list(run.active.values()):
            with suppress(NetworkError):  # of a search that does not know how to stop: it is raised in the end
                self._advance(run, drive, drive.give_up(error))

    def _interrupt(self, run: _Run[T]) -> None:
        """Tell every search to stop; none is begun any more."""
        run.source = iter(())
        run.flights.clear()
        run.ready.clear()
        for drive in list(run.active.values()):
            drive.stopped_by = "interrupt"
            grace = drive.stats.calls + GRACE * drive.width
            drive.limit = grace if drive.limit is None else min(drive.limit, grace)
            try:
                self._advance(run, drive, Stop("interrupt", drive.answers(drive.known_prefix())))
            except KeyboardInterrupt as error:
                if self._shield.is_final:
                    raise
                run.lost = error  # it had nothing to give; the others may

    def _advance(self, run: _Run[T], drive: Drive[T], message: Answers | Stop | None) -> None:
        """Give the search its answers until it asks something that needs a call, or ends."""
        while True:
            try:
                state = step(drive.search, message)
            except BaseException as error:
                del run.active[drive.index]
                if isinstance(error, Stop) and drive.broken is not None:
                    raise drive.broken from drive.broken.__cause__
                raise
            if isinstance(state, Done):
                del run.active[drive.index]
                drive.stats.seconds = time.perf_counter() - drive.begun
                run.done.append(Outcome(drive.index, state.result, drive.stopped_by, drive.stats, drive.broken))
                return
            claimed = drive.take(self._checked(state, drive.problem))
            self.stats.calls += claimed
            self.stats.ahead -= claimed
            if drive.todo:
                run.ready.append(drive)
                return
            message = drive.reply()

    @staticmethod
    def _checked(wave: Visible, problem: Problem) -> Visible:
        if wave.dtype != np.bool_ or wave.shape[1:] != problem.grid:
            raise AnswerError(f"a search asked with {wave.dtype} {wave.shape}; expected bool (n, {problem.grid})")
        return wave

    # The classifier

    def _size(self, rows: int) -> int:
        """The next fixed size, where the classifier has any."""
        return next((size for size in self.classifier.fixed_sizes if size >= rows), rows)

    def _ask(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> _Kept:
        begun = time.perf_counter()
        scores = self._safely(lambda: self.classifier.ask(staged, which, visible))
        return _Kept(scores, time.perf_counter() - begun)

    def _submit(
        self, staged: Sequence[Any], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: tuple[int, ...]
    ) -> Promise:
        later = self._later
        if later is None:
            raise TypeError("this classifier answers at once")
        return self._safely(lambda: later.submit(staged, which, packed, grid))

    def _scores(self, scores: NDArray[Any], rows: int) -> NDArray[Any]:
        return check_scores(scores, rows, self.classifier.info.output)

    def _safely(self, call: Callable[[], R]) -> R:
        """Whatever breaks in the classifier becomes an AnswerError."""
        try:
            return call()
        except (BecausalError, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())[:300]
            raise AnswerError(
                f"the model failed after {self.stats.calls} calls: {type(error).__name__}: {reason}"
            ) from error


def check_scores(scores: NDArray[Any], rows: int, output: str) -> NDArray[Any]:
    """The scores, if they are what the classifier's `info.output` promises; else an AnswerError that says why not."""
    if output == "labels":
        if scores.shape != (rows,) or not np.issubdtype(scores.dtype, np.integer):
            raise AnswerError(f"the model gave {scores.dtype} {scores.shape}; expected {rows} integer labels")
        return scores
    if scores.ndim != 2 or len(scores) != rows or scores.shape[1] < 2:
        raise AnswerError(f"the model gave an output of shape {scores.shape}; expected ({rows}, classes)")
    if not np.isfinite(scores).all():
        raise AnswerError("the model gave scores that are NaN or infinite")
    return scores
