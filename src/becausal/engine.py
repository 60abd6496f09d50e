"""The engine: drives searches, packs their questions into batches, remembers answers, keeps the budget.

A search is a generator that yields `visible` arrays (n, *grid) and is sent `Answers`. It never sees a model. The engine
drives any number of them, of any number of views, and every batch it sends may mix questions of all.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.contracts import Answers, Classifier, Pixels, Search, Stop, Visible
from becausal.errors import AnswerError, BecausalError
from becausal.searches import Done, step
from becausal.targets import Target

T = TypeVar("T")
R = TypeVar("R")

GRACE = 128  # calls a search may still make after an interrupt, to round off its answer


@dataclass(frozen=True)
class Case:
    """One view to be asked about: its backgrounds (one per fill; all must keep the target) and the target."""

    view: Pixels  # (*grid, channels)
    backgrounds: tuple[Pixels, ...]  # each (*grid, channels)
    target: Target

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.view.shape[:-1])


@dataclass
class Stats:
    """What driving one search, or many, has cost.

    calls: mutants shown to the model. asked: questions of the searches, repeated ones included. slots: rows of all
    batches, padding included. model_seconds: inside the classifier; seconds: in all.
    """

    calls: int = 0
    asked: int = 0
    batches: int = 0
    slots: int = 0
    model_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def fill_rate(self) -> float:
        return self.calls / self.slots if self.slots else 1.0


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A finished search: its result, what stopped it ("finished", "budget", "interrupt"), what it cost."""

    index: int
    result: T
    stopped_by: str
    stats: Stats


@dataclass
class _Drive(Generic[T]):
    """One search under way."""

    index: int
    case: Case
    search: Search[T]
    staged: list[Any]
    limit: int | None
    memo: dict[bytes, tuple[bool, float, float]] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    stopped_by: str = "finished"
    wave: Visible = field(default_factory=lambda: np.zeros(0, bool))
    keys: list[bytes] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)  # rows of the wave whose answer is not known yet
    parts: dict[bytes, list[tuple[bool, float, float]]] = field(default_factory=dict)  # answers under several fills
    begun: float = field(default_factory=time.perf_counter)

    @property
    def width(self) -> int:
        return len(self.staged)

    def room(self) -> int | None:
        """How many more questions the budget allows; None for no limit."""
        return None if self.limit is None else max(0, (self.limit - self.stats.calls) // self.width)

    def take(self, wave: Visible) -> None:
        """Accept a wave of questions; those seen before, or twice, need no call."""
        self.wave = wave
        self.stats.asked += len(wave)
        packed = np.packbits(wave.reshape(len(wave), -1), axis=1)
        self.keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in packed]
        self.todo = deque()
        new: set[bytes] = set()
        for i, key in enumerate(self.keys):
            if key not in self.memo and key not in new:
                new.add(key)
                self.todo.append(i)

    def answers(self, rows: int) -> Answers:
        """The answers to the first rows of the wave."""
        known = [self.memo[k] for k in self.keys[:rows]]
        holds, margin, confidence = zip(*known, strict=True) if known else ((), (), ())
        return Answers(np.array(holds, bool), np.array(margin, float), np.array(confidence, float), spent=self.stats.calls)

    def known_prefix(self) -> int:
        for i, key in enumerate(self.keys):
            if key not in self.memo:
                return i
        return len(self.keys)

    def record(self, row: int, holds: bool, margin: float, confidence: float) -> None:
        """Note one answer under one fill; with several fills the worst of them counts."""
        key = self.keys[row]
        self.stats.calls += 1
        if self.width > 1:
            seen = self.parts.setdefault(key, [])
            seen.append((holds, margin, confidence))
            if len(seen) < self.width:
                return
            del self.parts[key]
            holds = all(s[0] for s in seen)
            margin, confidence = min(s[1] for s in seen), min(s[2] for s in seen)
        self.memo[key] = (holds, margin, confidence)


Watch = Callable[[int, int], None]  # (index of the search, its calls so far)


