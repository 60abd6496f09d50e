"""One search that is running: the questions it waits for, the answers it has had, what that has cost, and its memory."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, BackgroundSampler, Grid, Pixels, Question, Search, Stop, Visible
from becausal.core.errors import AnswerError, BecausalError, ImageError, TwinError
from becausal.core.problem import Problem
from becausal.core.stats import Stats
from becausal.core.targets import quantise_margin
from becausal.engine.calls import ModelCalls
from becausal.engine.scheduler import Part

T = TypeVar("T")

MOST_KEPT = 64
LEAST_KEPT = 16  # however large the view: fewer would be staged again and again
KEPT_BYTES = 32 * 2**20  # of one search; tens of searches run at a time on a GPU
PAIR_BYTES = 8  # of a value of the view: it and its background, normalised to float32

MAX_BYTES = 8 * 2**30
BYTES_PER_PIXEL = 128  # of a search: maps, patches, masks and backgrounds; measured with `causal` and `dc-causal`
DRAWING_PAIRS = 4  # memory to draw a random background, as so many pairs of view and background; measured

Key = int | bytes  # hash of a set, and of its random background if it has one; at least 64 bits
Known = tuple[Any, ...]  # holds, margin, confidence; of a box its similarity, too


@dataclass(eq=False)
class SharedAnswers:
    """What the model returned for one view and its backgrounds, for jobs that ask it about different targets.

    whole: for the whole view, (1, ...). rows: for each question, one row for each background.
    """

    whole: NDArray[Any] | None = None
    rows: dict[Key, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Job(Generic[T]):
    """A view whose problem is not known before the model has seen it whole.

    start: makes the problem and its search from the model's answer to the whole view, scores (1, classes) or a label (1,).
    shared: what the model has answered to other jobs of the same view and backgrounds, and to this one.
    """

    view: Pixels
    backgrounds: tuple[Pixels, ...]
    start: Callable[[NDArray[Any]], tuple[Problem, Search[T]]]
    shared: SharedAnswers | None = None


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A finished search: its result, what stopped it ("finished", "budget", "interrupt", "failure"), what it cost.

    result: None where the search could not begin. error: what the model failed with, or why it could not begin.
    """

    index: int
    result: T
    stopped_by: str
    stats: Stats
    error: BecausalError | None = None


