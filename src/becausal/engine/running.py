"""One search that is running: the questions it waits for, the answers it has had, and what that has cost."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Grid, Pixels, Question, Search, Stop, Visible
from becausal.core.errors import AnswerError, BecausalError, TwinError
from becausal.core.problem import Problem
from becausal.core.stats import Stats
from becausal.core.targets import quantise_margin
from becausal.engine.draws import DrawnBackgrounds
from becausal.engine.keys import Draws, Key, Packed, hash_rows, pack
from becausal.engine.scheduler import Landing

T = TypeVar("T")

Known = tuple[Any, ...]  # holds, margin, confidence; of a box its similarity, too


@dataclass(frozen=True, eq=False)
class Job(Generic[T]):
    """A view whose problem is not known before the model has seen it whole.

    start: makes the problem and its search from the model's answer to the whole view, scores (1, classes) or a label (1,).
    shared: what the model has answered to other jobs of the same view and backgrounds, and to this one.
    """

    view: Pixels
    backgrounds: tuple[Pixels, ...]
    start: Callable[[NDArray[Any]], tuple[Problem, Search[T]]]
    shared: "SharedAnswers | None" = None


@dataclass(eq=False)
class SharedAnswers:
    """What the model returned for one view and its backgrounds, for jobs that ask it about different targets.

    whole: for the whole view, (1, ...). rows: for each question, one row for each background.
    """

    whole: NDArray[Any] | None = None
    rows: dict[Key, NDArray[Any]] = field(default_factory=dict)


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


@dataclass(eq=False)
class RunningSearch(Generic[T]):
    """One search and its questions; a source of rows.

    limit: on its calls, None for none. totals: of the engine. drawn: the problem's random backgrounds, where it has any.
    shared: what the model returned to other searches of the same view, which costs nothing here.
    """

    index: int
    problem: Problem
    search: Search[T]
    staged: tuple[Any, ...]
    limit: int | None
    totals: Stats
    drawn: DrawnBackgrounds | None = None
    shared: SharedAnswers | None = None
    stats: Stats = field(default_factory=Stats)
    begun: float = field(default_factory=time.perf_counter)
    cache: dict[Key, Known] = field(default_factory=dict)
    speculative: dict[Key, Known] = field(default_factory=dict)  # answers that were not asked for yet
    stopped_by: str = "finished"
    broken: BecausalError | None = None  # what the model failed with; nothing is evaluated after that
    turn: int = 0  # counts waves, to recognise those that were given up
    question: Question = field(default_factory=lambda: Question(np.zeros(0, bool)))
    packed: Packed = field(default_factory=lambda: np.zeros(0, np.uint8))
    keys: list[Key] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)  # rows of the wave that are still to be sent
    shown: int = 0  # pixels of the wave's first set: the more, the longer the search still has to go, as a rule
    missing: int = 0  # questions of the wave without an answer: those still to be sent, and those in flight
    is_guided: bool = False  # whether the question may be answered by a twin of the model
    width: int = 1  # calls that a question of the wave costs: one under each fill, or one on its random background

    @property
    def grid(self) -> Grid:
        return self.problem.grid

    @property
    def kind(self) -> Hashable:
        return self.problem.view.shape, self.problem.view.dtype, self.is_guided

    @property
    def rank(self) -> tuple[int, int]:
        return -self.shown, self.index

    @property
    def rows_left(self) -> int:
        return len(self.todo) * self.width

    def accept(self, question: Question) -> None:
        """Take the search's next questions.

        Questions seen before, or twice, need no call. Those the budget does not reach are left out.
        """
        self.turn += 1
        self.question = question
        self.is_guided = self.problem.is_guided and not (question.exact or question.alone)
        uncached = question.uncached or question.alone
        self.width = len(self.staged) if question.draws is None else 1
        if question.draws is not None and self.drawn is None:
            raise ValueError("a search asked for random backgrounds (Question.draws), but the problem has no sampler")
        self.packed = pack(question.visible)
        self.shown = int(np.count_nonzero(question.visible[:1]))
        self.stats.asked += len(question)
        if uncached:
            self.keys = [b"uncached %d" % i for i in range(len(question))]
            for key in self.keys:
                self.cache.pop(key, None)
        else:
            self.keys = hash_rows(self.packed, question.draws, is_guided=self.is_guided)
            self._take_shared()
        room = self._room(uncached)
        self.todo = deque()
        new: set[Key] = set()
        claimed = 0
        for row, key in enumerate(self.keys):
            if key in self.cache or key in new:
                continue
            if room is not None and len(new) + claimed >= room:
                break
            found = self.speculative.pop(key, None)
            if found is None:
                new.add(key)
                self.todo.append(row)
            else:
                self.cache[key] = found
                claimed += 1
        self.missing = len(self.todo)
        for stats in (self.stats, self.totals):
            stats.calls += claimed * self.width
            stats.speculative -= claimed * self.width

    def _take_shared(self) -> None:
        """Judge what the model has already returned to another search."""
        if self.shared is None:
            return
        found = [key for key in dict.fromkeys(self.keys) if key in self.shared.rows and key not in self.cache]
        if found:
            answers = np.concatenate([self.shared.rows[key] for key in found])
            self.cache.update(zip(found, self.judge(answers, self.width), strict=True))

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

    def answer_alone(self, tables: Sequence[NDArray[Any]]) -> Answers:
        """The answers to a question that had batches of its own. tables: what the model returned, under each fill."""
        scores = np.stack(tables, axis=1)  # (n, fills, ...)
        rows = len(self.keys) * self.width
        known = self.judge(scores.reshape(rows, *scores.shape[2:]), self.width)
        self.cache.update(zip(self.keys, known, strict=True))
        self.stats.calls += rows
        self.totals.calls += rows
        return self.answers(len(self.keys))

    def _room(self, uncached: bool) -> int | None:
        """How many more questions the budget allows; None for no limit."""
        if self.broken is not None:
            return 0
        return None if self.limit is None or uncached else max(0, (self.limit - self.stats.calls) // self.width)

    def take(self, room: int, *, at_least_one: bool) -> "QuestionPart[T] | None":
        """The next questions of the wave, to be put into a batch."""
        count = min(len(self.todo), max(room // self.width, int(at_least_one)))
        if count < 1:
            return None
        visible, draws = self.question.visible, self.question.draws
        if draws is not None and self.drawn is not None:
            count = self.drawn.fitting(draws[list(islice(self.todo, count))].tolist())
        rows = [self.todo.popleft() for _ in range(count)]
        # Where they lie together, there is no need to copy them.
        some = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == count else np.array(rows)
        keys = [self.keys[row] for row in rows]
        return QuestionPart(self, keys, visible[some], self.packed[some], None if draws is None else draws[some])

    def speculate(self, count: int) -> "QuestionPart[T] | None":
        """At most `count` questions that the search says it may ask next, and whose answers are not known."""
        question = self.question
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
        return QuestionPart(self, [keys[row] for row in fresh], visible[fresh], packed[fresh], is_speculative=True)

    def answers(self, rows: int) -> Answers:
        """The answers to the first rows of the wave."""
        known = [self.cache[k] for k in self.keys[:rows]]
        holds, margin, confidence, *more = zip(*known, strict=True) if known else ((), (), ())
        similarity = np.array(more[0], float) if more else None
        return Answers(
            np.array(holds, bool), np.array(margin, float), np.array(confidence, float), self.stats.calls, similarity
        )

    def reply(self) -> Answers | Stop:
        """The answers to the whole wave; where the budget did not reach, a Stop with those there are."""
        known = self.known_prefix()
        if known == len(self.keys):
            return self.answers(known)
        if self.stopped_by == "finished":
            self.stopped_by = "budget"
        return Stop(self.stopped_by, self.answers(known), self.broken)

    def interrupt(self, grace: int) -> Stop:
        """Ctrl-C: at most `grace` further questions are evaluated. A Stop with the answers there are."""
        self.stopped_by = "interrupt"
        limit = self.stats.calls + grace * len(self.staged)
        self.limit = limit if self.limit is None else min(self.limit, limit)
        return Stop("interrupt", self.answers(self.known_prefix()))

    def give_up(self, error: BecausalError, reason: str = "failure") -> Stop:
        """The model failed, or hangs: nothing more is evaluated or awaited. A Stop with the answers there are."""
        self.broken, self.stopped_by = error, reason
        self.turn += 1
        self.todo.clear()
        return Stop(reason, self.answers(self.known_prefix()), error)

    def known_prefix(self) -> int:
        """How many of the wave's first questions have an answer."""
        for i, key in enumerate(self.keys):
            if key not in self.cache:
                return i
        return len(self.keys)


