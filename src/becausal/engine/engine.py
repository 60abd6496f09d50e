"""The engine: runs searches, packs their questions into batches, caches answers, keeps the budget.

A search is a generator that yields questions, `visible` arrays (n, *grid), and is sent `Answers`. It never sees a model.
The engine runs any number of them, of any number of views, and every batch may mix questions of all. While a device
evaluates one batch, the searches whose answers have come go on, and fill the next.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Classifier, Pixels, Question, Search, Stop, Visible
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.core.problem import Problem
from becausal.core.searches import Done, step
from becausal.core.stats import Stats
from becausal.core.twins import Twin
from becausal.engine.calls import ModelCalls
from becausal.engine.draws import DrawnBackgrounds
from becausal.engine.first_look import FirstLook
from becausal.engine.interrupts import DeferredInterrupt
from becausal.engine.running import Job, Outcome, QuestionPart, RunningSearch
from becausal.engine.scheduler import Part, Scheduler

T = TypeVar("T")

GRACE, LEAST_GRACE = 128, 12  # calls a search may still make after an interrupt, to complete its answer
GRACE_SECONDS = 1.5  # that they should take, where each of them is a batch

Watch = Callable[[int, int], None]  # (index of the search, its calls so far)
Work = Job[T] | tuple[Problem, Search[T]] | BecausalError  # an error stands for what could not even be prepared


@dataclass
class _Progress(Generic[T]):
    """What one `run_many` is working on."""

    source: Iterator[tuple[int, Work[T]]]
    max_calls: int | None
    scheduler: Scheduler
    active: dict[int, FirstLook[T] | RunningSearch[T]] = field(default_factory=dict)  # by index
    done: deque[Outcome[T | None]] = field(default_factory=deque)
    interrupt: KeyboardInterrupt | None = None  # ended a search that had nothing to give yet
    unreachable: NetworkError | None = None  # why the model cannot be called any more


class Engine:
    """Calls one classifier on behalf of searches.

    batch_size: maximum number of rows per batch, the classifier's own by default. watch: called after each batch, for
    each search in it, with its index and its calls so far.
    """

    def __init__(self, classifier: Classifier, *, batch_size: int | None = None, watch: Watch | None = None) -> None:
        self.classifier = classifier
        self.calls = ModelCalls(classifier, batch_size)
        self.stats = Stats()
        self.watch = watch
        self._shield = DeferredInterrupt()
        self._interrupted = False

    @property
    def width(self) -> int:
        """How many concurrent searches keep the model busy: one where each batch is waited for."""
        return max(1, self.calls.batch_size // 2) if self.calls.is_async else 1

    def run(self, problem: Problem, search: Search[T], *, max_calls: int | None = None) -> Outcome[T]:
        """Run one search to its end. Raises what the model failed with, whatever the search had found by then."""
        outcome = next(self.run_many([(problem, search)], max_calls=max_calls))
        if outcome.error is not None:
            raise outcome.error
        return cast("Outcome[T]", outcome)

    def run_many(
        self, work: Iterable[Work[T]], *, max_calls: int | None = None, width: int | None = 1
    ) -> Iterator[Outcome[T | None]]:
        """Run searches, `width` of them at a time, and yield each outcome as it comes.

        max_calls is each search's own limit. width: None for as many as keep the model busy. Results do not depend on
        it, on the batch size or on the order. A search whose question breaks the model is stopped, and its outcome has
        the error; the others go on. Where the model cannot be reached any more all are stopped, and the NetworkError is
        raised after their outcomes.
        """
        scheduler = Scheduler(self.calls, stats=self.stats, fill=_speculate, guard=self._shield.lifted)
        run: _Progress[T] = _Progress(enumerate(work), max_calls, scheduler)
        more = True
        while more:
            try:
                with self._shield:
                    while more and not run.done:
                        more = self._turn(run, width or self.width)
            except KeyboardInterrupt as error:
                if self._interrupted or self._shield.is_final:
                    raise
                self._interrupted = True
                run.interrupt = error
                with self._shield:
                    self._stop_all(run)
            if run.done:
                run.interrupt = None
            while run.done:
                yield run.done.popleft()
        if run.unreachable is not None:
            raise run.unreachable
        if run.interrupt is not None:
            raise run.interrupt

    def find_twin(self) -> Twin | None:
        """The model's twin, made now if need be."""
        with self._shield.lifted:
            return self.calls.find_twin()

    def interrupt(self) -> None:
        """Have the running searches complete their best result so far, as Ctrl-C does."""
        self._shield.note()

    def ask_uncached(self, problem: Problem, visible: Visible) -> Answers:
        """The answers to (n, *grid) questions without cache or budget; with several fills the worst counts."""
        judged = [problem.target.judge(self.evaluate(problem.view, b, visible)) for b in problem.backgrounds]
        return Answers(
            np.all([j.holds for j in judged], axis=0),
            np.min([j.margin for j in judged], axis=0),
            np.min([j.confidence for j in judged], axis=0),
        )

    def evaluate(self, view: Pixels, background: Pixels, visible: Visible) -> NDArray[np.generic]:
        """Scores (n, classes), or labels (n,), of mutants of one view, (n, *grid); nothing is cached or counted.

        No other rows share their batches.
        """
        with self._shield.lifted:
            return self.calls.evaluate(view, background, visible)

    # One turn: take in a view, send a batch, or wait for one and go on with what it says.

    def _turn(self, run: _Progress[T], width: int) -> bool:
        try:
            self._fill_up(run, width)
            if not run.active:
                return bool(run.done)
            if not run.scheduler.launch():
                run.scheduler.land()
            self._go_on(run)
        except NetworkError as error:
            self._break_off(run, error)
        return True

    def _fill_up(self, run: _Progress[T], width: int) -> None:
        """Begin searches while there is room for them; one at a time once the device has something to do."""
        while len(run.active) < width and not run.done:
            with self._shield.lifted_elsewhere:
                following = next(run.source, None)
            if following is None:
                return
            self._begin(run, *following)
            if self.calls.is_async and run.scheduler.is_saturated:
                return

    def _begin(self, run: _Progress[T], index: int, work: Work[T]) -> None:
        if isinstance(work, BecausalError):
            run.done.append(Outcome(index, None, "failure", Stats(), work))
            return
        view, backgrounds = (work.view, work.backgrounds) if isinstance(work, Job) else (work[0].view, work[0].backgrounds)
        try:
            staged = tuple(self._stage(view, background) for background in backgrounds)
        except AnswerError as error:
            run.done.append(Outcome(index, None, "failure", Stats(), error))
            return
        if isinstance(work, Job):
            run.active[index] = look = FirstLook(index, work, staged)
            if look.scores is None:
                run.scheduler.waiting.append(look)
            else:  # another job of the same view has had the answer
                self._start(run, look)
            return
        run.active[index] = search = RunningSearch(index, *work, staged, run.max_calls, self.stats, self._drawn(work[0]))
        self._advance(run, search, None)

    def _go_on(self, run: _Progress[T]) -> None:
        """Continue the searches that have all they asked for."""
        settled = run.scheduler.settled
        if self.watch is not None:
            with self._shield.lifted_elsewhere:
                for part in settled:
                    if isinstance(part, QuestionPart) and part.is_wanted and part.error is None:
                        self.watch(part.owner.index, part.owner.stats.calls)
        while settled:
            part = settled.popleft()
            if isinstance(part, FirstLook):
                self._start(run, part)
            elif isinstance(part, QuestionPart) and part.is_wanted:
                owner = part.owner
                if part.error is not None:
                    run.scheduler.waiting = [source for source in run.scheduler.waiting if source is not owner]
                    self._advance(run, owner, owner.give_up(part.error))
                elif not owner.missing:
                    self._advance(run, owner, owner.reply())

    def _start(self, run: _Progress[T], look: FirstLook[T]) -> None:
        """Begin the search of a job whose whole view was evaluated."""
        del run.active[look.index]
        try:
            if look.scores is None:
                raise look.error or AnswerError("the whole view was not evaluated")
            problem, search = look.job.start(look.scores)
        except NetworkError:
            raise
        except BecausalError as error:
            run.done.append(Outcome(look.index, None, "failure", look.stats, error))
            return
        self.stats.calls += look.stats.calls
        common = (run.max_calls, self.stats, self._drawn(problem), look.job.shared)
        running = RunningSearch(look.index, problem, search, look.staged, *common, stats=look.stats, begun=look.begun)
        run.active[look.index] = running
        self._advance(run, running, None)

    def _drawn(self, problem: Problem) -> DrawnBackgrounds | None:
        return None if problem.sampler is None else DrawnBackgrounds(problem.view, problem.sampler, self._stage)

    def _stage(self, view: Pixels, background: Pixels) -> Any:
        with self._shield.lifted:  # some models are evaluated here
            return self.calls.stage(view, background)

    def _break_off(self, run: _Progress[T], error: NetworkError) -> None:
        """The model cannot be reached any more: each search ends with what it has, and none is begun."""
        run.unreachable = error
        run.source = iter(())
        run.scheduler.clear()
        for index, search in list(run.active.items()):
            if isinstance(search, FirstLook):
                del run.active[index]
                continue
            with suppress(NetworkError):  # of a search that does not handle Stop: it is raised in the end
                self._advance(run, search, search.give_up(error))

    def _stop_all(self, run: _Progress[T]) -> None:
        """An interrupt: every search is stopped, and none is begun any more. A model that hangs is not called again."""
        hung_for, pace = self._shield.hung_for, self.stats.model_seconds / max(1, self.stats.batches)
        grace = max(LEAST_GRACE, min(GRACE, int(GRACE_SECONDS / max(pace, 1e-9))))
        run.source = iter(())
        run.scheduler.clear()
        for index, search in list(run.active.items()):
            if isinstance(search, FirstLook):
                del run.active[index]
                continue
            if hung_for is None:
                stop = search.interrupt(grace)
            else:
                hang = AnswerError(f"the model had not answered for {hung_for:.0f} s when the search was interrupted")
                stop = search.give_up(hang, "interrupt")
            try:
                self._advance(run, search, stop)
            except KeyboardInterrupt as error:
                if self._shield.is_final:
                    raise
                run.interrupt = error  # it had nothing to give; the others may

    def _advance(self, run: _Progress[T], search: RunningSearch[T], message: Answers | Stop | None) -> None:
        """Send the search its answers until it asks something that needs a call, or ends."""
        while True:
            try:
                state = step(search.search, message)
            except BaseException as error:
                del run.active[search.index]
                if isinstance(error, Stop) and search.stopped_by == "interrupt":
                    raise KeyboardInterrupt from None
                if isinstance(error, Stop) and search.broken is not None:
                    raise search.broken from search.broken.__cause__
                raise
            if isinstance(state, Done):
                del run.active[search.index]
                search.stats.seconds = time.perf_counter() - search.begun
                run.done.append(Outcome(search.index, state.result, search.stopped_by, search.stats, search.broken))
                return
            question = _checked(Question.of(state), search.problem)
            search.accept(question)
            if question.alone and search.todo:
                message = self._ask_alone(search, question)
                continue
            if search.todo:
                run.scheduler.waiting.append(search)
                return
            message = search.reply()

    def _ask_alone(self, search: RunningSearch[T], question: Question) -> Answers | Stop:
        """The answers to a question that shares its batches with no other rows."""
        search.todo.clear()
        search.missing = 0
        problem = search.problem
        try:
            return search.answer_alone([self.evaluate(problem.view, b, question.visible) for b in problem.backgrounds])
        except NetworkError:
            raise
        except AnswerError as error:
            return search.give_up(error)


def _checked(question: Question, problem: Problem) -> Question:
    wave = question.visible
    if wave.dtype != np.bool_ or wave.shape[1:] != problem.grid:
        raise AnswerError(f"a search asked with {wave.dtype} {wave.shape}; expected bool (n, {problem.grid})")
    return question


def _speculate(parts: list[Part], free: int) -> list[Part]:
    """Questions that may be asked next, where evaluating them costs no time."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, QuestionPart):
            guess = part.owner.speculate(free // part.owner.width)
            if guess is not None:
                found.append(guess)
                free -= guess.count
    return found