def kept_count(size: int) -> int:
    """How many random backgrounds of a view with this many values are kept."""
    return min(MOST_KEPT, max(LEAST_KEPT, KEPT_BYTES // max(1, PAIR_BYTES * size)))


class DrawnBackgrounds:
    """The numbered random backgrounds of one search, drawn and staged when a batch needs them; at most `capacity` are kept.

    A search evaluates thousands of sets on the same few backgrounds, so these stay where the model is. To check a set, it
    uses a hundred others once each; they take the place of those not used for longest.
    """

    def __init__(self, view: Pixels, sampler: BackgroundSampler, stage: Callable[[Pixels, Pixels], Any]) -> None:
        self._view = view
        self._sampler = sampler
        self._stage = stage
        self._kept: dict[int, Any] = {}  # by number, the one not used for longest first
        self.capacity = kept_count(view.size)

    def fitting(self, draws: Sequence[int]) -> int:
        """How many of the first draws one batch may have, so that it needs no more than `capacity` backgrounds."""
        numbers: set[int] = set()
        for count, number in enumerate(draws):
            numbers.add(number)
            if len(numbers) > self.capacity:
                return count
        return len(draws)

    def staged(self, numbers: Sequence[int]) -> list[Any]:
        """The pairs with these numbers, at most `capacity` different ones. Raises AnswerError where one cannot be made."""
        for number in numbers:
            if number in self._kept:
                self._kept[number] = self._kept.pop(number)  # now the last to go
        for number in numbers:
            if number not in self._kept:
                try:
                    background = self._sampler.draw(number)
                except BecausalError as error:  # e.g. a file of the user's folder that cannot be read
                    raise AnswerError(str(error)) from error
                while len(self._kept) >= self.capacity:
                    del self._kept[next(iter(self._kept))]
                self._kept[number] = self._stage(self._view, background)
        return [self._kept[number] for number in numbers]


@dataclass(eq=False)
class RunningSearch(Generic[T]):
    """One job and the questions of its search; a source of rows. Its first question is the whole view (`look`).

    staged: the view with each of its backgrounds. limit: on its calls, None for none. is_packed: whether the model takes
    sets as bits.
    """

    index: int
    job: Job[T]
    staged: Sequence[Any]
    limit: int | None
    is_packed: bool
    stats: Stats = field(default_factory=Stats)
    begun: float = field(default_factory=time.perf_counter)
    whole: NDArray[Any] | None = None  # the model's answer to the whole view
    problem: Problem = field(init=False)  # from the answer to the whole view on, as the two below
    search: Search[T] = field(init=False)
    drawn: DrawnBackgrounds | None = None  # the problem's random backgrounds, where it has any
    has_begun: bool = False
    cache: dict[Key, Known] = field(default_factory=dict)
    speculative: dict[Key, Known] = field(default_factory=dict)  # answers that were not asked for yet
    stopped_by: str = "finished"
    broken: BecausalError | None = None  # what the model failed with; nothing is evaluated after that
    turn: int = 0  # counts waves, to recognise those that were given up
    question: Question = field(default_factory=lambda: Question(np.zeros(0, bool)))
    rows: NDArray[Any] = field(default_factory=lambda: np.zeros(0, bool))  # the sets of the wave, as the model takes them
    keys: list[Key] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)  # rows of the wave that are still to be sent
    shown: int = 0  # pixels of the wave's first set: the more, the longer the search still has to go, as a rule
    missing: int = 0  # questions of the wave without an answer: those still to be sent, and those in flight
    is_guided: bool = False  # whether the question may be answered by a twin of the model
    width: int = 1  # calls that a question of the wave costs: one under each fill, or one on its random background

    @property
    def grid(self) -> Grid:
        return tuple(self.job.view.shape[:-1])

    @property
    def kind(self) -> Hashable:
        return self.job.view.shape, self.job.view.dtype, self.is_guided

    @property
    def rank(self) -> tuple[int, int]:
        return -self.shown, self.index

    @property
    def rows_left(self) -> int:
        return len(self.todo) * self.width

    # The way of a question: accepted, taken into a batch, delivered, replied to.

    def look(self) -> None:
        """Ask for the whole view under the first fill, of the model itself: its answer decides what the problem is."""
        self.question = Question(np.ones((1, *self.grid), bool))
        self.rows = pack(self.question.visible) if self.is_packed else self.question.visible
        self.keys, self.todo = [b"whole"], deque([0])  # never in the cache: without a target it cannot be judged
        self.shown = self.question.visible.size

    def accept(self, question: Question) -> None:
        """Take the search's next questions.

        Questions seen before, or twice, need no call. Those the budget does not reach are left out.
        """
        visible = question.visible
        if visible.dtype != np.bool_ or visible.shape[1:] != self.grid:
            raise AnswerError(f"a search asked with {visible.dtype} {visible.shape}; expected bool (n, {self.grid})")
        if question.draws is not None and self.drawn is None:
            raise ValueError("a search asked for random backgrounds (Question.draws), but the problem has no sampler")
        self.turn += 1
        self.question = question
        self.is_guided = self.problem.is_guided and not (question.exact or question.alone)
        self.width = len(self.staged) if question.draws is None else 1
        self.shown = int(np.count_nonzero(visible[:1]))
        self.stats.asked += len(question)
        packed = pack(visible)
        self.rows = packed if self.is_packed else visible
        uncached = question.uncached or question.alone
        if uncached:
            # Keys of its own, so that a set which was evaluated before is sent all the same, and its old answer stays.
            self.keys = [b"uncached %d" % i for i in range(len(question))]
            for key in self.keys:
                self.cache.pop(key, None)
        else:
            self.keys = hash_rows(packed, question.draws, is_guided=self.is_guided)
            shared = self.job.shared.rows if self.job.shared is not None else {}
            found = [key for key in dict.fromkeys(self.keys) if key in shared and key not in self.cache]
            if found:  # the model has answered it to another search: it costs nothing here
                answers = np.concatenate([shared[key] for key in found])
                self.cache.update(zip(found, self.judge(answers, self.width), strict=True))
        room: int | None = None  # how many more questions the budget allows
        if self.broken is not None:
            room = 0
        elif self.limit is not None and not uncached:
            room = max(0, (self.limit - self.stats.calls) // self.width)
        # The budget counts what the search asks for, in its order, whether it was guessed or not: so that it ends at the
        # same question on a GPU, whose batches have room for guesses, as on a CPU.
        self.todo = deque()
        new: set[Key] = set()
        claimed = 0
        for row, key in enumerate(self.keys):
            if key in self.cache or key in new:
                continue
            if room is not None and len(new) + claimed >= room:
                break
            guessed = self.speculative.pop(key, None)
            if guessed is None:
                new.add(key)
                self.todo.append(row)
            else:  # the guess was right: it becomes a call now, so that the budget is the same with guesses and without
                self.cache[key] = guessed
                claimed += 1
        self.missing = len(self.todo)
        self.stats.calls += claimed * self.width
        self.stats.speculative -= claimed * self.width

    def take(self, room: int, *, at_least_one: bool) -> "Part[RunningSearch[T]] | None":
        count = min(len(self.todo), max(room // self.width, int(at_least_one)))
        if count < 1:
            return None
        draws = self.question.draws
        if draws is not None and self.drawn is not None:
            count = self.drawn.fitting(draws[list(islice(self.todo, count))].tolist())
        rows = [self.todo.popleft() for _ in range(count)]
        # Where they lie together, there is no need to copy them.
        some = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == count else np.array(rows)
        return self._part([self.keys[row] for row in rows], self.rows[some], None if draws is None else draws[some])

    def speculate(self, room: int) -> "Part[RunningSearch[T]] | None":
        """Questions that the search says it may ask next, and whose answers are not known."""
        question, count = self.question, room // self.width
        if question.lookahead is None or question.draws is not None or count < 1:
            return None
        visible = np.asarray(question.lookahead(count), bool)[:count]
        if not len(visible):
            return None
        packed = pack(visible)
        keys = hash_rows(packed, is_guided=self.is_guided)
        seen = {*self.keys}
        fresh = []
        for row, key in enumerate(keys):
            if key not in seen and key not in self.cache and key not in self.speculative:
                seen.add(key)
                fresh.append(row)
        if not fresh:
            return None
        part = self._part([keys[row] for row in fresh], (packed if self.is_packed else visible)[fresh])
        part.is_speculative = True
        return part

    def _part(self, keys: list[Key], rows: NDArray[Any], draws: NDArray[np.intp] | None = None) -> "Part[RunningSearch[T]]":
        """Questions in a batch, each of them one row under each fill, or one on its random background."""
        if draws is not None:
            which = np.unique(draws, return_inverse=True)[1]
        elif self.width > 1:
            rows, which = np.repeat(rows, self.width, axis=0), np.arange(len(keys) * self.width) % self.width
        else:
            which = np.zeros(len(keys), np.intp)
        return Part(self, self.turn, keys, rows, which, draws)

    def stage(self, part: "Part[RunningSearch[T]]") -> Sequence[Any]:
        if part.draws is None or self.drawn is None:
            return self.staged
        return self.drawn.staged(np.unique(part.draws).tolist())

    def deliver(
        self, part: "Part[RunningSearch[T]]", scores: NDArray[Any], seconds: float, batches: int, slots: int
    ) -> None:
        """Keep what the model returned; with several fills the worst answer counts."""
        shared, count, width = self.job.shared, len(part.rows), len(part.rows) // len(part.keys)
        self.stats.batches += 0 if part.is_speculative else batches
        self.stats.slots += slots
        self.stats.model_seconds += seconds
        if not self.has_begun:
            self.whole = scores
            self.stats.calls += count
            if shared is not None:
                shared.whole = scores
            return
        known = zip(part.keys, self.judge(scores, width), strict=True)
        if shared is not None:
            by_question = scores.reshape(len(part.keys), width, *scores.shape[1:])
            shared.rows.update(zip(part.keys, by_question, strict=True))
        if part.is_speculative:
            self.speculative.update((key, answer) for key, answer in known if key not in self.cache)
            self.stats.speculative += count
        else:
            self.cache.update(known)
            self.missing -= len(part.keys)
            self.stats.calls += count

    def fail(self, part: "Part[RunningSearch[T]]", error: AnswerError) -> None:
        part.error = TwinError(f"an error: {error}") if self.is_guided else error

    def reply(self) -> Answers | Stop:
        """The answers to the whole wave; where the budget did not reach, a Stop with those there are."""
        answers = self.answers()
        if len(answers) == len(self.keys):
            return answers
        if self.stopped_by == "finished":
            self.stopped_by = "budget"
        return Stop(self.stopped_by, answers, self.broken)

    def answer_alone(self, tables: Sequence[NDArray[Any]]) -> Answers:
        """The answers to a question that had batches of its own. tables: what the model returned, under each fill."""
        self.todo.clear()
        self.missing = 0
        scores = np.stack(tables, axis=1)  # (n, fills, ...)
        rows = len(self.keys) * self.width
        known = self.judge(scores.reshape(rows, *scores.shape[2:]), self.width)
        self.cache.update(zip(self.keys, known, strict=True))
        self.stats.calls += rows
        return self.answers()

    def interrupt(self, grace: int) -> Stop:
        """Ctrl-C: at most `grace` further questions are evaluated. A Stop with the answers there are."""
        self.stopped_by = "interrupt"
        limit = self.stats.calls + grace * len(self.staged)
        self.limit = limit if self.limit is None else min(self.limit, limit)
        return Stop("interrupt", self.answers())

    def give_up(self, error: BecausalError, reason: str = "failure") -> Stop:
        """The model failed, or hangs: nothing more is evaluated or awaited. A Stop with the answers there are."""
        self.broken, self.stopped_by = error, reason
        self.turn += 1  # so parts that are still in flight are no longer wanted
        self.todo.clear()
        return Stop(reason, self.answers(), error)

    def answers(self) -> Answers:
        """The answers to the wave, up to the first question that has none yet."""
        known = []
        for key in self.keys:
            if key not in self.cache:
                break
            known.append(self.cache[key])
        holds, margin, confidence, *more = zip(*known, strict=True) if known else ((), (), ())
        similarity = np.array(more[0], float) if more else None
        return Answers(
            np.array(holds, bool), np.array(margin, float), np.array(confidence, float), self.stats.calls, similarity
        )

    def judge(self, scores: NDArray[Any], width: int) -> list[Known]:
        """What the model's answers say of the target, for each question; of `width` rows each the worst counts."""
        judged = self.problem.target.judge(scores)
        holds, margin, confidence, similarity = judged.holds, judged.margin, judged.confidence, judged.similarity
        if width > 1:
            holds = np.asarray(holds.reshape(-1, width).all(axis=1))
            margin, confidence = margin.reshape(-1, width).min(axis=1), confidence.reshape(-1, width).min(axis=1)
            similarity = None if similarity is None else similarity.reshape(-1, width).min(axis=1)
        columns = [holds.tolist(), quantise_margin(margin, holds).tolist(), confidence.tolist()]
        return list(zip(*columns, *([] if similarity is None else [similarity.tolist()]), strict=True))


def pack(visible: Visible) -> NDArray[np.uint8]:
    """Sets, (n, *grid), eight pixels to a byte, (n, bytes)."""
    return np.packbits(visible.reshape(len(visible), -1), axis=1)


def hash_rows(packed: NDArray[np.uint8], draws: NDArray[np.intp] | None = None, *, is_guided: bool = False) -> list[Key]:
    """A hash of each row, and of its draw: Python's own where it has 64 bits, as it is by far the fastest.

    is_guided: answers of a twin have keys of their own, so that none is taken for one of the model.
    """
    if is_guided:
        packed = np.hstack([packed, np.zeros((len(packed), 1), np.uint8)])
    if draws is not None:
        packed = np.hstack([packed, draws.astype(np.int64)[:, None].view(np.uint8)])
    if sys.hash_info.width < 64:
        return [blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(packed)]
    return [hash(row.tobytes()) for row in packed]


def require_memory(name: str, shape: tuple[int, ...], itemsize: int, calls: ModelCalls, *, has_draws: bool = False) -> None:
    """Refuse a view, (*grid, channels), whose search would take more memory than MAX_BYTES, or than this machine has.

    name: of the image, for the message. itemsize: bytes of one of its numbers. calls: the model; a batch on a GPU is not
    counted. has_draws: whether the search uses random backgrounds. Raises ImageError.
    """
    rows = 0 if calls.is_async else calls.batch_size
    needed = prod(shape[:-1]) * BYTES_PER_PIXEL + rows * prod(shape) * itemsize
    if has_draws:  # those that are kept, those in the rows of the last batch, and one that is being drawn
        kept = 0 if calls.is_async else kept_count(prod(shape)) + rows
        needed += (kept + DRAWING_PAIRS) * PAIR_BYTES * prod(shape)
    limit = min(MAX_BYTES, total_memory())
    if needed <= limit:
        return
    is_image = len(shape) == 3
    size = "x".join(str(side) for side in (reversed(shape[:-1]) if is_image else shape[:-1]))
    advice = "add --resize, e.g. --resize 512" if is_image else "make it smaller first"
    raise ImageError(
        f"{name} is seen by the model at a size of {size}: to explain it would take about {needed / 2**30:.0f} GB of memory "
        f"with a batch size of {calls.batch_size}, and the limit is {limit / 2**30:.0f} GB: {advice}"
    )


def total_memory() -> int:
    """Bytes of memory that this process may use; a very large number where that is not known."""
    found = [2**62]
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))  # of a container; "max" for no limit
    except (OSError, ValueError, AttributeError):
        pass
    return min(size for size in found if size > 0)