@dataclass(eq=False)
class QuestionPart(Generic[T]):
    """Questions of one search in a batch, each of them one row under each fill, or one on its random background."""

    owner: RunningSearch[T]
    keys: list[Key]
    visible: Visible  # (questions, *grid)
    packed: Packed  # (questions, bytes)
    draws: Draws | None = None
    is_speculative: bool = False
    error: AnswerError | None = None
    turn: int = field(init=False)
    width: int = field(init=False)
    is_guided: bool = field(init=False)

    def __post_init__(self) -> None:
        self.turn, self.is_guided = self.owner.turn, self.owner.is_guided
        self.width = len(self.owner.staged) if self.draws is None else 1

    @property
    def grid(self) -> Grid:
        return self.owner.grid

    @property
    def staged(self) -> Sequence[Any]:
        if self.draws is None or self.owner.drawn is None:
            return self.owner.staged
        return self.owner.drawn.staged(np.unique(self.draws).tolist())

    @property
    def count(self) -> int:
        return len(self.keys) * self.width

    @property
    def which(self) -> NDArray[np.intp]:
        if self.draws is not None:
            return np.unique(self.draws, return_inverse=True)[1]
        return np.arange(self.count) % self.width if self.width > 1 else np.zeros(self.count, np.intp)

    @property
    def is_wanted(self) -> bool:
        return not self.is_speculative and self.turn == self.owner.turn

    def rows(self, *, packed: bool) -> NDArray[Any]:
        rows: NDArray[Any] = self.packed if packed else self.visible
        return np.repeat(rows, self.width, axis=0) if self.width > 1 else rows

    def deliver(self, scores: NDArray[Any], landing: Landing) -> None:
        """Keep what the model returned; with several fills the worst answer counts."""
        owner, rows = self.owner, self.count
        known = zip(self.keys, owner.judge(scores, self.width), strict=True)
        if owner.shared is not None:
            by_question = scores.reshape(len(self.keys), self.width, *scores.shape[1:])
            owner.shared.rows.update(zip(self.keys, by_question, strict=True))
        if self.is_speculative:
            owner.speculative.update((key, answer) for key, answer in known if key not in owner.cache)
            owner.stats.speculative += rows
            owner.totals.speculative += rows
            Landing(0, landing.slots, landing.seconds).add_to(owner.stats)
        else:
            owner.cache.update(known)
            owner.stats.calls += rows
            owner.totals.calls += rows
            owner.missing -= len(self.keys)
            landing.add_to(owner.stats)

    def fail(self, error: AnswerError) -> None:
        self.error = TwinError(f"an error: {error}") if self.is_guided else error
