"""What a worker does, in any kind of pool: load the model once, explain tasks, make rows and files; and its messages.

Messages are small frozen dataclasses that can be pickled.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from becausal import models
from becausal.api import Failure, explain_boxes, explain_numbered, find_failure, not_a_detector
from becausal.api.explanation import Explanation
from becausal.batch.index import ERROR_FILE, IndexRow, Stamp, make_row, stamp_of
from becausal.batch.inputs import InputItem
from becausal.batch.settings import BatchJob, hash_files
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.core.text import one_line
from becausal.images.loading import InputImage, load_image
from becausal.models.labels import find_label

MAX_REASON = 300  # characters of an error message in the index


@dataclass(frozen=True)
class BatchTask:
    """An image to explain."""

    id: int  # its number in the run
    path: str  # absolute
    item: InputItem


@dataclass(frozen=True)
class WorkerReady:
    """A worker has loaded the model."""

    facts: dict[str, str | None]  # hashes and preprocessing, which must be the same for all workers and starts
    notes: tuple[str, ...] = ()  # what the model had to assume


@dataclass(frozen=True)
class WorkerFailed:
    """A worker cannot load the model."""

    reason: str
    has_died: bool = False  # without a word, with the tasks it held


#: A row of the index (see `index.RESULTS`), with an `error` if the box could not be explained, and its files as bytes.
RowFiles = tuple[IndexRow, dict[str, bytes]]


@dataclass(frozen=True)
class TaskDone:
    """An explained image: one result, or one for each of its boxes, some of which may have failed."""

    id: int
    results: tuple[RowFiles, ...]
    stamp: Stamp | None = None  # of the image file, None if unknown
    notes: tuple[str, ...] = ()  # what the model had to assume, as known by now


@dataclass(frozen=True)
class TaskFailed:
    """An image that could not be explained."""

    id: int
    reason: str  # one line
    sha256: str | None = None
    is_model: bool = False  # the model itself failed


@dataclass(frozen=True)
class TaskLost:
    """An image whose worker died or failed unexpectedly while it held other images too; it is retried separately."""

    id: int
    reason: str


TaskResult = TaskDone | TaskFailed | TaskLost


class WorkerPool(Protocol):
    """Explains tasks in any order; holds only as many as its workers need to stay busy.

    feeds_device: whether a device waits while this process does something else, so that results must be taken at once.
    """

    @property
    def feeds_device(self) -> bool: ...

    def results(self, tasks: Iterable[BatchTask], *, one_at_a_time: bool = False) -> Iterator[TaskResult]:
        """One result per task, of which there is at least one: workers are started at once.

        one_at_a_time: never two tasks in one worker at once, so that a crash can be attributed to its image.
        Raises ModelError when no worker can load the model.
        """

    def close(self) -> None:
        """End all workers."""


ModelCheck = Callable[[WorkerReady], None]  # raises InputError for a model other than the run's


def open_model(job: BatchJob) -> tuple[Classifier, WorkerReady]:
    """The job's model and its facts.

    Raises what `load_model` raises, TargetError for an unknown label, and ModelError for boxes of a classifier.
    """
    classifier = models.open_model(job.model, job.loading)
    info = classifier.info
    if job.every_box and info.output != "boxes":
        raise not_a_detector(info)
    for label in (job.request.target, job.request.against):
        if label is not None and info.labels is not None and info.output != "labels":
            find_label(label, info.labels, len(info.labels))
    facts: dict[str, str | None] = {
        "model_sha256": info.sha256,
        "labels_sha256": None if info.labels is None else sha256("\n".join(info.labels).encode()).hexdigest(),
        "preprocess": f"{info.geometry or 'as it is'}; {info.normalisation}",
        **hash_files(job),
    }
    return classifier, WorkerReady(facts, info.notes)


def try_open_model(job: BatchJob) -> tuple[Classifier | None, WorkerReady | WorkerFailed]:
    """The job's model, None if it cannot be loaded, and what a worker reports of it."""
    try:
        return open_model(job)
    except BecausalError as error:
        return None, WorkerFailed(one_line(error, MAX_REASON))


