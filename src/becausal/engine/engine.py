"""The engine: runs searches, packs their questions into batches, caches answers, keeps the budget.

A search is a generator that yields questions, `visible` arrays (n, *grid), and is sent `Answers`. It never sees a model.
The engine runs any number of them, of any number of views, and every batch may mix questions of all. While a device
evaluates one batch, the searches whose answers have come go on, and fill the next.

The way of a question: a search yields it (`Engine._advance`), what is known or beyond the budget is left out
(`RunningSearch.accept`), the rest is packed with rows of other searches (`Scheduler.launch`, `RunningSearch.take`) and sent
(`ModelCalls.submit`). Its scores are collected (`Scheduler.land`), judged and kept (`RunningSearch.deliver`), and the search
is sent its answers (`Engine._go_on`, `RunningSearch.reply`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Classifier, Done, Pixels, Question, Search, Stop, Twin, Visible, step
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.core.problem import Problem
from becausal.core.stats import Stats
from becausal.engine.calls import ModelCalls, Read
from becausal.engine.interrupts import DeferredInterrupt
from becausal.engine.running import DrawnBackgrounds, Job, Outcome, RunningSearch
from becausal.engine.scheduler import Scheduler

T = TypeVar("T")

GRACE, LEAST_GRACE = 128, 12  # calls a search may still make after an interrupt, to complete its answer
GRACE_SECONDS = 1.5  # that they should take, where each of them is a batch

Watch = Callable[[int, int], None]  # (index of the search, its calls so far)
Work = Job[T] | tuple[Problem, Search[T]] | BecausalError  # an error stands for what could not even be prepared


@dataclass
class _Progress(Generic[T]):
    """What one `run_many` is working on: its state, and not the `Status` that users see."""

    source: Iterator[tuple[int, Work[T]]]
    max_calls: int | None
    width: int
    scheduler: Scheduler[RunningSearch[T]]
    active: dict[int, RunningSearch[T]] = field(default_factory=dict)  # by index
    done: deque[Outcome[T | None]] = field(default_factory=deque)
    interrupt: KeyboardInterrupt | None = None  # ended a search that had nothing to give yet
    unreachable: NetworkError | None = None  # why the model cannot be called any more


class Engine:
    """Calls one classifier on behalf of searches.

    batch_size: maximum number of rows per batch, the classifier's own by default. watch: called after each batch, for
    each search in it, with its index and its calls so far. stats: the batches so far.
    """

    def __init__(self, classifier: Classifier, *, batch_size: int | None = None, watch: Watch | None = None) -> None:
        self.classifier = classifier
        self.calls = ModelCalls(classifier, batch_size)
        self.stats = Stats()
        self.watch = watch
        self._shield = DeferredInterrupt()
        self._interrupted = False

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
        # Where each batch is waited for, one search keeps the model busy.
        natural = max(1, self.calls.batch_size // 2) if self.calls.is_async else 1
        scheduler: Scheduler[RunningSearch[T]] = Scheduler(self.calls, stats=self.stats, guard=self._shield.lifted)
        run: _Progress[T] = _Progress(enumerate(work), max_calls, width or natural, scheduler)
        more = True
        while more:
            try:
                with self._shield:
                    while more and not run.done:
                        more = self._turn(run)
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
        with self._shield.lifted():
            return self.calls.find_twin()

    def interrupt(self) -> None:
        """Have the running searches complete their best result so far, as Ctrl-C does."""
        self._shield.note()

    def ask_uncached(self, problem: Problem, visible: Visible) -> Answers:
        """The answers to (n, *grid) questions without cache or budget; with several fills the worst counts."""
        view, target = problem.view, problem.target
        judged = [target.judge(self.evaluate(view, b, visible, target.read)) for b in problem.backgrounds]
        return Answers(
            np.all([j.holds for j in judged], axis=0),
            np.min([j.margin for j in judged], axis=0),
            np.min([j.confidence for j in judged], axis=0),
        )

    def evaluate(self, view: Pixels, background: Pixels, visible: Visible, read: Read | None = None) -> NDArray[np.generic]:
        """Scores (n, classes), or labels (n,), of mutants of one view, (n, *grid); nothing is cached or counted.

        No other rows share their batches. read: see `ModelCalls.evaluate`.
        """
        with self._shield.lifted():
            return self.calls.evaluate(view, background, visible, read)

    # One turn: take in a view, send a batch, or wait for one and go on with what it says.

    def _turn(self, run: _Progress[T]) -> bool:
        try:
            while len(run.active) < run.width and not run.done:
                with self._shield.lifted(can_hang=False):
                    following = next(run.source, None)
                if following is None:
                    break
                self._begin(run, *following)
                if self.calls.is_async and run.scheduler.is_saturated:
                    break  # the device has something to do: what it says goes first
            if not run.active:
                return bool(run.done)
            if not run.scheduler.launch():
                run.scheduler.land()
            self._go_on(run)
        except NetworkError as error:
            run.unreachable = error
            for search in self._clear(run):
                with suppress(NetworkError):  # of a search that does not handle Stop: it is raised in the end
                    self._advance(run, search, search.give_up(error))
        return True

    def _begin(self, run: _Progress[T], index: int, work: Work[T]) -> None:
        """Stage a view, and ask for the whole of it, unless its problem or the answer is known."""
        if isinstance(work, BecausalError):
            run.done.append(Outcome(index, None, "failure", Stats(), work))
            return
        # A pair of problem and search needs no answer to the whole view: its `start` returns what there is.
        job: Job[T] = work if isinstance(work, Job) else Job(work[0].view, work[0].backgrounds, lambda _: work)
        try:
            staged = [self._stage(job.view, background) for background in job.backgrounds]
        except AnswerError as error:
            run.done.append(Outcome(index, None, "failure", Stats(), error))
            return
        search = RunningSearch(index, job, staged, run.max_calls, self.calls.is_async)
        run.active[index] = search
        search.whole = None if job.shared is None else job.shared.whole
        if search.whole is None and isinstance(work, Job):
            search.look()
            run.scheduler.waiting.append(search)
        else:
            self._start(run, search)

    def _go_on(self, run: _Progress[T]) -> None:
        """Continue the searches that have all they asked for."""
        wanted = [part for part in run.scheduler.settled if part.is_wanted]
        run.scheduler.settled.clear()
        if self.watch is not None:
            with self._shield.lifted(can_hang=False):
                for part in wanted:
                    if part.owner.has_begun and part.error is None:
                        self.watch(part.owner.index, part.owner.stats.calls)
        for part in wanted:
            search = part.owner
            if not part.is_wanted:  # given up while another part of it was gone on with
                continue
            if not search.has_begun:
                self._start(run, search, part.error)
            elif part.error is not None:
                run.scheduler.waiting = [source for source in run.scheduler.waiting if source is not search]
                self._advance(run, search, search.give_up(part.error))
            elif not search.missing:
                self._advance(run, search, search.reply())

    def _start(self, run: _Progress[T], search: RunningSearch[T], error: AnswerError | None = None) -> None:
        """Begin the search of a job whose whole view was evaluated."""
        try:
            if error is not None:
                raise error
            problem, own = search.job.start(np.zeros(0) if search.whole is None else search.whole)
        except NetworkError:
            del run.active[search.index]
            raise
        except BecausalError as failure:
            del run.active[search.index]
            run.done.append(Outcome(search.index, None, "failure", search.stats, failure))
            return
        drawn = None if problem.sampler is None else DrawnBackgrounds(problem.view, problem.sampler, self._stage)
        search.problem, search.search, search.drawn, search.has_begun = problem, own, drawn, True
        self._advance(run, search, None)

    def _stage(self, view: Pixels, background: Pixels) -> Any:
        with self._shield.lifted():  # some models are evaluated here
            return self.calls.stage(view, background)

    def _clear(self, run: _Progress[T]) -> list[RunningSearch[T]]:
        """Nothing is begun or awaited any more; the searches that have to be told."""
        run.source = iter(())
        run.scheduler.clear()
        run.active = {index: search for index, search in run.active.items() if search.has_begun}
        return list(run.active.values())

    def _stop_all(self, run: _Progress[T]) -> None:
        """An interrupt: every search is stopped. A model that hangs is not called again."""
        # A search still asks what its best set is worth, so that an interrupted explanation is checked, too. That must not
        # take longer than one waits after Ctrl-C: with a slow model it is a few calls, with a fast one enough for all.
        hung_for, pace = self._shield.hung_for, self.stats.model_seconds / max(1, self.stats.batches)
        grace = max(LEAST_GRACE, min(GRACE, int(GRACE_SECONDS / max(pace, 1e-9))))
        for search in self._clear(run):
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
            question = Question.of(state)
            search.accept(question)
            if not search.todo:  # everything is known, or beyond the budget: it goes on at once, without a batch
                message = search.reply()
            elif question.alone:
                try:
                    view, visible = search.job.view, question.visible
                    tables = [self.evaluate(view, background, visible) for background in search.job.backgrounds]
                    message = search.answer_alone(tables)
                except NetworkError:
                    raise
                except AnswerError as error:
                    message = search.give_up(error)
            else:
                run.scheduler.waiting.append(search)
                return
