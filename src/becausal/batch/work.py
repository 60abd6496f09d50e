"""What a worker does, in any kind of pool: load the model once, explain tasks, make rows and files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from becausal import models
from becausal.api import Failure, explain_boxes, find_failure, map_explanations
from becausal.api.boxes import not_a_detector
from becausal.api.explanation import Explanation
from becausal.batch.index import ERROR_FILE, RESULTS
from becausal.batch.records import (
    BatchJob,
    BatchTask,
    RowResult,
    Stamp,
    TaskDone,
    TaskFailed,
    TaskLost,
    TaskResult,
    WorkerFailed,
    WorkerReady,
)
from becausal.batch.rows import make_row, stamp_of
from becausal.batch.settings import hash_files
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.core.text import one_line
from becausal.images.loading import InputImage, load_image
from becausal.models.labels import find_label

MAX_REASON = 300  # characters of an error message in the index
MAX_START_CRASHES = 3  # consecutive crashes of workers that had not loaded the model yet, before the run stops


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


def give_up(tasks: Iterable[BatchTask], reason: str, *, one_at_a_time: bool) -> Iterator[TaskFailed | TaskLost]:
    """The results of the tasks that a dead worker held; a task that was alone in it is what killed it."""
    for task in tasks:
        yield TaskFailed(task.id, f"{reason}, with this image alone") if one_at_a_time else TaskLost(task.id, reason)


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
            answers = map_explanations(make_files, waiting.images(), classifier, request=job.request, width=width)
            for index, (answer, files) in answers:
                yield from waiting.take_unreadable()
                _refuse_interrupted(answer)
                started = in_progress[index]
                made: RowResult | TaskResult = _make_result(started, answer, files, job)
                del in_progress[index]  # only now: an exception while the result is made belongs to this task too
                if isinstance(made, RowResult):
                    made = TaskDone(started.task.id, (made,), started.stamp, classifier.info.notes)
                yield made
        except NetworkError as error:
            for started in in_progress.values():
                yield _make_failure(started, error)
        except Exception as error:  # methods and libraries may raise anything; other images must not be affected
            if not in_progress:
                raise  # not caused by an image
            reason = _describe_unexpected(error)
            is_only_one = len(in_progress) == 1
            for started in in_progress.values():
                number = started.task.id
                yield TaskFailed(number, reason, started.sha256) if is_only_one else TaskLost(number, reason)
        yield from waiting.take_unreadable()


@dataclass(frozen=True)
class _StartedTask:
    """A task whose image was read: the hash and the stamp of the file. The stamp is older than the hash."""

    task: BatchTask
    sha256: str
    stamp: Stamp | None


class _TaskImages:
    """Reads the images of tasks and remembers which task each image belongs to.

    in_progress: tasks whose image was read and not answered yet, by index in `images()`.
    """

    def __init__(self, tasks: Iterable[BatchTask]) -> None:
        self._tasks = iter(tasks)
        self._unreadable: list[TaskFailed] = []
        self.in_progress: dict[int, _StartedTask] = {}
        self.is_finished = False

    def images(self) -> Iterator[InputImage]:
        """The images of the tasks that are left; indices start from 0 again."""
        index = 0
        for task in self._tasks:
            stamp = stamp_of(task.path)
            try:
                image = load_image(task.path)
            except BecausalError as error:
                reason = str(error).replace(task.path, Path(task.path).name)
                self._unreadable.append(TaskFailed(task.id, one_line(reason, MAX_REASON)))
            except Exception as error:  # image readers may raise anything as well
                reason = f"{Path(task.path).name} cannot be read: {type(error).__name__}: {error}"
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


def _explain_every_box(tasks: Iterable[BatchTask], classifier: Classifier, job: BatchJob) -> Iterator[TaskResult]:
    """Explain all boxes of the images of tasks; they share the model's answers. See `explain_tasks`."""
    waiting = _TaskImages(tasks)
    for index, image in enumerate(waiting.images()):
        yield from waiting.take_unreadable()
        started = waiting.in_progress.pop(index)
        try:
            result = _explain_boxes(started, image, classifier, job)
        except BecausalError as error:
            result = _make_failure(started, error)
        except Exception as error:  # as in `explain_tasks`
            result = TaskFailed(started.task.id, _describe_unexpected(error), started.sha256)
        yield result
    yield from waiting.take_unreadable()


def _explain_boxes(started: _StartedTask, image: InputImage, classifier: Classifier, job: BatchJob) -> TaskDone | TaskFailed:
    """The results of all boxes of an image; a failure if the model fails, or if no box can be explained."""
    results, first_error = [], None
    for number, answer in explain_boxes(image, classifier, request=job.request):
        _refuse_interrupted(answer)
        made = _make_result(started, *_add_files(answer, render=job.render), job, number)
        if isinstance(made, TaskFailed):
            if made.is_model:
                return made
            first_error = first_error or made
            row = dict.fromkeys(RESULTS) | {"sha256": started.sha256, "box": number}
            made = RowResult(row, {ERROR_FILE: made.reason.encode()}, made.reason)
        results.append(made)
    if first_error is not None and all(result.error is not None for result in results):
        return first_error
    return TaskDone(started.task.id, tuple(results), started.stamp, classifier.info.notes)


def _refuse_interrupted(answer: Explanation | Failure) -> None:
    """An interrupted search is not the result of a complete run."""
    if isinstance(answer, Explanation) and answer.stopped_by == "interrupt":
        raise KeyboardInterrupt


def _add_files(answer: Explanation | Failure, *, render: bool) -> tuple[Explanation | Failure, dict[str, bytes]]:
    """An answer and its files; none for a search that did not end by itself."""
    if isinstance(answer, Failure) or answer.stopped_by == "interrupt" or find_failure(answer) is not None:
        return answer, {}
    return answer, answer.files(render=render)


def _make_result(
    started: _StartedTask, answer: Explanation | Failure, files: dict[str, bytes], job: BatchJob, box: int | None = None
) -> RowResult | TaskFailed:
    if isinstance(answer, Failure):
        return _make_failure(started, answer.error)
    if (failure := find_failure(answer)) is not None:
        return _make_failure(started, AnswerError(failure))
    return RowResult(make_row(answer, started.task.item, job.categories, box), files)


def _make_failure(started: _StartedTask, error: BecausalError) -> TaskFailed:
    is_model = isinstance(error, AnswerError | NetworkError)
    return TaskFailed(started.task.id, one_line(error, MAX_REASON), started.sha256, is_model=is_model)


def _describe_unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {one_line(error, MAX_REASON)}"