def explain_tasks(
    tasks: Iterable[BatchTask], classifier: Classifier, job: BatchJob, *, width: int | None = 1
) -> Iterator[TaskResult]:
    """Explain tasks, `width` of them concurrently (None: chosen by `explain_many`); one result each, in any order.

    A failure may be reported with the next result, or at the end. A task whose search was cut short by a failure of the
    model counts as failed, so that it can be retried. When the model cannot be reached, the tasks in progress fail and
    the next task tries again. An unexpected exception (a bug in a method, out of memory) fails the task if it was the
    only one in progress; otherwise all tasks in progress are lost. Where all boxes are explained, images come one after
    the other.
    """
    if job.every_box:
        yield from _explain_every_box(tasks, classifier, job)
        return
    waiting, make_files = _TaskImages(tasks), partial(_add_files, render=job.render)
    while not waiting.is_finished:
        in_progress = waiting.in_progress = {}
        try:
            answers = explain_numbered(waiting.images(), classifier, request=job.request, width=width, function=make_files)
            for index, (answer, files) in answers:
                yield from waiting.take_unreadable()
                started = in_progress[index]
                made = started.make_result(answer, files, job)
                del in_progress[index]  # only now: an exception while the result is made belongs to this task too
                if isinstance(made, TaskFailed):
                    yield made
                else:
                    yield TaskDone(started.task.id, (made,), started.stamp, classifier.info.notes)
        except NetworkError as error:
            for started in in_progress.values():
                yield started.fail(error)
        except Exception as error:  # methods and libraries may raise anything; other images must not be affected
            if not in_progress:
                raise  # not caused by an image
            failed = [started.fail(error) for started in in_progress.values()]
            yield from failed if len(failed) == 1 else [TaskLost(each.id, each.reason) for each in failed]
        yield from waiting.take_unreadable()


@dataclass(frozen=True)
class _StartedTask:
    """A task whose image was read: the hash and the stamp of the file. The stamp is older than the hash."""

    task: BatchTask
    sha256: str
    stamp: Stamp | None

    def make_result(
        self, answer: Explanation | Failure, files: dict[str, bytes], job: BatchJob, box: int | None = None
    ) -> RowFiles | TaskFailed:
        if isinstance(answer, Failure):
            return self.fail(answer.error)
        if answer.stopped_by == "interrupt":
            raise KeyboardInterrupt  # an interrupted search is not the result of a complete run
        if (failure := find_failure(answer)) is not None:
            return self.fail(AnswerError(failure))
        return make_row(answer, self.task.item, job.categories, box), files

    def fail(self, error: Exception) -> TaskFailed:
        what = "" if isinstance(error, BecausalError) else f"unexpected {type(error).__name__}: "
        is_model = isinstance(error, AnswerError | NetworkError)
        return TaskFailed(self.task.id, f"{what}{one_line(error, MAX_REASON)}", self.sha256, is_model=is_model)


class _TaskImages:
    """Reads the images of tasks and remembers which task each image belongs to."""

    def __init__(self, tasks: Iterable[BatchTask]) -> None:
        self._tasks = iter(tasks)
        self._unreadable: list[TaskFailed] = []
        self.in_progress: dict[int, _StartedTask] = {}  # read and not answered yet, by index in `images()`
        self.is_finished = False

    def images(self) -> Iterator[InputImage]:
        """The images of the tasks that are left; indices start from 0 again."""
        index = 0
        for task in self._tasks:
            stamp, name = stamp_of(task.path), Path(task.path).name
            try:
                image = load_image(task.path)
            except Exception as error:  # image readers may raise anything as well
                reason = f"{name} cannot be read: {type(error).__name__}: {error}"
                if isinstance(error, BecausalError):
                    reason = str(error).replace(task.path, name)
                self._unreadable.append(TaskFailed(task.id, one_line(reason, MAX_REASON)))
            else:
                self.in_progress[index] = _StartedTask(task, image.sha256, stamp)
                index += 1
                yield image
        self.is_finished = True

    def take_unreadable(self) -> list[TaskFailed]:
        """The tasks whose image could not be read since the last call."""
        found, self._unreadable = self._unreadable, []
        return found


def _add_files(answer: Explanation | Failure, *, render: bool) -> tuple[Explanation | Failure, dict[str, bytes]]:
    """An answer and its files; none for a search that did not end by itself."""
    if isinstance(answer, Failure) or answer.stopped_by == "interrupt" or find_failure(answer) is not None:
        return answer, {}
    return answer, answer.files(render=render)


def _explain_every_box(tasks: Iterable[BatchTask], classifier: Classifier, job: BatchJob) -> Iterator[TaskResult]:
    """Explain all boxes of the images of tasks; those of an image share the model's answers. See `explain_tasks`.

    An image fails if the model fails, or if none of its boxes can be explained.
    """
    waiting = _TaskImages(tasks)
    for index, image in enumerate(waiting.images()):
        yield from waiting.take_unreadable()
        started = waiting.in_progress.pop(index)
        results, failures = list[RowFiles](), list[TaskFailed]()
        try:
            for number, answer in explain_boxes(image, classifier, request=job.request):
                made = started.make_result(*_add_files(answer, render=job.render), job, number)
                if isinstance(made, TaskFailed):
                    failures.append(made)
                    if made.is_model:
                        break
                    row = {"sha256": started.sha256, "box": number, "error": made.reason}
                    made = row, {ERROR_FILE: made.reason.encode()}
                results.append(made)
        except Exception as error:  # as in `explain_tasks`
            yield started.fail(error)
            continue
        if failures and failures[-1].is_model:
            yield failures[-1]
        elif failures and len(failures) == len(results):
            yield failures[0]
        else:
            yield TaskDone(started.task.id, tuple(results), started.stamp, classifier.info.notes)
    yield from waiting.take_unreadable()