class Engine:
    """Asks one classifier on behalf of searches."""

    def __init__(self, classifier: Classifier, *, batch_size: int | None = None, watch: Watch | None = None) -> None:
        self.classifier = classifier
        self.batch_size = min(batch_size or classifier.batch_size, classifier.batch_size)
        self.stats = Stats()
        self._watch = watch
        self._interrupted = False

    def run(self, case: Case, search: Search[T], *, max_calls: int | None = None) -> Outcome[T]:
        """Drive one search to its end."""
        return next(self.run_many([(case, search)], max_calls=max_calls))

    def run_many(
        self, items: Iterable[tuple[Case, Search[T]]], *, max_calls: int | None = None, width: int = 1
    ) -> Iterator[Outcome[T]]:
        """Drive searches, `width` of them side by side, and yield each outcome as it comes.

        max_calls is each search's own limit. Results do not depend on `width`, on the batch size or on the order.
        """
        source = enumerate(items)
        active: deque[_Drive[T]] = deque()
        while True:
            while len(active) < width:
                following = next(source, None)
                if following is None:
                    break
                index, (case, search) = following
                staged = [self.stage(case.view, b) for b in case.backgrounds]
                drive: _Drive[T] = _Drive(index, case, search, staged, max_calls)
                ended = self._advance(drive, None)
                if ended is not None:
                    yield ended
                else:
                    active.append(drive)
            if not active:
                return
            try:
                self._ask_batch(active)
            except AnswerError as error:
                yield from self._fail(active, error)
                continue
            except KeyboardInterrupt:
                if self._interrupted:
                    raise
                self._interrupted = True
                yield from self._interrupt(active)
                source = enumerate(())
                continue
            for _ in range(len(active)):
                drive = active.popleft()
                ended = None if drive.todo else self._advance(drive, self._reply(drive))
                if ended is not None:
                    yield ended
                else:
                    active.append(drive)

    def _fail(self, active: deque[_Drive[T]], error: AnswerError) -> Iterator[Outcome[T]]:
        """Find out by asking one by one whose question broke the model, and tell those searches."""
        alone = len(active) == 1
        for _ in range(len(active)):
            drive = active.popleft()
            broken: AnswerError | None = error if alone else None
            if not alone:
                try:
                    self._ask_batch([drive])
                except AnswerError as own:
                    broken = own
            if broken is None and drive.todo:
                active.append(drive)
                continue
            ended = self._advance(drive, broken or self._reply(drive))
            if ended is not None:
                yield ended
            else:
                active.append(drive)

    def ask_afresh(self, case: Case, visible: Visible) -> Answers:
        """The answers to (n, *grid) questions without memo or budget; with several fills the worst counts."""
        judged = [case.target.judge(self.ask_plainly(case.view, b, visible)) for b in case.backgrounds]
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
            padded = self._pad(part)
            found.append(self.scores(staged, np.zeros(len(padded), np.intp), padded)[: len(part)])
        return np.concatenate(found)

    def stage(self, view: Pixels, background: Pixels) -> Any:
        """The pair where the model lives; a model may be asked there already, so what breaks is an AnswerError too."""
        return self._safely(lambda: self.classifier.stage(view, background))

    def _interrupt(self, active: deque[_Drive[T]]) -> Iterator[Outcome[T]]:
        for _ in range(len(active)):
            drive = active.popleft()
            drive.stopped_by = "interrupt"
            grace = drive.stats.calls + GRACE * drive.width
            drive.limit = grace if drive.limit is None else min(drive.limit, grace)
            ended = self._advance(drive, Stop("interrupt", drive.answers(drive.known_prefix())))
            if ended is not None:
                yield ended
            else:
                active.append(drive)

    def _advance(self, drive: _Drive[T], message: Answers | Stop | AnswerError | None) -> Outcome[T] | None:
        """Give the search its answers until it asks something that needs a call; its outcome if it ends."""
        while True:
            state = step(drive.search, message)
            if isinstance(state, Done):
                drive.stats.seconds = time.perf_counter() - drive.begun
                return Outcome(drive.index, state.result, drive.stopped_by, drive.stats)
            drive.take(self._checked(state, drive.case))
            room = drive.room()
            if room is not None and len(drive.todo) > room:
                # What fits is still asked: a search that gathers others can use a part of a wave.
                drive.todo = deque(islice(drive.todo, room))
            if drive.todo:
                return None
            message = self._reply(drive)

    @staticmethod
    def _reply(drive: _Drive[T]) -> Answers | Stop:
        """The answers to the whole wave, or, where the budget did not reach, the word to stop with those there are."""
        known = drive.known_prefix()
        if known == len(drive.keys):
            return drive.answers(known)
        if drive.stopped_by == "finished":
            drive.stopped_by = "budget"
        return Stop(drive.stopped_by, drive.answers(known))

    @staticmethod
    def _checked(wave: Visible, case: Case) -> Visible:
        if wave.dtype != np.bool_ or wave.shape[1:] != case.grid:
            raise AnswerError(f"a search asked with an array of {wave.dtype} {wave.shape}; expected bool (n, {case.grid})")
        return wave

    def _ask_batch(self, active: Sequence[_Drive[T]]) -> None:
        """Fill one batch from the waves under way, ask it, hand out the answers."""
        rows: list[tuple[_Drive[T], int, int]] = []  # drive, row of its wave, which of its fills
        taken: list[tuple[_Drive[T], int]] = []
        first = active[0].case.view
        for drive in active:
            view = drive.case.view
            if rows and (view.shape, view.dtype) != (first.shape, first.dtype):
                continue  # pictures of another size or type wait for a batch of their own
            drive.parts.clear()  # of a question whose batch was interrupted between two fills
            count = min(len(drive.todo), max(0, self.batch_size - len(rows)) // drive.width)
            if not rows and drive.todo:
                count = max(count, 1)  # more fills than a batch has rows: the question goes out in several batches
            rows += [(drive, row, fill) for row in islice(drive.todo, count) for fill in range(drive.width)]
            taken.append((drive, count))
        for start in range(0, len(rows), self.batch_size):
            self._ask_rows(rows[start : start + self.batch_size])
        for drive, count in taken:  # only now: an interrupted batch is asked again, or given up, as a whole
            for _ in range(count):
                drive.todo.popleft()
            if count and self._watch is not None:
                self._watch(drive.index, drive.stats.calls)

    def _ask_rows(self, rows: list[tuple[_Drive[T], int, int]]) -> None:
        staged: list[Any] = []
        places: dict[int, int] = {}
        which = np.empty(len(rows), np.intp)
        for i, (drive, _, fill) in enumerate(rows):
            pair = drive.staged[fill]
            if id(pair) not in places:
                places[id(pair)] = len(staged)
                staged.append(pair)
            which[i] = places[id(pair)]
        visible = np.stack([drive.wave[row] for drive, row, _ in rows])
        visible = self._pad(visible)
        size = len(visible)
        which = np.concatenate([which, np.zeros(size - len(rows), np.intp)])
        begun = time.perf_counter()
        scores = self.scores(staged, which, visible)[: len(rows)]
        elapsed = time.perf_counter() - begun
        self._count(self.stats, len(rows), size, elapsed)
        self.stats.calls += len(rows)
        start = 0
        while start < len(rows):
            drive, end = rows[start][0], start + 1
            while end < len(rows) and rows[end][0] is drive:
                end += 1
            judged = drive.case.target.judge(scores[start:end])
            for i in range(start, end):
                j = i - start
                drive.record(rows[i][1], bool(judged.holds[j]), float(judged.margin[j]), float(judged.confidence[j]))
            self._count(drive.stats, end - start, end - start, elapsed * (end - start) / len(rows))
            start = end

    @staticmethod
    def _count(stats: Stats, rows: int, slots: int, elapsed: float) -> None:
        stats.batches += 1
        stats.slots += slots
        stats.model_seconds += elapsed

    def _pad(self, visible: Visible) -> Visible:
        """The questions, filled up with whole views to the next fixed size, where the classifier has any."""
        rows = len(visible)
        size = next((size for size in self.classifier.fixed_sizes if size >= rows), rows)
        return np.concatenate([visible, np.ones((size - rows, *visible.shape[1:]), bool)]) if size > rows else visible

    def scores(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        """What the classifier says, checked; whatever breaks in it becomes an AnswerError."""
        scores = self._safely(lambda: self.classifier.ask(staged, which, visible))
        return check_scores(scores, len(visible), self.classifier.info.output)

    def _safely(self, call: Callable[[], R]) -> R:
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
