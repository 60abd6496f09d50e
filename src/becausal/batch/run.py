"""The course of a run: passes over what is waiting, what was lost and what failed, until nothing is left to try."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from becausal.batch.records import Done, Failed, Lost, Pool, Task
from becausal.batch.store import Store
from becausal.core.errors import AnswerError

STREAK = 50  # images in a row on which the model itself breaks, after which the fault is not in the images


@dataclass(frozen=True)
class Event:
    """An image has been dealt with, for whoever watches; error is None for one that was explained."""

    id: int
    image: str
    error: str | None


Watch = Callable[[Event], None]


def run_batch(
    store: Store,
    pool: Pool,
    *,
    retry: int = 0,
    limit: int | None = None,
    watch: Watch | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Explain all that is waiting, then try what failed up to `retry` times again, earlier starts' failures included.

    is_stopping: asked before each image is handed out; once it says True those under way are finished, and no more.
    Raises OutputError when results cannot be kept, AnswerError when the model breaks on every image.
    """
    course = _Course(store, pool, watch, is_stopping)
    course.follow("waiting", limit)
    for _ in range(retry):
        course.follow("failed", limit)


class _Course:
    def __init__(self, store: Store, pool: Pool, watch: Watch | None, is_stopping: Callable[[], bool]) -> None:
        self._store, self._pool, self._watch, self._is_stopping = store, pool, watch, is_stopping
        self._streak = 0

    def follow(self, state: str, limit: int | None) -> None:
        """One pass over the images in a state, and one over those whose workers died, each of them alone."""
        lost = self._take(self._store.tasks(state, limit=limit), alone=False)
        if lost:
            again = self._take((self._store.task(number) for number in sorted(lost)), alone=True)
            for number, reason in again.items():
                self._note(Failed(number, reason))

    def _take(self, tasks: Iterable[Task], *, alone: bool) -> dict[int, str]:
        lost: dict[int, str] = {}
        for result in self._pool.answers(self._until_stopped(tasks), alone=alone):
            match result:
                case Lost(number, reason):
                    lost[number] = reason
                case _:
                    self._note(result)
        return lost

    def _until_stopped(self, tasks: Iterable[Task]) -> Iterator[Task]:
        for task in tasks:
            if self._is_stopping():
                return
            yield task

    def _note(self, result: Done | Failed) -> None:
        if isinstance(result, Done):
            self._store.save(result)
        else:
            self._store.fail(result)
        self._streak = self._streak + 1 if isinstance(result, Failed) and result.is_model else 0
        if self._watch is not None:
            error = result.reason if isinstance(result, Failed) else None
            self._watch(Event(result.id, self._store.task(result.id).item.image, error))
        if self._streak >= STREAK and isinstance(result, Failed):
            raise AnswerError(
                f"the model broke on {STREAK} images in a row, so the run was stopped; the last time: {result.reason}. "
                "Start it again with --retry 1 to try them once more"
            )
